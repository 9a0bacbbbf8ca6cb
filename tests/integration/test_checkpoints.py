"""Checkpoints are written when the lock is given back, by one writer at a time, and never put off for good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import EnsembleRefusedError, HeldLock, ZookeeperLockManager
from tests.support.rivals import RivalManager
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.delta.checkpoints import LAST_CHECKPOINT

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
def table_of(spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path]) -> Callable[..., Table]:
    """Make a table of so many versions after the first, each of which has one row with its number."""

    def make(versions: int = 0, every: int = EVERY) -> Table:
        path = copy_of(
            f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '{every}')",
            *(f"INSERT INTO {{t}} VALUES ({number})" for number in range(1, versions + 1)),
        )
        return Table(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager)

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


def compact_in_a_block(table: Table) -> None:
    with locked(table.spark, str(table.path), manager=table.manager):
        table.sql("OPTIMIZE {}")


WAYS: dict[str, Callable[[Table, int], Any]] = {
    "gate": lambda table, number: table.append(number),
    "whole write": lambda table, number: table.append(number, lock_during="write"),
    "block": append_in_a_block,
    "merge": lambda table, number: (
        table.writer.merge(table.spark.range(number, number + 1).alias("s"), "t.id = s.id", alias="t")
        .whenNotMatchedInsertAll()
        .execute()
    ),
    "compaction": lambda table, number: table.writer.optimize() if number == EVERY else table.append(number),
    "compaction in a block": lambda table, number: (
        compact_in_a_block(table) if number == EVERY else table.append(number)
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_none_is_written_while_the_lock_is_held(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]], way: str
) -> None:
    table = table_of(EVERY - 1)
    seen = at_the_release(table)
    for number in (EVERY, EVERY + 1):
        WAYS[way](table, number)
    assert table.checkpoints() == [EVERY]
    assert seen == [[], [EVERY]]


def test_that_check_sees_one_that_is_written_under_the_lock(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]]
) -> None:
    """The negative control: a compaction whose transaction the log store is not shown has Delta's own hook."""
    table = table_of(EVERY - 1)
    seen = at_the_release(table)
    delta: Any = table.spark._jvm.org.apache.spark.sql.delta
    with locked(table.spark, str(table.path), manager=table.manager):
        nothing = getattr(delta, "NoOpTransactionExecutionObserver$")
        delta.TransactionExecutionObserver.setObserver(getattr(nothing, "MODULE$"))
        table.sql("OPTIMIZE {}")
    assert seen == [[EVERY]]


def test_in_blocks_that_are_nested_it_comes_behind_the_outermost(
    table_of: Callable[..., Table], at_the_release: Callable[[Table], list[list[int]]]
) -> None:
    table = table_of(EVERY - 1)
    seen = at_the_release(table)
    with locked(table.spark, str(table.path), manager=table.manager):
        for number in (EVERY, EVERY + 1):
            table.append(number)
        assert table.checkpoints() == []
    # Of what is due the newest.
    assert (table.checkpoints(), seen[-1]) == ([4], [])


@pytest.mark.full
def test_a_block_of_many_commits_does_not_put_it_off_for_ever(table_of: Callable[..., Table]) -> None:
    table = table_of(every=2)
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


@pytest.mark.full
def test_who_finds_another_writer_at_it_leaves_it_out(
    table_of: Callable[..., Table], make_rival: Callable[..., RivalManager]
) -> None:
    table = table_of(EVERY - 1)
    with make_rival().acquire(f"{table.writer.table}/{LAST_CHECKPOINT}"):
        for number in (EVERY, EVERY + 1):
            table.append(number)
    assert table.checkpoints() == []
    for number in range(EVERY + 2, 2 * EVERY + 1):
        table.append(number)
    assert table.checkpoints() == [2 * EVERY]


# More than the bound: without any checkpoint it is passed.
@pytest.mark.full
@pytest.mark.parametrize("commits", [24, pytest.param(500, marks=pytest.mark.soak)])
def test_the_log_stays_bounded_and_another_reader_reads_it_at_every_step(
    table_of: Callable[..., Table], commits: int
) -> None:
    table = table_of()
    with ThreadPoolExecutor(3) as pool:
        versions = pool.map(table.append, range(commits))
        for _ in versions:
            read = DeltaTable(table.path)
            ids = read.to_pyarrow_table().column("id").to_pylist()
            assert len(ids) == len(set(ids)) == read.version()
            # As many as come while the one that is due is written.
            assert read.version() - max([0, *table.checkpoints()]) <= EVERY + 3 * EVERY
    assert table.checkpoints()[-1] >= commits - 3 * EVERY


def test_none_is_written_for_a_table_that_was_made_anew_meanwhile(table_of: Callable[..., Table]) -> None:
    table = table_of(EVERY - 1)
    with pytest.raises(IndexError), locked(table.spark, str(table.path), manager=table.manager):
        table.sql("INSERT INTO {} VALUES (4)")
        # What is due stays due.
        raise IndexError
    shutil.rmtree(table.path)
    with locked(table.spark, str(table.path), manager=table.manager):
        table.sql("CREATE TABLE {} (id LONG) USING delta")
        for number in range(10, 10 + EVERY):
            table.sql(f"INSERT INTO {{}} VALUES ({number})")
    table.append(20)
    assert table.checkpoints() == []
    assert sorted(DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist()) == [10, 11, 12, 13, 20]


def test_one_that_fails_is_no_error_of_the_write_and_comes_behind_the_next(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(EVERY - 1)
    acquire = ZookeeperLockManager.acquire

    def fail(manager: ZookeeperLockManager, resource: str, **how: Any) -> HeldLock:
        if str(resource).endswith(LAST_CHECKPOINT):
            raise EnsembleRefusedError("localhost", "no access")
        return acquire(manager, resource, **how)

    with monkeypatch.context() as patched:
        patched.setattr(ZookeeperLockManager, "acquire", fail)
        assert table.append(EVERY) == EVERY
    assert table.checkpoints() == []
    table.append(EVERY + 1)
    assert table.checkpoints() == [EVERY]
