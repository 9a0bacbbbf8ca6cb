"""A commit proves one attempt of one operation; an empty commit or another thread's commit does not prove it."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from pyspark import InheritableThread

from lock_manager import EnsembleMismatchError, HeldLock, LockLostError
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY
from soak.unprotected import GuardCallbacks, InnermostBlockGuard, SharedIdentityGuard, WatchedGuard
from tests.support.at_the_gate import AttemptClock, TableAtTheGate, commit_info
from tests.support.lock_znodes import LockZnodes
from tests.support.rivals import RivalManager
from writer_jobs import CommitResult, StorageError, WriteFailedError, apply_rows
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.delta.adoption import adoption_under, commit_adoption
from writer_jobs.errors import WriteConflictError

pytestmark = pytest.mark.spark

# Two files: OPTIMIZE has work to do.
THREE_ROWS = "CREATE TABLE {t} USING delta AS SELECT id, timestamp'2013-01-01 00:00:00Z' AS at FROM range(0, 3, 1, 2)"
TXN = ("stream", 7)
EARLY = datetime(2013, 1, 1, tzinfo=UTC)
INSERT = "INSERT INTO {t} VALUES (5, timestamp'2013-01-01 00:00:00Z')"


def operations(*names: str, soak: tuple[str, ...]) -> list[Any]:
    """Return operations as parameters; those for the soak take the same path through the code."""
    return [*names, *(pytest.param(name, marks=pytest.mark.soak) for name in soak)]


@dataclass(kw_only=True)
class Table(TableAtTheGate):
    """A table of the ids 0 to 2."""

    rival: RivalManager
    client: KazooClient

    def rows(self, *ids: int) -> Any:
        return self.spark.createDataFrame([(number, EARLY) for number in ids], "id long, at timestamp").coalesce(1)

    def operate(self, operation: str, *, lock_during: str = "commit", **options: Any) -> Any:
        """Run one operation that changes the table."""
        writer = self.writer
        merge = writer.merge(self.rows(1, 9).alias("s"), "t.id = s.id", alias="t").whenNotMatchedInsertAll()
        calls: dict[str, Callable[..., Any]] = {
            "append": lambda **options: writer.append(self.rows(9), txn=TXN, **options),
            "overwrite": lambda **options: writer.overwrite(self.rows(9), txn=TXN, **options),
            "delete": lambda **options: writer.delete("id = 1", **options),
            "update": lambda **options: writer.update({"id": "id + 8"}, "id = 1", **options),
            "merge": lambda **options: merge.execute(txn=TXN, **options),
            "optimize": lambda **options: writer.optimize(again=False, **options),
        }
        if operation == "apply_rows":
            # apply_rows has no argument lock_during.
            return apply_rows(writer, self.rows(9), keys=["id"], event_time="at", txn=TXN, **options)
        return calls[operation](lock_during=lock_during, **options)

    def bind(self) -> None:
        """Set the property that the first ``apply_rows`` would set in a commit of its own."""
        self.sql("ALTER TABLE {t} SET TBLPROPERTIES ('sluice.feed' = 'off')")

    def leave_intent(self, version: int = 1) -> None:
        """Let a holder end after the guard allowed a version and before its PUT."""
        hold = self.rival.acquire(self.writer.table)
        hold.intend(version, txn=None, attempt=uuid.uuid4().hex)
        hold.release()

    def lose(self, hold: HeldLock) -> None:
        """Delete the contender of a hold, as `sluice break` does."""
        LockZnodes(self.client, self.writer.table).delete_contenders(hold)

    def insert(self, _: HeldLock | None = None) -> None:
        """Insert a row; can be passed as ``before_write``."""
        self.spark.sql(INSERT.format(t=f"delta.`{self.path}`"))

    def version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def stamp(self, version: int | None) -> dict[str, Any]:
        stamp: dict[str, Any] = commit_info(self.path, version)["sluice"]
        return stamp

    def has_transaction(self) -> bool:
        return DeltaTable(str(self.path)).transaction_version(TXN[0]) is not None


@pytest.fixture
def table(
    request: pytest.FixtureRequest, make_rival: Callable[..., RivalManager], ensemble_client: KazooClient
) -> Table:
    return Table.create(request, THREE_ROWS, rival=make_rival(), client=ensemble_client)


@pytest.mark.parametrize(
    "operation", operations("append", "delete", "merge", "apply_rows", soak=("overwrite", "update", "optimize"))
)
def test_an_empty_commit_does_not_prove_a_write_without_hold(table: Table, operation: str) -> None:
    if operation == "apply_rows":
        table.bind()
    version = table.version() + 1
    table.leave_intent(version)
    with pytest.raises(LockLostError):
        table.operate(operation, before_write=table.lose, metadata={"watermark": {"at": EARLY.isoformat()}})
    assert (table.version(), table.ids(), table.has_transaction()) == (version, [0, 1, 2], False)
    stamp = table.stamp(version)
    assert len(stamp["occupies"]) == 1
    assert stamp.keys() == {"occupies", "job", "hold", "ensemble", "nodes", "requested_at", "acquired_at", "attempt"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AttemptClock:
    return AttemptClock(monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("operation", operations("delete", soak=("merge",)))
def test_an_empty_commit_proves_no_write_with_old_files(table: Table, operation: str, clock: AttemptClock) -> None:
    table.leave_intent()
    with table.waiting_write(lambda: table.operate(operation)) as running:
        # A write may take half of the seven days after which VACUUM deletes files that belong to no commit.
        clock.offset = timedelta(days=4)
    result = running.result()
    # The write was repeated with the lock held from its beginning. Version 1 is the empty commit.
    assert result.version == 2
    assert table.ids() == ([0, 2] if operation == "delete" else [0, 1, 2, 9])
    assert table.has_transaction() == (operation == "merge")


class CommitPause:
    """Pauses the guard's check of the first commit of an operation until the test resumes it."""

    def __init__(self, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.resume = threading.Event()
        check = GUARD.check

        def pause_and_check(request: str) -> str:
            if json.loads(request).get("operation") == operation and not self.reached.is_set():
                self.reached.set()
                assert self.resume.wait(60)
            return check(request)

        monkeypatch.setattr(GUARD, "check", pause_and_check)


def insert_during(table: Table, operation: str, monkeypatch: pytest.MonkeyPatch) -> CommitResult:
    """Run an operation in a block; before its commit, another thread of the block commits an INSERT."""
    pause = CommitPause("WRITE" if operation == "overwrite" else operation.upper(), monkeypatch)
    errors: list[Exception] = []

    def insert() -> None:
        try:
            assert pause.reached.wait(60)
            table.insert()
        except Exception as error:
            errors.append(error)
        finally:
            pause.resume.set()

    with table.locked():
        thread = InheritableThread(target=insert)
        thread.start()
        result: CommitResult = table.operate(operation, lock_during="write")
        thread.join()
    assert not errors
    return result


@pytest.mark.parametrize("operation", operations("delete", "merge", soak=("update", "overwrite")))
def test_a_commit_of_another_thread_does_not_prove_an_operation(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = insert_during(table, operation, monkeypatch)
    assert result.version is not None
    # Delta found a conflict with the INSERT, and the operation was repeated after it.
    ids_after = {"delete": [0, 2, 5], "update": [0, 2, 5, 9], "merge": [0, 1, 2, 5, 9], "overwrite": [9]}
    assert table.ids() == ids_after[operation]
    assert "commit_id" not in table.stamp(1)
    assert table.stamp(result.version)["commit_id"] == result.commit_id


def weaken(patch: pytest.MonkeyPatch, guard: type[WatchedGuard]) -> None:
    """Replace the driver's guard by a guard that lacks a protection."""
    patch.setattr(GUARD, "_callbacks", GuardCallbacks(lambda _: None, lambda _: None), raising=False)
    patch.setattr(GUARD, "__class__", guard)


def test_negative_control_an_empty_commit_with_a_write_id_is_a_proof(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch, SharedIdentityGuard)
    table.leave_intent()
    result = table.operate("delete", before_write=table.lose)
    assert (result.version, table.ids()) == (1, [0, 1, 2]), "the delete deleted the row or was not acknowledged"


def test_negative_control_threads_identified_by_hold_prove_each_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch, InnermostBlockGuard)
    result = insert_during(table, "delete", monkeypatch)
    assert (result.version, table.ids()) == (1, [0, 1, 2, 5]), "the delete deleted the row or was not acknowledged"


@pytest.mark.full
def test_a_statement_in_before_write_proves_no_operation(table: Table) -> None:
    def insert_and_lose(hold: HeldLock) -> None:
        table.insert()
        table.lose(hold)

    for number, lock_during in enumerate(("commit", "write"), start=1):
        with pytest.raises(LockLostError):
            table.operate("append", lock_during=lock_during, before_write=insert_and_lose)
        assert table.ids() == [0, 1, 2, *[5] * number]
        assert "commit_id" not in table.stamp(number)


@pytest.mark.full
def test_each_attempt_has_its_own_write_id(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []
    check = GUARD.check

    def record_and_check(request: str) -> str:
        requests.append(json.loads(request))
        if len(requests) == 1:
            # delta-rs rewrites the same row without the lock: Delta reports a conflict.
            DeltaTable(str(table.path)).update(predicate="id = 1", updates={"at": "at"})
        return check(request)

    monkeypatch.setattr(GUARD, "check", record_and_check)
    result = table.operate("delete", lock_during="write")
    write_ids = [request["write"] for request in requests]
    # After the conflict the writer begins a second attempt.
    assert len(dict.fromkeys(write_ids)) == 2
    assert (result.version, result.commit_id) == (2, write_ids[-1])
    assert table.ids() == [0, 2]


def test_a_commit_with_an_unknown_write_id_is_refused(table: Table) -> None:
    context = table.spark.sparkContext
    with table.locked():
        context.setLocalProperty("spark.sluice.write", uuid.uuid4().hex)
        try:
            with pytest.raises(Exception, match="the operation that it belongs to has ended"):
                table.spark.sql(f"DELETE FROM delta.`{table.path}`")
        finally:
            context.setLocalProperty("spark.sluice.write", None)
    assert table.ids() == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize("operation", operations("append", "delete", soak=("overwrite", "update", "merge", "optimize")))
def test_a_held_write_with_old_files_is_refused(
    table: Table, operation: str, clock: AttemptClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = GUARD.check

    def check_late(request: str) -> str:
        clock.offset = timedelta(days=4)
        return check(request)

    monkeypatch.setattr(GUARD, "check", check_late)
    with pytest.raises(WriteFailedError, match="deletedFileRetentionDuration"):
        table.operate(operation, lock_during="write")
    assert (table.version(), table.ids()) == (0, [0, 1, 2])


def test_a_table_adopted_elsewhere_gets_no_empty_commit(table: Table, unguarded_sql: Callable[[str], None]) -> None:
    table.leave_intent(version=2)
    with table.waiting_write(lambda: table.operate("append")) as running:
        unguarded_sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
    assert isinstance(running.exception(), EnsembleMismatchError)
    assert table.version() == 1


@pytest.mark.full
def test_an_adoption_is_restored_after_before_write_changed_it(table: Table) -> None:
    with table.locked() as hold:
        commit_adoption(table.spark, table.writer.log, adoption_under(hold, table.writer.log))

    def restore(_: HeldLock) -> None:
        if table.version() == 1:
            table.spark.sql(f"RESTORE TABLE delta.`{table.path}` TO VERSION AS OF 0")

    with pytest.raises(WriteConflictError, match="before_write committed"):
        table.operate("append", before_write=restore)
    state = table.writer.log.state()
    assert state is not None
    assert state.adoption is not None
    assert table.ids() == [0, 1, 2]


@pytest.mark.full
def test_a_statement_in_before_write_is_not_repeated(table: Table) -> None:
    # Delta finds a conflict: the DELETE read the table before the INSERT.
    with pytest.raises(WriteConflictError, match="before_write committed, so use lock_during='write'"):
        table.operate("delete", before_write=table.insert)
    assert table.ids() == [0, 1, 2, 5]
    table.operate("delete", lock_during="write", before_write=table.insert)
    assert table.ids() == [0, 2, 5, 5]


def test_a_statement_in_before_write_leaves_no_intent(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    assert table.operate("append", before_write=table.insert).version == 2
    assert "is not known" not in caplog.text
    with table.rival.acquire(table.writer.table) as hold:
        assert not hold.intents.unfinished


def test_a_statement_in_before_write_needs_the_table_s_ensemble(
    table: Table, unguarded_sql: Callable[[str], None]
) -> None:
    with table.waiting_write(lambda: table.operate("append", before_write=table.insert)) as running:
        unguarded_sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
    assert isinstance(running.exception(), EnsembleMismatchError)
    assert (table.version(), table.ids()) == (1, [0, 1, 2])


def test_metadata_of_a_caller_cannot_mark_an_empty_commit(table: Table) -> None:
    metadata = {"occupies": ["x"], "observed": "x", "light": "x", "team": "a"}
    result = table.operate("delete", lock_during="write", metadata=metadata)
    stamp = table.stamp(result.version)
    assert stamp.keys() >= {"team", "commit_id"}
    assert stamp.keys().isdisjoint({"occupies", "observed", "light"})


def test_a_commit_is_found_after_versions_that_were_cleaned_up(table: Table) -> None:
    results = [table.writer.append(table.rows(number)) for number in (3, 4, 5)]
    log = table.writer.log
    log.make_newest_checkpoint()
    for version in (0, 1):
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()

    def find(write_id: str | None, after: int) -> int | None:
        commit, _ = log.find_commit(str(write_id), after=after, guarded=True)
        return None if commit is None else commit.version

    assert find(results[-1].commit_id, after=0) == 3
    assert find("another", after=1) is None
    # A version that was removed may have been the commit.
    with pytest.raises(StorageError, match="removed by log clean-up"):
        find(results[0].commit_id, after=0)
