"""One acquire: join the queues of the requested tables one after the other, and wait in each."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

from lock_manager import tracing
from lock_manager.base_hold import HoldLife
from lock_manager.base_manager import AcquireRequest
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    ContenderGoneError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockTimeoutError,
)
from lock_manager.s3_lease.contender import GoneError, LeaseContender
from lock_manager.s3_lease.queue_object import QueueObject
from lock_manager.s3_lease.store import REQUEST_SECONDS
from lock_manager.scope import TableScope
from lock_manager.waits import WAITING_LOGGER, WaitReports

log = logging.getLogger(WAITING_LOGGER)

TRY_SECONDS = 15.0
"""Time limit of a try-lock (timeout 0) for the answers of S3, in seconds. It never waits in the queue."""

_ABANDON_SECONDS = 3.0
"""Time limit for leaving the queues after a failed acquire, in seconds. Then the clean-up goes on in the background."""

_POLL_SECONDS, _MAX_POLL_SECONDS = 0.1, 2.0
"""Shortest and longest pause between two looks at the queue, in seconds. Each look is one GET."""

_POLLS_IN_A_WAIT = 50
"""Number of looks at the queue after which their interval has doubled."""

_POLLS_IN_A_LEASE = 15
"""Number of looks at the queue in a lease, at least: a request that does not notice its turn is removed."""


class Acquisition:
    """One attempt to hold the locks of a request.

    Tables are locked in the order of their URIs, and each before the next one is requested, so that no two requests
    wait for each other. The locks that it has already are renewed while it waits for the next one.

    Args:
        request: The request.
        deadline: Time limit. 0 seconds acquire only a free lock.
        lease_seconds: Time without a renewal after which other clients remove an entry.
        connect: Connects, within the deadline for answers.
        queue_of: Returns the object of a table's queue.
        discard: Removes entries from their queues in the background.

    """

    def __init__(
        self,
        request: AcquireRequest,
        deadline: Deadline,
        *,
        lease_seconds: float,
        connect: Callable[[Deadline, Callable[[], object]], object],
        queue_of: Callable[[str], QueueObject],
        discard: Callable[[list[LeaseContender]], None],
    ) -> None:
        self.request = request
        self.deadline = deadline
        self.hold_id = uuid.uuid4().hex
        self.contenders: list[LeaseContender] = []
        self._lease_seconds = lease_seconds
        self._connect, self._queue_of, self._discard = connect, queue_of, discard
        self._try_only = deadline.seconds == 0
        self._response_deadline = Deadline(TRY_SECONDS) if self._try_only else deadline
        #: Ends the pause between two looks at the queue.
        self._wake = threading.Event()
        self._reports = WaitReports(request.resource, deadline, request.observer)
        request.cancellation.on_request(self._wake.set)

    def connect(self) -> object:
        """Connect if necessary, so that the id of the coordinator is known."""
        return self._connect(self._response_deadline, self._raise_if_cancelled)

    def run(self) -> list[LeaseContender]:
        """Return the entries that hold the lock, one for each table.

        Raises:
            LockTimeoutError: Other contenders were still ahead at the deadline.
            LockCancelledError: The request was cancelled.
            ContenderGoneError: The request has an offer, and its entry has left the queue.
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: S3 cannot be used.

        """
        self.connect()
        while True:
            try:
                for scope in self.request.scope.values():
                    self._lock(scope)
                self._raise_if_cancelled()
                self._raise_if_lost()
            except _EarlierLockLostError as error:
                log.warning("the request for %s begins again: %s", self.request.resource, error)
                self.abandon()
                # Entries that are not removed yet have the old id.
                self.hold_id = uuid.uuid4().hex
            else:
                return self.contenders

    def abandon(self) -> None:
        """Leave the queues, whether or not the state of the entries in them is certain."""
        deadline = Deadline(_ABANDON_SECONDS)
        while self.contenders:
            contender = self.contenders[-1]
            contender.stop_beats()
            try:
                contender.leave(deadline, is_forced=True)
            except Exception:  # the caller raises the error of the acquire
                log.warning("a request for %s has not left its queue yet", contender.table, exc_info=True)
                self._discard(self.contenders)
                self.contenders = []
                return
            self._offer_is_certain()
            self.contenders.pop()

    def _lock(self, scope: TableScope) -> None:
        """Join the queue of a table and wait until the entry holds the lock."""
        while True:
            contender = self._new_contender(scope)
            try:
                if not self._join(contender):
                    tracing.current().set({"sluice.lock.ahead": len(contender.ahead())})
                    self._wait(contender)
            except GoneError:
                if self.request.offer is not None:
                    raise ContenderGoneError(resource=self.request.resource) from None
                log.warning(
                    "another client removed the request for %s from the queue: it joins the end again", scope.table.uri
                )
                self.contenders.remove(contender)
            else:
                contender.start_beats(HoldLife(self._wake.set))
                return

    def _new_contender(self, scope: TableScope) -> LeaseContender:
        offer = self.request.offer
        contender = LeaseContender(
            self._queue_of(scope.table.uri),
            scope,
            self.hold_id,
            lease_seconds=self._lease_seconds,
            data=self.request.identity,
            offer=None if offer is None else offer.data,
        )
        self.contenders.append(contender)
        return contender

    def _join(self, contender: LeaseContender) -> bool:
        offer = self.request.offer
        if offer is not None:
            offer.requests.append(self.hold_id)
            offer.is_uncertain = True
        try:
            holds = contender.join(self._response_deadline, self._raise_if_cancelled)
        except EnsembleUnavailableError:
            if contender.queue_object.is_contended:
                raise self._timeout_error(contender) from None
            raise
        self._offer_is_certain()
        return holds

    def _wait(self, contender: LeaseContender) -> None:
        """Look at the queue until the entry holds the lock."""
        count, moved_at, holds = 0, 0.0, False
        while not holds:
            ahead = contender.ahead()
            if self._try_only or self.deadline.remaining() == 0:
                raise self._timeout_error(contender)
            if len(ahead) != count:
                count, moved_at = len(ahead), time.monotonic()
            self._report(contender)
            self._wake.wait(min(self._poll_seconds(count, time.monotonic() - moved_at), self.deadline.remaining()))
            self._wake.clear()
            self._raise_if_cancelled()
            self._raise_if_lost()
            try:
                holds = contender.poll(self._response_deadline, self._raise_if_cancelled)
                if not holds:
                    contender.renew_offer(self._response_deadline, self._raise_if_cancelled)
            except EnsembleUnavailableError:
                if time.monotonic() - contender.confirmed_at > REQUEST_SECONDS:
                    raise

    def _timeout_error(self, contender: LeaseContender) -> LockTimeoutError:
        ahead = contender.ahead()
        return LockTimeoutError(
            resource=self.request.resource,
            timeout_seconds=self.deadline.seconds,
            ahead=len(ahead),
            holder=dict(ahead[0].data) if ahead else None,
        )

    def _poll_seconds(self, ahead: int, waited_seconds: float) -> float:
        """Return the time until the next look: short if the turn may be near."""
        longest = min(_MAX_POLL_SECONDS, self._lease_seconds / _POLLS_IN_A_LEASE)
        return min(max(_POLL_SECONDS * ahead, waited_seconds / _POLLS_IN_A_WAIT), longest)

    def _report(self, contender: LeaseContender) -> None:
        """Report the contenders ahead from time to time."""
        if self._reports.due_seconds() == 0:
            ahead = contender.ahead()
            self._reports.report(len(ahead), ahead[0].data if ahead else None)

    def _offer_is_certain(self) -> None:
        """Record that no request with the offer can appear in the queue later."""
        if self.request.offer is not None:
            self.request.offer.is_uncertain = False

    def _raise_if_cancelled(self) -> None:
        if self.request.cancellation.requested.is_set():
            raise LockCancelledError(resource=self.request.resource)

    def _raise_if_lost(self) -> None:
        for contender in self.contenders:
            if contender.lost is not None:
                raise _EarlierLockLostError(f"the lock on {contender.table} was lost: {contender.lost}")


class _EarlierLockLostError(Exception):
    """A lock that the acquire had already was lost while it waited for the next one."""
