"""The queue that writers without a lock join while ZooKeeper answers (``fallback=optimistic``).

Their commits do not rely on it: they pass the checks of :mod:`lock_manager.optimistic` in any case. The queue makes
writers wait for each other instead of repeating their work. While ZooKeeper does not answer, they go on without it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any, Protocol

from lock_manager.base_hold import BaseHold
from lock_manager.base_manager import AcquireRequest
from lock_manager.coordinator import Cancellation
from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleUnavailableError, LockCancelledError, SluiceError
from lock_manager.events import Event, emit
from lock_manager.queue_entry import is_internal

log = logging.getLogger(__name__)

FALLBACK_FIELD = "fallback"
"""Field of a contender: whether its writer goes on without its place in the queue."""

_ANSWER_SECONDS = 5.0
"""Time limit for an answer of ZooKeeper. Then a writer goes on without the queue."""

_WATCH_SECONDS = 5.0
"""Interval at which a waiting writer asks whether ZooKeeper still answers, in seconds."""

_OUTAGE_SECONDS = 30.0
"""Time after an outage in which writers do not ask again, in seconds."""


class QueueManager(Protocol):
    """The part of ZooKeeper's lock manager that this module uses."""

    def check_answers(self, timeout_seconds: float) -> None:
        """Raise EnsembleUnavailableError if ZooKeeper does not answer."""

    def acquire_for(self, request: AcquireRequest, deadline: Deadline) -> BaseHold[Any]:
        """Acquire for a request of another manager; see :meth:`.BaseManager.acquire_for`."""

    def close(self) -> None:
        """End all holds, and the session."""


class CourtesyQueue:
    """Joins the queue of ZooKeeper.

    Args:
        manager: Has the session. :meth:`close` closes it.

    """

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._outage = ""
        self._asks_again_at = 0.0

    def join(self, request: AcquireRequest, deadline: Deadline) -> BaseHold[Any] | None:
        """Wait at the head of the queue; return the place, or None if ZooKeeper does not answer.

        Raises:
            LockTimeoutError: Other writers were still ahead at the deadline.
            LockCancelledError: The request was cancelled.
            EnsembleRefusedError, EnsembleFormatError: ZooKeeper answers, but cannot be used.

        """
        if any(is_internal(table) for table in request.scope):
            # Nothing waits for a checkpoint.
            return None
        place = None
        if time.monotonic() >= self._asks_again_at:
            place = self._join(request, deadline)
        if request.cancellation.requested.is_set():
            if place is not None:
                place.release()
            raise LockCancelledError(resource=request.resource)
        if place is None:
            log.warning(
                "the write to %s does not wait for other writers, because ZooKeeper does not answer (fallback): %s",
                request.resource, self._outage,
            )  # fmt: skip
            for table in request.scope:
                emit(Event.FELL_BACK, table)
        else:
            place.reports_end = False
            place.on_loss(_report_loss)
        return place

    def close(self) -> None:
        """Leave all queues, and end the session."""
        self._manager.close()

    def _join(self, request: AcquireRequest, deadline: Deadline) -> BaseHold[Any] | None:
        cancellation, has_ended = Cancellation(), threading.Event()
        request.cancellation.on_request(cancellation.request)
        queued_request = replace(
            request, identity={**request.identity, FALLBACK_FIELD: True}, cancellation=cancellation, offer=None
        )
        try:
            self._manager.check_answers(_ANSWER_SECONDS)
            threading.Thread(
                target=self._watch, args=(has_ended, cancellation), name="sluice-fallback", daemon=True
            ).start()
            return self._manager.acquire_for(queued_request, deadline)
        except EnsembleUnavailableError as error:
            self._record_outage(error)
        except LockCancelledError as error:
            log.debug("join() reports a cancelled request, or the outage that has cancelled it: %s", error)
        finally:
            has_ended.set()
        return None

    def _watch(self, has_ended: threading.Event, cancellation: Cancellation) -> None:
        """Cancel a request that waits while ZooKeeper does not answer."""
        while not has_ended.wait(_WATCH_SECONDS):
            try:
                self._manager.check_answers(_ANSWER_SECONDS)
            except EnsembleUnavailableError as error:
                self._record_outage(error)
                cancellation.request()
                return
            except SluiceError as error:
                log.debug("the request itself reports this error: %s", error)

    def _record_outage(self, error: EnsembleUnavailableError) -> None:
        self._outage = str(error)
        self._asks_again_at = time.monotonic() + _OUTAGE_SECONDS


def _report_loss(place: BaseHold[Any]) -> None:
    log.warning(
        "the write to %s goes on: with fallback=optimistic it does not rely on the lock that was lost", place.resource
    )
