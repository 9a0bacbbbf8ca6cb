"""What the writer jobs raise on purpose, beside what the lock raises.

::

    SluiceError                                    (lock_manager.errors)
    ├── SettingsError                              (lock_manager.errors)
    │   └── ArgumentsError                         a job's command line does not make sense
    ├── UnsupportedSessionError (RuntimeError)     a session of Spark Connect, or without Delta
    │   └── GuardMissingError                      a session without the guarded log store
    ├── StorageError (OSError)                     a file system refused, or does not exist
    │   └── UnsafeStoreError                       a store that ignores If-None-Match; nothing committed
    ├── TableError (ValueError)                    no Delta table, or none that may be written under a lock
    ├── MappingError (ValueError)                  a mapping of cells to columns that does not make sense
    ├── SourceError (ValueError)                   source files that are not there, or cannot be read as asked
    ├── FeedError (ValueError)                     messages of a feed that cannot be taken for changes of rows
    ├── RunError (ValueError)                      a run id that was used for other sources, or by somebody else
    ├── CheckpointError (ValueError)               a stream's checkpoint that is of another query, or not whole
    ├── PinError                                   (lock_manager.errors)
    ├── WriteFailedError (RuntimeError)            a write failed; the table is as it was
    │   ├── SchemaMismatchError (ValueError)       rows that do not fit the table
    │   ├── ChangesError (ValueError)              changes that cannot be ordered, or lack a column
    │   │   └── NothingAppliedError                no message of a load or a stream could be applied
    │   ├── WriteConflictError                     another writer was faster, and it is not to be done again
    │   ├── HeldTooLongError (TimeoutError)        not done in the time for which the lock may be held
    │   ├── StreamError                            a stream failed, but not in one of its batches
    │   ├── MaintenanceError                       the store failed while a table was looked after
    │   └── CommitUnknownError                     it could not be found out whether the write was committed
    └── LockLostError                              (lock_manager.errors)
        └── UnprovenCommitError                    committed, but whether the lock still stood is not known

Like the lock's errors they survive pickling, carry their facts as attributes, and their message is one sentence.
"""

from __future__ import annotations

from lock_manager.errors import LockLostError, SettingsError, SluiceError


class ArgumentsError(SettingsError):
    """The command line does not make sense."""


class UnsupportedSessionError(SluiceError, RuntimeError):
    """A session that cannot write under a lock: of Spark Connect, or without Delta."""


class GuardMissingError(UnsupportedSessionError):
    """A session in which nobody could ask for the lock at a commit: without the guarded log store, or its guard."""


class StorageError(SluiceError, OSError):
    """A file system refused, did not answer, or does not exist."""

    # Without its own, OSError's __str__ would look for an errno.
    __str__ = Exception.__str__


class UnsafeStoreError(StorageError):
    """The store replaces an existing file although the request forbids it, so nothing was committed there."""


class TableError(SluiceError, ValueError):
    """What was named is no Delta table, or none that may be written under a lock."""


class MappingError(SluiceError, ValueError):
    """A mapping of cells to columns does not make sense."""


class SourceError(SluiceError, ValueError):
    """The source files are not there, or cannot be read as asked."""


class FeedError(SluiceError, ValueError):
    """The messages of a feed cannot be taken for changes of rows, all of them: no keys, no order, a truncate."""


class RunError(SluiceError, ValueError):
    """A run id does not fit what is recorded of it in the table."""


class CheckpointError(SluiceError, ValueError):
    """A stream's checkpoint is of another query, or lacks a file."""


class WriteFailedError(SluiceError, RuntimeError):
    """A write failed, and the table is as it was before.

    Attributes:
        table: canonical URI.
        reason: one sentence of Spark's or Delta's own words; their exception is the ``__cause__``.

    """

    def __init__(self, *, table: str, reason: str) -> None:
        super().__init__(f"the write to {table} failed, and nothing of it is in the table: {reason}")
        self.table = table
        self.reason = reason


class SchemaMismatchError(WriteFailedError, ValueError):
    """The rows do not fit the table's schema."""


class ChangesError(WriteFailedError, ValueError):
    """Changes cannot be applied: they lack a column, or it is not known which of two is newer."""


class NothingAppliedError(ChangesError):
    """No message could be applied: each is a dead letter, or of another source table."""

    def __init__(self, *, table: str, reason: str) -> None:
        super().__init__(table=table, reason=reason)
        self.args = (f"nothing was applied to {table}: {reason}",)


class StreamError(WriteFailedError):
    """A stream failed, but not in one of its batches: its source or its checkpoint cannot be read or written."""

    def __init__(self, *, table: str, reason: str) -> None:
        super().__init__(table=table, reason=reason)
        self.args = (f"the stream into {table} failed: {reason}; start it again, and it goes on where it was",)


class MaintenanceError(WriteFailedError):
    """The store failed while a table was looked after. What was committed before is in the table."""

    def __init__(self, *, table: str, reason: str) -> None:
        super().__init__(table=table, reason=reason)
        self.args = (f"the maintenance of {table} failed: {reason}; the report has what was done before",)


class WriteConflictError(WriteFailedError):
    """Another writer has changed what the write had read, and it is not to be done again; nothing written.

    Attributes:
        waited_seconds: how long it waited for the lock before it found that out.

    """

    def __init__(self, *, table: str, reason: str, waited_seconds: float = 0.0) -> None:
        super().__init__(table=table, reason=reason)
        self.waited_seconds = waited_seconds


class HeldTooLongError(WriteFailedError, TimeoutError):
    """A write was not done in the time for which it may hold the lock, so it was cancelled; nothing written.

    Attributes:
        waited_seconds: how long it waited for the lock.
        held_seconds: for how long it has held it by then.

    """

    def __init__(self, *, table: str, reason: str, waited_seconds: float, held_seconds: float) -> None:
        super().__init__(table=table, reason=reason)
        self.waited_seconds = waited_seconds
        self.held_seconds = held_seconds


class CommitUnknownError(WriteFailedError):
    """A write ended in a way that does not tell whether it was committed.

    Attributes:
        commit_id: what to look for in the table's log: of an append of the writer's the ``sluice.commit_id`` in its
            ``userMetadata``, of any other commit ``sluice.attempt`` in its ``commitInfo``. ``sluice log --json`` has
            both.

    """

    def __init__(self, *, table: str, reason: str, commit_id: str) -> None:
        super().__init__(table=table, reason=reason)
        message = (
            f"whether the write to {table} was committed is not known: {reason}; "
            f"look for {commit_id} in `sluice log {table} --json` before writing again"
        )
        self.args = (message,)
        self.commit_id = commit_id


class UnprovenCommitError(LockLostError):
    """An append was committed, but the lock could not be confirmed afterwards.

    Attributes:
        version: of the table, in which the append was found.
        commit_id: of the append.

    """

    def __init__(self, *, resource: str, hold_id: str, reason: str, version: int, commit_id: str) -> None:
        super().__init__(resource=resource, hold_id=hold_id, reason=reason)
        message = (
            f"lock on {resource} could not be confirmed after the append ({reason}): the append is in the table as "
            f"version {version} (commit id {commit_id}), but another writer may have held the lock at the same time"
        )
        self.args = (message,)
        self.version = version
        self.commit_id = commit_id
