"""The lock manager: the one object that programs use."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from lock_manager.coordinator import Cancellation
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    ClosedError,
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
from lock_manager.zookeeper.asking import insist
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.connection import refusal_of_all
from lock_manager.zookeeper.held_lock import HeldLock, HoldServices
from lock_manager.zookeeper.keepalive import KeepAlive
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.request import Request, queues_of
from lock_manager.zookeeper.session import Session, SessionState
from lock_manager.zookeeper.signals import SignalIsolation
from lock_manager.zookeeper.znodes import table_node

_CONNECT_SECONDS = 15.0
"""How long connecting, or looking at a queue, may take unless the caller says otherwise."""


class ZookeeperLockManager:
    """Locks on Delta tables, handed out by a ZooKeeper ensemble in the order in which they were asked for.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181", timeout_seconds=600) as manager:
            with manager.acquire("s3a://lake/flights") as hold:
                df.write.format("delta").mode("append").save("s3a://lake/flights")

    One ZooKeeper session, connected at the first use, shared by all threads; each ``acquire`` queues for itself. A lock
    belongs to the thread that acquired it for the rule on nesting only: any thread may release it. That rule counts
    what the thread has through every manager of the same ensemble (:mod:`lock_manager.nesting`).

    A lock orders writers; by itself it does not stop one that was paused past its session from writing afterwards. See
    :meth:`HeldLock.check` and docs/concepts.md.

    Args:
        zk_hosts: ``host:port,host:port[/chroot]``, or a :class:`LockSettings` with everything.
        timeout_seconds: total deadline of an ``acquire`` that gives none of its own.
        session_timeout_seconds: asked of the server; a dead holder's lock is free after it.
        max_hold_seconds: a hold longer than this is given up, and what it still wants to commit is refused.
        lock_root: znode below which tables are locked.
        job: name of this job, for those who wait behind it.
        app_id: Spark application id, likewise.

    Raises:
        SettingsError: a value is malformed or outside its range.

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
        given = {
            "timeout_seconds": timeout_seconds,
            "session_timeout_seconds": session_timeout_seconds,
            "max_hold_seconds": max_hold_seconds,
            "lock_root": lock_root,
            "job": job,
            "app_id": app_id,
        }
        self.settings = LockSettings.merged(
            zk_hosts, **{name: value for name, value in given.items() if value is not None}
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
        """What is known of the ZooKeeper session."""
        return self._session.state

    @property
    def session_timeout_seconds(self) -> float:
        """Session time-out in force: what the server granted, which may be less than was asked for, or more."""
        return self._session.granted_seconds

    def connect(self, timeout_seconds: float = _CONNECT_SECONDS) -> None:
        """Connect now, to find out early whether the ensemble is there; ``acquire`` does it by itself.

        Raises:
            EnsembleUnavailableError: no answer in time.
            EnsembleRefusedError: it refused us, or its certificate is not to be trusted.
            EnsembleFormatError: the lock root was written by an unknown release.
            ClosedError: closed, or carried over by a fork.

        """
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        self._isolation.run(lambda: self._session.ready(Deadline(timeout_seconds)))

    def check_reachable(self, timeout_seconds: float) -> None:
        """Check that a server accepts a TCP connection; no session is started.

        Args:
            timeout_seconds: Seconds to try all servers.

        Raises:
            EnsembleUnavailableError: No server accepts one in time.

        """
        hosts = self.settings.zk_hosts
        if (problem := refusal_of_all(hosts, timeout_seconds)) is not None:
            raise EnsembleUnavailableError(hosts, timeout_seconds, problem=problem)

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Have ``listener`` called with every new state of the session, in order; it may block and use the manager."""
        self._session.add_listener(listener)

    def close(self) -> None:
        """Cancel who waits, end the session and with it every lock of this manager; bounded, also in an outage.

        Close after the work under the locks is done. Does nothing the second time, nor in a forked child.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Lock a table, or partitions of it; wait for everybody who asked before.

        A thread that has the lock already, or one that covers it, gets the same hold again and gives it back as often;
        also through another manager of the same ensemble. Of the manager that gave it first are the session, the
        ``max_hold_seconds`` and the :meth:`close` that ends it. A manager that is not connected yet connects before it
        looks what the thread has through others.

        Args:
            resource: location of the table, in any spelling that :func:`canonical_table_uri` takes.
            partitions: values by column, such as ``{"year": 2013, "month": 1}``, of the table's first partition columns
                or all; or what :meth:`PartitionSchema.partition` made of them. All of the table by default. A partition
                conflicts with what it is a part of, and with what is a part of it. Of more than 64 the table is locked.
            shared: share it with other shared holders; by default it is held alone. Readers of a whole table exclude
                writers of its partitions, too.
            timeout_seconds: total, connecting included; 0 means: only if it is free now. By default the manager's.
                The error may come up to three seconds later: to say who is ahead, and to leave the queue.

        Returns:
            The hold, also a context manager.

        Raises:
            ResourceError: no usable location, or no such partition.
            UnguardedError: partitions, in a process without the commit guard.
            LockTimeoutError: others were still ahead at the deadline.
            LockCancelledError: :meth:`cancel` or :meth:`close` was called meanwhile.
            LockOrderError: this thread holds a lock that makes this one a possible deadlock.
            EnsembleUnavailableError: ZooKeeper did not answer before the deadline.
            EnsembleRefusedError: it rejected the request: no permission, most likely.
            EnsembleFormatError: the lock root was written by an unknown release.
            ClosedError: closed, or carried over by a fork.

        """
        return self.acquire_all([TableScope.of(resource, partitions, shared=shared)], timeout_seconds=timeout_seconds)

    def acquire_all(
        self,
        scopes: Sequence[TableScope | str | os.PathLike[str] | TableResource],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> HeldLock:
        """Lock several tables, or partitions of them, under one hold: all or nothing, and without a deadlock.

        Args:
            scopes: locations of tables, or :meth:`TableScope.of` for partitions or to share; at most one for each
                table. The order does not matter.
            timeout_seconds: total over all of them; as for :meth:`acquire`.
            cancellation: for another thread to have this acquire alone give up.

        Returns:
            One hold for all.

        Raises:
            ValueError: no scope, or two for one table.
            LockError and so on: see :meth:`acquire`.

        """
        each = [scope if isinstance(scope, TableScope) else TableScope.of(scope) for scope in scopes]
        wanted = {scope.table.uri: scope for scope in sorted(each, key=lambda scope: scope.table)}
        if not wanted or len(wanted) != len(scopes):
            raise ValueError("give at least one scope, and at most one for each table")
        self._session.check_usable()
        thread = threading.current_thread()
        if (held := self._held_already(wanted, thread)) is not None:
            return held
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        check_seconds("timeout_seconds", seconds)
        deadline = Deadline(seconds)
        root = self.settings.lock_root
        request = Request(
            resource=", ".join(map(str, wanted.values())),
            tables={uri: table_node(root, scope.table) for uri, scope in wanted.items()},
            nodes=tuple(node for scope in wanted.values() for node in queues_of(scope, root)),
            identity=self._identity(),
            cancellation=cancellation or Cancellation(),
            wanted={uri: scope.told() for uri, scope in wanted.items()},
        )
        acquisition = Acquisition(self._session, request, deadline)
        return self._isolation.run(
            lambda: self._acquire_once(request, acquisition, wanted, deadline, thread),
            interrupted=acquisition.cancel,
            undo=HeldLock.release,
        )

    def _acquire_once(
        self,
        request: Request,
        acquisition: Acquisition,
        scope: Mapping[str, TableScope],
        deadline: Deadline,
        thread: threading.Thread,
    ) -> HeldLock:
        with self._lock:
            self._acquisitions.append(acquisition)
        try:
            if (held := self._held_elsewhere(acquisition, scope, thread)) is not None:
                return held
            if any(each.partitions is not None for each in scope.values()) and not guard_is_installed():
                raise UnguardedError(resource=request.resource)
            return self._queue_up(request, acquisition, scope, deadline, thread)
        except ClosedError:
            if request.cancellation.requested.is_set():
                raise LockCancelledError(resource=request.resource) from None
            raise
        finally:
            with self._lock:
                self._acquisitions.remove(acquisition)

    def _queue_up(
        self,
        request: Request,
        acquisition: Acquisition,
        scope: Mapping[str, TableScope],
        deadline: Deadline,
        thread: threading.Thread,
    ) -> HeldLock:
        for table in request.tables:
            emit(Event.QUEUED, table)
        try:
            acquired = acquisition.run()
            hold = HeldLock(
                self._session,
                request,
                acquired,
                scope=scope,
                waited_seconds=deadline.elapsed(),
                thread=thread,
                services=HoldServices(self._keepalive, self._cleanup, self._isolation, self._forget),
            )
            REGISTRY.add(hold)
            with self._lock:
                self._holds.append(hold)
        except BaseException:
            for table in request.tables:
                emit(Event.GAVE_UP, table, seconds=deadline.elapsed())
            acquisition.abandon(self._cleanup)
            raise
        return hold

    def release(self, resource: str | os.PathLike[str] | TableResource) -> None:
        """Give back the lock on ``resource``: this thread's, or else the only one that this manager gave.

        That of this thread may be another manager's of the same ensemble, see :meth:`acquire`.

        Raises:
            LockNotHeldError: there is none, or several of other threads.
            LockLostError: it had been lost before; see :meth:`HeldLock.release`.
            ResourceError: no usable location.

        """
        table = TableResource.of(resource)
        self._session.check_usable()
        with self._lock:
            holds = [hold for hold in self._holds if table.uri in hold.scope]
        thread = threading.current_thread()
        own = [hold for hold in self._held_by(thread) if table.uri in hold.scope]
        # An ensemble that was rebuilt has another id by now.
        own = own or [hold for hold in holds if hold.thread is thread]
        if own:
            own[-1].release()
        elif len(holds) == 1:
            holds[0].release()
        else:
            why = f"{len(holds)} threads share it: release their HeldLock" if holds else "it is not held"
            raise LockNotHeldError(f"cannot release the lock on {table.uri}: {why}", resource=table.uri)

    def cancel(self, resource: str | os.PathLike[str] | TableResource) -> int:
        """Have every ``acquire`` of this manager that waits for ``resource`` raise LockCancelledError; count them."""
        uri = TableResource.of(resource).uri
        self._session.check_usable()
        return self._isolation.run(lambda: self._cancel(uri))

    def _cancel(self, uri: str) -> int:
        with self._lock:
            waiting = [acquisition for acquisition in self._acquisitions if uri in acquisition.tables]
        for acquisition in waiting:
            acquisition.cancel()
        return len(waiting)

    def queue(
        self, resource: str | os.PathLike[str] | TableResource, *, timeout_seconds: float = _CONNECT_SECONDS
    ) -> list[QueueEntry]:
        """Return who holds ``resource``, or partitions of it, and who waits for them, first come first.

        Raises:
            EnsembleUnavailableError: no answer in time.
            ResourceError: no usable location.
            ClosedError: closed, or carried over by a fork.

        """
        table = TableResource.of(resource)
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        return self._isolation.run(lambda: self._read_queue(table, Deadline(timeout_seconds)))

    # -- inside --------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, object]:
        settings = self.settings
        known = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "app_id": settings.app_id,
            "job": settings.job,
        }
        return {name: value for name, value in known.items() if value is not None} | {"requested_at": time.time()}

    def _held_by(self, thread: threading.Thread) -> list[HeldLock]:
        """Return what a thread has in this manager's ensemble, whichever manager gave it, oldest first."""
        ours = (hold for hold in REGISTRY.of(thread) if hold.ensemble_id == self._session.ensemble_id)
        return [hold for hold in ours if isinstance(hold, HeldLock)]

    def _held_already(self, wanted: Mapping[str, TableScope], thread: threading.Thread) -> HeldLock | None:
        """Enter again and return the hold of this thread that covers what is asked for; None if there is none.

        Raises:
            LockOrderError: it has something that makes the request a possible deadlock.

        """
        while True:
            hold = find_covering_hold([hold for hold in self._held_by(thread) if not hold.over], wanted)
            if hold is None or hold.enter_again():
                return hold

    def _held_elsewhere(
        self, acquisition: Acquisition, wanted: Mapping[str, TableScope], thread: threading.Thread
    ) -> HeldLock | None:
        """Look again, connected, if the thread has something and it is not known yet of which ensemble this is."""
        if all(hold.ensemble_id == self._session.ensemble_id for hold in REGISTRY.of(thread)):
            return None
        # With an id that is known this asks nobody, unless the session is gone, and the ensemble perhaps with it.
        acquisition.connect()
        return self._held_already(wanted, thread)

    def _read_queue(self, table: TableResource, deadline: Deadline) -> list[QueueEntry]:
        reader = QueueReader(self._session)

        def ask() -> list[QueueEntry]:
            self._session.ready(deadline)
            return list(reader.table(table.key, deadline, uri=table.uri).entries)

        return insist(self._session, deadline, ask, "reading a queue")

    def _forget(self, hold: HeldLock) -> None:
        REGISTRY.remove(hold)
        with self._lock:
            if hold in self._holds:
                self._holds.remove(hold)
