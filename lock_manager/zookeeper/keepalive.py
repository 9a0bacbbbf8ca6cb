"""The thread that checks the holds of a manager as long as there are holds."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.hold_state import ANNOUNCE_SECONDS, HoldState
from lock_manager.zookeeper.responses import response_or_session_end
from lock_manager.zookeeper.session import KEEPALIVE_FRACTION, NO_ANSWER, Session, SessionState

log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""Seconds after the last hold was added during which a thread without holds polls for new ones. Then it sleeps."""


class KeepAlive:
    """Checks every hold often enough that :meth:`HeldLock.is_valid` stays true while the ensemble responds."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._holds: set[HoldState] = set()
        self._wakes_at = float("inf")
        self._added_at = float("-inf")
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, hold: HoldState) -> None:
        """Check ``hold`` from now on."""
        with self._changed:
            self._holds.add(hold)
            self._added_at = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-keepalive", daemon=True)
                self._session.add_waker(self._wake)
                self._thread.start()
            elif hold.next_check_at() < self._wakes_at:
                self._changed.notify()

    def remove(self, hold: HoldState) -> None:
        """Stop checking ``hold``."""
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
                self._check(holds)
            except Exception:  # every other hold depends on this thread, so no error may end it
                log.exception("could not check the holds")

    def _check(self, holds: list[HoldState]) -> None:
        for hold in holds:
            hold.check_clock()
        if self._session.state is not SessionState.CONNECTED:
            return
        due = [hold for hold in holds if hold.lost is None and hold.next_check_at() <= time.monotonic()]
        checks = [(hold, time.monotonic(), hold.send_check()) for hold in due]
        deadline = Deadline(KEEPALIVE_FRACTION * self._session.granted_seconds)
        for hold, sent_at, result in checks:
            with suppress(*NO_ANSWER):
                hold.record_check(response_or_session_end(self._session, result, deadline), sent_at)

    def _pause(self) -> float | None:
        """Return the seconds until the next check; None to sleep until notified, because there are no holds."""
        if not self._holds:
            # Polling is cheaper: to notify this thread for each of many short holds would take a fifth of their time.
            return ANNOUNCE_SECONDS if time.monotonic() < self._added_at + IDLE_SECONDS else None
        if self._session.state is not SessionState.CONNECTED:
            # No server can be asked, but the local clock must be checked. A change of state notifies this thread.
            return KEEPALIVE_FRACTION * self._session.granted_seconds
        return max(0.0, min(hold.next_check_at() for hold in self._holds) - time.monotonic())
