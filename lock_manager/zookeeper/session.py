"""The life of one ZooKeeper session: connect, suspended, lost, forked, closed.

Kazoo does the protocol. What this module adds is what a lock must be able to rely on:

* **Nothing hangs.** Every wait has a deadline; a closed session, and one that belongs to the parent of a fork, raises
  (kazoo's own calls hang there: kazoo #482, #519).
* **The granted time-out counts.** The server may grant less than was asked.
* **When the ensemble last vouched for this session** (:attr:`Session.proven_at`). Only an answered *quorum* request
  counts, from the moment *before* it was sent: pings and reads are answered by the one server that we talk to, which
  may be cut off from its leader for a while, and the leader is who expires sessions.
* **Listeners may block.** They run in a thread of their own; in kazoo's they would deadlock it (kazoo #381).
"""

from __future__ import annotations

import enum
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
from kazoo.protocol.states import KazooState

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.client import Client

log = logging.getLogger(__name__)

VALID_FRACTION = 0.4
"""A hold counts as valid for this part of the granted session time-out after the ensemble last vouched for it.

Why not more: a quorum request that is answered does not itself extend the session. The leader does that when a follower
reports which sessions were active, every half tick; before the request there may have been nothing but kazoo's pings, a
third of the time-out apart. So the leader may count from 1/3 of the time-out plus half a tick before the request, and a
session may be as short as two ticks: 1 - 1/3 - 1/4 = 0.417 is left."""

KEEPALIVE_FRACTION = 1 / 6
"""How often the ensemble is asked about what is held."""

_CLOSE_SECONDS = 5.0
"""How long :meth:`Session.close` waits for kazoo."""

LOOK_SECONDS = 0.2
"""How often a wait for the ensemble looks whether it is still wanted, and whether kazoo still lives."""

NO_ANSWER = (ConnectionLoss, OperationTimeoutError, SessionMovedError, KazooTimeoutError)
"""What kazoo raises when a request may or may not have been done."""

SESSION_GONE = (SessionExpiredError, ConnectionClosedError, AuthFailedError)
"""What kazoo raises when the session, and every ephemeral node of it, is gone or about to be.

Refused credentials are among it: kazoo gives up then. Who waits for the next connection is told why."""

EXPECTED = (*NO_ANSWER, *SESSION_GONE, NoNodeError, NodeExistsError, NotEmptyError, BadVersionError)
"""What kazoo raises that a recipe expects; anything else is a refusal."""


class SessionState(enum.Enum):
    """What is known of the session; the value is the word for logs."""

    NEW = "not connected yet"
    CONNECTED = "connected"
    SUSPENDED = "suspended: no server answers; the session may live on"
    LOST = "lost: the ensemble ended the session"
    CLOSED = "closed"


class Session:
    """One kazoo client from its first use to :meth:`close`; thread-safe.

    Args:
        settings: hosts, time-outs, and how the connection is protected.

    Attributes:
        session_id: of the current session, None before the first one.
        ensemble_id: UUID kept at the lock root, None before the first connection.
        proven_at: ``time.monotonic`` of the last proof that the ensemble held ``session_id`` alive.

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
        self._root_checked_for: int | None = None
        self._wakers: set[Callable[[], None]] = set()
        self._watchers: dict[str, set[Callable[[], None]]] = {}
        self._listeners: list[Callable[[SessionState], None]] = []
        self._notices: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._notifier: threading.Thread | None = None

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """What is known of the session right now; CLOSED in a forked child, whatever it is in the parent."""
        return SessionState.CLOSED if self.belongs_to_parent else self._state

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._state is SessionState.CLOSED

    @property
    def client(self) -> Client:
        """The kazoo client; only to be used between :meth:`ready` and the end of the request."""
        self.check_usable()
        if self._client is None:
            raise ClosedError("the ZooKeeper session was never started")
        return self._client

    @property
    def granted_seconds(self) -> float:
        """Session time-out that the server granted, in seconds; it may be less than was asked for."""
        return self._granted_seconds or self.settings.session_timeout_seconds

    def valid_until(self, session_id: int) -> float:
        """Monotonic time until which ``session_id`` cannot have been ended by the ensemble, by its last proof."""
        with self._lock:
            if session_id != self.session_id:
                return float("-inf")
            return self.proven_at + VALID_FRACTION * self.granted_seconds

    def prove(self, sent_at: float, session_id: int) -> None:
        """Note that a quorum request sent at ``sent_at`` (monotonic) was answered to ``session_id``."""
        with self._lock:
            if session_id == self.session_id:
                self.proven_at = max(self.proven_at, sent_at)

    @property
    def belongs_to_parent(self) -> bool:
        """Whether this is a forked child of the process that made the session."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Raise instead of hanging.

        Raises:
            ClosedError: after :meth:`close`, or in a forked child.

        """
        if self.belongs_to_parent:
            raise ClosedError(
                f"this lock manager belongs to process {self._pid} and was carried over by a fork into {os.getpid()}: "
                "make a new one in the child"
            )
        if self.closed:
            raise ClosedError("this lock manager is closed: make a new one")

    # -- connecting ----------------------------------------------------------------------------------------------

    def ready(self, deadline: Deadline, cancelled: threading.Event | None = None) -> int:
        """Connect if need be, make sure that the lock root is ours, and return the session's id.

        Args:
            deadline: to give up at.
            cancelled: set by another thread to give up before.

        Raises:
            EnsembleUnavailableError: no answer before the deadline, or cancelled.
            EnsembleRefusedError, EnsembleFormatError: the lock root cannot be used.
            ClosedError: see :meth:`check_usable`.

        """
        # What an earlier client was refused for may have been mended since.
        self._give_up_if_dead()
        while True:
            self.wait_for_connection(deadline, cancelled)
            with self._lock:
                session_id = self.session_id if self._state is SessionState.CONNECTED else None
            if session_id is not None and self._root_checked_for == session_id:
                return session_id
            if session_id is None:
                raise self._unavailable(deadline)
            try:
                self._know_ensemble(lock_root.ensemble_id(self, deadline))
            except NO_ANSWER + SESSION_GONE:
                if deadline.remaining() == 0:
                    raise self._unavailable(deadline) from None
            else:
                self._root_checked_for = session_id

    def wait_for_connection(self, deadline: Deadline, cancelled: threading.Event | None = None) -> None:
        """Return when connected, at the deadline, or when cancelled; start kazoo if it does not run.

        Raises:
            EnsembleUnavailableError: before the first connection, no host name has an address.
            EnsembleRefusedError: no trust or no credentials; the next call tries again.
            ClosedError: see :meth:`check_usable`.

        """
        while True:
            self.check_usable()
            with self._lock:
                if self._client is None:
                    self._start()
                if self._state is SessionState.CONNECTED:
                    return
                if deadline.remaining() == 0 or (cancelled is not None and cancelled.is_set()):
                    return
                self._changed.wait(min(LOOK_SECONDS, deadline.remaining()))
            if refusal := self._give_up_if_dead():
                raise EnsembleRefusedError(self.settings.zk_hosts, refusal)
            self._refuse_unresolvable(deadline)

    def _refuse_unresolvable(self, deadline: Deadline) -> None:
        """Give up before the first connection if the resolver answers that no host name has an address.

        A misspelt name is the likely cause. A resolver that fails is waited for, and so are all names later on.
        """
        client = self._client
        if self.ensemble_id is None and client is not None and client.is_unresolvable:
            raise self._unavailable(deadline)

    def _give_up_if_dead(self) -> str | None:
        """Give up the session if kazoo has; return what it was refused for, if that is why."""
        client = self._client
        if client is None or not client.dead:
            return None
        self.renew(client.refusal or "kazoo's connection thread has ended", client)
        return client.refusal

    def wait_again(self, deadline: Deadline, doing: str) -> None:
        """Wait for a connection on which to ask again what got no answer.

        Raises:
            EnsembleUnavailableError: the deadline is over; ``doing`` says what was asked.
            ClosedError: see :meth:`check_usable`.

        """
        if deadline.remaining() == 0:
            raise self._unavailable(deadline, doing) from None
        self.wait_for_connection(deadline)

    def _unavailable(self, deadline: Deadline, doing: str = "connect") -> EnsembleUnavailableError:
        problem = self._client.problem if self._client is not None else None
        return EnsembleUnavailableError(self.settings.zk_hosts, deadline.elapsed(), doing, problem=problem)

    def renew(self, why: str, only: Client | None = None) -> None:
        """Give up the session, and with it every hold and contender of it; the next use starts another one.

        Args:
            why: for the log.
            only: do nothing if the client is another one by now.

        """
        with self._lock:
            if self.closed or only not in (None, self._client):
                return
            client, self._client = self._client, None
            self._state = SessionState.LOST
            self.session_id = None
        log.error("ZooKeeper session given up: %s", why)
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

    def _know_ensemble(self, ensemble: str) -> None:
        if self.ensemble_id not in (None, ensemble):
            log.warning("the ensemble at %s was rebuilt: its id changed to %s", self.settings.zk_hosts, ensemble)
        self.ensemble_id = ensemble

    def recheck_root(self) -> None:
        """Have the next :meth:`ready` look at the lock root again: it was found missing."""
        self._root_checked_for = None

    def wait(self, result: Any, deadline: Deadline) -> Any:
        """Wait for a kazoo AsyncResult until the deadline.

        Raises:
            KazooException: what the ensemble said, of what a recipe expects; :data:`NO_ANSWER` when it said nothing.
            EnsembleRefusedError: it said anything else.

        """
        try:
            return result.get(timeout=deadline.remaining())
        except KazooException as error:
            self.raise_known(error)
        except RuntimeError as error:
            # An answer in front of this one is missing; kazoo gives the connection up.
            raise ConnectionLoss(str(error)) from error

    def raise_known(self, error: KazooException) -> NoReturn:
        """Raise what a recipe expects as it is, anything else as a refusal; a transaction returns what went wrong.

        Raises:
            KazooException: see :meth:`wait`.
            EnsembleRefusedError: likewise.

        """
        if isinstance(error, EXPECTED):
            raise error
        raise EnsembleRefusedError(self.settings.zk_hosts, type(error).__name__) from error

    # -- state changes -------------------------------------------------------------------------------------------

    def add_waker(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called at every state change, in kazoo's thread: it must not block."""
        with self._lock:
            self._wakers.add(wake)

    def remove_waker(self, wake: Callable[[], None]) -> None:
        """Undo :meth:`add_waker`."""
        with self._lock:
            self._wakers.discard(wake)

    def watch(self, path: str, wake: Callable[[], None]) -> Any:
        """Have ``wake`` called when ``path`` is deleted, or when that could be missed; return kazoo's AsyncResult.

        By a child watch on a node that has no children: it fires at nothing but the deletion. Kazoo keeps a watcher
        until it fires, so all waiters share one, and who stops waiting leaves nothing: see :meth:`unwatch`.
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
            # Without a path: the connection was lost, and every watch with it.
            paths = list(self._watchers) if event.path is None else [event.path]
            wakers = [wake for path in paths for wake in self._watchers.get(path, ())]
        for wake in wakers:
            wake()

    def add_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Have ``listener`` called with every new state, in order, in a thread of its own: it may block."""
        with self._lock:
            self._listeners.append(listener)

    def notify(self, notice: Callable[[], None]) -> None:
        """Run ``notice`` in the thread for listeners; what it raises is logged."""
        with self._lock:
            if self._notifier is None:
                self._notifier = threading.Thread(target=self._run_notices, name="sluice-notify", daemon=True)
                self._notifier.start()
        self._notices.put(notice)

    def _run_notices(self) -> None:
        while (notice := self._notices.get()) is not None:
            try:
                notice()
            except Exception:  # a listener's bug must not silence the next one
                log.exception("a listener raised")

    def _on_state(self, client: Client, kazoo_state: str) -> None:
        # In kazoo's connection thread: nothing here may wait for it.
        with self._lock:
            if self.closed or client is not self._client:
                return
            self._state = {
                KazooState.CONNECTED: SessionState.CONNECTED,
                KazooState.SUSPENDED: SessionState.SUSPENDED,
                KazooState.LOST: SessionState.LOST,
            }[kazoo_state]
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
        # Without our lock: a waker takes its own, whose owner may be waiting for ours.
        for wake in wakers:
            wake()
        for listener in listeners:
            self.notify(lambda listener=listener: listener(state))  # type: ignore[misc]

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session, and with it every contender of it; takes at most a few seconds, also in an outage.

        Does nothing the second time, nor in a forked child: the session is the parent's.
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

    # Kazoo's stop waits for a connection attempt under way, up to the session time-out.
    stopper = threading.Thread(target=stop, name="sluice-close", daemon=True)
    stopper.start()
    return stopper
