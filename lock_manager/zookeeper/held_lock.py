"""A held lock: its scope, its checks, its intents and its release."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from lock_manager.deadline import Deadline
from lock_manager.errors import LockError, LockLostError, LockNotHeldError
from lock_manager.events import Event, emit
from lock_manager.intents import Intent
from lock_manager.scope import TableScope
from lock_manager.settings import check_seconds
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.hold_contenders import HoldContenders
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.hold_state import HoldState
from lock_manager.zookeeper.keepalive import KeepAlive
from lock_manager.zookeeper.request import AcquireResult, Request
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.signals import SignalIsolation
from lock_manager.zookeeper.znodes import Mode, intents_node

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 10.0
"""Time limit of a release, in seconds. Then the contender is deleted in the background or ends with its session."""

_OFFERS_SECONDS = 2.0
"""Time limit for the offers of waiting contenders, in seconds. Without them, the hold commits alone."""


@dataclass(frozen=True)
class HoldServices:
    """The parts of a manager that its holds share. ``forget`` removes a hold from the manager's list."""

    keepalive: KeepAlive
    cleanup: Cleanup
    isolation: SignalIsolation
    forget: Callable[[HeldLock], None]


class HeldLock:
    """A lock on a table, on partitions of it, or on several tables, held by this process until released or lost.

    Implements :class:`lock_manager.coordinator.Hold`, which documents its attributes. It is also a context manager. If
    its thread acquires it again, it must be released as many times.

    It does **not** promise that a write which takes place now is safe. The operating system may pause a process for
    longer than its session lives, and the process detects that only afterwards. Call :meth:`check` as late as possible,
    and let the store refuse to overwrite.

    The names of the hold's contenders begin with ``hold_id``. A fencing token is the czxid of a contender. Tokens of
    different ensembles do not compare.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        acquire_result: AcquireResult,
        *,
        waited_seconds: float,
        thread: threading.Thread,
        services: HoldServices,
    ) -> None:
        self.hold_id = acquire_result.hold_id
        self.resource = request.resource
        self.scope: Mapping[str, TableScope] = dict(request.scope)
        self.shared = all(scope.shared for scope in self.scope.values())
        self._contenders = HoldContenders(session, acquire_result)
        self.tokens: Mapping[str, int] = {entry.queue.key: entry.token for entry in acquire_result.entries}
        self.exclusive_keys: Collection[str] = frozenset(
            entry.queue.key for entry in acquire_result.entries if entry.queue.mode is Mode.EXCLUSIVE
        )
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
        self._acquire_count = 1
        #: The acquire count at the beginning of each entered ``with`` block.
        self._block_counts: list[int] = []
        self._closed_in_block = False
        self._hold_state = HoldState(
            session,
            self._contenders,
            acquire_result.session_id,
            request,
            acquired_at=self.acquired_at,
            on_lost=self._on_lost,
            end_error=self._end_error,
        )
        confirm, isolation, unfinished = self._hold_state.confirm, services.isolation, acquire_result.unfinished
        self._intents = {
            table: HoldIntents(self.hold_id, confirm, session, isolation, intents_node(node), unfinished[table])
            for table, node in request.tables.items()
        }
        for table in self.scope:
            emit(Event.ACQUIRED, table, seconds=waited_seconds)
        services.keepalive.add(self._hold_state)

    @property
    def token(self) -> int:
        """The largest fencing token; a hold on one whole table has only one."""
        return max(self.tokens.values())

    @property
    def intents(self) -> HoldIntents:
        """The intents on the only table; ValueError if the hold locks several. See :meth:`intents_of`."""
        return self._intents[self._table_or_only(None)]

    def intents_of(self, table: str) -> HoldIntents:
        """Return the intents on a table: this hold's, and the unfinished intents of earlier holds.

        Settle the latter before you read or write the table under this hold: see
        :meth:`lock_manager.guard.guarded_block.GuardedBlock.settle_unfinished`.
        """
        return self._intents[table]

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Return whether this hold includes all of ``other``."""
        return all(table in self.scope and self.scope[table].covers(scope) for table, scope in other.items())

    @property
    def lost(self) -> str | None:
        """How the hold was lost; None as long as no loss is known."""
        return self._hold_state.lost

    @property
    def released_at(self) -> float | None:
        """When ``release`` was called or the manager closed, seconds since the epoch; None before."""
        return self._hold_state.ended_at

    @property
    def over(self) -> bool:
        """Whether the hold is known to be lost, was released, or ended with its manager."""
        return self._hold_state.over or self._session.closed

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else "released" if self.released_at else "held"
        return f"<HeldLock {self.resource} {'shared' if self.shared else 'exclusive'} token={self.token} {state}>"

    # -- checks and commits --------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return, without a request, whether the ensemble cannot have granted the lock to another client yet.

        Assumes that no operator removes the contender (``sluice break``), which only the next request detects.
        Conservative: False as soon as the connection is suspended, ``max_hold_seconds`` are over, or 0.4 of the
        *granted* session timeout has passed since the sending of the last quorum request that got a response; see
        ``session.VALID_FRACTION``. The clock is the monotonic one, which may stand still on a suspended machine. Call
        :meth:`check` where that matters.
        """
        return self._hold_state.is_valid()

    def check(self, timeout_seconds: float | None = None) -> None:
        """Ask the ensemble, through its quorum, whether this hold stands. This wakes no client and changes nothing.

        The request is one ``multi`` of ``check`` on the contender. A plain read, even after ``sync``, may come from a
        server that does not know yet that the session has ended.

        It waits at most 0.4 of the session timeout for the response. A later response would prove nothing. The errors
        are those of :meth:`lock_manager.coordinator.Hold.check`.
        """
        self._hold_state.raise_if_known_over()
        if timeout_seconds is not None:
            check_seconds("timeout_seconds", timeout_seconds)
        deadline = self._session.response_deadline(timeout_seconds)
        self._services.isolation.run(lambda: self._hold_state.confirm(deadline, "check a hold"))

    def intend(
        self,
        version: int,
        *,
        txn: str | None,
        attempt: str,
        table: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str]:
        """Check the hold as :meth:`check` does and, in the same request, write the intent to put ``version``.

        Call ``intents.settle([attempt])`` when the attempt's outcome is known. After an error of :meth:`check`, the
        version must not be put. For ``members`` see :meth:`lock_manager.coordinator.Hold.intend`.
        """
        self._hold_state.raise_if_known_over()
        intents = self.intents_of(self._table_or_only(table))
        intent = Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token)
        return self._services.isolation.run(lambda: intents.record(intent, members))

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the offers behind this hold; see :meth:`lock_manager.coordinator.Hold.offers`."""
        deadline = self._session.response_deadline(_OFFERS_SECONDS)
        return self._services.isolation.run(lambda: self._contenders.read_offers(deadline))

    def dismiss(self, members: Collection[str]) -> None:
        """Remove committed members from the queue; see :meth:`lock_manager.coordinator.Hold.dismiss`."""
        self._contenders.delete_members(members)

    def on_loss(self, callback: Callable[[HeldLock], None]) -> None:
        """Call ``callback`` once with this hold after a loss, in a separate thread.

        If the loss is already known, the call follows at once. The callback may block and may use the manager.
        """
        with self._lock:
            if self.lost is None:
                self._callbacks.append(callback)
                return
        self._call_back(callback)

    def record_commit(self, version: int, table: str | None = None) -> None:
        """Record that ``version`` of the table was committed after a successful check of this hold.

        If the hold is lost later, the error names these versions. They are durable.
        """
        versions = self._commits.setdefault(self._table_or_only(table), [])
        if version not in versions:
            versions.append(version)
            emit(Event.COMMITTED, self._table_or_only(table))

    @property
    def commits(self) -> dict[str, tuple[int, ...]]:
        """Versions that :meth:`record_commit` recorded, by table."""
        return {table: tuple(versions) for table, versions in self._commits.items()}

    def _table_or_only(self, table: str | None) -> str:
        """Return ``table``, or the only table of the hold if it is None; ValueError if there are several."""
        if table is None and len(self.scope) > 1:
            raise ValueError(f"the hold locks several tables; pass one of them as table: {', '.join(self.scope)}")
        return table or next(iter(self.scope))

    # -- release and loss ----------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the lock; see :meth:`lock_manager.coordinator.Hold.release`."""
        self._session.check_usable()
        self._services.isolation.run(self._release)

    def enter_again(self) -> bool:
        """Count one more acquire by the hold's thread; see :meth:`lock_manager.coordinator.Hold.enter_again`."""
        with self._lock:
            over = self.over
            self._acquire_count += not over
        return not over

    def _release(self) -> None:
        with self._lock:
            if self.released_at is not None:
                raise LockNotHeldError(f"the lock on {self.resource} was released already", resource=self.resource)
            self._acquire_count -= 1
            if self._acquire_count > 0:
                return
            was_proven = self._hold_state.is_proven
            self._hold_state.end()
        self._services.keepalive.remove(self._hold_state)
        self._services.forget(self)
        try:
            lost = self.lost or self._delete_contenders(was_proven=was_proven)
        except BaseException:
            self._discard_contenders()
            self._report_end(Event.RELEASED)
            raise
        self._services.cleanup.record_use(self._contenders.queues)
        if lost:
            self._hold_state.lose(lost, at_end=True)
            raise self._lost_error()
        self._report_end(Event.RELEASED)

    def __enter__(self) -> Self:
        self._block_counts.append(self._acquire_count)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        count = self._block_counts.pop()
        try:
            self._leave_block(count)
        except Exception as problem:
            if error is None:
                raise
            # The caller sees the body's exception, with the release's as a note.
            error.add_note(f"while the lock on {self.resource} was released: {problem}")

    def _leave_block(self, count: int) -> None:
        """Release the lock for a block, unless its body did."""
        if self._closed_in_block:
            raise self._lost_error()
        if self.released_at is None and self._acquire_count >= count:
            self.release()

    def _delete_contenders(self, *, was_proven: bool) -> str | None:
        """Delete the contenders; return how the hold was lost, None if it was not."""
        deadline = Deadline(min(_RELEASE_SECONDS, self._session.granted_seconds))
        deletion = self._contenders.delete(self._intents.values(), deadline, was_proven=was_proven)
        if deletion is not None:
            return deletion.lost
        self._discard_contenders()
        if was_proven:
            log.warning(
                "ZooKeeper did not answer the release of the lock on %s: the lock ends with its session at the latest",
                self.resource,
            )
            return None
        return "the ensemble did not answer, so another client may have the lock"

    def _discard_contenders(self) -> None:
        self._services.cleanup.discard(self._contenders.queues, self.hold_id, wait_seconds=0)

    def close(self) -> None:
        """End the hold because its manager was closed. An entered block sees a loss."""
        with self._lock:
            ends_now = self._hold_state.end() and self.lost is None
            ends_block = ends_now and bool(self._block_counts)
            self._closed_in_block |= ends_block
        self._services.keepalive.remove(self._hold_state)
        if ends_block:
            self._hold_state.lose("the manager that granted it was closed", at_end=True)
        elif ends_now:
            self._report_end(Event.RELEASED)

    def _on_lost(self) -> None:
        """Stop the checks, delete the contenders, and report the loss."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        self._services.keepalive.remove(self._hold_state)
        # The session and its contenders may live on. Then the contenders would block the table.
        self._discard_contenders()
        log.error("lock on %s was lost: %s", self.resource, self.lost)
        self._report_end(Event.LOST)
        for callback in callbacks:
            self._call_back(callback)

    def _end_error(self) -> LockError:
        """Return the error for the lost or released hold."""
        if self.lost is not None:
            return self._lost_error()
        return LockNotHeldError(f"the lock on {self.resource} was released", resource=self.resource)

    def _report_end(self, event: Event) -> None:
        for table in self.scope:
            emit(event, table, seconds=max(0.0, time.time() - self.acquired_at))

    def _call_back(self, callback: Callable[[HeldLock], None]) -> None:
        def run() -> None:
            try:
                callback(self)
            except Exception:
                log.exception("an on_loss callback of the lock on %s raised an exception", self.resource)

        threading.Thread(target=run, name="sluice-on-loss", daemon=True).start()

    def _lost_error(self) -> LockLostError:
        return LockLostError(resource=self.resource, hold_id=self.hold_id, reason=self.lost or "", commits=self.commits)
