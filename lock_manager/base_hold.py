"""The part of a hold that does not depend on the coordinator: acquires and blocks, commits, callbacks, and its end."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Self, TypeVar

from lock_manager import tracing
from lock_manager.coordinator import Intents
from lock_manager.errors import LockError, LockLostError, LockNotHeldError
from lock_manager.events import Event, emit
from lock_manager.scope import TableScope
from lock_manager.signals import SignalIsolation

log = logging.getLogger(__name__)

_I = TypeVar("_I", bound=Intents)


class HoldLife:
    """The end of a hold. It stands until it is lost or ended.

    Args:
        on_lost: Called once after a loss, in the thread that detected it.
        max_seconds: Time after which the hold is lost (``max_hold_seconds``); None for no limit.

    Attributes:
        lost: How the hold was lost; None as long as no loss is known.
        ended_at: When the hold was released or its manager closed, seconds since the epoch; None before.
        ends_at: Monotonic time after which it is lost because of ``max_seconds``.

    """

    def __init__(self, on_lost: Callable[[], object], max_seconds: float | None = None) -> None:
        self.lost: str | None = None
        self.ended_at: float | None = None
        self.ends_at = float("inf") if max_seconds is None else time.monotonic() + max_seconds
        self._max_seconds = max_seconds
        self._on_lost = on_lost
        self._end_lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether the hold was lost or ended."""
        return self.lost is not None or self.ended_at is not None

    def check_max_hold(self) -> None:
        """Record a loss if the hold has lasted for longer than ``max_hold_seconds``."""
        if time.monotonic() >= self.ends_at:
            self.lose(f"it was held for more than max_hold_seconds={self._max_seconds:g}")

    def end(self) -> bool:
        """End the hold now; return False if it had ended before."""
        with self._end_lock:
            is_first_end, self.ended_at = self.ended_at is None, self.ended_at or time.time()
        return is_first_end

    def lose(self, reason: str, *, at_end: bool = False) -> None:
        """Record the first loss. After the end, record only a loss that the end itself detected (``at_end``)."""
        with self._end_lock:
            # A check may be sent just before a release, and find the hold released.
            if self.lost is not None or (self.ended_at is not None and not at_end):
                return
            self.lost = reason
        self._on_lost()


class BaseHold(ABC, Generic[_I]):
    """A hold without its coordinator; see :class:`lock_manager.coordinator.Hold`, which documents the attributes.

    A subclass sets ``_life`` and ``_intents``, by table, and calls :meth:`_begin` at the end of its constructor.
    """

    _life: HoldLife
    _intents: Mapping[str, _I]
    #: Whether no other holder can have a conflicting lock while the hold stands.
    excludes = True
    #: Whether the end of the hold is an event. It is none if another hold has this one only as a place in a queue.
    reports_end = True
    #: Whether the hold counts only for tables that are adopted.
    needs_adoption = False

    def __init__(
        self,
        *,
        hold_id: str,
        resource: str,
        scope: Mapping[str, TableScope],
        tokens: Mapping[str, int],
        exclusive_keys: Collection[str],
        ensemble_id: str,
        waited_seconds: float,
        thread: threading.Thread,
        isolation: SignalIsolation,
        forget: Callable[[Any], None],
    ) -> None:
        self.hold_id = hold_id
        self.resource = resource
        self.scope: Mapping[str, TableScope] = dict(scope)
        self.shared = all(table_scope.shared for table_scope in self.scope.values())
        self.tokens = tokens
        self.exclusive_keys = exclusive_keys
        self.ensemble_id = ensemble_id
        self.acquired_at = time.time()
        self.requested_at = self.acquired_at - waited_seconds
        self.waited_seconds = waited_seconds
        self.thread = thread
        self._isolation = isolation
        #: Removes this hold from its manager's list.
        self._forget = forget
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], None]] = []
        self._commits: dict[str, list[int]] = {}
        self._acquire_count = 1
        #: The acquire count at the beginning of each entered ``with`` block.
        self._block_counts: list[int] = []
        self._closed_in_block = False
        self._span = tracing.NO_SPAN
        #: Undoes that the span is current.
        self._span_token: Any = None

    # -- parts of the coordinator ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the manager was closed."""

    @abstractmethod
    def _check_usable(self) -> None:
        """Raise ClosedError if the hold belongs to the parent of a fork."""

    @abstractmethod
    def _is_proven(self) -> bool:
        """Return whether the coordinator cannot have granted the lock to another client yet."""

    @abstractmethod
    def _start_checks(self) -> None:
        """Check the hold from time to time from now on."""

    @abstractmethod
    def _stop_checks(self) -> None:
        """End the checks."""

    @abstractmethod
    def _leave(self, *, was_proven: bool) -> str | None:
        """Remove the hold from its queues; return how it was lost, None if it was not.

        ``was_proven`` is the result of :meth:`_is_proven` at the beginning of the release.
        """

    @abstractmethod
    def _discard(self) -> None:
        """Remove the hold from its queues in the background."""

    def _after_release(self) -> None:
        """Tidy up after a release, also of a lost hold. Not every coordinator has something to do."""

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def token(self) -> int:
        """The largest fencing token; a hold on one whole table has only one."""
        return max(self.tokens.values())

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Return whether this hold includes all of ``other``."""
        return all(table in self.scope and self.scope[table].covers(scope) for table, scope in other.items())

    @property
    def lost(self) -> str | None:
        """How the hold was lost; None as long as no loss is known."""
        return self._life.lost

    @property
    def released_at(self) -> float | None:
        """When ``release`` was called or the manager closed, seconds since the epoch; None before."""
        return self._life.ended_at

    @property
    def over(self) -> bool:
        """Whether the hold is known to be lost, was released, or ended with its manager."""
        return self._life.over or self._is_closed

    def __repr__(self) -> str:
        state = f"lost: {self.lost}" if self.lost else "released" if self.released_at else "held"
        mode = "shared" if self.shared else "exclusive"
        return f"<{type(self).__name__} {self.resource} {mode} token={self.token} {state}>"

    # -- intents -------------------------------------------------------------------------------------------------

    @property
    def intents(self) -> _I:
        """The intents on the only table; ValueError if the hold locks several. See :meth:`intents_of`."""
        return self._intents[self._table_or_only(None)]

    def intents_of(self, table: str) -> _I:
        """Return the intents on a table: this hold's, and the unfinished intents of earlier holds.

        Settle the latter before you read or write the table under this hold: see
        :meth:`lock_manager.guard.guarded_block.GuardedBlock.settle_unfinished`.
        """
        return self._intents[table]

    # -- commits and losses --------------------------------------------------------------------------------------

    def on_loss(self, callback: Callable[[Self], None]) -> None:
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

    # -- begin and end -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for table in self.scope:
            emit(Event.ACQUIRED, table, seconds=self.waited_seconds)
        self._start_checks()

    def begin_span(self, parent: tracing.Span) -> None:
        """Start the span of the hold, which ends with the hold and is current in the outermost ``with`` block."""
        self._span = tracing.start(
            "hold",
            {"sluice.lock.scope": self.resource, "sluice.hold_id": self.hold_id, "sluice.lock.token": self.token},
            parent=parent,
        )
        if self.over:
            self._end_span()

    def _end_span(self) -> None:
        self._span.end(self._lost_error() if self.lost else None)

    def release(self) -> None:
        """Release the lock; see :meth:`lock_manager.coordinator.Hold.release`."""
        self._check_usable()
        self._isolation.run(self._release)

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
            was_proven = self._is_proven()
            self._life.end()
        self._stop_checks()
        self._forget(self)
        try:
            lost = self.lost or self._leave(was_proven=was_proven)
        except BaseException:
            self._discard()
            self._report_end(Event.RELEASED)
            raise
        self._after_release()
        if lost:
            self._life.lose(lost, at_end=True)
            raise self._lost_error()
        self._report_end(Event.RELEASED)

    def __enter__(self) -> Self:
        if not self._block_counts:
            self._span_token = self._span.attach()
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
        finally:
            # After the release, which an interrupt here must not prevent.
            if not self._block_counts:
                tracing.detach(self._span_token)

    def _leave_block(self, count: int) -> None:
        """Release the lock for a block, unless its body did."""
        if self._closed_in_block:
            raise self._lost_error()
        if self.released_at is None and self._acquire_count >= count:
            self.release()

    def close(self) -> None:
        """End the hold because its manager was closed. An entered block sees a loss."""
        with self._lock:
            ends_now = self._life.end() and self.lost is None
            ends_block = ends_now and bool(self._block_counts)
            self._closed_in_block |= ends_block
        self._stop_checks()
        if ends_block:
            self._life.lose("the manager that granted it was closed", at_end=True)
        elif ends_now:
            self._report_end(Event.RELEASED)

    def _on_lost(self) -> None:
        """Stop the checks, leave the queues, and report the loss."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        self._stop_checks()
        # The coordinator may still have the hold in a queue. Then it would block the table.
        self._discard()
        if self.reports_end:
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
        self._end_span()
        if not self.reports_end:
            return
        for table in self.scope:
            emit(event, table, seconds=max(0.0, time.time() - self.acquired_at))

    def _call_back(self, callback: Callable[[Self], None]) -> None:
        def run() -> None:
            try:
                callback(self)
            except Exception:
                log.exception("an on_loss callback of the lock on %s raised an exception", self.resource)

        threading.Thread(target=run, name="sluice-on-loss", daemon=True).start()

    def _lost_error(self) -> LockLostError:
        return LockLostError(resource=self.resource, hold_id=self.hold_id, reason=self.lost or "", commits=self.commits)
