"""The public names of ``lock_manager``; errors of all packages: pickles, messages and base classes."""

from __future__ import annotations

import pickle

import pytest

import lock_manager
import sluice.errors
from lock_manager import (
    AdoptionMismatchError,
    EnsembleMismatchError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockError,
    LockLostError,
    LockNotHeldError,
    LockOrderError,
    LockTimeoutError,
    NotAdoptedError,
    SluiceError,
    TableNameMismatchError,
    UnguardedError,
    UnsupportedLockError,
)
from lock_manager import errors as lock_errors
from lock_manager.errors import ContenderGoneError, NoChrootError, VersionTakenError
from writer_jobs import errors

WRITE_FAILED = errors.WriteFailedError(table="s3://b/t", reason="no")
COMMIT_UNKNOWN = errors.CommitUnknownError(table="s3://b/t", reason="no", commit_id="c")
UNPROVEN_COMMIT = errors.UnprovenCommitError(resource="s3://b/t", hold_id="h", reason="no", version=7, commit_id="c")
#: Errors whose constructors do not take a message alone.
ERRORS_WITH_FIELDS = [
    EnsembleUnavailableError("a:1", 3.0),
    EnsembleRefusedError("a:1", "NoAuthError"),
    NoChrootError(),
    LockError("no", resource="s3://l/t"),
    LockTimeoutError(resource="s3://l/t", timeout_seconds=5, ahead=2, holder={"host": "h", "pid": 1, "job": "j"}),
    LockTimeoutError(resource="s3://l/t", timeout_seconds=5, ahead=0, holder=None),
    LockCancelledError(resource="s3://l/t"),
    ContenderGoneError(resource="s3://l/t"),
    LockOrderError("order", resource="s3://l/t"),
    UnguardedError(resource="s3://l/t"),
    UnsupportedLockError("needs a lock", resource="s3://l/t"),
    VersionTakenError(resource="s3://l/t", hold_id="x", version=7),
    LockNotHeldError("no", resource="s3://l/t"),
    AdoptionMismatchError("no", resource="s3://l/t"),
    EnsembleMismatchError(resource="s3://l/t", ensemble="b", adopted_by="a"),
    TableNameMismatchError(resource="s3://alias/t", adopted_name="s3://l/t"),
    NotAdoptedError(resource="s3://l/t"),
    LockLostError(resource="s3://l/t", hold_id="x", reason="gone", commits={"s3://l/t": (3,)}),
    WRITE_FAILED,
    COMMIT_UNKNOWN,
    UNPROVEN_COMMIT,
    errors.SchemaMismatchError(table="s3://b/t", reason="no"),
    errors.ChangesError(table="s3://b/t", reason="no"),
    errors.NothingAppliedError(table="s3://b/t", reason="no"),
    errors.StreamError(table="s3://b/t", reason="no"),
    errors.MaintenanceError(table="s3://b/t", reason="no"),
    errors.WriteConflictError(table="s3://b/t", reason="no", waited_seconds=1.5),
    errors.RetriesExhaustedError(table="s3://b/t", reason="no"),
    errors.HeldTooLongError(table="s3://b/t", reason="no", waited_seconds=1.5, held_seconds=60.0),
]
OTHER_ERRORS = [
    error_class("no")
    for module in (lock_errors, errors, sluice.errors)
    for error_class in vars(module).values()
    if isinstance(error_class, type) and issubclass(error_class, SluiceError)
    if error_class.__module__ == module.__name__ and error_class not in map(type, ERRORS_WITH_FIELDS)
]


@pytest.mark.parametrize("error", [*ERRORS_WITH_FIELDS, *OTHER_ERRORS], ids=lambda error: type(error).__name__)
def test_every_error_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (the test's own pickle)
    assert type(copy) is type(error)
    assert str(copy) == str(error) != ""
    assert "\n" not in str(copy)
    assert vars(copy) == vars(error)


def test_error_messages_state_the_outcome_for_the_table():
    assert str(WRITE_FAILED) == "the write to s3://b/t failed, and nothing of it is in the table: no"
    assert "is not known" in str(COMMIT_UNKNOWN)
    assert "look for c in `sluice log" in str(COMMIT_UNKNOWN)
    assert "as version 7" in str(UNPROVEN_COMMIT)
    assert isinstance(UNPROVEN_COMMIT, LockLostError)
    assert issubclass(errors.StorageError, OSError)


def test_public_errors_are_sluice_errors_and_builtin_errors():
    public_errors = [getattr(lock_manager, name) for name in lock_manager.__all__ if name.endswith("Error")]
    assert all(issubclass(error, SluiceError) for error in public_errors)
    assert all(
        issubclass(error, ValueError | RuntimeError | OSError)
        for error in public_errors
        if error not in (SluiceError, LockError)
    )


def test_the_public_names_are_pinned():
    assert lock_manager.__all__ == [
        "Adoption", "AdoptionMismatchError", "ClosedError", "EnsembleFormatError", "EnsembleMismatchError",
        "EnsembleRefusedError",
        "EnsembleUnavailableError", "HeldLock", "Hold", "Intents", "LocalServerError",
        "LockCancelledError", "LockError", "LockInspector", "LockLostError", "LockManager", "LockNotHeldError",
        "LockOrderError", "LockSettings",
        "LockTimeoutError", "NotAdoptedError", "Partition", "PartitionColumn", "PartitionSchema", "QueueEntry",
        "ResourceError", "Security", "SessionState", "SettingsError", "SluiceError", "TableNameMismatchError",
        "TableResource", "TableScope", "UnguardedError", "UnsupportedLockError", "ZookeeperLockManager",
        "canonical_table_uri", "commit_metadata", "connect",
    ]  # fmt: skip
