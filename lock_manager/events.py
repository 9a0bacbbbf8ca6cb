"""Events of this process's locks and commits, for observers. By default there are no observers.

An observer is called in the thread of the event, often while an internal lock is held. It must be quick, must not
block, and must not use a lock manager. Its exceptions are logged and change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

log = logging.getLogger(__name__)


class Event(StrEnum):
    """The kind of an event."""

    #: An ``acquire`` began.
    QUEUED = "queued"
    #: An ``acquire`` got the lock. ``seconds`` is how long it waited.
    ACQUIRED = "acquired"
    #: An ``acquire`` does not wait for other writers, because ZooKeeper does not answer (fallback).
    FELL_BACK = "fell back"
    #: An ``acquire`` failed: timeout, cancellation, interrupt, no ensemble. ``seconds`` is how long it waited.
    GAVE_UP = "gave up"
    #: An ``acquire`` with an offer left the queue, because a holder has committed the offer or the request was removed.
    #: ``seconds`` is how long it waited.
    DISMISSED = "dismissed"
    #: A hold was released. ``seconds`` is how long it was held.
    RELEASED = "released"
    #: The loss of a hold was noticed. ``seconds`` is the time since its acquisition.
    LOST = "lost"
    #: A write was committed.
    COMMITTED = "committed"
    #: A write of this process was committed in another writer's version. The event COMMITTED precedes it.
    GROUPED = "grouped"
    #: The commit guard refused a commit, which is made nevertheless in ``observe`` mode. ``error`` is the name of the
    #: error class.
    REFUSED = "refused"
    #: An ``acquire``, the check of a commit, or the start of a job failed, because the coordinator did not answer or
    #: refused. ``error`` is the name of the error class.
    UNAVAILABLE = "unavailable"
    #: A holder found an unfinished intent, and its version exists now.
    INTENT_SETTLED = "intent settled"
    #: A holder found an unfinished intent and could not settle it, so the intent stays for the next holder.
    INTENT_LEFT = "intent left"


class Observer(Protocol):
    """A callable that receives events."""

    def __call__(self, event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
        """Handle an event on a table, given by its canonical URI."""


_observers: dict[object, Observer] = {}


def observe(observer: Observer) -> Callable[[], None]:
    """Add an observer of all later events; return a function that removes it."""
    key = object()
    _observers[key] = observer

    def remove() -> None:
        _observers.pop(key, None)

    return remove


def emit(event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
    """Call every observer with an event."""
    for observer in list(_observers.values()):
        try:
            observer(event, table, seconds=seconds, error=error)
        except Exception:  # a failing observer must not end a hold
            log.exception("an observer of events raised an exception at the event %r", event.value)
