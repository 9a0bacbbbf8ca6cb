"""SIGTERM and Ctrl-C for a job that holds a lock: stop soon, but never in the middle of a commit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ORPHAN_POLL_SECONDS = 0.5
_DEAF_SECONDS = 10.0


class Stopped(BaseException):
    """The job was asked to stop.

    Attributes:
        signum: by which signal.

    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, as shells have it."""
        return 128 + self.signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


class StopSignals:
    """While this context is open, the signals raise :class:`Stopped` in the main thread.

    Within :meth:`deferred` they only start a cancellation, and raise when the block is over. A signal handler runs
    between two instructions of the main thread, wherever it is: an exception from there could part the commit from the
    knowledge of it.

    In another thread than the main one, where Python cannot handle signals, it does nothing.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None
        self._signum: int | None = None
        self._heard_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals, again after somebody else took them: PySpark does when it starts a context."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            found = signal.signal(number, self._handle)
            self._previous.setdefault(number, found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    @contextmanager
    def deferred(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Let the block come to its end; a signal calls ``cancel``, in a thread of its own, and is raised then."""
        self._cancel = cancel
        try:
            yield
        except Exception as error:
            self._cancel = None
            self._raise_if_stopped(error)
            raise
        self._cancel = None
        self._raise_if_stopped(None)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signum is not None and now < self._heard_at + _DEAF_SECONDS:
            # It is on its way; a second exception would only disturb the giving back of the lock.
            return
        self._signum, self._heard_at = signum, now
        if self._cancel is None:
            raise Stopped(signum)
        threading.Thread(target=self._cancel, name="sluice-stop", daemon=True).start()

    def _raise_if_stopped(self, cause: Exception | None) -> None:
        if self._signum is not None:
            raise Stopped(self._signum) from cause


def stop_when_orphaned() -> None:
    """Under ``spark-submit``, send SIGTERM to this process when the driver's JVM, its parent, is gone.

    The JVM does not take Python with it when it is killed. Python would go on to wait for a lock that it cannot use.
    """
    parent = os.getppid()

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(_ORPHAN_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="sluice-orphan-watch", daemon=True).start()
