"""The table property ``sluice.feed``: a table is fed in one way, and what does not match it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from tests.support.hbase_model import SCHEMA as CELLS
from tests.support.hbase_model import Cell
from writer_jobs import LockedDeltaWriter
from writer_jobs.errors import ChangesError, SchemaMismatchError
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.merge.apply import apply_changes
from writer_jobs.merge.table_feed import FeedBinding, TableFeed

pytestmark = pytest.mark.spark

SCHEMA = "id long, place string, value string, at long, pos long, day timestamp"
DAY = datetime(2026, 1, 2, tzinfo=UTC)
HOW: dict[str, Any] = {"keys": ["id"], "sequence_by": "at"}


def feed_of(table: Path) -> dict[str, Any]:
    text = DeltaTable(table).metadata().configuration.get("sluice.feed", "{}")
    return dict(json.loads(text))


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., Any]:
    """Rows of ``SCHEMA``: ``rows((1, "a", "one", 5))``."""
    return lambda *values: spark.createDataFrame([(*row, row[-1], DAY) for row in values], SCHEMA)


OTHER_FEEDS: list[tuple[dict[str, Any], str]] = [
    ({"keys": ["id", "place"]}, "keys: id in the table, id, place in this run"),
    ({"sequence_by": "pos"}, "sequence: at in the table, pos in this run; sequence column: at in the table, pos"),
    ({"sequence_by": "at + 1"}, "sequence: at in the table, at"),
    ({"except_column_list": ["at"]}, "sequence column: at in the table, __SEQUENCE in this run"),
    ({"stored_as_scd_type": 2}, "SCD type: 1 in the table, 2 in this run"),
    ({"source_tables": ["shop.public.returns"]}, "source tables: shop.public.orders in the table, shop.public.returns"),
    ({"source_tables": ["shop.archive.orders"]}, "source tables: shop.public.orders in the table, shop.archive.orders"),
    ({"source_tables": ["shop.public.orders", "returns"]}, "source tables: shop.public.orders in the table"),
]


def test_a_batch_of_another_feed_is_refused(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    rows: Callable[..., Any],
    table: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    apply_changes(writer, rows((1, "a", "new", 5)), **HOW, source_tables=["shop.public.orders"])
    assert feed_of(table) == {
        "model": "changes", "keys": ["id"], "scd_type": 1, "sequence_by": "at", "sequence_column": "at",
        "source_tables": ["shop.public.orders"],
    }  # fmt: skip
    unchanged = versions(table)
    for arguments, says in OTHER_FEEDS:
        with pytest.raises(ChangesError, match="change the table property") as refused:
            apply_changes(writer, rows((1, "a", "old", 3)), **{**HOW, **arguments}, schema_evolution=True)
        assert says in str(refused.value)
    with pytest.raises(ChangesError, match="model: changes in the table, rows in this run"):
        apply_rows(writer, rows((1, "a", "old", 3)), keys=["id"], event_time="day")
    assert versions(table) == unchanged
    # The same feed in another spelling, and one that does not know its source tables.
    apply_changes(writer, rows((1, "a", "newer", 6)), keys=["ID"], sequence_by="`AT`")
    state = writer.log.state()
    assert state is not None
    feed = TableFeed.parsed(state.feed or "")
    short, full = (replace(feed, source_tables=(name,)) for name in ("orders", "shop.public.orders"))
    assert FeedBinding(spark, writer.table, short).clauses(state) == []
    # A table that was bound to the name without schema gets the full name.
    (clause,) = FeedBinding(spark, writer.table, full).clauses(replace(state, feed=short.text))
    assert '"source_tables": ["shop.public.orders"]' in clause


ADDED = "CREATE TABLE {t} (id LONG, place STRING, value STRING, at LONG, pos LONG, day TIMESTAMP%s) USING delta"
OF_ITS_COLUMNS: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, ""),
    ("", {"stored_as_scd_type": 2, "except_column_list": ["at"]}, "the table keeps no history"),
    ("", {"except_column_list": ["at"]}, "sequence column: at in the table, __SEQUENCE in this run"),
    (", __SEQUENCE LONG", {}, "sequence column: __SEQUENCE in the table, at in this run"),
    (", __SEQUENCE LONG", {"except_column_list": ["at"]}, ""),
    (", __START_AT LONG, __END_AT LONG", {}, "the table keeps history"),
    (", __START_AT LONG, __END_AT LONG", {"stored_as_scd_type": 2, "except_column_list": ["at"]}, ""),
]


@pytest.mark.full
def test_a_table_without_the_property_is_judged_by_its_columns_and_bound(
    spark: SparkSession, manager: ZookeeperLockManager, rows: Callable[..., Any], copy_of: Callable[..., Path]
) -> None:
    for number, (columns, arguments, says) in enumerate(OF_ITS_COLUMNS):
        table = copy_of(ADDED % columns, to=f"table{number}")
        writer = LockedDeltaWriter(spark, manager, str(table))
        if says:
            with pytest.raises(ChangesError, match=says):
                apply_changes(writer, rows((1, "a", "one", 5)), **{**HOW, **arguments})
            assert feed_of(table) == {}
        else:
            apply_changes(writer, rows((1, "a", "one", 5)), **{**HOW, **arguments})
            assert feed_of(table)["keys"] == ["id"]


@pytest.mark.full
def test_rows_and_cells_bind_a_table_too(
    spark: SparkSession, manager: ZookeeperLockManager, rows: Callable[..., Any], tmp_path: Path
) -> None:
    of_rows, of_cells = (LockedDeltaWriter(spark, manager, str(tmp_path / name)) for name in ("rows", "cells"))
    feed: dict[str, Any] = {"keys": ["id"], "event_time": "day", "sequence_by": "at"}
    apply_rows(of_rows, rows((1, "a", "one", 5)), **feed)
    feeds: list[tuple[dict[str, Any], str]] = [
        ({"keys": ["id", "place"]}, "keys: id, day in the table, id, place, day in this run"),
        ({"sequence_by": None}, "sequence: at in the table, not set in this run"),
    ]
    for arguments, says in feeds:
        with pytest.raises(ChangesError, match=says):
            apply_rows(of_rows, rows((1, "a", "two", 6)), **{**feed, **arguments})
    cells = spark.createDataFrame([Cell("a", "d", "x", 1, "Put", "one")], CELLS)
    mapping = '{"row_key": [{"column": "%s", "type": "string"}], "table": "%s"}'
    apply_cells(of_cells, cells, HBaseMapping.parsed(mapping % ("id", "shop.orders")))
    with pytest.raises(ChangesError, match="keys: id in the table, key in this run"):
        apply_cells(of_cells, cells, HBaseMapping.parsed(mapping % ("key", "shop.orders")))
    # HBase has two tables of these names.
    with pytest.raises(ChangesError, match=r"source tables: shop\.orders in the table, orders in this run"):
        apply_cells(of_cells, cells, HBaseMapping.parsed(mapping % ("id", "orders")))
    with pytest.raises(ChangesError, match="model: cells in the table, changes in this run"):
        apply_changes(of_cells, rows((1, "a", "one", 5)), **HOW, column_list=["id"])


def test_columns_that_change_before_the_lock_are_checked_again(
    spark: SparkSession, writer: LockedDeltaWriter, rows: Callable[..., Any], table: Path
) -> None:
    apply_changes(writer, rows((1, "a", "one", 5)), **HOW)

    def replaced_meanwhile(_: object) -> None:
        days = spark.read.format("delta").load(str(table)).withColumn("day", F.to_date("day"))
        days.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(table))

    # Spark would cut the time off.
    with pytest.raises(SchemaMismatchError, match="day: table date, rows timestamp"):
        apply_changes(writer, rows((1, "a", "two", 6)), **HOW, before_write=replaced_meanwhile)


@pytest.mark.full
def test_a_feed_is_changed_on_purpose_under_the_lock(
    spark: SparkSession, writer: LockedDeltaWriter, rows: Callable[..., Any], table: Path, sql: Callable[[str], None]
) -> None:
    apply_changes(writer, rows((1, "a", "one", 5)), **HOW)
    by_position = {"keys": ["id"], "sequence_by": "pos"}

    def removed_meanwhile(_: object) -> None:
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('sluice.feed' = '{{}}')")

    # The property counts that is there under the lock.
    with pytest.raises(ChangesError, match="cannot be read"):
        apply_changes(writer, rows((1, "a", "two", 6)), **HOW, before_write=removed_meanwhile)
    with pytest.raises(ChangesError, match="cannot be read"):
        apply_changes(writer, rows((1, "a", "two", 6)), **by_position)
    sql("ALTER TABLE {table} UNSET TBLPROPERTIES ('sluice.feed')")
    apply_changes(writer, rows((1, "a", "two", 6)), **by_position)
    assert feed_of(table)["sequence_column"] == "pos"
    # A table of several feeds, each with keys of its own.
    sql("ALTER TABLE {table} SET TBLPROPERTIES ('sluice.feed' = 'off')")
    apply_changes(writer, rows((2, "b", "one", 5)), **HOW)
    apply_changes(writer, rows((3, "c", "one", 5)), **by_position)
    assert DeltaTable(table).metadata().configuration["sluice.feed"] == "off"
