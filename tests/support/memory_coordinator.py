"""A coordinator within one process: whole tables, no sessions. It keeps the contract, or breaks one rule of it."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

from lock_manager import Hold, LockCancelledError, LockLostError, LockNotHeldError, LockTimeoutError, TableResource
from lock_manager.coordinator import Cancellation
from lock_manager.deadline import Deadline
from lock_manager.intents import Intent
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings


class Break(Enum):
    """A rule that the coordinator does not keep."""

    ORDER = "the last to come is served first"
    OVERTAKING = "a shared request goes before an exclusive one that waits"
    TOKENS = "each hold has the same token"
    SHARING = "shared holders exclude one another"
    EXCLUSION = "a shared holder is let in beside an exclusive one"
    DEADLINE = "the deadline begins anew when somebody ahead goes"
    LEAVING = "whoever gives up stays in the queue"
    CHECK = "a hold that was taken away passes its check"
    TELLING = "nobody is told of a loss"
    INTENDING = "a lost hold may note an intent"
    HANDING_ON = "an unfinished intent is forgotten with its hold"
    HANDING_ON_LOST = "an unfinished intent is forgotten when its hold is lost"
    SETTLING = "a settled intent is handed on"
    RELEASE = "the release of a lost hold says nothing"
    TWICE = "a hold may be released twice"
    IDENTITY = "each manager has an id of its own"


@dataclass(eq=False)
class _Entry:
    """An entry in the queue of a table."""

    hold_id: str
    table: str
    shared: bool
    granted: bool = False


class Memory:
    """What all managers share; what it gives to the tests of the contract is as ``tests/contract/conftest.py`` says."""

    def __init__(self, broken: Break | None = None) -> None:
        self.broken = broken
        self.managers: list[MemoryManager] = []
        self.id = str(uuid.uuid4())
        self.changed = threading.Condition()
        self.queues: defaultdict[str, list[_Entry]] = defaultdict(list)
        self.intents: defaultdict[str, dict[str, Intent]] = defaultdict(dict)
        self.tokens = itertools.count(1)

    def manager(self, **settings: Any) -> MemoryManager:
        """Make a lock manager."""
        manager = MemoryManager(self, LockSettings.merged("memory:1", **{"timeout_seconds": 30, **settings}))
        self.managers.append(manager)
        return manager

    def close(self) -> None:
        """Close all managers."""
        for manager in self.managers:
            manager.close()

    def asked_for(self, table: str) -> int:
        """Return how many hold the table or wait for it."""
        return len(self.queues[TableResource.of(table).uri])

    def take_away(self, hold: Hold) -> None:
        """Give up a hold; it is not told."""
        if self.broken is Break.HANDING_ON_LOST:
            for kept in self.intents.values():
                kept.pop(hold.hold_id, None)
        with self.changed:
            self.leave([each for queue in self.queues.values() for each in queue if each.hold_id == hold.hold_id])

    def leave(self, entries: Iterable[_Entry]) -> None:
        """Take entries out of their queues."""
        with self.changed:
            for entry in entries:
                if entry in self.queues[entry.table]:
                    self.queues[entry.table].remove(entry)
            self.changed.notify_all()

    def wait(self, entries: Sequence[_Entry], cancellation: Cancellation, seconds: float) -> None:
        """Join the queues, and wait for the turn in each."""
        resource = ", ".join(entry.table for entry in entries)
        deadline = Deadline(seconds)
        cancellation.on_request(lambda: self.leave([]))
        for entry in entries:
            self.queues[entry.table].append(entry)
        while not all(map(self._has_turn, entries)):
            if cancellation.requested.is_set():
                raise LockCancelledError(resource=resource)
            if deadline.remaining() == 0:
                raise LockTimeoutError(resource=resource, timeout_seconds=seconds, ahead=None, holder=None)
            if self.changed.wait(deadline.remaining()) and self.broken is Break.DEADLINE:
                deadline = Deadline(seconds)
        for entry in entries:
            entry.granted = True

    def stand(self, entries: Iterable[_Entry]) -> bool:
        """Tell whether all are in their queues."""
        return self.broken is Break.CHECK or all(entry in self.queues[entry.table] for entry in entries)

    def _has_turn(self, entry: _Entry) -> bool:
        """Tell whether nobody is ahead whom it excludes."""
        queue = self.queues[entry.table]
        waiting = [each for each in queue if not each.granted]
        if self.broken is Break.ORDER:
            waiting.reverse()
        if self.broken is Break.OVERTAKING and entry.shared:
            waiting = [each for each in waiting if each.shared]
        line = [each for each in queue if each.granted] + waiting
        for ahead in itertools.takewhile(lambda each: each is not entry, line):
            together = ahead.shared and entry.shared and self.broken is not Break.SHARING
            together |= entry.shared and self.broken is Break.EXCLUSION
            if not together:
                return False
        return True


class MemoryIntents:
    """The intents of one hold on one table."""

    def __init__(self, hold: MemoryHold, table: str, unfinished: tuple[str, ...]) -> None:
        self.unfinished = unfinished
        self.open: dict[str, int] = {}
        self.noted = False
        self._hold, self._kept = hold, hold.memory.intents[table]

    @property
    def settled(self) -> bool:
        """Whether all that was noted has an outcome."""
        return self.noted and not self.open

    def settle(self, attempts: Iterable[str]) -> None:
        """Note that these have one."""
        for attempt in attempts:
            self.open.pop(attempt, None)

    def read(self) -> list[Intent]:
        """Return what was left behind."""
        self._hold.check()
        return [self._kept[name] for name in self.unfinished if name in self._kept]

    def clear(self) -> None:
        """Forget it."""
        self._hold.check()
        for name in self.unfinished:
            self._kept.pop(name, None)
        self.unfinished = ()

    def note(self, intent: Intent) -> None:
        """Write what is about to be put."""
        self._kept[intent.hold_id] = intent
        self.open[intent.attempt], self.noted = intent.version, True

    def end(self, broken: Break | None) -> None:
        """Take away what nobody is to find."""
        if (self.settled and broken is not Break.SETTLING) or broken is Break.HANDING_ON:
            self._kept.pop(self._hold.hold_id, None)


@dataclass(eq=False)
class MemoryHold:
    """A lock on tables."""

    memory: Memory
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
        self.shared = all(entry.shared for entry in self.entries)
        self.exclusive_keys = frozenset(entry.table for entry in self.entries if not entry.shared)
        self._callbacks: list[Callable[[Any], None]] = []
        self._commits: defaultdict[str, list[int]] = defaultdict(list)
        self._times = 1
        with self.memory.changed:
            self._intents = {
                table: MemoryIntents(self, table, tuple(self.memory.intents[table])) for table in self.scope
            }

    @property
    def token(self) -> int:
        """The largest."""
        return max(self.tokens.values())

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.lost is not None or self.released_at is not None

    @property
    def intents(self) -> MemoryIntents:
        """Of the one table."""
        return self._intents[self._only(None)]

    def intents_of(self, table: str) -> MemoryIntents:
        """Return those of a table."""
        return self._intents[table]

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Tell whether all of it is held."""
        return all(table in self.scope and self.scope[table].covers(wanted) for table, wanted in other.items())

    def enter_again(self) -> bool:
        """Count one more acquire."""
        self._times += not self.over
        return not self.over

    def is_valid(self) -> bool:
        """Tell what is known."""
        return not self.over

    def check(self, timeout_seconds: float | None = None) -> None:  # noqa: ARG002 (the protocol's)
        """Look whether it stands."""
        if self.released_at is not None:
            raise LockNotHeldError(f"{self.resource} was released", resource=self.resource)
        self._look()
        if self.lost is not None:
            raise self._lost_error()

    def _look(self) -> None:
        if self.lost is None and not self.memory.stand(self.entries):
            self.lost = "it was taken away"
            if self.memory.broken is not Break.TELLING:
                for callback in self._callbacks:
                    threading.Thread(target=callback, args=[self]).start()

    def intend(self, version: int, *, txn: str | None, attempt: str, table: str | None = None) -> None:
        """Note what is about to be put, if it stands."""
        if self.memory.broken is not Break.INTENDING:
            self.check()
        intents = self._intents[self._only(table)]
        intents.note(Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token))

    def on_loss(self, callback: Callable[[Self], None]) -> None:
        """Have it called once."""
        self._callbacks.append(callback)

    def record_commit(self, version: int, table: str | None = None) -> None:
        """Note a version."""
        self._commits[self._only(table)].append(version)

    @property
    def commits(self) -> Mapping[str, tuple[int, ...]]:
        """Versions by table."""
        return {table: tuple(versions) for table, versions in self._commits.items()}

    def release(self) -> None:
        """Leave the queues."""
        if self.released_at is not None:
            if self.memory.broken is Break.TWICE:
                return
            raise LockNotHeldError(f"{self.resource} was released already", resource=self.resource)
        self._times -= 1
        if self._times:
            return
        self._look()
        self.released_at = time.time()
        for intents in self._intents.values():
            intents.end(self.memory.broken)
        self.memory.leave(self.entries)
        self.manager.holds.remove(self)
        if self.lost is not None and self.memory.broken is not Break.RELEASE:
            raise self._lost_error()

    def _lost_error(self) -> LockLostError:
        return LockLostError(
            resource=self.resource, hold_id=self.hold_id, reason=self.lost or "", commits=dict(self.commits)
        )

    def _only(self, table: str | None) -> str:
        if table is None and len(self.scope) > 1:
            raise ValueError("say which table")
        return table or next(iter(self.scope))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released_at is None:
            self.release()


class MemoryManager:
    """Hands out locks on whole tables."""

    session_timeout_seconds = 1.0

    def __init__(self, memory: Memory, settings: LockSettings) -> None:
        self.settings = settings
        self.holds: list[MemoryHold] = []
        self._memory = memory
        self._id = str(uuid.uuid4()) if memory.broken is Break.IDENTITY else memory.id
        self._waiting: list[tuple[list[_Entry], Cancellation]] = []

    def connect(self, timeout_seconds: float = 1.0) -> None:
        """Do nothing: it is there."""

    def acquire(
        self,
        resource: Any,
        *,
        partitions: Collection[Any] | None = None,
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> MemoryHold:
        """Lock a table."""
        return self.acquire_all([TableScope.of(resource, partitions, shared=shared)], timeout_seconds=timeout_seconds)

    def acquire_all(
        self,
        scopes: Sequence[Any],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> MemoryHold:
        """Lock several tables: their queues are joined at once, so that nobody waits in a circle."""
        made = [each if isinstance(each, TableScope) else TableScope.of(each) for each in scopes]
        wanted = {each.table.uri: each for each in made}
        memory, hold_id = self._memory, uuid.uuid4().hex
        if any(each.partitions is not None for each in made):
            raise NotImplementedError("partitions")
        for hold in self.holds:
            if hold.thread is threading.current_thread() and hold.covers(wanted) and hold.enter_again():
                return hold
        resource, asked_at = ", ".join(wanted), time.time()
        seconds = self.settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        cancellation = cancellation or Cancellation()
        entries = [_Entry(hold_id, uri, scope.shared) for uri, scope in wanted.items()]
        with memory.changed:
            self._waiting.append((entries, cancellation))
            token = 1 if memory.broken is Break.TOKENS else next(memory.tokens)
            try:
                memory.wait(entries, cancellation, seconds)
            except BaseException:
                if memory.broken is not Break.LEAVING:
                    memory.leave(entries)
                raise
            finally:
                self._waiting.remove((entries, cancellation))
        hold = MemoryHold(
            memory, self, self._id, resource, wanted, entries, dict.fromkeys(wanted, token), asked_at,
            time.time() - asked_at,
        )  # fmt: skip
        self.holds.append(hold)
        return hold

    def cancel(self, resource: Any) -> int:
        """Have who waits for it give up."""
        uri = TableResource.of(resource).uri
        with self._memory.changed:
            meant = [cancellation for entries, cancellation in self._waiting if any(e.table == uri for e in entries)]
            for cancellation in meant:
                cancellation.request()
        return len(meant)

    def close(self) -> None:
        """End all."""
        with self._memory.changed:
            for _, cancellation in self._waiting:
                cancellation.request()
        for hold in list(self.holds):
            self._memory.leave(hold.entries)
