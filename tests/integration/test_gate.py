"""Appends that hold the lock for their commit alone: order, conflicts, refusals, and what is left of their files."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import (
    HeldLock,
    LockCancelledError,
    LockLostError,
    LockTimeoutError,
    ZookeeperLockManager,
)
from lock_manager.guard.ticket import Ticket
from lock_manager.guard.write_attempt import WriteAttempt
from tests.support.at_the_gate import TableAtTheGate, contenders
from tests.support.checksums import checksum_file, files_of, read_as
from tests.support.rivals import RivalManager
from writer_jobs import CommitResult, CommitUnknownError, LockedDeltaWriter, locked
from writer_jobs.commit import gate_rules as staging
from writer_jobs.commit.driver_guard import AUTO_COMPACT
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.locked_operation import LockedOperation
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.session import COMMIT_LOCK, GUARD_MODE

pytestmark = pytest.mark.spark


ONE_ROW = "CREATE TABLE {t} USING delta AS SELECT 0L AS id"
WITH_CHECKPOINTS, WITH_SHORT_RETENTION = (
    ONE_ROW.replace(" AS ", f" TBLPROPERTIES ('delta.{name}' = '{value}') AS ", 1)
    for name, value in (("checkpointInterval", "2"), ("deletedFileRetentionDuration", "interval 4 seconds"))
)


@dataclass
class Table(TableAtTheGate):
    """A table with one row."""

    rival: RivalManager
    read: Callable[..., list[tuple[Any, ...]]]

    def append(self, *rows: int, **how: Any) -> CommitResult:
        return self.writer.append(self.rows(*rows), lock_during="commit", **how)

    def rows(self, *rows: int) -> Any:
        return self.spark.createDataFrame([(row,) for row in rows], "id long").coalesce(1)

    def plain(self, *rows: int) -> None:
        """Append in the old way, under a lock that this thread has, or gets."""
        with locked(self.spark, str(self.path), manager=self.manager):
            self.rows(*rows).write.format("delta").mode("append").save(str(self.path))

    def somebody_else_appends(self, *rows: int) -> None:
        """Append as a program that is no Spark does: under this thread's lock, and with no checksum of its version."""
        write_deltalake(str(self.path), pa.table({"id": pa.array(rows, pa.int64())}), mode="append")

    def somebody_else_adds_a_column(self) -> None:
        DeltaTable(str(self.path)).alter.add_columns([Field("word", "string")])

    def ids(self) -> list[int]:
        return sorted(number for (number,) in self.read(self.path, "id"))

    def waiting(self, *rows: int, **how: Any) -> AbstractContextManager[Future[CommitResult]]:
        """Have an append wait at the gate."""
        return self.behind(lambda: self.append(*rows, **how))


@pytest.fixture
def table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    make_rival: Callable[..., RivalManager],
    eventually: Callable[..., None],
    rows_of: Callable[..., list[tuple[Any, ...]]],
) -> Table:
    path = copy_of(getattr(request, "param", ONE_ROW))
    writer = LockedDeltaWriter(spark, manager, str(path))
    return Table(spark, path, writer, manager, eventually, make_rival(), rows_of)


@pytest.mark.full
def test_the_work_is_done_without_the_lock_and_the_commit_waits_for_it(table: Table) -> None:
    before = table.files()
    with table.waiting(1) as running:
        written = table.files() - before
        table.plain(2)
        assert not running.done()
    result = running.result()
    assert len(written) == 1
    assert written <= table.files()
    assert (result.version, result.rows, table.ids()) == (2, 1, [0, 1, 2])
    assert result.metrics["numOutputRows"] == "1"
    assert result.waited_seconds > 0


@pytest.mark.full
@pytest.mark.parametrize("table", [WITH_CHECKPOINTS], ids=["checkpoint"], indirect=True)
def test_no_spark_job_runs_while_the_lock_is_held(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = table.spark.sparkContext._jsc.sc().dagScheduler()
    jobs, release = [], HeldLock.release

    def count_and_release(hold: HeldLock) -> None:
        if hold.resource == table.writer.table:
            jobs.append(scheduler.numTotalJobs())
        release(hold)

    monkeypatch.setattr(HeldLock, "release", count_and_release)
    for number in range(1, 4):
        # The second of them makes a checkpoint, which takes jobs.
        table.append(number, before_write=lambda _: jobs.append(scheduler.numTotalJobs()))
    begun, ended = jobs[::2], jobs[1::2]
    assert len(begun) == 3
    assert begun == ended
    assert list(table.path.glob("_delta_log/*checkpoint*"))


@pytest.mark.full
def test_commits_that_came_while_it_waited_are_no_conflict(table: Table) -> None:
    with table.waiting(100) as running:
        for number in range(1, 13):
            table.somebody_else_appends(number)
            if number == 10:
                DeltaTable(str(table.path)).create_checkpoint()
    assert running.result().version == 13
    assert table.ids() == [*range(13), 100]


@pytest.mark.full
def test_a_change_of_the_tables_metadata_has_it_done_again_under_the_lock(table: Table) -> None:
    with table.waiting(1) as running:
        staged = table.files()
        table.somebody_else_adds_a_column()
    assert running.result().version == 2
    assert table.ids() == [0, 1]
    assert len(staged - table.files()) == 1, "what the first try wrote is left behind"


@pytest.mark.full
def test_a_plan_that_reads_the_table_is_held_from_its_beginning(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def count(hold: HeldLock) -> None:
        seen.append(len(table.files()))

    doubled = table.spark.read.format("delta").load(str(table.path)).select((F.col("id") + 10).alias("id"))
    with monkeypatch.context() as patched:
        patched.setattr(StagedWrite, "run", None)
        table.writer.append(doubled, lock_during="commit", before_write=count)
    assert seen == [1], "rows were written before the lock was acquired"
    # The plan hides it from the rule, and Delta's own word counts.
    monkeypatch.setattr(staging, "_reads_reason", lambda *_: None)
    table.writer.append(doubled, lock_during="commit", before_write=count)
    assert seen[1:] == [2], "the first try has left its files"
    assert table.ids() == [0, 10, 10, 20]


@pytest.mark.full
def test_on_s3_it_goes_through_the_gate_and_knows_the_table_by_every_spelling(
    spark: SparkSession, s3: Any, manager: ZookeeperLockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{s3.root}/{uuid.uuid4().hex}"
    writer = LockedDeltaWriter(spark, manager, f"s3a://{table}")
    with locked(spark, f"s3a://{table}", manager=manager):
        spark.sql(
            f"CREATE TABLE delta.`s3a://{table}` (id LONG) USING delta "
            "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.checkpointInterval' = '2')"
        )
    with monkeypatch.context() as patched:
        # The other way would do it again where the version that was read is not known again.
        patched.setattr(LockedOperation, "_write_to", None)
        assert [writer.append(spark.range(1).coalesce(1)).version for _ in range(3)] == [1, 2, 3]

    def reads(rows: DataFrame) -> bool:
        work = Operation(lambda *_: None, reads=(rows,))
        return staging._reads_reason(staging.staging_facts(spark, writer.log, work), writer.location) is not None

    for spelling in ("s3a", "s3", "s3n"):
        assert reads(spark.read.format("delta").load(f"{spelling}://{table}"))
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    assert reads(changes.load(f"s3a://{table}"))
    assert not reads(spark.range(1))


@pytest.mark.full
def test_what_reads_the_table_sees_each_commit_before_its_own(table: Table) -> None:
    counted = table.spark.read.format("delta").load(str(table.path)).groupBy().agg(F.count("*").alias("id"))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(table.writer.append, counted, lock_during="commit") for _ in range(2)]:
            done.result()
    assert table.ids() == [0, 1, 2]


@pytest.mark.parametrize("hidden", [False, True], ids=["by the rule", "by the commit"])
def test_a_new_column_is_added_under_the_lock(table: Table, *, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden:
        monkeypatch.setattr(staging, "_options_reason", lambda _: None)
    wider = table.rows(1).withColumn("word", F.lit("x"))
    assert table.writer.append(wider, lock_during="commit", options={"mergeSchema": "true"}).version == 1
    assert len(table.files()) == 2


def test_a_lock_that_is_not_had_in_time_leaves_no_files(table: Table) -> None:
    before = table.files()
    with table.rival.acquire(table.writer.table), pytest.raises(LockTimeoutError):
        table.append(1, lock_timeout_seconds=0)
    assert (table.files(), table.ids()) == (before, [0])
    with table.waiting(1, lock_timeout_seconds=1) as running:
        assert len(table.files()) == 2
        assert isinstance(running.exception(60), LockTimeoutError)
    assert table.files() == before


def test_a_lock_that_is_lost_before_the_put_means_that_nothing_is_committed(
    table: Table, ensemble_client: KazooClient
) -> None:
    def lose(hold: HeldLock) -> None:
        for node in contenders(ensemble_client, table.writer.table):
            if hold.hold_id in node:
                ensemble_client.delete(node)

    with pytest.raises(LockLostError):
        table.append(1, before_write=lose)
    assert (len(table.files()), table.ids()) == (1, [0])
    assert table.append(2).version == 1


def test_a_lock_that_is_lost_after_the_put_changes_nothing(
    table: Table, ensemble_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = HeldLock.record_commit

    def lose_and_record(hold: HeldLock, *of: Any) -> None:
        ensemble_client.delete(contenders(ensemble_client, table.writer.table)[0])
        record(hold, *of)

    monkeypatch.setattr(HeldLock, "record_commit", lose_and_record)
    assert table.append(1).version == 1
    assert table.ids() == [0, 1]


@pytest.mark.parametrize("visible", [True, False], ids=["in the log", "not found"])
def test_a_put_of_which_nothing_was_heard_is_looked_for_and_never_taken_for_nothing(
    table: Table, *, visible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ticket, "record_outcome", lambda *_: None)
    if visible:
        assert table.append(1).version == 1
    else:
        monkeypatch.setattr(table.writer.log, "find_commit", lambda _, after, **_more: (None, after + 1))
        with pytest.raises(CommitUnknownError):
            table.append(1)
    assert len(table.files()) == 2
    assert table.ids() == [0, 1]


def test_writers_of_one_table_hold_it_one_after_the_other(table: Table, zookeeper: Any) -> None:
    def load(first: int) -> list[CommitResult]:
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=120) as manager:
            writer = LockedDeltaWriter(table.spark, manager, str(table.path))
            return [writer.append(table.rows(first + number), lock_during="commit") for number in range(2)]

    with ThreadPoolExecutor(2) as pool:
        done = sorted((each for results in pool.map(load, [10, 20]) for each in results), key=lambda r: r.version or 0)
    assert [each.version for each in done] == [1, 2, 3, 4]
    assert all(one.released_at <= other.acquired_at for one, other in pairwise(done))
    assert [each.token for each in done] == sorted(each.token or 0 for each in done)
    assert table.ids() == [0, 10, 11, 20, 21]


def test_what_before_write_raises_ends_the_write(table: Table) -> None:
    def fail(_: HeldLock) -> None:
        raise IndexError("not now")

    with pytest.raises(IndexError, match="not now"):
        table.append(1, before_write=fail)
    assert (len(table.files()), table.ids(), table.queued()) == (1, [0], 0)


def test_cancel_ends_what_waits_at_the_gate(table: Table) -> None:
    with table.waiting(1) as running:
        assert len(table.files()) == 2
        table.writer.cancel()
        assert isinstance(running.exception(60), LockCancelledError)
        assert table.queued() == 1
    assert (len(table.files()), table.ids()) == (1, [0])


def test_an_interrupt_ends_what_waits_at_the_gate(table: Table) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        table.eventually(lambda: table.queued() == 2)
        signal.pthread_kill(main, signal.SIGINT)

    with table.rival.acquire(table.writer.table), ThreadPoolExecutor(1) as pool:
        other = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.append(1)
        other.result()
        assert table.queued() == 1
    assert (len(table.files()), table.ids()) == (1, [0])


@pytest.mark.full
def test_a_table_that_is_made_anew_meanwhile_does_not_get_the_old_ones_commit(table: Table) -> None:
    table.somebody_else_appends(1)
    with table.waiting(4) as running, locked(table.spark, str(table.path), manager=table.manager):
        table.spark.sql(f"CREATE TABLE other USING delta LOCATION '{table.path}'")
        table.spark.sql("DROP TABLE other")
        for path in sorted(table.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        # As many versions as the old one had: the next name is free, and the version before it is there.
        for number in range(10, 12):
            table.rows(number).write.format("delta").mode("append").save(str(table.path))
    assert running.result().version == 2
    assert table.ids() == [4, 10, 11]


def test_a_table_that_is_gone_is_not_half_made(table: Table) -> None:
    with table.waiting(1) as running:
        for path in sorted(table.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    # Done again, it makes the table.
    assert running.result().version == 0
    assert table.ids() == [1]


@pytest.fixture
def new_table(table: Table) -> Table:
    """A location without a table, for those who write the first version."""
    path = table.path.with_name("new")
    return replace(table, path=path, writer=LockedDeltaWriter(table.spark, table.manager, str(path)))


@pytest.mark.full
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_first_version_of_a_table_waits_at_the_gate(new_table: Table, mode: str) -> None:
    files_under_lock: list[set[str]] = []

    def write() -> CommitResult:
        method = getattr(new_table.writer, mode)
        result: CommitResult = method(
            new_table.rows(1), lock_during="commit", before_write=lambda _: files_under_lock.append(new_table.files())
        )
        return result

    with new_table.behind(write) as running:
        written = new_table.files()
        assert len(written) == 1
    assert (running.result().version, new_table.ids()) == (0, [1])
    assert files_under_lock == [written], "the rows were written again under the lock"


@pytest.mark.full
def test_another_writer_that_creates_the_table_comes_first(new_table: Table) -> None:
    files_under_lock: list[set[str]] = []
    with new_table.waiting(1, before_write=lambda _: files_under_lock.append(new_table.files())) as running:
        new_table.somebody_else_appends(0)
        other_files = new_table.files()
    assert (running.result().version, new_table.ids()) == (1, [0, 1])
    # The commit of version 1 waited at the gate, too.
    assert len(files_under_lock[-1] - other_files) == 1


def test_a_table_that_was_created_and_removed_is_written_again(new_table: Table) -> None:
    with new_table.waiting(1) as running:
        for path in sorted(new_table.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert (running.result().version, new_table.ids()) == (0, [1])


@pytest.mark.full
def test_a_table_without_its_first_versions_is_no_new_table(table: Table, new_table: Table) -> None:
    for number in range(1, 4):
        table.append(number)
    log = DeltaTable(str(table.path))
    log.create_checkpoint()
    (table.path / "_delta_log/00000000000000000000.json").unlink()
    with new_table.waiting(9) as running:
        shutil.copytree(table.path, new_table.path, dirs_exist_ok=True)
    assert (running.result().version, new_table.ids()) == (4, [0, 1, 2, 3, 9])


# Without its check of the time, and without its 10,000 tasks.
QUICK_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def vacuum(table: Table) -> None:
    for name, value in QUICK_VACUUM.items():
        table.spark.conf.set(name, value)
    try:
        with locked(table.spark, str(table.path), manager=table.manager):
            table.spark.sql(f"VACUUM delta.`{table.path}`")
    finally:
        for name in QUICK_VACUUM:
            table.spark.conf.unset(name)


def age_of(table: Table, name: str) -> float:
    return time.time() - (table.path / name).stat().st_mtime


@pytest.mark.full
@pytest.mark.parametrize("table", [WITH_SHORT_RETENTION], ids=["files"], indirect=True)
@pytest.mark.parametrize("protected", [True, False], ids=["done again", "negative control"])
def test_a_commit_whose_files_vacuum_may_have_taken_is_not_made(
    table: Table, *, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(WriteAttempt, "refuse_if_old", lambda *_: None)
    before = table.files()
    with table.waiting(1) as running:
        (staged,) = table.files() - before
        table.eventually(lambda: age_of(table, staged) > 5, what="the age at which VACUUM takes it")
        if protected:
            vacuum(table)
            assert staged not in table.files()
        else:
            # As VACUUM does, in the other case.
            (table.path / staged).unlink()
    running.result()
    if protected:
        # Done again, with the lock from its beginning.
        assert table.ids() == [0, 1]
    else:
        with pytest.raises(Exception, match=r"not found|No such file"):
            table.ids()


@pytest.mark.full
def test_two_with_one_transaction_are_one(table: Table) -> None:
    with table.rival.acquire(table.writer.table), ThreadPoolExecutor(2) as pool:
        both = [pool.submit(table.append, 1, txn=("job", 7)) for _ in range(2)]
        table.eventually(lambda: table.queued() == 3, what="both at the gate")
        table.rival.release(table.writer.table)
        done = sorted((each.result() for each in both), key=lambda each: each.already_committed)
    assert [each.already_committed for each in done] == [False, True]
    assert table.ids() == [0, 1]
    again = table.append(1, txn=("job", 7))
    assert (again.already_committed, again.hold_id, again.version) == (True, None, None)
    assert len(table.files()) == 2


def test_threads_of_one_driver_queue_with_a_contender_each(table: Table, ensemble_client: KazooClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        with table.rival.acquire(table.writer.table):
            all_of_them = [pool.submit(table.append, number) for number in range(1, 4)]
            table.eventually(lambda: table.queued() == 4, what="a contender each")
            nodes = contenders(ensemble_client, table.writer.table)
            owners = {ensemble_client.get(node)[1].ephemeralOwner for node in nodes}
            assert len(owners) == 2, "the rival's session, and one for all of ours"
        done = [each.result() for each in all_of_them]
    assert sorted(each.version or 0 for each in done) == [1, 2, 3]
    by_version = sorted(done, key=lambda each: each.version or 0)
    assert [each.token for each in by_version] == sorted(each.token or 0 for each in done)
    assert table.ids() == [0, 1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("lock_of_delta", ["false", "true"], ids=["off", "negative control"])
def test_a_commit_that_waits_stops_nobody_else_of_its_driver(
    table: Table, lock_of_delta: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_settings_reason", lambda _: None)
    table.spark.conf.set(COMMIT_LOCK, lock_of_delta)
    try:
        with table.waiting(1, lock_timeout_seconds=5) as running:
            table.plain(2)
            waits_still = not running.done()
        if lock_of_delta == "false":
            assert waits_still
            assert running.result().version == 2
        else:
            # The other one could go on only when this one had given up.
            assert isinstance(running.exception(), LockTimeoutError)
    finally:
        table.spark.conf.set(COMMIT_LOCK, "false")


def checksums(table: Table, *versions: int) -> list[Path]:
    return [checksum_file(table.path, version) for version in versions]


@pytest.mark.full
def test_a_checksum_that_is_not_there_yet_is_derived_as_its_writer_does(table: Table) -> None:
    table.append(1, txn=("job", 1))
    table.writer.overwrite(table.spark.range(2, 4, numPartitions=2), txn=("job", 2), lock_during="commit")
    table.writer.optimize()
    missing = checksums(table, 1, 2, 3)
    written = [json.loads(path.read_text()) for path in missing]
    for path in missing:
        path.unlink()
    for path, there in zip(missing, written, strict=True):
        derived = read_as(table.spark, "t", path)
        assert derived["allFiles"], "the files are among what is compared"
        assert files_of(derived) == files_of(there)
        assert derived == there
        with pytest.raises(Exception, match="FileNotFound"):
            read_as(table.spark, None, path)


def test_a_checksum_that_delta_would_not_derive_is_not(table: Table) -> None:
    table.somebody_else_appends(1)
    table.somebody_else_adds_a_column()
    begin, first, second = checksums(table, 0, 1, 2)
    assert read_as(table.spark, "t", first)["numFiles"] == 2
    with pytest.raises(Exception, match="FileNotFound"):
        read_as(table.spark, "t", second)
    # Nor without one to begin with.
    begin.unlink()
    with pytest.raises(Exception, match="FileNotFound"):
        read_as(table.spark, "t", first)


@pytest.mark.full
@pytest.mark.parametrize("derivable", [True, False], ids=["derived", "negative control"])
def test_who_finds_no_checksum_reads_no_state(table: Table, *, derivable: bool) -> None:
    """Others have committed, and their checksums are not there yet: before it begins, and while it is at the gate."""
    scheduler = table.spark.sparkContext._jsc.sc().dagScheduler()

    def jobs_of_append(row: int, append: Callable[[int], Any] = table.append) -> int:
        before = scheduler.numTotalJobs()
        append(row)
        return int(scheduler.numTotalJobs() - before)

    usual = jobs_of_append(1)
    if not derivable:
        for path in checksums(table, 0, 1):
            path.unlink()
    table.somebody_else_appends(2)
    at_the_beginning = jobs_of_append(3)
    if not derivable:
        assert at_the_beginning > usual
        return
    at_the_gate = []
    for row, options in ((4, {}), (6, {"before_write": lambda _: None})):
        with table.waiting(row, **options) as running:
            jobs = scheduler.numTotalJobs()
            table.somebody_else_appends(row + 1)
        assert running.result().version == row + 1
        at_the_gate.append(scheduler.numTotalJobs() - jobs)
    table.somebody_else_appends(8)
    under_the_lock = jobs_of_append(9, lambda row: table.writer.append(table.rows(row), lock_during="write"))
    assert table.ids() == list(range(10))
    assert (at_the_beginning, at_the_gate, under_the_lock) == (usual, [0, 0], usual)


@pytest.mark.full
def test_with_such_a_setting_the_lock_is_held_over_the_whole_write(table: Table) -> None:
    session, driver = table.spark.conf, table.spark.sparkContext._jsc.sc().conf()
    seen: list[set[str]] = []

    def written_before_the_lock() -> int:
        before = table.files()
        table.append(1, before_write=lambda _: seen.append(table.files()))
        return len(seen.pop() - before)

    # The control: as the session is otherwise.
    assert written_before_the_lock() == 1
    settings: list[tuple[Any, str, str]] = [
        (session, COMMIT_LOCK, "true"),
        (session, AUTO_COMPACT, "true"),
        (driver, GUARD_MODE, "observe"),
        (driver, GUARD_MODE, "off"),
    ]
    for conf, name, value in settings:
        usual = conf.get(name)
        conf.set(name, value)
        try:
            assert written_before_the_lock() == 0, (name, value)
        finally:
            conf.set(name, usual)


@pytest.mark.parametrize("operation", ["append", pytest.param("overwrite", marks=pytest.mark.soak)])
def test_the_settings_of_the_rows_session_count(table: Table, operation: str) -> None:
    other = table.spark.newSession()
    other.conf.set(COMMIT_LOCK, "true")
    before = table.files()
    seen: list[set[str]] = []
    how: dict[str, Any] = {"lock_during": "commit", "before_write": lambda _: seen.append(table.files())}
    write = table.writer.append if operation == "append" else table.writer.overwrite
    write(other.createDataFrame([(1,)], "id long"), **how)
    assert seen == [before]


def test_a_driver_without_the_log_store_writes_with_its_guard_off(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = table.spark.sparkContext._jsc.sc().conf()
    monkeypatch.setattr("writer_jobs.delta.log_store._PACKAGE", "nowhere")
    settings.set(GUARD_MODE, "off")
    try:
        assert table.append(1).version == 1
    finally:
        settings.set(GUARD_MODE, "required")


def test_inside_a_block_that_has_the_lock_it_is_used(table: Table) -> None:
    with locked(table.spark, str(table.path), manager=table.manager) as hold:
        result = table.append(1)
    assert result.hold_id == hold.hold_id


def test_another_hold_than_these_is_a_sentence(table: Table) -> None:
    with pytest.raises(ValueError, match="choose 'commit' or 'write'"):
        table.writer.append(table.rows(1), lock_during="never")  # type: ignore[arg-type]


@pytest.mark.full
def test_partitions_are_locked_for_the_commit_alone_too(
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    make_rival: Callable[..., RivalManager],
) -> None:
    path = copy_of("CREATE TABLE {t} (id LONG, p LONG) USING delta PARTITIONED BY (p)")
    writer = LockedDeltaWriter(spark, manager, str(path))
    rows = spark.range(4).coalesce(1).withColumn("p", F.col("id") % 2)
    with make_rival().acquire(writer.table, partitions=[{"p": 1}]):
        even = writer.append(rows.where("p = 0"), lock_during="commit", lock="partitions", lock_timeout_seconds=30)
        with pytest.raises(LockTimeoutError):
            writer.append(rows.where("p = 1"), lock_during="commit", lock="partitions", lock_timeout_seconds=0)
    odd = writer.append(rows.where("p = 1"), lock_during="commit", lock=[{"p": 1}])
    assert (even.version, odd.version) == (1, 2)
