"""Append to a Delta table under its lock, and know afterwards what happened."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lock_manager import (
    HeldLock,
    LockCancelledError,
    LockLostError,
    SluiceError,
    ZookeeperLockManager,
    canonical_table_uri,
)
from lock_manager.guard import GuardedHold, is_definite
from writer_jobs.delta_log import NO_VERSION, STAMP, Commit, DeltaTableLog, locate_table
from writer_jobs.delta_write import CANCEL_AGAIN_SECONDS, DeltaWrite
from writer_jobs.ensembles import refuse_other_ensemble
from writer_jobs.errors import (
    CommitUnknownError,
    SchemaMismatchError,
    StorageError,
    TableError,
    UnprovenCommitError,
    WriteFailedError,
)
from writer_jobs.failures import JVM_ERRORS, LOST_CONTACT, is_conflict, one_sentence
from writer_jobs.guarded import GUARD_OFF, attach, attempts, guard_mode
from writer_jobs.partitioning import Lock, part_of
from writer_jobs.session import classic_session

log = logging.getLogger(__name__)

_ATTEMPTS = 3


@dataclass(frozen=True)
class CommitResult:
    """What became of one append.

    Attributes:
        table: canonical URI, under which it was locked.
        version: of the table, made by this append; None if it made none.
        rows: appended; None if Delta was told not to count, or the rows were appended before.
        already_committed: Delta had this transaction already, so nothing was appended now.
        commit_id: what the commit carries in its ``userMetadata``; None if there is none.
        hold_id: of the hold under which it was done.
        token: fencing token of that hold.
        requested_at: when the lock was asked for, seconds since the epoch.
        acquired_at: when it was had.
        released_at: read just before it was given back.

    """

    table: str
    version: int | None
    rows: int | None
    already_committed: bool
    commit_id: str | None
    hold_id: str
    token: int
    requested_at: float
    acquired_at: float
    released_at: float

    @property
    def waited_seconds(self) -> float:
        """How long the lock was waited for."""
        return self.acquired_at - self.requested_at

    @property
    def held_seconds(self) -> float:
        """How long it was held."""
        return self.released_at - self.acquired_at


class LockedDeltaWriter:
    """Appends to one Delta table, each time under the table's lock.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181") as manager:
            writer = LockedDeltaWriter(spark, manager, "s3a://lake/flights")
            result = writer.append(df, txn=("nightly-2026-11-21", 1))

    An append that returns is in the table, found there by its own id while the lock stood. The lock is held over the
    whole write, and the commit guard lets it pass only while it stands (:mod:`writer_jobs.guarded`). A writer that
    does not ask for it may still be faster; then the write is done again, up to three times.

    Args:
        spark: a classic session with Delta; :func:`writer_jobs.build_session` makes one.
        manager: gives the lock; it is not closed here.
        table: location (URI or path; created by the first append if there is nothing) or name in the catalog, which is
            resolved now and never again.

    Raises:
        UnsupportedSessionError: a Spark Connect session.
        GuardMissingError: an UnsupportedSessionError: a session without the guarded log store; see :func:`attach`.
        TableError: no Delta table, or none whose commits a lock could order.
        StorageError: the location cannot be read.

    """

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: str) -> None:
        self._spark = classic_session(spark)
        if guard_mode(spark) != GUARD_OFF:
            attach(spark)
        self._manager = manager
        self.log = DeltaTableLog(spark, locate_table(spark, table))
        self.log.refuse_foreign_folder()
        self.log.head()
        #: Canonical URI, under which the table is locked.
        self.table = canonical_table_uri(self.log.location)
        self._cancelled = threading.Event()
        self._changed = threading.Condition()
        self._writes: list[DeltaWrite] = []

    @property
    def location(self) -> str:
        """Qualified URI with which Spark reads and writes the table."""
        return self.log.location

    def append(
        self,
        df: DataFrame,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        txn: tuple[str, int] | None = None,
        lock: Lock = "table",
        lock_timeout_seconds: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        before_write: Callable[[HeldLock], None] | None = None,
    ) -> CommitResult:
        """Take the lock, append the rows, make sure that they are in the table, give the lock back.

        Args:
            df: the rows. A plan that reads the table itself is read under the lock too, so it sees the newest version.
            partition_by: partition columns of a new table; for an existing one, its own or none.
            options: of Delta's writer, such as ``mergeSchema``. The caller's ``userMetadata`` is kept, under ``user``.
            txn: ``(txnAppId, txnVersion)``: an append whose version is not above the last one of that application is
                not done again, and reported as ``already_committed``.
            lock: ``"table"``; ``"partitions"`` for those that the rows are in, which are found out before by one more
                pass over the rows (cache them if they are expensive); or a list of partitions by column, which the rows
                must not leave. A table that is not partitioned, or not there yet, is locked as a whole.
            lock_timeout_seconds: total, 0 means: only if it is free now. By default the manager's.
            metadata: more to note in the commit, beside its id, its hold and its token (JSON values).
            before_write: called under the lock, before anything is written; what it raises ends the append.

        Raises:
            LockTimeoutError, LockCancelledError, EnsembleUnavailableError, ClosedError: no lock, nothing written.
            LockLostError: lost before the write, or during it, which ends its Spark jobs; nothing written.
            UnprovenCommitError: a LockLostError: committed, but the lock could not be confirmed afterwards.
            WriteFailedError: nothing written; SchemaMismatchError where the rows did not fit the table.
            CommitUnknownError: a WriteFailedError: it could not be found out whether it was committed.
            TableError: the table's log is damaged, or not what decides its commits; nothing written.
            StorageError: the table's log cannot be read; nothing written.
            ResourceError: ``lock`` names no partition of the table.
            ValueError: ``options`` has what is an argument of its own.

        An interrupt (Ctrl-C) cancels the Spark jobs and is raised after the write has ended in the JVM: the lock is
        never given back while it may still commit. If it was faster, a note on the exception says so.

        """
        write = DeltaWrite(df, tuple(partition_by), dict(options or {}), txn, dict(metadata or {}), self._spark)
        result: CommitResult | None = None
        part = part_of(self._spark, self.log, df, lock)
        with self._running(write):
            try:
                with (
                    self._manager.acquire_all([part.scope], timeout_seconds=lock_timeout_seconds) as hold,
                    part.guarded(self._spark, hold, {"job": self._manager.settings.job}) as bound,
                ):
                    if before_write is not None:
                        before_write(hold)
                    result = self._append_under(hold, write, bound)
            except SluiceError as error:
                if result is None:
                    raise
                # The release came too late, but the commit was confirmed while the hold stood.
                log.warning("after the append: %s", error)
        return result

    def cancel(self) -> None:
        """Append no more, and end what :meth:`append` is doing in other threads; return when that has ended.

        One that waits raises LockCancelledError (as does whatever else waits for this table through the same manager),
        one that writes WriteFailedError, unless its commit was faster. Not to be called in a signal handler, but in a
        thread that the handler starts: the interrupted thread may hold what is needed here.
        """
        self._cancelled.set()
        while True:
            self._manager.cancel(self.table)
            with self._changed:
                for write in self._writes:
                    write.cancel_jobs()
                if not self._changed.wait_for(lambda: not self._writes, CANCEL_AGAIN_SECONDS):
                    continue
            return

    @contextmanager
    def _running(self, write: DeltaWrite) -> Iterator[None]:
        with self._changed:
            self._writes.append(write)
        try:
            yield
        finally:
            with self._changed:
                self._writes.remove(write)
                self._changed.notify_all()

    def _append_under(self, hold: HeldLock, write: DeltaWrite, bound: GuardedHold | None) -> CommitResult:
        head = self.log.head(write.txn[0] if write.txn else None)
        if write.txn is not None and head.last_transaction >= write.txn[1]:
            return self._result(hold, None, None)
        # A hold that was lost while it was waited for, or during before_write, writes nothing.
        hold.check()
        if self._cancelled.is_set():
            raise LockCancelledError(resource=self.table)
        failure, interrupt = self._save(hold, write, bound)
        try:
            commit = self._verify(hold, write, bound, head.version, failure)
            if commit is not None and commit.version != NO_VERSION:
                self._confirm(hold, commit, write.commit_id)
        except SluiceError:
            if interrupt is None:
                raise
            raise interrupt from failure
        if interrupt is not None:
            if commit is not None:
                interrupt.add_note(f"the append to {self.table} had been committed, as version {commit.version}")
            raise interrupt
        return self._result(hold, commit, write.commit_id)

    def _save(
        self, hold: HeldLock, write: DeltaWrite, bound: GuardedHold | None
    ) -> tuple[BaseException | None, BaseException | None]:
        """Write, again after a conflict with somebody who did not ask for the lock, as long as this hold stands."""
        before = set(bound.passed) if bound is not None else set()
        for attempt in range(1, _ATTEMPTS + 1):
            failure, interrupt = write.save(
                self.location, self._stamp(write), is_pointless=lambda: hold.lost is not None
            )
            if attempt == _ATTEMPTS or interrupt is not None or hold.lost is not None or not is_conflict(failure):
                break
            if failure is None or self._may_be_stored(failure, bound, before):
                break
            log.warning("a writer without the lock was faster on %s: writing again", self.table)
            if bound is not None:
                # What it committed may be that another ensemble's lock counts from now on.
                refuse_other_ensemble(hold, self.log)
        return failure, interrupt

    def _verify(
        self, hold: HeldLock, write: DeltaWrite, bound: GuardedHold | None, before: int, failure: BaseException | None
    ) -> Commit | None:
        """Look into the log for what the write did; None: Delta had this transaction already."""
        try:
            commit, last = self.log.find_commit(write.commit_id, after=before)
            skipped = (
                commit is None
                and failure is None
                and write.txn is not None
                and self.log.head(write.txn[0]).last_transaction >= write.txn[1]
            )
        except (StorageError, TableError) as error:
            reason = one_sentence(failure) if failure is not None else str(error)
            raise CommitUnknownError(table=self.table, reason=reason, commit_id=write.commit_id) from failure or error
        if commit is not None:
            if failure is not None:
                log.warning("version %d of %s is committed; after that: %s", commit.version, self.table, failure)
            return commit
        if failure is not None and self._may_still_be_put(failure, bound):
            # Also if the JVM answers again by now, as the log could be read: it may still be at it.
            raise CommitUnknownError(
                table=self.table, reason=one_sentence(failure), commit_id=write.commit_id
            ) from failure
        if isinstance(failure, SluiceError):
            # The commit guard's refusal.
            raise failure
        if failure is not None and hold.lost is not None:
            raise LockLostError(resource=self.table, hold_id=hold.hold_id, reason=hold.lost) from failure
        if failure is not None:
            raise self._failed(write, failure) from failure
        if skipped:
            return None
        if write.txn is None and last == before:
            # Delta was told to skip empty commits (skipRecordingEmptyCommits), and there were no rows.
            return Commit(NO_VERSION, 0)
        raise CommitUnknownError(
            table=self.table,
            reason=f"Delta reported success, but none of the versions {before + 1} to {last} is it, so another program "
            "writes this table without the lock",
            commit_id=write.commit_id,
        )

    def _may_still_be_put(self, failure: BaseException, bound: GuardedHold | None) -> bool:
        """Tell whether a failed write may be in the table later: only if a put of it was sent and got no answer."""
        if isinstance(failure, LOST_CONTACT):
            return True
        if bound is None:
            return isinstance(failure, CommitUnknownError)
        try:
            return not all(map(is_definite, attempts(self._spark, bound)))
        except JVM_ERRORS:
            return True

    def _may_be_stored(self, failure: BaseException, bound: GuardedHold | None, before: set[str]) -> bool:
        """Tell whether a failed write is in the table, or may be later: Delta does more after a commit."""
        if self._may_still_be_put(failure, bound):
            return True
        known = attempts(self._spark, bound) if bound is not None else []
        return any(each["outcome"] == "committed" and each["attempt"] not in before for each in known)

    def _failed(self, write: DeltaWrite, failure: BaseException) -> WriteFailedError:
        with suppress(TableError, StorageError):
            misfit = write.misfit(failure, self.log.state())
            if misfit is not None:
                return SchemaMismatchError(table=self.table, reason=misfit)
        return WriteFailedError(table=self.table, reason=one_sentence(failure))

    def _confirm(self, hold: HeldLock, commit: Commit, commit_id: str) -> None:
        try:
            hold.check()
        except SluiceError as error:
            reason = error.reason if isinstance(error, LockLostError) else str(error)
            raise UnprovenCommitError(
                resource=self.table,
                hold_id=hold.hold_id,
                reason=reason,
                version=commit.version,
                commit_id=commit_id,
            ) from error
        hold.record_commit(commit.version)

    def _stamp(self, write: DeltaWrite) -> str:
        stamp = {**write.metadata, "commit_id": write.commit_id}
        user = {} if write.user_metadata is None else {"user": write.user_metadata}
        return json.dumps({STAMP: stamp, **user}, separators=(",", ":"))

    def _result(self, hold: HeldLock, commit: Commit | None, commit_id: str | None) -> CommitResult:
        made = commit is not None and commit.version != NO_VERSION
        return CommitResult(
            table=self.table,
            version=commit.version if commit is not None and made else None,
            rows=commit.rows if commit is not None else None,
            already_committed=commit is None,
            commit_id=commit_id if made else None,
            hold_id=hold.hold_id,
            token=hold.token,
            requested_at=hold.requested_at,
            acquired_at=hold.acquired_at,
            released_at=time.time(),
        )
