"""What became of a batch of rows that arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from writer_jobs.commit.held_write import CommitResult
from writer_jobs.late_rows.event_time import Lateness

#: What a batch of rows counts, by its name.
COUNTED = ("arrived", "repeated", "late", "too_late", "inserted", "updated", "dead_letters", "missing_files")


@dataclass(frozen=True, kw_only=True)
class RowsResult:
    """What became of one batch of rows.

    Attributes:
        table: canonical URI.
        version: of the table that has them; None if there was nothing to do, or they were there before (``txn``).
        already_applied: the table had this transaction already.
        arrived: how many rows there were.
        repeated: those whose key came before, in the batch or in the table, as new or newer; also if they are too late.
        late: those older than the watermark, but not too late.
        too_late: those in ``<location>_late``, older than what was agreed, and not in the table.
        inserted: rows that are new in the table.
        updated: rows that were replaced by newer ones.
        newest: the newest event time, of this batch and of before; None if there is none.
        watermark: the newest event time, less the watermark's delay: rows that are older count as late from here on.
        commit: of the table; None if there was nothing to do.
        dead_letters: messages that could not be read, and rows without a key or an event time, of a source that nobody
            can mend.
        dead_reason: The most frequent reason of dead letters; None if there are none.
        missing_files: Source files that were deleted before the stream read them, and are skipped.

    """

    table: str
    version: int | None
    already_applied: bool
    arrived: int
    repeated: int
    late: int
    too_late: int
    inserted: int
    updated: int
    newest: datetime | None
    watermark: datetime | None
    commit: CommitResult | None
    dead_letters: int = 0
    dead_reason: str | None = None
    missing_files: int = 0

    @classmethod
    def of_nothing(
        cls, table: str, newest: datetime | None, lateness: Lateness, *, already_applied: bool = False
    ) -> RowsResult:
        """Return what became of a batch without rows, or of one that was done before."""
        return cls(
            table=table, version=None, already_applied=already_applied, arrived=0, repeated=0, late=0, too_late=0,
            inserted=0, updated=0, newest=newest, watermark=lateness.watermark(newest), commit=None,
        )  # fmt: skip

    @property
    def counts(self) -> dict[str, Any]:
        """Its numbers, by name, the watermark, and in ``lag_s`` how old the newest row is, in seconds; JSON values."""
        return {
            **{name: getattr(self, name) for name in COUNTED},
            "newest_event_time": None if self.newest is None else self.newest.isoformat(),
            "watermark": None if self.watermark is None else self.watermark.isoformat(),
            "lag_s": None if self.newest is None else round(time.time() - self.newest.timestamp(), 3),
        }
