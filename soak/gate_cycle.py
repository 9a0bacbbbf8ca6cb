"""What a writer that is a whole Spark driver does through the gate: the product's own writer, with the lock at the end.

Words and points are those of :mod:`soak.cycle`. What differs: rows are computed and written before the lock is
asked for, ``acquired`` and ``read`` are under it, and ``stored`` and ``releasing`` are where the log store has told
what became of the put, before the lock is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from lock_manager import Hold, LockLostError, LockManager, SluiceError
from lock_manager.intents import NO_VERSION
from soak.errors import JvmGoneError
from soak.operations import Operation
from soak.spark_cycle import SettlingLog, SparkCycle
from soak.steps import ACQUIRED
from writer_jobs import CommitUnknownError, LockedDeltaWriter
from writer_jobs.errors import UnprovenCommitError


class GateCycle(SparkCycle):
    """One transaction, and the lock for its commit."""

    def run(self) -> None:
        """Do it.

        Raises:
            JvmGoneError: the JVM is dead.
            SluiceError: there was no lock.

        """
        worker = self._worker
        worker.held = {"table": self._table}
        self._had: list[str] = []
        self._told_stored = False
        self._log = SettlingLog(worker, self._table, self._fill)
        self._operation = self._chosen()
        self._ids = list(self._operation.ids)
        manager = cast("LockManager", _Telling(worker.manager, self._asking, self._acquired))
        writer = LockedDeltaWriter(worker.spark, manager, self._table)
        writer.log = self._log
        try:
            self._acknowledge(self._operation.run(worker.spark, writer, self._read))
        except JvmGoneError:
            raise
        except Exception as error:  # noqa: BLE001 (Spark's errors have no class in common)
            self._fail(error)
        finally:
            for hold_id in self._had:
                del worker.cycles[hold_id]

    def told(self, outcome: Mapping[str, Any]) -> None:
        """Hear what became of a put, in the thread that is told, while the lock is held."""
        if outcome["outcome"] == "committed":
            self._say_stored(str(outcome["attempt"]))
            self._point("stored")
            self._point("releasing")

    def _chosen(self) -> Operation:
        worker = self._worker
        ids = worker.take_ids()
        if self._log.head().version == NO_VERSION:
            return Operation("append", ids)
        deletable = worker.deletable[self._table]
        chosen = Operation.of(ids, worker.options.name, deletable[0] if deletable else ())
        if chosen.deletes:
            # A batch is deleted once, also if the outcome is unknown.
            deletable.popleft()
        return chosen

    def _facts(self) -> dict[str, Any]:
        return self._operation.facts

    def _fill(self, commit: Callable[[], int]) -> int:
        try:
            return super()._fill(commit)
        finally:
            # What became of it is said; it is no attempt of this transaction's.
            self._attempts.clear()

    def _asking(self) -> None:
        for before in self._attempts[-1:]:
            self._say("refused", error="NotStagedError", message="done again with the lock", txn=before.txn)
        self._attempts.clear()
        self._point("asking")
        self._say("waiting")

    def _acquired(self, hold: Hold) -> None:
        worker = self._worker
        self._hold = hold
        self._say("holding", waited=hold.waited_seconds, unfinished=len(hold.intents.unfinished))
        worker.held = {"table": self._table, "token": hold.token}
        hold.on_loss(lambda lost: self._say("lost", reason=lost.lost))
        worker.cycles[hold.hold_id] = self
        self._had.append(hold.hold_id)
        self._point("acquired")
        self._take_steps(ACQUIRED, hold)

    def _read(self, _: Hold) -> None:
        """Look which version is the newest: nothing of a hold before this one may come behind it."""
        self._say("read", version=self._log.head().version)
        self._point("read")

    def _say_stored(self, attempt: str) -> None:
        found = next((each for each in self._attempts if each.name == attempt), None)
        if found is not None and not self._told_stored:
            self._told_stored = True
            self._say("stored", version=found.version, txn=found.txn)

    def _acknowledge(self, version: int | None) -> None:
        # Without an attempt, or a version, the verdict finds that nothing was done.
        txn = self._attempts[-1].txn if self._attempts else None
        # What had the lock from its beginning, or was found in the log, was not told.
        if self._attempts:
            self._say_stored(self._attempts[-1].name)
        self._say("released", lost=self._hold.lost is not None)
        self._say("acknowledged", version=version, txn=txn, **self._facts())
        if self._ids:
            self._worker.deletable[self._table].append(self._ids)

    def _fail(self, error: Exception) -> None:
        gone: JvmGoneError | None = None
        try:
            self._worker.refuse_without_jvm(error)
        except JvmGoneError as problem:
            gone = problem
        facts = {"error": type(gone or error).__name__, "message": str(error)}
        if not self._attempts:
            self._say("gave-up", **facts)
        else:
            unknown = gone is not None or isinstance(error, CommitUnknownError | UnprovenCommitError)
            refused = isinstance(error, SluiceError) and not unknown
            self._say("refused" if refused else "unknown", **facts, txn=self._attempts[-1].txn)
        if self._had:
            self._say("released", lost=isinstance(error, LockLostError) or self._hold.lost is not None)
        if gone is not None:
            raise gone


class _Telling:
    """A lock manager that says when it asks for a lock, and when it has given one, before anything is done with it."""

    def __init__(self, manager: LockManager, asking: Callable[[], None], had: Callable[[Hold], None]) -> None:
        self._manager = manager
        self._asking = asking
        self._had = had

    def acquire_all(self, *tables: Any, **how: Any) -> Hold:
        self._asking()
        hold = self._manager.acquire_all(*tables, **how)
        try:
            self._had(hold)
        except BaseException:
            hold.release()
            raise
        return hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)
