"""A write whose wait for the lock has failed looks once whether a holder has committed it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lock_manager import LockTimeoutError, TableScope, tracing
from lock_manager.errors import ContenderGoneError
from lock_manager.guard.write_attempt import WriteAttempt
from tests.unit.test_group_commit import STAGED
from writer_jobs.commit import gate, offered_write
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.lock_target import LockTarget
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import CommitUnknownError
from writer_jobs.progress import Progress

TABLE = "s3://lake/t"
TIMEOUT = LockTimeoutError(resource=TABLE, timeout_seconds=1.0, ahead=None, holder=None)
GONE = ContenderGoneError(resource=TABLE)


class Surroundings:
    """A replacement of a staged write's execution, thread, log and lock manager.

    Attributes:
        is_named: Whether an intent names the write as a member; an exception is raised instead.
        commit: The commit that the log has of the write.
        looks: Number of looks at the intents.

    """

    def __init__(self, is_named: Any, commit: Commit | None = None) -> None:
        self.is_named, self.commit, self.looks = is_named, commit, 0
        self.operation = SimpleNamespace(txn=None, rows="rows")
        self.progress = Progress(TABLE)
        self.context = SimpleNamespace(table=TABLE, spark=None, manager=self, log=self, is_cancelled=lambda: False)
        self.write_id = "of the write"
        self.interrupt = self.failure = None
        self.has_ended = False

    # -- the execution and its thread

    def new_attempt(self) -> WriteAttempt:
        return WriteAttempt.of({})

    def start_work_span(self) -> tracing.Span:
        return tracing.NO_SPAN

    def wake(self) -> None: ...

    def start(self, **_: Any) -> Surroundings:
        return self

    def wait(self, *_: Any, **__: Any) -> None: ...

    # -- the lock manager and the log

    def is_offered(self, *_: Any) -> bool:
        self.looks += 1
        if isinstance(self.is_named, BaseException):
            raise self.is_named
        return self.is_named

    def known_snapshot(self) -> Any:
        return SimpleNamespace(has_same_partitioning=lambda _: True)

    def find_commit(self, *_: Any, **__: Any) -> tuple[Commit | None, int]:
        return self.commit, 0


@pytest.fixture
def deleted_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes whose files were deleted. A write looks at the intents for no longer than one look takes."""
    deleted: list[str] = []
    monkeypatch.setattr(offered_write, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(gate, "waiting_with", lambda *_: nullcontext())
    for module in (gate, offered_write):
        monkeypatch.setattr(module, "job_note", lambda *_: {})
    monkeypatch.setattr(StagedWrite, "_delete_staged_files", lambda write: deleted.append(write._ticket.name))
    return deleted


def write(surroundings: Surroundings, problem: BaseException, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a write with an offer, whose wait for the lock ends with this problem."""

    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(StagedWrite, "_commit_once", fail)
    execution: Any = surroundings
    target = LockTarget(log=execution, scope=TableScope.of(TABLE))
    staged_write = StagedWrite(target, execution, snapshot=execution)
    staged_write._ticket.offer = STAGED
    return staged_write.run(60, None)


@pytest.mark.parametrize(
    ("problem", "is_named", "error"),
    [
        (TIMEOUT, True, CommitUnknownError),
        (GONE, True, CommitUnknownError),
        (GONE, KeyboardInterrupt(), KeyboardInterrupt),
        (TIMEOUT, KeyboardInterrupt(), KeyboardInterrupt),
        (KeyboardInterrupt(), True, KeyboardInterrupt),
    ],
    ids=["timeout", "gone", "gone, interrupted look", "timeout, interrupted look", "interrupt"],
)
def test_a_write_of_unknown_outcome_looks_once_and_keeps_its_files(
    problem: BaseException,
    is_named: Any,
    error: type[BaseException],
    deleted_files: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surroundings = Surroundings(is_named)
    with pytest.raises(error) as raised:
        write(surroundings, problem, monkeypatch)
    assert surroundings.looks == 1
    assert deleted_files == []
    messages = [str(raised.value), *getattr(raised.value, "__notes__", [])]
    assert sum("was committed is not known" in message for message in messages) == 1


def test_an_interrupted_member_reports_its_version(deleted_files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings = Surroundings(is_named=True, commit=Commit.of(3, {}))
    with pytest.raises(KeyboardInterrupt) as raised:
        write(surroundings, KeyboardInterrupt(), monkeypatch)
    assert raised.value.__notes__ == [f"the write to {TABLE} had been committed, as version 3"]
    assert write(surroundings, TIMEOUT, monkeypatch).version == 3
    assert deleted_files == []


def test_a_write_that_no_holder_commits_deletes_its_files(
    deleted_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = Surroundings(is_named=False)
    with pytest.raises(LockTimeoutError):
        write(surroundings, TIMEOUT, monkeypatch)
    assert (surroundings.looks, len(deleted_files)) == (1, 1)
