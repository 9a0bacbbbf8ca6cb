"""Pins: versions of tables that are kept until an expiry time, for one moment in event time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lock_manager.errors import PinError
from lock_manager.resources import canonical_table_uri

#: Name of the folder with a table's pins, below its location. Spark's readers and VACUUM skip it.
PINS_FOLDER = "_sluice_pins"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class PinnedTable:
    """One table of a pin.

    Attributes:
        table: Canonical URI.
        location: Location as Spark reads it.
        table_id: Delta's table id. A table that is recreated at the same location gets a new one.
        committed_at: When the version was committed, according to the table's log. Retention counts from then on.
        passed_version: First version at which the watermarks of all streams had passed the pin's moment; None: unknown.
        event_time: Column with the event time of a row; None: all rows of the version count.

    """

    table: str
    location: str
    table_id: str
    version: int
    committed_at: datetime
    passed_version: int | None
    event_time: str | None

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> PinnedTable:
        """Parse a table of :meth:`Pin.to_json`; a malformed record raises a builtin exception."""
        return cls(**{**record, "committed_at": datetime.fromisoformat(record["committed_at"])})


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One moment of one or several tables, kept until it expires.

    Attributes:
        name: Name, unique within each of its tables.
        pin_id: Unique id. A pin that is created again under the same name gets a new one.
        at: Rows with an event time up to and including this one count; None: all rows of the versions.
        expires_at: Until when it is kept.
        tables: The tables, in the order of the request.
        job: Name of the job that created it.

    """

    name: str
    pin_id: str
    at: datetime | None
    created_at: datetime
    expires_at: datetime
    tables: tuple[PinnedTable, ...]
    job: str | None = None

    def has_expired(self, now: datetime | None = None) -> bool:
        """Return whether the pin has expired."""
        return self.expires_at <= (now or datetime.now(UTC))

    def of(self, table: str) -> PinnedTable:
        """Return the pinned table with this location.

        Raises:
            PinError: The table is not pinned.

        """
        uri = canonical_table_uri(table)
        for pinned in self.tables:
            if pinned.table == uri:
                return pinned
        pinned_uris = ", ".join(pinned.table for pinned in self.tables)
        raise PinError(f"pin {self.name} keeps a version of {pinned_uris}, not of {uri}: choose another pin or table")

    def check_tables_and_moment(self, tables: Collection[str], at: datetime | None) -> None:
        """Raise unless the pin has exactly these tables and, if ``at`` is given, this moment.

        Raises:
            PinError: The tables or the moment differ.

        """
        requested_uris, pinned_uris = set(map(canonical_table_uri, tables)), {pinned.table for pinned in self.tables}
        if requested_uris != pinned_uris:
            raise PinError(
                f"pin {self.name} keeps a version of {', '.join(sorted(pinned_uris))}, not of "
                f"{', '.join(sorted(requested_uris))}: choose another name"
            )
        if at is not None and at != self.at:
            moment = "all rows" if self.at is None else f"the rows up to {self.at.isoformat()}"
            raise PinError(f"pin {self.name} keeps {moment}, not {at.isoformat()}: choose another name")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; :meth:`from_text` parses their text."""
        record = {"format": _FORMAT, **asdict(self)}
        for fields in (record, *record["tables"]):
            fields.update({name: value.isoformat() for name, value in fields.items() if isinstance(value, datetime)})
        return record

    @classmethod
    def from_text(cls, text: str, path: str) -> Pin:
        """Parse the text of the pin's file at ``path``.

        Raises:
            PinError: The file is damaged, or of a later release.

        """
        try:
            record = json.loads(text)
            if record["format"] != _FORMAT:
                raise PinError(f"{path} is a pin of a later release: use that release")
            return cls(
                name=str(record["name"]),
                pin_id=str(record["pin_id"]),
                at=None if record["at"] is None else datetime.fromisoformat(record["at"]),
                created_at=datetime.fromisoformat(record["created_at"]),
                expires_at=datetime.fromisoformat(record["expires_at"]),
                tables=tuple(map(PinnedTable.from_json, record["tables"])),
                job=record["job"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, PinError):
                raise
            raise PinError(f"{path} is not a readable pin ({error}): delete or restore the file") from error


def check_name(name: str) -> None:
    """Raise unless a pin may have this name.

    Raises:
        PinError: The name is malformed or too long.

    """
    if _NAME.fullmatch(name) is None:
        raise PinError(
            f"a pin cannot be called {name!r}: use at most 100 letters, digits, dots, dashes and underscores, and "
            "begin with a letter or digit"
        )
