"""Partition locks and the guard: a commit may change files of the locked partitions only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import LockNotHeldError, LockOrderError, ResourceError, TableResource, ZookeeperLockManager
from sluice.audit.verify import verify_table
from tests.support.lock_znodes import LockZnodes
from tests.support.new_thread import in_new_thread
from writer_jobs import DeltaTableLog, LockedDeltaWriter, TableError, locked, locked_all

pytestmark = pytest.mark.spark

# A row in each of four partitions, one of them with a null.
FOUR_ROWS = """
    create table {t} using delta partitioned by (y, m) as
    select * from values (1, 2013, 1), (2, 2013, 2), (3, 2014, 1), (4, 2014, null) as rows (id, y, m)
"""
REPARTITION = "CREATE OR REPLACE TABLE {} USING delta PARTITIONED BY (m) AS SELECT 1 AS id, 1 AS m"


@dataclass
class Table:
    """A table and its lock."""

    spark: SparkSession
    manager: ZookeeperLockManager
    path: str

    @property
    def key(self) -> str:
        return TableResource.of(self.path).key

    def locked(self, *partitions: dict[str, Any]) -> AbstractContextManager[Any]:
        """Lock these partitions, or the whole table if none is given."""
        return locked(self.spark, self.path, partitions=list(partitions) or None, manager=self.manager)

    def sql(self, statement: str) -> None:
        """Run a statement; ``{}`` stands for the table."""
        self.spark.sql(statement.format(f"delta.`{self.path}`"))

    def ids(self) -> list[int]:
        rows = QueryBuilder().register("t", DeltaTable(self.path)).execute("select id from t").read_all()
        return sorted(rows.column("id").to_pylist())

    def last_commit(self) -> dict[str, Any]:
        """Return the ``commitInfo`` of the newest version."""
        version_file = max(Path(self.path, "_delta_log").glob("*.json"))
        commit_info: dict[str, Any] = json.loads(version_file.read_text().splitlines()[0])["commitInfo"]
        return commit_info


@pytest.fixture
def new_table(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Table:
    """A table that does not exist yet."""
    return Table(spark, manager, str(tmp_path / "new"))


@pytest.fixture
def table(new_table: Table, copy_of: Callable[..., Path]) -> Table:
    return replace(new_table, path=str(copy_of(FOUR_ROWS)))


def test_a_commit_inside_its_partitions_is_stamped_with_them(table: Table) -> None:
    with table.locked({"y": "2013", "m": "01"}) as hold:
        table.sql("INSERT INTO {} VALUES (10, 2013, 1)")
        table.sql("DELETE FROM {} WHERE y = 2013 AND m = 1 AND id = 1")
    assert table.last_commit()["sluice"]["nodes"] == [
        {"key": table.key, "mode": "shared", "token": hold.tokens[table.key]},
        {"key": f"{table.key}/y=2013", "mode": "shared", "token": hold.token},
        {"key": f"{table.key}/y=2013/m=1", "mode": "exclusive", "token": hold.token},
    ]
    with table.locked({"y": 2014, "m": None}, {"y": 2015}):
        table.sql("INSERT INTO {} VALUES (11, 2014, NULL), (12, 2015, 7), (13, 2015, NULL)")
    assert table.ids() == [2, 3, 4, 10, 11, 12, 13]
    assert verify_table(table.path).problems == ()


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "outside_change"),
    [
        ("INSERT INTO {} VALUES (10, 2013, 1), (11, 2014, 1)", "y=2014/m=1"),
        ("INSERT INTO {} VALUES (10, 2013, NULL)", "y=2013/m=__HIVE_DEFAULT_PARTITION__"),
        ("DELETE FROM {} WHERE id = 3", "y=2014/m=1"),
        # To the guard this UPDATE equals the first INSERT above.
        # test_writer_operations.py tests a refused UPDATE of a writer.
        pytest.param("UPDATE {} SET m = 2 WHERE y = 2013 AND m = 1", "y=2013/m=2", marks=pytest.mark.soak),
        ("ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')", "metaData"),
        pytest.param("ALTER TABLE {} ADD COLUMNS (more STRING)", "metaData", marks=pytest.mark.soak),
    ],
)
def test_a_refusal_names_the_changes_outside_the_partitions(table: Table, statement: str, outside_change: str) -> None:
    commit = table.last_commit()
    with table.locked({"y": 2013, "m": 1}), pytest.raises(LockNotHeldError) as refused:
        table.sql(statement)
    assert outside_change in str(refused.value)
    assert table.last_commit() == commit
    assert table.ids() == [1, 2, 3, 4]


def test_disjoint_partitions_are_written_at_the_same_time(table: Table) -> None:
    holding = threading.Barrier(2, timeout=60)

    def write(year: int) -> None:
        with table.locked({"y": year}):
            holding.wait()  # Both threads hold their partition.
            for number in range(2):
                table.sql(f"INSERT INTO {{}} VALUES ({10 * year + number}, {year}, {number})")

    for writing in [in_new_thread(write, year) for year in (2013, 2014)]:
        writing.result()
    assert table.ids() == [1, 2, 3, 4, 20130, 20131, 20140, 20141]
    assert verify_table(table.path).problems == ()


def test_a_nested_block_has_the_same_hold(table: Table, ensemble_client: KazooClient) -> None:
    with table.locked() as outer:
        with table.locked({"y": 2013}) as inner:
            assert inner is outer
            table.sql("INSERT INTO {} VALUES (10, 2013, 1)")
        table.sql("INSERT INTO {} VALUES (11, 2014, 1)")
    assert table.ids() == [1, 2, 3, 4, 10, 11]
    assert LockZnodes(ensemble_client, table.path).intents() == {}


def test_a_table_lock_inside_a_partition_lock_is_refused(table: Table) -> None:
    with table.locked({"y": 2013}), pytest.raises(LockOrderError, match="at once"):
        table.locked().__enter__()


def test_several_tables_are_written_under_one_hold(table: Table, new_table: Table) -> None:
    with locked_all(table.spark, {new_table.path: None, table.path: [{"y": 2013}]}, manager=table.manager) as hold:
        table.spark.range(1).coalesce(1).write.format("delta").save(new_table.path)
        table.sql("INSERT INTO {} VALUES (20, 2013, 1)")
        with pytest.raises(LockNotHeldError, match="y=2014"):
            table.sql("INSERT INTO {} VALUES (11, 2014, 1)")
    assert table.ids() == [1, 2, 3, 4, 20]
    assert {written.last_commit()["sluice"]["hold"] for written in (table, new_table)} == {hold.hold_id}


@pytest.mark.full
def test_column_mapping_and_row_tracking_are_supported(new_table: Table) -> None:
    with new_table.locked():
        new_table.sql(
            "CREATE TABLE {} (id INT, day DATE) USING delta PARTITIONED BY (day) TBLPROPERTIES ("
            "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true')"
        )
    with new_table.locked({"day": "2013-01-02"}):
        new_table.sql("INSERT INTO {} VALUES (1, DATE'2013-01-02')")
        with pytest.raises(LockNotHeldError, match="2013-01-03"):
            new_table.sql("INSERT INTO {} VALUES (1, DATE'2013-01-03')")
    assert new_table.last_commit()["operationMetrics"]["numOutputRows"] == "1"
    assert len(list(Path(new_table.path).glob("_delta_log/*.json"))) == 2


def test_identity_columns_need_the_table_lock(new_table: Table) -> None:
    insert = "INSERT INTO {} (y) VALUES (1)"
    with new_table.locked():
        new_table.sql("CREATE TABLE {} (id BIGINT GENERATED ALWAYS AS IDENTITY, y INT) USING delta PARTITIONED BY (y)")
    with new_table.locked({"y": 1}), pytest.raises(LockNotHeldError, match="metaData"):
        new_table.sql(insert)
    with new_table.locked():
        new_table.sql(insert)


def test_the_writer_locks_the_partitions_of_its_rows(table: Table) -> None:
    writer = LockedDeltaWriter(table.spark, table.manager, table.path)
    rows = table.spark.sql("select * from values (5, 2013, 1), (6, 2014, null) as rows (id, y, m)").coalesce(1)
    writer.append(rows, lock="partitions")
    exclusive = {node["key"] for node in table.last_commit()["sluice"]["nodes"] if node["mode"] == "exclusive"}
    assert exclusive == {f"{table.key}/y=2013/m=1", f"{table.key}/y=2014/m=__HIVE_DEFAULT_PARTITION__"}
    with pytest.raises(LockNotHeldError, match="y=2014"):
        writer.append(rows, lock=[{"y": 2013}])
    assert table.ids() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="choose 'table'"):
        writer.append(rows, lock="rows")  # type: ignore[arg-type]


def test_a_table_without_partitions_is_locked_as_a_whole(new_table: Table) -> None:
    writer = LockedDeltaWriter(new_table.spark, new_table.manager, new_table.path)
    for _ in range(2):
        writer.append(new_table.spark.range(1).coalesce(1), lock="partitions")
        assert [node["mode"] for node in new_table.last_commit()["sluice"]["nodes"]] == ["exclusive"]


def test_partitions_that_cannot_be_locked_are_reported(
    table: Table, new_table: Table, copy_of: Callable[..., Path]
) -> None:
    unpartitioned = replace(table, path=str(copy_of("create table {t} (id bigint) using delta", to="plain")))
    for locked_table, partition, error, message in (
        (unpartitioned, {"id": 1}, TableError, "is not partitioned"),
        (new_table, {"id": 1}, TableError, "there is no Delta table"),
        (table, {"day": 1}, ResourceError, "partition columns are y, m"),
        (table, {"y": "last"}, ResourceError, "does not fit the"),
    ):
        with pytest.raises(error, match=message):
            locked_table.locked(partition).__enter__()


def test_a_table_repartitioned_during_the_wait_is_not_written(
    table: Table, make_manager: Callable[..., ZookeeperLockManager], eventually: Callable[..., None]
) -> None:
    waiting_table = replace(table, manager=make_manager())

    def enter_block() -> None:
        with waiting_table.locked({"y": 2013}):
            raise AssertionError("the block was entered")

    with table.locked():
        waiting = in_new_thread(enter_block)
        eventually(lambda: len(table.manager.queue(table.path)) == 2)
        table.sql(REPARTITION)
    with pytest.raises(TableError, match="got other partition columns"):
        waiting.result(60)


@pytest.mark.full
def test_partition_columns_are_read_again_after_a_late_put(
    table: Table,
    ensemble_client: KazooClient,
    unguarded_sql: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table.manager.acquire(table.path).release()
    LockZnodes(ensemble_client, table.path).leave_intent(1)
    make_empty_commit = DeltaTableLog.make_empty_commit

    def commit_after_a_late_put(log: DeltaTableLog) -> int:
        # The late PUT arrives just before the empty commit takes its version.
        unguarded_sql(REPARTITION.format(f"delta.`{table.path}`"))
        return make_empty_commit(log)

    monkeypatch.setattr(DeltaTableLog, "make_empty_commit", commit_after_a_late_put)
    with pytest.raises(TableError, match="got other partition columns"):
        with table.locked({"y": 2013}):
            raise AssertionError("the block was entered")
