"""The lock manager: programs acquire locks through it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from lock_manager.coordinator import Cancellation, Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    ClosedError,
    ContenderGoneError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockNotHeldError,
    UnguardedError,
)
from lock_manager.events import Event, emit
from lock_manager.guard_registry import guard_is_installed
from lock_manager.nesting import REGISTRY, find_covering_hold
from lock_manager.partitions import Partition
from lock_manager.queue_entry import QueueEntry
from lock_manager.resources import TableResource
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings, check_seconds
from lock_manager.zookeeper import znodes
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.connection import unreachable_reason
from lock_manager.zookeeper.held_lock import HeldLock, HoldServices
from lock_manager.zookeeper.keepalive import KeepAlive
from lock_manager.zookeeper.offers import is_offered
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.request import Request
from lock_manager.zookeeper.responses import retry_unanswered
from lock_manager.zookeeper.session import Session, SessionState
from lock_manager.zookeeper.signals import SignalIsolation

_CONNECT_SECONDS = 15.0
"""Default time limit to connect or to read a queue, in seconds."""


class ZookeeperLockManager:
    """Locks on Delta tables, which a ZooKeeper ensemble grants in the order of the requests.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181", timeout_seconds=600) as manager:
            with manager.acquire("s3://lake/flights"):
                write_deltalake("s3://lake/flights", rows, mode="append")

    A manager has one ZooKeeper session, which all threads share and which connects at the first use. Each ``acquire``
    queues for itself. Any thread may release a lock. A lock belongs to the thread that acquired it only for
    :meth:`release` and the rule on nested acquires. Both count the thread's holds of all managers of the same ensemble
    (:mod:`lock_manager.nesting`).

    A lock orders writers. Alone it does not prevent a late write by a writer that was paused for longer than its
    session lives. See :meth:`HeldLock.check` and docs/concepts.md.

    Args:
        zk_hosts: ``host:port,host:port[/chroot]``, or a :class:`LockSettings` with all settings. The other arguments
            are settings with the same names.

    Raises:
        SettingsError: A value is malformed or outside its range.

    """

    def __init__(
        self,
        zk_hosts: str | LockSettings,
        timeout_seconds: float | None = None,
        *,
        session_timeout_seconds: float | None = None,
        max_hold_seconds: float | None = None,
        lock_root: str | None = None,
        job: str | None = None,
        app_id: str | None = None,
    ) -> None:
        options = {
            "timeout_seconds": timeout_seconds,
            "session_timeout_seconds": session_timeout_seconds,
            "max_hold_seconds": max_hold_seconds,
            "lock_root": lock_root,
            "job": job,
            "app_id": app_id,
        }
        self.settings = LockSettings.merged(
            zk_hosts, **{name: value for name, value in options.items() if value is not None}
        )
        self._session = Session(self.settings)
        self._isolation = SignalIsolation()
        self._keepalive = KeepAlive(self._session)
        self._cleanup = Cleanup(self._session)
        self._lock = threading.Lock()
        self._holds: list[HeldLock] = []
        self._acquisitions: list[Acquisition] = []

    # -- connection ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """State of the ZooKeeper session."""
        return self._session.state

    @property
    def session_timeout_seconds(self) -> float:
        """Session timeout that the server granted, in seconds; it may be less or more than requested."""
        return self._session.granted_seconds

    def connect(self, timeout_seconds: float = _CONNECT_SECONDS) -> None:
        """Connect now, to detect early whether the ensemble responds. ``acquire`` connects by itself.

        Raises:
            EnsembleUnavailableError: The ensemble did not respond in time.
            EnsembleRefusedError: The ensemble refused this client, or its certificate is not trusted.
            EnsembleFormatError: An unknown release wrote the lock root.
            ClosedError: The manager was closed, or belongs to the parent of a fork.

        """
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        self._isolation.run(lambda: self._session.ensure_ready(Deadline(timeout_seconds)))

    def check_reachable(self, timeout_seconds: float) -> None:
        """Raise if it is certain that no server accepts a TCP connection. This starts no session.

        Args:
            timeout_seconds: Time limit of each connection; refused connections are repeated for as long.

        Raises:
            EnsembleUnavailableError: Each server refuses the connection or has an unknown host name.

        """
        hosts = self.settings.zk_hosts
        if (problem := unreachable_reason(hosts, timeout_seconds)) is not None:
            raise EnsembleUnavailableError(hosts, timeout_seconds, problem=problem)

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` with every new state of the session, in order. It may block and may use the manager."""
        self._session.add_listener(listener)

    def close(self) -> None:
        """Cancel all waiting acquires and end the session with all locks of this manager.

        The time is limited, also in an outage. Close the manager after the work under the locks is done. The second
        call and a call in a forked child do nothing.
        """
        if not self._session.belongs_to_parent:
            self._isolation.run(self._close)
            self._isolation.close()

    def _close(self) -> None:
        with self._lock:
            holds, self._holds = self._holds, []
            acquisitions = list(self._acquisitions)
        for acquisition in acquisitions:
            acquisition.cancel()
        for hold in holds:
            REGISTRY.remove(hold)
            hold.close()
        self._cleanup.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- locks ---------------------------------------------------------------------------------------------------

    def acquire(
        self,
        resource: str | os.PathLike[str] | TableResource,
        *,
        partitions: Collection[Partition | Mapping[str, object]] | None = None,
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> HeldLock:
        """Lock a table or partitions of it; wait for all earlier conflicting requests.

        A thread that already has the lock, or one that covers it, gets the same hold again and must release it as many
        times. This also applies to a hold from another manager of the same ensemble. The hold keeps the session and the
        ``max_hold_seconds`` of the manager that granted it, and the :meth:`close` of that manager ends it. A manager
        that is not connected yet connects before it looks up the thread's holds of other managers.

        Args:
            resource: Location of the table, in any spelling that :func:`canonical_table_uri` accepts.
            partitions: Values by column, such as ``{"year": 2013, "month": 1}``, of all or the first partition columns
                of the table; or results of :meth:`PartitionSchema.partition`. The whole table by default. A partition
                conflicts with its ancestors and its descendants. More than 64 partitions lock the table.
            shared: Share the lock with other shared holders; by default the lock is exclusive. Readers of a whole table
                also exclude writers of its partitions.
            timeout_seconds: Total time limit in seconds, including the connection; by default the manager's. 0 acquires
                only a free lock; the ensemble then has 15 seconds to respond. The error may come up to three seconds
                later, because the manager reads the contenders ahead for the message and leaves the queue.

        Returns:
            The hold, which is also a context manager.

        Raises:
            ValueError: ``partitions`` is empty, or ``timeout_seconds`` is outside its range (SettingsError).
            ResourceError: The location is not usable, or a partition does not fit the table's partition columns.
            UnguardedError: Partitions were requested in a process without the commit guard.
            LockTimeoutError: Other contenders were still ahead at the deadline.
            LockCancelledError: :meth:`cancel` or :meth:`close` was called meanwhile.
            LockOrderError: This thread holds a lock with which this request could cause a deadlock.
            EnsembleUnavailableError, EnsembleFormatError, ClosedError: See :meth:`connect`.
            EnsembleRefusedError: ZooKeeper refused the request, most likely because of missing permissions.

        """
        return self.acquire_all([TableScope.of(resource, partitions, shared=shared)], timeout_seconds=timeout_seconds)

    def acquire_all(
        self,
        scopes: Sequence[TableScope | str | os.PathLike[str] | TableResource],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
        offer: Offer | None = None,
    ) -> HeldLock:
        """Lock several tables, or partitions of them, under one hold: all or none, and without a deadlock.

        Args:
            scopes: Locations of tables, or results of :meth:`TableScope.of` for partitions and shared locks; at most
                one for each table. The order does not matter.
            timeout_seconds: Total time limit for all of them in seconds, see :meth:`acquire`.
            cancellation: Lets another thread cancel this acquire only.
            offer: Append that a holder of the table may commit while this request waits. Only for one whole table.

        Returns:
            One hold for all.

        Raises:
            ValueError: There is no scope, or two for one table.
            ContenderGoneError: The request with an offer has left the queue.
            LockError and so on: See :meth:`acquire`.

        """
        table_scopes = [scope if isinstance(scope, TableScope) else TableScope.of(scope) for scope in scopes]
        table_scopes.sort(key=lambda table_scope: table_scope.table)
        scope = {table_scope.table.uri: table_scope for table_scope in table_scopes}
        if not scope or len(scope) != len(scopes):
            raise ValueError("give at least one scope, and at most one for each table")
        self._session.check_usable()
        thread = threading.current_thread()
        if (hold := self._enter_hold_again(scope, thread)) is not None:
            return hold
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        check_seconds("timeout_seconds", seconds)
        request = Request(scope, self.settings.lock_root, self._identity(), cancellation or Cancellation(), offer)
        acquisition = Acquisition(self._session, request, Deadline(seconds))
        return self._isolation.run(
            lambda: self._acquire_once(acquisition, thread),
            on_interrupt=acquisition.cancel,
            undo=HeldLock.release,
        )

    def is_offered(self, table: str, offer: Offer, timeout_seconds: float) -> bool:
        """Return whether a holder may still commit an offer; see :meth:`LockManager.is_offered`."""
        if not offer.requests:
            return False
        deadline = Deadline(timeout_seconds)
        node = znodes.table_node(self.settings.lock_root, TableResource.of(table))

        def connect_and_look() -> bool:
            self._session.ensure_ready(deadline)
            return is_offered(self._session, node, offer, deadline)

        return self._isolation.run(lambda: retry_unanswered(self._session, deadline, connect_and_look, "read a queue"))

    def _acquire_once(self, acquisition: Acquisition, thread: threading.Thread) -> HeldLock:
        request = acquisition.request
        with self._lock:
            self._acquisitions.append(acquisition)
        try:
            if any(hold.ensemble_id != self._session.ensemble_id for hold in REGISTRY.of(thread)):
                # The ensemble's id may be unknown. If it is known, this sends no request, unless the session has ended
                # and the ensemble may have been rebuilt.
                acquisition.connect()
                if (hold := self._enter_hold_again(request.scope, thread)) is not None:
                    return hold
            if any(scope.partitions is not None for scope in request.scope.values()) and not guard_is_installed():
                raise UnguardedError(resource=request.resource)
            return self._queue_up(acquisition, thread)
        except ClosedError:
            if request.cancellation.requested.is_set():
                raise LockCancelledError(resource=request.resource) from None
            raise
        finally:
            with self._lock:
                self._acquisitions.remove(acquisition)

    def _queue_up(self, acquisition: Acquisition, thread: threading.Thread) -> HeldLock:
        request, deadline = acquisition.request, acquisition.deadline
        for table in request.tables:
            emit(Event.QUEUED, table)
        try:
            acquire_result = acquisition.run()
            hold = HeldLock(
                self._session,
                request,
                acquire_result,
                waited_seconds=deadline.elapsed(),
                thread=thread,
                services=HoldServices(self._keepalive, self._cleanup, self._isolation, self._forget),
            )
            REGISTRY.add(hold)
            with self._lock:
                self._holds.append(hold)
        except BaseException as error:
            event = Event.DISMISSED if isinstance(error, ContenderGoneError) else Event.GAVE_UP
            for table in request.tables:
                emit(event, table, seconds=deadline.elapsed())
            acquisition.abandon(self._cleanup)
            raise
        return hold

    def release(self, resource: str | os.PathLike[str] | TableResource) -> None:
        """Release this thread's lock on ``resource``, or the only one of this manager if the thread has none.

        This thread's lock may come from another manager of the same ensemble, see :meth:`acquire`.

        Raises:
            LockNotHeldError: There is no lock, or several threads have one.
            LockLostError: The lock was lost before; see :meth:`HeldLock.release`.
            ResourceError, ClosedError: See :meth:`queue`.

        """
        table = TableResource.of(resource)
        self._session.check_usable()
        with self._lock:
            holds = [hold for hold in self._holds if table.uri in hold.scope]
        thread = threading.current_thread()
        thread_holds = [hold for hold in self._holds_of(thread) if table.uri in hold.scope]
        # An ensemble that was rebuilt has another id by now.
        thread_holds = thread_holds or [hold for hold in holds if hold.thread is thread]
        if thread_holds:
            thread_holds[-1].release()
        elif len(holds) == 1:
            holds[0].release()
        else:
            problem = (
                f"{len(holds)} holds of other threads exist: call release() of one of these HeldLock objects"
                if holds
                else "it is not held"
            )
            raise LockNotHeldError(f"cannot release the lock on {table.uri}: {problem}", resource=table.uri)

    def cancel(self, resource: str | os.PathLike[str] | TableResource) -> int:
        """Cancel every ``acquire`` of this manager that waits for ``resource``, and return their number."""
        uri = TableResource.of(resource).uri
        self._session.check_usable()

        def cancel() -> int:
            with self._lock:
                acquisitions = [acquisition for acquisition in self._acquisitions if uri in acquisition.request.tables]
            for acquisition in acquisitions:
                acquisition.cancel()
            return len(acquisitions)

        return self._isolation.run(cancel)

    def queue(
        self, resource: str | os.PathLike[str] | TableResource, *, timeout_seconds: float = _CONNECT_SECONDS
    ) -> list[QueueEntry]:
        """Return the holders and waiters of ``resource`` and of its partitions, in queue order.

        Raises:
            ResourceError: The location is not usable.
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError, ClosedError: See :meth:`connect`.

        """
        table = TableResource.of(resource)
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        deadline = Deadline(timeout_seconds)

        def connect_and_read() -> list[QueueEntry]:
            self._session.ensure_ready(deadline)
            return list(QueueReader(self._session).table(table.key, deadline, uri=table.uri).entries)

        return self._isolation.run(lambda: retry_unanswered(self._session, deadline, connect_and_read, "read a queue"))

    def _identity(self) -> dict[str, object]:
        values = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "app_id": self.settings.app_id,
            "job": self.settings.job,
        }
        return {name: value for name, value in values.items() if value is not None} | {"requested_at": time.time()}

    def _holds_of(self, thread: threading.Thread) -> list[HeldLock]:
        """Return a thread's holds in this manager's ensemble, from all managers, the oldest first."""
        holds = (hold for hold in REGISTRY.of(thread) if hold.ensemble_id == self._session.ensemble_id)
        return [hold for hold in holds if isinstance(hold, HeldLock)]

    def _enter_hold_again(self, scope: Mapping[str, TableScope], thread: threading.Thread) -> HeldLock | None:
        """Enter a thread's hold that covers the scope again and return it; None if there is none.

        Raises:
            LockOrderError: The thread holds a lock with which the request could cause a deadlock.

        """
        while True:
            holds = self._holds_of(thread)
            hold = find_covering_hold([hold for hold in holds if not hold.over], scope)
            if hold is None or hold.enter_again():
                return hold

    def _forget(self, hold: HeldLock) -> None:
        REGISTRY.remove(hold)
        with self._lock:
            if hold in self._holds:
                self._holds.remove(hold)
