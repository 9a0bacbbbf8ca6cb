"""Maintenance of a table: its findings and repairs, and its behaviour while writers and other maintainers run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from lock_manager import LockCancelledError, LockTimeoutError, TableResource, ZookeeperLockManager
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.maintained import findings_by_code
from tests.support.maintained_table import MaintainedTable
from writer_jobs import HeldTooLongError, LockedDeltaWriter, TableError, WriteConflictError
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.maintenance import executor, maintainer
from writer_jobs.maintenance.exclusive_run import MAINTENANCE_LOCK, exclusive_run, give_way
from writer_jobs.maintenance.executor import MAX_TRIES
from writer_jobs.maintenance.measure import measure
from writer_jobs.maintenance.plan import plan
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult

pytestmark = pytest.mark.spark


@pytest.fixture
def table(request: pytest.FixtureRequest) -> MaintainedTable:
    """A location for a table; a test creates the table."""
    return MaintainedTable.of(request)


def place_of(result: UnitResult) -> Any:
    (partition,) = result.partitions
    return partition["place"]


def race(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], *, times: int = 1) -> None:
    """Let another thread write before each of the next ``times`` commits passes the gate."""
    commit, races_left = StagedWrite._commit, [times]

    def commit_after_another_write(staged_write: StagedWrite, *args: Any) -> None:
        if races_left[0]:
            races_left[0] -= 1
            with ThreadPoolExecutor(1) as pool:
                pool.submit(write).result()
        commit(staged_write, *args)

    monkeypatch.setattr(StagedWrite, "_commit", commit_after_another_write)


def wrap_compactions(monkeypatch: pytest.MonkeyPatch, around: Callable[[str], AbstractContextManager[None]]) -> None:
    """Run the compaction of each partition within ``around(place)``."""
    compact = LockedDeltaWriter.optimize

    def optimize(writer: LockedDeltaWriter, *args: Any, **options: Any) -> Any:
        with around(options["lock"][0]["place"]):
            return compact(writer, *args, **options)

    monkeypatch.setattr(LockedDeltaWriter, "optimize", optimize)


@pytest.mark.full
def test_the_figures_of_a_measurement_equal_the_table(table: MaintainedTable) -> None:
    table.create({"a+b c%20": 3}, delta__enableDeletionVectors="true")
    table.append(*range(10, 20), place=None, txn=("run", 1))
    table.writer.delete("key = 12")
    table.write_file("place=a/part-orphan.parquet", hours=24 * 8, size=100)
    table.write_file("part-young.parquet", size=10)
    health = table.measure().health
    partitions_by_name = {partition.name: partition for partition in health.partitions}
    assert partitions_by_name["place=a+b c%20"].total.files == 3
    assert partitions_by_name["place=a+b c%20"].rows == 3
    assert partitions_by_name["place=null"].rows == 9
    assert partitions_by_name["place=null"].deleted_rows == 1
    assert partitions_by_name["place=null"].with_deleted_rows.files == 1
    assert health.total.total.files == 4
    assert health.total.small == health.total.total
    assert sum(health.total.histogram) == 4
    assert health.folder.orphans.size == 100
    assert health.folder.uncommitted.size == 10
    assert health.log.versions == health.version + 1
    assert health.log.checkpoint_version is None
    assert (health.log.transactions, health.log.recent_transactions, health.log.drops_transactions) == (1, 1, False)
    assert health.version == table.writer.log.head().version
    total = health.to_json()["total"]
    assert total["small_share"] == 1.0
    assert total["deleted_share"] == pytest.approx(1 / 13)


@pytest.mark.full
def test_growth_is_the_average_of_the_last_week(table: MaintainedTable) -> None:
    table.create({"a": 1})
    table.append(1)
    table.make_versions_old({0: 24 * 29, 1: 2})
    health = table.measure().health
    assert health.growth_per_day == pytest.approx(health.total.total.size / 2 / 7, rel=0.05)
    assert health.commits_per_day == pytest.approx(1 / 7)


@pytest.mark.full
def test_an_invalid_zorder_is_found_and_other_work_is_done(table: MaintainedTable) -> None:
    table.create({"a": 6}, sluice__maintenance__zorderBy="renamed")
    report = table.maintain()
    assert report.before.order_problem == "renamed is not a column of the table"
    assert {finding.code for finding in report.findings} >= {"invalid-zorder", "small-files"}
    assert [(result.action, result.problem) for result in report.done] == [(Action.COMPACT, None)]
    table.set_properties_without_spark(sluice__maintenance__zorderBy="place")
    assert table.measure().health.order_problem == "place is a partition column"


@pytest.mark.full
def test_small_files_are_compacted_by_partition(table: MaintainedTable) -> None:
    table.create({"a": 6, "b": 3, "c": 1})
    report = table.maintain(Action.COMPACT, parallel=1)
    assert [(place_of(result), result.removed.files, result.added.files) for result in report.done] == [
        ("a", 6, 1),
        ("b", 3, 1),
    ]
    assert report.saved.files == 7
    assert report.after is not None
    files = {partition.name: partition.total.files for partition in report.after.partitions}
    assert files == {"place=a": 1, "place=b": 1, "place=c": 1}
    assert table.keys() == list(range(10))
    assert verify_table(table.path, key=["key"]).ok
    # Each commit held the lock of its partition only at the end.
    assert all(result.version is not None and result.held_seconds < result.seconds for result in report.done)


@pytest.mark.full
def test_auto_skips_partitions_with_few_small_files(table: MaintainedTable) -> None:
    table.create({"a": 5, "b": 3})
    assert [place_of(result) for result in table.maintain().done] == ["a"]
    table.set_properties_without_spark(sluice__maintenance__minSmallFiles="2")
    assert [place_of(result) for result in table.maintain().done] == ["b"]
    assert table.maintain().done == ()


@pytest.mark.full
def test_auto_reports_findings_that_the_policy_excludes(table: MaintainedTable) -> None:
    table.create({"a": 5}, sluice__maintenance__auto="vacuum, checkpoint")
    report = table.maintain()
    assert "small-files" in {finding.code for finding in report.findings}
    assert report.done == ()
    # An action that the caller names is executed.
    assert len(table.maintain(Action.COMPACT).done) == 1


@pytest.mark.full
def test_files_near_the_target_size_are_not_compacted(table: MaintainedTable) -> None:
    table.create({"a": 5})
    size = table.measure().health.total.total.size // 5
    table.set_properties_without_spark(sluice__maintenance__targetFileSize=str(int(size * 1.5)))
    assert table.maintain(Action.COMPACT).done == ()
    table.set_properties_without_spark(sluice__maintenance__targetFileSize=str(int(size * 2.5)))
    results = table.maintain(Action.COMPACT).done
    assert [(result.removed.files, result.added.files) for result in results] == [(4, 2)]


@pytest.mark.full
def test_deleted_rows_are_purged(table: MaintainedTable) -> None:
    table.create({"a": 1, "b": 1}, rows=10, delta__enableDeletionVectors="true")
    table.writer.delete("key = 3")
    report = table.maintain()
    assert [(result.action, place_of(result)) for result in report.done] == [(Action.PURGE, "a")]
    total = table.measure().health.total
    assert (total.deleted_rows, total.with_deleted_rows.files, total.rows) == (0, 0, 19)


@pytest.mark.full
def test_zorder_runs_again_after_many_new_rows(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.create(
        {"a": 2, "b": 1},
        rows=10,
        sluice__maintenance__zorderBy="key, value",
        sluice__maintenance__unorderedShare="0.5",
    )
    # In this test the store and the driver use the same clock.
    monkeypatch.setattr("writer_jobs.maintenance.partition_health.MAX_CLOCK_SKEW_MS", 0)
    report = table.maintain(Action.ZORDER)
    assert [(result.action, place_of(result)) for result in report.done] == [(Action.ZORDER, "a")]
    assert {partition.name: partition.unordered.files for partition in report.after.partitions} == {
        "place=a": 0,
        "place=b": 1,
    }
    assert table.maintain().done == ()
    for key in (30, 31):
        table.append(*[key] * 20)
    assert table.maintain().done[0].action is Action.ZORDER
    history = [commit for commit in DeltaTable(str(table.path)).history() if commit["operation"] == "OPTIMIZE"]
    assert len(history) == 2
    assert all('"key","value"' in commit["operationParameters"]["zOrderBy"] for commit in history)


@pytest.mark.full
def test_a_clustered_table_is_clustered(table: MaintainedTable) -> None:
    table.copy_of(
        "CREATE TABLE {t} (key LONG, value STRING) USING delta CLUSTER BY (key)",
        "INSERT INTO {t} SELECT id, 'v' FROM range(0, 6, 1, 6)",
    )
    measurement = table.measure()
    assert measurement.health.clustering_columns == ("key",)
    assert "small-files" not in findings_by_code(measurement)
    report = table.maintain()
    assert [result.action for result in report.done] == [Action.CLUSTER]
    assert report.after.total.unclustered.files == 0
    assert table.keys() == list(range(6))


@pytest.mark.full
def test_a_checkpoint_is_written_on_request(table: MaintainedTable) -> None:
    table.create({"a": 1})
    table.set_properties_without_spark(delta__checkpointInterval="1000")
    assert "old-checkpoint" not in findings_by_code(table.measure())
    report = table.maintain(Action.CHECKPOINT)
    assert [result.version for result in report.done] == [1]
    assert report.after.log.checkpoint_version == 1
    assert report.after.log.since_checkpoint == 0


@pytest.mark.full
def test_maintenance_starts_no_partition_after_its_budget(table: MaintainedTable) -> None:
    table.create({"a": 2, "b": 2, "c": 2})
    report = table.maintain(Action.COMPACT, budget_seconds=0.0)
    assert (report.done, report.left, report.after) == ((), 3, None)
    report = table.maintain(Action.COMPACT, budget_seconds=600)
    assert (len(report.done), report.left) == (3, 0)


@pytest.mark.full
def test_a_table_has_one_maintainer_at_a_time(table: MaintainedTable) -> None:
    table.create({"a": 5})
    second_maintainer = table.maintainer(lock_timeout_seconds=0)
    with exclusive_run(table.manager, table.writer.table, 5):
        with pytest.raises(LockTimeoutError, match=MAINTENANCE_LOCK):
            second_maintainer.run()
        # Writers and measurements do not wait for a maintainer.
        table.append(5)
        assert second_maintainer.run(()).before.total.total.files == 6
    assert len(second_maintainer.run().done) == 1


def test_maintenance_gives_way_to_waiting_writers(table: MaintainedTable, eventually: Callable[..., None]) -> None:
    uri = table.writer.table
    assert give_way(table.inspector, uri, 10) < 5
    with in_another_thread(lambda: table.manager.acquire(uri)):
        assert give_way(table.inspector, uri, 10) < 5
        waiter = threading.Thread(target=lambda: table.manager.acquire(uri, timeout_seconds=30).release(), daemon=True)
        waiter.start()
        eventually(table.waiters, label="a waiting writer")
        assert give_way(table.inspector, uri, 0.5) >= 0.5
    waiter.join()


@pytest.mark.full
def test_a_compaction_that_loses_a_race_is_repeated_last(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create({"a": 3, "b": 3})
    races: list[str] = []

    @contextmanager
    def race_in_a(place: str) -> Iterator[None]:
        if place == "a" and len(races) < MAX_TRIES - 1:
            races.append(place)
            race(monkeypatch, lambda: table.writer.update({"value": "concat(value, '!')"}, "place = 'a'"))
        yield

    wrap_compactions(monkeypatch, race_in_a)
    results: list[UnitResult] = []
    report = table.maintain(Action.COMPACT, parallel=1, on_result=lambda report: results.append(report.done[-1]))
    assert races == ["a"] * (MAX_TRIES - 1)
    assert [(place_of(result), result.problem) for result in report.done] == [("b", None), ("a", None)]
    assert table.keys() == list(range(6))
    assert results == list(report.done)


@pytest.mark.full
def test_a_commit_of_several_partitions_is_split_after_a_race(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create({"a": 2, None: 2, "c": 2})
    options = {"partitions_per_commit": 8, "parallel": 1}
    with monkeypatch.context() as patch:
        race(patch, lambda: table.writer.update({"value": "concat(value, '!')"}, "place = 'c'"))
        report = table.maintain(Action.COMPACT, **options)
    assert {place_of(result) for result in report.done} == {"a", None, "c"}
    assert [result.problem for result in report.done] == [None] * 3
    assert report.after is not None
    assert report.after.total.total.files == 3
    # Without a race, one commit compacts both partitions.
    for key, place in ((6, "a"), (7, None)):
        table.append(key, place=place)
    version = table.version()
    (result,) = table.maintain(Action.COMPACT, **options).done
    assert {partition["place"] for partition in result.partitions} == {"a", None}
    assert (result.version, result.removed.files, result.added.files) == (version + 1, 4, 2)
    assert table.keys() == list(range(8))
    assert verify_table(table.path).ok


@pytest.mark.parametrize("hold_at_most_seconds", [60.0, 0.0], ids=["with a hold", "negative control"])
def test_a_partition_that_loses_every_race_is_locked_at_last(
    table: MaintainedTable, hold_at_most_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create({"a": 2, "b": 2})
    for module in (executor, maintainer):
        monkeypatch.setattr(module, "MAX_TRIES", 2)
    # Another writer changes both partitions whenever a compaction is about to commit through the gate.
    race(monkeypatch, lambda: table.writer.update({"value": "concat(value, '!')"}, "key IN (0, 2)"), times=99)
    report = table.maintain(Action.COMPACT, hold_at_most_seconds=hold_at_most_seconds)
    monkeypatch.undo()
    assert {place_of(result) for result in report.done} == {"a", "b"}
    assert [result.problem is None for result in report.done] == [bool(hold_at_most_seconds)] * 2
    assert report.failure is None
    assert report.after is not None
    assert report.after.total.total.files == (2 if hold_at_most_seconds else 4)
    assert table.keys() == [0, 1, 2, 3]
    assert verify_table(table.path).ok


@pytest.mark.full
@pytest.mark.parametrize("hold_at_most_seconds", [60.0, 0.0])
def test_a_table_with_a_manifest_is_compacted_within_the_limit(
    table: MaintainedTable, hold_at_most_seconds: float
) -> None:
    """Delta writes the manifest after the commit, so the compaction cannot use the gate and holds the lock."""
    table.create({"a": 3})
    table.set_properties_without_spark(delta__compatibility__symlinkFormatManifest__enabled="true")
    report = table.maintain(Action.COMPACT, hold_at_most_seconds=hold_at_most_seconds)
    assert ["with the lock" in (result.problem or "") for result in report.done] == [not hold_at_most_seconds]
    assert report.after is not None
    assert report.after.total.total.files == (1 if hold_at_most_seconds else 3)


@pytest.mark.full
def test_commits_of_a_run_that_is_cancelled_are_reported(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create({"a": 4, "b": 3, "c": 2})
    both_running, a_is_cancelled = threading.Barrier(2), threading.Event()

    @contextmanager
    def cancel_a(place: str) -> Iterator[None]:
        both_running.wait(60)
        if place == "a":
            a_is_cancelled.set()
            raise LockCancelledError(resource=table.writer.table)
        a_is_cancelled.wait(60)
        yield

    wrap_compactions(monkeypatch, cancel_a)
    results: list[UnitResult] = []
    cancelled_maintainer = table.maintainer(on_result=lambda report: results.append(report.done[-1]), parallel=2)
    with pytest.raises(LockCancelledError):
        cancelled_maintainer.run([Action.COMPACT])
    assert cancelled_maintainer.report is not None
    assert [(place_of(result), result.problem) for result in cancelled_maintainer.report.done] == [("b", None)]
    assert results == list(cancelled_maintainer.report.done)
    # These are the cancelled compaction and the compaction that never started.
    assert cancelled_maintainer.report.left == 2
    assert table.keys() == list(range(9))


@pytest.mark.full
@pytest.mark.parametrize("rewrite", ["optimize", "purge"])
def test_a_rewrite_that_holds_the_lock_too_long_is_cancelled(
    table: MaintainedTable, rewrite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("writer_jobs.commit.execution.CANCEL_AGAIN_SECONDS", 0.005)
    table.create({"a": 3}, rows=2, delta__enableDeletionVectors="true")
    writer = table.writer
    writer.delete("key % 2 = 1")
    version = writer.log.head().version
    with pytest.raises(HeldTooLongError, match=r"not done after 0\.001 s with the lock") as error:
        getattr(writer, rewrite)(lock_during="write", held_at_most_seconds=0.001)
    assert isinstance(error.value, TimeoutError)
    assert error.value.held_seconds > 0
    assert writer.log.head().version == version
    assert table.inspector.table(TableResource.of(writer.table)).holders == ()
    assert getattr(writer, rewrite)(lock_during="write", held_at_most_seconds=300).version == version + 1
    assert table.keys() == [0, 2, 4]


@pytest.mark.full
def test_a_compaction_uses_the_gate_despite_auto_compaction(
    table: MaintainedTable, eventually: Callable[..., None]
) -> None:
    table.create({"a": 3})
    setting = "spark.databricks.delta.autoCompact.enabled"
    table.spark.conf.set(setting, "true")
    try:
        with ThreadPoolExecutor(1) as pool:
            with in_another_thread(lambda: table.manager.acquire(table.writer.table)):
                maintenance_run = pool.submit(table.maintain, Action.COMPACT)
                # The compaction writes its file while another thread holds the lock.
                eventually(lambda: len(table.data_files()) == 4, label="the new file")
            report = maintenance_run.result(60)
    finally:
        table.spark.conf.set(setting, "false")
    assert [result.problem for result in report.done] == [None]


@pytest.mark.full
def test_a_lost_race_is_an_error_without_repetition(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.create({"a": 3})
    race(monkeypatch, lambda: table.writer.update({"value": "concat(value, '!')"}))
    with pytest.raises(WriteConflictError, match="another writer has changed"):
        table.writer.optimize(again=False)
    assert table.keys() == [0, 1, 2]


def test_an_invalid_property_is_refused(table: MaintainedTable) -> None:
    table.create({"a": 1})
    for name, value, message, valid_value in (
        ("targetFileSize", "big", "a size such as", "1 MiB"),
        ("auto", "everything", "a list of", "off"),
        ("tagetFileSize", "1 MiB", "valid names are", None),
    ):
        table.set_properties_without_spark(**{f"sluice__maintenance__{name}": value})
        with pytest.raises(TableError, match=message):
            table.measure()
        if valid_value:
            table.set_properties_without_spark(**{f"sluice__maintenance__{name}": valid_value})
    with pytest.raises(TableError, match="there is no Delta table"):
        measure(table.spark, str(table.path / "nothing"))


@pytest.mark.full
def test_the_plan_orders_partitions_by_their_worth(table: MaintainedTable) -> None:
    table.create({"b": 8, "a": 6})
    measurement = table.measure()
    units = plan(measurement.health, measurement.policy, None)
    assert [(unit.action, unit.partitions, unit.worth) for unit in units] == [
        (Action.COMPACT, ({"place": "b"},), 7),
        (Action.COMPACT, ({"place": "a"},), 5),
    ]
    assert plan(measurement.health, Policy(auto=frozenset()), None) == []


@pytest.mark.full
@pytest.mark.parametrize("parallel", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_partitions_are_compacted_in_parallel(
    table: MaintainedTable, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create({"a": 2, "b": 2, "c": 2, "d": 2})
    started_places: list[str] = []
    running_places: list[str] = []
    running_counts: list[int] = []
    all_running = threading.Barrier(parallel)

    @contextmanager
    def count_running(place: str) -> Iterator[None]:
        running_places.append(place)
        started_places.append(place)
        running_counts.append(len(running_places))
        all_running.wait(60)
        try:
            yield
        finally:
            running_places.remove(place)

    wrap_compactions(monkeypatch, count_running)
    report = table.maintain(Action.COMPACT, parallel=parallel)
    assert max(running_counts) == parallel
    assert sorted(started_places) == list("abcd")
    assert [result.problem for result in report.done] == [None] * 4
    assert report.after.total.total.files == 4
    assert table.keys() == list(range(8))
    assert verify_table(table.path).ok


@pytest.mark.full
def test_a_stopped_maintainer_leaves_the_queue(table: MaintainedTable, eventually: Callable[..., None]) -> None:
    table.create({"a": 2, "b": 2, "c": 2})
    assert not table.waiters()
    stops: list[Callable[[], None]] = []

    @contextmanager
    def deferred(stop: Callable[[], None]) -> Iterator[None]:
        stops.append(stop)
        yield

    def run(manager: ZookeeperLockManager) -> MaintenanceReport:
        return table.maintain(Action.COMPACT, manager=manager, deferred=deferred, parallel=2)

    with ZookeeperLockManager(table.manager.settings) as second_manager, ThreadPoolExecutor(1) as pool:
        with in_another_thread(lambda: table.manager.acquire(table.writer.table)):
            stopped_run = pool.submit(run, second_manager)
            eventually(lambda: len(table.waiters()) >= 2, within=60, label="two waiting compactions")
            stops[0]()
            assert isinstance(stopped_run.exception(20), LockCancelledError)
    assert table.version() == 0
    assert not table.waiters()
    assert table.keys() == list(range(6))
