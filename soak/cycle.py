"""One turn of a writer: one hold of the lock and one transaction. Common to all engines."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from lock_manager import Hold
from soak.steps import StepContext
from soak.worker import Worker

_WAIT_SECONDS = 60

WorkerT = TypeVar("WorkerT", bound=Worker)


class Cycle(Generic[WorkerT]):
    """One hold of the lock and one transaction.

    Args:
        worker: State of the writer process.
        table: URI.
        second: Whether the cycle runs in the worker's second thread, where it stops at no points and takes no steps.

    """

    def __init__(self, worker: WorkerT, table: str, *, second: bool = False) -> None:
        self._worker = worker
        self._table = table
        self._second = second
        self._hold: Hold
        self._fields: dict[str, Any] = {"table": table, **({"thread": 2} if second else {})}
        if not second:
            worker.hold_fields = {"table": table}

    def _acquire(self) -> Hold:
        self._record_wait()
        hold = self._worker.manager.acquire(self._table)
        self._record_hold(hold)
        return hold

    def _record_wait(self, **fields: Any) -> None:
        self._reach("asking")
        self._record("waiting", **fields)

    def _record_hold(self, hold: Hold) -> None:
        """Record a hold, and later its loss. The token is a field of all later events."""
        self._hold = hold
        self._fields["token"] = hold.token
        self._record("holding", waited=hold.waited_seconds, unfinished=len(hold.intents.unfinished))
        if not self._second:
            self._worker.hold_fields = {"table": self._table, "token": hold.token}
        hold.on_loss(lambda lost: self._record("lost", reason=lost.lost))

    def _wait_for_first_thread(self) -> None:
        """In the second thread, keep the hold until the first thread has tried to write."""
        if self._second:
            self._worker.first_thread_done.wait(_WAIT_SECONDS)

    def _take_steps(self, moment: str, context: StepContext) -> None:
        if not self._second:
            for step in self._worker.steps.take(moment, context):
                self._record("step", **step)

    def _record(self, event: str, **fields: Any) -> None:
        self._worker.record(event, **self._fields, **fields)

    def _reach(self, point: str) -> None:
        if not self._second:
            self._worker.reach(point)
