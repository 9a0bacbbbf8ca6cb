"""A pin: which versions of which tables are kept, for which moment, and until when."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError

#: Name of the folder below a table's location that has its pins. Spark's readers and VACUUM pass over it.
PINS_FOLDER = "_sluice_pins"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class PinnedTable:
    """A table of a pin.

    Attributes:
        table: canonical URI.
        location: as Spark reads it.
        table_id: of the table whose version it is: another one may be made at its place.
        version: that is kept.
        committed_at: when that version was committed, by the table's own clock: retention counts from then on.
        passed_version: the first one at which the watermarks of all streams were past the pin's moment; None: unknown.
        event_time: column with a row's event time; None: all rows of the version count.

    """

    table: str
    location: str
    table_id: str
    version: int
    committed_at: datetime
    passed_version: int | None
    event_time: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; :meth:`of_json` reads them."""
        return {**asdict(self), "committed_at": self.committed_at.isoformat()}

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> PinnedTable:
        """Read what :meth:`to_json` wrote; it raises whatever Python does if it is something else."""
        return cls(**{**said, "committed_at": datetime.fromisoformat(said["committed_at"])})


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One moment of one or several tables, kept until a day.

    Attributes:
        name: unique within each of its tables.
        pin_id: unique at all: a pin of the same name that was made anew has another one.
        at: rows up to this event time count, and those of this very time; None: all rows of the versions.
        created_at: when it was made.
        expires_at: until when it is kept.
        tables: in the order in which they were given.
        job: what its maker called itself.

    """

    name: str
    pin_id: str
    at: datetime | None
    created_at: datetime
    expires_at: datetime
    tables: tuple[PinnedTable, ...]
    job: str | None = None

    def has_expired(self, now: datetime | None = None) -> bool:
        """Tell whether it is kept no longer."""
        return self.expires_at <= (now or datetime.now(UTC))

    def of(self, table: str) -> PinnedTable:
        """Return what is kept of a table, by its canonical URI.

        Raises:
            PinError: nothing.

        """
        uri = canonical_table_uri(table)
        for each in self.tables:
            if each.table == uri:
                return each
        raise PinError(f"pin {self.name} is of {', '.join(each.table for each in self.tables)}, not of {uri}")

    def refuse_other(self, tables: Collection[str], at: datetime | None) -> None:
        """Make sure that it is of these tables, and of this moment if one is given.

        Raises:
            PinError: it is not.

        """
        given, there = ({canonical_table_uri(each) for each in tables}, {each.table for each in self.tables})
        if given != there:
            raise PinError(f"pin {self.name} is of {', '.join(sorted(there))}, not of {', '.join(sorted(given))}")
        if at is not None and at != self.at:
            moment = "all rows" if self.at is None else self.at.isoformat()
            raise PinError(f"pin {self.name} is of {moment}, not of {at.isoformat()}: choose another name")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; :meth:`of_text` reads them."""
        moments = {name: getattr(self, name) for name in ("at", "created_at", "expires_at")}
        return {
            "format": _FORMAT,
            **asdict(self),
            **{name: None if value is None else value.isoformat() for name, value in moments.items()},
            "tables": [each.to_json() for each in self.tables],
        }

    @classmethod
    def of_text(cls, text: str, where: str) -> Pin:
        """Read a pin.

        Args:
            text: of its file.
            where: the file is, for the message.

        Raises:
            PinError: it is damaged, or of a later release.

        """
        try:
            said = json.loads(text)
            if said["format"] != _FORMAT:
                raise PinError(f"{where} is a pin of a later release: use that one")
            return cls(
                name=str(said["name"]),
                pin_id=str(said["pin_id"]),
                at=None if said["at"] is None else datetime.fromisoformat(said["at"]),
                created_at=datetime.fromisoformat(said["created_at"]),
                expires_at=datetime.fromisoformat(said["expires_at"]),
                tables=tuple(map(PinnedTable.of_json, said["tables"])),
                job=said["job"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, PinError):
                raise
            raise PinError(
                f"{where} is no pin that can be read ({error}): remove the file, or bring it back"
            ) from error


def check_name(name: str) -> None:
    """Make sure that a pin may have this name.

    Raises:
        PinError: it may not.

    """
    if _NAME.fullmatch(name) is None:
        raise PinError(
            f"a pin cannot be called {name!r}: it has letters, digits, dots, dashes and underscores, at most 100"
        )
