"""Checkpoints are written when the lock is given back, by one writer at a time, and say what Delta's own would say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import HeldLock, ZookeeperLockManager
from tests.support.rivals import RivalManager
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.checkpoints import LAST_CHECKPOINT

pytestmark = pytest.mark.spark

EVERY = 4


@dataclass
class Table:
    """A table with a checkpoint at every fourth version."""

    spark: SparkSession
    path: Path
    writer: LockedDeltaWriter
    manager: ZookeeperLockManager

    def append(self, *numbers: int, **how: Any) -> int:
        rows = self.spark.createDataFrame([(number,) for number in numbers], "id long").coalesce(1)
        return self.writer.append(rows, **how).version or 0

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(f"delta.`{self.path}`"))

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.split(".")[0]) for path in self.path.glob("_delta_log/*.checkpoint*.parquet"))


@pytest.fixture
def table_of(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Callable[..., Table]:
    def make(columns: str = "id LONG", more: str = "", **properties: str) -> Table:
        path = tmp_path / "table"
        said = {"delta.checkpointInterval": str(EVERY), **properties}
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in said.items())
        table = Table(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager)
        with locked(spark, str(path), manager=manager):
            table.sql(f"CREATE TABLE {{}} ({columns}) USING delta {more} TBLPROPERTIES ({listed})")
        return table

    return make


@pytest.fixture
def at_the_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table], list[list[int]]]:
    """Have a list that gets, at each release of the table's lock, the versions of which there is a checkpoint."""

    def watch(table: Table) -> list[list[int]]:
        seen: list[list[int]] = []
        release = HeldLock.release

        def look_and_release(hold: HeldLock) -> None:
            if hold.resource == table.writer.table:
                seen.append(table.checkpoints())
            release(hold)

        monkeypatch.setattr(HeldLock, "release", look_and_release)
        return seen

    return watch


def append_in_a_block(table: Table, number: int) -> None:
    with locked(table.spark, str(table.path), manager=table.manager):
        table.sql(f"INSERT INTO {{}} VALUES ({number})")


WAYS: dict[str, Callable[[Table, int], Any]] = {
    "gate": lambda table, number: table.append(number),
    "whole write": lambda table, number: table.append(number, hold="write"),
    "block": append_in_a_block,
    "merge": lambda table, number: (
        table.writer.merge(table.spark.range(number, number + 1).alias("s"), "t.id = s.id", alias="t")
        .whenNotMatchedInsertAll()
        .execute()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_none_is_written_while_the_lock_is_held(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]], way: str
) -> None:
    table = table_of()
    seen = at_the_release(table)
    for number in range(1, 6):
        WAYS[way](table, number)
    assert table.checkpoints() == [4]
    assert seen == [[], [], [], [], [4]]


def test_that_check_sees_one_that_is_written_under_the_lock(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]]
) -> None:
    """The negative control: OPTIMIZE commits without an active transaction, and so with Delta's own hook."""
    table = table_of()
    for number in range(1, 4):
        table.append(number)
    seen = at_the_release(table)
    table.writer.optimize()
    assert seen == [[4]]


def test_in_blocks_that_are_nested_it_comes_behind_the_outermost(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]]
) -> None:
    table = table_of()
    seen = at_the_release(table)
    with locked(table.spark, str(table.path), manager=table.manager):
        for number in range(1, 6):
            table.append(number)
        assert table.checkpoints() == []
    # Of what is due the newest.
    assert (table.checkpoints(), seen[-1]) == ([4], [])


def test_a_block_of_many_commits_does_not_put_it_off_for_ever(table_of: Callable[..., Table]) -> None:
    table = table_of(**{"delta.checkpointInterval": "2"})
    before = DeltaTable(table.path).version()
    with locked(table.spark, str(table.path), manager=table.manager):
        for number in range(1, 105):
            (table.path / "_delta_log" / f"{number + before:020d}.json").write_text(
                json.dumps({"txn": {"appId": "a", "version": number}}) + "\n"
            )
        table.sql("INSERT INTO {} VALUES (1), (2)")
        table.sql("INSERT INTO {} VALUES (3), (4)")
        assert table.checkpoints() == [106]
    assert table.checkpoints() == [106]


def test_who_finds_another_writer_at_it_leaves_it_out(
    table_of: Callable[..., Table], make_rival: Callable[..., RivalManager]
) -> None:
    table = table_of()
    with make_rival().acquire(f"{table.writer.table}/{LAST_CHECKPOINT}"):
        for number in range(1, 7):
            table.append(number)
    assert table.checkpoints() == []
    for number in range(7, 10):
        table.append(number)
    assert table.checkpoints() == [8]


def test_the_log_stays_bounded_and_another_reader_reads_it_at_every_step(table_of: Callable[..., Table]) -> None:
    table = table_of()
    with ThreadPoolExecutor(3) as pool:
        versions = pool.map(table.append, range(40))
        for _ in versions:
            read = DeltaTable(table.path)
            ids = read.to_pyarrow_table().column("id").to_pylist()
            assert len(ids) == len(set(ids)) == read.version()
            # As many as come while the one that is due is written.
            assert read.version() - max([0, *table.checkpoints()]) <= EVERY + 3 * EVERY
    assert table.checkpoints()[-1] >= 40 - EVERY


COLUMNS = "id LONG, word STRING, day DATE"
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "partitioned": {"more": "PARTITIONED BY (day)"},
    "not null": {"columns": "id LONG NOT NULL, word STRING, day DATE"},
    "column mapping": {"delta.columnMapping.mode": "name"},
    "deletion vectors": {"delta.enableDeletionVectors": "true"},
    "row tracking": {"delta.enableRowTracking": "true"},
    "change data feed": {"delta.enableChangeDataFeed": "true"},
    "in-commit timestamps": {"delta.enableInCommitTimestamps": "true"},
    "without a time zone": {"columns": COLUMNS + ", at TIMESTAMP_NTZ"},
}
DELTAS_OWN: dict[str, dict[str, str]] = {
    "clustered": {"more": "CLUSTER BY (day)"},
    "statistics as a struct": {"delta.checkpoint.writeStatsAsStruct": "true"},
    "no statistics as JSON": {"delta.checkpoint.writeStatsAsJson": "false"},
    "second kind of checkpoint": {"delta.checkpointPolicy": "v2"},
    # Kernel refuses these.
    "generated column": {"columns": COLUMNS + ", month INT GENERATED ALWAYS AS (month(day))"},
    "identity column": {"columns": COLUMNS + ", number LONG GENERATED ALWAYS AS IDENTITY"},
}


def filled(table: Table) -> Table:
    """Give a table files that are in it, files that were removed, a transaction of an application."""
    rows = table.spark.range(20).selectExpr(
        "id", "concat('word ', id) AS word", "DATE'2013-01-01' + int(id % 2) AS day"
    )
    while DeltaTable(table.path).version() < EVERY - 3:
        table.writer.append(rows.where("id < 0"))
    table.writer.append(rows.coalesce(1), txn=("job", 7))
    table.writer.delete("id = 3")
    table.writer.append(rows.coalesce(1))
    return table


def content(path: Path) -> list[str]:
    """Return the actions of a checkpoint, without what is empty, and what is there a second time in another form."""

    def plain(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            value = dict(value)
        if isinstance(value, dict) and "deletionTimestamp" in value:
            # Kernel has more of what was removed.
            value = {name: each for name, each in value.items() if name != "stats"}
        if isinstance(value, dict):
            # That one Kernel leaves as the commit had it. It is of a commit, and in a checkpoint it means nothing.
            kept = {n: plain(each) for n, each in value.items() if not n.endswith("_parsed") and n != "dataChange"}
            return {name: each for name, each in kept.items() if each not in (None, {}, [])}
        return value

    return sorted(json.dumps(plain(row), sort_keys=True, default=str) for row in pq.read_table(path).to_pylist())


def by_delta(table: Table, copy: Path) -> Path:
    """Have Delta's own writer make the same checkpoint, of a copy of the table."""
    shutil.copytree(table.path, copy)
    for path in copy.glob("_delta_log/*checkpoint*"):
        path.unlink()
    delta = table.spark._jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(table.spark._jsparkSession, str(copy))
    log.createCheckpointAtVersion(EVERY)
    (made,) = copy.glob("_delta_log/*.checkpoint*.parquet")
    return made


def made_by_kernel(path: Path) -> bool:
    # Delta's own has statistics as a struct, too.
    return "stats_parsed" not in str(pq.read_schema(path))


def is_kernels(checkpoint: Path) -> bool:
    return b"writer.model.name" in (pq.read_schema(checkpoint).metadata or {})


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_deltas_own_says(table_of: Callable[..., Table], tmp_path: Path, kind: str) -> None:
    table = filled(table_of(**{"columns": COLUMNS, **KINDS[kind]}))
    (made,) = table.path.glob("_delta_log/*.checkpoint.parquet")
    assert is_kernels(made)
    assert content(made) == content(by_delta(table, tmp_path / "copy"))
    before = sorted(map(str, table.spark.read.format("delta").load(str(table.path)).collect()))
    assert len(before) == 39
    table.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for version in range(EVERY):
        # What is read now is read from the checkpoint.
        (table.path / "_delta_log" / f"{version:020d}.json").unlink()
    assert sorted(map(str, table.spark.read.format("delta").load(str(table.path)).collect())) == before


@pytest.mark.parametrize("kind", DELTAS_OWN)
def test_where_it_would_say_less_delta_itself_writes_it(table_of: Callable[..., Table], kind: str) -> None:
    table = filled(table_of(**{"columns": COLUMNS, **DELTAS_OWN[kind]}))
    (made,) = table.path.glob(f"_delta_log/{EVERY:020d}.checkpoint.*")
    if kind == "second kind of checkpoint":
        assert made.name.count(".") > 2, "it has a name of its own"
    else:
        assert not is_kernels(made)
