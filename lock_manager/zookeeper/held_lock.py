"""A held lock: whether it still stands, and how it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError, LockLostError, LockNotHeldError
from lock_manager.events import Event, tell
from lock_manager.intents import Intent
from lock_manager.scope import TableScope
from lock_manager.settings import check_seconds
from lock_manager.zookeeper.asking import answer_or_end
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.keepalive import ANNOUNCE_SECONDS, KeepAlive
from lock_manager.zookeeper.own_contenders import SESSION_ENDED, Answer, OwnContenders
from lock_manager.zookeeper.request import Acquired, Request
from lock_manager.zookeeper.session import (
    KEEPALIVE_FRACTION,
    NO_ANSWER,
    VALID_FRACTION,
    Session,
    SessionState,
)
from lock_manager.zookeeper.signals import SignalIsolation
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
        self.released_at: float | None = None
        self.thread = thread
        self._session = session
        self._request = request
        self._session_id = acquired.session_id
        self._services = services
        self._lock = threading.Lock()
        self._loss: str | None = None
        self._callbacks: list[Callable[[HeldLock], None]] = []
        self._commits: dict[str, list[int]] = {}
        self._entries = 1
        self._blocks: list[int] = []
        self._closed_inside = False
        self._intents = {
            table: HoldIntents(
                self.hold_id,
                self.confirmed,
                session,
                services.isolation,
                intents_node(node),
                acquired.unfinished[table],
            )
            for table, node in request.tables.items()
        }
        self._checked_at = time.monotonic()
        self._announce_at = self._checked_at + ANNOUNCE_SECONDS
        most = session.settings.max_hold_seconds
        self._ends_at = float("inf") if most is None else self._checked_at + most
        for table in self.scope:
            tell(Event.ACQUIRED, table, seconds=waited_seconds)
        services.keepalive.add(self)

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
        :meth:`lock_manager.guarded_hold.GuardedHold.settle_unfinished`.
        """
        return self._intents[table]

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Tell whether this hold includes all of ``other``."""
        return all(table in self.scope and self.scope[table].covers(wanted) for table, wanted in other.items())

    @property
    def lost(self) -> str | None:
        """How the hold was lost, None as long as that is not known."""
        return self._loss

    @property
    def over(self) -> bool:
        """Whether it is known to be lost, was released, or ended with the manager that gave it."""
        return self._loss is not None or self.released_at is not None or self._session.closed

    def __repr__(self) -> str:
        state = f"lost: {self._loss}" if self._loss else "released" if self.released_at else "held"
        return f"<HeldLock {self.resource} {'shared' if self.shared else 'exclusive'} token={self.token} {state}>"

    # -- what it is worth ----------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Tell, without asking anybody, whether the ensemble cannot have given the lock to somebody else yet.

        Takes for granted that nobody removes the contender (``sluice break``), which shows at the next request.
        Conservative: False as soon as the connection is suspended, and from 0.4 of the *granted* session time-out
        after the last quorum request that was answered was sent; see ``session.VALID_FRACTION``. Monotonic time: a
        suspended machine's clock may stand still, so where it matters ask :meth:`check`.
        """
        return (
            not self._session.belongs_to_parent
            and self._loss is None
            and self.released_at is None
            and self._session.state is SessionState.CONNECTED
            and time.monotonic() < min(self._ends_at, self._session.valid_until(self._session_id))
        )

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
        self._look_before_asking()
        if timeout_seconds is not None:
            check_seconds("timeout_seconds", timeout_seconds)
        bound = VALID_FRACTION * self._session.granted_seconds
        deadline = Deadline(bound if timeout_seconds is None else min(timeout_seconds, bound))
        self._services.isolation.run(lambda: self.confirmed(deadline, "checking a hold"))

    def intend(self, version: int, *, txn: str | None, attempt: str, table: str | None = None) -> None:
        """Ask as :meth:`check` does and, in the same request, note that ``version`` is about to be put.

        To be followed by ``intents.settle([attempt])`` when its outcome is known; see
        :mod:`lock_manager.zookeeper.hold_intents`.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError, ClosedError: as
                :meth:`check`. The version must not be put then.

        """
        self._look_before_asking()
        intents = self.intents_of(self._only(table))
        intent = Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token)
        self._services.isolation.run(lambda: intents.note(intent))

    def confirmed(
        self, deadline: Deadline, doing: str, operation: Callable[[Any], None] | None = None
    ) -> Exception | None:
        """Ask, together with one more operation that is done if and only if the hold stands; for :attr:`intents`.

        Args:
            deadline: for the answer.
            doing: for the message of EnsembleUnavailableError.
            operation: given the transaction, to add itself.

        Returns:
            Why the operation was not done, if that is because a node is there, is not there, or is another version.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: as :meth:`check`.

        """
        while True:
            self._raise_if_over()
            sent_at = self._asked_now()
            try:
                outcome = answer_or_end(self._session, self._contenders.ask(operation), deadline)
            except NO_ANSWER:
                self._session.wait_again(deadline, doing)
                continue
            answer = self._contenders.read(outcome, with_operation=operation is not None)
            if answer.not_done is not None:
                return answer.not_done
            self._take_in(answer, sent_at)
            self._raise_if_over()
            if answer.refusal is not None:
                raise EnsembleRefusedError(self._session.settings.zk_hosts, answer.refusal)
            return None

    def on_loss(self, callback: Callable[[HeldLock], None]) -> None:
        """Have ``callback`` called once with this hold when it turns out to be lost, in a thread of its own.

        Called at once if that is known already. It may block, and may use the manager.
        """
        with self._lock:
            if self._loss is None:
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
            tell(Event.COMMITTED, self._only(table))

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
            stood = self._loss is None and time.monotonic() < self._session.valid_until(self._session_id)
            self.released_at = time.time()
        self._services.keepalive.remove(self)
        self._services.forget(self)
        try:
            lost = self._loss or self._delete_contenders(stood=stood)
        except BaseException:
            self._give_up()
            self._tell_end(Event.RELEASED)
            raise
        self._services.cleanup.left(self._contenders.queues)
        if lost:
            self._lose(lost, releasing=True)
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

    # -- for the keepalive ------------------------------------------------------------------------------------------

    def due_at(self) -> float:
        """Monotonic time at which the ensemble is to be asked next."""
        asked_at = self._checked_at + KEEPALIVE_FRACTION * self._session.granted_seconds
        return min(self._announce_at, asked_at, self._ends_at)

    def ask(self) -> Any:
        """Send the question whether the contenders are there, as a quorum request; return kazoo's AsyncResult.

        It also has them say since when they hold, if they do not say so yet.
        """
        self._asked_now()
        if self._announce_at == float("inf"):
            return self._contenders.ask()
        self._announce_at = self._checked_at + ANNOUNCE_SECONDS
        return self._contenders.ask(data=lambda node: self._request.data(node, acquired_at=self.acquired_at))

    def _asked_now(self) -> float:
        self._checked_at = time.monotonic()
        return self._checked_at

    def learn(self, outcome: object, sent_at: float, *, announced: bool = False) -> None:
        """Take in an answer to :meth:`ask`: a list of results, or what kazoo raised."""
        if self._take_in(self._contenders.read(outcome), sent_at) and announced:
            self._announce_at = float("inf")

    def _take_in(self, answer: Answer, sent_at: float) -> bool:
        """Do what an answer calls for; tell whether the hold stands."""
        if answer.lost is not None:
            self._lose(answer.lost)
        elif answer.refusal is not None:
            log.error("ZooKeeper refused to check the lock on %s: %s", self.resource, answer.refusal)
        else:
            self._session.prove(sent_at, self._session_id)
            return True
        return False

    def look_at_clock(self) -> None:
        """Count the hold as lost when its session is another by now, or was not vouched for over its whole time-out."""
        session = self._session
        self._look_at_bound()
        if session.session_id != self._session_id or session.state is SessionState.LOST:
            self._lose(SESSION_ENDED)
            return
        silent = time.monotonic() - session.proven_at
        if silent > session.granted_seconds:
            self._lose(f"the ensemble did not answer for {silent:.0f} s")

    def _look_before_asking(self) -> None:
        """Raise what is known without the ensemble.

        Our own clock decides first, as in :class:`KeepAlive`: after a pause this thread may ask before that one looks.

        The ensemble alone would not do: restored from a member that fell behind, it may know a contender again whose
        session had ended, and whose lock others have had since (docs/runbooks.md).
        """
        self._raise_if_over()
        self._session.check_usable()
        self.look_at_clock()
        self._raise_if_over()

    def _look_at_bound(self) -> None:
        if time.monotonic() >= self._ends_at:
            most = self._session.settings.max_hold_seconds
            self._lose(f"it was held for more than max_hold_seconds={most:g}")

    def close(self) -> None:
        """Note that the manager was closed, which ends every hold of it: to a block that goes on, a loss."""
        with self._lock:
            ends, self.released_at = self.released_at is None, self.released_at or time.time()
            self._closed_inside = ends and self._loss is None and bool(self._blocks)
        self._services.keepalive.remove(self)
        if self._closed_inside:
            self._lose("the manager that gave it was closed", releasing=True)
        elif ends and self._loss is None:
            self._tell_end(Event.RELEASED)

    def _lose(self, reason: str, *, releasing: bool = False) -> None:
        with self._lock:
            # The keepalive may have asked just before a release, and finds what that has deleted.
            if self._loss is not None or (self.released_at is not None and not releasing):
                return
            self._loss = reason
            callbacks, self._callbacks = self._callbacks, []
        self._services.keepalive.remove(self)
        # The session may live on, and the contender with it: it would block the table for nothing.
        self._give_up()
        log.error("lock on %s was lost: %s", self.resource, reason)
        self._tell_end(Event.LOST)
        for callback in callbacks:
            self._tell(callback)

    def _tell_end(self, event: Event) -> None:
        for table in self.scope:
            tell(event, table, seconds=max(0.0, time.time() - self.acquired_at))

    def _tell(self, callback: Callable[[HeldLock], None]) -> None:
        def tell() -> None:
            try:
                callback(self)
            except Exception:  # a callback's bug is for the log
                log.exception("an on_loss callback raised")

        threading.Thread(target=tell, name="sluice-on-loss", daemon=True).start()

    def _raise_if_over(self) -> None:
        self._look_at_bound()
        if self._loss is not None:
            raise self._lost_error()
        if self.released_at is not None:
            raise LockNotHeldError(f"the lock on {self.resource} was released", resource=self.resource)

    def _lost_error(self) -> LockLostError:
        return LockLostError(
            resource=self.resource,
            hold_id=self.hold_id,
            reason=self._loss or "",
            commits=self.commits,
        )
