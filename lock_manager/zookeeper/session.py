"""The life of one ZooKeeper session: connected, suspended, lost, forked, closed.

Kazoo implements the protocol. This module adds what a lock relies on:

* **No call hangs.** Every wait has a deadline. A session that is closed or belongs to the parent of a fork raises
  ClosedError; kazoo's own calls hang in these cases (kazoo #482, #519).
* **The granted timeout counts.** The server may grant less or more than the client requests.
* **The last proof that the session was alive** is :attr:`Session.proven_at`. Only a *quorum* request with a response
  proves it, for the moment *before* it was sent. Pings and reads prove nothing: one server answers them, which may be
  cut off from its leader for a while, and the leader expires sessions.
* **Listeners may block.** They run in a separate thread. In kazoo's thread they would deadlock it (kazoo #381).
"""

from __future__ import annotations

import enum
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.client import Client

log = logging.getLogger(__name__)

VALID_FRACTION = 0.4
"""A hold counts as valid for this fraction of the granted session timeout after the last proof of its session.

Why not more: a quorum request does not itself extend the session. The leader does that when a follower reports which
sessions were active, every half tick. Before the request there may have been only kazoo's pings, which are a third of
the timeout apart. So the leader may count from 1/3 of the timeout plus half a tick before the request. The shortest
session is two ticks, which leaves 1 - 1/3 - 1/4 = 0.417."""

KEEPALIVE_FRACTION = 1 / 6
"""Interval of the requests that check a hold, as a fraction of the granted session timeout."""

_CLOSE_SECONDS = 5.0
"""Maximum wait of :meth:`Session.close` for kazoo, in seconds."""

POLL_SECONDS = 0.2
"""Interval at which a wait for the ensemble checks for cancellation and for the end of kazoo's thread, in seconds."""

NO_ANSWER = (ConnectionLoss, OperationTimeoutError, SessionMovedError, KazooTimeoutError)
"""Kazoo's errors for a request that may or may not have been executed."""

SESSION_GONE = (SessionExpiredError, ConnectionClosedError, AuthFailedError)
"""Kazoo's errors for a session that has ended, or is about to end, with all of its ephemeral nodes.

They include refused credentials, because kazoo gives up then. The wait for the next connection raises the reason."""

UNANSWERED = (*NO_ANSWER, *SESSION_GONE)
"""Kazoo's errors for a request without a response, for any reason. A later request may get one."""

EXPECTED_ERRORS = (*UNANSWERED, NoNodeError, NodeExistsError, NotEmptyError, BadVersionError)
"""Kazoo's errors that callers handle. Every other error is a refusal."""


class SessionState(enum.Enum):
    """The state of the session; the value is the text for logs."""

    NEW = "not connected yet"
    CONNECTED = "connected"
    SUSPENDED = "suspended: no server answers; the session may live on"
    LOST = "lost: ended by the ensemble, or given up"
    CLOSED = "closed"


class Session:
    """The current kazoo client, from the first use to :meth:`close`; thread-safe.

    Methods that connect or wait for a connection raise ClosedError, see :meth:`check_usable`.

    Attributes:
        session_id: Id of the current session, None before the first one.
        ensemble_id: UUID stored at the lock root, None before the first connection.
        proven_at: ``time.monotonic`` of the last proof that the ensemble kept ``session_id`` alive.

    """

    def __init__(self, settings: LockSettings) -> None:
        self.settings = settings
        self.session_id: int | None = None
        self.ensemble_id: str | None = None
        self.proven_at = float("-inf")
        self._granted_seconds: float | None = None
        self._client: Client | None = None
        self._state = SessionState.NEW
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._checked_root_in: int | None = None
        self._wakers: set[Callable[[], None]] = set()
        self._watchers: dict[str, set[Callable[[], None]]] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._notices: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._notifier: threading.Thread | None = None

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """Current state of the session; CLOSED in a forked child, regardless of the state in the parent."""
        return SessionState.CLOSED if self.belongs_to_parent else self._state

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._state is SessionState.CLOSED

    @property
    def client(self) -> Client:
        """The kazoo client; use it only between :meth:`ensure_ready` and the end of the request."""
        self.check_usable()
        if self._client is None:
            raise ClosedError("the ZooKeeper session was not started, or was given up")
        return self._client

    @property
    def granted_seconds(self) -> float:
        """Session timeout that the server granted, in seconds; it may be less or more than the client requests."""
        return self._granted_seconds or self.settings.session_timeout_seconds

    def valid_until(self, session_id: int) -> float:
        """Return the monotonic time until which the ensemble cannot have ended ``session_id``, by its last proof."""
        with self._lock:
            if session_id != self.session_id:
                return float("-inf")
            return self.proven_at + VALID_FRACTION * self.granted_seconds

    def response_deadline(self, seconds: float | None = None) -> Deadline:
        """Return the time limit for a response that proves a hold. A later response would prove nothing."""
        bound = VALID_FRACTION * self.granted_seconds
        return Deadline(bound if seconds is None else min(seconds, bound))

    def record_proof(self, sent_at: float, session_id: int) -> None:
        """Record the response of ``session_id`` to a quorum request that was sent at ``sent_at`` (monotonic)."""
        with self._lock:
            if session_id == self.session_id:
                self.proven_at = max(self.proven_at, sent_at)

    @property
    def belongs_to_parent(self) -> bool:
        """Whether this process is a forked child of the process that created the session."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Raise ClosedError where a request would hang: the session was closed, or this process is a forked child."""
        if self.belongs_to_parent:
            raise ClosedError(
                f"this lock manager belongs to process {self._pid} and was carried over by a fork into {os.getpid()}: "
                "create a new one in the child"
            )
        if self.closed:
            raise ClosedError("this lock manager is closed: create a new one")

    # -- connection ----------------------------------------------------------------------------------------------

    def ensure_ready(self, deadline: Deadline, cancel_event: threading.Event | None = None) -> int:
        """Connect if necessary, verify the lock root, and return the session's id.

        Raises:
            EnsembleUnavailableError: The ensemble did not respond before the deadline, or the wait was cancelled.
            EnsembleRefusedError, EnsembleFormatError: The connection was refused, or the lock root cannot be used.

        """
        # The cause of an earlier client's refusal may have been fixed since.
        self._give_up_if_dead()
        while True:
            self.wait_for_connection(deadline, cancel_event)
            with self._lock:
                session_id = self.session_id if self._state is SessionState.CONNECTED else None
            if session_id is not None and self._checked_root_in == session_id:
                return session_id
            if session_id is None:
                raise self._unavailable(deadline)
            try:
                ensemble = lock_root.ensure_ensemble_id(self, deadline)
            except UNANSWERED:
                if deadline.remaining() == 0:
                    raise self._unavailable(deadline) from None
            else:
                if self.ensemble_id not in (None, ensemble):
                    hosts = self.settings.zk_hosts
                    log.warning("the ensemble at %s was rebuilt: its id changed to %s", hosts, ensemble)
                self.ensemble_id, self._checked_root_in = ensemble, session_id

    def wait_for_connection(self, deadline: Deadline, cancel_event: threading.Event | None = None) -> None:
        """Return when connected, at the deadline, or when cancelled; start kazoo if it does not run.

        Raises:
            EnsembleUnavailableError: No host name has an address, before the first connection.
            EnsembleRefusedError: TLS verification or credentials were refused. The next call tries again.

        """
        while True:
            self.check_usable()
            with self._lock:
                if self._client is None:
                    self._start()
                if self._state is SessionState.CONNECTED:
                    return
                if deadline.remaining() == 0 or (cancel_event is not None and cancel_event.is_set()):
                    return
                self._changed.wait(min(POLL_SECONDS, deadline.remaining()))
            if refusal := self._give_up_if_dead():
                raise EnsembleRefusedError(self.settings.zk_hosts, refusal)
            client = self._client
            # Before the first connection, unknown host names are probably misspelt. Afterwards, and if the resolver
            # fails, waiting may help.
            if self.ensemble_id is None and client is not None and client.is_unresolvable:
                raise self._unavailable(deadline)

    def _give_up_if_dead(self) -> str | None:
        """Give up the session if kazoo's thread has ended; return the refusal that ended it, if there was one."""
        client = self._client
        if client is None or not client.is_dead:
            return None
        self.renew(client.refusal or "kazoo's connection thread has ended", client)
        return client.refusal

    def wait_for_retry(self, deadline: Deadline, request_name: str) -> None:
        """Wait for a connection for the repetition of a request that got no response.

        Raises:
            EnsembleUnavailableError: The deadline has passed. Its message contains ``request_name``.

        """
        if deadline.remaining() == 0:
            raise self._unavailable(deadline, request_name) from None
        self.wait_for_connection(deadline)

    def _unavailable(self, deadline: Deadline, request_name: str = "connect") -> EnsembleUnavailableError:
        problem = self._client.problem if self._client is not None else None
        return EnsembleUnavailableError(self.settings.zk_hosts, deadline.elapsed(), request_name, problem=problem)

    def renew(self, reason: str, only_client: Client | None = None) -> None:
        """Give up the session with all of its holds and contenders; the next use starts a new one.

        If ``only_client`` is given and is not the current client any more, do nothing.
        """
        with self._lock:
            if self.closed or only_client not in (None, self._client):
                return
            client, self._client = self._client, None
            self._state = SessionState.LOST
            self.session_id = None
        log.error("the ZooKeeper session was given up: %s", reason)
        self._announce(SessionState.LOST)
        if client is not None:
            _stop_in_background(client)

    def _start(self) -> None:
        settings = self.settings
        client = Client(settings.zk_hosts, settings.session_timeout_seconds, self._on_granted, settings.security)
        client.add_listener(lambda state: self._on_state(client, state))
        self._client = client
        client.start_async()

    def _on_granted(self, seconds: float) -> None:
        self._granted_seconds = seconds

    def recheck_root(self) -> None:
        """Make the next :meth:`ensure_ready` verify the lock root again, because it was missing."""
        self._checked_root_in = None

    def wait(self, result: Any, deadline: Deadline) -> Any:
        """Wait for a kazoo AsyncResult until the deadline.

        Raises:
            KazooException, KazooTimeoutError: An error of :data:`EXPECTED_ERRORS`; one of :data:`UNANSWERED` if no
                response arrived.
            EnsembleRefusedError: The ensemble returned any other error.

        """
        try:
            return result.get(timeout=deadline.remaining())
        except KazooException as error:
            self.raise_response_error(error)
        except RuntimeError as error:
            # The response to an earlier request is missing. Kazoo closes the connection.
            raise ConnectionLoss(str(error)) from error

    def raise_response_error(self, error: KazooException) -> NoReturn:
        """Raise an error from the results of a transaction as :meth:`wait` does for a single request."""
        if isinstance(error, EXPECTED_ERRORS):
            raise error
        raise EnsembleRefusedError(self.settings.zk_hosts, type(error).__name__) from error

    # -- state changes -------------------------------------------------------------------------------------------

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at every state change, usually in kazoo's thread. It must not block."""
        with self._lock:
            self._wakers.add(wake)

    def remove_waker(self, wake: Callable[[], None]) -> None:
        """Undo :meth:`add_waker`."""
        with self._lock:
            self._wakers.discard(wake)

    def watch(self, path: str, wake: Callable[[], None]) -> Any:
        """Call ``wake`` when ``path`` is deleted, or when its deletion may be missed; return kazoo's AsyncResult.

        A child watch on a node without children fires only at the deletion. Kazoo keeps a watcher until it fires. So
        all waiters share one watcher. With a watcher of its own, each waiter would leave it behind at :meth:`unwatch`.
        """
        with self._lock:
            self._watchers.setdefault(path, set()).add(wake)
        return self.client.get_children_async(path, watch=self._on_watch)

    def unwatch(self, path: str, wake: Callable[[], None]) -> None:
        """Undo :meth:`watch`."""
        with self._lock:
            wakers = self._watchers.get(path, set())
            wakers.discard(wake)
            if not wakers:
                self._watchers.pop(path, None)

    def _on_watch(self, event: Any) -> None:
        with self._lock:
            # An event without a path reports a lost connection, which ends every watch.
            paths = list(self._watchers) if event.path is None else [event.path]
            wakers = [wake for path in paths for wake in self._watchers.get(path, ())]
        for wake in wakers:
            wake()

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` with every new state, in order, in a separate thread. It may block."""
        with self._lock:
            self._listeners.append(listener)

    def _run_notices(self) -> None:
        while (notice := self._notices.get()) is not None:
            try:
                notice()
            except Exception:  # a listener's error must not stop the next listener
                log.exception("a listener for the states of the ZooKeeper session raised an exception")

    def _on_state(self, client: Client, kazoo_state: str) -> None:
        # Kazoo's connection thread calls this method, so it must not wait for that thread.
        with self._lock:
            if self.closed or client is not self._client:
                return
            self._state = SessionState[kazoo_state]  # kazoo uses the same names
            if self._state is SessionState.CONNECTED:
                session_id = client.client_id[0]
                if session_id != self.session_id:
                    self.session_id, self.proven_at = session_id, float("-inf")
            state = self._state
        self._announce(state)

    def _announce(self, state: SessionState) -> None:
        log.info("ZooKeeper session %s: %s", f"{self.session_id or 0:#x}", state.value)
        with self._lock:
            self._changed.notify_all()
            wakers, listeners = list(self._wakers), list(self._listeners)
            if listeners and self._notifier is None:
                self._notifier = threading.Thread(target=self._run_notices, name="sluice-notify", daemon=True)
                self._notifier.start()
        # Wakers run without the session's lock: each takes a lock whose owner may be waiting for the session's.
        for wake in wakers:
            wake()
        for listener in listeners:
            self._notices.put(functools.partial(listener, state))

    # -- close ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session with all of its contenders. This takes at most a few seconds, also in an outage.

        The second call does nothing. A call in a forked child does nothing, because the session is the parent's.
        """
        if self.belongs_to_parent:
            return
        with self._lock:
            if self._state is SessionState.CLOSED:
                return
            self._state = SessionState.CLOSED
            client, self._client = self._client, None
        self._announce(SessionState.CLOSED)
        self._notices.put(None)
        if client is not None:
            stopper = _stop_in_background(client)
            stopper.join(_CLOSE_SECONDS)
            if stopper.is_alive():
                log.warning("ZooKeeper does not answer; the session ends by itself in %.0f s", self.granted_seconds)


def _stop_in_background(client: Client) -> threading.Thread:
    def stop() -> None:
        with suppress(KazooException, OSError):
            client.stop()
            client.close()

    # Kazoo's stop waits for a running connection attempt, up to the session timeout.
    stopper = threading.Thread(target=stop, name="sluice-close", daemon=True)
    stopper.start()
    return stopper
