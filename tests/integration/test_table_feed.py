"""The table property ``sluice.feed`` binds a table to one feed. Batches of other feeds change nothing."""

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
OPTIONS: dict[str, Any] = {"keys": ["id"], "sequence_by": "at"}


def feed_of(table: Path) -> dict[str, Any]:
    text = DeltaTable(table).metadata().configuration.get("sluice.feed", "{}")
    return dict(json.loads(text))


@pytest.fixture
def rows(spark: SparkSession) -> Callable[..., Any]:
    """Create rows of ``SCHEMA``: ``rows((1, "a", "one", 5))``."""
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
    apply_changes(writer, rows((1, "a", "new", 5)), **OPTIONS, source_tables=["shop.public.orders"])
    assert feed_of(table) == {
        "model": "changes", "keys": ["id"], "scd_type": 1, "sequence_by": "at", "sequence_column": "at",
        "source_tables": ["shop.public.orders"],
    }  # fmt: skip
    earlier_versions = versions(table)
    for options, difference in OTHER_FEEDS:
        with pytest.raises(ChangesError, match="change the table property") as error:
            apply_changes(writer, rows((1, "a", "old", 3)), **{**OPTIONS, **options}, schema_evolution=True)
        assert difference in str(error.value)
    with pytest.raises(ChangesError, match="model: changes in the table, rows in this run"):
        apply_rows(writer, rows((1, "a", "old", 3)), keys=["id"], event_time="day")
    assert versions(table) == earlier_versions
    # The same feed may spell names in another case, and may leave out its source tables.
    apply_changes(writer, rows((1, "a", "newer", 6)), keys=["ID"], sequence_by="`AT`")
    state = writer.log.state()
    assert state is not None
    feed = TableFeed.parsed(state.feed or "")
    short_feed, full_feed = (replace(feed, source_tables=(name,)) for name in ("orders", "shop.public.orders"))
    assert FeedBinding(spark, writer.table, short_feed).clauses(state) == []
    # A table that is bound to a name without a schema gets the full name.
    (clause,) = FeedBinding(spark, writer.table, full_feed).clauses(replace(state, feed=short_feed.text))
    assert '"source_tables": ["shop.public.orders"]' in clause


TABLE = "CREATE TABLE {t} (id LONG, place STRING, value STRING, at LONG, pos LONG, day TIMESTAMP%s) USING delta"
#: Additional columns of an unbound table, options of a feed, and the error.
UNBOUND_TABLES: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, ""),
    ("", {"stored_as_scd_type": 2, "except_column_list": ["at"]}, "the table keeps no history"),
    ("", {"except_column_list": ["at"]}, "sequence column: at in the table, __SEQUENCE in this run"),
    (", __SEQUENCE LONG", {}, "sequence column: __SEQUENCE in the table, at in this run"),
    (", __SEQUENCE LONG", {"except_column_list": ["at"]}, ""),
    (", __START_AT LONG, __END_AT LONG", {}, "the table keeps history"),
    (", __START_AT LONG, __END_AT LONG", {"stored_as_scd_type": 2, "except_column_list": ["at"]}, ""),
]


@pytest.mark.full
def test_an_unbound_table_is_bound_if_its_columns_fit(
    spark: SparkSession, manager: ZookeeperLockManager, rows: Callable[..., Any], copy_of: Callable[..., Path]
) -> None:
    for number, (columns, options, error) in enumerate(UNBOUND_TABLES):
        table = copy_of(TABLE % columns, to=f"table{number}")
        writer = LockedDeltaWriter(spark, manager, str(table))
        if error:
            with pytest.raises(ChangesError, match=error):
                apply_changes(writer, rows((1, "a", "one", 5)), **{**OPTIONS, **options})
            assert feed_of(table) == {}
        else:
            apply_changes(writer, rows((1, "a", "one", 5)), **{**OPTIONS, **options})
            assert feed_of(table)["keys"] == ["id"]


@pytest.mark.full
def test_feeds_of_rows_and_of_cells_bind_a_table(
    spark: SparkSession, manager: ZookeeperLockManager, rows: Callable[..., Any], tmp_path: Path
) -> None:
    row_writer, cell_writer = (LockedDeltaWriter(spark, manager, str(tmp_path / name)) for name in ("rows", "cells"))
    feed: dict[str, Any] = {"keys": ["id"], "event_time": "day", "sequence_by": "at"}
    apply_rows(row_writer, rows((1, "a", "one", 5)), **feed)
    other_feeds: list[tuple[dict[str, Any], str]] = [
        ({"keys": ["id", "place"]}, "keys: id, day in the table, id, place, day in this run"),
        ({"sequence_by": None}, "sequence: at in the table, not set in this run"),
    ]
    for options, difference in other_feeds:
        with pytest.raises(ChangesError, match=difference):
            apply_rows(row_writer, rows((1, "a", "two", 6)), **{**feed, **options})

    def apply(key: str, table: str) -> None:
        mapping = {"row_key": [{"column": key, "type": "string"}], "table": table}
        cells = spark.createDataFrame([Cell("a", "d", "x", 1, "Put", "one")], CELLS)
        apply_cells(cell_writer, cells, HBaseMapping.parsed(json.dumps(mapping)))

    apply("id", "shop.orders")
    with pytest.raises(ChangesError, match="keys: id in the table, key in this run"):
        apply("key", "shop.orders")
    # In HBase, these names belong to two tables.
    with pytest.raises(ChangesError, match=r"source tables: shop\.orders in the table, orders in this run"):
        apply("id", "orders")
    with pytest.raises(ChangesError, match="model: cells in the table, changes in this run"):
        apply_changes(cell_writer, rows((1, "a", "one", 5)), **OPTIONS, column_list=["id"])


def test_columns_are_checked_again_under_the_lock(
    spark: SparkSession, writer: LockedDeltaWriter, rows: Callable[..., Any], table: Path
) -> None:
    apply_changes(writer, rows((1, "a", "one", 5)), **OPTIONS)

    def replace_columns(_: object) -> None:
        days = spark.read.format("delta").load(str(table)).withColumn("day", F.to_date("day"))
        days.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(table))

    # Spark would truncate the time.
    with pytest.raises(SchemaMismatchError, match="day: table date, rows timestamp"):
        apply_changes(writer, rows((1, "a", "two", 6)), **OPTIONS, before_write=replace_columns)


@pytest.mark.full
def test_the_feed_property_is_read_under_the_lock(
    spark: SparkSession, writer: LockedDeltaWriter, rows: Callable[..., Any], table: Path, sql: Callable[[str], None]
) -> None:
    apply_changes(writer, rows((1, "a", "one", 5)), **OPTIONS)
    position_options = {"keys": ["id"], "sequence_by": "pos"}

    def replace_property(_: object) -> None:
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('sluice.feed' = '{{}}')")

    with pytest.raises(ChangesError, match="cannot be read"):
        apply_changes(writer, rows((1, "a", "two", 6)), **OPTIONS, before_write=replace_property)
    with pytest.raises(ChangesError, match="cannot be read"):
        apply_changes(writer, rows((1, "a", "two", 6)), **position_options)
    sql("ALTER TABLE {table} UNSET TBLPROPERTIES ('sluice.feed')")
    apply_changes(writer, rows((1, "a", "two", 6)), **position_options)
    assert feed_of(table)["sequence_column"] == "pos"
    # A table without a binding gets several feeds, each with its own rows.
    sql("ALTER TABLE {table} SET TBLPROPERTIES ('sluice.feed' = 'off')")
    apply_changes(writer, rows((2, "b", "one", 5)), **OPTIONS)
    apply_changes(writer, rows((3, "c", "one", 5)), **position_options)
    assert DeltaTable(table).metadata().configuration["sluice.feed"] == "off"
