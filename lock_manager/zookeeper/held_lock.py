"""A held lock, as its user has it: what it covers, what is asked of it, and how it is given back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from lock_manager.deadline import Deadline
from lock_manager.errors import LockError, LockLostError, LockNotHeldError
from lock_manager.events import Event, emit
from lock_manager.intents import Intent
from lock_manager.scope import TableScope
from lock_manager.settings import check_seconds
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.keepalive import KeepAlive
from lock_manager.zookeeper.own_contenders import OwnContenders
from lock_manager.zookeeper.request import Acquired, Request
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.signals import SignalIsolation
from lock_manager.zookeeper.standing import Standing
from lock_manager.zookeeper.znodes import intents_node

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 10.0
"""How long a release waits for its answer; then the contender is removed in the background or ends with its session."""


@dataclass(frozen=True)
class HoldServices:
    """Who works for a hold.

    Attributes:
        keepalive: asks the ensemble about it.
        cleanup: removes its contender when the release got no answer.
        isolation: keeps signal handlers out of its requests.
        forget: strikes it from its manager's list.

    """

    keepalive: KeepAlive
    cleanup: Cleanup
    isolation: SignalIsolation
    forget: Callable[[HeldLock], None]


class HeldLock:
    """A lock on a table, on partitions of it, or on several, held by this process until released or lost.

    Also a context manager. Acquired again by its thread it counts: as many releases give it back.

    What it does **not** promise: that a write which takes place now is safe. A process may be paused for longer than
    its session lives, and find that out only afterwards. Ask :meth:`check` as late as possible, and let the store
    refuse to overwrite.

    Attributes:
        hold_id: unique name of this hold; the names of its contenders begin with it.
        resource: what is held, for people: the canonical URI of the table, in most cases.
        scope: what is held of each table, by canonical URI.
        shared: whether other shared holders may hold at the same time.
        tokens: fencing token (czxid of the contender) by key of each node; a later exclusive hold has a larger one.
        exclusive_keys: keys of the nodes that it holds alone.
        ensemble_id: UUID of the ensemble that gave it: tokens of different ensembles do not compare.
        requested_at: when ``acquire`` was called, seconds since the epoch.
        acquired_at: acquisition time, seconds since the epoch.
        waited_seconds: from one to the other, on the monotonic clock.
        released_at: when the release was asked for; None before.
        thread: that acquired it, for the rule on nested acquires.

    """

    def __init__(
        self,
        session: Session,
        request: Request,
        acquired: Acquired,
        *,
        scope: Mapping[str, TableScope],
        waited_seconds: float,
        thread: threading.Thread,
        services: HoldServices,
    ) -> None:
        self.hold_id = acquired.hold_id
        self.resource = request.resource
        self.scope = dict(scope)
        self.shared = all(each.shared for each in scope.values())
        self._contenders = OwnContenders(session, acquired)
        self.tokens = self._contenders.tokens
        self.exclusive_keys = self._contenders.exclusive_keys
        self.ensemble_id = session.ensemble_id or ""
        self.acquired_at = time.time()
        self.requested_at = self.acquired_at - waited_seconds
        self.waited_seconds = waited_seconds
        self.thread = thread
        self._session = session
        self._services = services
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[HeldLock], None]] = []
        self._commits: dict[str, list[int]] = {}
        self._entries = 1
        self._blocks: list[int] = []
        self._closed_inside = False
        self._standing = Standing(
            session,
            self._contenders,
            acquired.session_id,
            request,
            acquired_at=self.acquired_at,
            on_lost=self._was_lost,
            end_error=self._end_error,
        )
        self._intents = {
            table: HoldIntents(
                self.hold_id,
                self._standing.confirmed,
                session,
                services.isolation,
                intents_node(node),
                acquired.unfinished[table],
            )
            for table, node in request.tables.items()
        }
        for table in self.scope:
            emit(Event.ACQUIRED, table, seconds=waited_seconds)
        services.keepalive.add(self._standing)

    @property
    def token(self) -> int:
        """The largest fencing token: of a hold on one table the only one."""
        return max(self.tokens.values())

    @property
    def intents(self) -> HoldIntents:
        """What is about to be put into the log of the one table; see :meth:`intents_of`.

        Raises:
            ValueError: there are several.

        """
        return self._intents[self._only(None)]

    def intents_of(self, table: str) -> HoldIntents:
        """Return what is about to be put into a table's log, and what holds before this one left behind.

        Settle the latter before you read or write the table under this hold: see
        :meth:`lock_manager.guard.guarded_hold.GuardedHold.settle_unfinished`.
        """
        return self._intents[table]

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Tell whether this hold includes all of ``other``."""
        return all(table in self.scope and self.scope[table].covers(wanted) for table, wanted in other.items())

    @property
    def lost(self) -> str | None:
        """How the hold was lost, None as long as that is not known."""
        return self._standing.lost

    @property
    def released_at(self) -> float | None:
        """When the release was asked for, seconds since the epoch; None before."""
        return self._standing.ended_at

    @property
    def over(self) -> bool:
        """Whether it is known to be lost, was released, or ended with the manager that gave it."""
        return self._standing.over or self._session.closed

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else "released" if self.released_at else "held"
        return f"<HeldLock {self.resource} {'shared' if self.shared else 'exclusive'} token={self.token} {state}>"

    # -- what it is worth ----------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Tell, without asking anybody, whether the ensemble cannot have given the lock to somebody else yet.

        Takes for granted that nobody removes the contender (``sluice break``), which shows at the next request.
        Conservative: False as soon as the connection is suspended, and from 0.4 of the *granted* session time-out
        after the last quorum request that was answered was sent; see ``session.VALID_FRACTION``. Monotonic time: a
        suspended machine's clock may stand still, so where it matters ask :meth:`check`.
        """
        return self._standing.is_valid()

    def check(self, timeout_seconds: float | None = None) -> None:
        """Ask the ensemble, through its quorum, whether this hold stands. Wakes nobody, changes nothing.

        One ``multi`` of ``check`` on the contender: a plain read, even after ``sync``, may come from a server that has
        not heard yet that our session is over.

        Args:
            timeout_seconds: to wait for the answer; at most 0.4 of the session time-out, after which an answer would
                be worth nothing.

        Raises:
            LockLostError: it does not stand.
            LockNotHeldError: it was released.
            EnsembleUnavailableError: no answer in time; whether it stands is not known.
            EnsembleRefusedError: an answer that says neither; likewise.
            ClosedError: the manager was closed, or belongs to the parent of a fork.

        """
        self._standing.look_before_asking()
        if timeout_seconds is not None:
            check_seconds("timeout_seconds", timeout_seconds)
        deadline = self._standing.deadline(timeout_seconds)
        self._services.isolation.run(lambda: self._standing.confirmed(deadline, "checking a hold"))

    def intend(self, version: int, *, txn: str | None, attempt: str, table: str | None = None) -> None:
        """Ask as :meth:`check` does and, in the same request, note that ``version`` is about to be put.

        To be followed by ``intents.settle([attempt])`` when its outcome is known; see
        :mod:`lock_manager.zookeeper.hold_intents`.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError, ClosedError: as
                :meth:`check`. The version must not be put then.

        """
        self._standing.look_before_asking()
        intents = self.intents_of(self._only(table))
        intent = Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token)
        self._services.isolation.run(lambda: intents.note(intent))

    def on_loss(self, callback: Callable[[HeldLock], None]) -> None:
        """Have ``callback`` called once with this hold when it turns out to be lost, in a thread of its own.

        Called at once if that is known already. It may block, and may use the manager.
        """
        with self._lock:
            if self.lost is None:
                self._callbacks.append(callback)
                return
        self._tell(callback)

    def record_commit(self, version: int, table: str | None = None) -> None:
        """Note that ``version`` of the table was committed under a check that this hold passed.

        If the hold is lost later, the error names these versions: they are durable whatever happened since.
        """
        versions = self._commits.setdefault(self._only(table), [])
        if version not in versions:
            versions.append(version)
            emit(Event.COMMITTED, self._only(table))

    @property
    def commits(self) -> dict[str, tuple[int, ...]]:
        """Versions that were recorded by :meth:`record_commit`, by table."""
        return {table: tuple(versions) for table, versions in self._commits.items()}

    def _only(self, table: str | None) -> str:
        """Return the table that is meant.

        Raises:
            ValueError: none was named, and there are several.

        """
        if table is None and len(self.scope) > 1:
            raise ValueError(f"the hold is of several tables; say which: {', '.join(self.scope)}")
        return table or next(iter(self.scope))

    # -- the end -------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the lock back; takes at most some seconds, also in an outage.

        Raises:
            LockLostError: it had been lost before, so that not all of the work since it was acquired is covered.
            LockNotHeldError: it was released before.
            ClosedError: in a forked child: the hold is the parent's.

        """
        self._session.check_usable()
        self._services.isolation.run(self._release)

    def enter_again(self) -> bool:
        """Count one more acquire by the thread that has it; each is to be followed by a release.

        Returns:
            False if it is over by now: another thread may give it back.

        """
        with self._lock:
            over = self.over
            self._entries += not over
        return not over

    def _release(self) -> None:
        with self._lock:
            if self.released_at is not None:
                raise LockNotHeldError(f"the lock on {self.resource} was released already", resource=self.resource)
            self._entries -= 1
            if self._entries > 0:
                return
            stood = self._standing.granted
            self._standing.end()
        self._services.keepalive.remove(self._standing)
        self._services.forget(self)
        try:
            lost = self.lost or self._delete_contenders(stood=stood)
        except BaseException:
            self._give_up()
            self._tell_end(Event.RELEASED)
            raise
        self._services.cleanup.left(self._contenders.queues)
        if lost:
            self._standing.lose(lost, ending=True)
            raise self._lost_error()
        self._tell_end(Event.RELEASED)

    def __enter__(self) -> Self:
        self._blocks.append(self._entries)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        depth = self._blocks.pop()
        if error is None:
            self._leave(depth)
            return
        # The body's own exception is the one to see; what the release found is a note to it.
        try:
            self._leave(depth)
        except Exception as problem:  # noqa: BLE001 (whatever it is, it is second to the body's)
            error.add_note(f"while releasing: {problem}")

    def _leave(self, depth: int) -> None:
        """Give back what a block has, unless its body did."""
        if self._closed_inside:
            raise self._lost_error()
        if self.released_at is None and self._entries >= depth:
            self.release()

    def _delete_contenders(self, *, stood: bool) -> str | None:
        """Delete the contenders; return how the hold was lost, if it was."""
        deadline = Deadline(min(_RELEASE_SECONDS, self._session.granted_seconds))
        deletion = self._contenders.delete(self._intents, deadline, stood=stood)
        if deletion.done:
            return deletion.lost
        self._give_up()
        if stood:
            log.warning("no answer to the release of %s: it ends with the session at the latest", self.resource)
            return None
        return "the ensemble did not answer, so that it may have been given to somebody else"

    def _give_up(self) -> None:
        self._services.cleanup.discard(self._contenders.queues, self.hold_id, wait_seconds=0)

    def close(self) -> None:
        """Note that the manager was closed, which ends every hold of it: to a block that goes on, a loss."""
        with self._lock:
            ends = self._standing.end() and self.lost is None
            self._closed_inside = ends and bool(self._blocks)
        self._services.keepalive.remove(self._standing)
        if self._closed_inside:
            self._standing.lose("the manager that gave it was closed", ending=True)
        elif ends:
            self._tell_end(Event.RELEASED)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _was_lost(self) -> None:
        """Look after it no more, and tell everybody who wants to know."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        self._services.keepalive.remove(self._standing)
        # The session may live on, and the contender with it: it would block the table for nothing.
        self._give_up()
        log.error("lock on %s was lost: %s", self.resource, self.lost)
        self._tell_end(Event.LOST)
        for callback in callbacks:
            self._tell(callback)

    def _end_error(self) -> LockError:
        """Return the error that says that it was lost or released."""
        if self.lost is not None:
            return self._lost_error()
        return LockNotHeldError(f"the lock on {self.resource} was released", resource=self.resource)

    def _tell_end(self, event: Event) -> None:
        for table in self.scope:
            emit(event, table, seconds=max(0.0, time.time() - self.acquired_at))

    def _tell(self, callback: Callable[[HeldLock], None]) -> None:
        def tell() -> None:
            try:
                callback(self)
            except Exception:  # a callback's bug is for the log
                log.exception("an on_loss callback raised")

        threading.Thread(target=tell, name="sluice-on-loss", daemon=True).start()

    def _lost_error(self) -> LockLostError:
        return LockLostError(
            resource=self.resource,
            hold_id=self.hold_id,
            reason=self.lost or "",
            commits=self.commits,
        )
