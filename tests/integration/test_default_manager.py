"""``locked`` with the default manager and a writer with its own manager share one hold in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lock_manager import LockOrderError, ZookeeperLockManager
from tests.support.at_the_gate import commit_info
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.commit import driver_guard

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def default_manager(zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the ensemble in the environment, and close the default manager that the test creates."""
    monkeypatch.setenv("SLUICE_ZK_HOSTS", zookeeper.hosts)
    managers: dict[Any, ZookeeperLockManager] = {}
    monkeypatch.setattr(driver_guard, "_managers", managers)
    yield
    assert len(managers) == 1, f"the test created {len(managers)} default managers instead of one"
    for manager in managers.values():
        manager.close()


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def append(rows: DataFrame, table: str) -> None:
    rows.write.format("delta").mode("append").save(table)


def hold_ids(table: str) -> list[str]:
    """Return the hold id of each commit."""
    versions = sorted(int(path.stem) for path in Path(table).glob("_delta_log/*.json"))
    return [commit_info(table, version)["sluice"]["hold"] for version in versions]


def test_a_writer_inside_locked_commits_under_the_same_hold(
    spark: SparkSession, manager: ZookeeperLockManager, table: str, rows_of: Callable[..., list[Any]]
) -> None:
    writer = LockedDeltaWriter(spark, manager, table)
    with locked(spark, table) as hold:
        append(spark.range(1), table)
        result = writer.append(spark.range(1, 2), lock_timeout_seconds=0)
        append(spark.range(2, 3), table)
        assert (result.version, result.token) == (1, hold.token)
        assert len(manager.queue(table)) == 1
    assert hold_ids(table) == [hold.hold_id] * 3
    assert manager.queue(table) == []
    assert len(rows_of(table)) == 3


def test_locked_inside_a_block_or_write_is_the_same_hold(
    spark: SparkSession, manager: ZookeeperLockManager, table: str, rows_of: Callable[..., list[Any]]
) -> None:
    with locked(spark, table, manager=manager) as outer:
        with locked(spark, table, timeout_seconds=0) as inner:
            assert inner is outer
            append(spark.range(1), table)
        append(spark.range(1, 2), table)
    holds_and_counts = []

    def record(_: object) -> None:
        with locked(spark, table, timeout_seconds=0) as hold:
            holds_and_counts.append((hold.hold_id, len(rows_of(table))))

    LockedDeltaWriter(spark, manager, table).append(spark.range(2, 3), before_write=record)
    write_hold, row_count = holds_and_counts[0]
    assert hold_ids(table) == [outer.hold_id] * 2 + [write_hold]
    assert row_count == 2
    assert manager.queue(table) == []


def test_the_lock_order_applies_across_managers(spark: SparkSession, manager: ZookeeperLockManager, table: str) -> None:
    with locked(spark, f"{table}-b"), pytest.raises(LockOrderError, match="first"):
        LockedDeltaWriter(spark, manager, f"{table}-a").append(spark.range(1))
    assert not Path(f"{table}-a").exists()
