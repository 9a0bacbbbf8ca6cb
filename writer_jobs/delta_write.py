"""A write of Delta's in a thread of its own: it can be cancelled, waited for, and said what went wrong with."""

from __future__ import annotations

import _thread
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from writer_jobs.delta_log import TableState
from writer_jobs.errors import WriteFailedError
from writer_jobs.failures import JVM_ERRORS, one_sentence
from writer_jobs.work import Work

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 0.2
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
        # Plain locks: what a signal handler raises cannot leave them half taken, as it can a Condition.
        self._settling = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
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
                # No interrupt: Spark's properties could not be had, because the JVM is gone.
                self.failure = error
                return None
            if self.over:
                self.failure = RuntimeError("interrupted before the write began")
            return error
        return None

    def wait(self, seconds: float) -> None:
        """Wait for the end, or so long."""
        self._ended.acquire(timeout=seconds)

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
            self._ended.release()


class DeltaWrite:
    """One operation on a table, and the Spark jobs that do it.

    Args:
        metadata: more to note in the commit (JSON values).
        spark: the session.

    Attributes:
        commit_id: by which the commit is found in the log.
        work: what is done; set when it is known what is locked.

    """

    work: Work

    def __init__(self, metadata: Mapping[str, Any], spark: SparkSession) -> None:
        self.commit_id = str(uuid.uuid4())
        self.metadata = dict(metadata)
        self._context = spark.sparkContext
        self._tag = f"sluice-{self.commit_id}"

    def save(
        self, location: str, user_metadata: str, *, is_pointless: Callable[[], bool]
    ) -> tuple[BaseException | None, BaseException | None]:
        """Write and commit, in a thread of its own; return how it failed and what interrupted it.

        An interrupt ends a call into the JVM for Python only. In a thread of its own the write can be cancelled and
        waited for, so that nothing happens to the table behind the back of whoever gives the lock back.

        Args:
            location: of the table.
            user_metadata: of the commit.
            is_pointless: asked again and again while the write goes on; once it says so the Spark jobs are cancelled.

        """
        thread = _WriteThread(lambda: self._save(location, user_metadata), f"sluice-write-{self.commit_id}")
        interrupt = thread.begin()
        while not thread.over:
            try:
                thread.wait(CANCEL_AGAIN_SECONDS)
                if interrupt is not None or is_pointless():
                    self.cancel_jobs()
            except BaseException as error:  # noqa: BLE001 (kept, and raised when the write is over)
                interrupt = interrupt or error
        return thread.failure, interrupt

    def read(self, look: Callable[[], T], *, table: str) -> T:
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

    def _save(self, location: str, user_metadata: str) -> None:
        self._context.addJobTag(self._tag)
        self.work.do(location, user_metadata)
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
        known = {name.lower() for name in state.schema.names} if state else set()
        unknown = [name for name in self.work.columns if name.lower() not in known]
        # Delta shows both schemas whole, over many lines.
        return f"the table has no column {', '.join(unknown)}" if state and unknown else one_sentence(error)
