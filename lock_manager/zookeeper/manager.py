"""The lock manager: programs acquire locks through it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from lock_manager.base_manager import AcquireRequest, BaseManager
from lock_manager.coordinator import Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleUnavailableError, SettingsError
from lock_manager.queue_entry import QueueEntry
from lock_manager.resources import TableResource
from lock_manager.settings import LockSettings, check_seconds
from lock_manager.zookeeper import lock_root as lock_roots
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

_CONNECT_SECONDS = 15.0
"""Default time limit to connect or to read a queue, in seconds."""


class ZookeeperLockManager(BaseManager[HeldLock, Acquisition]):
    """Locks on Delta tables, which a ZooKeeper ensemble grants in the order of the requests.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181", timeout_seconds=600) as manager:
            with manager.acquire("s3://lake/flights"):
                write_deltalake("s3://lake/flights", rows, mode="append")

    A manager has one ZooKeeper session, which all threads share and which connects at the first use. Each ``acquire``
    queues for itself. Any thread may release a lock. :class:`BaseManager` has the rule on nested acquires.

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
        super().__init__(
            LockSettings.merged(zk_hosts, **{name: value for name, value in options.items() if value is not None})
        )
        if self.settings.lock_url:
            raise SettingsError(f"lock_url={self.settings.lock_url!r} is not a ZooKeeper: use lock_manager.connect")
        if self.settings.fallback:
            raise SettingsError(f"fallback={self.settings.fallback!r}: use lock_manager.connect")
        self._session = Session(self.settings)
        self._keepalive = KeepAlive(self._session)
        self._cleanup = Cleanup(self._session)

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

    def check_answers(self, timeout_seconds: float) -> None:
        """Connect if necessary, and ask the ensemble for its id.

        Raises:
            EnsembleUnavailableError, EnsembleRefusedError and so on: See :meth:`connect`.

        """
        deadline = Deadline(timeout_seconds)

        def connect_and_read() -> None:
            self._session.ensure_ready(deadline)
            lock_roots.read_ensemble_id(self._session, deadline)

        self._isolation.run(
            lambda: retry_unanswered(self._session, deadline, connect_and_read, "read the ensemble's id")
        )

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` with every new state of the session, in order. It may block and may use the manager."""
        self._session.add_listener(listener)

    # -- locks ---------------------------------------------------------------------------------------------------

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

    # -- parts of BaseManager ------------------------------------------------------------------------------------

    @property
    def _ensemble_id(self) -> str | None:
        return self._session.ensemble_id

    @property
    def _belongs_to_parent(self) -> bool:
        return self._session.belongs_to_parent

    def _check_usable(self) -> None:
        self._session.check_usable()

    def _new_acquisition(self, request: AcquireRequest, deadline: Deadline) -> Acquisition:
        return Acquisition(self._session, Request(**vars(request), lock_root=self.settings.lock_root), deadline)

    def _run(self, acquisition: Acquisition, thread: threading.Thread) -> HeldLock:
        return HeldLock(
            self._session,
            acquisition.request,
            acquisition.run(),
            waited_seconds=acquisition.deadline.elapsed(),
            thread=thread,
            services=HoldServices(self._keepalive, self._cleanup, self._isolation, self._forget),
        )

    def _abandon(self, acquisition: Acquisition) -> None:
        acquisition.abandon(self._cleanup)

    def _disconnect(self, holds: Sequence[HeldLock]) -> None:  # noqa: ARG002 (they end with the session)
        self._cleanup.close()
        self._session.close()
