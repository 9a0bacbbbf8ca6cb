"""One operation on a table: find out what to lock, lock it, do the work; again if the table changed in between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, LockManager, SluiceError
from lock_manager.errors import NotStagedError
from writer_jobs.commit.background_write import BackgroundWrite
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.gate_rules import why_whole
from writer_jobs.commit.held_write import CommitResult, LockedWrite
from writer_jobs.commit.lock_target import Finder, Lock, LockTarget, job_note, lock_target_of
from writer_jobs.commit.operation import Work
from writer_jobs.commit.options import RewriteOptions, lock_deadline
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError, WriteConflictError

log = logging.getLogger(__name__)

_LOOKS = 3


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
    options: RewriteOptions
    of_table: bool = False

    def run(self) -> CommitResult:
        """Do it.

        Raises:
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        parts, options = self.parts, self.options
        lock, lock_during = options.get("lock", "table"), options["lock_during"]
        seconds = lock_deadline(options, parts.manager).seconds
        again = self.find if self.of_table and lock == "partitions" else None
        write = BackgroundWrite(options.get("metadata") or {}, parts.spark)
        with parts.running(write):
            for look in range(_LOOKS):
                # The last time the table, which holds everything.
                wanted = "table" if look == _LOOKS - 1 and lock == "partitions" else lock
                target = self._target(write, wanted)
                planned = parts.log.known()
                write.work = self.work_on(target, planned.state)
                if parts.is_cancelled():
                    raise LockCancelledError(resource=parts.table)
                may_be_staged = lock_during == "commit" and again is None
                reason = self._why_whole(write.work) if may_be_staged else None
                if may_be_staged and reason is None:
                    staged = StagedWrite(parts.spark, parts.manager, parts.table, target, write, planned)
                    try:
                        return staged.run(seconds, options.get("before_write"), parts.is_cancelled)
                    except NotStagedError as error:
                        if staged.commits_before or not options.get("again", True):
                            advice = ""
                            if staged.commits_before:
                                advice = "; before_write committed, so use lock_during='write'"
                            raise WriteConflictError(
                                table=parts.table, reason=f"{error}{advice}", waited_seconds=staged.waited_seconds
                            ) from error
                        log.info("writing again: %s", error)
                        seconds = max(0.0, seconds - staged.waited_seconds)
                        if planned.state is None and look == 0 and parts.log.known().state is not None:
                            # Another writer created the table. A commit to it can wait at the gate.
                            continue
                        lock_during = "write"
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
                if (before_write := self.options.get("before_write")) is not None:
                    before_write(hold)
                    # It may have committed.
                    snapshot = parts.log.snapshot()
                if not snapshot.is_laid_out_as(planned):
                    write.work = self.work_on(target, snapshot.state)
                most = self.options.get("held_at_most_seconds")
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
