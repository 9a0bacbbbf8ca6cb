"""An append through the gate begins with the snapshot of the driver's last commit, and is as safe as any other write.

``commitInfo.readVersion`` is the version with which a transaction began.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from pyarrow import table as arrow_table
from pyspark.sql import SparkSession

from tests.support.at_the_gate import TableAtTheGate, commit_info
from writer_jobs import CommitResult, WriteFailedError

pytestmark = pytest.mark.spark

SETTING = "spark.sluice.lightCommits"
# Delta's own interval of checkpoints, and the maximum that Sluice makes of it.
INTERVAL, MOST_VERSIONS = 10, 100


@dataclass
class Table(TableAtTheGate):
    """A table to which this driver appends through the gate, and another writer without Spark."""

    def append(self, number: int, **options: Any) -> CommitResult:
        return self.writer.append(self.spark.createDataFrame([(number,)], "id long").coalesce(1), **options)

    def append_elsewhere(self, number: int, commit: CommitProperties | None = None) -> None:
        """Commit as another writer, which this driver does not see before it lists the log."""
        write_deltalake(str(self.path), arrow_table({"id": [number]}), mode="append", commit_properties=commit)

    def forge_versions(self, until: int) -> None:
        """Add versions without rows, up to a version."""
        for version in range(DeltaTable(str(self.path)).version() + 1, until + 1):
            line = json.dumps({"txn": {"appId": "a", "version": version}})
            (self.path / "_delta_log" / f"{version:020d}.json").write_text(line + "\n")

    def read_version(self) -> int:
        """Return the version with which the transaction of the newest version began."""
        return int(commit_info(self.path, DeltaTable(str(self.path)).version())["readVersion"])

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.split(".")[0]) for path in self.path.glob("_delta_log/*.checkpoint*.parquet"))


@pytest.fixture
def table_of(request: pytest.FixtureRequest) -> Callable[..., Table]:
    def make(clause: str = "") -> Table:
        return Table.create(request, f"CREATE TABLE {{t}} (id LONG) USING delta {clause}")

    return make


@pytest.fixture
def table(table_of: Callable[..., Table]) -> Table:
    """A table with this driver's commit as its version 1."""
    table = table_of()
    table.append(1)
    return table


@pytest.fixture
def without_light_commits(spark: SparkSession) -> Iterator[None]:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(SETTING, "false")
    yield
    conf.remove(SETTING)


def test_an_append_begins_with_the_snapshot_of_the_last_own_commit(table: Table) -> None:
    table.append_elsewhere(2)
    assert table.append(3).version == 3
    assert table.read_version() == 1
    # Another writer was seen, so the next append lists the log.
    table.append_elsewhere(4)
    assert table.append(5).version == 5
    assert table.read_version() == 4
    assert table.ids() == [1, 2, 3, 4, 5]


def test_without_light_commits_each_append_lists_the_log(table: Table, without_light_commits: None) -> None:
    table.append_elsewhere(2)
    table.append(3)
    assert table.read_version() == 2


def test_a_write_under_the_lock_lists_the_log(table: Table) -> None:
    table.append_elsewhere(2)
    table.append(3, lock_during="write")
    assert table.read_version() == 2


def test_a_constraint_that_was_added_since_the_snapshot_is_checked(table: Table) -> None:
    DeltaTable(str(table.path)).alter.add_constraint({"small": "id < 100"})
    with pytest.raises(WriteFailedError, match="small"):
        table.append(100)
    assert table.append(99).version == 3
    assert table.ids() == [1, 99]


def test_a_column_that_was_added_since_the_snapshot_is_null(table: Table) -> None:
    DeltaTable(str(table.path)).alter.add_columns([Field("word", PrimitiveType("string"))])
    table.append(2)
    assert table.values("id", "word") == [(1, None), (2, None)]
    assert table.read_version() == 2


def test_a_transaction_that_was_committed_since_the_snapshot_is_not_repeated(table: Table) -> None:
    table.append_elsewhere(2, CommitProperties(app_transactions=[Transaction("nightly", 1)]))
    assert table.append(2, txn=("nightly", 1)).already_committed
    assert table.append(3, txn=("nightly", 2)).version == 3
    assert table.ids() == [1, 2, 3]


def test_rows_go_to_a_table_that_was_created_again(table: Table) -> None:
    shutil.rmtree(table.path)
    table.append_elsewhere(10)
    table.append_elsewhere(11)
    table.append(12)
    assert table.ids() == [10, 11, 12]


def test_writers_without_sluice_continue_the_log(table: Table, unguarded_sql: Callable[[str], None]) -> None:
    for number in range(2, 6):
        table.append(number)
    unguarded_sql(f"INSERT INTO delta.`{table.path}` VALUES (6)")
    unguarded_sql(f"DELETE FROM delta.`{table.path}` WHERE id = 1")
    table.append_elsewhere(7)
    table.append(8)
    assert table.ids() == [2, 3, 4, 5, 6, 7, 8]


def test_checkpoints_that_would_follow_the_last_one_too_soon_are_left_out(table: Table) -> None:
    table.forge_versions(INTERVAL - 1)
    # This driver does not list the log: it has made the last commit that it knows of.
    table.append(2)
    assert table.checkpoints() == [INTERVAL]
    for version in (2 * INTERVAL, 3 * INTERVAL):
        table.forge_versions(version - 1)
        table.append(version)
    assert table.checkpoints() == [INTERVAL]
    # They are never left out for good.
    table.forge_versions(INTERVAL + MOST_VERSIONS - 1)
    table.append(3)
    assert table.checkpoints() == [INTERVAL, INTERVAL + MOST_VERSIONS]


def test_the_table_s_own_interval_of_checkpoints_counts(table_of: Callable[..., Table]) -> None:
    table = table_of("TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for number in range(1, 7):
        table.append(number)
    assert table.checkpoints() == [2, 4, 6]


@pytest.mark.parametrize("appends", [30, pytest.param(1_000, marks=pytest.mark.soak)])
def test_readers_read_few_versions_and_derive_few_checksums(table: Table, appends: int) -> None:
    log = table.path / "_delta_log"
    for number in range(2, appends + 1):
        version = table.append(number).version or 0
        assert version - max(table.checkpoints(), default=0) <= MOST_VERSIONS + INTERVAL
        assert any((log / f"{version - back:020d}.crc").exists() for back in range(5))
    assert len(table.ids()) == appends
