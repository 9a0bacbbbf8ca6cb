"""The intents of one hold on one table, in the object of its queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from lock_manager.intents import Intent
from lock_manager.s3_lease import state
from lock_manager.s3_lease.contender import LeaseContender
from lock_manager.s3_lease.state import Queue


class Confirm(Protocol):
    """Type of a function that changes the queue of a contender if the hold stands."""

    def __call__(self, contender: LeaseContender, request_name: str, change: Callable[[Queue], Queue]) -> None:
        """Change the queue; raise the errors of :meth:`Hold.check` if the hold does not stand."""


class LeaseIntents:
    """Implements :class:`lock_manager.coordinator.Intents`."""

    def __init__(self, contender: LeaseContender, confirm: Confirm, check: Callable[[], Any]) -> None:
        self._contender = contender
        self._confirm = confirm
        self._check = check
        self._unfinished = contender.queue.unfinished()
        self._lock = threading.Lock()
        self._open: dict[str, Intent] = {}
        self._highest_version = -1

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Hold ids of the unfinished intents that existed when the hold began and are not cleared yet."""
        return tuple(intent.hold_id for intent in self._unfinished)

    @property
    def open(self) -> Mapping[str, int]:
        """Version that each attempt may put, by attempt id, for the attempts of this hold whose outcome is unknown."""
        with self._lock:
            return {attempt: intent.version for attempt, intent in self._open.items()}

    @property
    def settled(self) -> bool:
        """Whether the hold has written an intent, and the outcome of all its puts is known."""
        with self._lock:
            return self._highest_version >= 0 and not self._open

    def settle(self, attempts: Iterable[str]) -> None:
        """Record that the outcome of these attempts is known."""
        with self._lock:
            for attempt in attempts:
                self._open.pop(attempt, None)

    def record(self, intent: Intent, members: Mapping[str, str]) -> dict[str, str]:
        """Write the hold's intent over its previous one; see :meth:`lock_manager.coordinator.Hold.intend`.

        The attempt is open afterwards. If this method raises, the attempt is not made and not open.

        Args:
            intent: The intent, without members.
            members: Write ids of waiting requests, by hold id.

        Returns:
            The members that were still waiting. The intent names their write ids.

        """
        waiting: dict[str, str] = {}

        def change(queue: Queue) -> Queue:
            waiting.clear()
            waiting.update(
                {name: write_id for name, write_id in members.items() if self._contender.is_waiting(queue, name)}
            )
            return state.intend(queue, self._merged(replace(intent, members=tuple(waiting.values()))))

        with self._lock:
            # Open before the request: if its response is too late for the log store, the attempt still counts as open.
            self._open[intent.attempt] = intent
        try:
            self._confirm(self._contender, "write an intent", change)
        except BaseException:
            self.settle([intent.attempt])
            raise
        return waiting

    def _merged(self, intent: Intent) -> Intent:
        """Return the intent to store: it covers all open attempts.

        A slower thread of this hold, whose version is taken by now, must not hide the intent of a later put.
        """
        with self._lock:
            self._open[intent.attempt] = intent
            self._highest_version = max(self._highest_version, intent.version)
            members = [member for open_intent in self._open.values() for member in open_intent.members]
        return replace(intent, version=self._highest_version, members=tuple(members))

    def read(self) -> list[Intent]:
        """Return the unfinished intents of earlier holds; raise the errors of :meth:`Hold.check`."""
        self._check()
        return list(self._unfinished)

    def clear(self) -> None:
        """Delete the unfinished intents; see :meth:`lock_manager.coordinator.Intents.clear`."""
        if self._unfinished:
            cleared = self._unfinished
            self._confirm(self._contender, "clear intents", lambda queue: state.clear(queue, cleared))
            self._unfinished = ()
