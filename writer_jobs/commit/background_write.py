"""Runs a Delta write in a thread of its own, so that it can be cancelled and waited for."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.table_records.commit_stamp import note_as_user_metadata
from writer_jobs.commit.operation import Work
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.log_store import follow_transactions
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.type_differences import mismatch, type_differences
from writer_jobs.errors import WriteFailedError

_T = TypeVar("_T")

#: How often a write is cancelled again until it ends.
CANCEL_AGAIN_SECONDS = 0.2
#: Local properties of Spark's threads, see ``Guard.java``.
_TICKET_PROPERTY, _WRITE_PROPERTY = "spark.sluice.ticket", "spark.sluice.write"
# Delta raises these, before it writes anything, for rows that do not fit.
_SCHEMA_CONDITIONS = ("DELTA_FAILED_TO_MERGE_FIELDS", "DELTA_METADATA_MISMATCH", "DELTA_SCHEMA")


class _WriteThread:
    """A thread of which it is always known whether it works, also when its start is interrupted.

    Attributes:
        over: whether it has ended, or will never begin.
        failure: what its work raised.

    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.over = False
        self.failure: BaseException | None = None
        self._work = work
        self._begun = False
        # No Condition, which an exception of a signal handler can leave half taken.
        self._settling = _thread.allocate_lock()
        self._news: SimpleQueue[None] = SimpleQueue()
        # Inherits the caller's Spark properties.
        self._thread = InheritableThread(target=self._run, name=name, daemon=True)

    def begin(self) -> BaseException | None:
        """Start, and return what interrupted that: before the work began it will not, after that it goes on."""
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001 (returned, or kept)
            with self._settling:
                self.over = not self._begun
            if self.over and isinstance(error, JVM_ERRORS):
                # No interrupt: the JVM is gone, so Spark's properties cannot be read.
                self.failure = error
                return None
            if self.over:
                self.failure = RuntimeError("interrupted before the write began")
            return error
        return None

    def wait(self, seconds: float) -> None:
        """Wait for the end, for :meth:`wake`, or so long."""
        with suppress(Empty):
            self._news.get(timeout=seconds)
        if self._thread.is_alive():
            return
        with self._settling:
            if not (self._begun or self.over):
                # Spark sets its properties in the new thread first, which fails if the JVM is gone.
                self.failure = RuntimeError("the thread of the write ended before the write began")
                self.over = True

    def wake(self) -> None:
        """Make the waiting thread look again."""
        self._news.put(None)

    def _run(self) -> None:
        with self._settling:
            if self.over:
                return
            self._begun = True
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 (the caller finds out what it means)
            self.failure = error
        finally:
            self.over = True
            self.wake()


class RunningWrite:
    """A write that was begun. It is waited for, and never left alone.

    An interrupt ends a call into the JVM for Python only. In a thread of its own the write can be cancelled and waited
    for, so that nothing is committed after the lock is released.

    Attributes:
        interrupt: what interrupted the waiting; None if nothing did.

    """

    def __init__(self, write: BackgroundWrite, thread: _WriteThread) -> None:
        self._write = write
        self._thread = thread
        self.interrupt = thread.begin()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._thread.over

    @property
    def failure(self) -> BaseException | None:
        """How it failed; None if it did not, or is not over."""
        return self._thread.failure

    def wait(
        self, is_reached: Callable[[], bool] = lambda: False, is_pointless: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when it is over, or when something else is reached.

        Args:
            is_reached: asked whenever there is news, and now and then.
            is_pointless: likewise; once it says so, or after an interrupt, the Spark jobs are cancelled.

        """
        while not (self.over or is_reached()):
            try:
                self._thread.wait(CANCEL_AGAIN_SECONDS)
                if self.interrupt is not None or is_pointless():
                    self._write.cancel_jobs()
            except BaseException as error:  # noqa: BLE001 (kept, and raised when the write is over)
                self.interrupt = self.interrupt or error


class BackgroundWrite:
    """One operation on a table, and the Spark jobs that do it.

    Args:
        metadata: more to note in the commit (JSON values).
        spark: the session.

    Attributes:
        attempt: the attempt that is executed, or was last; it proves that the operation is in the table.
        work: what is done; set when it is known what is locked.

    """

    work: Work

    def __init__(self, metadata: Mapping[str, Any], spark: SparkSession) -> None:
        self.metadata = dict(metadata)
        self.attempt = WriteAttempt.of(self.metadata)
        self._spark = spark
        self._context = spark.sparkContext
        self._tag = f"sluice-{self.attempt.write_id}"
        self._thread: _WriteThread | None = None

    @property
    def write_id(self) -> str:
        """Id of the attempt; the log has its commit under this id."""
        return self.attempt.write_id

    def new_attempt(self) -> WriteAttempt:
        """Begin another attempt, with a write id of its own, and return it."""
        self.attempt = WriteAttempt.of(self.metadata)
        return self.attempt

    def start(
        self, location: str, *, ticket: str | None = None, on_end: Callable[[], None] = lambda: None
    ) -> RunningWrite:
        """Write and commit, in a thread of its own that is bound to the attempt.

        Args:
            location: of the table.
            ticket: name of the ticket to which that thread is bound.
            on_end: called in that thread when it has ended.

        """

        def save() -> None:
            try:
                self._save(location, ticket)
            finally:
                on_end()

        self._thread = _WriteThread(save, f"sluice-write-{self.write_id}")
        return RunningWrite(self, self._thread)

    def wake(self) -> None:
        """Make the thread that waits for the write look again; may be called in any thread, also before the start."""
        if self._thread is not None:
            self._thread.wake()

    def read(self, look: Callable[[], _T], *, table: str) -> _T:
        """Run Spark jobs that look what there is to do, in this thread; :meth:`cancel_jobs` ends them, too.

        Raises:
            WriteFailedError: Spark failed.

        """
        self._context.addJobTag(self._tag)
        try:
            return look()
        except JVM_ERRORS as error:
            raise WriteFailedError(table=table, reason=one_sentence(error)) from error
        finally:
            with suppress(*JVM_ERRORS):
                self._context.removeJobTag(self._tag)

    def _save(self, location: str, ticket: str | None) -> None:
        self._context.setLocalProperty(_WRITE_PROPERTY, self.write_id)
        if ticket is not None:
            self._context.setLocalProperty(_TICKET_PROPERTY, ticket)
        follow_transactions(self._spark)
        self._context.addJobTag(self._tag)
        self.work.do(location, note_as_user_metadata(self.attempt.note, self.work.user_metadata))
        self._context.removeJobTag(self._tag)

    def cancel_jobs(self) -> None:
        """Cancel the Spark jobs of this operation, those that run now."""
        with suppress(*JVM_ERRORS):
            self._context.cancelJobsWithTag(self._tag)

    def misfit(self, error: BaseException, state: TableState | None) -> str | None:
        """Say how the rows do not fit the table's schema, if that is why the write failed.

        Args:
            error: of the write.
            state: of the table.

        """
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition is None or not condition.startswith(_SCHEMA_CONDITIONS):
            return None
        if state is None:
            return one_sentence(error)
        # Delta shows both schemas whole, over many lines, or one column of several.
        differences = type_differences(state.schema, self.work.schema())
        return mismatch(field for field in differences if not field.is_appended) or one_sentence(error)
