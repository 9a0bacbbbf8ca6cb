"""The public names of ``lock_manager``; pickled errors of ``lock_manager`` and ``writer_jobs``, and their messages."""

from __future__ import annotations

import pickle

import pytest

import lock_manager
from lock_manager import (
    EnsembleMismatchError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockError,
    LockLostError,
    LockOrderError,
    LockTimeoutError,
    SettingsError,
    SluiceError,
    TableNameMismatchError,
)
from writer_jobs import errors

WRITE_FAILED = errors.WriteFailedError(table="s3://b/t", reason="no")
COMMIT_UNKNOWN = errors.CommitUnknownError(table="s3://b/t", reason="no", commit_id="c")
UNPROVEN_COMMIT = errors.UnprovenCommitError(resource="s3://b/t", hold_id="h", reason="no", version=7, commit_id="c")
EXAMPLES = [
    SettingsError("bad"),
    EnsembleUnavailableError("a:1", 3.0),
    LockTimeoutError(resource="s3://l/t", timeout_seconds=5, ahead=2, holder={"host": "h", "pid": 1, "job": "j"}),
    LockTimeoutError(resource="s3://l/t", timeout_seconds=5, ahead=0, holder=None),
    LockCancelledError(resource="s3://l/t"),
    LockOrderError("order", resource="s3://l/t"),
    EnsembleMismatchError(resource="s3://l/t", ensemble="b", adopted_by="a"),
    TableNameMismatchError(resource="s3://alias/t", adopted_name="s3://l/t"),
    LockLostError(resource="s3://l/t", hold_id="x", reason="gone", commits={"s3://l/t": (3,)}),
    WRITE_FAILED,
    COMMIT_UNKNOWN,
    UNPROVEN_COMMIT,
    errors.StorageError("s3a://b: no"),
    errors.UnsupportedSessionError("no"),
    errors.TableError("no"),
    errors.SourceError("no"),
    errors.RunError("no"),
    errors.CheckpointError("no"),
    errors.FeedError("no"),
    errors.MappingError("no"),
    errors.SchemaMismatchError(table="s3://b/t", reason="no"),
    errors.ChangesError(table="s3://b/t", reason="no"),
    errors.StreamError(table="s3://b/t", reason="no"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error):
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
    public = [getattr(lock_manager, name) for name in lock_manager.__all__ if name.endswith("Error")]
    assert all(issubclass(error, SluiceError) for error in public)
    assert all(
        issubclass(error, ValueError | RuntimeError | OSError)
        for error in public
        if error not in (SluiceError, LockError)
    )


def test_the_public_names_are_pinned():
    assert lock_manager.__all__ == [
        "Adoption", "AdoptionMismatchError", "ClosedError", "EnsembleFormatError", "EnsembleMismatchError",
        "EnsembleRefusedError",
        "EnsembleUnavailableError", "HeldLock", "Hold", "Intents", "LocalServerError",
        "LockCancelledError", "LockError", "LockInspector", "LockLostError", "LockManager", "LockNotHeldError",
        "LockOrderError", "LockSettings",
        "LockTimeoutError", "Partition", "PartitionColumn", "PartitionSchema", "QueueEntry",
        "ResourceError", "Security", "SessionState", "SettingsError", "SluiceError", "TableNameMismatchError",
        "TableResource", "TableScope", "UnguardedError", "ZookeeperLockManager", "canonical_table_uri",
        "commit_metadata",
    ]  # fmt: skip
