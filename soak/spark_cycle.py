"""The turn of a Spark driver with the lock over the whole write: Delta's transactions behind the guard.

Events and points are those of :mod:`soak.store_cycle`, with these differences: Delta names the transaction, so its id
is known only when the guard is asked; the point ``data`` is just before the guard decides; and
:func:`writer_jobs.commit.guarded.guarded` settles unfinished intents. Appends and MERGEs take turns.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lock_manager import LockLostError, LockManager, SluiceError
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import note_as_user_metadata, note_of_write
from soak.controls import Protection
from soak.cycle import Cycle
from soak.errors import JvmGoneError
from soak.operations import COLUMNS, make_rows
from soak.s3_faults import TWO_THREADS_SUFFIX
from soak.spark_worker import GuardObserver, SparkWorker
from soak.steps import ACQUIRED, UNKNOWN, StepContext
from soak.two_threads import TwoThreads
from writer_jobs.commit.guarded import guarded
from writer_jobs.delta.checkpoints import write_due_checkpoints
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import LOG_FOLDER, DeltaTableLog
from writer_jobs.merge.table_feed import UNBOUND

_MAX_TRIES = 3
# Because of the condition on t.id, Delta skips the files of earlier rows.
_MERGE = (
    "MERGE INTO delta.`{table}` AS t USING (SELECT {columns} FROM range({first}, {end})) AS s "
    "ON t.id = s.id AND t.id >= {first} WHEN NOT MATCHED THEN INSERT *"
)
# Outcomes of an attempt that has not stored its version and cannot store it later. None: the guard refused the PUT.
_NOT_STORED = frozenset({"taken", "rejected", None})


@dataclass(frozen=True)
class Attempt:
    """An attempt to put a version: its id, the version, and Delta's id of the transaction."""

    name: str
    version: int
    txn: str


class SparkCycle(Cycle[SparkWorker], GuardObserver):
    """One hold of the lock and one transaction of Delta; see :class:`Cycle` for the arguments."""

    def __init__(self, worker: SparkWorker, table: str, *, second: bool = False) -> None:
        super().__init__(worker, table, second=second)
        self._log: DeltaTableLog
        self._ids: list[int] = []
        self._attempts: list[Attempt] = []
        self._is_filling = False
        self._is_unknown = False
        self._written: Attempt | None = None

    def run(self) -> None:
        """Acquire the lock, commit, and release the lock.

        Raises:
            JvmGoneError: The JVM has ended.
            SluiceError: The lock was not acquired.

        """
        worker, hold = self._worker, self._acquire()
        worker.cycles[hold.hold_id] = self
        try:
            self._reach("acquired")
            context = StepContext(hold, self._read_in_new_block, self._commit_in_two_threads)
            self._take_steps(ACQUIRED, context)
            self._log = SettlingLog(worker, self._table, self._fill)
            with guarded(worker.spark, hold, self._log, {"job": worker.options.name}):
                self._transact()
                self._wait_for_first_thread()
            if self._is_unknown:
                self._take_steps(UNKNOWN, context)
        except JvmGoneError:
            raise
        except Exception as error:  # noqa: BLE001 (Spark's errors have no class in common)
            worker.check_jvm(error)
            self._record("gave-up", error=type(error).__name__, message=str(error))
        finally:
            del worker.cycles[hold.hold_id]
            self._end()

    def on_put_request(self, request: Mapping[str, Any]) -> None:
        """Record an attempt, in the thread that decides on it."""
        attempt = Attempt(str(request["attempt"]), int(request["version"]), str(request["txn"]))
        if not self._is_filling:
            self._reach("data")
        self._record_taken(attempt.txn)
        self._attempts.append(attempt)
        facts = {"ids": []} if self._is_filling else self._facts()
        # The request of a light commit has the requirements for members.
        facts["light"] = "group" in request
        self._record("attempting", version=attempt.version, txn=attempt.txn, **facts)

    def _facts(self) -> dict[str, Any]:
        """Return the fields that describe the operation in the history."""
        return {"ids": self._ids}

    # -- the transaction -----------------------------------------------------------------------------------------

    def _transact(self) -> None:
        spark = self._worker.spark
        newest = self._log.head().version
        rows = 0 if newest == NO_VERSION else spark.read.format("delta").load(self._table).count()
        self._record("read", version=newest, rows=rows)
        self._reach("read")
        self._ids = self._worker.take_ids()
        if self._worker.without is Protection.GUARD:
            self._written = self._write_without_guard(newest)
        else:
            self._written = self._record_outcome(self._write(newest), "stored")
        if self._written is not None:
            self._reach("stored")

    def _write(self, newest: int) -> Exception | None:
        """Write, and retry after a conflict with a writer without the lock; return the last error, None on success."""
        for number in range(1, _MAX_TRIES + 1):
            self._attempts.clear()
            # The first version is an append, because MERGE needs a table.
            is_merge = newest != NO_VERSION and self._ids[0] // self._worker.options.rows % 2 == 1
            failure = self._try(self._merge if is_merge else self._append)
            if number == _MAX_TRIES or self._hold.lost is not None or not is_conflict(failure):
                break
            for attempt in self._attempts:
                self._record("taken", version=attempt.version, txn=attempt.txn)
        return failure

    def _try(self, write: Callable[[], object]) -> Exception | None:
        """Call ``write`` and return its error; raise JvmGoneError if the JVM has ended."""
        try:
            write()
        except Exception as error:  # noqa: BLE001 (returned)
            try:
                self._worker.check_jvm(error)
            except JvmGoneError as jvm_error:
                if self._attempts:
                    self._record("unknown", error="JvmGoneError", message=str(jvm_error), txn=self._attempts[-1].txn)
                raise
            return error
        return None

    def _append(self, **options: str) -> None:
        rows = make_rows(self._worker.spark, self._ids)
        rows.write.format("delta").mode("append").options(**options).save(self._table)

    def _merge(self) -> None:
        first, end = self._ids[0], self._ids[-1] + 1
        merge = _MERGE.format(table=self._table, columns=", ".join(COLUMNS), first=first, end=end)
        self._worker.spark.sql(merge).collect()

    def _write_without_guard(self, newest: int) -> Attempt | None:
        """Append, and find the transaction in the log afterwards, because no guard is asked about it."""
        self._reach("data")
        name = uuid.uuid4().hex
        note = note_as_user_metadata(note_of_write({}, name, time.time()))
        failure = self._try(lambda: self._append(userMetadata=note))
        commit, _ = self._log.find_commit(name, after=newest, guarded=False)
        if commit is None:
            self._record("gave-up", error=type(failure).__name__, message=str(failure))
            return None
        attempt = Attempt(name, commit.version, self._txn_of(commit.version))
        self._record("attempting", version=attempt.version, txn=attempt.txn, ids=self._ids)
        self._record("stored", version=attempt.version, txn=attempt.txn)
        return attempt

    def _record_outcome(self, failure: Exception | None, event: str) -> Attempt | None:
        """Record the outcome of the last write, ``event`` if it was stored; return the stored attempt, or None."""
        outcomes = self._worker.outcomes()
        if not self._attempts:
            self._record("gave-up", error=type(failure).__name__, message=str(failure))
            return None
        stored = next((attempt for attempt in self._attempts if outcomes.get(attempt.name) == "committed"), None)
        if stored is not None:
            # Even if a later part of the write failed, the commit is in the table.
            self._record(event, version=stored.version, txn=stored.txn)
            return stored
        is_refused = failure is not None and all(
            outcomes.get(attempt.name) in _NOT_STORED for attempt in self._attempts
        )
        self._is_unknown = not is_refused
        kind = "refused" if is_refused else "unknown"
        self._record(kind, error=type(failure).__name__, message=str(failure), txn=self._attempts[-1].txn)
        return None

    # -- before and after ----------------------------------------------------------------------------------------

    def _fill(self, commit: Callable[[], int]) -> int:
        """Make an empty commit and record it; return its version."""
        self._attempts.clear()
        self._is_filling = True
        versions: list[int] = []
        try:
            failure = self._try(lambda: versions.append(commit()))
        finally:
            self._is_filling = False
        self._record_outcome(failure, "filled")
        if failure is not None:
            raise failure
        return versions[0]

    def _commit_in_two_threads(self, manager: LockManager) -> dict[str, Any]:
        worker, number = self._worker, next(self._worker.step_numbers)
        table = f"{self._table}{TWO_THREADS_SUFFIX}/{worker.options.name}/{worker.options.incarnation}-{number}"
        return TwoThreads(worker, manager, table).run()

    def _read_in_new_block(self) -> int:
        with guarded(self._worker.spark, self._hold, self._log, {"job": self._worker.options.name}):
            return self._log.head().version

    def _end(self) -> None:
        lost = False
        self._reach("releasing")
        try:
            self._hold.release()
        except LockLostError:
            lost = True
        self._record("released", lost=lost)
        write_due_checkpoints(self._worker.spark, self._worker.manager)
        written = self._written
        if written is None:
            return
        # A stored version of a lost hold counts if it is in the table: no other writer can remove it.
        if not lost or self._is_in_table(written):
            self._record("acknowledged", version=written.version, txn=written.txn, ids=self._ids)
        else:
            self._record("unknown", error="LockLostError", message="the hold was lost", txn=written.txn)

    def _is_in_table(self, attempt: Attempt) -> bool:
        with suppress(SluiceError, *JVM_ERRORS):
            return self._txn_of(attempt.version) == attempt.txn
        return False

    def _txn_of(self, version: int) -> str:
        line = HadoopFiles.of(self._worker.spark).read_first_line(f"{self._table}/{LOG_FOLDER}/{version:020d}.json")
        return str(json.loads(line or "{}").get("commitInfo", {}).get("txnId"))

    def _record_taken(self, txn: str) -> None:
        """Record that the last version was taken if its transaction is attempted again: Delta does so only then."""
        for attempt in self._attempts[-1:]:
            if attempt.txn == txn:
                self._record("taken", version=attempt.version, txn=txn)


class SettlingLog(DeltaTableLog):
    """A table's log that passes its empty commits to the cycle.

    Args:
        worker: State of the writer process.
        table: URI.
        fill: Takes the function that makes an empty commit, calls it, and returns the version.

    """

    def __init__(self, worker: SparkWorker, table: str, fill: Callable[[Callable[[], int]], int]) -> None:
        super().__init__(worker.spark, table)
        self._fill_with = fill

    def snapshot(self) -> Snapshot:
        """Return the newest version, bound to no feed: the history would lack the commit that binds the table."""
        snapshot = super().snapshot()
        if snapshot.state is not None:
            vars(snapshot)["state"] = replace(snapshot.state, feed=UNBOUND)
        return snapshot

    def make_empty_commit(self) -> int:
        """Make an empty commit, and return its version."""
        return self._fill_with(super().make_empty_commit)
