"""The adoption of a table: two table properties that define which lock on it counts.

A lock of another ensemble or on another name does not exclude the other writers. :mod:`lock_manager.resources`
recognizes some names of one table by their form, but not all: an S3 access point and its bucket, an HDFS name service
and its name nodes, two mounts of one file system. So ``sluice adopt`` writes the ensemble and the name into the table
itself. Every writer reads them there, whatever name it uses for the table.

The adopted name is compared exactly, because its hash becomes the name of a znode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lock_manager.errors import EnsembleMismatchError, TableNameMismatchError

#: Table property with the UUID of the one ensemble whose lock on the table counts.
ENSEMBLE_PROPERTY = "sluice.ensemble"

#: Table property with the canonical URI under which the table is locked.
TABLE_PROPERTY = "sluice.table"

#: Name that stands for an ensemble in commits without a lock, and in tables whose writers take none.
OPTIMISTIC_ENSEMBLE = "optimistic"

#: Delta's name of the only operation that removes these properties on purpose. REPLACE and RESTORE change them as a
#: side effect.
UNSET_PROPERTIES = "UNSET TBLPROPERTIES"


@dataclass(frozen=True)
class Adoption:
    """The ensemble that has adopted a table, and the adopted name.

    Attributes:
        ensemble: UUID of the ensemble whose lock counts.
        table: Canonical URI under which the table is locked; None for a table that an early release adopted without it.

    """

    ensemble: str
    table: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Adoption | None:
        """Return the adoption in a table's properties; None if the table is not adopted."""
        ensemble = properties.get(ENSEMBLE_PROPERTY)
        return cls(ensemble, properties.get(TABLE_PROPERTY) or None) if ensemble else None

    @property
    def properties(self) -> dict[str, str]:
        """The table properties of this adoption."""
        return {ENSEMBLE_PROPERTY: self.ensemble} | ({TABLE_PROPERTY: self.table} if self.table is not None else {})

    def check(self, *, ensemble: str, table: str) -> None:
        """Raise unless a lock is the one that counts.

        Args:
            ensemble: UUID of the ensemble that granted the lock.
            table: Canonical URI that is locked.

        Raises:
            TableNameMismatchError: The lock is on another name.
            EnsembleMismatchError: The lock is of another ensemble.

        """
        # The name is checked first: one `sluice adopt --move` changes both the name and the ensemble of a copied table.
        if self.table is not None and self.table != table:
            raise TableNameMismatchError(resource=table, adopted_name=self.table)
        if self.ensemble != ensemble:
            raise EnsembleMismatchError(resource=table, ensemble=ensemble, adopted_by=self.ensemble)

    @classmethod
    def to_restore(cls, previous: Adoption | None, current: Adoption | None, hold: Adoption) -> Adoption | None:
        """Return the adoption to restore after a statement that changed it as a side effect; None to keep ``current``.

        REPLACE and RESTORE remove a table's properties, or bring back older ones. A clone gets the properties of its
        source. So the table gets back its previous adoption. If it had none before and has one now, that adoption is
        another table's or an older one, and the table gets the adoption that names the lock of the hold.

        Args:
            previous: Adoption before the statement.
            current: Adoption after it.
            hold: Adoption that names the lock of the hold.

        """
        if current == previous:
            return None
        adoption = previous or hold
        if previous and previous.table is None and current and current.table is not None:
            # An earlier release adopted the table without a name. The name that it has now may be another table's.
            adoption = cls(previous.ensemble, hold.table)
        return adoption if adoption != current else None

    def __str__(self) -> str:
        """Return ``UUID`` or ``UUID as s3://lake/flights``."""
        return self.ensemble if self.table is None else f"{self.ensemble} as {self.table}"
