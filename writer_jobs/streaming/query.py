"""Streams: Structured Streaming queries whose micro-batches go into a table under its lock, each exactly once.

Spark's checkpoint says which rows a micro-batch has, before it is applied, and that it is done, after that. A process
that is killed in between applies it again. So its commit carries a transaction: the query's id, which is kept in the
checkpoint, and the batch's number. A batch whose transaction the table has is not applied a second time.
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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from lock_manager import Hold, LockCancelledError
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.errors import StreamError
from writer_jobs.writer import LockedDeltaWriter

#: Trigger of a stream that ends when it has what was there at its start.
AVAILABLE_NOW = "available-now"
_LOOK_SECONDS = 0.2
# For Spark to note in the checkpoint that a batch is done. If it is not noted, the batch is skipped the next time.
_NOTE_SECONDS = 10.0


class Applied(Protocol):
    """What became of a micro-batch; :class:`~writer_jobs.merge.result.ChangesResult` is one."""

    @property
    def already_applied(self) -> bool:
        """Whether the table had its transaction."""

    @property
    def commit(self) -> CommitResult | None:
        """Of the table; None if there was nothing to do."""

    @property
    def counts(self) -> dict[str, Any]:
        """What it counted; JSON values."""


Apply = Callable[[DataFrame, tuple[str, int], Callable[[Hold], None]], Applied]
"""Applies a micro-batch: its rows, its transaction, and what is to be called under the lock."""


class Listener(Protocol):
    """Is told of each batch; :class:`~writer_jobs.job.output.JobOutput` is one."""

    def begun(self, commit: int, begun_at: float, **more: Any) -> None:
        """Hear that a batch is begun; ``commit`` is its number since the start, from 1."""

    def holding(self, commit: int, token: int, acquired_at: float, **more: Any) -> None:
        """Hear that it has the lock."""

    def commit(self, commit: int, result: CommitResult | None, **more: Any) -> None:
        """Hear that it is in the table, with what it counted."""


class BatchQuery:
    """A query: awaited in one thread; its batches are applied in a thread of Spark's, and a third one may stop it.

    Args:
        writer: of the table.
        listener: is told of each batch.
        apply: called for each micro-batch. What it raises :meth:`run` raises.

    """

    def __init__(self, writer: LockedDeltaWriter, listener: Listener, apply: Apply) -> None:
        self._writer = writer
        self._listener = listener
        self._apply = apply
        # The first batch may begin before it is known.
        self._query: Future[StreamingQuery] = Future()
        self._context: SparkContext | None = None
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        # Held while a batch is applied.
        self._busy = threading.Lock()
        # Between a batch that gets its lock, and whoever wants it to wait no longer.
        self._turn = threading.Lock()
        self._hold: Hold | None = None
        self._number = 0
        self._tag = f"sluice-stream-{uuid.uuid4()}"

    def run(self, frame: DataFrame, *, trigger: str, checkpoint: str) -> None:
        """Start the query, and return when it has ended.

        Args:
            frame: the rows, streaming.
            trigger: :data:`AVAILABLE_NOW`, or an interval that Spark understands.
            checkpoint: URI of the folder in which it notes how far it is; :func:`claim_checkpoint` was asked before.

        Raises:
            StreamError: it did not start, or failed.

        """
        self._context = frame.sparkSession.sparkContext
        now = trigger == AVAILABLE_NOW
        stream = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint)
        try:
            stream = stream.trigger(availableNow=True) if now else stream.trigger(processingTime=trigger)
            query = stream.start()
        except (*JVM_ERRORS, PySparkException) as error:
            self._query.set_exception(error)
            raise StreamError(table=self._writer.table, reason=one_sentence(error)) from error
        self._query.set_result(query)
        failed = None
        try:
            query.awaitTermination()
        except (*JVM_ERRORS, PySparkException) as error:
            failed = error
        if self._failure is not None:
            # Spark has its text only.
            raise self._failure
        if failed is not None:
            raise StreamError(table=self._writer.table, reason=one_sentence(failed)) from failed

    def stop(self) -> None:
        """Let a batch that has its lock, or is in the table, come to its end, and stop the query.

        Before that it gives up: what it waits for, and the Spark jobs by which it finds out what is to be committed.
        What is written beside the table after its commit waits for no lock any more, and is written when the batch is
        tried again. The second time: cancel what it writes.
        """
        if self._stopping.is_set():
            self._writer.cancel()
            return
        self._stopping.set()
        while not self._busy.acquire(timeout=_LOOK_SECONDS):
            with self._turn:
                self._give_up()
        # No batch begins from here on.
        self._busy.release()
        with suppress(*JVM_ERRORS, PySparkException):  # it did not start, or the JVM is gone
            query, until = self._query.result(), time.monotonic() + _NOTE_SECONDS
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            query.stop()

    def _give_up(self) -> None:
        if self._hold is not None and not self._hold.over:
            return
        self._writer.give_up()
        is_committed = self._hold is not None and bool(self._hold.commits)
        if self._context is not None and not is_committed:
            with suppress(*JVM_ERRORS):
                self._context.cancelJobsWithTag(self._tag)

    def _batch(self, rows: DataFrame, batch: int) -> None:
        try:
            with self._busy:
                self._apply_batch(rows, batch)
        except BaseException as error:
            self._failure = error
            # py4j would let anything else end its thread, and Spark wait for an answer.
            raise RuntimeError(str(error)) from error

    def _apply_batch(self, rows: DataFrame, batch: int) -> None:
        if self._stopping.is_set():
            raise LockCancelledError(resource=self._writer.table)
        self._number += 1
        number, self._hold = self._number, None
        # Each thread has its own; those in which a batch is written have this one's.
        rows.sparkSession.sparkContext.addJobTag(self._tag)

        def holding(hold: Hold) -> None:
            with self._turn:
                self._hold = hold
            self._listener.holding(number, hold.token, hold.acquired_at, batch=batch)

        self._listener.begun(number, time.time(), batch=batch)
        applied = self._apply(rows, (str(self._query.result().id), batch), holding)
        self._listener.commit(
            number,
            applied.commit,
            batch=batch,
            **applied.counts,
            already_committed=applied.already_applied,
        )
