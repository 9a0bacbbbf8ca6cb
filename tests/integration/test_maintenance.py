"""Care of tables: what is found, what is done about it, and that nobody else is harmed by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, LockTimeoutError, TableResource, ZookeeperLockManager
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.maintained import codes, keys_of, made_old
from writer_jobs import HeldTooLongError, LockedDeltaWriter, TableError, WriteConflictError
from writer_jobs.maintenance.exclusive_run import MAINTENANCE_LOCK, exclusive_run, give_way
from writer_jobs.maintenance.executor import MAX_TRIES, UnitExecutor
from writer_jobs.maintenance.maintainer import TableMaintainer
from writer_jobs.maintenance.measure import measure
from writer_jobs.maintenance.plan import plan
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult

pytestmark = pytest.mark.spark

SCHEMA = "key long, place string, value string"
HOUR = 3600
DAY = timedelta(days=1)
RETENTION = {"delta__deletedFileRetentionDuration": "interval 1 day", "delta__logRetentionDuration": "interval 30 days"}


@pytest.mark.full
def test_the_figures_are_those_of_the_table(
    spark: SparkSession,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    for key in range(3):
        put([key], "a+b c%20")
    put(range(10, 20), None)
    properties(delta__enableDeletionVectors="true")
    writer.delete("key = 12")
    orphan = table / "place=a" / "part-orphan.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x" * 100)
    young = table / "part-young.parquet"
    young.write_bytes(b"y" * 10)
    made_old(orphan, 24 * 8)
    health = measure(spark, str(table)).health
    by_name = {part.name: part for part in health.partitions}
    assert by_name["place=a+b c%20"].total.files == 3
    assert by_name["place=a+b c%20"].rows == 3
    assert by_name["place=null"].rows == 9
    assert by_name["place=null"].deleted_rows == 1
    assert by_name["place=null"].with_deleted_rows.files == 1
    assert health.total.total.files == 4
    assert health.total.small == health.total.total
    assert sum(health.total.histogram) == 4
    assert health.folder.orphans.size == 100
    assert health.folder.uncommitted.size == 10
    assert health.log.versions == health.version + 1
    assert health.log.checkpoint_version is None
    assert health.version == writer.log.head().version
    said = health.to_json()
    assert said["total"]["small_share"] == 1.0
    assert said["total"]["deleted_share"] == pytest.approx(1 / 13)


def test_growth_is_that_of_the_last_week_however_seldom_the_table_is_written(
    spark: SparkSession, table: Path, put: Callable[..., None]
) -> None:
    put([1], "a")
    put([2], "a")
    log = table / "_delta_log"
    made_old(log / f"{0:020}.json", 24 * 29)
    made_old(log / f"{1:020}.json", 2)
    health = measure(spark, str(table)).health
    assert health.growth_per_day == pytest.approx(health.total.total.size / 2 / 7, rel=0.05)
    assert health.commits_per_day == pytest.approx(1 / 7)


@pytest.mark.full
def test_columns_to_order_by_that_are_gone_are_found_and_the_rest_is_done(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
    care: Callable[..., MaintenanceReport],
) -> None:
    for key in range(6):
        put([key], "a")
    properties(sluice__maintenance__zorderBy="renamed")
    report = care()
    assert report.before.order_problem == "renamed is not a column of the table"
    assert {finding.code for finding in report.findings} >= {"invalid-zorder", "small-files"}
    assert [(each.action, each.problem) for each in report.done] == [(Action.COMPACT, None)]
    properties(sluice__maintenance__zorderBy="place")
    assert measure(spark, str(table)).health.order_problem == "place is a partition column"


@pytest.mark.full
def test_small_files_are_put_together_partition_by_partition(
    spark: SparkSession, table: Path, put: Callable[..., None], care: Callable[..., MaintenanceReport]
) -> None:
    for key in range(6):
        put([key], "a")
    for key in range(6, 9):
        put([key], "b")
    put([9], "c")
    report = care(Action.COMPACT, parallel=1)
    assert [(each.partitions[0]["place"], each.removed.files, each.added.files) for each in report.done] == [
        ("a", 6, 1),
        ("b", 3, 1),
    ]
    assert report.saved.files == 7
    assert report.after is not None
    assert {part.name: part.total.files for part in report.after.partitions} == {
        "place=a": 1,
        "place=b": 1,
        "place=c": 1,
    }
    assert keys_of(spark, table) == list(range(10))
    assert verify_table(str(table), key=["key"]).ok
    # Each was committed under a lock on its partition alone.
    assert all(each.version is not None and each.held_seconds < each.seconds for each in report.done)


@pytest.mark.full
def test_auto_leaves_a_partition_that_is_not_worth_it(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    for key in range(5):
        put([key], "a")
    for key in range(5, 8):
        put([key], "b")
    assert [each.partitions[0]["place"] for each in care().done] == ["a"]
    properties(sluice__maintenance__minSmallFiles="2")
    assert [each.partitions[0]["place"] for each in care().done] == ["b"]
    assert care().done == ()


@pytest.mark.full
def test_what_the_policy_does_not_allow_is_found_and_not_done(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    for key in range(5):
        put([key])
    properties(sluice__maintenance__auto="vacuum, checkpoint")
    report = care()
    assert "small-files" in {finding.code for finding in report.findings}
    assert report.done == ()
    # Asked for by name, it is done.
    assert len(care(Action.COMPACT).done) == 1


@pytest.mark.full
def test_files_of_the_target_size_are_left(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    for key in range(5):
        put([key])
    size = measure(spark, str(table)).health.total.total.size // 5
    properties(sluice__maintenance__targetFileSize=str(int(size * 1.5)))
    assert care(Action.COMPACT).done == ()
    properties(sluice__maintenance__targetFileSize=str(int(size * 2.5)))
    assert [(each.removed.files, each.added.files) for each in care(Action.COMPACT).done] == [(4, 2)]


@pytest.mark.full
def test_deleted_rows_are_purged(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    writer: LockedDeltaWriter,
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    put(range(10), "a")
    put(range(10, 20), "b")
    properties(delta__enableDeletionVectors="true")
    writer.delete("key = 3")
    report = care()
    assert [(each.action, each.partitions[0]["place"]) for each in report.done] == [(Action.PURGE, "a")]
    after = measure(spark, str(table)).health.total
    assert (after.deleted_rows, after.with_deleted_rows.files, after.rows) == (0, 0, 19)


@pytest.mark.full
def test_rows_are_put_in_z_order_once_and_again_when_much_is_new(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(range(10), "a")
    put(range(10, 20), "a")
    put(range(20, 30), "b")
    properties(sluice__maintenance__zorderBy="key, value", sluice__maintenance__unorderedShare="0.5")
    # Store and driver have one clock here.
    monkeypatch.setattr("writer_jobs.maintenance.partition_health.MAX_CLOCK_SKEW_MS", 0)
    first = care(Action.ZORDER)
    assert [(each.action, each.partitions[0]["place"]) for each in first.done] == [(Action.ZORDER, "a")]
    assert {part.name: part.unordered.files for part in first.after.partitions} == {"place=a": 0, "place=b": 1}
    assert care().done == ()
    for key in range(30, 34):
        put([key] * 20, "a")
    assert next(each.action for each in care().done) is Action.ZORDER
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").where("operation = 'OPTIMIZE'").collect()
    assert all('"key","value"' in row["operationParameters"]["zOrderBy"] for row in history)


@pytest.mark.full
def test_a_clustered_table_is_clustered(
    spark: SparkSession,
    table: Path,
    writer: LockedDeltaWriter,
    care: Callable[..., MaintenanceReport],
    sql: Callable[[str], None],
) -> None:
    sql("CREATE TABLE {table} (key LONG, value STRING) USING delta CLUSTER BY (key)")
    for key in range(6):
        writer.append(spark.createDataFrame([(key, "v")], "key long, value string").coalesce(1))
    measured = measure(spark, str(table))
    assert measured.health.clustering_columns == ("key",)
    assert "small-files" not in codes(measured)
    report = care()
    assert [each.action for each in report.done] == [Action.CLUSTER]
    assert report.after.total.unclustered.files == 0
    assert keys_of(spark, table) == list(range(6))


@pytest.mark.full
def test_a_checkpoint_is_written_when_the_newest_is_old(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    put([0])
    properties(delta__checkpointInterval="1000")
    assert "old-checkpoint" not in codes(measure(spark, str(table)))
    report = care(Action.CHECKPOINT)
    assert [each.version for each in report.done] == [1]
    assert report.after.log.checkpoint_version == 1
    assert report.after.log.since_checkpoint == 0


@pytest.mark.full
def test_the_budget_ends_it_between_two_partitions(
    spark: SparkSession, table: Path, put: Callable[..., None], care: Callable[..., MaintenanceReport]
) -> None:
    for place in "abc":
        for key in range(2):
            put([key], place)
    report = care(Action.COMPACT, budget_seconds=0.0)
    assert (report.done, report.left, report.after) == ((), 3, None)
    report = care(Action.COMPACT, budget_seconds=600)
    assert (len(report.done), report.left) == (3, 0)


@pytest.mark.full
def test_of_two_maintainers_the_second_one_leaves(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
) -> None:
    for key in range(5):
        put([key])
    made = TableMaintainer(UnitExecutor(spark, manager, inspector, str(table), lock_timeout_seconds=0))
    with exclusive_run(manager, writer.table, 5):
        with pytest.raises(LockTimeoutError, match=MAINTENANCE_LOCK):
            made.run()
        # It keeps no writer back.
        put([5])
        # Nor who only looks.
        assert made.run(()).before.total.total.files == 6
    assert len(made.run().done) == 1


def test_waiting_writers_go_first(
    manager: ZookeeperLockManager, inspector: LockInspector, table: Path, writer: LockedDeltaWriter
) -> None:
    assert give_way(inspector, writer.table, 10) < 5
    with in_another_thread(lambda: manager.acquire(writer.table)):
        assert give_way(inspector, writer.table, 10) < 5
        waiting = threading.Thread(target=lambda: manager.acquire(writer.table, timeout_seconds=30).__enter__())
        waiting.daemon = True
        waiting.start()
        while not inspector.table(TableResource.of(writer.table)).waiters:
            time.sleep(0.05)
        assert give_way(inspector, writer.table, 0.5) >= 0.5
    waiting.join()


@pytest.mark.full
def test_a_compaction_that_loses_its_race_is_left_for_later_and_keeps_nobody_back(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in "ab":
        for key in range(3):
            put([key], place)
    rewrite = LockedDeltaWriter.optimize
    lost: list[str] = []

    def optimize(self: LockedDeltaWriter, *args: Any, **how: Any) -> Any:
        place = how["lock"][0]["place"]

        if place == "a" and len(lost) < MAX_TRIES - 1:
            raced = threading.Thread(target=lambda: writer.update({"value": "concat(value, '!')"}, "place = 'a'"))
            monkeypatch.setattr("writer_jobs.commit.gate.StagedWrite._commit", _behind(raced, commit))
            lost.append(place)
        return rewrite(self, *args, **how)

    from writer_jobs.commit.gate import StagedWrite

    commit = StagedWrite._commit
    monkeypatch.setattr(LockedDeltaWriter, "optimize", optimize)
    said: list[UnitResult] = []
    worker = UnitExecutor(spark, manager, inspector, str(table), lock_timeout_seconds=30)
    made = TableMaintainer(worker, on_result=lambda so_far: said.append(so_far.done[-1]), parallel=1)
    report = made.run([Action.COMPACT])
    assert lost == ["a"] * (MAX_TRIES - 1)
    assert [(each.partitions[0]["place"], each.problem) for each in report.done] == [("b", None), ("a", None)]
    assert keys_of(spark, table) == [0, 0, 1, 1, 2, 2]
    assert said == list(report.done)


@pytest.mark.full
def test_small_partitions_in_one_commit_that_loses_its_race_are_done_one_by_one(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from writer_jobs.commit.gate import StagedWrite

    for place in ("a", None, "c"):
        for key in range(2):
            put([key], place)

    def look_after() -> MaintenanceReport:
        worker = UnitExecutor(spark, manager, inspector, str(table), lock_timeout_seconds=30)
        made = TableMaintainer(worker, partitions_per_commit=8, parallel=1)
        return made.run([Action.COMPACT])

    raced = threading.Thread(target=lambda: writer.update({"value": "concat(value, '!')"}, "place = 'c'"))
    with monkeypatch.context() as patched:
        patched.setattr(StagedWrite, "_commit", _behind(raced, StagedWrite._commit))
        report = look_after()
    assert {tuple(values["place"] for values in each.partitions) for each in report.done} == {("a",), (None,), ("c",)}
    assert [each.problem for each in report.done] == [None] * 3
    assert report.after is not None
    assert report.after.total.total.files == 3
    # Nobody races it now: one commit.
    for place in ("a", None):
        put([2], place)
    before = writer.log.snapshot().version
    (once,) = look_after().done
    assert {values["place"] for values in once.partitions} == {"a", None}
    assert (once.version, once.removed.files, once.added.files) == (before + 1, 4, 2)
    assert keys_of(spark, table) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert verify_table(str(table)).ok


@pytest.mark.parametrize("hold_at_most", [60.0, 0.0], ids=["held at last", "negative control"])
def test_a_partition_that_loses_every_race_is_rewritten_with_its_lock_in_the_end(
    hold_at_most: float,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from writer_jobs.commit.gate import StagedWrite

    for place in "ab":
        for key in range(3):
            put([key], place)
    commit = StagedWrite._commit

    def raced(self: Any, *args: Any) -> None:
        # As soon as there is something to commit without the lock, another writer is faster.
        update = threading.Thread(target=lambda: writer.update({"value": "concat(value, '!')"}, "key = 0"))
        update.start()
        update.join()
        commit(self, *args)

    monkeypatch.setattr(StagedWrite, "_commit", raced)
    worker = UnitExecutor(
        spark, manager, inspector, str(table), lock_timeout_seconds=60, hold_at_most_seconds=hold_at_most
    )
    made = TableMaintainer(worker)
    report = made.run([Action.COMPACT])
    monkeypatch.undo()
    assert {each.partitions[0]["place"] for each in report.done} == {"a", "b"}
    assert [each.problem is None for each in report.done] == [bool(hold_at_most)] * 2
    assert report.failure is None
    assert report.after is not None
    assert report.after.total.total.files == (2 if hold_at_most else 6)
    assert keys_of(spark, table) == [0, 0, 1, 1, 2, 2]
    assert verify_table(str(table)).ok


@pytest.mark.full
@pytest.mark.parametrize("hold_at_most", [60.0, 0.0])
def test_a_table_with_a_manifest_is_compacted_within_the_limit(
    hold_at_most: float,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    """What Delta runs after the commit keeps it from the gate, so the lock is held over the compaction."""
    for key in range(3):
        put([key])
    properties(delta__compatibility__symlinkFormatManifest__enabled="true")
    worker = UnitExecutor(
        spark, manager, inspector, str(table), lock_timeout_seconds=60, hold_at_most_seconds=hold_at_most
    )
    report = TableMaintainer(worker).run([Action.COMPACT])
    assert ["with the lock" in (unit.problem or "") for unit in report.done] == [not hold_at_most]
    assert report.after is not None
    assert report.after.total.total.files == (1 if hold_at_most else 3)


@pytest.mark.full
def test_what_is_committed_beside_what_ends_the_work_is_in_the_report(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place, files in (("a", 4), ("b", 3), ("c", 2)):
        for key in range(files):
            put([key], place)
    rewrite = LockedDeltaWriter.optimize
    both, failed = threading.Barrier(2), threading.Event()

    def optimize(self: LockedDeltaWriter, *args: Any, **how: Any) -> Any:
        place = how["lock"][0]["place"]
        both.wait(60)
        if place == "a":
            failed.set()
            raise LockCancelledError(resource=self.table)
        failed.wait(60)
        return rewrite(self, *args, **how)

    monkeypatch.setattr(LockedDeltaWriter, "optimize", optimize)
    said: list[UnitResult] = []
    worker = UnitExecutor(spark, manager, inspector, str(table), lock_timeout_seconds=30)
    made = TableMaintainer(worker, on_result=lambda so_far: said.append(so_far.done[-1]), parallel=2)
    with pytest.raises(LockCancelledError):
        made.run([Action.COMPACT])
    assert made.report is not None
    assert [(each.partitions[0]["place"], each.problem) for each in made.report.done] == [("b", None)]
    assert said == list(made.report.done)
    # What was cancelled, and what was not begun.
    assert made.report.left == 2
    assert keys_of(spark, table) == [0, 0, 0, 1, 1, 1, 2, 2, 3]


@pytest.mark.full
@pytest.mark.parametrize("rewrite", ["optimize", "purge"])
def test_a_rewrite_that_holds_the_lock_for_too_long_is_cancelled(  # noqa: PLR0917 (fixtures)
    rewrite: str,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("writer_jobs.commit.execution.CANCEL_AGAIN_SECONDS", 0.005)
    for key in range(3):
        put([key, key + 10])
    properties(delta__enableDeletionVectors="true")
    writer.delete("key >= 10")
    before = writer.log.head().version
    with pytest.raises(HeldTooLongError, match=r"not done after 0\.001 s with the lock") as too_long:
        getattr(writer, rewrite)(lock_during="write", held_at_most_seconds=0.001)
    assert isinstance(too_long.value, TimeoutError)
    assert too_long.value.held_seconds > 0
    assert writer.log.head().version == before
    assert inspector.table(TableResource.of(writer.table)).holders == ()
    assert getattr(writer, rewrite)(lock_during="write", held_at_most_seconds=300).version == before + 1
    assert keys_of(spark, table) == [0, 1, 2]


@pytest.mark.full
def test_auto_compaction_of_the_session_does_not_have_it_hold_the_lock(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    eventually: Callable[..., None],
) -> None:
    for key in range(3):
        put([key])
    setting = "spark.databricks.delta.autoCompact.enabled"
    done: list[MaintenanceReport] = []
    looking_after = threading.Thread(target=lambda: done.append(care(Action.COMPACT)), daemon=True)
    spark.conf.set(setting, "true")
    try:
        with in_another_thread(lambda: manager.acquire(writer.table)):
            looking_after.start()
            # It writes before it has the lock.
            eventually(lambda: len(list(table.glob("place=a/*.parquet"))) == 4, what="the new file")
        looking_after.join(60)
    finally:
        spark.conf.set(setting, "false")
    assert [each.problem for each in done[0].done] == [None]


def _behind(raced: threading.Thread, commit: Callable[..., None]) -> Callable[..., None]:
    """Have another thread write before the next commit passes the gate."""
    first = [True]

    def committed(self: Any, *args: Any) -> None:
        if first and first.pop():
            raced.start()
            raced.join()
        commit(self, *args)

    return committed


def test_without_again_a_lost_race_is_an_error(
    spark: SparkSession, table: Path, writer: LockedDeltaWriter, put: Callable[..., None]
) -> None:
    from writer_jobs.commit.gate import StagedWrite

    for key in range(3):
        put([key])
    raced = threading.Thread(target=lambda: writer.update({"value": "concat(value, '!')"}))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StagedWrite, "_commit", _behind(raced, StagedWrite._commit))
        with pytest.raises(WriteConflictError, match="another writer has changed"):
            writer.optimize(again=False)
    assert keys_of(spark, table) == [0, 1, 2]


def test_a_property_that_makes_no_sense_is_refused(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    sql: Callable[[str], None],
    properties: Callable[..., None],
) -> None:
    put([0])
    for name, value, says in (
        ("targetFileSize", "big", "a size such as"),
        ("auto", "everything", "a list of"),
        ("tagetFileSize", "1 MiB", "valid names are"),
    ):
        properties(**{f"sluice__maintenance__{name}": value})
        with pytest.raises(TableError, match=says):
            measure(spark, str(table))
        sql(f"ALTER TABLE {{table}} UNSET TBLPROPERTIES ('sluice.maintenance.{name}')")
    with pytest.raises(TableError, match="there is no Delta table"):
        measure(spark, str(table / "nothing"))


@pytest.mark.full
def test_the_plan_has_each_partition_with_its_own_worth(
    spark: SparkSession, table: Path, put: Callable[..., None]
) -> None:
    for key in range(8):
        put([key], "b")
    for key in range(8, 14):
        put([key], "a")
    found = measure(spark, str(table))
    planned = plan(found.health, found.policy, None)
    assert [(unit.action, unit.partitions, unit.worth) for unit in planned] == [
        (Action.COMPACT, ({"place": "b"},), 7),
        (Action.COMPACT, ({"place": "a"},), 5),
    ]
    assert plan(found.health, Policy(auto=frozenset()), None) == []


@pytest.mark.full
@pytest.mark.parametrize("parallel", [2, 1])
def test_partitions_are_worked_on_beside_each_other(
    parallel: int,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in "abcd":
        for key in range(2):
            put([key], place)
    rewrite = LockedDeltaWriter.optimize
    begun: list[str] = []
    running: list[str] = []
    most: list[int] = []
    both = threading.Barrier(2)

    def optimize(self: LockedDeltaWriter, *args: Any, **how: Any) -> Any:
        place = how["lock"][0]["place"]
        running.append(place)
        begun.append(place)
        most.append(len(running))
        if parallel == 2:
            both.wait(60)
        try:
            return rewrite(self, *args, **how)
        finally:
            running.remove(place)

    monkeypatch.setattr(LockedDeltaWriter, "optimize", optimize)
    made = TableMaintainer(
        UnitExecutor(spark, manager, inspector, str(table), lock_timeout_seconds=30), parallel=parallel
    )
    report = made.run([Action.COMPACT])
    assert max(most) == parallel
    assert sorted(begun) == list("abcd")
    assert [each.problem for each in report.done] == [None] * 4
    assert report.after.total.total.files == 4
    assert keys_of(spark, table) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert verify_table(str(table)).ok


@pytest.mark.full
def test_a_maintainer_that_is_stopped_leaves_what_waits_and_begins_no_more(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
) -> None:
    for place in "abc":
        for key in range(2):
            put([key], place)
    before = inspector.table(TableResource.of(writer.table))
    assert not before.waiters
    stops: list[Callable[[], None]] = []
    failures: list[BaseException] = []

    @contextmanager
    def deferred(stop: Callable[[], None]) -> Iterator[None]:
        stops.append(stop)
        yield

    own = ZookeeperLockManager(manager.settings)

    def look_after() -> None:
        made = TableMaintainer(
            UnitExecutor(spark, own, inspector, str(table), lock_timeout_seconds=60), deferred=deferred, parallel=2
        )
        try:
            made.run([Action.COMPACT])
        except LockCancelledError as error:
            failures.append(error)

    thread = threading.Thread(target=look_after)
    with own, in_another_thread(lambda: manager.acquire(writer.table)):
        thread.start()
        while len(inspector.table(TableResource.of(writer.table)).waiters) < 2:
            assert thread.is_alive()
            time.sleep(0.05)
        stops[0]()
        thread.join(20)
        assert not thread.is_alive()
    assert len(failures) == 1
    assert writer.log.snapshot().version == 5
    assert not inspector.table(TableResource.of(writer.table)).waiters
    assert keys_of(spark, table) == [0, 0, 0, 1, 1, 1]
