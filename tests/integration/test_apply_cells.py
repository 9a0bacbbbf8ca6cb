"""``apply_cells``: the table has what HBase shows, whatever is late, repeated or mixed up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import Killed, delivered, end_of_the_process
from tests.support.hbase_model import SCHEMA, Cell, hbase_shows, histories
from writer_jobs import LockedDeltaWriter
from writer_jobs.changes.application import Application, ChangesResult
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping

pytestmark = pytest.mark.spark

SEED = 20
MAPPING = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}]}')


class Feed:
    """Applies cells to one table."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, cells: Iterable[Cell], mapping: HBaseMapping = MAPPING, **how: Any) -> ChangesResult:
        return apply_cells(self.writer, self.spark.createDataFrame(list(cells), SCHEMA), mapping, **how)


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


def shown_by(table: Path) -> dict[str, dict[str, str]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a row is there twice"
    return {
        row["id"]: {name.replace("_", ":"): value for name, value in row.items() if name != "id" and value is not None}
        for row in rows
    }


def test_500_histories_of_cells_in_any_order_show_what_hbase_shows(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = histories(SEED, 500)
    first, second, third = delivered(SEED, cells, 3)
    feed.apply(first)
    assert shown_by(table) == hbase_shows(first)
    with monkeypatch.context() as patch:
        patch.setattr(Application, "_merge", end_of_the_process)
        with pytest.raises(Killed):
            feed.apply(second)
    assert shown_by(table) == hbase_shows(first)
    feed.apply(third)
    # The batch that was killed is undone as a whole.
    assert shown_by(table) == hbase_shows([*first, *third])
    feed.apply(second)
    assert shown_by(table) == hbase_shows(cells)
