"""Structured Streaming queries whose micro-batches are applied to a table under its lock, each exactly once.

Before a micro-batch is applied, Spark's checkpoint records which rows it has, and afterwards that it is finished.
If the process is killed in between, Spark repeats the batch. So the commit of a batch has a transaction: the query's
id, which is in the checkpoint, and the batch's number. A batch whose transaction is in the table is not applied again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from lock_manager import Hold, LockCancelledError
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.checkpoints import CheckpointThread
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, SPARK_ERRORS, error_reason
from writer_jobs.errors import StreamError
from writer_jobs.streaming.checkpoint import refuse_dropped_batch
from writer_jobs.writer import LockedDeltaWriter

#: Trigger of a stream that applies the rows that are available at its start, and ends.
AVAILABLE_NOW = "available-now"
_POLL_SECONDS = 0.2
# Seconds to wait until Spark has recorded a finished batch in its checkpoint. Spark repeats a batch that it did not
# record, and the repetition is skipped.
_RECORD_SECONDS = 10.0


class LoadResult(Protocol):
    """The result of a load, or of a micro-batch."""

    @property
    def already_applied(self) -> bool:
        """Whether the table had the batch's transaction before."""

    @property
    def commit(self) -> CommitResult | None:
        """Commit of the table; None if there was nothing to commit."""

    @property
    def counts(self) -> dict[str, Any]:
        """Counters by name; JSON values."""


class BatchResult(LoadResult, Protocol):
    """The result of a micro-batch; :class:`~writer_jobs.merge.result.ChangesResult` is one."""

    @property
    def newest_at(self) -> float | None:
        """Time of the newest row or change, in seconds since the epoch; None if it is unknown."""


ApplyBatch = Callable[[DataFrame, tuple[str, int], Callable[[Hold], None]], BatchResult]
"""Applies a micro-batch: its rows, its transaction, and a function to call with the hold under the lock."""


class Listener(Protocol):
    """Receives the events of each batch; :class:`~writer_jobs.job.output.JobOutput` is one."""

    def begun(self, commit: int, begun_at: float, **fields: Any) -> None:
        """Receive that a batch has begun; ``commit`` is its number since the start, from 1."""

    def holding(self, commit: int, token: int, acquired_at: float, **fields: Any) -> None:
        """Receive that the batch has the lock."""

    def commit(self, commit: int, result: CommitResult | None, **fields: Any) -> None:
        """Receive that the batch is finished: its commit (None without one), and its counters."""


class BatchQuery:
    """A streaming query. One thread waits for it, a thread of Spark applies its batches, and a third one may stop it.

    ``apply`` is called for each micro-batch; :meth:`run` raises its errors.
    """

    def __init__(self, writer: LockedDeltaWriter, listener: Listener, apply: ApplyBatch) -> None:
        self._writer = writer
        self._listener = listener
        self._apply = apply
        # The first batch may begin before start() returns the query.
        self._query: Future[StreamingQuery] = Future()
        self._context: SparkContext | None = None
        self._checkpoint = ""
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        # Held while a batch is applied.
        self._batch_lock = threading.Lock()
        # Held while the batch's hold is set, and while a batch without a hold is cancelled.
        self._hold_lock = threading.Lock()
        self._hold: Hold | None = None
        self._batch_number = 0
        self._tag = f"sluice-stream-{uuid.uuid4()}"
        self._checkpoints = CheckpointThread()

    def run(self, frame: DataFrame, *, trigger: str, checkpoint: str) -> None:
        """Start the query, and return when it has ended.

        Args:
            trigger: :data:`AVAILABLE_NOW`, or an interval of Spark, such as ``10 seconds``.
            checkpoint: URI of the checkpoint folder. :func:`claim_checkpoint` has to be called before.

        Raises:
            CheckpointError: The first batch may be in the table, which has dropped its transaction.
            StreamError: The query could not be started, or failed outside its batches.

        """
        self._context, self._checkpoint = frame.sparkSession.sparkContext, checkpoint
        schedule: dict[str, Any] = {"availableNow": True} if trigger == AVAILABLE_NOW else {"processingTime": trigger}
        stream = frame.writeStream.foreachBatch(self._run_batch).option("checkpointLocation", checkpoint)
        query_error = None
        with self._checkpoints:
            try:
                query = stream.trigger(**schedule).start()
            except SPARK_ERRORS as error:
                self._query.set_exception(error)
                raise StreamError(table=self._writer.table, reason=error_reason(error)) from error
            self._query.set_result(query)
            try:
                query.awaitTermination()
            except SPARK_ERRORS as error:
                query_error = error
        if self._failure is not None:
            # Spark's error has only the text of this exception.
            raise self._failure
        if query_error is not None:
            raise StreamError(table=self._writer.table, reason=error_reason(query_error)) from query_error

    def stop(self) -> None:
        """Stop the query after the batch that has its lock or is in the table; cancel a batch that has no lock yet.

        A batch without a lock stops waiting for it, and its Spark jobs are cancelled. A batch that is in the table may
        have rejected rows: it stops waiting for the lock of their table, and they are appended when it is repeated.

        The second call also cancels the write of the batch that has its lock.
        """
        if self._stopping.is_set():
            self._writer.cancel()
            return
        self._stopping.set()
        while not self._batch_lock.acquire(timeout=_POLL_SECONDS):
            with self._hold_lock:
                self._give_up()
        # No batch starts from here on, because _stopping is set.
        self._batch_lock.release()
        with suppress(*SPARK_ERRORS):  # the query did not start, or the JVM is gone
            query, deadline = self._query.result(), time.monotonic() + _RECORD_SECONDS
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            query.stop()

    def _give_up(self) -> None:
        """End the wait of a batch that does not hold its lock, and its Spark jobs unless it is committed.

        The caller holds ``_hold_lock``.
        """
        if self._hold is not None and not self._hold.over:
            return
        self._writer.give_up()
        is_committed = self._hold is not None and bool(self._hold.commits)
        if self._context is not None and not is_committed:
            with suppress(*JVM_ERRORS):
                self._context.cancelJobsWithTag(self._tag)

    def _run_batch(self, rows: DataFrame, batch: int) -> None:
        try:
            with self._batch_lock, self._checkpoints.used():
                self._apply_batch(rows, batch)
        except BaseException as error:
            self._failure = error
            # py4j catches only Exception. Others would end its thread, and Spark would wait for its response forever.
            raise RuntimeError(str(error)) from error

    def _apply_batch(self, rows: DataFrame, batch: int) -> None:
        if self._stopping.is_set():
            raise LockCancelledError(resource=self._writer.table)
        self._batch_number += 1
        number, self._hold = self._batch_number, None
        # Job tags belong to a thread. The threads that write the batch inherit the tag.
        rows.sparkSession.sparkContext.addJobTag(self._tag)

        def before_write(hold: Hold) -> None:
            with self._hold_lock:
                self._hold = hold
            self._listener.holding(number, hold.token, hold.acquired_at, batch=batch)

        txn = (str(self._query.result().id), batch)
        if number == 1:
            # Only the first batch after a start can be a repetition.
            refuse_dropped_batch(HadoopFiles.of(rows.sparkSession), self._checkpoint, self._writer, txn)
        self._listener.begun(number, time.time(), batch=batch)
        result = self._apply(rows, txn, before_write)
        self._listener.commit(
            number, result.commit, batch=batch, **result.counts, already_committed=result.already_applied
        )
