"""The entry of one request in the queue of one table, and the thread that keeps it alive while it holds the lock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lock_manager.base_hold import HoldLife
from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleUnavailableError
from lock_manager.s3_lease import state
from lock_manager.s3_lease.queue_object import QueueObject
from lock_manager.s3_lease.state import Entry, Queue
from lock_manager.scope import TableScope

log = logging.getLogger(__name__)

_BEATS = 3
"""Number of beats in a lease."""

ANNOUNCE_SECONDS = 1.0
"""Age at which a hold writes ``acquired_at`` into its entry, in seconds. Shorter holds save the request."""

_DISMISS_SECONDS = 0.2
"""Time after which committed members are removed from the queue, unless the hold is released before, in seconds."""

#: How a hold was lost whose entry is gone.
GONE = "its entry was gone: another client removed it, because it seemed dead, or as `sluice break` does"

#: Why a lease ended if no renewal has failed.
_PAUSED = "the process was paused, or its thread for renewals has ended"


class GoneError(Exception):
    """The entry is no longer in the queue."""


class LeaseContender:
    """An entry in a queue: a request, and then a hold.

    Attributes:
        table: Canonical URI of the table.
        queue_object: The object of its queue.
        valid_until: Monotonic time until which no other client can have removed the entry, unless an operator did.
        token: Fencing token; 0 before the entry holds the lock.
        lost: How the lock was lost, noticed by its renewal; None while no loss is known.
        has_settled_intents: Returns whether the intents of the hold are deleted when the entry leaves.

    """

    def __init__(
        self,
        queue_object: QueueObject,
        scope: TableScope,
        hold_id: str,
        *,
        lease_seconds: float,
        data: Mapping[str, Any],
        offer: Mapping[str, Any] | None = None,
    ) -> None:
        self.table = scope.table.uri
        self.valid_until = float("-inf")
        self.token = 0
        self.lost: str | None = None
        self.has_settled_intents: Callable[[], bool] = lambda: False
        self.queue_object = queue_object
        self._hold_id = hold_id
        self._lease_seconds = lease_seconds
        self._data = {**data, **scope.stored_fields()}
        self._entry = Entry(
            hold_id=hold_id,
            token=0,
            shared=scope.shared,
            partitions=None if scope.partitions is None else tuple(map(str, scope.partitions)),
            lease_seconds=lease_seconds,
            data=self._data,
            offer=offer,
        )
        #: Members that this hold has committed. Some may still be in the queue.
        self._dismissed: set[str] = set()
        self._pending_dismissals: set[str] = set()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._acquired_at = 0.0
        self._is_announced = False
        self._next_beat_at = float("inf")
        #: Monotonic time from which other clients count the lease at the earliest, and its length.
        self._renewed_at, self._removal_seconds = float("-inf"), lease_seconds
        #: Why the last renewal failed.
        self._problem = ""
        self._renews_offer_at = time.monotonic() + lease_seconds / _BEATS
        self._thread: threading.Thread | None = None
        self._life = HoldLife(lambda: None)

    # -- the queue -----------------------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """The queue as it was last read or written."""
        return self.queue_object.queue

    @property
    def entry(self) -> Entry:
        """The entry in that queue.

        Raises:
            GoneError: It is not there.

        """
        return self._entry_in(self.queue)

    @property
    def confirmed_at(self) -> float:
        """Monotonic time before the last request that returned this queue."""
        return self.queue_object.confirmed_at

    def ahead(self) -> list[Entry]:
        """Return the conflicting entries ahead of this one in that queue; all if it has not joined."""
        return self.queue.ahead_of(self._entry)

    def _entry_in(self, queue: Queue) -> Entry:
        entry = queue.find(self._hold_id)
        if entry is None:
            raise GoneError
        return entry

    def join(self, deadline: Deadline, stop: Callable[[], object]) -> bool:
        """Join the queue; return whether the entry holds the lock.

        Raises:
            GoneError: The entry has an offer, and a holder may have committed it; see :func:`state.may_be_offered`.

        """
        attempt: Queue | None = None

        def change(queue: Queue) -> Queue:
            nonlocal attempt
            is_uncertain = self.queue_object.was_unanswered and self._entry.offer is not None
            if is_uncertain and attempt is not None and state.may_be_offered(attempt, queue, self._hold_id):
                raise GoneError
            attempt = state.join(queue, self._entry)
            return attempt

        with self.queue_object.locked(deadline, "join the queue"):
            sent_at = self.queue_object.update(change, deadline, "join the queue", stop=stop)
            self._record(sent_at, sent_at)
            self._expel_stale(deadline, stop)
            self._record(sent_at, self.confirmed_at)
            return self.queue.holds(self._hold_id)

    def poll(self, deadline: Deadline, stop: Callable[[], object]) -> bool:
        """Read the queue, and remove dead holders ahead; return whether the entry holds the lock.

        Raises:
            GoneError: Another client removed the entry.

        """
        with self.queue_object.locked(deadline, "read the queue"):
            previous_at = self.queue_object.confirmed_at
            self.queue_object.refresh(deadline, "read the queue", stop=stop)
            self._expel_stale(deadline, stop)
            self._record(previous_at, self.queue_object.confirmed_at)
            return self.queue.holds(self._hold_id)

    def renew_offer(self, deadline: Deadline, stop: Callable[[], object]) -> None:
        """Show from time to time that the owner of this waiting entry lives, if it has an offer.

        Raises:
            GoneError: Another client removed the entry.

        """
        if self._entry.offer is None or time.monotonic() < self._renews_offer_at:
            return

        def change(queue: Queue) -> Queue:
            self._entry_in(queue)
            return state.renew_offer(queue, self._hold_id)

        self.queue_object.update(change, deadline, "renew an offer", stop=stop)
        self._renews_offer_at = time.monotonic() + self._lease_seconds / _BEATS

    def _expel_stale(self, deadline: Deadline, stop: Callable[[], object]) -> None:
        """Remove the dead holders ahead."""
        for stale in state.stale_holders(self.queue_object.seen, self.queue, self.entry, self.confirmed_at):
            self._expel(stale, deadline, stop)

    def _expel(self, stale: Entry, deadline: Deadline, stop: Callable[[], object]) -> None:
        is_expelled = False

        def change(queue: Queue) -> Queue:
            nonlocal is_expelled
            expelled = state.expel(queue, stale)
            is_expelled = expelled != queue
            return expelled

        self.queue_object.update(change, deadline, "remove a dead holder", stop=stop)
        if is_expelled:
            log.warning(
                "the lock on %s was taken from %s pid %s, which had not renewed it for %.0f s",
                self.table,
                stale.data.get("host", "an unknown host"),
                stale.data.get("pid", "?"),
                stale.removal_seconds,
            )

    def _record(self, not_held_at: float, confirmed_at: float) -> None:
        """Record until when the lease lasts, if the entry holds the lock since now."""
        if self.valid_until == float("-inf") and self.queue.holds(self._hold_id):
            self.token = self.entry.token
            self._extend(not_held_at=not_held_at, renewed_at=confirmed_at)

    def _extend(self, *, not_held_at: float, renewed_at: float) -> None:
        """Record until when the lease lasts; see :func:`state.valid_until`."""
        entry = self.entry
        valid_until = state.valid_until(entry, not_held_at=not_held_at, renewed_at=renewed_at)
        if valid_until > self.valid_until:
            self.valid_until, self._removal_seconds = valid_until, entry.removal_seconds
            self._renewed_at = valid_until - state.VALID_FRACTION * entry.removal_seconds

    # -- a hold --------------------------------------------------------------------------------------------------

    def confirm(self, deadline: Deadline, request_name: str, change: Callable[[Queue], Queue]) -> None:
        """Change the queue if and only if the entry is in it, and renew the lease.

        Raises:
            GoneError: The entry is gone, and nothing was changed.
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: See :meth:`QueueObject.update`.

        """

        def checked(queue: Queue) -> Queue:
            self._entry_in(queue)
            return state.beat(change(state.dismiss(queue, dismissed)), self._hold_id)

        dismissed = self._take_dismissals()
        try:
            with self.queue_object.locked(deadline, request_name):
                sent_at = self.queue_object.update(checked, deadline, request_name, is_urgent=True)
                self._extend(not_held_at=sent_at, renewed_at=sent_at)
        except BaseException:
            if dismissed:
                self.dismiss(dismissed)
            raise

    def _take_dismissals(self) -> frozenset[str]:
        """Return the members that the next change removes from the queue."""
        with self._changed:
            dismissed = frozenset(self._pending_dismissals)
            self._pending_dismissals.clear()
            return dismissed

    def offers(self) -> dict[str, Mapping[str, Any]]:
        """Return the offers behind this entry in the queue, without those that this hold has committed."""
        offers = state.offers_behind(self.queue, self._hold_id, self.queue_object.seen, time.monotonic())
        return {hold_id: offer for hold_id, offer in offers.items() if hold_id not in self._dismissed}

    def is_waiting(self, queue: Queue, hold_id: str) -> bool:
        """Return whether a member is in the queue with an offer that this hold did not commit yet."""
        return hold_id not in self._dismissed and queue.find(hold_id) is not None

    def check(self, deadline: Deadline) -> None:
        """Read the queue.

        Raises:
            GoneError: The entry is gone.
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: See :meth:`QueueObject.refresh`.

        """
        self._entry_in(self.queue_object.refresh(deadline, "check a hold"))

    def dismiss(self, hold_ids: Collection[str]) -> None:
        """Remove members from the queue, soon and in the background."""
        with self._changed:
            self._dismissed |= set(hold_ids)
            self._pending_dismissals |= set(hold_ids)
            self._next_beat_at = min(self._next_beat_at, time.monotonic() + _DISMISS_SECONDS)
            self._changed.notify()

    def leave(self, deadline: Deadline, *, is_forced: bool = False) -> bool | None:
        """Remove the entry, and its intents if they are settled.

        Args:
            deadline: Time limit for an answer.
            is_forced: Make sure that the entry does not appear later, after a request without an answer.

        Returns:
            Whether the entry was in the queue until now; None if that is not known.

        """
        was_there = False

        def change(queue: Queue) -> Queue:
            nonlocal was_there
            was_there = queue.find(self._hold_id) is not None
            queue = state.dismiss(queue, self._dismissed)
            return state.leave(queue, self._hold_id, settled=self.has_settled_intents())

        with self.queue_object.locked(deadline, "leave the queue"):
            self.queue_object.update(change, deadline, "leave the queue", is_urgent=True, is_forced=is_forced)
            return None if not was_there and self.queue_object.was_unanswered else was_there

    # -- the lease -----------------------------------------------------------------------------------------------

    def start_beats(self, life: HoldLife) -> None:
        """Renew the lease from time to time, in a thread, until :meth:`stop_beats` or the end of ``life``.

        Args:
            life: The life that ends with a loss: that of the acquire, and then in a second call that of the hold.

        """
        with self._changed:
            self._life = life
            if self._thread is None:
                self._acquired_at = time.time()
                remaining = self.valid_until - time.monotonic()
                self._next_beat_at = time.monotonic() + max(0.0, min(ANNOUNCE_SECONDS, remaining / 2))
                self._thread = threading.Thread(target=self._run, name="sluice-lease", daemon=True)
                self._thread.start()
            self._changed.notify()
        if self.lost is not None:
            life.lose(self.lost)

    def stop_beats(self) -> None:
        """End the thread, without waiting for it."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def loss_by_clock(self) -> str | None:
        """Return how the lock was lost if the lease has ended by the clock of this process; None if it has not.

        Another client may have removed the entry then. This does not depend on the thread that renews the lease.
        """
        silent_seconds = time.monotonic() - self._renewed_at
        if silent_seconds < self._removal_seconds:
            return None
        return f"it was not renewed for {silent_seconds:.0f} s: {self._problem or _PAUSED}"

    def _run(self) -> None:
        while (life := self._wait_for_beat()) is not None:
            life.check_max_hold()
            if life.over:
                return
            if (loss := self.loss_by_clock() or self._beat_or_loss()) is not None:
                self._lose(loss)
                return

    def _wait_for_beat(self) -> HoldLife | None:
        """Wait until the next renewal or the end of the hold; return None if there is no renewal any more."""
        with self._changed:
            while not self._is_stopped and (seconds := self._wakes_at() - time.monotonic()) > 0:
                self._changed.wait(seconds)
            self._next_beat_at = time.monotonic() + self._lease_seconds / _BEATS
            return None if self._is_stopped else self._life

    def _wakes_at(self) -> float:
        return min(self._next_beat_at, self._life.ends_at)

    def _beat_or_loss(self) -> str | None:
        """Renew the lease; return how the lock was lost, None if it was not."""
        try:
            self._beat()
        except GoneError:
            return GONE
        except EnsembleUnavailableError as error:
            self._problem = error.problem or "S3 did not answer"
        except Exception as error:  # the hold depends on this thread
            log.exception("could not renew the lock on %s", self.table)
            self._problem = str(error)
        else:
            self._problem = ""
        return self.loss_by_clock()

    def _beat(self) -> None:
        """Renew the lease; the first time, also write when the lock was acquired."""
        data = {**self._data, "acquired_at": self._acquired_at}

        def change(queue: Queue) -> Queue:
            return queue if self._is_announced else state.describe(queue, self._hold_id, data)

        self.confirm(Deadline(self._lease_seconds / _BEATS), "renew a lock", change)
        self._is_announced = True

    def _lose(self, reason: str) -> None:
        with self._changed:
            self.lost, life = reason, self._life
        life.lose(reason)
