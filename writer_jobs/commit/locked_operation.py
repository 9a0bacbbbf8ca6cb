"""One operation under the lock: find the lock target, acquire the lock, write; repeat if the table has changed."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lock_manager import (
    LockCancelledError,
    SluiceError,
    UnsupportedLockError,
    tracing,
)
from lock_manager.deadline import Deadline
from lock_manager.errors import NotStagedError, VersionTakenError
from lock_manager.nesting import REGISTRY
from writer_jobs.commit.execution import Execution, WriterContext
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.gate_rules import reason_for_whole_write, staging_facts
from writer_jobs.commit.held_write import HeldWrite
from writer_jobs.commit.lock_target import Lock, LockTarget, PartitionFinder, find_lock_target, job_note
from writer_jobs.commit.operation import Operation
from writer_jobs.commit.options import LockDuring, RewriteOptions, lock_deadline
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.jvm_errors import error_reason, is_conflict
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.errors import RetriesExhaustedError, TableError, WriteConflictError
from writer_jobs.lineage.write_run import WriteRun
from writer_jobs.progress import shown

log = logging.getLogger(__name__)

_TRIES = 3
# Without locks, a write may lose against other writers any number of times.
_OPTIMISTIC_TRIES = 10
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 5.0
_CANCEL_SECONDS = 0.1


@dataclass(frozen=True)
class LockedOperation:
    """One operation that writes under the lock.

    Attributes:
        name: Name of the operation, such as ``merge``, for its span and its lineage events.
        operation_for: Returns the operation for a lock target and the state of the table, which is None if there is no
            table. It is called again if the table gets other partition columns before it is locked.
        options: Checked options of the caller.
        reads_table: Whether the partitions are found in the table. Other writers may write there before the lock is
            held, so the partitions are found again under the lock.

    """

    context: WriterContext
    name: str
    operation_for: Callable[[LockTarget, TableState | None], Operation]
    find_partitions: PartitionFinder
    options: RewriteOptions
    reads_table: bool = False

    def run(self) -> CommitResult:
        """Write under the lock; see :meth:`LockedDeltaWriter.append` for the errors."""
        lock = self.options.get("lock", "table")
        attributes = {
            "sluice.table": self.context.table,
            "sluice.lock": lock if isinstance(lock, str) else "partitions",
            "sluice.lock.during": self.options["lock_during"],
        }
        with tracing.span(self.name, attributes) as span, WriteRun(self.context, self.name) as run:
            execution = Execution(self.context, {**(self.options.get("metadata") or {}), **run.note})
            with shown(execution.progress, self.context.spark):
                result = run.result = self._run(run, execution)
                execution.progress.outcome = _sentence_of(result)
            span.set(
                {
                    "sluice.outcome": _outcome_of(result),
                    "sluice.version": result.version,
                    "sluice.rows": result.rows,
                    "sluice.write_id": result.commit_id,
                }
            )
            return result

    def _run(self, run: WriteRun, execution: Execution) -> CommitResult:
        context, options = self.context, self.options
        lock, lock_during = options.get("lock", "table"), options["lock_during"]
        lock_seconds = lock_deadline(options, context.manager).seconds
        deadline = Deadline(lock_seconds)
        tries = _OPTIMISTIC_TRIES if self._is_optimistic else _TRIES
        with context.cancellable(execution):
            for try_index in range(tries):
                execution.progress.plans()
                # The last try locks the table, which contains all partitions.
                is_last = try_index == tries - 1
                target = self._find_target(execution, "table" if is_last and lock == "partitions" else lock)
                snapshot = context.log.known_snapshot()
                execution.operation = self.operation_for(target, snapshot.state)
                run.start(execution.operation)
                if context.is_cancelled():
                    raise LockCancelledError(resource=context.table)
                if lock_during == "commit" and self._may_be_staged(execution.operation):
                    staged_write = StagedWrite(target, execution, snapshot)
                    try:
                        return staged_write.run(lock_seconds, options.get("before_write"))
                    except NotStagedError as error:
                        if staged_write.before_write_committed or not options.get("again", True):
                            raise self._conflict(staged_write, error) from error
                        log.info("writing again: %s", error)
                        if self._is_optimistic and is_conflict(error.__cause__):
                            self._pause(try_index, error, None if is_last else deadline)
                            lock_seconds, lock_during = deadline.remaining(), self._lock_during_after_conflict
                            continue
                        self._refuse_hooks(staged_write.hooks)
                        lock_seconds = max(0.0, lock_seconds - staged_write.waited_seconds)
                        if snapshot.state is None and try_index == 0 and context.log.known_snapshot().state is not None:
                            # Another writer created the table. A commit to it can wait at the gate.
                            continue
                        lock_during = "write"
                self._refuse_hooks(self._hooks_of(execution.operation) if self._is_optimistic else ())
                try:
                    return self._write_to(target, execution, snapshot, lock_seconds)
                except _OtherPartitionsError as error:
                    log.info("locking %s again: %s", context.table, error)
                    lock_seconds = max(0.0, lock_seconds - error.waited_seconds)
                except _FasterWriterError as error:
                    log.info("writing again: %s", error)
                    self._pause(try_index, error, None if is_last else deadline)
                    lock_seconds = deadline.remaining()
            raise AssertionError(
                "the last try locks the whole table, but the partitions of the write were not in the lock"
            )

    @property
    def _is_optimistic(self) -> bool:
        """Whether the coordinator has no locks, so that another writer may be faster each time."""
        return self.context.manager.settings.is_optimistic

    @property
    def _lock_during_after_conflict(self) -> LockDuring:
        """When a repeated write has its place in the queue: from its beginning, so that no other write is faster."""
        return "write" if self.context.manager.settings.fallback else "commit"

    def _pause(self, try_index: int, error: Exception, deadline: Deadline | None) -> None:
        """Wait for a random time before the next try.

        The longest pause doubles with each try, so that writers that meet again and again spread over time.

        Args:
            error: Why the write lost. Its cause is Delta's exception, or the guard's refusal.
            deadline: Time limit of all tries; None after the last try.

        Raises:
            RetriesExhaustedError: There is no next try.

        """
        if deadline is None or deadline.remaining() == 0 or not self.options.get("again", True):
            cause = error.__cause__
            reason = error_reason(cause) if cause is not None and is_conflict(cause) else str(error)
            raise RetriesExhaustedError(
                table=self.context.table,
                reason=f"another writer was faster each time (tries: {try_index + 1}): {reason}",
            ) from cause
        longest = min(_FIRST_PAUSE_SECONDS * 2**try_index, _MAX_PAUSE_SECONDS)
        pause = Deadline(random.uniform(0.0, longest))  # noqa: S311 (no secret)
        while pause.remaining() > 0 and not self.context.is_cancelled():
            time.sleep(min(pause.remaining(), _CANCEL_SECONDS))

    @property
    def _checks_partitions(self) -> bool:
        """Whether to make sure, under the lock, that the locked partitions are those that the operation touches."""
        return self.reads_table and self.options.get("lock") == "partitions"

    def _find_target(self, execution: Execution, lock: Lock) -> LockTarget:
        find = partial(find_lock_target, self.context.log, lock, self.find_partitions)
        # Only finding partitions takes Spark jobs.
        return execution.read(find) if lock == "partitions" else find()

    def _hooks_of(self, operation: Operation) -> Sequence[str]:
        """Return the hooks that Delta would run after a commit to the table as this driver knows it."""
        facts = staging_facts(self.context.spark, self.context.log, operation)
        return () if facts is None else facts["hooks"]

    def _refuse_hooks(self, hooks: Sequence[str]) -> None:
        """Raise if Delta would run hooks after a commit without a lock: those of two writers could overlap."""
        if hooks and self._is_optimistic:
            request = f"makes Delta run {', '.join(hooks)} after the commit"
            raise UnsupportedLockError(request, resource=self.context.table)

    def _may_be_staged(self, operation: Operation) -> bool:
        """Return whether the lock is needed for the commit alone."""
        if self._checks_partitions:
            return False
        if self._is_optimistic and self.options.get("before_write") is not None:
            # Delta's conflict check does not cover what before_write reads.
            return False
        reason = reason_for_whole_write(self.context.spark, self.context.log, operation)
        if reason is not None:
            log.debug("the lock on %s is held over the whole write: %s", self.context.table, reason)
        return reason is None

    def _conflict(self, staged_write: StagedWrite, error: NotStagedError) -> WriteConflictError:
        advice = "; before_write committed, so use lock_during='write'" if staged_write.before_write_committed else ""
        return WriteConflictError(
            table=self.context.table, reason=f"{error}{advice}", waited_seconds=staged_write.waited_seconds
        )

    def _write_to(
        self, target: LockTarget, execution: Execution, planned_snapshot: Snapshot, lock_seconds: float
    ) -> CommitResult:
        """Acquire the lock, and write an operation that was planned for ``planned_snapshot``.

        Raises:
            _OtherPartitionsError: Under the lock, the operation touches other partitions.
            _FasterWriterError: The lock did not exclude another writer, which has committed first.

        """
        context = self.context
        result: CommitResult | None = None
        is_nested = bool(REGISTRY.of(threading.current_thread()))
        execution.progress.waits()
        try:
            with (
                context.manager.acquire_all(
                    [target.scope], timeout_seconds=lock_seconds, needs_exclusion=False
                ) as hold,
                target.guarded(context.spark, hold, job_note(context.spark, context.manager)) as table,
            ):
                execution.progress.writes()
                snapshot = table.snapshot or context.log.snapshot()
                if self._checks_partitions and target.schema is not None:
                    if (state := snapshot.state) is None:
                        raise TableError(f"{context.table} was removed while its lock was waited for")
                    partitions = execution.read(lambda: self.find_partitions(state))
                    if not target.contains(partitions):
                        raise _OtherPartitionsError(hold.waited_seconds)
                if (before_write := self.options.get("before_write")) is not None:
                    before_write(hold)
                    # before_write may have committed.
                    snapshot = context.log.snapshot()
                if not snapshot.has_same_partitioning(planned_snapshot):
                    execution.operation = self.operation_for(target, snapshot.state)
                limit = self.options.get("held_at_most_seconds")
                try:
                    result = HeldWrite(execution, hold, table.block, limit).run(snapshot)
                except (VersionTakenError, WriteConflictError) as error:
                    if is_nested or hold.excludes or hold.commits:
                        raise
                    raise _FasterWriterError(error.reason) from error
        except SluiceError as error:
            if result is None:
                raise
            # The release came too late, but the commit was confirmed while the hold stood.
            log.warning("the write to %s has ended, but its lock failed afterwards: %s", context.table, error)
        return result


def _outcome_of(result: CommitResult) -> str:
    if result.already_committed:
        return "already_committed"
    return "unchanged" if result.version is None else "committed"


def _sentence_of(result: CommitResult) -> str:
    if result.already_committed:
        return "the table has these rows already"
    return "nothing to commit" if result.version is None else f"version {result.version} is committed"


class _FasterWriterError(Exception):
    """Another writer has committed first; the write can be repeated."""


class _OtherPartitionsError(Exception):
    """Under the lock, an operation touches other partitions than those that are locked."""

    def __init__(self, waited_seconds: float) -> None:
        super().__init__("the write touches other partitions by now")
        self.waited_seconds = waited_seconds
