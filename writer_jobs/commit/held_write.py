"""A write that holds the lock from its beginning."""

from __future__ import annotations

import logging
import math
import time
from contextlib import nullcontext

from lock_manager import Hold, LockCancelledError, LockLostError, SluiceError
from lock_manager.deadline import Deadline
from lock_manager.errors import NotStagedError
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.driver_guard import REQUIRED, guard_mode
from writer_jobs.commit.execution import Execution
from writer_jobs.commit.outcome import Outcome, failed_write
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.adoption import refuse_other_ensemble
from writer_jobs.delta.jvm_errors import error_reason, is_conflict
from writer_jobs.delta.session import GUARD_MODE
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import (
    GuardMissingError,
    HeldTooLongError,
    UnprovenCommitError,
    WriteConflictError,
    WriteFailedError,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 3


class HeldWrite:
    """One write under a hold.

    Args:
        block: The block of the write under the hold; None if the commit guard does not guard this session.
        at_most_seconds: Seconds that the hold may last before the write is cancelled; None: no limit. A commit whose
            put was sent by then is completed.

    """

    def __init__(
        self, execution: Execution, hold: Hold, block: GuardedBlock | None, at_most_seconds: float | None = None
    ) -> None:
        self._context = execution.context
        self._execution = execution
        self._operation = execution.operation
        self._hold = hold
        self._block = block
        self._outcome = Outcome(execution, hold, block)
        # The time starts with the acquisition of the lock.
        held_seconds = max(0.0, time.time() - hold.acquired_at)
        self._at_most_seconds = math.inf if at_most_seconds is None else at_most_seconds
        self._deadline = Deadline(max(0.0, self._at_most_seconds - held_seconds))
        self._has_exceeded_time = False

    def run(self, snapshot: Snapshot) -> CommitResult:
        """Write, find the commit in the log, and make sure that the hold stood then.

        ``snapshot`` was loaded under the lock. For the errors see :meth:`LockedDeltaWriter.append`.
        """
        table = self._context.table
        if snapshot.has_transaction(self._operation.txn):
            return CommitResult.of(self._execution, self._hold, None)
        # Nothing is written if the hold was lost before this, for example during before_write.
        self._hold.check()
        if self._context.is_cancelled():
            raise LockCancelledError(resource=table)
        self._refuse_to_begin()
        failure, interrupt = self._write()
        try:
            commit = self._outcome.find_commit(snapshot.version, failure, self._error_of)
            if commit is not None and commit.version != NO_VERSION:
                self._confirm(commit)
        except SluiceError:
            if interrupt is None:
                raise
            raise interrupt from failure
        except BaseException as error:
            # Most likely a second Ctrl-C, or a Ctrl-C after the write had ended.
            error.add_note(
                f"the write to {table} may have been committed: look for {self._execution.write_id} in "
                "`sluice log --json`"
            )
            raise
        if interrupt is not None:
            if commit is not None:
                interrupt.add_note(f"the write to {table} had been committed, as version {commit.version}")
            raise interrupt
        return CommitResult.of(self._execution, self._hold, commit)

    def _refuse_to_begin(self) -> None:
        """Raise if the commit could not be proven afterwards, or if no time is left."""
        if not self._deadline.remaining():
            raise self._held_too_long("no time was left to begin it")
        if not self._operation.takes_metadata and (self._block is None or guard_mode(self._context.spark) != REQUIRED):
            raise GuardMissingError(
                f"nothing was done to {self._context.table}: the commit of this operation can be found only by the id "
                f"that the guard records in it, and {GUARD_MODE} is {guard_mode(self._context.spark)}: set it to "
                f"{REQUIRED}, or use append or overwrite"
            )

    def _write(self) -> tuple[BaseException | None, BaseException | None]:
        """Write, and repeat the write after a conflict with another writer, as long as this hold stands.

        Return the exception that ended the write, and the exception that interrupted the wait for it; None if there is
        none.
        """
        for attempt_number in range(1, _ATTEMPTS + 1):
            attempt, stamps_note = self._execution.new_attempt(), not self._operation.takes_metadata
            work, block = self._execution.start_work_span(), self._block
            with nullcontext() if block is None else block.executing(attempt, stamps_note=stamps_note, phase=work):
                thread = self._execution.start()
                thread.wait(should_cancel=self._should_cancel)
            work.end(thread.failure)
            failure, interrupt = thread.failure, thread.interrupt
            is_last = (
                attempt_number == _ATTEMPTS
                or interrupt is not None
                or self._hold.lost is not None
                or not self._hold.excludes
            )
            if is_last or failure is None or not is_conflict(failure) or self._outcome.may_be_stored(failure):
                break
            log.warning("another writer has changed %s meanwhile: writing again", self._context.table)
            if self._block is not None:
                # The other writer's commit may have bound the table to another ensemble, whose lock counts from now on.
                refuse_other_ensemble(self._hold, self._context.log.snapshot())
        if isinstance(failure, NotStagedError):
            # The lock was held throughout, so the write cannot be repeated in a safer way.
            failure = WriteFailedError(table=self._context.table, reason=str(failure))
        return failure, interrupt

    def _should_cancel(self) -> bool:
        """Return whether to cancel the running write. Once its put was sent, its duration is no reason to cancel it.

        Delta's hooks run after the put, and a hook that is cancelled may leave a manifest without the commit's files.
        """
        self._has_exceeded_time = self._has_exceeded_time or not (
            self._deadline.remaining() or self._outcome.put_was_sent()
        )
        return self._hold.lost is not None or self._has_exceeded_time

    def _error_of(self, failure: BaseException) -> WriteFailedError:
        if is_conflict(failure) and not self._hold.excludes:
            return WriteConflictError(
                table=self._context.table,
                reason=error_reason(failure),
                waited_seconds=self._hold.waited_seconds,
            )
        if not self._has_exceeded_time:
            return failed_write(self._execution, failure)
        return self._held_too_long(error_reason(failure))

    def _held_too_long(self, problem: str) -> HeldTooLongError:
        return HeldTooLongError(
            table=self._context.table,
            reason=f"it was not done after {self._at_most_seconds:g} s with the lock ({problem})",
            waited_seconds=self._hold.waited_seconds,
            held_seconds=max(0.0, time.time() - self._hold.acquired_at),
        )

    def _confirm(self, commit: Commit) -> None:
        """Make sure that the hold still stands after the commit, and record the commit in the hold."""
        try:
            self._hold.check()
        except SluiceError as error:
            reason = error.reason if isinstance(error, LockLostError) else str(error)
            raise UnprovenCommitError(
                resource=self._context.table,
                hold_id=self._hold.hold_id,
                reason=reason,
                version=commit.version,
                commit_id=self._execution.write_id,
            ) from error
        self._hold.record_commit(commit.version, self._context.table)
