"""Overwrite, merge, delete, update and optimize: the partitions that they lock and the rows that they change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import Column
from pyspark.sql.functions import col

from lock_manager import Hold, LockNotHeldError, TableResource, ZookeeperLockManager
from lock_manager.partitions import MAX_PARTITIONS
from sluice.audit.verify import verify_table
from tests.support.at_the_gate import TableAtTheGate, commit_info
from tests.support.spark_settings import spark_settings
from writer_jobs import CommitResult, GuardMissingError, LockedDeltaWriter, TableError, locked
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.commit.lock_target import LockTarget
from writer_jobs.commit.options import LockDuring

pytestmark = pytest.mark.spark

COMMIT_LOCK = "spark.databricks.delta.commitLock.enabled"

# A table of six rows: two rows in each of the partitions y=1, y=2 and y=null, and each row in its own file.
SIX_ROWS = """
    create table {t} using delta partitioned by (y) as select id, y from (
        select /*+ repartition_by_range(2, odd) */ * from values
        (1, 1, 1), (2, 1, 0), (3, 2, 1), (4, 2, 0), (5, null, 1), (6, null, 0) as rows (id, y, odd)
    )
"""
ROWS_AFTER = {
    "overwrite_where": [(7, 1)],
    "overwrite_dynamically": [(7, 1)],
    "merge": [(1, 1), (7, 1)],
    "merge_by_source": [(2, 1), (7, 1), (11, 1)],
    "delete": [],
    "update": [(11, 1), (12, 1)],
    "optimize": [(1, 1), (2, 1)],
}
"""Rows of partition y=1 after each operation."""
OTHER_ROWS = [(3, 2), (4, 2), (5, None), (6, None)]


class LockSeenError(Exception):
    """Ends an operation when its lock is known."""


@dataclass
class Table(TableAtTheGate):
    """A table with the columns ``id`` and ``y``, partitioned by ``y``, or a path without a table."""

    def rows(self) -> list[tuple[Any, ...]]:
        return self.values("id", "y")

    def frame(self, *rows: tuple[int, int]) -> Any:
        values = ", ".join(f"({number}, {part})" for number, part in rows)
        return self.spark.sql(f"select * from values {values} as rows (id, y)").coalesce(1)

    def run(self, operation: str, lock: Any, manager: ZookeeperLockManager | None = None) -> CommitResult:
        """Run an operation on rows of partition y=1."""
        writer = LockedDeltaWriter(self.spark, manager or self.manager, str(self.path))
        match operation:
            case "overwrite_where":
                return writer.overwrite(self.frame((7, 1)), replace_where="y = 1", lock=lock)
            case "overwrite_dynamically":
                return writer.overwrite(self.frame((7, 1)), dynamic=True, lock=lock)
            case "delete":
                return writer.delete("id < 3 -- the first ones", lock=lock)
            case "update":
                return writer.update({"id": "id + 10"}, "id < 3", lock=lock)
            case "optimize" | "order":
                return writer.optimize("y = 1", zorder_by=["id"] if operation == "order" else (), lock=lock)
        merge = writer.merge(self.frame((2, 1), (7, 1)).alias("s"), "t.id = s.id AND t.y = s.y", alias="t")
        merge.whenNotMatchedInsertAll()
        if operation == "merge_by_source":
            merge.whenMatchedUpdateAll().whenNotMatchedBySourceUpdate("t.y = 1 -- all", {"id": "id + 10"})
        else:
            merge.whenMatchedDelete()
        result: CommitResult = merge.execute(lock=lock)
        return result

    def exclusive_nodes(self) -> list[str]:
        """Return the nodes that the newest commit held exclusively, relative to the table's node."""
        newest_file = max(self.path.glob("_delta_log/*.json"))
        nodes = commit_info(self.path, int(newest_file.stem))["sluice"]["nodes"]
        key = TableResource.of(str(self.path)).key
        return [node["key"].removeprefix(key) for node in nodes if node["mode"] == "exclusive"]


def nodes_held_for(operation: Callable[[Callable[[Hold], None]], object]) -> list[str]:
    """Return the nodes of the lock under which an operation begins, relative to the table's node."""
    nodes: list[str] = []

    def record_and_stop(hold: Hold) -> None:
        nodes.extend(sorted(hold.tokens))
        raise LockSeenError

    with pytest.raises(LockSeenError):
        operation(record_and_stop)
    return [node.removeprefix(nodes[0]) for node in nodes]


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table.create(request, SIX_ROWS)


@pytest.fixture
def new_table(request: pytest.FixtureRequest) -> Table:
    return Table.create(request)


# With named partitions all operations take the same code path. Other tests cover the partitions that operations find.
OPERATION_PARAMETERS = [pytest.param(operation, marks=pytest.mark.soak) for operation in ROWS_AFTER]


@pytest.mark.full
@pytest.mark.parametrize("operation", [*OPERATION_PARAMETERS, "order"])
def test_each_operation_locks_the_named_partitions(table: Table, operation: str) -> None:
    result = table.run(operation, [{"y": "01"}])
    assert result.version == 1
    assert table.rows() == sorted(ROWS_AFTER.get(operation, [(1, 1), (2, 1)]) + OTHER_ROWS)
    assert table.exclusive_nodes() == ["/y=1"]
    assert result.metrics
    assert verify_table(str(table.path)).problems == ()


@pytest.mark.full
@pytest.mark.parametrize(
    ("operation", "is_confined"),
    [
        *((operation, True) for operation in ROWS_AFTER if operation != "update"),
        ("merge", False),
        # The update takes the code path of the delete. The two other controls take the code path of the merge.
        pytest.param("update", True, marks=pytest.mark.soak),
        *(pytest.param(operation, False, marks=pytest.mark.soak) for operation in ("delete", "update")),
    ],
    ids=lambda value: {True: "confined", False: "negative control"}.get(value, value),
)
def test_writers_of_different_partitions_do_not_conflict(
    table: Table,
    zookeeper: Any,
    operation: str,
    *,
    is_confined: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second writer commits to its partition between the first writer's choice of a version and its PUT.

    Operations add literal predicates for the partitions that they lock. Without them Delta finds a conflict in merge,
    delete and update, and the operation is repeated.
    """
    if not is_confined:
        monkeypatch.setattr(LockTarget, "predicate", lambda *_: None)
    check, second_writer_started = GUARD.check, threading.Event()

    def commit_second_writer_and_check(request: str) -> str:
        if not second_writer_started.is_set():
            second_writer_started.set()
            thread = threading.Thread(target=change_second_partition)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
        return check(request)

    def change_second_partition() -> None:
        with ZookeeperLockManager(zookeeper.hosts, 60) as manager:
            rows = table.frame((103, 2), (104, 2))
            writer = LockedDeltaWriter(table.spark, manager, str(table.path))
            writer.overwrite(rows, replace_where="y = 2", lock=[{"y": 2}])

    monkeypatch.setattr(GUARD, "check", commit_second_writer_and_check)
    # Delta's own commit lock would block the second writer of this driver.
    with spark_settings(table.spark.conf, {COMMIT_LOCK: "false"}), caplog.at_level(logging.WARNING, "writer_jobs"):
        with ZookeeperLockManager(zookeeper.hosts, 60) as manager:
            result = table.run(operation, "partitions", manager)
    assert result.version == 2
    assert result.metrics
    assert table.exclusive_nodes() == ["/y=1"]
    assert verify_table(str(table.path)).problems == ()
    assert table.rows() == sorted([*ROWS_AFTER[operation], (103, 2), (104, 2), (5, None), (6, None)])
    repetitions = [record for record in caplog.records if "writing again" in record.getMessage()]
    assert len(repetitions) == (0 if is_confined else 1)


@pytest.mark.full
def test_partitions_that_match_later_are_locked_too(table: Table) -> None:
    with table.waiting_write(lambda: table.writer.delete("id < 3", lock="partitions")) as running_write:
        table.sql("INSERT INTO {t} VALUES (0, 2), (0, 9)")
    assert table.rows() == OTHER_ROWS
    assert table.exclusive_nodes() == ["/y=1", "/y=2", "/y=9"]
    assert running_write.result().metrics["numDeletedRows"] == "4"


def test_an_overwrite_of_the_whole_table_needs_the_table_lock(table: Table) -> None:
    overwrite, frame = table.writer.overwrite, table.frame
    with spark_settings(table.spark.conf, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        assert overwrite(frame((9, 1)), txn=("daily", 1)).rows == 1
        assert overwrite(frame((9, 2)), txn=("daily", 1)).already_committed
    assert table.rows() == [(9, 1)]
    for lock in ("partitions", [{"y": 1}]):
        with pytest.raises(ValueError, match="needs lock='table'"):
            overwrite(frame((9, 1)), lock=lock)
    with pytest.raises(ValueError, match="exclude each other"):
        overwrite(frame((9, 1)), replace_where="y = 1", dynamic=True)
    with pytest.raises(ValueError, match="use the argument replace_where"):
        overwrite(frame((9, 1)), options={"replaceWhere": "y = 1"})


def test_a_merge_that_locks_partitions_needs_a_condition_on_them(table: Table) -> None:
    source = table.spark.createDataFrame([(2, "1", 1.5)], "id int, y string, half double").alias("s")

    def merge(condition: Any) -> Any:
        return table.writer.merge(source, condition, alias="t")

    for condition in (
        "t.id = s.id",
        "t.id = s.id OR t.y = s.y",
        "CAST(t.y AS BOOLEAN) = (s.id = 1)",
        "t.y = t.id",
        # Refused for any integer, because several long integers can equal one double.
        "t.y = s.half",
    ):
        with pytest.raises(TableError, match=r"add t\.y ="):
            merge(condition).whenMatchedDelete().execute(lock="partitions")
    with pytest.raises(TableError, match="cannot be analyzed"):
        merge("t.id = s.nothing").whenMatchedDelete().execute(lock="partitions")
    merge_by_partition = merge((col("t.y") == col("s.half").cast("int")) & (col("s.id") == col("t.id")))
    delete_matches = merge_by_partition.whenMatchedDelete().execute
    assert nodes_held_for(lambda stop: delete_matches(lock="partitions", before_write=stop)) == ["", "/y=1"]
    # With the lock on the table any condition is allowed.
    delete_all_matches = merge("t.id = s.id + 1").whenMatchedDelete().execute
    assert nodes_held_for(lambda stop: delete_all_matches(before_write=stop)) == [""]


def sync(table: Table, *, vectors: bool = False) -> Callable[..., CommitResult]:
    """Return the execution of a merge that replaces row 2 by row 7, if both are in its partitions."""
    if vectors:
        table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    merge = table.writer.merge(table.frame((1, 1), (7, 1)).alias("s"), "t.id = s.id AND t.y = s.y", alias="t")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().whenNotMatchedBySourceDelete()
    execute: Callable[..., CommitResult] = merge.execute
    return execute


@pytest.mark.parametrize("vectors", [False, pytest.param(True, marks=pytest.mark.full)], ids=["files", "vectors"])
def test_unmatched_rows_are_changed_in_the_listed_partitions_only(table: Table, *, vectors: bool) -> None:
    execute = sync(table, vectors=vectors)
    result = execute(lock=[{"y": 1}])
    assert table.rows() == sorted([(1, 1), (7, 1), *OTHER_ROWS])
    assert table.exclusive_nodes() == ["/y=1"]
    assert (result.metrics["numTargetRowsDeleted"], result.metrics["numTargetRowsUpdated"]) == ("1", "1")
    execute(lock=[{"y": 1}, {"y": None}], lock_during="commit")
    assert table.rows() == [(1, 1), (3, 2), (4, 2), (7, 1)]
    execute()
    assert table.rows() == [(1, 1), (7, 1)]
    assert verify_table(str(table.path)).problems == ()


@pytest.mark.parametrize("vectors", [False, pytest.param(True, marks=pytest.mark.full)], ids=["files", "vectors"])
def test_negative_control_delta_reads_all_partitions_for_unmatched_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, vectors: bool
) -> None:
    execute = sync(table, vectors=vectors)
    monkeypatch.setattr("writer_jobs.commit.merge.confined", lambda *_: nullcontext())
    with pytest.raises(LockNotHeldError, match="y="):
        execute(lock=[{"y": 1}])
    assert table.rows() == sorted([(1, 1), (2, 1), *OTHER_ROWS])


def test_a_merge_locks_the_partitions_of_the_unmatched_rows_that_it_changes(table: Table) -> None:
    def nodes_of(condition: str | Column | None) -> list[str]:
        merge = table.writer.merge(table.frame((2, 1)).alias("s"), "t.y = s.y AND t.id = s.id", alias="t")
        merge.whenMatchedDelete().whenNotMatchedBySourceDelete(condition)
        return nodes_held_for(lambda stop: merge.execute(lock="partitions", before_write=stop))

    assert nodes_of(col("t.id") == 3) == ["", "/y=1", "/y=2"]
    assert nodes_of("t.id = 3 OR t.y IS NULL") == ["", "/y=1", "/y=2", "/y=__HIVE_DEFAULT_PARTITION__"]
    assert nodes_of("t.id = 77") == ["", "/y=1"]
    assert nodes_of(None) == [""]


@pytest.mark.parametrize(
    "lock", ["block", pytest.param("write", marks=pytest.mark.full), pytest.param("commit", marks=pytest.mark.full)]
)
def test_a_merge_adds_no_rows_outside_the_listed_partitions_under_a_wider_lock(
    table: Table, manager: ZookeeperLockManager, lock: Literal["block", "write", "commit"]
) -> None:
    """A row whose match lies outside the list does not match, so Delta would add it to the table again.

    The lock is wider than the list in a block that holds the table, and if there are too many partitions to lock.
    """
    merge = table.writer.merge(table.frame((3, 2), (7, 1)).alias("s"), "t.id = s.id", alias="t")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll()
    with locked(table.spark, str(table.path), manager=manager) if lock == "block" else nullcontext():
        partitions = [1] if lock == "block" else [1, *range(10, 10 + MAX_PARTITIONS)]
        lists = [[{"y": value} for value in values] for values in (partitions, [*partitions, 2])]
        during: LockDuring = "commit" if lock == "commit" else "write"
        with pytest.raises(LockNotHeldError, match=r"touches y=2, but its write is confined to .* \[y=1"):
            merge.execute(lock=lists[0], lock_during=during)
        assert table.rows() == sorted([(1, 1), (2, 1), *OTHER_ROWS])
        assert merge.execute(lock=lists[1], lock_during=during).version == 1
    assert table.rows() == sorted([(1, 1), (2, 1), (7, 1), *OTHER_ROWS])


@pytest.mark.full
def test_unmatched_rows_of_padded_partitions_need_the_lock_on_the_table(new_table: Table) -> None:
    new_table.sql("CREATE TABLE {t} (id INT, y CHAR(3)) USING DELTA PARTITIONED BY (y)")
    source = new_table.spark.createDataFrame([(1, "a")], "id int, y string").alias("s")
    merge = new_table.writer.merge(source, "t.id = s.id AND t.y = s.y", alias="t").whenNotMatchedInsertAll()
    merge.whenNotMatchedBySourceDelete("t.y = 'b'")
    with pytest.raises(TableError, match="CHAR or VARCHAR: whenNotMatchedBySource needs lock='table'"):
        merge.execute(lock=[{"y": "a"}])
    assert nodes_held_for(lambda stop: merge.execute(lock="partitions", before_write=stop)) == [""]


@pytest.mark.full
def test_an_update_into_an_unlocked_partition_is_refused(table: Table) -> None:
    with pytest.raises(LockNotHeldError, match="y=2"):
        table.writer.update({"y": "2"}, "id = 1", lock="partitions")
    assert table.writer.update({"y": "2"}, "id = 1", lock=[{"y": 1}, {"y": 2}]).version == 1
    assert table.rows() == sorted([(1, 2), (2, 1), *OTHER_ROWS])


@pytest.mark.soak  # the guard sees the same commit as for the update
def test_a_merge_into_an_unlocked_partition_is_refused(table: Table) -> None:
    merge = table.writer.merge(table.frame((9, 2)).alias("s"), "t.id = s.id", alias="t")
    with pytest.raises(LockNotHeldError, match="y=2"):
        merge.whenNotMatchedInsertAll().execute(lock=[{"y": 1}])


def test_an_operation_without_a_commit_has_no_version(table: Table) -> None:
    result = table.writer.optimize("y = 77", lock="partitions")
    assert (result.version, result.rows, result.already_committed, result.commit_id) == (None, 0, False, None)
    result = table.writer.optimize("y = 77")
    assert (result.version, result.rows, result.hold_id) == (None, 0, None)
    # For an update that matches no row Delta makes a commit without changes.
    result = table.writer.update({"id": "0"}, "id = 99", lock="partitions")
    assert (result.version, result.metrics["numUpdatedRows"]) == (1, "0")


def test_an_optimize_that_makes_several_commits_is_refused(table: Table) -> None:
    with spark_settings(table.spark.conf, {"spark.databricks.delta.optimize.batchSize": "1g"}):
        for operation in (table.writer.optimize, table.writer.purge):
            with pytest.raises(ValueError, match="several commits: unset it"):
                operation()
        # A rewrite runs no OPTIMIZE.
        assert table.writer.rewrite(lambda rows: rows.where("id > 1")).version == 1
    assert len(table.rows()) == 5


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_a_delete_needs_the_guard(
    table: Table, without_guard: Callable[..., AbstractContextManager[None]], mode: str
) -> None:
    with without_guard(mode), pytest.raises(GuardMissingError, match="use append or overwrite"):
        table.writer.delete()
    assert table.rows() == [(1, 1), (2, 1), *OTHER_ROWS]


@pytest.mark.full
def test_partitions_with_special_values_are_found_and_locked(new_table: Table) -> None:
    rows = [
        (1, "it's 5/6 \\ %", "2013-01-01 12:30:00", True),
        (2, None, "2013-01-02 00:00:00.000001", False),
        (3, "a`b", None, None),
        # Spark must not substitute the variable.
        (4, "${env:HOME}", None, None),
        # Both are half past two in Berlin, in the hour that is repeated when summer time ends.
        (5, "a`b", "2024-10-27 00:30:00", None),
        (6, "a`b", "2024-10-27 01:30:00", None),
        # A row that the update does not match.
        (7, "it's 5/6 \\ %", "2013-01-01 12:30:00", False),
    ]
    session_conf = new_table.spark.conf
    with spark_settings(session_conf, {"spark.sql.session.timeZone": "UTC"}), new_table.locked():
        frame = new_table.spark.createDataFrame(rows, "id int, `the-name` string, at string, b boolean")
        frame = frame.withColumn("at", col("at").cast("timestamp")).coalesce(1)
        frame.write.format("delta").partitionBy("the-name", "at", "b").save(str(new_table.path))
    # test_partition_values.py tests the time zone of Berlin.
    with spark_settings(session_conf, {"spark.sql.session.timeZone": "+02:00"}):
        result = new_table.writer.update({"id": "id + 10"}, "id < 7", lock="partitions")
    # A row of a partition that is not found, or is named by a wrong value, would not be updated.
    assert result.metrics["numUpdatedRows"] == "6"
    assert len(new_table.exclusive_nodes()) == 6
    assert verify_table(str(new_table.path)).problems == ()


def test_too_many_named_partitions_lock_the_table(new_table: Table) -> None:
    """The operation still changes rows of the named partitions only."""
    numbers = pa.array(range(MAX_PARTITIONS + 3), pa.int32())
    write_deltalake(new_table.path, pa.table({"id": numbers, "y": numbers}), partition_by=["y"])
    result = new_table.writer.delete(lock=[{"y": number} for number in range(MAX_PARTITIONS + 1)])
    assert new_table.exclusive_nodes() == [""]
    assert result.version == 1
    assert new_table.ids() == [MAX_PARTITIONS + 1, MAX_PARTITIONS + 2]


def test_partitions_of_a_generated_column_lock_the_table(new_table: Table) -> None:
    new_table.sql(
        "CREATE TABLE {t} (id INT, at DATE, day DATE GENERATED ALWAYS AS (at)) USING delta PARTITIONED BY (day)"
    )
    rows = new_table.spark.sql("SELECT 2 AS id, DATE'2026-01-01' AS at UNION ALL SELECT 3, DATE'2026-01-02'")
    result = new_table.writer.overwrite(rows, replace_where="id > 0", lock="partitions")
    assert (result.version, result.rows) == (1, 2)
    assert new_table.exclusive_nodes() == [""]


def test_replacing_a_partition_after_the_year_9999_locks_the_table(new_table: Table) -> None:
    with spark_settings(new_table.spark.conf, {"spark.sql.session.timeZone": "UTC"}):
        new_table.sql(
            "CREATE TABLE {t} USING delta PARTITIONED BY (at) AS SELECT 1 AS id, TIMESTAMP'+10000-01-01 08:00:00' AS at"
        )
        rows = new_table.spark.sql("SELECT 2 AS id, TIMESTAMP'2026-01-01 08:00:00' AS at")
        new_table.writer.overwrite(rows, replace_where="id > 0", lock="partitions")
    assert new_table.exclusive_nodes() == [""]
    # With a lock on the new row's partition only, the old row would stay.
    stored_rows = new_table.spark.read.format("delta").load(str(new_table.path))
    assert [row.id for row in stored_rows.select("id").collect()] == [2]


def test_partitions_of_floating_point_values_lock_the_table(new_table: Table) -> None:
    new_table.sql("CREATE TABLE {t} USING delta PARTITIONED BY (half) AS SELECT 1 AS id, 0.5D AS half")
    delete = new_table.writer.delete
    assert nodes_held_for(lambda stop: delete("id = 1", lock="partitions", before_write=stop)) == [""]
