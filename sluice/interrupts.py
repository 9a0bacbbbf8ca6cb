"""Ctrl-C, SIGTERM and SIGHUP: the first signal stops the work, and later signals do not interrupt the clean-up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked this program to stop: Ctrl-C, SIGTERM, or a closed terminal.

    Attributes:
        exit_code: 128 plus the number of the signal, as shells expect it. 130 for Ctrl-C.

    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise :class:`Interrupted` at the first stop signal in the block. Ignore later ones until the block has ended.

    A signal that this process was started to ignore (``nohup``) stays ignored. Call it in the main thread only: Python
    sets signal handlers only there.
    """

    def interrupt(number: int, _frame: object) -> None:
        for stop_signal in _STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_IGN)
        raise Interrupted(number)

    try:
        with _handled_by(interrupt):
            yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        # A library has replaced this handler by its own.
        raise Interrupted(signal.SIGINT) from error


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay a stop signal until the block ends.

    Use it around the start of a process that cannot be ended during its start. The signal is raised even if the block
    fails, because the new process may have received it, too. The handlers are restored afterwards, because PySpark
    replaces the one of Ctrl-C.
    """
    deferred_signals: list[int] = []
    try:
        with _handled_by(lambda number, _: deferred_signals.append(number)):
            yield
    finally:
        if deferred_signals:
            signal.raise_signal(deferred_signals[0])


@contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Set a handler for the stop signals that this process does not ignore. Restore all handlers at the end.

    A handler that was not set by Python (None) stays: Python cannot restore it.
    """
    handlers = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    previous_handlers = {number: old_handler for number, old_handler in handlers.items() if old_handler is not None}
    for number, previous_handler in previous_handlers.items():
        if previous_handler is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)
