"""What a stream does when it is told to stop: a batch that computes or waits gives up, one that commits ends."""

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

Holding = Callable[[Hold], None]


class Silent:
    """Hears what becomes of batches."""

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
        """Rows, so many twentieths of a second of work in as many tasks: what is cancelled ends at once."""
        return self.spark.range(0, tasks, 1, tasks).selectExpr("reflect('java.lang.Thread', 'sleep', 50L) AS slept")

    def busy(self) -> bool:
        return bool(self.spark.sparkContext.statusTracker().getActiveJobsIds())

    @contextmanager
    def stopped(self, work: Callable[[Holding], None], when: Callable[[], bool]) -> Iterator[Future[None]]:
        """Stop a query when its batch, which does this work, is so far."""

        def apply(_: DataFrame, __: tuple[str, int], holding: Holding) -> ChangesResult:
            work(holding)
            return ChangesResult.of_nothing(self.writer.table)

        query = BatchQuery(self.writer, Silent(), apply)
        frame = self.spark.readStream.schema("id int").json(str(self.folder))
        checkpoint = str(self.folder.parent / f"checkpoint of {work.__name__}")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(query.run, frame, trigger="available-now", checkpoint=checkpoint)
            self.eventually(when, within=60, what="a batch")
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


def test_a_batch_that_has_no_lock_gives_up_and_one_that_has_it_ends(
    queries: Queries, manager: ZookeeperLockManager, make_rival: Callable[..., Any]
) -> None:
    table, held, done = queries.writer.table, threading.Event(), []

    def computes(_: Holding) -> None:
        queries.rows(20_000).collect()

    with queries.stopped(computes, queries.busy) as running, pytest.raises(Exception, match="cancelled"):
        running.result(60)

    queries.writer.append(queries.rows(1))

    def writes(_: Holding) -> None:
        queries.writer.append(queries.rows(20_000))

    with queries.stopped(writes, queries.busy) as running, pytest.raises(WriteFailedError, match="cancelled"):
        running.result(60)
    assert queries.writer.log.head().version == 0

    def has_it(holding: Holding) -> None:
        with manager.acquire(table) as hold:
            holding(hold)
            queries.rows(30).collect()
            held.set()
        done.append("has it")

    with queries.stopped(has_it, queries.busy) as running:
        assert running.result(60) is None
    assert held.is_set()

    def is_committed(holding: Holding) -> None:
        with manager.acquire(table) as hold:
            holding(hold)
            hold.record_commit(7)
        queries.rows(30).collect()
        done.append("is committed")

    with queries.stopped(is_committed, queries.busy) as running:
        assert running.result(60) is None
    assert done == ["has it", "is committed"]

    rival, conflicted = make_rival(), threading.Event()

    def does_it_again(holding: Holding) -> None:
        with manager.acquire(table) as hold:
            holding(hold)
        rivals.append(rival.acquire(table))
        conflicted.set()
        manager.acquire(table, timeout_seconds=300)

    rivals: list[Hold] = []
    with queries.stopped(does_it_again, conflicted.is_set) as running, pytest.raises(LockCancelledError):
        running.result(60)
    rivals[0].release()
