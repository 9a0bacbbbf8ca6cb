"""The result of a batch of rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from writer_jobs.commit.result import CommitResult

#: Names of the counters of a batch of rows.
COUNTERS = ("arrived", "repeated", "late", "too_late", "inserted", "updated", "dead_letters", "missing_files")


@dataclass(frozen=True, kw_only=True)
class RowsResult:
    """The result of one batch of rows. The default values are those of a batch without rows.

    Attributes:
        table: Canonical URI of the table.
        version: Version of the table's commit; None if there was nothing to commit, or the table had ``txn`` before.
        already_applied: Whether the table had this transaction before.
        arrived: Number of rows.
        repeated: Number of rows that were dropped, because the batch or the table had the same or a newer row with
            their key. Rows that are too late are included.
        late: Number of rows that are older than the watermark, but not too late.
        too_late: Number of rows in ``<location>_late``: older than the allowed lateness, and not in the table.
        inserted: Number of new rows in the table.
        updated: Number of rows that were replaced by newer ones.
        newest: The newest event time of this batch and of all before it; None if there is none.
        watermark: The newest event time minus the watermark delay. Older rows count as late from here on.
        commit: Commit of the table; None if there was nothing to commit.
        dead_letters: Number of messages that could not be read, and of rows without a key or an event time from a
            source that cannot be corrected.
        dead_reason: The most frequent reason of dead letters; None if there are none.
        missing_files: Number of source files that were deleted before the stream read them, and are skipped.

    """

    table: str
    version: int | None = None
    already_applied: bool = False
    arrived: int = 0
    repeated: int = 0
    late: int = 0
    too_late: int = 0
    inserted: int = 0
    updated: int = 0
    newest: datetime | None
    watermark: datetime | None
    commit: CommitResult | None = None
    dead_letters: int = 0
    dead_reason: str | None = None
    missing_files: int = 0

    @property
    def newest_at(self) -> float | None:
        """The newest event time, in seconds since the epoch; None if there is none."""
        return None if self.newest is None else self.newest.timestamp()

    @property
    def counts(self) -> dict[str, Any]:
        """Counters, event times, and ``lag_s`` (age of the newest row in seconds), by name; JSON values."""
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "newest_event_time": None if self.newest is None else self.newest.isoformat(),
            "watermark": None if self.watermark is None else self.watermark.isoformat(),
            "lag_s": None if self.newest_at is None else round(time.time() - self.newest_at, 3),
        }
