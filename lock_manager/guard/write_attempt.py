"""The identity of a commit: one attempt of one operation, named by its write id."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lock_manager.errors import NotStagedError
from lock_manager.table_records.commit_stamp import note_of_write


@dataclass(frozen=True)
class WriteAttempt:
    """One attempt of one operation. Only a commit with its write id proves that the operation is in the table.

    The write id is bound to the thread that executes the attempt. The log store sends it with the commit.

    Attributes:
        note: Note of the commit, which includes the write id (JSON values).
        write_id: Unique id of the attempt.
        begun_at: When the attempt began, seconds since the epoch. All of its files are younger. The monotonic clock
            would not do, because it stops while a machine sleeps.

    """

    note: Mapping[str, Any]
    write_id: str
    begun_at: float

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> WriteAttempt:
        """Return a new attempt, which begins now and whose note contains this metadata (JSON values)."""
        write_id, begun_at = str(uuid.uuid4()), time.time()
        return cls(note_of_write(metadata, write_id, begun_at), write_id, begun_at)

    def refuse_if_old(self, table: str, retention_seconds: float) -> None:
        """Raise NotStagedError if the attempt is too old, see :func:`too_old_reason`."""
        if (reason := too_old_reason(table, time.time() - self.begun_at, retention_seconds)) is not None:
            raise NotStagedError(reason)


def too_old_reason(table: str, age_seconds: float, retention_seconds: float) -> str | None:
    """Return why a write that began ``age_seconds`` ago must not be committed; None if it may be.

    VACUUM deletes a file that belongs to no commit once it is older than the retention. So a write may be at most half
    as old.
    """
    if age_seconds <= retention_seconds / 2:
        return None
    return (
        f"the write to {table} began {age_seconds:.0f} s ago, and VACUUM deletes files that belong to no commit after "
        f"{retention_seconds:.0f} s: raise delta.deletedFileRetentionDuration, or write less at a time"
    )
