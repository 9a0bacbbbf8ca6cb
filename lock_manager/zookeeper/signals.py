"""Keep Ctrl-C, and whatever else a signal handler raises, out of the threads' bookkeeping.

Python runs signal handlers in the main thread, between any two steps of it: also inside ``Condition.wait`` or its
``__enter__``, which then leave a lock held for ever, or inside kazoo, which takes every exception there for a closed
connection (``KazooClient._call``). Kazoo's connection thread would block on that lock, and the session would die a
while after a Ctrl-C that a notebook survived. So the main thread asks another thread to do the work and waits for it
on a plain lock, which is one step. Other threads get no signals and do the work themselves.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

_INTERRUPT_SECONDS = 3.0
"""How long an interrupted call waits for its clearing up, before it leaves that to the other thread."""


_LOOK_SECONDS = 0.1
"""How often the main thread looks for signals: one that comes just before a wait begins does not end the wait."""


class _Job(Generic[_T]):
    def __init__(self, work: Callable[[], _T], undo: Callable[[_T], object] | None) -> None:
        self.work = work
        self.undo = undo
        self.done = _thread.allocate_lock()
        self.done.acquire()
        self.settling = _thread.allocate_lock()
        self.abandoned = False
        self.finished = False
        self.error: BaseException | None = None
        self.result: Any = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 (the main thread raises it)
            self.error = error
        with self.settling:
            self.finished = True
            abandoned = self.abandoned
        if abandoned:
            self.take_back()
        self.done.release()

    def value(self) -> _T:
        if self.error is not None:
            raise self.error
        result: _T = self.result
        return result

    def abandon(self) -> None:
        """Leave the result, if there will be one, to whoever finds this first: here, or the other thread."""
        with self.settling:
            self.abandoned = True
            finished = self.finished
        if finished:
            self.take_back()

    def take_back(self) -> None:
        if self.undo is not None and self.error is None:
            # Whatever it finds is second to the interrupt.
            with suppress(Exception):
                self.undo(self.result)


class SignalIsolation:
    """Runs work out of the reach of signal handlers."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[_Job[Any] | None]] = []
        self._closed = False

    def run(
        self,
        work: Callable[[], _T],
        *,
        interrupted: Callable[[], object] | None = None,
        undo: Callable[[_T], object] | None = None,
    ) -> _T:
        """Return what ``work`` returns, or raise what it raises.

        Args:
            work: to be done.
            interrupted: called when the main thread is interrupted while it waits: have the work end soon.
            undo: given the result of work that came to its end although nobody waits for it any more.

        """
        if threading.current_thread() is not threading.main_thread():
            return work()
        job = _Job(work, undo)
        try:
            self._hand_over(job)
            while not job.done.acquire(timeout=_LOOK_SECONDS):
                pass
            return job.value()
        except BaseException as error:
            if error is not job.error:
                # First of all, so that a second Ctrl-C during what follows changes nothing.
                job.abandon()
                if interrupted is not None:
                    self._hand_over(_Job(interrupted, None))
                if not job.finished:
                    job.done.acquire(timeout=_INTERRUPT_SECONDS)
            raise

    def close(self) -> None:
        """End the threads; work that is given to it later is still done."""
        self._closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().put(None)

    def _hand_over(self, job: _Job[Any]) -> None:
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="sluice-isolation", daemon=True).start()
        inbox.put(job)

    def _work(self, inbox: queue.SimpleQueue[_Job[Any] | None]) -> None:
        while (job := inbox.get()) is not None:
            job.run()
            del job
            if self._closed:
                return
            self._idle.append(inbox)
