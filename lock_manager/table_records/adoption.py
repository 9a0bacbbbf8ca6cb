"""The adoption of a table: two table properties that say which lock on it counts.

A lock of another ensemble excludes nobody, and neither does a lock on another name. Some names are known to be one by
their form alone (:mod:`lock_manager.resources`). Others are not: an S3 access point and its bucket, an HDFS name
service and its name nodes, two mounts of one file system. So ``sluice adopt`` writes the ensemble and the name into the
table itself, where every writer reads them, by whatever name it reaches the table.

The adopted name is compared letter by letter, because its hash becomes the name of a znode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lock_manager.errors import EnsembleMismatchError, TableNameMismatchError

#: Table property with the UUID of the one ensemble whose lock on the table counts.
ENSEMBLE_PROPERTY = "sluice.ensemble"

#: Table property with the canonical URI under which the table is locked.
TABLE_PROPERTY = "sluice.table"

#: Delta's name of the operation that may remove these properties. REPLACE and RESTORE do it as a side effect.
UNSET_PROPERTIES = "UNSET TBLPROPERTIES"


@dataclass(frozen=True)
class Adoption:
    """Which ensemble has adopted a table, and under which name.

    Attributes:
        ensemble: UUID of the ensemble whose lock counts.
        table: canonical URI under which the table is locked; None if an earlier release adopted it, which noted none.

    """

    ensemble: str
    table: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Adoption | None:
        """Return the adoption that a table's properties contain, None if nobody adopted it."""
        ensemble = properties.get(ENSEMBLE_PROPERTY)
        return cls(ensemble, properties.get(TABLE_PROPERTY) or None) if ensemble else None

    @property
    def properties(self) -> dict[str, str]:
        """The table properties that say so."""
        return {ENSEMBLE_PROPERTY: self.ensemble} | ({TABLE_PROPERTY: self.table} if self.table is not None else {})

    def check(self, *, ensemble: str, table: str) -> None:
        """Make sure that a lock is the one that counts.

        Args:
            ensemble: UUID of the ensemble that gave it.
            table: canonical URI that it is of.

        Raises:
            TableNameMismatchError: it is of another name.
            EnsembleMismatchError: it is of another ensemble.

        """
        # The name first: what was copied here is moved once, to its own name and to its ensemble.
        if self.table is not None and self.table != table:
            raise TableNameMismatchError(resource=table, adopted_name=self.table)
        if self.ensemble != ensemble:
            raise EnsembleMismatchError(resource=table, ensemble=ensemble, adopted_by=self.ensemble)

    def __str__(self) -> str:
        """Return ``UUID`` or ``UUID as s3://lake/flights``."""
        return self.ensemble if self.table is None else f"{self.ensemble} as {self.table}"
