"""``locked`` with its default manager and a writer with an explicit one, in one thread of a real driver: one hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lock_manager import LockOrderError, ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, locked, locking

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def default_manager(zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the environment name the ensemble, and no manager made for it yet."""
    monkeypatch.setenv("SLUICE_ZK_HOSTS", zookeeper.hosts)
    made: dict[Any, ZookeeperLockManager] = {}
    monkeypatch.setattr(locking, "_managers", made)
    yield
    assert len(made) == 1, "the default manager was used"
    for manager in made.values():
        manager.close()


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def append(rows: DataFrame, table: str) -> None:
    rows.write.format("delta").mode("append").save(table)


def holds(table: str) -> list[str]:
    """Return the hold of each commit, by the log."""
    files = sorted(Path(table).glob("_delta_log/*.json"))
    return [json.loads(path.read_text().splitlines()[0])["commitInfo"]["sluice"]["hold"] for path in files]


def test_a_writer_with_its_own_manager_inside_locked_commits_under_the_same_hold(
    spark: SparkSession, manager: ZookeeperLockManager, table: str
) -> None:
    writer = LockedDeltaWriter(spark, manager, table)
    with locked(spark, table) as outer:
        append(spark.range(1), table)
        result = writer.append(spark.range(1, 2), lock_timeout_seconds=0)
        append(spark.range(2, 3), table)
        assert (result.version, result.token) == (1, outer.token)
        assert len(manager.queue(table)) == 1
    assert holds(table) == [outer.hold_id] * 3
    assert manager.queue(table) == []
    assert spark.read.format("delta").load(table).count() == 3


def test_locked_inside_a_block_and_inside_a_write_of_another_manager_is_the_same_hold(
    spark: SparkSession, manager: ZookeeperLockManager, table: str
) -> None:
    with locked(spark, table, manager=manager) as outer:
        with locked(spark, table, timeout_seconds=0) as inner:
            assert inner is outer
            append(spark.range(1), table)
        append(spark.range(1, 2), table)
    seen = []

    def look(_: object) -> None:
        with locked(spark, table, timeout_seconds=0) as hold:
            seen.append((hold.hold_id, spark.read.format("delta").load(table).count()))

    LockedDeltaWriter(spark, manager, table).append(spark.range(2, 3), before_write=look)
    assert holds(table) == [outer.hold_id] * 2 + [seen[0][0]]
    assert seen[0][1] == 2
    assert manager.queue(table) == []


def test_what_would_be_refused_with_one_manager_is_refused_with_both(
    spark: SparkSession, manager: ZookeeperLockManager, table: str
) -> None:
    with locked(spark, f"{table}-b"), pytest.raises(LockOrderError, match="first"):
        LockedDeltaWriter(spark, manager, f"{table}-a").append(spark.range(1))
    assert not Path(f"{table}-a").exists()
