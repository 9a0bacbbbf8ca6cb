"""What became of a batch of changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from writer_jobs.commit.held_write import CommitResult
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.table_model import RowKind

#: What a batch counts, by its name.
COUNTED = (
    "changes", "folded", "keys", "inserted", "updated", "deleted", "unchanged", "dead_letters", "skipped", "filtered",
    "missing_files",
)  # fmt: skip
_METRICS = ("Inserted", "Updated", "Deleted")


@dataclass(frozen=True, kw_only=True)
class ChangesResult:
    """What became of one batch of changes.

    Attributes:
        table: canonical URI.
        version: of the table that has them; None if they were there before (``txn``).
        already_applied: the table had this transaction already.
        changes: how many there were.
        folded: how many were left to apply: the newest of each key; with history, one of each key and sequence.
        keys: how many keys they have.
        inserted: rows that are new.
        updated: rows that were replaced by newer ones.
        deleted: rows that are gone.
        unchanged: keys whose newest change was known already, was older than what the table has, or deleted nothing;
            with history changes that were known already, without deletes.
        newest_sequence: the largest; None of an empty batch.
        commit: of the table; None if nothing was to be done.
        dead_letters: messages that could not be decoded.
        dead_reason: The most frequent reason of dead letters; None if there are none.
        skipped: messages that say nothing of a row.
        filtered: Number of events of other source tables, or of other tables of HBase.
        missing_files: Source files that were deleted before a stream read them, and are skipped.
        newest_at: when the newest change was made, seconds since the epoch; None if changes do not tell.

    """

    table: str
    version: int | None
    already_applied: bool
    changes: int
    folded: int
    keys: int
    inserted: int
    updated: int
    deleted: int
    unchanged: int
    newest_sequence: Any
    commit: CommitResult | None
    dead_letters: int = 0
    dead_reason: str | None = None
    skipped: int = 0
    filtered: int = 0
    missing_files: int = 0
    newest_at: float | None = None

    @classmethod
    def of_nothing(cls, table: str) -> ChangesResult:
        """Return what became of a batch without changes."""
        return cls(
            table=table, version=None, already_applied=False, changes=0, folded=0, keys=0, inserted=0, updated=0,
            deleted=0, unchanged=0, newest_sequence=None, commit=None,
        )  # fmt: skip

    @classmethod
    def of_batch(
        cls, table: str, kind: RowKind, batch: ChangeBatch, commit: CommitResult | None, *, already_applied: bool
    ) -> ChangesResult:
        """Return what became of a batch.

        Args:
            table: canonical URI.
            kind: which rows the changes became.
            batch: the changes.
            commit: of the table, by a merge; None if nothing was to be done.
            already_applied: whether the table had this transaction already.

        """
        counts = commit.metrics if commit is not None else {}
        inserted, updated, deleted = (int(counts.get(f"numTargetRows{metric}", 0)) for metric in _METRICS)
        keys = batch.count_keys()
        return cls(
            table=table,
            version=commit.version if commit is not None else None,
            already_applied=already_applied,
            changes=batch.changes,
            folded=batch.folded,
            keys=keys,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            unchanged=kind.unchanged(batch, keys, inserted, inserted + updated + deleted),
            newest_sequence=batch.newest,
            commit=commit,
            newest_at=moment_of(batch.newest),
        )

    @property
    def counts(self) -> dict[str, Any]:
        """Its numbers, by name, and in ``lag_s`` how old the newest change is, in seconds; JSON values."""
        newest = self.newest_sequence
        return {
            **{name: getattr(self, name) for name in COUNTED},
            "newest_sequence": newest if isinstance(newest, int | float | str | None) else str(newest),
            "lag_s": None if self.newest_at is None else round(time.time() - self.newest_at, 3),
        }


def moment_of(sequence: Any) -> float | None:
    """Return a sequence as seconds since the epoch, if it is a moment or a day; of a struct its first field counts.

    A timestamp without time zone is taken for one of this process's zone, a day for its begin.
    """
    first = sequence[0] if isinstance(sequence, tuple) and sequence else sequence
    if isinstance(first, datetime):
        return first.timestamp()
    return time.mktime(first.timetuple()) if isinstance(first, date) else None
