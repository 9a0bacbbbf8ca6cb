"""The lock manager on S3: programs acquire locks through it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from lock_manager.base_manager import AcquireRequest, BaseManager
from lock_manager.coordinator import Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleUnavailableError, SluiceError
from lock_manager.resources import TableResource
from lock_manager.s3_lease.acquisition import TRY_SECONDS, Acquisition
from lock_manager.s3_lease.contender import LeaseContender
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.queue_object import QueueObject
from lock_manager.s3_lease.root import ensure_id
from lock_manager.s3_lease.store import ObjectStore
from lock_manager.settings import LockSettings, bucket_and_prefix, check_seconds

log = logging.getLogger(__name__)

_MIN_LEASE_SECONDS = 2.0
"""Shortest ``session_timeout_seconds``. A client that waits has this time to notice its turn."""

_KNOWN_QUEUES = 100
"""Number of tables whose queue a manager remembers: that saves a GET, and dead holders are known sooner."""

_CLOSE_SECONDS = 3.0
"""Time limit of :meth:`S3LeaseManager.close` for the answers of S3, in seconds. Then leases end by themselves."""

_DISCARD_SECONDS = 60.0
"""Time for which entries are removed in the background. Then they leave when their lease ends."""


class S3LeaseManager(BaseManager[HeldLease, Acquisition]):
    """Locks on Delta tables in objects on S3, granted in the order of the requests. No other service is needed.

    ::

        with S3LeaseManager(LockSettings(lock_url="s3-lease://lake/locks")) as manager:
            with manager.acquire("s3://lake/flights"):
                write_deltalake("s3://lake/flights", rows, mode="append")

    The queue of a table is one object. Each change is a PUT under the condition that no other client has changed it
    (``If-Match``). A holder renews its lock three times in ``session_timeout_seconds``. Another client removes it only
    if it has seen no renewal for that long, by its own monotonic clock.

    Args:
        settings: Settings with a ``lock_url``.

    Raises:
        SettingsError: The URL is malformed.

    """

    def __init__(self, settings: LockSettings) -> None:
        super().__init__(settings)
        bucket, prefix = bucket_and_prefix(settings.lock_url)
        check_seconds("session_timeout_seconds", settings.session_timeout_seconds, _MIN_LEASE_SECONDS)
        self._store = ObjectStore(settings.lock_url, bucket, prefix)
        self._pid = os.getpid()
        self._id: str | None = None
        self._is_closed = False
        self._known_queues: dict[str, QueueObject] = {}

    @property
    def session_timeout_seconds(self) -> float:
        """Seconds without a renewal after which other contenders get the locks of a holder."""
        return self.settings.session_timeout_seconds

    def connect(self, timeout_seconds: float = TRY_SECONDS) -> None:
        """Connect now, to detect early whether S3 can be used. ``acquire`` connects by itself.

        Raises:
            EnsembleUnavailableError: S3 did not respond in time.
            EnsembleRefusedError: S3 refused a request, or ignores the conditions of requests.
            EnsembleFormatError: An unknown release wrote the objects.
            ClosedError: The manager was closed, or belongs to the parent of a fork.

        """
        check_seconds("timeout_seconds", timeout_seconds)
        self._check_usable()
        self._isolation.run(lambda: self._connect(Deadline(timeout_seconds), lambda: None))

    def _connect(self, deadline: Deadline, stop: Callable[[], object]) -> None:
        if self._id is None:
            self._id = ensure_id(self._store, deadline, stop)

    def is_offered(self, table: str, offer: Offer, timeout_seconds: float) -> bool:
        """Return whether a holder may still commit an offer; see :meth:`LockManager.is_offered`."""
        self._check_usable()
        if not offer.requests:
            return False
        if offer.is_uncertain:
            return True
        queue_object = QueueObject(self._store, TableResource.of(table).uri)
        queue = self._isolation.run(lambda: queue_object.refresh(Deadline(timeout_seconds), "read a queue"))
        return any(queue.find(request) is not None for request in offer.requests) or any(
            offer.write_id in intent.members for intent in queue.intents
        )

    # -- parts of BaseManager ------------------------------------------------------------------------------------

    @property
    def _ensemble_id(self) -> str | None:
        return self._id

    @property
    def _belongs_to_parent(self) -> bool:
        return os.getpid() != self._pid

    def _check_usable(self) -> None:
        if self._belongs_to_parent:
            raise ClosedError("this lock manager belongs to the parent process: create one after the fork")
        if self._is_closed:
            raise ClosedError("the lock manager is closed")

    def _check_hold_usable(self) -> None:
        if self._belongs_to_parent:
            raise ClosedError("this hold belongs to the parent process of a fork")

    def _new_acquisition(self, request: AcquireRequest, deadline: Deadline) -> Acquisition:
        return Acquisition(
            request,
            deadline,
            lease_seconds=self.settings.session_timeout_seconds,
            connect=self._connect,
            queue_of=self._queue_of,
            discard=self._discard,
        )

    def _run(self, acquisition: Acquisition, thread: threading.Thread) -> HeldLease:
        return HeldLease(
            acquisition.request,
            acquisition.run(),
            hold_id=acquisition.hold_id,
            ensemble_id=self._id or "",
            lease_seconds=self.settings.session_timeout_seconds,
            max_seconds=self.settings.max_hold_seconds,
            waited_seconds=acquisition.deadline.elapsed(),
            thread=thread,
            isolation=self._isolation,
            forget=self._forget,
            check_usable=self._check_hold_usable,
            is_closed=lambda: self._is_closed,
            discard=self._discard,
        )

    def _abandon(self, acquisition: Acquisition) -> None:
        acquisition.abandon()

    def _disconnect(self, holds: Sequence[HeldLease]) -> None:
        deadline = Deadline(_CLOSE_SECONDS)
        for hold in holds:
            if deadline.remaining() == 0:
                self._discard(hold.contenders)
                continue
            try:
                hold.leave(deadline)
            except SluiceError as error:
                log.warning("the lock on %s stays until its lease ends: %s", hold.resource, error)

    def _queue_of(self, table: str) -> QueueObject:
        """Return an object of a table's queue for one request. It begins with the state that the last request read."""
        with self._lock:
            known = self._known_queues.pop(table, None)
            queue_object = QueueObject(self._store, table) if known is None else known.copy()
            self._known_queues[table] = queue_object
            if len(self._known_queues) > _KNOWN_QUEUES:
                del self._known_queues[next(iter(self._known_queues))]
        return queue_object

    def _close(self) -> None:
        # An acquire that is about to end looks at this.
        self._is_closed = True
        super()._close()

    def _discard(self, contenders: Sequence[LeaseContender]) -> None:
        """Remove entries from their queues, in the background."""
        remaining = list(contenders)

        def discard() -> None:
            deadline = Deadline(_DISCARD_SECONDS)
            while remaining and deadline.remaining() > 0:
                try:
                    # A short time each, because the entry's other requests wait for this one.
                    remaining[0].leave(Deadline(_CLOSE_SECONDS), is_forced=True)
                    del remaining[0]
                except EnsembleUnavailableError:
                    time.sleep(_CLOSE_SECONDS)
                except SluiceError as error:
                    log.warning("an entry for %s stays until its lease ends: %s", remaining.pop(0).table, error)

        threading.Thread(target=discard, name="sluice-discard", daemon=True).start()
