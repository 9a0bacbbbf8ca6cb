"""Appends that hold the lock for their commit alone: order, conflicts, refusals and removal of their files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import HeldLock, LockCancelledError, LockLostError, LockTimeoutError, ZookeeperLockManager
from lock_manager.guard.table_reads import own_read_reason
from lock_manager.guard.ticket import Ticket
from lock_manager.guard.write_attempt import WriteAttempt
from tests.support.at_the_gate import AttemptClock, TableAtTheGate
from tests.support.checksums import checksum_file, pop_files, read_as
from tests.support.lock_znodes import LockZnodes
from tests.support.rivals import RivalManager
from tests.support.spark_settings import spark_settings
from writer_jobs import CommitResult, CommitUnknownError, LockedDeltaWriter, locked
from writer_jobs.commit import gate_rules
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.locked_operation import LockedOperation
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.session import AUTO_COMPACT, COMMIT_LOCK, GUARD_MODE

pytestmark = pytest.mark.spark


ONE_ROW = "CREATE TABLE {t} USING delta AS SELECT 0L AS id"
WITH_CHECKPOINTS, WITH_SHORT_RETENTION = (
    ONE_ROW.replace(" AS ", f" TBLPROPERTIES ('delta.{name}' = '{value}') AS ", 1)
    for name, value in (("checkpointInterval", "2"), ("deletedFileRetentionDuration", "interval 4 seconds"))
)


@dataclass(kw_only=True)
class Table(TableAtTheGate):
    """A table with one row, and another program that locks it."""

    rival: RivalManager

    def append(self, *ids: int, **options: Any) -> CommitResult:
        return self.writer.append(self.rows(*ids), lock_during="commit", **options)

    def rows(self, *ids: int) -> Any:
        return self.spark.createDataFrame([(number,) for number in ids], "id long").coalesce(1)

    def append_in_block(self, *ids: int) -> None:
        """Append with Spark's own writer, under the hold of this thread."""
        with self.locked():
            self.rows(*ids).write.format("delta").mode("append").save(str(self.path))

    def append_by_delta_rs(self, *ids: int) -> None:
        """Append with delta-rs, which writes no checksum file."""
        write_deltalake(str(self.path), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")

    def add_column(self) -> None:
        DeltaTable(str(self.path)).alter.add_columns([Field("word", "string")])

    def waiting(self, *ids: int, **options: Any) -> AbstractContextManager[Future[CommitResult]]:
        """Let an append wait at the gate."""
        return self.waiting_write(lambda: self.append(*ids, **options))

    def jobs(self) -> int:
        """Return the number of Spark jobs that the driver has started."""
        return int(self.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def checksums(self, *versions: int) -> list[Path]:
        return [checksum_file(self.path, version) for version in versions]


@pytest.fixture
def table(request: pytest.FixtureRequest, make_rival: Callable[..., RivalManager]) -> Table:
    return Table.create(request, getattr(request, "param", ONE_ROW), rival=make_rival())


@pytest.mark.full
def test_rows_are_written_before_the_lock(table: Table) -> None:
    initial_files = table.files()
    with table.waiting(1) as running:
        staged = table.files() - initial_files
        table.append_in_block(2)
        assert not running.done()
    result = running.result()
    assert len(staged) == 1
    assert staged <= table.files()
    assert (result.version, result.rows, table.ids()) == (2, 1, [0, 1, 2])
    assert result.metrics["numOutputRows"] == "1"
    assert result.waited_seconds > 0


@pytest.mark.full
@pytest.mark.parametrize("table", [WITH_CHECKPOINTS], ids=["checkpoint"], indirect=True)
def test_no_spark_job_runs_while_the_lock_is_held(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, release = [], HeldLock.release

    def count_and_release(hold: HeldLock) -> None:
        if hold.resource == table.writer.table:
            jobs.append(table.jobs())
        release(hold)

    monkeypatch.setattr(HeldLock, "release", count_and_release)
    for number in range(1, 4):
        # The second append writes a checkpoint, which needs jobs.
        table.append(number, before_write=lambda _: jobs.append(table.jobs()))
    at_acquire, at_release = jobs[::2], jobs[1::2]
    assert len(at_acquire) == 3
    assert at_acquire == at_release
    assert list(table.path.glob("_delta_log/*checkpoint*"))


@pytest.mark.full
def test_commits_during_the_wait_are_no_conflict(table: Table) -> None:
    with table.waiting(100) as running:
        for number in range(1, 13):
            table.append_by_delta_rs(number)
            if number == 10:
                DeltaTable(str(table.path)).create_checkpoint()
    assert running.result().version == 13
    assert table.ids() == [*range(13), 100]


@pytest.mark.full
def test_a_metadata_change_repeats_the_write_under_the_lock(table: Table) -> None:
    with table.waiting(1) as running:
        staged = table.files()
        table.add_column()
    assert running.result().version == 2
    assert table.ids() == [0, 1]
    assert len(staged - table.files()) == 1, "the file of the first attempt was not removed"


@pytest.mark.full
def test_a_plan_that_reads_the_table_starts_under_the_lock(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled = table.spark.read.format("delta").load(str(table.path)).select((F.col("id") + 10).alias("id"))
    with monkeypatch.context() as patch:
        patch.setattr(StagedWrite, "run", None)
        table.writer.append(doubled, lock_during="commit", before_write=table.record_files)
    assert [len(files) for files in table.files_at_lock] == [1], "rows were written before the lock was acquired"
    # Without this rule, Delta's transaction still shows that the table was read, and the write is repeated.
    monkeypatch.setattr(gate_rules, "own_read_reason", lambda *_: None)
    table.writer.append(doubled, lock_during="commit", before_write=table.record_files)
    assert [len(files) for files in table.files_at_lock[1:]] == [2], "the file of the first attempt was not removed"
    assert table.ids() == [0, 10, 10, 20]


@pytest.mark.full
def test_on_s3_each_scheme_is_the_same_table_to_the_gate(
    spark: SparkSession, s3: Any, manager: ZookeeperLockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{s3.root}/{uuid.uuid4().hex}"
    writer = LockedDeltaWriter(spark, manager, f"s3a://{table}")
    with locked(spark, f"s3a://{table}", manager=manager):
        spark.sql(
            f"CREATE TABLE delta.`s3a://{table}` (id LONG) USING delta "
            "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.checkpointInterval' = '2')"
        )
    with monkeypatch.context() as patch:
        # A write that is repeated under the lock would call this.
        patch.setattr(LockedOperation, "_write_to", None)
        assert [writer.append(spark.range(1).coalesce(1)).version for _ in range(3)] == [1, 2, 3]

    def reads_the_table(rows: DataFrame) -> bool:
        facts = gate_rules.staging_facts(spark, writer.log, Operation(lambda *_: None, reads=(rows,)))
        return own_read_reason(facts["reads"], writer.table, facts["table_id"]) is not None

    for scheme in ("s3a", "s3", "s3n"):
        assert reads_the_table(spark.read.format("delta").load(f"{scheme}://{table}"))
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    assert reads_the_table(changes.load(f"s3a://{table}"))
    assert not reads_the_table(spark.range(1))


@pytest.mark.full
def test_plans_that_read_the_table_see_all_earlier_commits(table: Table) -> None:
    counted = table.spark.read.format("delta").load(str(table.path)).groupBy().agg(F.count("*").alias("id"))
    with ThreadPoolExecutor(2) as pool:
        for append in [pool.submit(table.writer.append, counted, lock_during="commit") for _ in range(2)]:
            append.result()
    assert table.ids() == [0, 1, 2]


def test_a_column_that_the_rules_miss_is_added_under_the_lock(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_rules, "_options_reason", lambda _: None)
    wider = table.rows(1).withColumn("word", F.lit("x"))
    assert table.writer.append(wider, lock_during="commit", options={"mergeSchema": "true"}).version == 1
    assert len(table.files()) == 2


def test_a_lock_timeout_leaves_no_files(table: Table) -> None:
    initial_files = table.files()
    with table.rival.acquire(table.writer.table), pytest.raises(LockTimeoutError):
        table.append(1, lock_timeout_seconds=0)
    assert (table.files(), table.ids()) == (initial_files, [0])
    with table.waiting(1, lock_timeout_seconds=3) as running:
        assert len(table.files()) == 2
        assert isinstance(running.exception(60), LockTimeoutError)
    assert table.files() == initial_files


def test_a_lock_lost_before_the_put_commits_nothing(table: Table, ensemble_client: KazooClient) -> None:
    with pytest.raises(LockLostError):
        table.append(1, before_write=LockZnodes(ensemble_client, table.writer.table).delete_contenders)
    assert (len(table.files()), table.ids()) == (1, [0])
    assert table.append(2).version == 1


def test_a_lock_lost_after_the_put_changes_nothing(
    table: Table, ensemble_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, lost_holds = HeldLock.record_commit, list[str]()

    def lose_and_record(hold: HeldLock, *commit: Any) -> None:
        LockZnodes(ensemble_client, table.writer.table).delete_contenders(hold)
        lost_holds.append(hold.hold_id)
        record(hold, *commit)

    monkeypatch.setattr(HeldLock, "record_commit", lose_and_record)
    result = table.append(1)
    assert (result.version, lost_holds) == (1, [result.hold_id])
    assert table.ids() == [0, 1]


@pytest.mark.parametrize("is_in_log", [True, False], ids=["in the log", "not in the log"])
def test_a_put_without_an_answer_is_searched_in_the_log(
    table: Table, *, is_in_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ticket, "record_outcome", lambda *_: None)
    if is_in_log:
        assert table.append(1).version == 1
    else:
        monkeypatch.setattr(table.writer.log, "find_commit", lambda _, after, **_options: (None, after + 1))
        with pytest.raises(CommitUnknownError):
            table.append(1)
    assert len(table.files()) == 2
    assert table.ids() == [0, 1]


def test_writers_hold_the_lock_one_after_the_other(table: Table, zookeeper: Any) -> None:
    def load(first_id: int) -> list[CommitResult]:
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=120) as manager:
            writer = LockedDeltaWriter(table.spark, manager, str(table.path))
            return [writer.append(table.rows(first_id + number), lock_during="commit") for number in range(2)]

    with ThreadPoolExecutor(2) as pool:
        results = [result for loaded in pool.map(load, [10, 20]) for result in loaded]
    results.sort(key=lambda result: result.version or 0)
    assert [result.version for result in results] == [1, 2, 3, 4]
    assert all(earlier.released_at <= later.acquired_at for earlier, later in pairwise(results))
    assert [result.token for result in results] == sorted(result.token or 0 for result in results)
    assert table.ids() == [0, 10, 11, 20, 21]


def test_an_error_of_before_write_ends_the_write(table: Table) -> None:
    def fail(_: HeldLock) -> None:
        raise IndexError("not now")

    with pytest.raises(IndexError, match="not now"):
        table.append(1, before_write=fail)
    assert (len(table.files()), table.ids(), table.queue_length()) == (1, [0], 0)


def test_cancel_ends_a_write_that_waits_at_the_gate(table: Table) -> None:
    with table.waiting(1) as running:
        assert len(table.files()) == 2
        table.writer.cancel()
        assert isinstance(running.exception(60), LockCancelledError)
        assert table.queue_length() == 1
    assert (len(table.files()), table.ids()) == (1, [0])


def test_ctrl_c_ends_a_write_that_waits_at_the_gate(table: Table) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        table.eventually(lambda: table.queue_length() == 2)
        signal.pthread_kill(main_thread, signal.SIGINT)

    with table.rival.acquire(table.writer.table), ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            table.append(1)
        interrupted.result()
        assert table.queue_length() == 1
    assert (len(table.files()), table.ids()) == (1, [0])


@pytest.mark.full
def test_a_recreated_table_gets_no_commit_of_the_old_one(table: Table) -> None:
    table.append_by_delta_rs(1)
    with table.waiting(4) as running, table.locked():
        table.spark.sql(f"CREATE TABLE other USING delta LOCATION '{table.path}'")
        table.spark.sql("DROP TABLE other")
        table.remove_files()
        # The new table has as many versions: the version of the waiting commit is free.
        for number in range(10, 12):
            table.rows(number).write.format("delta").mode("append").save(str(table.path))
    assert running.result().version == 2
    assert table.ids() == [4, 10, 11]


@pytest.fixture
def new_table(request: pytest.FixtureRequest, make_rival: Callable[..., RivalManager]) -> Table:
    """A path without a table."""
    return Table.create(request, rival=make_rival())


@pytest.mark.parametrize("fixture_name", ["table", "new_table"], ids=["removed", "new"])
def test_a_removed_table_is_created_by_the_repeated_write(fixture_name: str, request: pytest.FixtureRequest) -> None:
    table: Table = request.getfixturevalue(fixture_name)
    with table.waiting(1) as running:
        table.remove_files()
    assert running.result().version == 0
    assert table.ids() == [1]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_first_version_of_a_table_waits_at_the_gate(new_table: Table, mode: str) -> None:
    write = getattr(new_table.writer, mode)
    options = {"lock_during": "commit", "before_write": new_table.record_files}
    with new_table.waiting_write(lambda: write(new_table.rows(1), **options)) as running:
        staged = new_table.files()
        assert len(staged) == 1
    assert (running.result().version, new_table.ids()) == (0, [1])
    assert new_table.files_at_lock == [staged], "the rows were written again under the lock"


@pytest.mark.full
def test_a_table_created_during_the_wait_is_appended_to(new_table: Table) -> None:
    with new_table.waiting(1, before_write=new_table.record_files) as running:
        new_table.append_by_delta_rs(0)
        rival_files = new_table.files()
    assert (running.result().version, new_table.ids()) == (1, [0, 1])
    # The repeated write waits at the gate, too.
    assert len(new_table.files_at_lock[-1] - rival_files) == 1


@pytest.mark.full
def test_a_table_in_a_subfolder_does_not_delay_a_new_table(table: Table, new_table: Table) -> None:
    shutil.copytree(table.path, new_table.path / "nested")
    result = new_table.writer.append(new_table.rows(1), lock_during="commit", before_write=new_table.record_files)
    assert result.version == 0
    assert len(new_table.files_at_lock) == 1, "the write was repeated under the lock"


@pytest.mark.full
def test_a_table_without_its_first_versions_is_not_new(table: Table, new_table: Table) -> None:
    for number in range(1, 4):
        table.append(number)
    DeltaTable(str(table.path)).create_checkpoint()
    (table.path / "_delta_log/00000000000000000000.json").unlink()
    with new_table.waiting(9) as running:
        shutil.copytree(table.path, new_table.path, dirs_exist_ok=True)
    assert (running.result().version, new_table.ids()) == (4, [0, 1, 2, 3, 9])


@pytest.mark.full
@pytest.mark.parametrize("table", [WITH_SHORT_RETENTION], ids=["files"], indirect=True)
@pytest.mark.parametrize("protected", [True, False], ids=["repeated", "negative control"])
def test_a_commit_with_files_that_vacuum_may_delete_is_refused(
    table: Table, *, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(WriteAttempt, "refuse_if_old", lambda *_: None)
    clock, initial_files = AttemptClock(monkeypatch), table.files()
    with table.waiting(1) as running:
        (staged,) = table.files() - initial_files
        clock.offset = timedelta(seconds=10)
        os.utime(table.path / staged, times=2 * (time.time() - 10,))
        if protected:
            # The second setting spares VACUUM 10,000 tasks.
            settings = {
                "spark.databricks.delta.retentionDurationCheck.enabled": "false",
                "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            }
            with spark_settings(table.spark.conf, settings):
                table.sql("VACUUM {t}")
            assert staged not in table.files()
        else:
            # As VACUUM does in the protected case.
            (table.path / staged).unlink()
    running.result()
    if protected:
        assert table.ids() == [0, 1]
    else:
        with pytest.raises(Exception, match=r"not found|No such file"):
            table.ids()


@pytest.mark.full
def test_writes_with_one_transaction_commit_once(table: Table) -> None:
    with table.rival.acquire(table.writer.table), ThreadPoolExecutor(2) as pool:
        appends = [pool.submit(table.append, 1, txn=("job", 7)) for _ in range(2)]
        table.eventually(lambda: table.queue_length() == 3, label="both appends at the gate")
        table.rival.release(table.writer.table)
        assert sorted(append.result().already_committed for append in appends) == [False, True]
    assert table.ids() == [0, 1]
    repeated = table.append(1, txn=("job", 7))
    assert (repeated.already_committed, repeated.hold_id, repeated.version) == (True, None, None)
    assert len(table.files()) == 2


def test_threads_of_one_driver_have_one_contender_each(table: Table, ensemble_client: KazooClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        with table.rival.acquire(table.writer.table):
            appends = [pool.submit(table.append, number) for number in range(1, 4)]
            table.eventually(lambda: table.queue_length() == 4, label="a contender of each append")
            nodes = LockZnodes(ensemble_client, table.writer.table).contenders()
            owners = {ensemble_client.get(node)[1].ephemeralOwner for node in nodes}
            assert len(owners) == 2, "expected one session of the rival and one of the driver"
        results = sorted((append.result() for append in appends), key=lambda result: result.version or 0)
    assert [result.version for result in results] == [1, 2, 3]
    assert [result.token for result in results] == sorted(result.token or 0 for result in results)
    assert table.ids() == [0, 1, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("commit_lock", ["false", "true"], ids=["off", "negative control"])
def test_a_commit_at_the_gate_blocks_no_thread_of_its_driver(
    table: Table, commit_lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_rules, "_settings_reason", lambda _: None)
    with spark_settings(table.spark.conf, {COMMIT_LOCK: commit_lock}):
        with table.waiting(1, lock_timeout_seconds=5) as running:
            table.append_in_block(2)
            still_waiting = not running.done()
        if commit_lock == "false":
            assert still_waiting
            assert running.result().version == 2
        else:
            # Delta's lock blocked this thread until the append gave up.
            assert isinstance(running.exception(), LockTimeoutError)


@pytest.mark.full
def test_a_derived_checksum_equals_that_of_the_writer(table: Table) -> None:
    table.append(1, txn=("job", 1))
    table.writer.overwrite(table.spark.range(2, 4, numPartitions=2), txn=("job", 2), lock_during="commit")
    table.writer.optimize()
    written = {path: json.loads(path.read_text()) for path in table.checksums(1, 2, 3)}
    for path in written:
        path.unlink()
    for path, checksum in written.items():
        derived = read_as(table.spark, "t", path)
        assert derived["allFiles"], "the derived checksum lists no files"
        assert pop_files(derived) == pop_files(checksum)
        assert derived == checksum
        # Readers of this driver derive it, too.
        derived_for_reader = read_as(table.spark, None, path)
        pop_files(derived_for_reader)
        assert derived_for_reader == derived


def test_a_checksum_that_delta_would_not_derive_is_missing(table: Table) -> None:
    table.append_by_delta_rs(1)
    table.add_column()
    first_checksum, append_checksum, column_checksum = table.checksums(0, 1, 2)
    assert read_as(table.spark, "t", append_checksum)["numFiles"] == 2
    with pytest.raises(Exception, match="FileNotFound"):
        read_as(table.spark, "t", column_checksum)
    # A checksum is derived from the one before it.
    first_checksum.unlink()
    with pytest.raises(Exception, match="FileNotFound"):
        read_as(table.spark, "t", append_checksum)


@pytest.mark.full
@pytest.mark.parametrize("derivable", [True, False], ids=["derived", "negative control"])
def test_versions_without_checksums_cost_no_spark_job(table: Table, *, derivable: bool) -> None:
    """Commits of delta-rs have no checksum files. They precede the append, or come while it waits at the gate."""

    def jobs_of_append(row: int, append: Callable[[int], Any] = table.append) -> int:
        previous_jobs = table.jobs()
        append(row)
        return table.jobs() - previous_jobs

    usual_jobs = jobs_of_append(1)
    if not derivable:
        for path in table.checksums(0, 1):
            path.unlink()
    table.append_by_delta_rs(2)
    jobs_at_beginning = jobs_of_append(3)
    if not derivable:
        assert jobs_at_beginning > usual_jobs
        return
    jobs_at_gate = []
    for row, options in ((4, {}), (6, {"before_write": lambda _: None})):
        with table.waiting(row, **options) as running:
            jobs = table.jobs()
            table.append_by_delta_rs(row + 1)
        assert running.result().version == row + 1
        jobs_at_gate.append(table.jobs() - jobs)
    table.append_by_delta_rs(8)
    jobs_under_lock = jobs_of_append(9, lambda row: table.writer.append(table.rows(row), lock_during="write"))
    assert table.ids() == list(range(10))
    assert (jobs_at_beginning, jobs_at_gate, jobs_under_lock) == (usual_jobs, [0, 0], usual_jobs)


@pytest.mark.full
def test_some_settings_keep_the_lock_over_the_whole_write(table: Table) -> None:
    session, driver = table.spark.conf, table.spark.sparkContext._jsc.sc().conf()

    def files_before_the_lock() -> int:
        previous_files = table.files()
        table.append(1, before_write=table.record_files)
        return len(table.files_at_lock.pop() - previous_files)

    # The control: the default settings.
    assert files_before_the_lock() == 1
    settings: list[tuple[Any, str, str]] = [
        (session, COMMIT_LOCK, "true"),
        (session, AUTO_COMPACT, "true"),
        (driver, GUARD_MODE, "observe"),
        (driver, GUARD_MODE, "off"),
    ]
    for conf, name, value in settings:
        with spark_settings(conf, {name: value}):
            assert files_before_the_lock() == 0, (name, value)


@pytest.mark.parametrize("operation", ["append", pytest.param("overwrite", marks=pytest.mark.soak)])
def test_the_settings_of_the_session_of_the_rows_apply(table: Table, operation: str) -> None:
    session = table.spark.newSession()
    session.conf.set(COMMIT_LOCK, "true")
    initial_files, rows = table.files(), session.createDataFrame([(1,)], "id long")
    getattr(table.writer, operation)(rows, lock_during="commit", before_write=table.record_files)
    assert table.files_at_lock == [initial_files]


def test_a_driver_without_the_log_store_writes_with_guard_off(
    table: Table, without_guard: Callable[..., AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writer_jobs.delta.java_classes._LOG_STORE", "nowhere")
    with without_guard():
        assert table.append(1).version == 1


def test_a_write_in_a_block_uses_the_hold_of_the_block(table: Table) -> None:
    with table.locked() as hold:
        result = table.append(1)
    assert result.hold_id == hold.hold_id


def test_an_unknown_value_of_lock_during_is_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="choose 'commit' or 'write'"):
        table.writer.append(table.rows(1), lock_during="never")  # type: ignore[arg-type]


@pytest.mark.full
def test_partitions_are_locked_for_the_commit_alone(
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    make_rival: Callable[..., RivalManager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A write that holds the lock throughout would call this.
    monkeypatch.setattr(LockedOperation, "_write_to", None)
    path = copy_of("CREATE TABLE {t} (id LONG, p LONG) USING delta PARTITIONED BY (p)")
    writer = LockedDeltaWriter(spark, manager, str(path))
    rows = spark.range(4).coalesce(1).withColumn("p", F.col("id") % 2)
    with make_rival().acquire(writer.table, partitions=[{"p": 1}]):
        even = writer.append(rows.where("p = 0"), lock_during="commit", lock="partitions", lock_timeout_seconds=30)
        with pytest.raises(LockTimeoutError):
            writer.append(rows.where("p = 1"), lock_during="commit", lock="partitions", lock_timeout_seconds=0)
    odd = writer.append(rows.where("p = 1"), lock_during="commit", lock=[{"p": 1}])
    assert (even.version, odd.version) == (1, 2)
