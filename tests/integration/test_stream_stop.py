"""A stream that is stopped: it cancels a batch that computes or waits, and completes a batch that commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold, LockCancelledError, ZookeeperLockManager
from writer_jobs import ChangesResult, LockedDeltaWriter, WriteFailedError
from writer_jobs.streaming.query import BatchQuery

pytestmark = pytest.mark.spark

ReportHold = Callable[[Hold], None]


class SilentListener:
    """Ignores the events of batches."""

    def begun(self, *_: Any, **__: Any) -> None: ...
    def holding(self, *_: Any, **__: Any) -> None: ...
    def commit(self, *_: Any, **__: Any) -> None: ...


@dataclass
class Queries:
    """Runs queries of one micro-batch."""

    spark: SparkSession
    writer: LockedDeltaWriter
    folder: Path
    eventually: Callable[..., None]

    def rows(self, tasks: int) -> DataFrame:
        """Return rows that take 50 ms each to compute, one in each task, so that a cancelled job ends at once."""
        return self.spark.range(0, tasks, 1, tasks).selectExpr("reflect('java.lang.Thread', 'sleep', 50L) AS slept")

    def busy(self) -> bool:
        return bool(self.spark.sparkContext.statusTracker().getActiveJobsIds())

    @contextmanager
    def stopped(self, work: Callable[[ReportHold], None], when: Callable[[], bool]) -> Iterator[Future[None]]:
        """Run a query whose batch does this work, and stop it when a condition is true."""

        def apply(_: DataFrame, __: tuple[str, int], report_hold: ReportHold) -> ChangesResult:
            work(report_hold)
            return ChangesResult(table=self.writer.table)

        query = BatchQuery(self.writer, SilentListener(), apply)
        frame = self.spark.readStream.schema("id int").json(str(self.folder))
        checkpoint = str(self.folder.parent / f"checkpoint of {work.__name__}")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(query.run, frame, trigger="available-now", checkpoint=checkpoint)
            self.eventually(when, within=60, label="a batch")
            query.stop()
            yield running


@pytest.fixture
def queries(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, tmp_path: Path, eventually: Callable[..., None]
) -> Queries:
    folder = tmp_path / "landing"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\n')
    return Queries(spark, LockedDeltaWriter(spark, manager, str(table)), folder, eventually)


def test_a_stop_cancels_only_batches_without_a_lock(
    queries: Queries, manager: ZookeeperLockManager, make_rival: Callable[..., Any]
) -> None:
    table, completed = queries.writer.table, []

    def compute(_: ReportHold) -> None:
        queries.rows(20_000).collect()

    with queries.stopped(compute, queries.busy) as running, pytest.raises(Exception, match="cancelled"):
        running.result(60)

    queries.writer.append(queries.rows(1))

    def write(_: ReportHold) -> None:
        queries.writer.append(queries.rows(20_000))

    with queries.stopped(write, queries.busy) as running, pytest.raises(WriteFailedError, match="cancelled"):
        running.result(60)
    assert queries.writer.log.head().version == 0

    def compute_under_the_lock(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
            queries.rows(30).collect()
            completed.append("rows under the lock")
        completed.append("batch with a lock")

    with queries.stopped(compute_under_the_lock, queries.busy) as running:
        assert running.result(60) is None

    def compute_after_the_commit(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
            hold.record_commit(7)
        queries.rows(30).collect()
        completed.append("batch with a commit")

    with queries.stopped(compute_after_the_commit, queries.busy) as running:
        assert running.result(60) is None
    assert completed == ["rows under the lock", "batch with a lock", "batch with a commit"]

    rival, has_lost_the_lock = make_rival(), threading.Event()
    rival_holds: list[Hold] = []

    def wait_for_the_lock_again(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
        rival_holds.append(rival.acquire(table))
        has_lost_the_lock.set()
        manager.acquire(table, timeout_seconds=300)

    waiting = queries.stopped(wait_for_the_lock_again, has_lost_the_lock.is_set)
    with waiting as running, pytest.raises(LockCancelledError):
        running.result(60)
    rival_holds[0].release()
