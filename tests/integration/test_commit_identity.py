"""A commit proves one attempt of one operation: never an empty commit, and never the commit of another thread."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from lock_manager import EnsembleMismatchError, HeldLock, LockLostError, ZookeeperLockManager
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY
from soak.unprotected import InnermostBlockGuard, SharedIdentityGuard, WatchedGuard
from tests.support.at_the_gate import TableAtTheGate, contenders
from tests.support.rivals import RivalManager
from writer_jobs import CommitResult, LockedDeltaWriter, StorageError, WriteFailedError, apply_rows, locked
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.delta.adoption import adoption_under, commit_adoption
from writer_jobs.errors import WriteConflictError

pytestmark = pytest.mark.spark

# Two files, so that OPTIMIZE has something to do.
THREE_ROWS = "CREATE TABLE {t} USING delta AS SELECT id, timestamp'2013-01-01 00:00:00Z' AS at FROM range(0, 3, 1, 2)"
TXN = ("stream", 7)
EARLY = datetime(2013, 1, 1, tzinfo=UTC)


def in_ci(*names: str, rest: tuple[str, ...]) -> list[Any]:
    """Return parameters: those names, and the rest, which take the same way through the code, for the soak."""
    return [*names, *(pytest.param(name, marks=pytest.mark.soak) for name in rest)]


@dataclass
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
        operations: dict[str, Callable[..., Any]] = {
            "append": lambda **how: writer.append(self.rows(9), txn=TXN, **how),
            "overwrite": lambda **how: writer.overwrite(self.rows(9), txn=TXN, **how),
            "delete": lambda **how: writer.delete("id = 1", **how),
            "update": lambda **how: writer.update({"id": "id + 8"}, "id = 1", **how),
            "merge": lambda **how: merge.execute(txn=TXN, **how),
            "optimize": lambda **how: writer.optimize(again=False, **how),
        }
        if operation == "apply_rows":
            # It chooses by itself what the lock is held for.
            return apply_rows(writer, self.rows(9), keys=["id"], event_time="at", txn=TXN, **options)
        return operations[operation](lock_during=lock_during, **options)

    def bind(self) -> None:
        """Write the table property that the first ``apply_rows`` would write in a commit of its own."""
        with locked(self.spark, str(self.path), manager=self.manager):
            self.spark.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('sluice.feed' = 'off')")

    def leave_intent(self, version: int = 1) -> None:
        """Have a holder die between the guard's permission and its PUT of a version."""
        hold = self.rival.acquire(self.writer.table)
        hold.intend(version, txn=None, attempt=uuid.uuid4().hex)
        hold.release()

    def lose(self, hold: HeldLock) -> None:
        """Take a hold away, as `sluice break` does."""
        for node in contenders(self.client, self.writer.table):
            if hold.hold_id in node:
                self.client.delete(node)

    def version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.spark.read.format("delta").load(str(self.path)).collect())

    def info(self, version: int) -> dict[str, Any]:
        """Return the ``commitInfo`` of a version."""
        lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        return next(action["commitInfo"] for action in map(json.loads, lines) if "commitInfo" in action)

    def has_transaction(self) -> bool:
        return DeltaTable(str(self.path)).transaction_version(TXN[0]) is not None


@pytest.fixture
def table(
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    make_rival: Callable[..., RivalManager],
    ensemble_client: KazooClient,
    eventually: Callable[..., None],
) -> Table:
    path = copy_of(THREE_ROWS)
    writer = LockedDeltaWriter(spark, manager, str(path))
    return Table(spark, path, writer, manager, eventually, make_rival(), ensemble_client)


@pytest.mark.parametrize(
    "operation", in_ci("append", "delete", "merge", "apply_rows", rest=("overwrite", "update", "optimize"))
)
def test_an_empty_commit_does_not_prove_an_operation_that_lost_its_hold(table: Table, operation: str) -> None:
    if operation == "apply_rows":
        table.bind()
    version = table.version() + 1
    table.leave_intent(version)
    with pytest.raises(LockLostError):
        table.operate(operation, before_write=table.lose, metadata={"watermark": {"at": EARLY.isoformat()}})
    assert (table.version(), table.ids(), table.has_transaction()) == (version, [0, 1, 2], False)
    stamp = table.info(version)["sluice"]
    assert len(stamp["occupies"]) == 1
    assert stamp.keys() == {"occupies", "job", "hold", "ensemble", "nodes", "acquired_at", "attempt"}


class Clock:
    """The clock by which a write is old. Files that belong to no commit are kept for seven days."""

    def __init__(self) -> None:
        self.offset = timedelta(0)

    def time(self) -> float:
        return time.time() + self.offset.total_seconds()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lock_manager.guard.write_attempt.time", clock)
    return clock


@pytest.mark.full
@pytest.mark.parametrize("operation", in_ci("delete", rest=("merge",)))
def test_an_empty_commit_does_not_prove_an_operation_with_old_files(table: Table, operation: str, clock: Clock) -> None:
    table.leave_intent()
    with table.behind(lambda: table.operate(operation)) as running:
        clock.offset = timedelta(days=4)
    result = running.result()
    # Repeated with the lock held from its beginning: version 1 is the empty commit.
    assert result.version == 2
    assert table.ids() == ([0, 2] if operation == "delete" else [0, 1, 2, 9])
    assert table.has_transaction() == (operation == "merge")


class CommitPause:
    """Stops the first commit of an operation at the guard until another statement has committed."""

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
    """Run an operation in a block while another thread of the block commits an INSERT before it."""
    pause = CommitPause("WRITE" if operation == "overwrite" else operation.upper(), monkeypatch)
    inserted: list[Exception] = []

    def insert() -> None:
        try:
            assert pause.reached.wait(60)
            table.spark.sql(f"INSERT INTO delta.`{table.path}` VALUES (5, timestamp'2013-01-01 00:00:00Z')")
        except Exception as error:
            inserted.append(error)
        finally:
            pause.resume.set()

    with locked(table.spark, str(table.path), manager=table.manager):
        other = InheritableThread(target=insert)
        other.start()
        result: CommitResult = table.operate(operation, lock_during="write")
        other.join()
    assert not inserted
    return result


@pytest.mark.parametrize("operation", in_ci("delete", "merge", rest=("update", "overwrite")))
def test_a_commit_of_another_thread_in_the_block_does_not_prove_an_operation(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = insert_during(table, operation, monkeypatch)
    assert result.version is not None
    # Delta found a conflict with the INSERT, and the operation was done again on top of it.
    expected = {"delete": [0, 2, 5], "update": [0, 2, 5, 9], "merge": [0, 1, 2, 5, 9], "overwrite": [9]}
    assert table.ids() == expected[operation]
    insert_info, own_info = table.info(1), table.info(result.version)
    assert "commit_id" not in insert_info["sluice"]
    assert own_info["sluice"]["commit_id"] == result.commit_id


@pytest.fixture
def weaken(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[WatchedGuard]], None]:
    """Replace the driver's guard by one that lacks a protection."""

    def replace(guard: type[WatchedGuard]) -> None:
        monkeypatch.setattr(GUARD, "_on_answer", lambda: None, raising=False)
        monkeypatch.setattr(GUARD, "_on_request", lambda _: None, raising=False)
        monkeypatch.setattr(GUARD, "__class__", guard)

    return replace


def test_negative_control_an_empty_commit_with_a_write_id_proves_an_operation(
    table: Table, weaken: Callable[[type[WatchedGuard]], None]
) -> None:
    weaken(SharedIdentityGuard)
    table.leave_intent()
    result = table.operate("delete", before_write=table.lose)
    assert (result.version, table.ids()) == (1, [0, 1, 2]), "acknowledged, with the row still there"


def test_negative_control_threads_that_are_known_by_their_hold_prove_each_other(
    table: Table, weaken: Callable[[type[WatchedGuard]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(InnermostBlockGuard)
    result = insert_during(table, "delete", monkeypatch)
    assert (result.version, table.ids()) == (1, [0, 1, 2, 5]), "acknowledged, with the row still there"


@pytest.mark.full
def test_a_statement_in_before_write_passes_and_does_not_prove_the_operation(table: Table) -> None:
    def insert_and_lose(hold: HeldLock) -> None:
        table.spark.sql(f"INSERT INTO delta.`{table.path}` VALUES (5, timestamp'2013-01-01 00:00:00Z')")
        table.lose(hold)

    for number, lock_during in enumerate(("commit", "write"), start=1):
        with pytest.raises(LockLostError):
            table.operate("append", lock_during=lock_during, before_write=insert_and_lose)
        assert table.ids() == [0, 1, 2, *[5] * number]
        assert "commit_id" not in table.info(number)["sluice"]


@pytest.mark.full
def test_each_attempt_has_a_write_id_of_its_own(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []
    check = GUARD.check

    def check_and_note(request: str) -> str:
        requests.append(json.loads(request))
        if len(requests) == 1:
            # A rival without the lock rewrites the same row first, so that Delta reports a conflict.
            DeltaTable(str(table.path)).update(predicate="id = 1", updates={"at": "at"})
        return check(request)

    monkeypatch.setattr(GUARD, "check", check_and_note)
    result = table.operate("delete", lock_during="write")
    write_ids = [request["write"] for request in requests]
    # Delta meets the conflict, and the writer begins another attempt.
    assert len(dict.fromkeys(write_ids)) == 2
    assert (result.version, result.commit_id) == (2, write_ids[-1])
    assert table.ids() == [0, 2]


def test_a_commit_with_an_unknown_write_id_is_refused(table: Table) -> None:
    context = table.spark.sparkContext
    with locked(table.spark, str(table.path), manager=table.manager):
        context.setLocalProperty("spark.sluice.write", uuid.uuid4().hex)
        try:
            with pytest.raises(Exception, match="the operation that it belongs to has ended"):
                table.spark.sql(f"DELETE FROM delta.`{table.path}`")
        finally:
            context.setLocalProperty("spark.sluice.write", None)
    assert table.ids() == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize("operation", in_ci("append", "delete", rest=("overwrite", "update", "merge", "optimize")))
def test_a_held_write_with_old_files_is_refused(
    table: Table, operation: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = GUARD.check

    def check_late(request: str) -> str:
        clock.offset = timedelta(days=4)
        return check(request)

    monkeypatch.setattr(GUARD, "check", check_late)
    with pytest.raises(WriteFailedError, match="deletedFileRetentionDuration"):
        table.operate(operation, lock_during="write")
    assert (table.version(), table.ids()) == (0, [0, 1, 2])


def test_a_table_that_was_moved_while_a_commit_waited_gets_no_empty_commit(
    table: Table, sql_elsewhere: Callable[[str], None]
) -> None:
    table.leave_intent(version=2)
    with table.behind(lambda: table.operate("append")) as running:
        sql_elsewhere(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
    assert isinstance(running.exception(), EnsembleMismatchError)
    assert table.version() == 1


@pytest.mark.full
def test_the_adoption_is_restored_after_a_statement_in_before_write(table: Table) -> None:
    with locked(table.spark, str(table.path), manager=table.manager) as hold:
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


def insert_of(table: Table) -> Callable[[HeldLock], None]:
    return lambda _: table.spark.sql(f"INSERT INTO delta.`{table.path}` VALUES (5, timestamp'2013-01-01 00:00:00Z')")


@pytest.mark.full
def test_a_statement_in_before_write_is_not_repeated(table: Table) -> None:
    # Delta finds a conflict: the DELETE has read the table before the INSERT.
    with pytest.raises(WriteConflictError, match="before_write committed, so use lock_during='write'"):
        table.operate("delete", before_write=insert_of(table))
    assert table.ids() == [0, 1, 2, 5]
    table.operate("delete", lock_during="write", before_write=insert_of(table))
    assert table.ids() == [0, 2, 5, 5]


def test_a_statement_in_before_write_leaves_no_intent(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    assert table.operate("append", before_write=insert_of(table)).version == 2
    assert "is not known" not in caplog.text
    with table.rival.acquire(table.writer.table) as hold:
        assert not hold.intents.unfinished


def test_a_statement_in_before_write_does_not_pass_under_a_lock_that_counts_no_more(
    table: Table, sql_elsewhere: Callable[[str], None]
) -> None:
    with table.behind(lambda: table.operate("append", before_write=insert_of(table))) as running:
        sql_elsewhere(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
    assert isinstance(running.exception(), EnsembleMismatchError)
    assert (table.version(), table.ids()) == (1, [0, 1, 2])


def test_a_caller_s_metadata_does_not_mark_an_empty_commit(table: Table) -> None:
    result = table.operate("delete", lock_during="write", metadata={"occupies": ["x"], "observed": "x", "team": "a"})
    stamp = table.info(result.version)["sluice"]
    assert stamp.keys() >= {"team", "commit_id"}
    assert stamp.keys().isdisjoint({"occupies", "observed"})


def test_a_commit_is_found_behind_versions_that_log_clean_up_removed(table: Table) -> None:
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
    # The commit may have been one of the versions that are gone.
    with pytest.raises(StorageError, match="removed by log clean-up"):
        find(results[0].commit_id, after=0)
