"""Checks of maintenance in a mixed soak: it must keep the files of a pin and a slow reader, and remove orphans."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.mixed.feeds import Row

_ORPHANS = 50
_ORPHAN_AGE_SECONDS = 2 * 86_400.0
_KEY = ("feed", "month", "id")
_DELETE, _PREIMAGE = "delete", "update_preimage"


@dataclass(frozen=True)
class RetentionErrors:
    """The errors of maintenance in a mixed soak.

    Attributes:
        pinned: Number of missing and surplus rows in the pinned version.
        read: Number of rows that differ between the slow reader and the table.
        orphans: Number of planted orphans that remain.

    """

    pinned: int
    read: int
    orphans: int

    @property
    def is_good(self) -> bool:
        """Whether there are no errors."""
        return not (self.pinned or self.read or self.orphans)


def plant_orphans(table: Path) -> list[Path]:
    """Write files like those of a writer that was killed two days ago; return their paths."""
    modified_at = time.time() - _ORPHAN_AGE_SECONDS
    names = (f"month={number % 3 + 1}/part-{number:05}-orphan.snappy.parquet" for number in range(_ORPHANS))
    paths = [table / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (modified_at, modified_at))
    return paths


def read_changes(folder: Path) -> list[dict[str, Any]]:
    """Return the changes that the slow reader has written, in the order of its batches."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("[0-9]*.json"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def apply_change_feed(rows: Iterable[Row], changes: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Apply rows of Delta's change data feed to rows of the table, and return the new rows."""
    rows_by_key = {row[: len(_KEY)]: row for row in rows}
    ordered_changes = sorted(changes, key=lambda change: (change["_commit_version"], change["_change_type"] != _DELETE))
    for change in ordered_changes:
        key = tuple(change[name] for name in _KEY)
        if change["_change_type"] == _DELETE:
            rows_by_key.pop(key, None)
        elif change["_change_type"] != _PREIMAGE:
            rows_by_key[key] = _row(change)
    return list(rows_by_key.values())


def _row(change: Mapping[str, Any]) -> Row:
    # In the format of read_rows, without fractions of a second. Spark's JSON omits null values.
    at = f"{str(change['at'])[:19]}Z"
    month, number, position = int(change["month"]), int(change["id"]), int(change["position"])
    return (str(change["feed"]), month, number, position, at, str(change["carrier"]), change.get("delay"))
