"""A coordinator in one process: whole tables, no sessions. It satisfies the contract, or violates one of its rules."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Self

from lock_manager import Hold, LockCancelledError, LockLostError, LockNotHeldError, LockTimeoutError, TableResource
from lock_manager.coordinator import Cancellation, Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import ContenderGoneError
from lock_manager.intents import Intent
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings


class Violation(Enum):
    """A rule that the coordinator violates."""

    LAST_COME_FIRST_SERVED = "the last request is served first"
    OVERTAKING = "a shared request overtakes an exclusive request"
    CONSTANT_TOKENS = "all holds have the same token"
    NO_SHARING = "shared holds exclude one another"
    NO_EXCLUSION = "a shared request is granted during an exclusive hold"
    DEADLINE_RESTARTS = "the deadline starts again when a predecessor leaves"
    CONTENDER_REMAINS = "a failed request stays in the queue"
    CHECK_PASSES = "a lost hold passes its check"
    NO_CALLBACK = "a loss is not reported"
    INTENT_AFTER_LOSS = "a lost hold may record an intent"
    INTENT_ENDS_WITH_RELEASE = "an unfinished intent is deleted at the release"
    INTENT_ENDS_WITH_LOSS = "an unfinished intent is deleted when its hold is lost"
    SETTLED_INTENT_REMAINS = "the next holder gets a settled intent"
    SILENT_RELEASE = "the release of a lost hold raises no error"
    SECOND_RELEASE = "a hold can be released twice"
    ID_PER_MANAGER = "each manager has its own ensemble id"
    OFFERS_OVERTAKE = "a holder gets the offers behind a request that has none"
    ABSENT_MEMBER = "an intent names a member that has left the queue"
    FORGOTTEN_OFFER = "a member that has left the queue is not asked for in the intents"
    DISMISSED_REQUEST_WAITS = "a dismissed request waits on"


@dataclass(eq=False)
class _Entry:
    """An entry in the queue of a table."""

    hold_id: str
    table: str
    shared: bool
    granted: bool = False
    offer: Offer | None = None


class MemoryCoordinator:
    """The queues, intents and tokens that all managers share; a ``Coordinator`` of ``tests/contract/conftest.py``."""

    def __init__(self, violation: Violation | None = None) -> None:
        self.violation = violation
        self.managers: list[MemoryManager] = []
        self.id = str(uuid.uuid4())
        self.changed = threading.Condition()
        self.queues: defaultdict[str, list[_Entry]] = defaultdict(list)
        self.intents: defaultdict[str, dict[str, Intent]] = defaultdict(dict)
        self.tokens = itertools.count(1)

    def manager(self, **settings: Any) -> MemoryManager:
        manager = MemoryManager(self, LockSettings.merged("memory:1", **{"timeout_seconds": 30, **settings}))
        self.managers.append(manager)
        return manager

    def close(self) -> None:
        for manager in self.managers:
            manager.close()

    def queue_length(self, table: str) -> int:
        """Return the number of holds and requests in a table's queue."""
        return len(self.queues[TableResource.of(table).uri])

    def revoke(self, hold: Hold) -> None:
        """Remove a hold from its queues without notice to its holder."""
        if self.violation is Violation.INTENT_ENDS_WITH_LOSS:
            for intents in self.intents.values():
                intents.pop(hold.hold_id, None)
        with self.changed:
            self.leave([entry for queue in self.queues.values() for entry in queue if entry.hold_id == hold.hold_id])

    def leave(self, entries: Iterable[_Entry]) -> None:
        """Remove entries from their queues."""
        with self.changed:
            for entry in entries:
                if entry in self.queues[entry.table]:
                    self.queues[entry.table].remove(entry)
            self.changed.notify_all()

    def wait(self, entries: Sequence[_Entry], cancellation: Cancellation, seconds: float) -> None:
        """Append entries to their queues and wait until no other entry blocks one of them."""
        resource = ", ".join(entry.table for entry in entries)
        deadline = Deadline(seconds)
        cancellation.on_request(lambda: self.leave([]))
        for entry in entries:
            self.queues[entry.table].append(entry)
        while not all(map(self._is_first, entries)):
            if cancellation.requested.is_set():
                raise LockCancelledError(resource=resource)
            removed = [entry for entry in entries if entry not in self.queues[entry.table]]
            if removed and removed[0].offer is not None and self.violation is not Violation.DISMISSED_REQUEST_WAITS:
                raise ContenderGoneError(resource=resource)
            if deadline.remaining() == 0:
                raise LockTimeoutError(resource=resource, timeout_seconds=seconds, ahead=None, holder=None)
            if self.changed.wait(deadline.remaining()) and self.violation is Violation.DEADLINE_RESTARTS:
                deadline = Deadline(seconds)
        for entry in entries:
            entry.granted = True

    def contains(self, entries: Iterable[_Entry]) -> bool:
        """Return whether all entries are in their queues."""
        return self.violation is Violation.CHECK_PASSES or all(entry in self.queues[entry.table] for entry in entries)

    def _is_first(self, entry: _Entry) -> bool:
        """Return whether no conflicting entry precedes this one."""
        queue = self.queues[entry.table]
        requests = [queue_entry for queue_entry in queue if not queue_entry.granted]
        if self.violation is Violation.LAST_COME_FIRST_SERVED:
            requests.reverse()
        if self.violation is Violation.OVERTAKING and entry.shared:
            requests = [request for request in requests if request.shared]
        ordered_entries = [queue_entry for queue_entry in queue if queue_entry.granted] + requests
        if entry not in queue:
            return False
        for predecessor in itertools.takewhile(lambda queue_entry: queue_entry is not entry, ordered_entries):
            compatible = predecessor.shared and entry.shared and self.violation is not Violation.NO_SHARING
            if not compatible and not (entry.shared and self.violation is Violation.NO_EXCLUSION):
                return False
        return True


class MemoryIntents:
    """The intents of one hold on one table; see ``lock_manager.coordinator.Intents``."""

    def __init__(self, hold: MemoryHold, table: str, unfinished: tuple[str, ...]) -> None:
        self.unfinished = unfinished
        self.open: dict[str, int] = {}
        self.recorded = False
        self._members: dict[str, tuple[str, ...]] = {}
        self._hold, self._stored = hold, hold.memory.intents[table]

    @property
    def settled(self) -> bool:
        return self.recorded and not self.open

    def settle(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self.open.pop(attempt, None)

    def read(self) -> list[Intent]:
        self._hold.check()
        return [self._stored[name] for name in self.unfinished if name in self._stored]

    def clear(self) -> None:
        self._hold.check()
        for name in self.unfinished:
            self._stored.pop(name, None)
        self.unfinished = ()

    def record(self, intent: Intent) -> None:
        self.open[intent.attempt], self._members[intent.attempt] = intent.version, intent.members
        members = [member for attempt in self.open for member in self._members[attempt]]
        self._stored[intent.hold_id] = replace(intent, members=tuple(members))
        self.recorded = True

    def end(self, violation: Violation | None) -> None:
        """Delete the intents of this hold if all of them are settled."""
        settled = self.settled and violation is not Violation.SETTLED_INTENT_REMAINS
        if settled or violation is Violation.INTENT_ENDS_WITH_RELEASE:
            self._stored.pop(self._hold.hold_id, None)


@dataclass(eq=False)
class MemoryHold:
    """A lock on tables; see ``lock_manager.coordinator.Hold``."""

    memory: MemoryCoordinator
    manager: MemoryManager
    ensemble_id: str
    resource: str
    scope: dict[str, TableScope]
    entries: list[_Entry]
    tokens: dict[str, int]
    requested_at: float
    waited_seconds: float
    acquired_at: float = field(default_factory=time.time)
    thread: threading.Thread = field(default_factory=threading.current_thread)
    released_at: float | None = None
    lost: str | None = None

    def __post_init__(self) -> None:
        self.hold_id = self.entries[0].hold_id
        self.excludes, self.needs_adoption = True, False
        self.shared = all(entry.shared for entry in self.entries)
        self.exclusive_keys = frozenset(entry.table for entry in self.entries if not entry.shared)
        self._callbacks: list[Callable[[Any], None]] = []
        self._commits: defaultdict[str, list[int]] = defaultdict(list)
        self._depth = 1
        with self.memory.changed:
            self._intents = {
                table: MemoryIntents(self, table, tuple(self.memory.intents[table])) for table in self.scope
            }

    @property
    def token(self) -> int:
        return max(self.tokens.values())

    @property
    def over(self) -> bool:
        return self.lost is not None or self.released_at is not None

    @property
    def intents(self) -> MemoryIntents:
        return self._intents[self._table(None)]

    def intents_of(self, table: str) -> MemoryIntents:
        return self._intents[table]

    def covers(self, scope: Mapping[str, TableScope]) -> bool:
        return all(table in self.scope and self.scope[table].covers(part) for table, part in scope.items())

    def enter_again(self) -> bool:
        self._depth += not self.over
        return not self.over

    def is_valid(self) -> bool:
        return not self.over

    def check(self, timeout_seconds: float | None = None) -> None:  # noqa: ARG002 (parameter of the protocol)
        if self.released_at is not None:
            raise LockNotHeldError(f"{self.resource} was released", resource=self.resource)
        self._update_lost()
        if self.lost is not None:
            raise self._lost_error()

    def _update_lost(self) -> None:
        if self.lost is None and not self.memory.contains(self.entries):
            self.lost = "it was revoked"
            if self.memory.violation is not Violation.NO_CALLBACK:
                for callback in self._callbacks:
                    threading.Thread(target=callback, args=[self]).start()

    def intend(
        self,
        version: int,
        *,
        txn: str | None,
        attempt: str,
        table: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str]:
        if self.memory.violation is not Violation.INTENT_AFTER_LOSS:
            self.check()
        uri = self._table(table)
        with self.memory.changed:
            waiting = {entry.hold_id for entry in self.memory.queues[uri]}
            if self.memory.violation is not Violation.ABSENT_MEMBER:
                members = {name: write_id for name, write_id in members.items() if name in waiting}
            intent = Intent(
                hold_id=self.hold_id,
                version=version,
                txn=txn,
                attempt=attempt,
                token=self.token,
                members=tuple(members.values()),
            )
            self._intents[uri].record(intent)
        return members

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        (table,) = self.scope
        with self.memory.changed:
            entries = [entry for entry in self.memory.queues[table] if entry not in self.entries]
            if self.memory.violation is Violation.OFFERS_OVERTAKE:
                entries = [entry for entry in entries if entry.offer is not None]
            offering = itertools.takewhile(lambda entry: entry.offer is not None and not entry.shared, entries)
            return {entry.hold_id: entry.offer.data for entry in offering if entry.offer is not None}

    def dismiss(self, members: Collection[str]) -> None:
        (table,) = self.scope
        with self.memory.changed:
            self.memory.leave([entry for entry in self.memory.queues[table] if entry.hold_id in members])

    def on_loss(self, callback: Callable[[Self], None]) -> None:
        self._callbacks.append(callback)

    def record_commit(self, version: int, table: str | None = None) -> None:
        self._commits[self._table(table)].append(version)

    @property
    def commits(self) -> Mapping[str, tuple[int, ...]]:
        return {table: tuple(versions) for table, versions in self._commits.items()}

    def release(self) -> None:
        if self.released_at is not None:
            if self.memory.violation is Violation.SECOND_RELEASE:
                return
            raise LockNotHeldError(f"{self.resource} was released already", resource=self.resource)
        self._depth -= 1
        if self._depth:
            return
        self._update_lost()
        self.released_at = time.time()
        for intents in self._intents.values():
            intents.end(self.memory.violation)
        self.memory.leave(self.entries)
        self.manager.holds.remove(self)
        if self.lost is not None and self.memory.violation is not Violation.SILENT_RELEASE:
            raise self._lost_error()

    def _lost_error(self) -> LockLostError:
        return LockLostError(
            resource=self.resource, hold_id=self.hold_id, reason=self.lost or "", commits=dict(self.commits)
        )

    def _table(self, table: str | None) -> str:
        if table is None and len(self.scope) > 1:
            raise ValueError("the hold has several tables; pass table=")
        return table or next(iter(self.scope))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.released_at is None:
            self.release()


class MemoryManager:
    """A lock manager for whole tables; see ``lock_manager.coordinator.LockManager``."""

    session_timeout_seconds = 1.0

    def __init__(self, memory: MemoryCoordinator, settings: LockSettings) -> None:
        self.settings = settings
        self.holds: list[MemoryHold] = []
        self._memory = memory
        self._id = str(uuid.uuid4()) if memory.violation is Violation.ID_PER_MANAGER else memory.id
        self._waiting: list[tuple[list[_Entry], Cancellation]] = []

    def connect(self, timeout_seconds: float = 1.0) -> None:
        """Do nothing: there is no connection."""

    def check_reachable(self, timeout_seconds: float) -> None:
        """Do nothing: there is no connection."""

    def acquire(
        self,
        resource: Any,
        *,
        partitions: Collection[Any] | None = None,
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> MemoryHold:
        return self.acquire_all([TableScope.of(resource, partitions, shared=shared)], timeout_seconds=timeout_seconds)

    def acquire_all(
        self,
        scopes: Sequence[Any],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
        offer: Offer | None = None,
        needs_exclusion: bool = True,  # noqa: ARG002 (parameter of the protocol)
    ) -> MemoryHold:
        """Lock several tables. A request joins all queues in one step, so that no deadlock is possible."""
        table_scopes = [scope if isinstance(scope, TableScope) else TableScope.of(scope) for scope in scopes]
        requested = {scope.table.uri: scope for scope in table_scopes}
        memory, hold_id = self._memory, uuid.uuid4().hex
        if any(scope.partitions is not None for scope in table_scopes):
            raise NotImplementedError("partitions")
        for hold in self.holds:
            if hold.thread is threading.current_thread() and hold.covers(requested) and hold.enter_again():
                return hold
        resource, requested_at = ", ".join(requested), time.time()
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        cancellation = cancellation or Cancellation()
        entries = [_Entry(hold_id, uri, scope.shared, offer=offer) for uri, scope in requested.items()]
        with memory.changed:
            self._waiting.append((entries, cancellation))
            token = 1 if memory.violation is Violation.CONSTANT_TOKENS else next(memory.tokens)
            try:
                memory.wait(entries, cancellation, seconds)
            except BaseException:
                if memory.violation is not Violation.CONTENDER_REMAINS:
                    memory.leave(entries)
                raise
            finally:
                self._waiting.remove((entries, cancellation))
        hold = MemoryHold(
            memory, self, self._id, resource, requested, entries, dict.fromkeys(requested, token), requested_at,
            time.time() - requested_at,
        )  # fmt: skip
        self.holds.append(hold)
        return hold

    def is_offered(self, table: str, offer: Offer, timeout_seconds: float) -> bool:  # noqa: ARG002 (of the protocol)
        memory, uri = self._memory, TableResource.of(table).uri
        with memory.changed:
            if any(entry.offer is offer for entry in memory.queues[uri]):
                return True
            if memory.violation is Violation.FORGOTTEN_OFFER:
                return False
            return any(offer.write_id in intent.members for intent in memory.intents[uri].values())

    def cancel(self, resource: Any) -> int:
        uri = TableResource.of(resource).uri
        with self._memory.changed:
            requests = [
                cancellation for entries, cancellation in self._waiting if any(entry.table == uri for entry in entries)
            ]
            for cancellation in requests:
                cancellation.request()
        return len(requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._memory.changed:
            for _, cancellation in self._waiting:
                cancellation.request()
        for hold in list(self.holds):
            self._memory.leave(hold.entries)
