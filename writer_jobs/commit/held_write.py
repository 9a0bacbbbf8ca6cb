"""A write under a held lock, and how its outcome is found out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from lock_manager import Hold, LockCancelledError, LockLostError, SluiceError
from lock_manager.deadline import Deadline
from lock_manager.errors import NotStagedError
from lock_manager.guard.guarded_hold import GuardedHold, is_definite
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.background_write import BackgroundWrite
from writer_jobs.commit.driver_guard import REQUIRED, guard_mode
from writer_jobs.commit.guarded import attempts
from writer_jobs.delta.adoption import refuse_other_ensemble
from writer_jobs.delta.jvm_errors import JVM_ERRORS, LOST_CONTACT, is_conflict, is_java, one_sentence
from writer_jobs.delta.partition_values import long_folder_name
from writer_jobs.delta.session import LOG_STORE, LOG_STORE_SETTING
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import Commit, DeltaTableLog
from writer_jobs.errors import (
    CommitUnknownError,
    GuardMissingError,
    HeldTooLongError,
    SchemaMismatchError,
    StorageError,
    TableError,
    UnprovenCommitError,
    WriteFailedError,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 3


def failed_write(
    table: str, table_log: DeltaTableLog, write: BackgroundWrite, failure: BaseException
) -> WriteFailedError:
    """Return the error of a write that failed before anything of it was put."""
    with suppress(TableError, StorageError):
        misfit = write.misfit(failure, table_log.state())
        if misfit is not None:
            return SchemaMismatchError(table=table, reason=misfit)
    return WriteFailedError(table=table, reason=long_folder_name(failure) or one_sentence(failure))


@dataclass(frozen=True)
class CommitResult:
    """What became of one write.

    Attributes:
        table: canonical URI, under which it was locked.
        version: of the table, made by this write; None if it made none, because there was nothing to change.
        rows: written; None if Delta was told not to count, or the rows were written before.
        metrics: ``operationMetrics`` of the commit, as Delta notes them: ``numDeletedRows`` and so on.
        already_committed: Delta had this transaction already, so nothing was written now.
        commit_id: by which the commit is found in the log; None if there is none.
        hold_id: of the hold under which it was committed; None if no lock was asked for, because Delta had this
            transaction already, or there was nothing to change.
        token: fencing token of that hold.
        requested_at: when the lock was asked for, seconds since the epoch.
        acquired_at: acquisition time, seconds since the epoch.
        released_at: read just before it was given back.

    """

    table: str
    version: int | None
    rows: int | None
    already_committed: bool
    commit_id: str | None
    hold_id: str | None
    token: int | None
    requested_at: float
    acquired_at: float
    released_at: float
    metrics: Mapping[str, str] = field(default_factory=dict)

    @property
    def waited_seconds(self) -> float:
        """How long the lock was waited for."""
        return self.acquired_at - self.requested_at

    @property
    def held_seconds(self) -> float:
        """How long it was held."""
        return self.released_at - self.acquired_at

    @classmethod
    def of(cls, table: str, write: BackgroundWrite, hold: Hold | None, commit: Commit | None) -> CommitResult:
        """Make it of what is known at the end.

        Args:
            table: canonical URI.
            write: that was done.
            hold: under which, held still or given back; None if no lock was asked for.
            commit: that was made, with NO_VERSION if there was nothing to change; None: Delta had this transaction.

        """
        made, now = commit is not None and commit.version != NO_VERSION, time.time()
        return cls(
            table=table,
            version=commit.version if commit is not None and made else None,
            rows=commit.rows if commit is not None else None,
            already_committed=commit is None,
            commit_id=write.write_id if made else None,
            hold_id=hold.hold_id if hold is not None else None,
            token=hold.token if hold is not None else None,
            requested_at=hold.requested_at if hold is not None else now,
            acquired_at=hold.acquired_at if hold is not None else now,
            released_at=(hold.released_at or now) if hold is not None else now,
            metrics=commit.metrics if commit is not None else {},
        )


class LockedWrite:
    """One write under one hold.

    Args:
        spark: the session.
        table: canonical URI.
        table_log: of the table.
        write: what is to be done.
        hold: under which.
        bound: the hold as the commit guard knows it; None if it does not guard.
        most_seconds: after so long it is cancelled; None: never. What is being committed by then is committed.

    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        table_log: DeltaTableLog,
        write: BackgroundWrite,
        hold: Hold,
        bound: GuardedHold | None,
        most_seconds: float | None = None,
    ) -> None:
        self._spark = spark
        self._table = table
        self._log = table_log
        self._write = write
        self._work = write.work
        self._hold = hold
        self._bound = bound
        # The time runs from when the lock was acquired.
        held = max(0.0, time.time() - hold.acquired_at)
        self._most_seconds = math.inf if most_seconds is None else most_seconds
        self._time = Deadline(max(0.0, self._most_seconds - held))
        self._was_cut_off = False

    def run(self, before: Snapshot, is_cancelled: Callable[[], bool]) -> CommitResult:
        """Write, look for the commit in the log, and make sure that the hold stood then.

        Args:
            before: the table, loaded under the lock.
            is_cancelled: tells whether the writer was told to write no more.

        Raises:
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        txn = self._work.txn
        if txn is not None and before.last_transaction(txn[0]) >= txn[1]:
            return CommitResult.of(self._table, self._write, self._hold, None)
        # A hold that was lost while it was waited for, or during before_write, writes nothing.
        self._hold.check()
        if is_cancelled():
            raise LockCancelledError(resource=self._table)
        self._refuse_to_begin()
        failure, interrupt = self._save()
        try:
            commit = self.verify(before.version, failure)
            if commit is not None and commit.version != NO_VERSION:
                self._confirm(commit)
        except SluiceError:
            if interrupt is None:
                raise
            raise interrupt from failure
        except BaseException as error:
            # A second Ctrl-C, most likely, or one that came when the write was over.
            error.add_note(f"the write to {self._table} may have been committed: look for {self._write.write_id}")
            raise
        if interrupt is not None:
            if commit is not None:
                interrupt.add_note(f"the write to {self._table} had been committed, as version {commit.version}")
            raise interrupt
        return CommitResult.of(self._table, self._write, self._hold, commit)

    def _refuse_to_begin(self) -> None:
        """Raise if the commit could not be proven afterwards, or if no time is left."""
        if not self._time.remaining():
            raise self._held_too_long("no time was left to begin it")
        if not self._work.takes_metadata and (self._bound is None or not self._is_guarded()):
            raise GuardMissingError(
                f"nothing was done to {self._table}: the commit of this operation is found by what the commit guard "
                "notes in it, and the guard is off here or only observes; use append or overwrite, or required mode"
            )

    def _is_guarded(self) -> bool:
        return guard_mode(self._spark) == REQUIRED

    def _save(self) -> tuple[BaseException | None, BaseException | None]:
        """Write, again after a conflict with another writer, as long as this hold stands."""
        for attempt in range(1, _ATTEMPTS + 1):
            attempted = self._write.new_attempt()
            with self._executing(attempted):
                running = self._write.start(self._log.location)
                running.wait(is_pointless=self._is_pointless)
            failure, interrupt = running.failure, running.interrupt
            if attempt == _ATTEMPTS or interrupt is not None or self._hold.lost is not None or not is_conflict(failure):
                break
            if failure is None or self.may_be_stored(failure):
                break
            log.warning("another writer has changed %s meanwhile: writing again", self._table)
            if self._bound is not None:
                # What it committed may be that another ensemble's lock counts from now on.
                refuse_other_ensemble(self._hold, self._log.snapshot())
        if isinstance(failure, NotStagedError):
            # The lock was held throughout, so the write cannot be repeated in a safer way.
            failure = WriteFailedError(table=self._table, reason=str(failure))
        return failure, interrupt

    def _executing(self, attempt: WriteAttempt) -> AbstractContextManager[None]:
        if self._bound is None:
            return nullcontext()
        return self._bound.executing(attempt, stamps_note=not self._work.takes_metadata)

    def _is_pointless(self) -> bool:
        """Return whether to cancel the running write: not for its duration, once its put was sent.

        Delta's hooks run after the put, and a hook that is cancelled may leave a manifest without the commit's files.
        """
        self._was_cut_off = self._was_cut_off or not (self._time.remaining() or self._is_put())
        return self._hold.lost is not None or self._was_cut_off

    def _is_put(self) -> bool:
        with suppress(*JVM_ERRORS):
            return any(put["outcome"] not in ("taken", "rejected") for put in self._puts())
        return False

    def verify(self, before: int, failure: BaseException | None) -> Commit | None:
        """Look into the log for what the write did; None: Delta had this transaction already."""
        txn, write_id = self._work.txn, self._write.write_id
        try:
            commit, last = self._log.find_commit(write_id, after=before, guarded=self._is_guarded())
            skipped = (
                commit is None
                and failure is None
                and txn is not None
                and self._log.head(txn[0]).last_transaction >= txn[1]
            )
        except (StorageError, TableError) as error:
            reason = one_sentence(failure) if failure is not None else str(error)
            raise CommitUnknownError(table=self._table, reason=reason, commit_id=write_id) from failure or error
        if commit is not None:
            if failure is not None:
                log.warning("version %d of %s is committed; after that: %s", commit.version, self._table, failure)
            return commit
        if failure is not None and self._may_still_be_put(failure):
            # Also if the JVM answers again by now, as the log could be read: it may still be at it.
            raise CommitUnknownError(table=self._table, reason=one_sentence(failure), commit_id=write_id) from failure
        if isinstance(failure, SluiceError):
            # The commit guard's refusal.
            raise failure
        if failure is not None and self._hold.lost is not None:
            raise LockLostError(resource=self._table, hold_id=self._hold.hold_id, reason=self._hold.lost) from failure
        if failure is not None:
            raise self._failed(failure) from failure
        if skipped:
            return None
        if txn is None and (last == before or self._asked_for_no_commit()):
            # There was nothing to change, or Delta was told to skip empty commits (skipRecordingEmptyCommits).
            return Commit(NO_VERSION, 0)
        raise CommitUnknownError(
            table=self._table,
            reason=f"Delta reported success, but none of the versions {before + 1} to {last} is it, so another program "
            "writes this table without the lock",
            commit_id=write_id,
        )

    def _failed(self, failure: BaseException) -> WriteFailedError:
        if not self._was_cut_off:
            return failed_write(self._table, self._log, self._write, failure)
        return self._held_too_long(one_sentence(failure))

    def _held_too_long(self, problem: str) -> HeldTooLongError:
        return HeldTooLongError(
            table=self._table,
            reason=f"it was not done after {self._most_seconds:g} s with the lock ({problem})",
            waited_seconds=self._hold.waited_seconds,
            held_seconds=max(0.0, time.time() - self._hold.acquired_at),
        )

    def _asked_for_no_commit(self) -> bool:
        return self._bound is not None and not self._bound.puts_of(self._write.write_id)

    def _may_still_be_put(self, failure: BaseException) -> bool:
        """Tell whether a failed write may be in the table later: only if a put of it was sent and got no answer."""
        if isinstance(failure, LOST_CONTACT):
            return True
        if self._bound is None:
            # Another log store than ours, if the guard is off, says no more than that.
            foreign = self._spark.sparkContext.getConf().get(LOG_STORE_SETTING, "") != LOG_STORE
            return isinstance(failure, CommitUnknownError) or (foreign and is_java(failure, "java.io.IOException"))
        try:
            return not all(map(is_definite, self._puts()))
        except JVM_ERRORS:
            return True

    def may_be_stored(self, failure: BaseException) -> bool:
        """Tell whether a failed write is in the table, or may be later: Delta does more after a commit."""
        if self._may_still_be_put(failure):
            return True
        return any(put["outcome"] == "committed" for put in self._puts())

    def _puts(self) -> list[dict[str, Any]]:
        """Return the puts of the newest attempt, as the log store saw them."""
        return attempts(self._spark, self._bound, self._write.write_id) if self._bound is not None else []

    def _confirm(self, commit: Commit) -> None:
        try:
            self._hold.check()
        except SluiceError as error:
            reason = error.reason if isinstance(error, LockLostError) else str(error)
            raise UnprovenCommitError(
                resource=self._table,
                hold_id=self._hold.hold_id,
                reason=reason,
                version=commit.version,
                commit_id=self._write.write_id,
            ) from error
        self._hold.record_commit(commit.version, self._table)
