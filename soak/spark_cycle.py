"""What a writer that is a whole Spark driver does under one lock: Delta's own transactions, behind the product's guard.

Words and points are those of :mod:`soak.cycle`. What differs: Delta names the transaction, so that it is known
when the guard is asked; the point ``data`` is just before the guard decides; and unfinished
intents are settled by :func:`writer_jobs.commit.guarded.guarded` itself. Appends and MERGEs take turns.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lock_manager import Hold, LockLostError, LockManager, SluiceError
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import note_as_user_metadata, note_of_write
from soak.controls import Protection
from soak.errors import JvmGoneError
from soak.operations import COLUMNS, rows_of
from soak.s3_faults import BESIDE
from soak.spark_worker import SparkWorker
from soak.steps import ACQUIRED, UNKNOWN, Turn
from soak.two_threads import TwoThreads
from writer_jobs.commit.guarded import guarded
from writer_jobs.delta.checkpoints import write_due_checkpoints
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import LOG_FOLDER, DeltaTableLog
from writer_jobs.merge.table_feed import UNBOUND

_TRIES = 3
_WAIT_SECONDS = 60
# The last condition spares reading every file of the table.
_MERGE = (
    "MERGE INTO delta.`{table}` AS t USING (SELECT {columns} FROM range({first}, {end})) AS s "
    "ON t.id = s.id AND t.id >= {first} WHEN NOT MATCHED THEN INSERT *"
)
# Neither stored nor on its way: also what the log store never began, because the guard refused or was too late.
_NOTHING = frozenset({"taken", "rejected", None})


@dataclass(frozen=True)
class _Attempt:
    name: str
    version: int
    txn: str


class SparkCycle:
    """One lock and one transaction.

    Args:
        worker: whose it is.
        table: URI.
        second: whether it is of the worker's second thread.

    """

    def __init__(self, worker: SparkWorker, table: str, *, second: bool = False) -> None:
        self._worker = worker
        self._table = table
        self._second = second
        self._hold: Hold
        self._log: DeltaTableLog
        self._ids: list[int] = []
        self._attempts: list[_Attempt] = []
        self._filling = False
        self._unknown = False
        self._written: _Attempt | None = None

    def run(self) -> None:
        """Do it.

        Raises:
            JvmGoneError: the JVM is dead.
            SluiceError: there was no lock.

        """
        worker = self._worker
        if not self._second:
            worker.held = {"table": self._table}
        self._point("asking")
        self._say("waiting")
        hold = self._hold = worker.manager.acquire(self._table)
        self._say("holding", waited=hold.waited_seconds, unfinished=len(hold.intents.unfinished))
        if not self._second:
            worker.held = {"table": self._table, "token": hold.token}
        hold.on_loss(lambda lost: self._say("lost", reason=lost.lost))
        worker.cycles[hold.hold_id] = self
        try:
            self._point("acquired")
            self._take_steps(ACQUIRED, hold)
            self._log = SettlingLog(worker, self._table, self._fill)
            with guarded(worker.spark, hold, self._log, {"job": worker.options.name}):
                self._transact()
                if self._second:
                    # The first thread is to write while this one holds.
                    worker.first_is_through.wait(_WAIT_SECONDS)
            if self._unknown:
                self._take_steps(UNKNOWN, hold)
        except JvmGoneError:
            raise
        except Exception as error:  # noqa: BLE001 (Spark's errors have no class in common)
            worker.refuse_without_jvm(error)
            self._say("gave-up", error=type(error).__name__, message=str(error))
        finally:
            del worker.cycles[hold.hold_id]
            self._end()

    def asked(self, request: Mapping[str, Any]) -> None:
        """Hear of an attempt, in the thread that decides on it."""
        attempt = _Attempt(str(request["attempt"]), int(request["version"]), str(request["txn"]))
        if not self._filling:
            self._point("data")
        self._say_taken(attempt.txn)
        self._attempts.append(attempt)
        facts = {"ids": []} if self._filling else self._facts()
        self._say("attempting", version=attempt.version, txn=attempt.txn, **facts)

    def told(self, outcome: Mapping[str, Any]) -> None:
        """Hear what became of a put that waited at the gate."""

    def _facts(self) -> dict[str, Any]:
        return {"ids": self._ids}

    # -- the transaction -----------------------------------------------------------------------------------------

    def _transact(self) -> None:
        spark = self._worker.spark
        newest = self._log.head().version
        rows = 0 if newest == NO_VERSION else spark.read.format("delta").load(self._table).count()
        self._say("read", version=newest, rows=rows)
        self._point("read")
        self._ids = self._worker.take_ids()
        if self._worker.without is Protection.GUARD:
            self._written = self._write_unasked(newest)
        else:
            self._written = self._ended(self._write(newest), "stored")
        if self._written is not None:
            self._point("stored")

    def _write(self, newest: int) -> Exception | None:
        """Write, again after a conflict with somebody who did not ask for the lock; return what it failed with."""
        for number in range(1, _TRIES + 1):
            self._attempts.clear()
            # The first version is an append: there is nothing to merge into.
            merges = newest != NO_VERSION and self._ids[0] // self._worker.options.rows % 2 == 1
            failure = self._tried(self._merge if merges else self._append)
            if number == _TRIES or self._hold.lost is not None or not is_conflict(failure):
                break
            for attempt in self._attempts:
                self._say("taken", version=attempt.version, txn=attempt.txn)
        return failure

    def _tried(self, write: Callable[[], object]) -> Exception | None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 (returned)
            try:
                self._worker.refuse_without_jvm(error)
            except JvmGoneError as gone:
                if self._attempts:
                    self._say("unknown", error=type(gone).__name__, message=str(gone), txn=self._attempts[-1].txn)
                raise
            return error
        return None

    def _append(self, **options: str) -> None:
        rows = rows_of(self._worker.spark, self._ids)
        rows.write.format("delta").mode("append").options(**options).save(self._table)

    def _merge(self) -> None:
        first, end = self._ids[0], self._ids[-1] + 1
        merge = _MERGE.format(table=self._table, columns=", ".join(COLUMNS), first=first, end=end)
        self._worker.spark.sql(merge).collect()

    def _write_unasked(self, newest: int) -> _Attempt | None:
        """Append without a guard, which would have said the transaction's name before: find it out afterwards."""
        self._point("data")
        name = uuid.uuid4().hex
        failure = self._tried(lambda: self._append(userMetadata=note_as_user_metadata(note_of_write({}, name))))
        commit, _ = self._log.find_commit(name, after=newest, guarded=False)
        if commit is None:
            self._say("gave-up", error=type(failure).__name__, message=str(failure))
            return None
        attempt = _Attempt(name, commit.version, self._txn_of(commit.version))
        self._say("attempting", version=attempt.version, txn=attempt.txn, ids=self._ids)
        self._say("stored", version=attempt.version, txn=attempt.txn)
        return attempt

    def _ended(self, failure: Exception | None, stored: str) -> _Attempt | None:
        """Say what became of the newest attempts; return the one that was stored, or None."""
        outcomes = self._worker.outcomes()
        if not self._attempts:
            self._say("gave-up", error=type(failure).__name__, message=str(failure))
            return None
        found = next((each for each in self._attempts if outcomes.get(each.name) == "committed"), None)
        if found is not None:
            # After that, something may have failed: the commit is there.
            self._say(stored, version=found.version, txn=found.txn)
            return found
        definite = failure is not None and all(outcomes.get(each.name) in _NOTHING for each in self._attempts)
        kind, message = "refused" if definite else "unknown", str(failure)
        self._unknown = kind == "unknown"
        self._say(kind, error=type(failure).__name__, message=message, txn=self._attempts[-1].txn)
        return None

    # -- before and after ----------------------------------------------------------------------------------------

    def _fill(self, commit: Callable[[], int]) -> int:
        self._attempts.clear()
        self._filling = True
        versions: list[int] = []
        try:
            failure = self._tried(lambda: versions.append(commit()))
        finally:
            self._filling = False
        self._ended(failure, "filled")
        if failure is not None:
            raise failure
        return versions[0]

    def _take_steps(self, moment: str, hold: Hold) -> None:
        if not self._second:
            for step in self._worker.steps.at(moment, Turn(hold, self._look, self._commit_in_two_threads)):
                self._say("step", **step)

    def _commit_in_two_threads(self, manager: LockManager) -> dict[str, Any]:
        worker, number = self._worker, next(self._worker.step_numbers)
        table = f"{self._table}{BESIDE}/{worker.options.name}/{worker.options.incarnation}-{number}"
        return TwoThreads(worker, manager, table).run()

    def _look(self) -> int:
        with guarded(self._worker.spark, self._hold, self._log, {"job": self._worker.options.name}):
            return self._log.head().version

    def _end(self) -> None:
        lost = False
        self._point("releasing")
        try:
            self._hold.release()
        except LockLostError:
            lost = True
        self._say("released", lost=lost)
        write_due_checkpoints(self._worker.spark, self._worker.manager)
        written = self._written
        if written is None:
            return
        # What was stored under a hold that is gone counts if it is there, and nobody can take it away.
        if not lost or self._is_there(written):
            self._say("acknowledged", version=written.version, txn=written.txn, ids=self._ids)
        else:
            self._say("unknown", error="LockLostError", message="the hold was lost", txn=written.txn)

    def _is_there(self, attempt: _Attempt) -> bool:
        with suppress(SluiceError, *JVM_ERRORS):
            return self._txn_of(attempt.version) == attempt.txn
        return False

    def _txn_of(self, version: int) -> str:
        line = HadoopFiles.of(self._worker.spark).read_first_line(f"{self._table}/{LOG_FOLDER}/{version:020d}.json")
        return str(json.loads(line or "{}").get("commitInfo", {}).get("txnId"))

    def _say_taken(self, txn: str) -> None:
        """Delta tries another version only when the one before was another transaction's."""
        for earlier in self._attempts[-1:]:
            if earlier.txn == txn:
                self._say("taken", version=earlier.version, txn=txn)

    def _say(self, event: str, **more: Any) -> None:
        token = {"token": self._hold.token} if hasattr(self, "_hold") else {}
        thread = {"thread": 2} if self._second else {}
        self._worker.say(event, table=self._table, **token, **thread, **more)

    def _point(self, name: str) -> None:
        if not self._second:
            self._worker.point(name)


class SettlingLog(DeltaTableLog):
    """A table's log that has the cycle look at the empty commit by which a version is filled."""

    def __init__(self, worker: SparkWorker, table: str, fill: Callable[[Callable[[], int]], int]) -> None:
        super().__init__(worker.spark, table)
        self._filled_by = fill

    def snapshot(self) -> Snapshot:
        """Return the newest version, bound to no feed: a commit that binds the table would be none of the history's."""
        snapshot = super().snapshot()
        if snapshot.state is not None:
            vars(snapshot)["state"] = replace(snapshot.state, feed=UNBOUND)
        return snapshot

    def commit_nothing(self) -> int:
        """Make an empty commit, and return its version."""
        return self._filled_by(super().commit_nothing)
