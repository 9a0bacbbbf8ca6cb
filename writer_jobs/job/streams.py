"""Streams: Structured Streaming queries whose micro-batches go into a table under its lock, each exactly once.

Spark's checkpoint says which rows a micro-batch has, before it is applied, and that it is done, after that. A process
that is killed in between applies it again. So its commit carries a transaction: the query's id, which is kept in the
checkpoint, and the batch's number. A batch whose transaction the table has is not applied a second time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from lock_manager import Hold, LockCancelledError, LockManager
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.errors import CheckpointError, StreamError
from writer_jobs.job.output import JobOutput
from writer_jobs.job.runner import JobContext
from writer_jobs.job.stream_arguments import AVAILABLE_NOW, StreamArguments
from writer_jobs.writer import LockedDeltaWriter

_LOOK_SECONDS = 0.2
# For Spark to note in the checkpoint that a batch is done. If it is not noted, the batch is skipped the next time.
_NOTE_SECONDS = 10.0


class Applied(Protocol):
    """What became of a micro-batch; :class:`~writer_jobs.changes.application.ChangesResult` is one."""

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


def run_stream(
    context: JobContext[Any],
    writer: LockedDeltaWriter,
    frame: DataFrame,
    how: StreamArguments,
    apply: Apply,
) -> None:
    """Apply the micro-batches of a streaming query until it ends, is stopped, or a batch fails.

    Each batch has its lines: ``waiting``, ``holding``, ``commit``. A signal lets a batch that has its lock come to its
    end, and one that waits for it give up; another signal cancels the write.

    Args:
        context: of the job.
        writer: of the table.
        frame: the rows, streaming.
        how: trigger and checkpoint; :func:`claim_checkpoint` has to be called before.
        apply: called for each micro-batch, in a thread of the query. What it raises is raised here.

    Raises:
        StreamError: the query ended, for a reason other than its batches.

    """
    stream = _Stream(writer, context.manager, context.output, apply)
    with context.stop.deferred(stream.stop):
        stream.run(frame, how)


def claim_checkpoint(files: HadoopFiles, checkpoint: str, query: Mapping[str, str]) -> None:
    """Make sure that a checkpoint is of this query, and note which it is if it is new.

    Args:
        files: of the file system.
        checkpoint: URI of the folder.
        query: what must not change as long as the checkpoint is used: table, source, keys and so on, by name.

    Raises:
        CheckpointError: it is of another query.
        StorageError: it cannot be read or written.

    """
    note = f"{checkpoint.rstrip('/')}/_sluice/query.json"
    if files.status(f"{checkpoint.rstrip('/')}/metadata") is None:
        # Spark has begun nothing with it, whatever is noted.
        files.write_text(note, json.dumps(query, indent=1) + "\n")
        return
    text = files.read_text(note)
    if text is None:
        raise CheckpointError(f"{checkpoint} is the checkpoint of a query of another program: give a folder of its own")
    before = json.loads(text)
    changed = [
        f"{name} {before.get(name)}, not {query.get(name)}"
        for name in sorted(before.keys() | query.keys())
        if before.get(name) != query.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{checkpoint} is the checkpoint of another query, with {', '.join(changed)}: give a folder of its own"
        )


class _Stream:
    """A query: awaited in the main thread; its batches are applied in a thread of Spark's, and a third one stops it."""

    def __init__(self, writer: LockedDeltaWriter, manager: LockManager, output: JobOutput, apply: Apply) -> None:
        self._writer = writer
        self._manager = manager
        self._output = output
        self._apply = apply
        # The first batch may begin before it is known.
        self._query: Future[StreamingQuery] = Future()
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        # Held while a batch is applied.
        self._busy = threading.Lock()
        # Between a batch that gets its lock, and whoever wants it to wait no longer.
        self._turn = threading.Lock()
        self._holds = False
        self._number = 0

    def run(self, frame: DataFrame, how: StreamArguments) -> None:
        """Start the query, and return when it has ended.

        Raises:
            StreamError: it did not start, or failed.

        """
        now = how.trigger == AVAILABLE_NOW
        stream = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", how.checkpoint)
        try:
            stream = stream.trigger(availableNow=True) if now else stream.trigger(processingTime=how.trigger)
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
        """Let the running batch come to its end, unless it waits for its lock, and stop the query.

        The second time: cancel what it writes.
        """
        if self._stopping.is_set():
            self._writer.cancel()
            return
        self._stopping.set()
        while not self._busy.acquire(timeout=_LOOK_SECONDS):
            with self._turn:
                if not self._holds:
                    self._manager.cancel(self._writer.table)
        # No batch begins from here on.
        self._busy.release()
        with suppress(*JVM_ERRORS, PySparkException):  # it did not start, or the JVM is gone
            query, until = self._query.result(), time.monotonic() + _NOTE_SECONDS
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            query.stop()

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
        number, self._holds = self._number, False

        def holding(hold: Hold) -> None:
            with self._turn:
                self._holds = True
            self._output.holding(number, hold.token, hold.acquired_at, batch=batch)

        self._output.waiting(number, time.time(), batch=batch)
        applied = self._apply(rows, (str(self._query.result().id), batch), holding)
        self._output.commit(
            number,
            applied.commit,
            batch=batch,
            **applied.counts,
            already_committed=applied.already_applied,
        )
