"""The public names and errors of ``lock_manager``: errors can be pickled and are builtin errors, too."""

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
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (the test's own pickle)
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


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
