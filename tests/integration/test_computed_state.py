"""Delta computes a table's state in a second thread while a program does something else."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter
from writer_jobs.delta.snapshot import Snapshot

pytestmark = pytest.mark.spark


def count_jobs(spark: SparkSession, snapshot: Snapshot, group: str) -> int:
    """Return how many Spark jobs the last transaction of an application needs."""
    spark.sparkContext.setJobGroup(group, group)
    assert snapshot.last_transaction("app") == 1
    spark.sparkContext.setJobGroup("other jobs", "other jobs")
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_the_state_is_computed_when_the_block_ends(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path
) -> None:
    writer = LockedDeltaWriter(spark, manager, str(table))
    writer.append(spark.range(3), txn=("app", 1))
    snapshot = writer.log.snapshot()
    with snapshot.computed_meanwhile():
        pass
    assert count_jobs(spark, snapshot, "computed") == 0
    # The control: without the block, it is computed now.
    writer.append(spark.range(3))
    assert count_jobs(spark, writer.log.snapshot(), "not computed") > 0


def test_a_failure_is_raised_by_the_next_use(spark: SparkSession) -> None:
    def fail() -> None:
        raise Py4JNetworkError("no state")

    snapshot = Snapshot(spark, "table", SimpleNamespace(version=lambda: 1, transactions=fail))
    with snapshot.computed_meanwhile():
        pass
    with pytest.raises(Py4JNetworkError):
        snapshot.last_transaction("app")


def test_an_interrupt_does_not_wait_for_the_state(spark: SparkSession) -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def compute() -> None:
        has_begun.set()
        assert may_end.wait(60)

    snapshot = Snapshot(spark, "table", SimpleNamespace(version=lambda: 1, transactions=compute))
    with pytest.raises(KeyboardInterrupt), snapshot.computed_meanwhile():
        assert has_begun.wait(60)
        raise KeyboardInterrupt
    assert not may_end.is_set()
    may_end.set()
