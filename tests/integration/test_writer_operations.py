"""What the writer does besides appending, and what it locks for that."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as OtherTable
from deltalake import QueryBuilder, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from lock_manager import Hold, LockNotHeldError, TableResource, ZookeeperLockManager
from lock_manager.partitions import MAX_PARTITIONS
from sluice.audit.verify import verify_table
from writer_jobs import CommitResult, GuardMissingError, LockedDeltaWriter, TableError, locked
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.commit.lock_target import LockTarget

pytestmark = pytest.mark.spark

OPTIMIZE_BATCH = "spark.databricks.delta.optimize.batchSize"
COMMIT_LOCK = "spark.databricks.delta.commitLock.enabled"

Operation = Callable[[LockedDeltaWriter, SparkSession, Any], CommitResult]


# Six rows, two in each of the partitions y=1, y=2 and y of a null; each in a file of its own.
SIX_ROWS = """
    create table {t} using delta partitioned by (y) as select id, y from (
        select /*+ repartition_by_range(2, odd) */ * from values
        (1, 1, 1), (2, 1, 0), (3, 2, 1), (4, 2, 0), (5, null, 1), (6, null, 0) as rows (id, y, odd)
    )
"""


@pytest.fixture
def table(copy_of: Callable[..., Path]) -> str:
    return str(copy_of(SIX_ROWS))


@pytest.fixture
def writer(spark: SparkSession, manager: ZookeeperLockManager, table: str) -> LockedDeltaWriter:
    return LockedDeltaWriter(spark, manager, table)


def rows_of(table: str) -> list[tuple[Any, ...]]:
    found = QueryBuilder().register("t", OtherTable(table)).execute("select id, y from t").read_all()
    return sorted(zip(found["id"].to_pylist(), found["y"].to_pylist(), strict=True), key=repr)


def locked_parts(table: str) -> list[str]:
    """What the newest commit says of the nodes that it had exclusively, without the table's name."""
    last = max(Path(table, "_delta_log").glob("*.json"))
    stamp = json.loads(last.read_text().splitlines()[0])["commitInfo"]["sluice"]
    key = TableResource.of(table).key
    return [node["key"].removeprefix(key) for node in stamp["nodes"] if node["mode"] == "exclusive"]


class SeenEnoughError(Exception):
    """Ends an operation of which only the lock is looked at."""


def held_for(operation: Callable[[Callable[[Hold], None]], object]) -> list[str]:
    """Return the nodes of the lock under which an operation would begin, without the table's name."""
    nodes: list[str] = []

    def look(hold: Hold) -> None:
        nodes.extend(sorted(hold.tokens))
        raise SeenEnoughError

    with pytest.raises(SeenEnoughError):
        operation(look)
    return [node.removeprefix(nodes[0]) for node in nodes]


def frame(spark: SparkSession, *rows: tuple[int, int]) -> Any:
    values = ", ".join(f"({number}, {part})" for number, part in rows)
    return spark.sql(f"select * from values {values} as rows (id, y)").coalesce(1)


def overwrite_where(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.overwrite(frame(spark, (7, 1)), replace_where="y = 1", lock=lock)


def overwrite_dynamically(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.overwrite(frame(spark, (7, 1)), dynamic=True, lock=lock)


def merge(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    news = frame(spark, (2, 1), (7, 1)).alias("s")
    started = writer.merge(news, "t.id = s.id AND t.y = s.y", alias="t")
    return started.whenMatchedDelete().whenNotMatchedInsertAll().execute(lock=lock)


def delete(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.delete("id < 3 -- the first ones", lock=lock)


def update(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.update({"id": "id + 10"}, "id < 3", lock=lock)


def optimize(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.optimize("y = 1", lock=lock)


def order(writer: LockedDeltaWriter, spark: SparkSession, lock: Any) -> CommitResult:
    return writer.optimize("y = 1", zorder_by=["id"], lock=lock)


OPERATIONS = {
    overwrite_where: [(7, 1)],
    overwrite_dynamically: [(7, 1)],
    merge: [(1, 1), (7, 1)],
    delete: [],
    update: [(11, 1), (12, 1)],
    optimize: [(1, 1), (2, 1)],
}
OTHERS = [(3, 2), (4, 2), (5, None), (6, None)]
# Named partitions take one way for all operations, and each says below that it heeds those that it has found.
NAMED = [
    pytest.param(operation, left, id=operation.__name__, marks=pytest.mark.soak)
    for operation, left in OPERATIONS.items()
]


@pytest.mark.full
@pytest.mark.parametrize(("operation", "left"), [*NAMED, pytest.param(order, [(1, 1), (2, 1)], id="order")])
def test_each_operation_locks_the_partitions_that_are_named(
    spark: SparkSession, writer: LockedDeltaWriter, table: str, operation: Operation, left: Any
) -> None:
    done = operation(writer, spark, [{"y": "01"}])
    assert done.version == 1
    assert rows_of(table) == sorted(left + OTHERS, key=repr)
    assert locked_parts(table) == ["/y=1"]
    assert done.metrics
    assert verify_table(table).problems == ()


@pytest.fixture
def no_commit_lock(spark: SparkSession) -> Iterator[None]:
    """Two writers of one driver are in the way of each other before they come to the guard, on a disk."""
    spark.conf.set(COMMIT_LOCK, "false")
    yield
    spark.conf.unset(COMMIT_LOCK)


@pytest.fixture
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether operations are confined to what they lock by literal predicates."""
    if not request.param:
        monkeypatch.setattr(LockTarget, "predicate", lambda *_: None)
    return request.param


# What names its partition in literals already does not need ours.
NEEDS_THE_PREDICATE = (merge, delete, update)


@pytest.mark.full
@pytest.mark.usefixtures("no_commit_lock")
@pytest.mark.parametrize(
    ("operation", "confined"),
    [
        *((each, True) for each in OPERATIONS if each is not update),
        (merge, False),
        # As the deletion; and that these can fail, too.
        pytest.param(update, True, marks=pytest.mark.soak),
        *(pytest.param(each, False, marks=pytest.mark.soak) for each in NEEDS_THE_PREDICATE if each is not merge),
    ],
    indirect=["confined"],
    ids=lambda value: value.__name__ if callable(value) else "" if value else "without the predicate",
)
def test_each_operation_locks_what_it_touches_and_does_not_conflict_with_writers_of_other_partitions(
    spark: SparkSession,
    table: str,
    zookeeper: Any,
    operation: Operation,
    confined: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another writer commits to its partition between the choice of a version and the put of it.

    Without the literal predicates Delta takes that for a conflict, in most operations, and the work is done again.
    """
    check, other_has_begun = GUARD.check, threading.Event()

    def let_the_other_commit_first(request: str) -> str:
        if not other_has_begun.is_set():
            other_has_begun.set()
            thread = threading.Thread(target=change_the_other_partition)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
        return check(request)

    def change_the_other_partition() -> None:
        with ZookeeperLockManager(zookeeper.hosts, 60) as other:
            rows = frame(spark, (103, 2), (104, 2))
            LockedDeltaWriter(spark, other, table).overwrite(rows, replace_where="y = 2", lock=[{"y": 2}])

    monkeypatch.setattr(GUARD, "check", let_the_other_commit_first)
    with caplog.at_level(logging.WARNING, "writer_jobs"):
        with ZookeeperLockManager(zookeeper.hosts, 60) as manager:
            done = operation(LockedDeltaWriter(spark, manager, table), spark, "partitions")
    assert done.version == 2
    assert done.metrics
    assert locked_parts(table) == ["/y=1"]
    assert verify_table(table).problems == ()
    assert rows_of(table) == sorted([*OPERATIONS[operation], (103, 2), (104, 2), (5, None), (6, None)], key=repr)
    again = [record for record in caplog.records if "writing again" in record.getMessage()]
    assert len(again) == (0 if confined else 1)


@pytest.mark.full
def test_what_matches_more_by_the_time_that_the_lock_is_had_locks_that_too(
    spark: SparkSession, writer: LockedDeltaWriter, zookeeper: Any, table: str, eventually: Callable[..., None]
) -> None:
    done: list[CommitResult] = []
    with ZookeeperLockManager(zookeeper.hosts, 60) as other:
        with locked(spark, table, manager=other):
            thread = threading.Thread(target=lambda: done.append(writer.delete("id < 3", lock="partitions")))
            thread.start()
            eventually(lambda: len(other.queue(table)) == 2, within=60, what="the delete in the queue")
            spark.sql(f"INSERT INTO delta.`{table}` VALUES (0, 2), (0, 9)")
        thread.join(60)
        assert not thread.is_alive()
    assert rows_of(table) == sorted(OTHERS, key=repr)
    assert locked_parts(table) == ["/y=1", "/y=2", "/y=9"]
    assert done[0].metrics["numDeletedRows"] == "4"


def test_the_whole_table_is_overwritten_under_its_own_lock(
    spark: SparkSession, writer: LockedDeltaWriter, table: str
) -> None:
    before = spark.conf.get("spark.sql.sources.partitionOverwriteMode")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        assert writer.overwrite(frame(spark, (9, 1)), txn=("daily", 1)).rows == 1
        assert writer.overwrite(frame(spark, (9, 2)), txn=("daily", 1)).already_committed
    finally:
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", before)
    assert rows_of(table) == [(9, 1)]
    for lock in ("partitions", [{"y": 1}]):
        with pytest.raises(ValueError, match="lock='table' only"):
            writer.overwrite(frame(spark, (9, 1)), lock=lock)
    with pytest.raises(ValueError, match="exclude each other"):
        writer.overwrite(frame(spark, (9, 1)), replace_where="y = 1", dynamic=True)
    with pytest.raises(ValueError, match="use the argument replace_where"):
        writer.overwrite(frame(spark, (9, 1)), options={"replaceWhere": "y = 1"})


def test_a_merge_has_to_say_which_partitions_it_can_match(
    spark: SparkSession, writer: LockedDeltaWriter, table: str
) -> None:
    news = spark.createDataFrame([(2, "1", 1.5)], "id int, y string, half double").alias("s")
    for condition in (
        "t.id = s.id",
        "t.id = s.id OR t.y = s.y",
        "CAST(t.y AS BOOLEAN) = (s.id = 1)",
        "t.y = t.id",
        # Several long integers may be one of these.
        "t.y = s.half",
    ):
        with pytest.raises(TableError, match=r"add t\.y ="):
            writer.merge(news, condition, alias="t").whenMatchedDelete().execute(lock="partitions")
    with pytest.raises(TableError, match="cannot be analyzed"):
        writer.merge(news, "t.id = s.nothing", alias="t").whenMatchedDelete().execute(lock="partitions")
    with pytest.raises(ValueError, match="about all rows"):
        writer.merge(news, "t.y = s.y", alias="t").whenNotMatchedBySourceDelete().execute(lock="partitions")
    said = (col("t.y") == col("s.half").cast("int")) & (col("s.id") == col("t.id"))
    merge_by = writer.merge(news, said, alias="t").whenMatchedDelete()
    assert held_for(lambda look: merge_by.execute(lock="partitions", before_write=look)) == ["", "/y=1"]
    # With the lock on the table nothing need be said.
    merge_all = writer.merge(news, "t.id = s.id + 1", alias="t").whenMatchedDelete()
    assert held_for(lambda look: merge_all.execute(before_write=look)) == [""]


@pytest.mark.full
def test_what_leaves_its_partitions_is_refused(spark: SparkSession, writer: LockedDeltaWriter, table: str) -> None:
    with pytest.raises(LockNotHeldError, match="y=2"):
        writer.update({"y": "2"}, "id = 1", lock="partitions")
    assert writer.update({"y": "2"}, "id = 1", lock=[{"y": 1}, {"y": 2}]).version == 1
    assert rows_of(table) == sorted([(1, 2), (2, 1), *OTHERS], key=repr)


@pytest.mark.soak  # as the update: the guard sees the same commit
def test_a_merge_that_leaves_its_partitions_is_refused(spark: SparkSession, writer: LockedDeltaWriter) -> None:
    news = frame(spark, (9, 2)).alias("s")
    with pytest.raises(LockNotHeldError, match="y=2"):
        writer.merge(news, "t.id = s.id", alias="t").whenNotMatchedInsertAll().execute(lock=[{"y": 1}])


def test_what_changes_nothing_says_so(spark: SparkSession, writer: LockedDeltaWriter, table: str) -> None:
    done = writer.optimize("y = 77", lock="partitions")
    assert (done.version, done.rows, done.already_committed, done.commit_id) == (None, 0, False, None)
    done = writer.optimize("y = 77")
    assert (done.version, done.rows, done.hold_id) == (None, 0, None)
    # Delta makes an empty commit.
    done = writer.update({"id": "0"}, "id = 99", lock="partitions")
    assert (done.version, done.metrics["numUpdatedRows"]) == (1, "0")


def test_a_session_whose_optimize_makes_several_commits_is_refused(
    spark: SparkSession, writer: LockedDeltaWriter, table: str
) -> None:
    spark.conf.set(OPTIMIZE_BATCH, "1g")
    try:
        for operation in (writer.optimize, writer.purge):
            with pytest.raises(ValueError, match="several commits: unset it"):
                operation()
        # It runs no OPTIMIZE.
        assert writer.rewrite(lambda rows: rows.where("id > 1")).version == 1
    finally:
        spark.conf.unset(OPTIMIZE_BATCH)
    assert len(rows_of(table)) == 5


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_what_only_the_guard_can_find_needs_it(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    table: str,
    without_guard: Callable[..., AbstractContextManager[None]],
    mode: str,
) -> None:
    with without_guard(mode), pytest.raises(GuardMissingError, match="use append or overwrite"):
        writer.delete()
    assert rows_of(table) == sorted([(1, 1), (2, 1), *OTHERS], key=repr)


@pytest.mark.full
def test_values_of_all_sorts_are_found_and_named_and_moments_of_the_hour_that_there_is_twice_are_kept_apart(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    odd = f"{tmp_path}/odd"
    rows = [
        (1, "it's 5/6 \\ %", "2013-01-01 12:30:00", True),
        (2, None, "2013-01-02 00:00:00.000001", False),
        (3, "a`b", None, None),
        # Not what Spark would put in its place.
        (4, "${env:HOME}", None, None),
        # In Berlin both are half past two.
        (5, "a`b", "2024-10-27 00:30:00", None),
        (6, "a`b", "2024-10-27 01:30:00", None),
        # In nobody's way.
        (7, "it's 5/6 \\ %", "2013-01-01 12:30:00", False),
    ]
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        with locked(spark, odd, manager=manager):
            made = spark.createDataFrame(rows, "id int, `the-name` string, at string, b boolean")
            made = made.withColumn("at", col("at").cast("timestamp")).coalesce(1)
            made.write.format("delta").partitionBy("the-name", "at", "b").save(odd)
        # Berlin's own clocks change: see test_partition_values.py.
        spark.conf.set("spark.sql.session.timeZone", "+02:00")
        done = LockedDeltaWriter(spark, manager, odd).update({"id": "id + 10"}, "id < 7", lock="partitions")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    # A partition that is not found, or is named by another value than its own, would keep its row.
    assert done.metrics["numUpdatedRows"] == "6"
    assert len(locked_parts(odd)) == 6
    assert verify_table(odd).problems == ()


def test_what_is_named_stays_what_is_changed_though_the_whole_table_is_locked(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    many, numbers = f"{tmp_path}/many", pa.array(range(MAX_PARTITIONS + 3), pa.int32())
    write_deltalake(many, pa.table({"id": numbers, "y": numbers}), partition_by=["y"])
    writer = LockedDeltaWriter(spark, manager, many)
    done = writer.delete(lock=[{"y": number} for number in range(MAX_PARTITIONS + 1)])
    assert locked_parts(many) == [""]
    assert done.version == 1
    assert [row[0] for row in rows_of(many)] == [MAX_PARTITIONS + 1, MAX_PARTITIONS + 2]


def test_partitions_that_delta_makes_up_lock_the_table(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    days = f"{tmp_path}/days"
    with locked(spark, days, manager=manager):
        spark.sql(
            f"CREATE TABLE delta.`{days}` (id INT, at DATE, day DATE GENERATED ALWAYS AS (at)) USING delta "
            "PARTITIONED BY (day)"
        )
    rows = spark.sql("SELECT 2 AS id, DATE'2026-01-01' AS at UNION ALL SELECT 3, DATE'2026-01-02'")
    done = LockedDeltaWriter(spark, manager, days).overwrite(rows, replace_where="id > 0", lock="partitions")
    assert (done.version, done.rows) == (1, 2)
    assert locked_parts(days) == [""]


def test_partitions_of_a_type_without_one_spelling_lock_the_table(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    halves = f"{tmp_path}/halves"
    with locked(spark, halves, manager=manager):
        spark.sql("SELECT 1 AS id, 0.5D AS half").write.format("delta").partitionBy("half").save(halves)
    writer = LockedDeltaWriter(spark, manager, halves)
    assert held_for(lambda look: writer.delete("id = 1", lock="partitions", before_write=look)) == [""]
