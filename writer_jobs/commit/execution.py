"""The context of a writer, and the execution of an operation in a thread that can be cancelled and waited for."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from lock_manager import LockManager, tracing
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.table_records.commit_stamp import note_as_user_metadata
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import WriteFailedError
from writer_jobs.lineage.records import DatasetName
from writer_jobs.progress import Progress

_T = TypeVar("_T")

#: Seconds between two cancellations of a running write.
CANCEL_AGAIN_SECONDS = 0.2
#: Local properties of Spark's threads, see ``Guard.java``.
_TICKET_PROPERTY, _WRITE_PROPERTY = "spark.sluice.ticket", "spark.sluice.write"


class WriteThread:
    """The thread of one write, whose caller waits until it has ended.

    An interrupt ends a call into the JVM in Python, but not in the JVM. In a thread of its own the write can be
    cancelled and waited for, so that nothing is committed after the lock is released. Whether the write runs is known
    at every time, also when the start of the thread is interrupted.

    Attributes:
        has_ended: Whether the write has ended, or will never begin.
        failure: Exception that ended the write; None if it succeeded or still runs.
        interrupt: Exception that interrupted the caller's wait; None if there was none.

    """

    def __init__(self, write: Callable[[], None], name: str, cancel: Callable[[], None]) -> None:
        self.has_ended = False
        self.failure: BaseException | None = None
        self.interrupt: BaseException | None = None
        self._write = write
        self._cancel = cancel
        self._begun = False
        # Not a Condition: an exception in a signal handler can leave a Condition half acquired.
        self._begin_lock = _thread.allocate_lock()
        self._events: SimpleQueue[None] = SimpleQueue()
        # Inherits the caller's Spark properties.
        self._thread = InheritableThread(target=self._run, name=name, daemon=True)

    def begin(self) -> None:
        """Start the write. An interrupt before the write has begun prevents it; a later interrupt does not end it."""
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001 (stored, and raised when the write has ended)
            with self._begin_lock:
                self.has_ended = not self._begun
            if self.has_ended and isinstance(error, JVM_ERRORS):
                # No interrupt: the JVM is gone, so Spark's properties cannot be read.
                self.failure = error
                return
            if self.has_ended:
                self.failure = RuntimeError("interrupted before the write began")
            self.interrupt = error

    def wait(
        self, is_reached: Callable[[], bool] = lambda: False, should_cancel: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until the write has ended, or a condition is true.

        Args:
            is_reached: Returns whether the condition is true. It is called after each :meth:`wake`, and every
                ``CANCEL_AGAIN_SECONDS``.
            should_cancel: Called as often. Once it returns true, or after an interrupt, the Spark jobs are cancelled.

        """
        while not (self.has_ended or is_reached()):
            try:
                self._wait_for_event()
                if self.interrupt is not None or should_cancel():
                    self._cancel()
            except BaseException as error:  # noqa: BLE001 (stored, and raised when the write has ended)
                self.interrupt = self.interrupt or error

    def wake(self) -> None:
        """Make the waiting thread check its condition; may be called in any thread."""
        self._events.put(None)

    def _wait_for_event(self) -> None:
        with suppress(Empty):
            self._events.get(timeout=CANCEL_AGAIN_SECONDS)
        if self._thread.is_alive():
            return
        with self._begin_lock:
            if not (self._begun or self.has_ended):
                # Spark sets its properties in the new thread first, which fails if the JVM is gone.
                self.failure = RuntimeError("the thread of the write ended before the write began")
                self.has_ended = True

    def _run(self) -> None:
        with self._begin_lock:
            if self.has_ended:
                return
            self._begun = True
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 (the caller interprets it)
            self.failure = error
        finally:
            self.has_ended = True
            self.wake()


@dataclass(frozen=True, kw_only=True)
class WriterContext:
    """The context that all writes of one writer share.

    Attributes:
        table: Canonical URI, under which the table is locked.
        is_cancelled: Returns whether :meth:`LockedDeltaWriter.cancel` was called.
        cancellable: Returns a context that makes :meth:`LockedDeltaWriter.cancel` cancel an execution.
        symlink: Name of the table in its catalog, for lineage events; None if it was not opened by such a name.

    """

    spark: SparkSession
    manager: LockManager
    log: DeltaTableLog
    table: str
    is_cancelled: Callable[[], bool]
    cancellable: Callable[[Execution], AbstractContextManager[None]]
    symlink: DatasetName | None = None


class Execution:
    """The execution of one operation: its attempts, its thread and its Spark jobs.

    Attributes:
        metadata: JSON values that the commit records.
        attempt: The current or last attempt. Its write id in a commit proves that the operation is in the table.
        operation: The operation; set when the lock target is known.
        progress: How far the operation is; shown in terminals and notebooks.

    """

    operation: Operation

    def __init__(self, context: WriterContext, metadata: Mapping[str, Any]) -> None:
        self.context = context
        self.metadata = dict(metadata)
        self.attempt = WriteAttempt.of(self.metadata)
        self._spark_context = context.spark.sparkContext
        self._tag = f"sluice-{self.attempt.write_id}"
        self.progress = Progress(context.table, self._tag)
        self._thread: WriteThread | None = None
        self._attempt_count = 0

    @property
    def write_id(self) -> str:
        """Id of the attempt, which the attempt's commit records in the log."""
        return self.attempt.write_id

    def new_attempt(self) -> WriteAttempt:
        """Begin another attempt, with a write id of its own, and return it."""
        self.attempt = WriteAttempt.of(self.metadata)
        self._attempt_count += 1
        return self.attempt

    def start_work_span(self) -> tracing.Span:
        """Start the span of the current attempt: computing its rows and writing its files."""
        return tracing.start("work", {"sluice.attempt": self._attempt_count, "sluice.write_id": self.write_id})

    def start(self, *, ticket: str | None = None, on_end: Callable[[], None] = lambda: None) -> WriteThread:
        """Write and commit, in a thread of its own that is bound to the attempt, and to a ticket if there is one.

        ``on_end`` is called in the thread when the write has ended.
        """
        parent = tracing.current()

        def write() -> None:
            try:
                with parent.current():
                    self._write(ticket)
            finally:
                on_end()

        # Set before the thread begins, because its first commit may call wake().
        self._thread = WriteThread(write, f"sluice-write-{self.write_id}", self.cancel_jobs)
        self._thread.begin()
        return self._thread

    def wake(self) -> None:
        """Make the waiting thread check its condition; may be called in any thread, also before the start."""
        if self._thread is not None:
            self._thread.wake()

    def read(self, query: Callable[[], _T]) -> _T:
        """Run Spark jobs in this thread before the write, and return their result. :meth:`cancel_jobs` ends them, too.

        If Spark fails, raise WriteFailedError.
        """
        self._spark_context.addJobTag(self._tag)
        try:
            return query()
        except JVM_ERRORS as error:
            raise WriteFailedError(table=self.context.table, reason=error_reason(error)) from error
        finally:
            with suppress(*JVM_ERRORS):
                self._spark_context.removeJobTag(self._tag)

    def cancel_jobs(self) -> None:
        """Cancel the running Spark jobs of this execution."""
        with suppress(*JVM_ERRORS):
            self._spark_context.cancelJobsWithTag(self._tag)

    def _write(self, ticket: str | None) -> None:
        self._spark_context.setLocalProperty(_WRITE_PROPERTY, self.write_id)
        if ticket is not None:
            self._spark_context.setLocalProperty(_TICKET_PROPERTY, ticket)
            if self.operation.rows is not None and not self.operation.has_storage_options:
                log_store(self.context.spark, "LightTransaction").expect(ticket, self.context.log.location)
        self._spark_context.addJobTag(self._tag)
        user_metadata = note_as_user_metadata(self.attempt.note, self.operation.user_metadata)
        self.operation.run(self.context.log.location, user_metadata)
        self._spark_context.removeJobTag(self._tag)
