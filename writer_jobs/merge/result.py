"""The result of a batch of changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from writer_jobs.commit.result import CommitResult
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.table_model import RowModel

#: Names of the counters of a batch.
COUNTERS = (
    "changes", "folded", "keys", "inserted", "updated", "deleted", "unchanged", "dead_letters", "skipped", "filtered",
    "missing_files", "incomplete",
)  # fmt: skip
_ACTIONS = ("Inserted", "Updated", "Deleted")


@dataclass(frozen=True, kw_only=True)
class ChangesResult:
    """The result of one batch of changes. The defaults are the result of a batch without changes.

    Attributes:
        table: Canonical URI of the table.
        version: Version of the table's commit; None if there was nothing to commit, or the table had ``txn`` before.
        already_applied: Whether the table had this transaction before.
        changes: Number of changes.
        folded: Number of changes after folding: the newest of each key; with history, one of each key and sequence;
            for HBase, one of each cell.
        keys: Number of keys.
        inserted: Number of new rows.
        updated: Number of rows that were replaced by newer ones.
        deleted: Number of deleted rows.
        unchanged: Number of keys whose newest change was a repetition, was older than the table's row, or deleted no
            row. With history: number of changes, without deletes, that the table had before.
        newest_sequence: Largest sequence; None for an empty batch.
        commit: Result of the write; None if there was no write.
        dead_letters: Number of messages that could not be decoded.
        dead_reason: The most frequent reason of dead letters; None if there are none.
        skipped: Number of messages that are about no row.
        filtered: Number of events of other source tables, or of other HBase tables.
        missing_files: Number of source files that were deleted before a stream read them, and are skipped.
        incomplete: Number of written rows with a column that no change has contained, so its value is null; see
            ``unchanged_columns`` of :func:`writer_jobs.apply_changes`.
        newest_at: Time of the newest change, in seconds since the epoch; None if the changes have no times.

    """

    table: str
    version: int | None = None
    already_applied: bool = False
    changes: int = 0
    folded: int = 0
    keys: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    newest_sequence: Any = None
    commit: CommitResult | None = None
    dead_letters: int = 0
    dead_reason: str | None = None
    skipped: int = 0
    filtered: int = 0
    missing_files: int = 0
    incomplete: int = 0
    newest_at: float | None = None

    @classmethod
    def of_batch(
        cls, table: str, model: RowModel, batch: ChangeBatch, commit: CommitResult | None, *, already_applied: bool
    ) -> ChangesResult:
        """Return the result of a batch; ``commit`` is None if there was no write."""
        metrics = commit.metrics if commit is not None else {}
        inserted, updated, deleted = (int(metrics.get(f"numTargetRows{action}", 0)) for action in _ACTIONS)
        keys = batch.count_keys()
        return cls(
            table=table,
            version=commit.version if commit is not None else None,
            already_applied=already_applied,
            changes=batch.change_count,
            folded=batch.folded_count,
            keys=keys,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            unchanged=model.unchanged(batch, keys, inserted, inserted + updated + deleted),
            incomplete=model.incomplete_count,
            newest_sequence=batch.newest,
            commit=commit,
            newest_at=moment_of(batch.newest),
        )

    @property
    def counts(self) -> dict[str, Any]:
        """Counters, newest sequence, and ``lag_s`` (age of the newest change in seconds), by name; JSON values."""
        newest = self.newest_sequence
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "newest_sequence": newest if isinstance(newest, int | float | str | None) else str(newest),
            "lag_s": None if self.newest_at is None else round(time.time() - self.newest_at, 3),
        }


def moment_of(sequence: Any) -> float | None:
    """Return a sequence that is a timestamp or a date, in seconds since the epoch; None for other sequences.

    The first field of a struct counts.

    A timestamp without time zone, and the start of a date, are local times of this process.
    """
    value = sequence[0] if isinstance(sequence, tuple) and sequence else sequence
    if isinstance(value, datetime):
        return value.timestamp()
    return time.mktime(value.timetuple()) if isinstance(value, date) else None
