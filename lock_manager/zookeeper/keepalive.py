"""The thread that asks the ensemble about every hold, for as long as anything is held."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any, Protocol

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.asking import answer_or_end
from lock_manager.zookeeper.session import KEEPALIVE_FRACTION, NO_ANSWER, Session, SessionState

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 1.0
"""A hold longer than this tells in its contender's data since when it holds; shorter ones are spared the request."""

IDLE_SECONDS = 10.0
"""How long after the last hold the thread goes on waking by itself, before it sleeps until it is woken."""


class KeptHold(Protocol):
    """A hold, as far as it is asked about here; see :class:`Standing`."""

    @property
    def lost(self) -> str | None:
        """How it was lost, None as long as that is not known."""

    def due_at(self) -> float:
        """Monotonic time at which the ensemble is to be asked next."""

    def ask(self) -> Any:
        """Send the question whether it stands; return kazoo's AsyncResult."""

    def learn(self, outcome: object, sent_at: float, *, announced: bool = False) -> None:
        """Take in the answer, or what kazoo raised."""

    def look_at_clock(self) -> None:
        """Count it as lost if our own clock says so."""


class KeepAlive:
    """Asks the ensemble about every hold, often enough that :meth:`HeldLock.is_valid` stays true while it should."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._holds: set[KeptHold] = set()
        self._wakes_at = float("inf")
        self._added_at = float("-inf")
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, hold: KeptHold) -> None:
        """Look after ``hold``."""
        with self._changed:
            self._holds.add(hold)
            self._added_at = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-keepalive", daemon=True)
                self._session.add_waker(self._wake)
                self._thread.start()
            elif hold.due_at() < self._wakes_at:
                self._changed.notify()

    def remove(self, hold: KeptHold) -> None:
        """Look after it no more."""
        with self._changed:
            self._holds.discard(hold)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while not self._session.closed:
            with self._changed:
                if self._session.closed:
                    return
                pause = self._pause()
                self._wakes_at = float("inf") if pause is None else time.monotonic() + pause
                self._changed.wait(pause)
                holds = list(self._holds)
            try:
                self._look_after(holds)
            except Exception:  # whatever it was, this thread is what every other hold depends on
                log.exception("could not look after the holds")

    def _look_after(self, holds: list[KeptHold]) -> None:
        for hold in holds:
            hold.look_at_clock()
        if self._session.state is not SessionState.CONNECTED:
            return
        due = [hold for hold in holds if hold.lost is None and hold.due_at() <= time.monotonic()]
        asked = [(hold, time.monotonic(), hold.ask()) for hold in due]
        deadline = Deadline(KEEPALIVE_FRACTION * self._session.granted_seconds)
        for hold, sent_at, result in asked:
            with suppress(*NO_ANSWER):
                hold.learn(answer_or_end(self._session, result, deadline), sent_at, announced=True)

    def _pause(self) -> float | None:
        """Seconds until there is something to do; None while nothing is held, nor was of late."""
        if not self._holds:
            # Waking this thread for each of many short holds would cost them a fifth of their time.
            return ANNOUNCE_SECONDS if time.monotonic() < self._added_at + IDLE_SECONDS else None
        if self._session.state is not SessionState.CONNECTED:
            # Nobody can be asked; a change of state wakes this thread, and the clock has to be looked at.
            return KEEPALIVE_FRACTION * self._session.granted_seconds
        return max(0.0, min(hold.due_at() for hold in self._holds) - time.monotonic())
