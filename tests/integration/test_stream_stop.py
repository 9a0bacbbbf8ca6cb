"""A stop of a stream cancels a batch that waits for its lock, or computes with neither a lock nor a commit."""

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

    def is_busy(self) -> bool:
        return bool(self.spark.sparkContext.statusTracker().getActiveJobsIds())

    @contextmanager
    def run_and_stop(self, work: Callable[[ReportHold], None], condition: Callable[[], bool]) -> Iterator[Future[None]]:
        """Run a query whose batch does ``work``, and stop the query when ``condition`` is true."""

        def apply(_: DataFrame, __: tuple[str, int], report_hold: ReportHold) -> ChangesResult:
            work(report_hold)
            return ChangesResult(table=self.writer.table)

        query = BatchQuery(self.writer, SilentListener(), apply)
        frame = self.spark.readStream.schema("id int").json(str(self.folder))
        checkpoint = str(self.folder.parent / f"checkpoint of {work.__name__}")
        with ThreadPoolExecutor(1) as pool:
            running_query = pool.submit(query.run, frame, trigger="available-now", checkpoint=checkpoint)
            self.eventually(condition, within=60, label="a batch")
            query.stop()
            yield running_query


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
    table, completed_steps = queries.writer.table, []

    def compute(_: ReportHold) -> None:
        queries.rows(20_000).collect()

    with queries.run_and_stop(compute, queries.is_busy) as running_query, pytest.raises(Exception, match="cancelled"):
        running_query.result(60)

    queries.writer.append(queries.rows(1))

    def write(_: ReportHold) -> None:
        queries.writer.append(queries.rows(20_000))

    with (
        queries.run_and_stop(write, queries.is_busy) as running_query,
        pytest.raises(WriteFailedError, match="cancelled"),
    ):
        running_query.result(60)
    assert queries.writer.log.head().version == 0

    def compute_under_the_lock(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
            queries.rows(30).collect()
            completed_steps.append("rows under the lock")
        completed_steps.append("batch with a lock")

    with queries.run_and_stop(compute_under_the_lock, queries.is_busy) as running_query:
        assert running_query.result(60) is None

    def compute_after_the_commit(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
            hold.record_commit(7)
        queries.rows(30).collect()
        completed_steps.append("batch with a commit")

    with queries.run_and_stop(compute_after_the_commit, queries.is_busy) as running_query:
        assert running_query.result(60) is None
    assert completed_steps == ["rows under the lock", "batch with a lock", "batch with a commit"]

    rival, rival_has_lock = make_rival(), threading.Event()
    rival_holds: list[Hold] = []

    def wait_for_the_lock_again(report_hold: ReportHold) -> None:
        with manager.acquire(table) as hold:
            report_hold(hold)
        rival_holds.append(rival.acquire(table))
        rival_has_lock.set()
        manager.acquire(table, timeout_seconds=300)

    stopped_wait = queries.run_and_stop(wait_for_the_lock_again, rival_has_lock.is_set)
    with stopped_wait as running_query, pytest.raises(LockCancelledError):
        running_query.result(60)
    rival_holds[0].release()
