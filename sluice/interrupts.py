"""Ctrl-C and SIGTERM: the first one stops the work, and the clean-up after it is not interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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
    before = {number: signal.getsignal(number) for number in _ASKING}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def interrupt(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
