"""Protect the state of threads and kazoo from Ctrl-C and other exceptions that signal handlers raise.

Python runs signal handlers in the main thread, between any two steps. If a handler raises inside ``Condition.wait`` or
its ``__enter__``, a lock stays held forever. Kazoo's connection thread would block on that lock, and the session would
end a while after a Ctrl-C that a notebook survived. If it raises inside kazoo, kazoo takes every exception for a closed
connection (``KazooClient._call``). So the main thread lets another thread do the work and waits for it on a plain lock,
which is one step. Other threads get no signals and do the work themselves.
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
"""Maximum wait of an interrupted call for its clean-up, in seconds. Then the other thread finishes it alone."""

_POLL_SECONDS = 0.1
"""Interval at which the main thread checks for signals: one that arrives just before a wait does not end the wait."""


class _Job(Generic[_T]):
    """A function call that another thread executes for the main thread."""

    def __init__(self, work: Callable[[], _T], undo: Callable[[_T], object] | None) -> None:
        self.error: BaseException | None = None
        self.is_finished = False
        #: Held until the call has ended and, if the job was abandoned, its result is undone.
        self.done_lock = _thread.allocate_lock()
        self.done_lock.acquire()
        self._work = work
        self._undo = undo
        self._result: Any = None
        self._is_abandoned = False
        self._lock = _thread.allocate_lock()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 (the main thread raises it)
            self.error = error
        with self._lock:
            self.is_finished = True
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self._undo_result()
        self.done_lock.release()

    def result(self) -> _T:
        """Return the result or raise the error of the call."""
        if self.error is not None:
            raise self.error
        result: _T = self._result
        return result

    def abandon(self) -> None:
        """Undo the result: here if the call has ended, otherwise in the other thread when it ends."""
        with self._lock:
            self._is_abandoned = True
            is_finished = self.is_finished
        if is_finished:
            self._undo_result()

    def _undo_result(self) -> None:
        if self._undo is not None and self.error is None:
            # The caller sees the interrupt, not an error of the undo.
            with suppress(Exception):
                self._undo(self._result)


class SignalIsolation:
    """Runs functions where signal handlers cannot interrupt them."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[_Job[Any] | None]] = []
        self._closed = False

    def run(
        self,
        work: Callable[[], _T],
        *,
        on_interrupt: Callable[[], object] | None = None,
        undo: Callable[[_T], object] | None = None,
    ) -> _T:
        """Return the result of ``work``, or raise its error.

        Args:
            on_interrupt: Called if a signal interrupts the main thread while it waits. It makes ``work`` end soon.
            undo: Called with the result of ``work`` if the main thread no longer waits for it.

        """
        if threading.current_thread() is not threading.main_thread():
            return work()
        job = _Job(work, undo)
        try:
            self._hand_over(job)
            while not job.done_lock.acquire(timeout=_POLL_SECONDS):
                pass
            return job.result()
        except BaseException as error:
            if error is not job.error:
                # Abandon the job first, so that a second Ctrl-C during the next steps changes nothing.
                job.abandon()
                if on_interrupt is not None:
                    self._hand_over(_Job(on_interrupt, None))
                if not job.is_finished:
                    job.done_lock.acquire(timeout=_INTERRUPT_SECONDS)
            raise

    def close(self) -> None:
        """End the threads. A later :meth:`run` still works."""
        self._closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().put(None)

    def _hand_over(self, job: _Job[Any]) -> None:
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="sluice-isolation", daemon=True).start()
        inbox.put(job)

    def _serve(self, inbox: queue.SimpleQueue[_Job[Any] | None]) -> None:
        while (job := inbox.get()) is not None:
            job.run()
            del job
            if self._closed:
                return
            self._idle.append(inbox)
