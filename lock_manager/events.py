"""Events of this process's locks and commits, for observers. By default there are none.

An observer is called in the thread in which it happens, often with a lock of ours held: it must be quick, must not
block, and must not use a lock manager. What it raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

log = logging.getLogger(__name__)


class Event(StrEnum):
    """What happened, and what ``seconds`` says of it."""

    #: An ``acquire`` began.
    QUEUED = "queued"
    #: It got the lock; seconds that it waited.
    ACQUIRED = "acquired"
    #: It did not: timed out, cancelled, interrupted, no ensemble; seconds that it waited.
    GAVE_UP = "gave up"
    #: A hold was given back in order; seconds that it was held.
    RELEASED = "released"
    #: A hold turned out to be lost; seconds since the acquisition.
    LOST = "lost"
    #: A version was committed under a hold.
    COMMITTED = "committed"
    #: The commit guard refused a commit; ``error`` is the name of what it raised.
    REFUSED = "refused"


class Observer(Protocol):
    """Who is told."""

    def __call__(self, event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
        """Take note of an event on a table (its canonical URI)."""


_observers: tuple[Observer, ...] = ()
_changing = threading.Lock()


def observe(observer: Observer) -> Callable[[], None]:
    """Have ``observer`` told from now on; return what ends that."""
    global _observers  # noqa: PLW0603 (an assignment, so that telling needs no lock)
    with _changing:
        _observers = (*_observers, observer)

    def end() -> None:
        global _observers  # noqa: PLW0603
        with _changing:
            _observers = tuple(each for each in _observers if each is not observer)

    return end


def tell(event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
    """Tell every observer."""
    for observer in _observers:
        try:
            observer(event, table, seconds=seconds, error=error)
        except Exception:  # an observer's bug must not end a hold
            log.exception("an observer raised at %r", event.value)
