"""Errors of the writer jobs, in addition to those of the lock.

::

    SluiceError                                    (lock_manager.errors)
    ├── SettingsError                              (lock_manager.errors)
    │   └── ArgumentsError                         a job's command line is not valid
    ├── UnsupportedSessionError (RuntimeError)     a session of Spark Connect, without Delta, or not tested
    │   └── GuardMissingError                      a session without the guarded log store
    ├── StorageError (OSError)                     a file system refused, or does not exist
    │   └── UnsafeStoreError                       a store that ignores If-None-Match; nothing committed
    ├── TableError (ValueError)                    no Delta table, or one that cannot be written under a lock
    ├── MappingError (ValueError)                  a mapping of cells to columns that is not valid
    ├── SourceError (ValueError)                   source files that are missing or cannot be read
    ├── FeedError (ValueError)                     messages of a feed that cannot be applied as a whole
    ├── RunError (ValueError)                      a run id that was used for other sources, or by another load
    ├── CheckpointError (ValueError)               a stream's checkpoint that cannot be used for its query
    ├── PinError                                   (lock_manager.errors)
    ├── WriteFailedError (RuntimeError)            a write failed; the table is unchanged, unless noted below
    │   ├── SchemaMismatchError (ValueError)       rows that do not fit the table
    │   ├── ChangesError (ValueError)              changes that cannot be ordered, or lack a column
    │   │   └── NothingAppliedError                no message of a load or a stream could be applied
    │   ├── WriteConflictError                     another writer was faster, and the write was not repeated
    │   │   └── RetriesExhaustedError              without a lock, another writer was faster at each try
    │   ├── HeldTooLongError (TimeoutError)        not done in the time that the lock may be held
    │   ├── StreamError                            a stream failed outside of its batches; earlier batches stay
    │   ├── MaintenanceError                       the store failed during maintenance; earlier commits stay
    │   └── CommitUnknownError                     the write may have been committed
    └── LockLostError                              (lock_manager.errors)
        └── UnprovenCommitError                    committed, but the lock could not be confirmed afterwards

Like the lock's errors they can be pickled, have their facts as attributes, and have a message of one sentence.
"""

from __future__ import annotations

from lock_manager.errors import LockLostError, SettingsError, SluiceError


class ArgumentsError(SettingsError):
    """The command line of a job is not valid."""


class UnsupportedSessionError(SluiceError, RuntimeError):
    """The session is of Spark Connect, lacks Delta, or has releases or settings that Sluice does not support."""


class GuardMissingError(UnsupportedSessionError):
    """The session has no guarded log store or no commit guard, so its commits cannot be checked for the lock."""


class StorageError(SluiceError, OSError):
    """A file system refused, did not answer, or does not exist."""

    # OSError's own __str__ would look for an errno.
    __str__ = Exception.__str__


class UnsafeStoreError(StorageError):
    """The store replaces an existing file although the request forbids it. Nothing was committed there."""


class TableError(SluiceError, ValueError):
    """There is no Delta table at the location, or it cannot be written under a lock."""


class MappingError(SluiceError, ValueError):
    """A mapping of cells to columns is not valid."""


class SourceError(SluiceError, ValueError):
    """The source files are missing, or cannot be read with the requested options."""


class FeedError(SluiceError, ValueError):
    """The messages of a feed are refused as a whole: they have no keys or no known order, or truncate the table."""


class RunError(SluiceError, ValueError):
    """A run id does not match its record in the table, or the table may have dropped the run's transaction."""


class CheckpointError(SluiceError, ValueError):
    """A stream's checkpoint belongs to another query, lacks a file, is in the folder of a table, or is too old."""


class WriteFailedError(SluiceError, RuntimeError):
    """A write failed, and nothing of it is in the table.

    Three subclasses differ: after :class:`CommitUnknownError` the write may be in the table, and after
    :class:`StreamError` and :class:`MaintenanceError` earlier commits of the stream or the maintenance are.

    Attributes:
        table: Canonical URI.
        reason: One sentence, from Spark's or Delta's message; their exception is the ``__cause__``.

    """

    _message = "the write to {table} failed, and nothing of it is in the table: {reason}"

    def __init__(self, *, table: str, reason: str) -> None:
        super().__init__(self._message.format(table=table, reason=reason))
        self.table = table
        self.reason = reason


class SchemaMismatchError(WriteFailedError, ValueError):
    """The rows do not fit the table's schema."""


class ChangesError(WriteFailedError, ValueError):
    """Changes cannot be applied: they lack a column, or two changes have no order."""


class NothingAppliedError(ChangesError):
    """No message could be applied: every message is a dead letter, or of another source table."""

    _message = "nothing was applied to {table}: {reason}"


class StreamError(WriteFailedError):
    """A stream failed outside of its batches: its source or its checkpoint cannot be read or written."""

    _message = "the stream into {table} failed: {reason}; start it again, and it continues where it stopped"


class MaintenanceError(WriteFailedError):
    """The store failed during the maintenance of a table. Earlier commits of the maintenance are in the table."""

    _message = "the maintenance of {table} failed: {reason}; the report lists the actions that were done"


class WriteConflictError(WriteFailedError):
    """Another writer has changed the table meanwhile, and the write was not repeated.

    Nothing was written.

    Attributes:
        waited_seconds: Seconds that the write waited for the lock.

    """

    def __init__(self, *, table: str, reason: str, waited_seconds: float = 0.0) -> None:
        super().__init__(table=table, reason=reason)
        self.waited_seconds = waited_seconds


class RetriesExhaustedError(WriteConflictError):
    """A write without a lock was repeated, and another writer was faster each time. Nothing was written."""


class HeldTooLongError(WriteFailedError, TimeoutError):
    """A write exceeded the time that it may hold the lock, and was cancelled; nothing was written.

    Attributes:
        waited_seconds: Seconds that the write waited for the lock.
        held_seconds: Seconds that the write held the lock before it was cancelled.

    """

    def __init__(self, *, table: str, reason: str, waited_seconds: float, held_seconds: float) -> None:
        super().__init__(table=table, reason=reason)
        self.waited_seconds = waited_seconds
        self.held_seconds = held_seconds


class CommitUnknownError(WriteFailedError):
    """A write ended, and it is not known whether it was committed.

    Attributes:
        commit_id: Id of the commit in the table's log. For a write of ``LockedDeltaWriter`` it is ``sluice.commit_id``
            in the ``commitInfo``, in an object of its ``sluice.group`` or in the ``userMetadata``, for any other commit
            ``sluice.attempt`` in the ``commitInfo``. ``sluice log --json`` prints all of them.

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
    """A write was committed, but the lock could not be confirmed afterwards.

    Attributes:
        version: Version of the table that the write committed.
        commit_id: Id of the commit.

    """

    def __init__(self, *, resource: str, hold_id: str, reason: str, version: int, commit_id: str) -> None:
        super().__init__(resource=resource, hold_id=hold_id, reason=reason)
        message = (
            f"lock on {resource} could not be confirmed after the write ({reason}): the write is in the table as "
            f"version {version} (commit id {commit_id}), but another writer may have held the lock at the same time"
        )
        self.args = (message,)
        self.version = version
        self.commit_id = commit_id
