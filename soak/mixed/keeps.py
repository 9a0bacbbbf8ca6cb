"""What care must spare in a mixed soak, and whether it did: a pinned version, and what a slow reader is to read."""

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
_ORPHANS_AGE_SECONDS = 2 * 86_400.0
_KEY = ("feed", "month", "id")
_GONE, _BEFORE = "delete", "update_preimage"


@dataclass(frozen=True)
class Spared:
    """What became of what care must spare.

    Attributes:
        pinned: rows of the pinned version that are missing in it, or there without having been.
        read: rows that the slow reader has, and the table has not, or the other way round.
        orphans: planted ones that are still there.

    """

    pinned: int
    read: int
    orphans: int

    @property
    def is_good(self) -> bool:
        """Whether nothing is missing that is needed, and what nobody needs is gone."""
        return not (self.pinned or self.read or self.orphans)


def plant_orphans(table: Path) -> list[Path]:
    """Write files as a writer leaves them that was killed two days ago."""
    then = time.time() - _ORPHANS_AGE_SECONDS
    made = [table / f"month={number % 3 + 1}" / f"part-{number:05}-orphan.snappy.parquet" for number in range(_ORPHANS)]
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (then, then))
    return made


def changes_in(folder: Path) -> list[dict[str, Any]]:
    """Return the changes that the reader has written, in the order of its batches."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("[0-9]*.json"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def rows_after(begin: Iterable[Row], changes: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows that changes make of others.

    Args:
        begin: rows before.
        changes: rows of Delta's change feed.

    """
    rows = {row[: len(_KEY)]: row for row in begin}
    in_order = sorted(changes, key=lambda change: (change["_commit_version"], change["_change_type"] != _GONE))
    for change in in_order:
        key = tuple(change[name] for name in _KEY)
        if change["_change_type"] == _GONE:
            rows.pop(key, None)
        elif change["_change_type"] != _BEFORE:
            rows[key] = _row(change)
    return list(rows.values())


def _row(change: Mapping[str, Any]) -> Row:
    # As read_rows has it, without fractions of a second; JSON leaves out what is null.
    at = f"{str(change['at'])[:19]}Z"
    month, number, position = int(change["month"]), int(change["id"]), int(change["position"])
    return (str(change["feed"]), month, number, position, at, str(change["carrier"]), change.get("delay"))
