"""SIGTERM and Ctrl-C for a job that holds a lock: stop soon, but not in the middle of a commit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ORPHAN_POLL_SECONDS = 0.5
_IGNORE_SECONDS = 10.0


class JobStopped(BaseException):
    """A signal stopped the job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, as in shells."""
        return 128 + self.signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


class StopSignals:
    """A context manager: inside it, the signals raise :class:`JobStopped` in the main thread.

    Inside :meth:`deferred` a signal starts a cancellation, and is raised when the block ends. A signal handler runs
    between any two instructions of the main thread: an exception from it could be raised after a commit and before the
    program notes the commit.

    Outside the main thread Python cannot handle signals, and the context does nothing.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None
        self._signum: int | None = None
        self._received_at = 0.0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Install the signal handlers. PySpark replaces them when it starts a context, so they are installed again."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous_handler = signal.signal(number, self._handle)
            self._previous_handlers.setdefault(number, previous_handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Let the block finish. A signal calls ``cancel`` in a thread of its own, and is raised after the block."""
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
        if self._signum is not None and now < self._received_at + _IGNORE_SECONDS:
            # The job is stopping. A second exception would interrupt the release of the lock.
            return
        self._signum, self._received_at = signum, now
        if self._cancel is None:
            raise JobStopped(signum)
        threading.Thread(target=self._cancel, name="sluice-stop", daemon=True).start()

    def _raise_if_stopped(self, cause: Exception | None) -> None:
        if self._signum is not None:
            raise JobStopped(self._signum) from cause


def stop_when_orphaned() -> None:
    """Send SIGTERM to this process when its parent, the driver's JVM of ``spark-submit``, ends.

    A JVM that is killed does not end Python. Python would wait for a lock that it cannot use.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="sluice-orphan-watch", daemon=True).start()
