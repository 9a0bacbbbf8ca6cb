"""The lock manager: the one object that programs use."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lock_manager.errors import (
    ClosedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockNotHeldError,
    LockOrderError,
)
from lock_manager.events import Event, tell
from lock_manager.held import Crew, HeldLock
from lock_manager.inspect import QueueEntry, read_queue
from lock_manager.janitor import Janitor
from lock_manager.keeper import Keeper
from lock_manager.queue_lock import Attempt, Request
from lock_manager.resources import TableResource
from lock_manager.session import NO_ANSWER, SESSION_GONE, Deadline, Session, SessionState
from lock_manager.settings import LockSettings, check_seconds
from lock_manager.shield import Shield

CONNECT_SECONDS = 15.0


class ZookeeperLockManager:
    """Locks on Delta tables, handed out by a ZooKeeper ensemble in the order in which they were asked for.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181", timeout_seconds=600) as manager:
            with manager.acquire("s3a://lake/flights") as hold:
                df.write.format("delta").mode("append").save("s3a://lake/flights")

    One ZooKeeper session, connected at the first use, shared by all threads; each ``acquire`` queues for itself. A lock
    belongs to the thread that acquired it for the rule on nesting only: any thread may release it.

    A lock orders writers; by itself it does not stop one that was paused past its session from writing afterwards. See
    :meth:`HeldLock.check` and docs/concepts.md.

    Args:
        zk_hosts: ``host:port,host:port[/chroot]``, or a :class:`LockSettings` with everything.
        timeout_seconds: total deadline of an ``acquire`` that gives none of its own.
        session_timeout_seconds: asked of the server; a dead holder's lock is free after it.
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
        lock_root: str | None = None,
        job: str | None = None,
        app_id: str | None = None,
    ) -> None:
        given = {
            "timeout_seconds": timeout_seconds,
            "session_timeout_seconds": session_timeout_seconds,
            "lock_root": lock_root,
            "job": job,
            "app_id": app_id,
        }
        self.settings = LockSettings.merged(
            zk_hosts, **{name: value for name, value in given.items() if value is not None}
        )
        self._session = Session(self.settings)
        self._shield = Shield()
        self._keeper = Keeper(self._session)
        self._janitor = Janitor(self._session)
        self._lock = threading.Lock()
        self._holds: list[HeldLock] = []
        self._attempts: list[Attempt] = []

    # -- connection ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """What is known of the ZooKeeper session."""
        return self._session.state

    @property
    def session_timeout_seconds(self) -> float:
        """Session time-out in force: what the server granted, which may be less than was asked for, or more."""
        return self._session.granted_seconds

    def connect(self, timeout_seconds: float = CONNECT_SECONDS) -> None:
        """Connect now, to find out early whether the ensemble is there; ``acquire`` does it by itself.

        Raises:
            EnsembleUnavailableError: no answer in time.
            EnsembleFormatError: the lock root was written by an unknown release.
            ClosedError: closed, or carried over by a fork.

        """
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        self._shield.run(lambda: self._session.ready(Deadline(timeout_seconds)))

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Have ``listener`` called with every new state of the session, in order; it may block and use the manager."""
        self._session.add_listener(listener)

    def close(self) -> None:
        """Cancel who waits, end the session and with it every lock of this manager; bounded, also in an outage.

        Close after the work under the locks is done. Does nothing the second time, nor in a forked child.
        """
        if not self._session.belongs_to_parent:
            self._shield.run(self._close)
            self._shield.close()

    def _close(self) -> None:
        with self._lock:
            holds, self._holds = self._holds, []
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        for hold in holds:
            hold.close()
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
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> HeldLock:
        """Lock a table; wait for everybody who asked before.

        Args:
            resource: location of the table, in any spelling that :func:`canonical_table_uri` takes.
            shared: share it with other shared holders; by default it is held alone.
            timeout_seconds: total, connecting included; 0 means: only if it is free now. By default the manager's.
                The error may come up to three seconds later: to say who is ahead, and to leave the queue.

        Returns:
            The hold, also a context manager.

        Raises:
            ResourceError: no usable location.
            LockTimeoutError: others were still ahead at the deadline.
            LockCancelledError: :meth:`cancel` or :meth:`close` was called meanwhile.
            LockOrderError: this thread holds a lock that makes this one a possible deadlock.
            EnsembleUnavailableError: ZooKeeper did not answer before the deadline.
            EnsembleRefusedError: it refused, for want of permission most likely.
            EnsembleFormatError: the lock root was written by an unknown release.
            ClosedError: closed, or carried over by a fork.

        """
        table = TableResource.of(resource)
        self._session.check_usable()
        self._check_order(table)
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        check_seconds("timeout_seconds", seconds)
        deadline = Deadline(seconds)
        request = Request(
            uri=table.uri,
            node=table.znode(self.settings.lock_root),
            shared=shared,
            identity=self._identity(),
            cancelled=threading.Event(),
        )
        attempt = Attempt(self._session, request, deadline)
        thread = threading.current_thread()
        return self._shield.run(
            lambda: self._attempt(request, attempt, table.key, deadline, thread),
            interrupted=attempt.cancel,
            undo=HeldLock.release,
        )

    def _attempt(
        self, request: Request, attempt: Attempt, key: str, deadline: Deadline, thread: threading.Thread
    ) -> HeldLock:
        with self._lock:
            self._attempts.append(attempt)
        tell(Event.QUEUED, request.uri)
        try:
            place = attempt.run()
            hold = HeldLock(
                self._session,
                request,
                place,
                key=key,
                waited_seconds=deadline.elapsed(),
                thread=thread,
                crew=Crew(self._keeper, self._janitor, self._shield, self._forget),
            )
            with self._lock:
                self._holds.append(hold)
        except BaseException as error:
            tell(Event.GAVE_UP, request.uri, seconds=deadline.elapsed())
            attempt.abandon(self._janitor)
            if isinstance(error, ClosedError) and request.cancelled.is_set():
                raise LockCancelledError(resource=request.uri) from None
            raise
        finally:
            with self._lock:
                self._attempts.remove(attempt)
        return hold

    def release(self, resource: str | os.PathLike[str] | TableResource) -> None:
        """Give back the lock on ``resource``: this thread's, or else the only one that this manager has.

        Raises:
            LockNotHeldError: there is none, or several of other threads.
            LockLostError: it had been lost before; see :meth:`HeldLock.release`.
            ResourceError: no usable location.

        """
        table = TableResource.of(resource)
        self._session.check_usable()
        with self._lock:
            holds = [hold for hold in self._holds if hold.resource == table.uri]
        own = [hold for hold in holds if hold.thread is threading.current_thread()]
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
        return self._shield.run(lambda: self._cancel(uri))

    def _cancel(self, uri: str) -> int:
        with self._lock:
            waiting = [attempt for attempt in self._attempts if attempt.uri == uri]
        for attempt in waiting:
            attempt.cancel()
        return len(waiting)

    def queue(
        self, resource: str | os.PathLike[str] | TableResource, *, timeout_seconds: float = CONNECT_SECONDS
    ) -> list[QueueEntry]:
        """Return who holds the lock on ``resource`` and who waits for it, first come first.

        Raises:
            EnsembleUnavailableError: no answer in time.
            ResourceError: no usable location.
            ClosedError: closed, or carried over by a fork.

        """
        node = TableResource.of(resource).znode(self.settings.lock_root)
        check_seconds("timeout_seconds", timeout_seconds)
        self._session.check_usable()
        return self._shield.run(lambda: self._read_queue(node, Deadline(timeout_seconds)))

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

    def _check_order(self, table: TableResource) -> None:
        thread = threading.current_thread()
        with self._lock:
            held = [hold for hold in self._holds if hold.thread is thread and hold.lost is None]
        for hold in held:
            if hold.resource == table.uri:
                raise LockOrderError(
                    f"this thread holds the lock on {table.uri} already and would wait for itself: "
                    "do the work under the hold that it has, or release that first",
                    resource=table.uri,
                )
            if hold.resource > table.uri:
                raise LockOrderError(
                    f"this thread holds {hold.resource} and asks for {table.uri}, while another may hold them the "
                    f"other way round: acquire {table.uri} first (tables in the order of their URIs)",
                    resource=table.uri,
                )

    def _read_queue(self, node: str, deadline: Deadline) -> list[QueueEntry]:
        while True:
            try:
                return read_queue(self._session, node, deadline)
            except NO_ANSWER + SESSION_GONE:
                if deadline.remaining() == 0:
                    raise EnsembleUnavailableError(
                        self.settings.zk_hosts, deadline.elapsed(), "reading a queue"
                    ) from None

    def _forget(self, hold: HeldLock) -> None:
        with self._lock:
            if hold in self._holds:
                self._holds.remove(hold)
