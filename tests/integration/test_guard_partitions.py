"""Partition locks and the guard: a commit passes if it touches nothing but what is held."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as OtherTable
from deltalake import QueryBuilder
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import LockNotHeldError, LockOrderError, ResourceError, TableResource, ZookeeperLockManager
from lock_manager.intents import Intent
from lock_manager.zookeeper.znodes import intents_node, table_node
from sluice.audit.verify import verify_table
from writer_jobs import DeltaTableLog, LockedDeltaWriter, TableError, locked, locked_all

pytestmark = pytest.mark.spark


@pytest.fixture
def manager(zookeeper: Any, spark: SparkSession) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(zookeeper.hosts, 60) as made:
        yield made


# A row in each of four partitions, one of them of a null.
FOUR_ROWS = """
    create table {t} using delta partitioned by (y, m) as
    select * from values (1, 2013, 1), (2, 2013, 2), (3, 2014, 1), (4, 2014, null) as rows (id, y, m)
"""
PARTITIONED_ANEW = "CREATE OR REPLACE TABLE {} USING delta PARTITIONED BY (m) AS SELECT 1 AS id, 1 AS m"


@pytest.fixture
def name(copy_of: Callable[..., Path]) -> str:
    return str(copy_of(FOUR_ROWS))


def sql(table: str) -> str:
    return f"delta.`{table}`"


def ids(table: str) -> list[int]:
    found = QueryBuilder().register("t", OtherTable(table)).execute("select id from t").read_all()
    return sorted(found.column("id").to_pylist())


def newest(table: str) -> dict[str, Any]:
    last = max(Path(table, "_delta_log").glob("*.json"))
    found: dict[str, Any] = json.loads(last.read_text().splitlines()[0])["commitInfo"]
    return found


def test_a_commit_inside_its_partitions_passes_and_says_so(
    spark: SparkSession, manager: ZookeeperLockManager, name: str
) -> None:
    with locked(spark, name, partitions=[{"y": "2013", "m": "01"}], manager=manager) as hold:
        spark.sql(f"INSERT INTO {sql(name)} VALUES (10, 2013, 1)")
        spark.sql(f"DELETE FROM {sql(name)} WHERE y = 2013 AND m = 1 AND id = 1")
    key = TableResource.of(name).key
    assert newest(name)["sluice"]["nodes"] == [
        {"key": key, "mode": "shared", "token": hold.tokens[key]},
        {"key": f"{key}/y=2013", "mode": "shared", "token": hold.token},
        {"key": f"{key}/y=2013/m=1", "mode": "exclusive", "token": hold.token},
    ]
    with locked(spark, name, partitions=[{"y": 2014, "m": None}, {"y": 2015}], manager=manager):
        spark.sql(f"INSERT INTO {sql(name)} VALUES (11, 2014, NULL), (12, 2015, 7), (13, 2015, NULL)")
    assert ids(name) == [2, 3, 4, 10, 11, 12, 13]
    assert verify_table(name).problems == ()


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "touched"),
    [
        ("INSERT INTO {} VALUES (10, 2013, 1), (11, 2014, 1)", "y=2014/m=1"),
        ("INSERT INTO {} VALUES (10, 2013, NULL)", "y=2013/m=__HIVE_DEFAULT_PARTITION__"),
        ("DELETE FROM {} WHERE id = 3", "y=2014/m=1"),
        # As the insertion; and test_writer_operations.py has a writer refused that.
        pytest.param("UPDATE {} SET m = 2 WHERE y = 2013 AND m = 1", "y=2013/m=2", marks=pytest.mark.soak),
        ("ALTER TABLE {} SET TBLPROPERTIES ('a' = 'b')", "metaData"),
        pytest.param("ALTER TABLE {} ADD COLUMNS (more STRING)", "metaData", marks=pytest.mark.soak),
    ],
)
def test_a_commit_outside_is_refused_and_says_what_it_touches(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, statement: str, touched: str
) -> None:
    before = newest(name)
    with locked(spark, name, partitions=[{"y": 2013, "m": 1}], manager=manager):
        with pytest.raises(LockNotHeldError) as refused:
            spark.sql(statement.format(sql(name)))
        # What is inside still passes.
        assert touched in str(refused.value)
    assert newest(name) == before
    assert ids(name) == [1, 2, 3, 4]


def test_disjoint_partitions_are_written_side_by_side(
    spark: SparkSession, manager: ZookeeperLockManager, name: str
) -> None:
    inside, errors = threading.Barrier(2, timeout=60), []

    def write(year: int) -> None:
        try:
            with locked(spark, name, partitions=[{"y": year}], manager=manager):
                inside.wait()  # both hold at once
                for turn in range(2):
                    spark.sql(f"INSERT INTO {sql(name)} VALUES ({year + turn}, {year}, {turn})")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(year,)) for year in (2013, 2014)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ids(name) == sorted([1, 2, 3, 4, *range(2013, 2015), *range(2014, 2016)])
    assert verify_table(name).problems == ()


def test_a_block_inside_another_has_the_same_lock(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, ensemble_client: KazooClient
) -> None:
    with locked(spark, name, manager=manager) as outer:
        with locked(spark, name, partitions=[{"y": 2013}], manager=manager) as inner:
            assert inner is outer
            spark.sql(f"INSERT INTO {sql(name)} VALUES (10, 2013, 1)")
        spark.sql(f"INSERT INTO {sql(name)} VALUES (11, 2014, 1)")
    assert ids(name) == [1, 2, 3, 4, 10, 11]
    intents = f"{table_node('/locks/delta_tables', TableResource.of(name))}/intents"
    assert ensemble_client.get_children(intents) == []
    with locked(spark, name, partitions=[{"y": 2013}], manager=manager), pytest.raises(LockOrderError, match="at once"):
        locked(spark, name, manager=manager).__enter__()


def test_several_tables_are_written_under_one_hold(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other")
    with locked_all(spark, {other: None, name: [{"y": 2013}]}, manager=manager) as hold:
        spark.range(1).coalesce(1).write.format("delta").save(other)
        spark.sql(f"INSERT INTO {sql(name)} VALUES (20, 2013, 1)")
        with pytest.raises(LockNotHeldError, match="y=2014"):
            spark.sql(f"INSERT INTO {sql(name)} VALUES (11, 2014, 1)")
    assert ids(name) == [1, 2, 3, 4, 20]
    assert {newest(table)["sluice"]["hold"] for table in (name, other)} == {hold.hold_id}


@pytest.mark.full
def test_column_mapping_and_row_tracking_are_understood(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    table = str(tmp_path / "mapped")
    with locked(spark, table, manager=manager):
        spark.sql(
            f"CREATE TABLE {sql(table)} (id INT, day DATE) USING delta PARTITIONED BY (day) TBLPROPERTIES ("
            "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true')"
        )
    with locked(spark, table, partitions=[{"day": "2013-01-02"}], manager=manager):
        spark.sql(f"INSERT INTO {sql(table)} VALUES (1, DATE'2013-01-02')")
        with pytest.raises(LockNotHeldError, match="2013-01-03"):
            spark.sql(f"INSERT INTO {sql(table)} VALUES (1, DATE'2013-01-03')")
    assert newest(table)["operationMetrics"]["numOutputRows"] == "1"
    assert len(list(Path(table).glob("_delta_log/*.json"))) == 2


def test_identity_columns_need_the_table(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> None:
    table = str(tmp_path / "identity")
    with locked(spark, table, manager=manager):
        spark.sql(
            f"CREATE TABLE {sql(table)} (id BIGINT GENERATED ALWAYS AS IDENTITY, y INT) USING delta PARTITIONED BY (y)"
        )
    with locked(spark, table, partitions=[{"y": 1}], manager=manager):
        with pytest.raises(LockNotHeldError, match="metaData"):
            spark.sql(f"INSERT INTO {sql(table)} (y) VALUES (1)")
    with locked(spark, table, manager=manager):
        spark.sql(f"INSERT INTO {sql(table)} (y) VALUES (1)")


def test_the_writer_locks_the_partitions_that_its_rows_are_in(
    spark: SparkSession, manager: ZookeeperLockManager, name: str
) -> None:
    writer = LockedDeltaWriter(spark, manager, name)
    rows = spark.sql("select * from values (5, '2013', 1), (6, '2014', null) as rows (id, y, m)").coalesce(1)
    writer.append(rows.selectExpr("id", "CAST(y AS INT) AS y", "m"), lock="partitions")
    key = TableResource.of(name).key
    exclusive = {node["key"] for node in newest(name)["sluice"]["nodes"] if node["mode"] == "exclusive"}
    assert exclusive == {f"{key}/y=2013/m=1", f"{key}/y=2014/m=__HIVE_DEFAULT_PARTITION__"}
    with pytest.raises(LockNotHeldError, match="y=2014"):
        writer.append(rows.selectExpr("id", "CAST(y AS INT) AS y", "m"), lock=[{"y": 2013}])
    assert ids(name) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="choose 'table'"):
        writer.append(rows, lock="rows")  # type: ignore[arg-type]


def test_a_table_without_partitions_is_locked_as_a_whole(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    table = str(tmp_path / "plain")
    writer = LockedDeltaWriter(spark, manager, table)
    for _ in range(2):
        writer.append(spark.range(1).coalesce(1), lock="partitions")
        assert [node["mode"] for node in newest(table)["sluice"]["nodes"]] == ["exclusive"]


def test_what_cannot_be_locked_is_said(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, copy_of: Callable[..., Path], tmp_path: Path
) -> None:
    plain = str(copy_of("create table {t} (id bigint) using delta", to="plain"))
    for table, values, error, sentence in (
        (plain, {"id": 1}, TableError, "is not partitioned"),
        (str(tmp_path / "nothing"), {"id": 1}, TableError, "there is no Delta table"),
        (name, {"day": 1}, ResourceError, "those are y, m"),
        (name, {"y": "last"}, ResourceError, "does not fit the"),
    ):
        with pytest.raises(error, match=sentence):
            locked(spark, table, partitions=[values], manager=manager).__enter__()


def test_a_table_that_was_partitioned_anew_while_its_lock_was_waited_for_is_not_written(
    spark: SparkSession, manager: ZookeeperLockManager, zookeeper: Any, name: str, eventually: Any
) -> None:
    raised: list[Exception] = []

    def wait() -> None:
        with ZookeeperLockManager(zookeeper.hosts, 60) as other:
            try:
                with locked(spark, name, partitions=[{"y": 2013}], manager=other):
                    raise AssertionError("the block is not entered")
            except TableError as error:
                raised.append(error)

    waiting = threading.Thread(target=wait)
    with locked(spark, name, manager=manager):
        waiting.start()
        eventually(lambda: len(manager.queue(name)) == 2)
        spark.sql(PARTITIONED_ANEW.format(sql(name)))
    waiting.join(60)
    assert "got other partition columns" in str(*raised)


@pytest.mark.full
def test_partitions_are_looked_at_again_when_something_unfinished_was_settled(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    name: str,
    sql_elsewhere: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Intent(hold_id="0" * 32, version=1, txn="lost", attempt="lost", token=1)
    folder = intents_node(table_node("/locks/delta_tables", TableResource.of(name)))
    manager.acquire(name).release()
    ensemble_client.ensure_path(folder)
    ensemble_client.create(f"{folder}/{left.hold_id}", left.data())
    commit_nothing = DeltaTableLog.commit_nothing

    def too_late(log: DeltaTableLog) -> int:
        # The late put lands, when its version is about to be filled.
        sql_elsewhere(PARTITIONED_ANEW.format(sql(name)))
        return commit_nothing(log)

    monkeypatch.setattr(DeltaTableLog, "commit_nothing", too_late)
    with pytest.raises(TableError, match="got other partition columns"):
        with locked(spark, name, partitions=[{"y": 2013}], manager=manager):
            raise AssertionError("the block is not entered")
