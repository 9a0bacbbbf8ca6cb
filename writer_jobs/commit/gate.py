"""A write that does all its work without the lock, and holds it for the commit alone: the gate.

Delta's own command runs, unchanged, in a thread that is bound to a ticket. Its commit waits in the log store, in front
of a version that is free. The thread that called the writer then queues for the lock, with its own deadline, and can be
interrupted or cancelled as in any ``acquire``. The lock is given back as soon as the log store knows what became of the
put; the new snapshot, hooks and checkpoint come after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from lock_manager import Hold, LockCancelledError, LockManager, SluiceError
from lock_manager.coordinator import Cancellation
from lock_manager.errors import NotStagedError
from lock_manager.guard.guarded_hold import GuardedHold
from lock_manager.guard.ticket import Ticket
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.background_write import BackgroundWrite, RunningWrite
from writer_jobs.commit.guarded import guarded_commit, refuse_other_partitioning, waiting_with
from writer_jobs.commit.held_write import CommitResult, LockedWrite, failed_write
from writer_jobs.commit.lock_target import LockTarget, job_note
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.log_store import log_store
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import CommitUnknownError

log = logging.getLogger(__name__)


class StagedWrite:
    """One write through the gate.

    Args:
        spark: the session; its guard is in ``required`` mode.
        manager: gives the lock.
        table: canonical URI.
        part: what is to be locked of it.
        write: what is to be done.
        planned: The table that it is for.

    Attributes:
        waited_seconds: how long the lock was waited for, in seconds, whether it was acquired or not.

    """

    def __init__(
        self,
        spark: SparkSession,
        manager: LockManager,
        table: str,
        part: LockTarget,
        write: BackgroundWrite,
        planned: Snapshot,
    ) -> None:
        self._spark = spark
        self._manager = manager
        self._table = table
        self._log = part.log
        self._part = part
        self._write = write
        self._planned = planned
        self._ticket = Ticket(
            table,
            write.new_attempt(),
            write.wake,
            of_partitions=part.scope.partitions is not None,
            appends=write.work.rows is not None,
        )
        self._cancellation = Cancellation()
        self._hold: Hold | None = None
        self.waited_seconds = 0.0

    @property
    def commits_before(self) -> bool:
        """Whether ``before_commit`` has committed to a table, so that it must not be called again."""
        return self._hold is not None and bool(self._hold.commits)

    def run(
        self, seconds: float, before_commit: Callable[[Hold], None] | None, is_cancelled: Callable[[], bool]
    ) -> CommitResult:
        """Write, get the lock, commit, give it back.

        Args:
            seconds: for the lock.
            before_commit: called with the lock, before anything is put.
            is_cancelled: whether the writer is being stopped.

        Raises:
            NotStagedError: nothing was committed; it has to be done again, with the lock held from its beginning.
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        txn = self._write.work.txn
        if txn is not None and self._log.head(txn[0]).last_transaction >= txn[1]:
            return self._result(None)
        with waiting_with(self._spark, self._ticket):
            running = self._write.start(self._log.location, ticket=self._ticket.name, on_end=self._cancellation.request)
            return self._see_through(running, seconds, before_commit, is_cancelled)

    def _see_through(
        self,
        running: RunningWrite,
        seconds: float,
        before_commit: Callable[[Hold], None] | None,
        is_cancelled: Callable[[], bool],
    ) -> CommitResult:
        problem: BaseException | None = None
        running.wait(lambda: self._ticket.staged is not None)
        if not running.over:
            try:
                if running.interrupt is not None or is_cancelled():
                    self._cancellation.request()
                self._commit(running, seconds, before_commit)
            except BaseException as error:  # noqa: BLE001 (raised when the write is over)
                problem = error
        if problem is not None and self._ticket.committed is None:
            refusal = problem if isinstance(problem, SluiceError) else LockCancelledError(resource=self._table)
            self._ticket.refuse(refusal)
        # Also for what Delta does after a commit.
        running.wait(is_pointless=lambda: problem is not None)
        return self._conclude(running, problem)

    def _commit(self, running: RunningWrite, seconds: float, before_commit: Callable[[Hold], None] | None) -> None:
        """Get the lock, let the commit pass, and give the lock back when it is known what became of it."""
        ticket = self._ticket
        # Before the lock: whoever changes that from now on is in conflict with this commit.
        if self._part.schema is not None:
            refuse_other_partitioning(self._log.snapshot(), self._part.schema)
        # The transaction began with the newest version, and the driver knows none older since.
        if not self._log.known().is_laid_out_as(self._planned):
            raise NotStagedError(f"{self._table} has other partition columns by now")
        asked_at = time.monotonic()
        try:
            with self._manager.acquire_all(
                [self._part.scope], timeout_seconds=seconds, cancellation=self._cancellation
            ) as hold:
                self._hold = hold
                self.waited_seconds = hold.waited_seconds
                about = job_note(self._spark, self._manager)
                with guarded_commit(
                    self._spark, hold, self._log, about, ticket, schema=self._part.schema, before_commit=before_commit
                ) as bound:
                    self._commit_under(bound, running)
        except SluiceError as error:
            if self._hold is None:
                self.waited_seconds = time.monotonic() - asked_at
            if ticket.committed is None:
                raise
            # It was let pass while the hold stood, and the next holder comes after it, whatever became of the hold.
            log.warning("after the commit: %s", error)

    def _commit_under(self, bound: GuardedHold, running: RunningWrite) -> None:
        """Grant the ticket, and wait for the outcome of the put."""
        ticket, hold = self._ticket, bound.hold
        # Delta has no userMetadata for an operation other than df.write.
        with bound.executing(ticket.attempt, stamps_note=not self._write.work.takes_metadata):
            try:
                ticket.grant(bound)
            finally:
                # Also after an interrupt: the lock is not released while this may commit.
                running.wait(lambda: ticket.committed is not None)
            if ticket.committed is not None:
                hold.record_commit(ticket.committed["version"], self._table)
            else:
                locked = LockedWrite(self._spark, self._table, self._log, self._write, hold, bound)
                self._look_for_it(running.failure, hold, locked)

    def _look_for_it(self, failure: BaseException | None, hold: Hold, write: LockedWrite) -> None:
        """Find out, under the lock, whether a write that ended behind the gate, and did not say so, is in the table."""
        is_refused = failure is not None and (isinstance(failure, NotStagedError) or is_conflict(failure))
        if failure is not None and is_refused and not write.may_be_stored(failure):
            raise self._explained(failure)
        staged = self._ticket.staged
        read_version = None if staged is None else staged.read_version
        commit = write.verify(NO_VERSION if read_version is None else read_version, failure)
        if commit is not None and commit.version != NO_VERSION:
            self._ticket.committed = {"version": commit.version, "metrics": commit.metrics}
            hold.record_commit(commit.version, self._table)

    def _conclude(self, running: RunningWrite, problem: BaseException | None) -> CommitResult:
        committed, interrupt, failure = self._ticket.committed, running.interrupt, running.failure
        if committed is not None:
            commit = Commit.of(committed["version"], committed["metrics"])
            if failure is not None:
                log.warning("version %d of %s is committed; after that: %s", commit.version, self._table, failure)
            interrupt = interrupt or (problem if not isinstance(problem, SluiceError) else None)
            if interrupt is not None:
                interrupt.add_note(f"the write to {self._table} had been committed, as version {commit.version}")
                raise interrupt
            return self._result(commit)
        error = problem
        # A write that ends while its lock is waited for cancels the waiting.
        cancelled = isinstance(problem, LockCancelledError) and interrupt is None
        if failure is not None and (problem is None or cancelled):
            error = self._explained(failure)
        if error is not None and not isinstance(error, CommitUnknownError):
            self._delete_staged_files()
        if interrupt is not None:
            raise interrupt from error
        if error is not None:
            raise error
        return self._nothing_to_commit()

    def _explained(self, failure: BaseException) -> BaseException:
        """Return the error of a write that failed before its commit was let pass."""
        if isinstance(failure, SluiceError):
            return failure
        error: SluiceError
        if is_conflict(failure):
            error = NotStagedError(f"another writer has changed {self._table} meanwhile")
        else:
            error = failed_write(self._table, self._log, self._write, failure)
        error.__cause__ = failure
        return error

    def _nothing_to_commit(self) -> CommitResult:
        """Return what became of a write that succeeded, and asked for no commit."""
        txn = self._write.work.txn
        if txn is not None and self._log.head(txn[0]).last_transaction >= txn[1]:
            return self._result(None)
        return self._result(Commit(NO_VERSION, 0))

    def _delete_staged_files(self) -> None:
        with suppress(*JVM_ERRORS):
            deleted = log_store(self._spark, "StagedFiles").delete(self._ticket.name)
            if deleted:
                log.info("%d data files that belong to no commit of %s were deleted", deleted, self._table)

    def _result(self, commit: Commit | None) -> CommitResult:
        return CommitResult.of(self._table, self._write, self._hold, commit)
