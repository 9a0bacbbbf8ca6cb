"""Commits without a lock (``optimistic://``): each version has one winner, and a write that loses is repeated.

There is no service and no queue. The log store puts each version only if it does not exist, and Delta's conflict check
compares a commit with the versions before it. A hold of this coordinator excludes no other. It only decides which
commits may pass:

* A commit that was prepared for the gate (docs/gate.md) passes: Delta's conflict check is all that it needs.
* A block that reads the table first may commit only the version after the one that it has read
  (:meth:`.GuardedBlock.require_unchanged_since`). If another writer has committed that version, the commit is refused.

With ``fallback=optimistic`` a hold also has a place in a queue of ZooKeeper, as long as ZooKeeper answers
(:mod:`lock_manager.courtesy_queue`). Nothing relies on it. Such a hold is only for tables that are adopted for writes
without a lock: the holder of a lock of that queue would rely on it.

So a caller has to declare that it does not rely on a lock (``acquire_all(…, needs_exclusion=False)``). Every other
request, and each request for partitions or for a shared lock, raises UnsupportedLockError.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lock_manager.base_hold import BaseHold, HoldLife
from lock_manager.base_manager import AcquireRequest, BaseManager
from lock_manager.coordinator import Offer
from lock_manager.courtesy_queue import CourtesyQueue
from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, LockCancelledError, SluiceError, UnsupportedLockError
from lock_manager.intents import Intent
from lock_manager.settings import LockSettings
from lock_manager.signals import SignalIsolation
from lock_manager.table_records.adoption import OPTIMISTIC_ENSEMBLE

log = logging.getLogger(__name__)


class OptimisticManager(BaseManager["OptimisticHold", "OptimisticAcquisition"]):
    """Permits commits of several writers at the same time; see the module. It sends no request and never waits.

    ``timeout_seconds`` limits the time in which :class:`~writer_jobs.LockedDeltaWriter` repeats a write.

    Args:
        settings: Settings whose ``lock_url`` is ``optimistic://``, or with a ``fallback``.
        queue: The queue that its holds join first; None for none.

    """

    def __init__(self, settings: LockSettings, queue: CourtesyQueue | None = None) -> None:
        super().__init__(settings)
        self._queue = queue
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def session_timeout_seconds(self) -> float:
        """The setting; a dead writer blocks no other."""
        return self.settings.session_timeout_seconds

    def connect(self, timeout_seconds: float = 0.0) -> None:  # noqa: ARG002 (there is nothing to connect to)
        """Raise ClosedError if the manager was closed, or belongs to the parent of a fork."""
        self._check_usable()

    def is_offered(self, table: str, offer: Offer, timeout_seconds: float) -> bool:  # noqa: ARG002 (there is no queue)
        """Return False: no other writer commits an offer."""
        return False

    # -- parts of BaseManager ------------------------------------------------------------------------------------

    @property
    def _ensemble_id(self) -> str:
        return OPTIMISTIC_ENSEMBLE

    @property
    def _belongs_to_parent(self) -> bool:
        return os.getpid() != self._pid

    def _holds_of(self, thread: threading.Thread) -> list[OptimisticHold]:
        """Return the holds of a thread; with a queue only those that need an adopted table, too."""
        return [hold for hold in super()._holds_of(thread) if hold.needs_adoption or self._queue is None]

    def _check_usable(self) -> None:
        if self._belongs_to_parent:
            raise ClosedError("this lock manager belongs to the parent process: create one after the fork")
        if self._is_closed:
            raise ClosedError("the lock manager is closed")

    def _new_acquisition(self, request: AcquireRequest, deadline: Deadline) -> OptimisticAcquisition:
        if request.needs_exclusion:
            raise UnsupportedLockError("needs a lock", resource=request.resource)
        if any(scope.partitions is not None for scope in request.scope.values()):
            raise UnsupportedLockError("asks for a lock on partitions", resource=request.resource)
        if any(scope.shared for scope in request.scope.values()):
            raise UnsupportedLockError("asks for a shared lock", resource=request.resource)
        return OptimisticAcquisition(request, deadline)

    def _run(self, acquisition: OptimisticAcquisition, thread: threading.Thread) -> OptimisticHold:
        if acquisition.request.cancellation.requested.is_set():
            raise LockCancelledError(resource=acquisition.request.resource)
        place = None if self._queue is None else self._queue.join(acquisition.request, acquisition.deadline)
        return OptimisticHold(
            acquisition.request,
            place=place,
            needs_adoption=self._queue is not None,
            waited_seconds=acquisition.deadline.elapsed(),
            thread=thread,
            isolation=self._isolation,
            forget=self._forget,
            check_usable=self._check_hold_usable,
            is_closed=lambda: self._is_closed,
        )

    def _check_hold_usable(self) -> None:
        if self._belongs_to_parent:
            raise ClosedError("this hold belongs to the parent process of a fork")

    def _abandon(self, acquisition: OptimisticAcquisition) -> None:
        """Do nothing: a request that fails has left the queue."""

    def _disconnect(self, holds: Sequence[OptimisticHold]) -> None:  # noqa: ARG002 (they leave with the queue)
        if self._queue is not None:
            self._queue.close()

    def _close(self) -> None:
        # An acquire that is about to end looks at this.
        self._is_closed = True
        super()._close()


class OptimisticAcquisition:
    """A request, which is granted at once."""

    def __init__(self, request: AcquireRequest, deadline: Deadline) -> None:
        self.request, self.deadline = request, deadline

    def connect(self) -> None:
        """Do nothing: the id is known."""


class OptimisticHold(BaseHold["OptimisticIntents"]):
    """A permission to commit, which several writers can have at the same time; see the module.

    Its stamps name the table with a shared token: the first version that it has put.

    Args:
        place: Its place in a queue; released with the hold.
        needs_adoption: Whether only tables that are adopted for writes without a lock may be written.

    """

    excludes = False

    def __init__(
        self,
        request: AcquireRequest,
        *,
        place: BaseHold[Any] | None,
        needs_adoption: bool,
        waited_seconds: float,
        thread: threading.Thread,
        isolation: SignalIsolation,
        forget: Callable[[OptimisticHold], None],
        check_usable: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self.needs_adoption = needs_adoption
        self._place = place
        self._first_versions = dict.fromkeys((scope.table.key for scope in request.scope.values()), 0)
        super().__init__(
            hold_id=uuid.uuid4().hex,
            resource=request.resource,
            scope=request.scope,
            tokens=self._first_versions,
            exclusive_keys=(),
            ensemble_id=OPTIMISTIC_ENSEMBLE,
            waited_seconds=waited_seconds,
            thread=thread,
            isolation=isolation,
            forget=forget,
        )
        self._life = HoldLife(self._on_lost)
        self._usable, self._manager_is_closed = check_usable, is_closed
        self._intents = {table: OptimisticIntents() for table in request.scope}
        self._begin()

    def is_valid(self) -> bool:
        """Return False: the hold excludes no other."""
        return False

    def check(self, timeout_seconds: float | None = None) -> None:  # noqa: ARG002 (there is no service to ask)
        """Raise if the hold has ended."""
        self._usable()
        if self.over:
            raise self._end_error()

    def intend(
        self,
        version: int,
        *,
        txn: str | None,  # noqa: ARG002 (the intent is not stored)
        attempt: str,
        table: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002 (there is no queue)
    ) -> Mapping[str, str]:
        """Allow the put of a version, unless the hold has ended; see :meth:`lock_manager.coordinator.Hold.intend`."""
        self.check()
        uri = self._table_or_only(table)
        if not self.commits.get(uri):
            self._first_versions[self.scope[uri].table.key] = version
        self._intents[uri].begin(attempt, version)
        return {}

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return no offers: there is no queue."""
        return {}

    def dismiss(self, members: Collection[str]) -> None:
        """Do nothing: there is no queue."""

    # -- parts of BaseHold ---------------------------------------------------------------------------------------

    @property
    def _is_closed(self) -> bool:
        return self._manager_is_closed()

    def _check_usable(self) -> None:
        self._usable()

    def _is_proven(self) -> bool:
        return self.lost is None

    def _start_checks(self) -> None:
        """Do nothing: no other client can end the hold."""

    def _stop_checks(self) -> None:
        """Do nothing; see :meth:`_start_checks`."""

    def _leave(self, *, was_proven: bool) -> str | None:  # noqa: ARG002
        if self._place is not None:
            # ZooKeeper may not answer for some seconds.
            threading.Thread(target=self._release_place, args=(self._place,), name="sluice-place", daemon=True).start()
        return None

    def _release_place(self, place: BaseHold[Any]) -> None:
        try:
            place.release()
        except SluiceError as error:
            log.info("the place in the queue of %s was gone before its end: %s", self.resource, error)

    def _discard(self) -> None:
        """Do nothing: ZooKeeper removes the place."""

    def _begin(self) -> None:
        # The place has emitted that it is held.
        if self._place is None:
            super()._begin()


class OptimisticIntents:
    """The puts of one hold on one table; implements :class:`lock_manager.coordinator.Intents`.

    They are not stored. A put of another hold that is still on its way is no danger here: if it succeeds, it is an
    ordinary commit of another writer.
    """

    unfinished: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._has_begun = False

    @property
    def open(self) -> Mapping[str, int]:
        """Version that each attempt may put, by attempt id, for the attempts of this hold whose outcome is unknown."""
        with self._lock:
            return dict(self._open)

    @property
    def settled(self) -> bool:
        """Whether the hold has put a version, and the outcome of all its puts is known."""
        with self._lock:
            return self._has_begun and not self._open

    def begin(self, attempt: str, version: int) -> None:
        """Record that an attempt may put a version from now on."""
        with self._lock:
            self._open[attempt] = version
            self._has_begun = True

    def settle(self, attempts: Iterable[str]) -> None:
        """Record that the outcome of these attempts is known."""
        with self._lock:
            for attempt in attempts:
                self._open.pop(attempt, None)

    def read(self) -> list[Intent]:
        """Return no intents of earlier holds."""
        return []

    def clear(self) -> None:
        """Do nothing: there are no intents of earlier holds."""
