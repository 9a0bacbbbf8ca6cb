"""A write that is prepared without the lock and holds it for its commit alone: the gate.

Delta's own command runs in a thread that is bound to a ticket. Its commit waits in the log store, in front of a version
that is free. The thread that called the writer then queues for the lock, with its own deadline, and can be interrupted
or cancelled as in any ``acquire``. The lock is released as soon as the log store knows the outcome of the put. Delta's
new snapshot, hooks and checkpoint follow after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from lock_manager import Hold, LockCancelledError, SluiceError, tracing
from lock_manager.coordinator import Cancellation, Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import ContenderGoneError, NotStagedError
from lock_manager.events import Event, emit
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.guard.ticket import Ticket
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.execution import Execution, WriteThread
from writer_jobs.commit.guarded import guarded_commit, refuse_other_partitioning, waiting_with
from writer_jobs.commit.lock_target import LockTarget, job_note
from writer_jobs.commit.offered_write import OfferedWrite
from writer_jobs.commit.outcome import Outcome, failed_write
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import CommitUnknownError

log = logging.getLogger(__name__)


class StagedWrite:
    """One write through the gate, in a session whose guard is in ``required`` mode.

    ``snapshot`` is the table's snapshot that was used to plan the operation.

    Attributes:
        waited_seconds: Seconds that the write waited for the lock, whether it was acquired or not.

    """

    def __init__(self, target: LockTarget, execution: Execution, snapshot: Snapshot) -> None:
        self._context = execution.context
        self._target = target
        self._execution = execution
        self._snapshot = snapshot
        self._ticket = Ticket(
            execution.context.table,
            execution.new_attempt(),
            execution.wake,
            of_partitions=target.partitions is not None,
            appends=execution.operation.rows is not None,
        )
        self._cancellation = Cancellation()
        self._hold: Hold | None = None
        self._offered = OfferedWrite(execution, self._ticket)
        self._requested_at = time.time()
        self.waited_seconds = 0.0

    @property
    def hooks(self) -> Sequence[str]:
        """Names of Delta's hooks that need the lock over the whole write, if the commit was refused because of them."""
        return self._ticket.refused_hooks

    @property
    def before_write_committed(self) -> bool:
        """Whether ``before_write`` has committed to a table, so that it must not be called again."""
        return self._hold is not None and bool(self._hold.commits)

    def run(self, lock_seconds: float, before_write: Callable[[Hold], None] | None) -> CommitResult:
        """Write, acquire the lock, call ``before_write``, commit, and release the lock.

        Raises:
            NotStagedError: Nothing was committed; repeat the write with the lock held from its beginning.
            SluiceError: See :meth:`LockedDeltaWriter.append`.

        """
        context = self._context
        if self._has_transaction():
            return self._result(None)
        with waiting_with(context.spark, self._ticket):
            work = self._execution.start_work_span()
            self._execution.progress.writes()
            thread = self._execution.start(ticket=self._ticket.name, on_end=self._cancellation.request)
            problem: BaseException | None = None
            thread.wait(lambda: self._ticket.staged is not None)
            work.end(thread.failure)
            if not thread.has_ended:
                try:
                    if thread.interrupt is not None or context.is_cancelled():
                        self._cancellation.request()
                    self._commit(thread, lock_seconds, before_write)
                except BaseException as error:  # noqa: BLE001 (raised when the write has ended)
                    problem = self._offered.resolve(error)
            if problem is not None and self._ticket.committed is None:
                refusal = problem if isinstance(problem, SluiceError) else LockCancelledError(resource=context.table)
                self._ticket.refuse(refusal)
            after: AbstractContextManager[object] = nullcontext()
            if self._ticket.committed is not None:
                self._execution.progress.finishes()
                after = tracing.span("after")
            # Delta does more after a commit; wait for that, too.
            with after:
                thread.wait(should_cancel=lambda: problem is not None)
            return self._conclude(thread, problem)

    def _commit(self, thread: WriteThread, lock_seconds: float, before_write: Callable[[Hold], None] | None) -> None:
        """Acquire the lock and let the commit pass, or offer it to a holder of the lock."""
        context, target = self._context, self._target
        # Checked before the lock: a writer that changes the partitioning from now on is in conflict with this commit.
        if target.schema is not None:
            refuse_other_partitioning(context.log.snapshot(), target.schema)
        # The transaction began with a version that the driver had loaded, so it knows that version or a newer one.
        if not context.log.known_snapshot().has_same_partitioning(self._snapshot):
            raise NotStagedError(f"{context.table} has other partition columns by now")
        offer = None if before_write is not None or target.partitions is not None else self._offered.make_offer()
        deadline = Deadline(lock_seconds)
        try:
            self._commit_once(thread, lock_seconds, before_write, offer)
        except ContenderGoneError as error:
            problem = self._offered.resolve(error)
            if problem is error:
                # The session was lost, or another client removed the request. Each offer is made only once.
                self._commit_once(thread, deadline.remaining(), before_write, None)
            elif problem is not None:
                raise problem from error

    def _commit_once(
        self,
        thread: WriteThread,
        lock_seconds: float,
        before_write: Callable[[Hold], None] | None,
        offer: Offer | None,
    ) -> None:
        """Acquire the lock, let the commit pass, and release the lock when the outcome of the put is known."""
        context, target, ticket = self._context, self._target, self._ticket
        self._requested_at, waiting = time.time() - self.waited_seconds, Deadline(lock_seconds)
        self._execution.progress.waits(ticket.staged.file_count if ticket.staged is not None else None)
        try:
            with context.manager.acquire_all(
                [target.scope],
                timeout_seconds=lock_seconds,
                cancellation=self._cancellation,
                offer=offer,
                needs_exclusion=False,
            ) as hold:
                self._hold = hold
                self.waited_seconds += hold.waited_seconds
                self._execution.progress.holds()
                note = job_note(context.spark, context.manager)
                with (
                    tracing.start("gate") as gate,
                    guarded_commit(
                        context.spark,
                        hold,
                        context.log,
                        note,
                        ticket,
                        schema=target.schema,
                        scope=target.confinement,
                        before_commit=before_write,
                    ) as block,
                ):
                    self._grant(block, thread, gate)
        except SluiceError as error:
            if self._hold is None:
                self.waited_seconds += waiting.elapsed()
            if ticket.committed is None:
                raise
            if ticket.is_member:
                return
            # The commit passed while the hold stood. The next holder comes after it, even if the hold is lost now.
            log.warning("the commit to %s is stored, but its lock failed afterwards: %s", context.table, error)

    def _grant(self, block: GuardedBlock, thread: WriteThread, gate: tracing.Span) -> None:
        """Grant the ticket, and wait for the outcome of the put. ``gate`` ends when the guard is asked."""
        ticket, operation = self._ticket, self._execution.operation
        # Delta has no userMetadata for an operation other than df.write.
        with block.executing(ticket.attempt, stamps_note=not operation.takes_metadata, phase=gate):
            self._execution.progress.commits()
            try:
                ticket.grant(block)
            finally:
                # Also after an interrupt: the lock is not released while the write may commit.
                thread.wait(lambda: ticket.committed is not None)
            if ticket.committed is not None:
                self._record_commit(block)
            else:
                self._find_commit(thread.failure, block)

    def _record_commit(self, block: GuardedBlock) -> None:
        """Record the commit in the hold, if it was made under it."""
        if self._ticket.committed is not None and not self._ticket.is_member:
            block.hold.record_commit(self._ticket.committed["version"], self._context.table)

    def _find_commit(self, failure: BaseException | None, block: GuardedBlock) -> None:
        """Find out, under the lock, whether a write that ended without an outcome of its put is in the table."""
        outcome = Outcome(self._execution, block.hold, block)
        is_refused = failure is not None and (isinstance(failure, NotStagedError) or is_conflict(failure))
        error_of: Callable[[BaseException], SluiceError] = partial(failed_write, self._execution)
        if failure is not None and is_refused and not outcome.may_be_stored(failure):
            error_of = self._error_of
            if not self._offered.was_made:
                raise error_of(failure)
            # The conflict may be one with this append, in an earlier holder's version.
        staged_commit = self._ticket.staged
        read_version = None if staged_commit is None else staged_commit.read_version
        version = NO_VERSION if read_version is None else read_version
        try:
            commit = outcome.find_commit(version, failure, error_of)
        except CommitUnknownError:
            raise
        except SluiceError:
            self._offered.is_unresolved = False
            raise
        if commit is not None and commit.version != NO_VERSION:
            is_member = not block.puts_of(self._execution.write_id)
            self._ticket.record_commit(commit.version, commit.metrics, is_member=is_member)
            self._record_commit(block)

    def _conclude(self, thread: WriteThread, problem: BaseException | None) -> CommitResult:
        """Return the result of a write that has ended, or raise its error.

        ``problem`` is the exception of this thread while the write waited for its lock; None if there was none.
        """
        table, committed = self._context.table, self._ticket.committed
        interrupt, failure = thread.interrupt, thread.failure
        if committed is not None:
            commit = Commit.of(committed["version"], committed["metrics"])
            if self._ticket.is_member:
                emit(Event.COMMITTED, table)
                emit(Event.GROUPED, table)
            if failure is not None:
                log.warning(
                    "version %d of %s is committed, but Delta failed afterwards: %s", commit.version, table, failure
                )
            interrupt = interrupt or (problem if not isinstance(problem, SluiceError) else None)
            if interrupt is not None:
                interrupt.add_note(f"the write to {table} had been committed, as version {commit.version}")
                raise interrupt
            return self._result(commit)
        error = problem
        # A write that ends while its lock is waited for cancels the wait.
        is_cancelled = isinstance(problem, LockCancelledError) and interrupt is None
        if failure is not None and (problem is None or is_cancelled):
            error = self._error_of(failure)
            if self._ticket.staged is None and self._has_changed():
                # The rows were checked against the version that this driver knew.
                error = NotStagedError(f"another writer has changed schema or properties of {table} meanwhile")
                error.__cause__ = failure
        if error is not None and not isinstance(error, CommitUnknownError) and not self._offered.is_unresolved:
            self._delete_staged_files()
        if interrupt is not None:
            raise interrupt from error
        if error is not None:
            raise error
        # The write succeeded without a commit.
        return self._result(None if self._has_transaction() else Commit(NO_VERSION, 0))

    def _has_transaction(self) -> bool:
        """Return whether the table has the transaction of this write already."""
        txn = self._execution.operation.txn
        return txn is not None and self._context.log.head(txn[0]).last_transaction >= txn[1]

    def _has_changed(self) -> bool:
        """Return whether schema, properties or protocol of the table have changed since the operation was planned."""
        if self._snapshot.state is None:
            return False
        try:
            return not self._context.log.snapshot().has_same_metadata(self._snapshot)
        except (SluiceError, *JVM_ERRORS):
            return False

    def _error_of(self, failure: BaseException) -> SluiceError:
        """Return the error for the guard's refusal, Delta's conflict or another error before the commit was allowed."""
        if isinstance(failure, SluiceError):
            return failure
        conflict = NotStagedError(f"another writer has changed {self._context.table} meanwhile")
        error: SluiceError = conflict if is_conflict(failure) else failed_write(self._execution, failure)
        error.__cause__ = failure
        return error

    def _delete_staged_files(self) -> None:
        with suppress(*JVM_ERRORS):
            count = log_store(self._context.spark, "StagedFiles").delete(self._ticket.name)
            if count:
                log.info("%d data files that belong to no commit of %s were deleted", count, self._context.table)

    def _result(self, commit: Commit | None) -> CommitResult:
        if self._ticket.is_member:
            return CommitResult.of_member(self._execution, commit, self._requested_at, self.waited_seconds)
        return CommitResult.of(self._execution, self._hold, commit)
