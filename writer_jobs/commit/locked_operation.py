"""One operation on a table: find out what to lock, lock it, do the work; again if the table changed in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from lock_manager import Hold, LockCancelledError, LockManager, SluiceError
from lock_manager.deadline import Deadline
from lock_manager.errors import NotStagedError
from writer_jobs.commit.background_write import BackgroundWrite
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.gate_rules import HoldOver, check_hold, why_whole
from writer_jobs.commit.held_write import CommitResult, LockedWrite
from writer_jobs.commit.lock_target import Finder, Lock, LockTarget, job_note, lock_target_of
from writer_jobs.commit.operation import Work
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError, WriteConflictError

log = logging.getLogger(__name__)

_LOOKS = 3


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a caller may say of any operation; :meth:`LockedDeltaWriter.append` describes each.

    Attributes:
        lock: what to lock.
        hold: what of the work the lock is held for.
        lock_timeout_seconds: total; None: the manager's.
        metadata: more to note in the commit; JSON values.
        before_write: called under the lock.
        again: whether what cannot be committed at the gate is done again, with the lock held from its beginning.
        held_at_most_seconds: for how long the lock may be held over the work; None: for as long as it takes.

    """

    lock: Lock = "table"
    hold: HoldOver = "write"
    lock_timeout_seconds: float | None = None
    metadata: Mapping[str, Any] | None = None
    before_write: Callable[[Hold], None] | None = None
    again: bool = True
    held_at_most_seconds: float | None = None

    def deadline(self, manager: LockManager) -> Deadline:
        """Begin the time in which the lock has to be had."""
        seconds = self.lock_timeout_seconds
        return Deadline(manager.settings.timeout_seconds if seconds is None else seconds)

    def after(self, manager: LockManager, commit: CommitResult | None) -> WriteOptions:
        """Return what is left of this for a write of the same batch: the time for its lock, and what to note.

        Args:
            manager: gives the lock.
            commit: of the write before; None: there was none.

        """
        waited = 0.0 if commit is None else commit.waited_seconds
        return WriteOptions(
            lock_timeout_seconds=max(0.0, self.deadline(manager).seconds - waited), metadata=self.metadata
        )


@dataclass(frozen=True, kw_only=True)
class WriterParts:
    """What all operations of one writer share.

    Attributes:
        spark: the session.
        manager: gives the lock.
        log: of the table.
        table: canonical URI.
        is_cancelled: tells whether the writer was told to write no more.
        running: context in which the writer knows of a write, to cancel it.

    """

    spark: SparkSession
    manager: LockManager
    log: DeltaTableLog
    table: str
    is_cancelled: Callable[[], bool]
    running: Callable[[BackgroundWrite], AbstractContextManager[None]]


@dataclass(frozen=True)
class LockedOperation:
    """One operation.

    Attributes:
        parts: of the writer.
        work_on: Returns the work for a lock target and the state of the table, which is None if there is no table. It
            is called again if the table gets other partition columns before it is locked.
        find: finds out which partitions the work touches.
        options: of the caller.
        of_table: the partitions come from the table, where others may write before the lock is held: look again.

    """

    parts: WriterParts
    work_on: Callable[[LockTarget, TableState | None], Work]
    find: Finder
    options: WriteOptions
    of_table: bool = False

    def run(self) -> CommitResult:
        """Do it.

        Raises:
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        parts, options, lock = self.parts, self.options, self.options.lock
        check_hold(options.hold)
        hold, seconds = options.hold, options.deadline(parts.manager).seconds
        again = self.find if self.of_table and lock == "partitions" else None
        write = BackgroundWrite(options.metadata or {}, parts.spark)
        with parts.running(write):
            for look in range(_LOOKS):
                # The last time the table, which holds everything.
                wanted = "table" if look == _LOOKS - 1 and lock == "partitions" else lock
                target = self._target(write, wanted)
                planned = parts.log.known()
                write.work = self.work_on(target, planned.state)
                if parts.is_cancelled():
                    raise LockCancelledError(resource=parts.table)
                may_be_staged = hold == "commit" and again is None
                reason = self._why_whole(write.work) if may_be_staged else None
                if may_be_staged and reason is None:
                    staged = StagedWrite(parts.spark, parts.manager, parts.table, target, write, planned)
                    try:
                        return staged.run(seconds, options.before_write, parts.is_cancelled)
                    except NotStagedError as error:
                        if staged.commits_before or not options.again:
                            advice = "; before_write committed, so use hold='write'" if staged.commits_before else ""
                            raise WriteConflictError(
                                table=parts.table, reason=f"{error}{advice}", waited_seconds=staged.waited_seconds
                            ) from error
                        log.info("writing again: %s", error)
                        seconds = max(0.0, seconds - staged.waited_seconds)
                        if planned.state is None and look == 0 and parts.log.known().state is not None:
                            # Another writer created the table. A commit to it can wait at the gate.
                            continue
                        hold = "write"
                try:
                    return self._write_to(target, write, planned, again, seconds)
                except _LookAgainError as error:
                    log.info("locking %s again: %s", parts.table, error)
                    seconds = max(0.0, seconds - error.waited_seconds)
            raise AssertionError("the lock on the table holds everything")

    def _target(self, write: BackgroundWrite, lock: Lock) -> LockTarget:
        # Only to find partitions out takes Spark jobs.
        if lock != "partitions":
            return lock_target_of(self.parts.log, lock, self.find)
        return write.read(lambda: lock_target_of(self.parts.log, lock, self.find), table=self.parts.table)

    def _why_whole(self, work: Work) -> str | None:
        reason = why_whole(self.parts.spark, self.parts.log, work)
        if reason is not None:
            log.debug("the lock on %s is held over the whole write: %s", self.parts.table, reason)
        return reason

    def _write_to(
        self,
        target: LockTarget,
        write: BackgroundWrite,
        planned: Snapshot,
        find: Finder | None,
        seconds: float,
    ) -> CommitResult:
        """Lock, and do the work.

        Args:
            target: what to lock.
            write: the work.
            planned: The table that the work is for.
            find: finds out what it touches, to make sure that this is locked.
            seconds: for the lock.

        Raises:
            _LookAgainError: when the lock is held the work touches more than that.

        """
        parts = self.parts
        result: CommitResult | None = None
        try:
            with (
                parts.manager.acquire_all([target.scope], timeout_seconds=seconds) as hold,
                target.guarded(parts.spark, hold, job_note(parts.spark, parts.manager)) as table,
            ):
                snapshot = table.snapshot or parts.log.snapshot()
                if find is not None and target.schema is not None:
                    found = write.read(lambda: find(self._state_of(snapshot)), table=parts.table)
                    if not target.holds(found):
                        raise _LookAgainError("the write touches other partitions by now", hold.waited_seconds)
                if self.options.before_write is not None:
                    self.options.before_write(hold)
                    # It may have committed.
                    snapshot = parts.log.snapshot()
                if not snapshot.is_laid_out_as(planned):
                    write.work = self.work_on(target, snapshot.state)
                most = self.options.held_at_most_seconds
                locked = LockedWrite(parts.spark, parts.table, parts.log, write, hold, table.hold, most)
                result = locked.run(snapshot, parts.is_cancelled)
        except SluiceError as error:
            if result is None:
                raise
            # The release came too late, but the commit was confirmed while the hold stood.
            log.warning("after the write: %s", error)
        return result

    def _state_of(self, snapshot: Snapshot) -> TableState:
        state = snapshot.state
        if state is None:
            raise TableError(f"{self.parts.table} was removed while its lock was waited for")
        return state


class _LookAgainError(Exception):
    """When a write has its lock, what it was to do, or to lock, has changed."""

    def __init__(self, reason: str, waited_seconds: float) -> None:
        super().__init__(reason)
        self.waited_seconds = waited_seconds
