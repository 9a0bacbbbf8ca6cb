"""Ctrl-C and SIGTERM: the first one stops the work, and the clean-up after it is not interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHELL_BASE = 128


class Interrupted(KeyboardInterrupt):
    """Somebody asked this program to stop (Ctrl-C, SIGTERM, or the terminal was closed).

    Attributes:
        exit_code: what a shell expects of it, 130 for Ctrl-C.

    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = _SHELL_BASE + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first such signal into :class:`Interrupted`, and ignore the next ones while the block is left.

    A signal that this process was started to ignore (``nohup``) stays ignored. Only the main thread can do this (a rule
    of Python's ``signal``).
    """

    def interrupt(number: int, _frame: object) -> None:
        for each in _ASKING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    try:
        with _handled_by(interrupt):
            yield
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        # A library has put a handler of its own in place of ours.
        raise Interrupted(signal.SIGINT) from stop


@contextmanager
def held_back() -> Iterator[None]:
    """Hold such a signal back until the block is over, which starts what can be ended only then.

    It comes then also if the block fails: what is started may have got the same signal. The handlers are again those
    from before: PySpark puts one of its own in place of that of Ctrl-C.
    """
    held: list[int] = []
    try:
        with _handled_by(lambda number, _: held.append(number)):
            yield
    finally:
        if held:
            signal.raise_signal(held[0])


@contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Have a handler take the signals that this process was not started to ignore; put back all that were there."""
    before = {number: signal.getsignal(number) for number in _ASKING}
    for number, found in before.items():
        if found is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
