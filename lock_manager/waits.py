"""Reports of requests that wait for a lock: to a logger, and to observers in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lock_manager.deadline import Deadline
from lock_manager.errors import describe_queue

WAITING_LOGGER = "lock_manager.zookeeper.queue"
"""Logger on which a waiting request reports from time to time, at level INFO, what it waits for.

The name is that of ZooKeeper's module for queues. It stays, because programs set the level of this logger.
"""

LOG_SECONDS = 10.0
"""Interval of these reports, in seconds."""

OBSERVED_SECONDS = 1.0
"""Interval of the reports to observers, in seconds. With ZooKeeper, each report takes two requests."""

log = logging.getLogger(WAITING_LOGGER)


@dataclass(frozen=True)
class Wait:
    """A request that waits.

    Attributes:
        resource: Requested tables and partitions.
        seconds: How long the request has waited.
        ahead: Number of conflicting requests ahead.
        holder: Data of the first of them (``host``, ``pid``, ``job`` and so on); None if it is not known.

    """

    resource: str
    seconds: float
    ahead: int
    holder: Mapping[str, Any] | None

    @property
    def queue(self) -> str:
        """A phrase with the number of requests ahead and the first of them."""
        return describe_queue(self.ahead, self.holder)

    def __str__(self) -> str:
        return f"waiting for the lock on {self.resource} for {self.seconds:.0f} s: {self.queue}"


#: Receives the waits of a thread's acquires. It must return quickly, and must not raise.
Observer = Callable[[Wait], None]

_observer: ContextVar[Observer | None] = ContextVar("sluice_observer_of_waits", default=None)


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Report the waits of the acquires that this thread begins in the block to an observer, in another thread."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def current_observer() -> Observer | None:
    """Return the observer of the acquires that this thread begins; None if there is none."""
    return _observer.get()


class WaitReports:
    """The reports of one acquire.

    Args:
        resource: Requested tables and partitions.
        deadline: Deadline of the acquire, whose beginning is that of the wait.
        observer: Gets reports, too; None for no observer.

    """

    def __init__(self, resource: str, deadline: Deadline, observer: Observer | None) -> None:
        self._resource, self._deadline, self._observer = resource, deadline, observer
        self._logged_at = self._observed_at = time.monotonic()

    def due_seconds(self) -> float:
        """Return the seconds until the next report."""
        due_at = self._logged_at + LOG_SECONDS
        if self._observer is not None:
            due_at = min(due_at, self._observed_at + OBSERVED_SECONDS)
        return max(0.0, due_at - time.monotonic())

    def report(self, ahead: int | None, holder: Mapping[str, Any] | None) -> None:
        """Report the number of requests ahead and the data of the first one, each None if it is not known."""
        self._observed_at = time.monotonic()
        is_logged = self._observed_at - self._logged_at >= LOG_SECONDS
        if is_logged:
            self._logged_at = self._observed_at
        if ahead is None:
            return
        wait = Wait(self._resource, self._deadline.elapsed(), ahead, holder)
        if self._observer is not None:
            self._observer(wait)
        if is_logged:
            log.info("%s", wait)
