"""The part of a lock manager that does not depend on the coordinator: its acquires, its holds and nested acquires."""

from __future__ import annotations

import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from lock_manager import tracing, waits
from lock_manager.base_hold import BaseHold
from lock_manager.coordinator import Cancellation, Hold, Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    ClosedError,
    ContenderGoneError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockNotHeldError,
    UnguardedError,
)
from lock_manager.events import Event, emit
from lock_manager.guard_registry import guard_is_installed
from lock_manager.nesting import REGISTRY, find_covering_hold
from lock_manager.partitions import Partition
from lock_manager.resources import TableResource
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings, check_seconds
from lock_manager.signals import SignalIsolation


@dataclass(frozen=True, kw_only=True)
class AcquireRequest:
    """The request of one acquire.

    Attributes:
        scope: Scope of each table by canonical URI, in the order of tables.
        identity: JSON values that describe the requester for people: host, pid, job and so on.
        cancellation: Ends the wait with LockCancelledError.
        offer: Append that a holder may commit for the requester while it waits; None for none.
        needs_exclusion: Whether the requester relies on the lock; see :meth:`BaseManager.acquire_all`.
        parent: Parent of the spans of the wait and the hold.
        observer: Gets reports of the wait; None for no observer.

    """

    scope: Mapping[str, TableScope]
    identity: Mapping[str, Any]
    cancellation: Cancellation
    offer: Offer | None = None
    needs_exclusion: bool = True
    parent: tracing.Span = tracing.NO_SPAN
    observer: waits.Observer | None = None

    @property
    def resource(self) -> str:
        """Name of the requested tables and partitions, for messages."""
        return ", ".join(map(str, self.scope.values()))


class BaseAcquisition(Protocol):
    """One attempt to acquire the locks of a request."""

    @property
    def request(self) -> AcquireRequest:
        """The request."""

    @property
    def deadline(self) -> Deadline:
        """Time limit of the request."""

    def connect(self) -> object:
        """Connect if necessary, so that the coordinator's id is known."""


class ManagedHold(Hold, Protocol):
    """A hold that its manager can end."""

    def begin_span(self, parent: tracing.Span) -> None:
        """Start the span of the hold; see :meth:`.BaseHold.begin_span`."""

    def close(self) -> None:
        """End the hold because its manager was closed. An entered block sees a loss."""


_H = TypeVar("_H", bound=ManagedHold)
_A = TypeVar("_A", bound=BaseAcquisition)


class BaseManager(ABC, Generic[_H, _A]):
    """A lock manager without its coordinator; see :class:`lock_manager.coordinator.LockManager`.

    A lock belongs to the thread that acquired it only for :meth:`release` and the rule on nested acquires. Both count
    the thread's holds of all managers of the same coordinator (:mod:`lock_manager.nesting`).
    """

    def __init__(self, settings: LockSettings) -> None:
        self.settings = settings
        self._isolation = SignalIsolation()
        self._lock = threading.Lock()
        self._holds: list[_H] = []
        self._acquisitions: list[_A] = []

    # -- parts of the coordinator ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _ensemble_id(self) -> str | None:
        """UUID of the coordinator; None before it is known."""

    @property
    @abstractmethod
    def _belongs_to_parent(self) -> bool:
        """Whether this process is a forked child of the manager's process."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise ClosedError if the manager was closed, or belongs to the parent of a fork."""

    @abstractmethod
    def _new_acquisition(self, request: AcquireRequest, deadline: Deadline) -> _A:
        """Return an attempt, which has sent no request yet."""

    @abstractmethod
    def _run(self, acquisition: _A, thread: threading.Thread) -> _H:
        """Return the hold of an attempt, for a thread."""

    @abstractmethod
    def _abandon(self, acquisition: _A) -> None:
        """Leave the queues of an attempt that has failed."""

    @abstractmethod
    def _disconnect(self, holds: Sequence[_H]) -> None:
        """End the locks of this manager; the last step of :meth:`close`.

        Args:
            holds: The holds that were not released.

        """

    def check_reachable(self, timeout_seconds: float) -> None:
        """Raise if it is certain that the coordinator cannot be reached; see :meth:`LockManager.check_reachable`."""

    # -- acquires ------------------------------------------------------------------------------------------------

    def acquire(
        self,
        resource: str | os.PathLike[str] | TableResource,
        *,
        partitions: Collection[Partition | Mapping[str, object]] | None = None,
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> _H:
        """Lock a table or partitions of it; wait for all earlier conflicting requests.

        A thread that already has the lock, or one that covers it, gets the same hold again and must release it as many
        times. This also applies to a hold from another manager of the same coordinator. The hold keeps the session and
        the ``max_hold_seconds`` of the manager that granted it, and the :meth:`close` of that manager ends it. A
        manager that is not connected yet connects before it looks up the thread's holds of other managers.

        Args:
            resource: Location of the table, in any spelling that :func:`canonical_table_uri` accepts.
            partitions: Values by column, such as ``{"year": 2013, "month": 1}``, of all or the first partition columns
                of the table; or results of :meth:`PartitionSchema.partition`. The whole table by default. A partition
                conflicts with its ancestors and its descendants. More than 64 partitions lock the table.
            shared: Share the lock with other shared holders; by default the lock is exclusive. Readers of a whole table
                also exclude writers of its partitions.
            timeout_seconds: Total time limit in seconds, including the connection; by default the manager's. 0 acquires
                only a free lock; the coordinator then has 15 seconds to respond. The error may come some seconds later,
                because the manager reads the contenders ahead for the message and leaves the queue.

        Returns:
            The hold, which is also a context manager.

        Raises:
            ValueError: ``partitions`` is empty, or ``timeout_seconds`` is outside its range (SettingsError).
            ResourceError: The location is not usable, or a partition does not fit the table's partition columns.
            UnguardedError: Partitions were requested in a process without the commit guard.
            LockTimeoutError: Other contenders were still ahead at the deadline.
            LockCancelledError: :meth:`cancel` or :meth:`close` was called meanwhile.
            LockOrderError: The request could deadlock, because this thread holds another lock.
            EnsembleUnavailableError, EnsembleFormatError, ClosedError: See :meth:`connect`.
            EnsembleRefusedError: The coordinator refused the request, most likely because of missing permissions.

        """
        return self.acquire_all([TableScope.of(resource, partitions, shared=shared)], timeout_seconds=timeout_seconds)

    def acquire_all(
        self,
        scopes: Sequence[TableScope | str | os.PathLike[str] | TableResource],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
        offer: Offer | None = None,
        needs_exclusion: bool = True,
    ) -> _H:
        """Lock several tables, or partitions of them, under one hold: all or none, and without a deadlock.

        Args:
            scopes: Locations of tables, or results of :meth:`TableScope.of` for partitions and shared locks; at most
                one for each table. The order does not matter.
            timeout_seconds: Total time limit for all of them in seconds, see :meth:`acquire`.
            cancellation: Lets another thread cancel this acquire only.
            offer: Append that a holder of the table may commit while this request waits. Only for one whole table.
            needs_exclusion: Whether the caller relies on the lock. False only if Delta's conflict check covers all
                reads of the caller, or it calls :meth:`.GuardedBlock.require_unchanged_since`. ``optimistic://``
                refuses the request if true; other coordinators ignore this.

        Returns:
            One hold for all.

        Raises:
            ValueError: There is no scope, or two for one table.
            ContenderGoneError: The request with an offer has left the queue.
            UnsupportedLockError: The coordinator has no such lock.
            LockError and so on: See :meth:`acquire`.

        """
        table_scopes = [scope if isinstance(scope, TableScope) else TableScope.of(scope) for scope in scopes]
        table_scopes.sort(key=lambda table_scope: table_scope.table)
        scope = {table_scope.table.uri: table_scope for table_scope in table_scopes}
        if not scope or len(scope) != len(scopes):
            raise ValueError("give at least one scope, and at most one for each table")
        self._check_usable()
        thread = threading.current_thread()
        if (hold := self._enter_hold_again(scope, thread)) is not None:
            return hold
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        check_seconds("timeout_seconds", seconds)
        request = AcquireRequest(
            scope=scope,
            identity=self._identity(),
            cancellation=cancellation or Cancellation(),
            offer=offer,
            needs_exclusion=needs_exclusion,
            parent=tracing.current(),
            observer=waits.current_observer(),
        )
        acquisition = self._new_acquisition(request, Deadline(seconds))
        return self._isolation.run(
            lambda: self._acquire_once(acquisition, thread),
            on_interrupt=request.cancellation.request,
            undo=lambda hold: hold.release(),
        )

    def _acquire_once(self, acquisition: _A, thread: threading.Thread) -> _H:
        request = acquisition.request
        try:
            with self._listed(acquisition):
                return self._acquire_in(acquisition, thread)
        except ClosedError:
            if request.cancellation.requested.is_set():
                raise LockCancelledError(resource=request.resource) from None
            raise
        except (EnsembleUnavailableError, EnsembleRefusedError) as error:
            for table in request.scope:
                emit(Event.UNAVAILABLE, table, error=type(error).__name__)
            raise

    def _acquire_in(self, acquisition: _A, thread: threading.Thread) -> _H:
        request = acquisition.request
        if any(hold.ensemble_id != self._ensemble_id for hold in REGISTRY.of(thread)):
            # The coordinator's id may be unknown. If it is known, this sends no request, unless the session has ended
            # and the coordinator may have been rebuilt.
            acquisition.connect()
            if (hold := self._enter_hold_again(request.scope, thread)) is not None:
                return hold
        if any(scope.partitions is not None for scope in request.scope.values()) and not guard_is_installed():
            raise UnguardedError(resource=request.resource)
        return self._queue_up(acquisition, thread)

    def acquire_for(self, request: AcquireRequest, deadline: Deadline) -> _H:
        """Acquire for a request of another manager. The hold belongs to no thread, so no nested acquire gets it.

        No event is emitted before the lock is held. The errors are those of :meth:`acquire_all`.
        """
        self._check_usable()
        acquisition = self._new_acquisition(request, deadline)
        with self._listed(acquisition):
            return self._hold_of(acquisition, threading.Thread())

    @contextmanager
    def _listed(self, acquisition: _A) -> Iterator[None]:
        """Let :meth:`cancel` and :meth:`close` cancel an attempt, in the block."""
        with self._lock:
            self._acquisitions.append(acquisition)
        try:
            yield
        finally:
            with self._lock:
                self._acquisitions.remove(acquisition)

    def _queue_up(self, acquisition: _A, thread: threading.Thread) -> _H:
        request = acquisition.request
        for table in request.scope:
            emit(Event.QUEUED, table)
        with tracing.span("queue", {"sluice.lock.scope": request.resource}, parent=request.parent) as span:
            try:
                hold = self._hold_of(acquisition, thread)
            except BaseException as error:
                event = Event.DISMISSED if isinstance(error, ContenderGoneError) else Event.GAVE_UP
                for table in request.scope:
                    emit(event, table, seconds=acquisition.deadline.elapsed())
                span.set({"sluice.lock.outcome": event.name.lower()})
                # A holder has most likely committed the offer.
                span.end(None if event == Event.DISMISSED else error)
                raise
            span.set({"sluice.lock.outcome": Event.ACQUIRED.name.lower()})
        hold.begin_span(request.parent)
        return hold

    def _hold_of(self, acquisition: _A, thread: threading.Thread) -> _H:
        try:
            hold = self._run(acquisition, thread)
            REGISTRY.add(hold)
            with self._lock:
                self._holds.append(hold)
            self._end_if_closed(hold)
        except BaseException:
            self._abandon(acquisition)
            raise
        return hold

    def _end_if_closed(self, hold: _H) -> None:
        """End a new hold and raise ClosedError if the manager was closed meanwhile: it may not have ended this hold."""
        try:
            self._check_usable()
        except ClosedError:
            hold.close()
            self._forget(hold)
            raise

    def _identity(self) -> dict[str, object]:
        """Return the fields of a contender that describe the requester for people."""
        values = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "app_id": self.settings.app_id,
            "job": self.settings.job,
        }
        return {name: value for name, value in values.items() if value is not None} | {"requested_at": time.time()}

    def cancel(self, resource: str | os.PathLike[str] | TableResource) -> int:
        """Cancel every ``acquire`` of this manager that waits for ``resource``, and return their number."""
        uri = TableResource.of(resource).uri
        self._check_usable()

        def cancel() -> int:
            with self._lock:
                acquisitions = [acquisition for acquisition in self._acquisitions if uri in acquisition.request.scope]
            for acquisition in acquisitions:
                acquisition.request.cancellation.request()
            return len(acquisitions)

        return self._isolation.run(cancel)

    # -- holds ---------------------------------------------------------------------------------------------------

    def release(self, resource: str | os.PathLike[str] | TableResource) -> None:
        """Release this thread's lock on ``resource``, or the only one of this manager if the thread has none.

        This thread's lock may come from another manager of the same coordinator, see :meth:`acquire`.

        Raises:
            LockNotHeldError: There is no lock, or several threads have one.
            LockLostError: The lock was lost before; see :meth:`lock_manager.coordinator.Hold.release`.
            ResourceError, ClosedError: See :meth:`acquire`.

        """
        table = TableResource.of(resource)
        self._check_usable()
        with self._lock:
            holds = [hold for hold in self._holds if table.uri in hold.scope]
        thread = threading.current_thread()
        thread_holds = [hold for hold in self._holds_of(thread) if table.uri in hold.scope]
        # A coordinator that was rebuilt has another id by now.
        thread_holds = thread_holds or [hold for hold in holds if hold.thread is thread]
        if thread_holds:
            thread_holds[-1].release()
        elif len(holds) == 1:
            holds[0].release()
        else:
            problem = (
                f"{len(holds)} holds of other threads exist: call release() of one of these hold objects"
                if holds
                else "it is not held"
            )
            raise LockNotHeldError(f"cannot release the lock on {table.uri}: {problem}", resource=table.uri)

    def _holds_of(self, thread: threading.Thread) -> list[_H]:
        """Return a thread's holds of this manager's coordinator, from all managers, the oldest first."""
        holds = (hold for hold in REGISTRY.of(thread) if hold.ensemble_id == self._ensemble_id)
        return [hold for hold in holds if isinstance(hold, BaseHold)]  # type: ignore[misc]

    def _enter_hold_again(self, scope: Mapping[str, TableScope], thread: threading.Thread) -> _H | None:
        """Enter a thread's hold that covers the scope again and return it; None if there is none.

        Raises:
            LockOrderError: The request could deadlock, because the thread holds another lock.

        """
        while True:
            holds = self._holds_of(thread)
            hold = find_covering_hold([hold for hold in holds if not hold.over], scope)
            if hold is None or hold.enter_again():
                return hold

    def _forget(self, hold: _H) -> None:
        REGISTRY.remove(hold)
        with self._lock:
            if hold in self._holds:
                self._holds.remove(hold)

    # -- end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel all waiting acquires and end all locks of this manager.

        The time is limited, also in an outage. Close the manager after the work under the locks is done. The second
        call and a call in a forked child do nothing.
        """
        if not self._belongs_to_parent:
            self._isolation.run(self._close)
            self._isolation.close()

    def _close(self) -> None:
        with self._lock:
            holds, self._holds = self._holds, []
            acquisitions = list(self._acquisitions)
        for acquisition in acquisitions:
            acquisition.request.cancellation.request()
        for hold in holds:
            REGISTRY.remove(hold)
            hold.close()
        self._disconnect(holds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
