"""The lease on S3 as a state machine, searched breadth first. Its rules are those of ``lock_manager.s3_lease.state``.

Clients write to one table. Each requests the lock, waits, settles unfinished intents, stores its own intent, puts its
version and leaves, or gives its request up. A hold may make several attempts to put. A request that was removed joins
again. A client may be paused or die at any step. A reply may be lost, and a request without a reply may be executed
later, or never. Time passes in steps, at any moment, for all clients alike or at the speed of each client's clock. The
request without a reply may be executed later, or never. Time passes in steps, for all clients alike, at any moment. The
promise of ``PROTECTIONS``.

    python -m tests.model.lease    # for each protection, the shortest way to break its promise without it

The model has no shared and partition locks, no second table, no offers and no operator who breaks a lock.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lock_manager.intents import Intent
from lock_manager.s3_lease import state
from lock_manager.s3_lease.state import Entry, Queue

VALID, NO_ZOMBIE = "a valid hold excludes others", "3. no zombie"
IN_ORDER, NO_LEAK = "2. in order", "5. no deadlock, no leak"

ONE, TWO, DEATH = "one writer that gives up", "two writers", "a writer that dies"
RENEWAL, LOST, THREE = "a writer that renews its lock", "two writers and a lost reply", "the turn of three"
FAST, FREE = "a clock that is a quarter faster", "clocks at any speed"
ATTEMPTS, REMOVED = "a hold with two attempts", "a removed request that joins again"

#: For each protection, the promise that breaks without it, and the scenario in which it does.
PROTECTIONS = {
    # Only an entry without a conflicting entry ahead holds the lock.
    "queue": (IN_ORDER, TWO),
    # A change replaces the object only if nobody else has changed it.
    "conditional write": (VALID, TWO),
    # A holder is removed only after a whole lease.
    "whole lease": (VALID, TWO),
    # A look that shows another counter begins the lease again.
    "counter": (VALID, RENEWAL),
    # The owner counts its lease from the sending of a renewal, and not from the answer.
    "from the sending": (VALID, TWO),
    # The owner of an entry with the counter 0 counts from the last look before its turn.
    "from the look before": (VALID, THREE),
    # The change that stores the intent fails if the entry is gone.
    "proof in the intent": (NO_ZOMBIE, TWO),
    # The removal of a holder keeps its intents.
    "kept intents": (NO_ZOMBIE, TWO),
    # A new holder fills the versions of unfinished intents before it reads.
    "filled intents": (NO_ZOMBIE, TWO),
    # The release keeps the intent of a put whose outcome is unknown.
    "kept intent": (NO_ZOMBIE, TWO),
    # The release keeps the intent if the outcome of any attempt is unknown.
    "every attempt": (NO_ZOMBIE, ATTEMPTS),
    # The intent of an attempt names the highest version that the hold may have put.
    "highest version": (NO_ZOMBIE, ATTEMPTS),
    # The owner trusts only a part of its lease, because clocks run at different speeds.
    "trusted part": (VALID, FAST),
    # A holder whose request has joined again is not the one that was seen.
    "observed token": (VALID, REMOVED),
    # A request that joins again has a new token.
    "new token": (NO_ZOMBIE, REMOVED),
    # A client that waits removes holders that do not renew their locks.
    "removal": (NO_LEAK, DEATH),
    # After a lost reply a client looks for its own entry before it joins again.
    "own entry": (NO_LEAK, ONE),
    # A request that is given up changes the object, so that its late PUT fails.
    "forced leave": (NO_LEAK, ONE),
    # No two contents of the object are the same, so the ETag changes, too.
    "unique content": (NO_LEAK, ONE),
}
#: For each rule, the code that implements it.
RULES = {
    "join": "lock_manager.s3_lease.contender:LeaseContender.join",
    "look": "lock_manager.s3_lease.contender:LeaseContender.poll",
    "expel": "lock_manager.s3_lease.state:expel",
    "beat": "lock_manager.s3_lease.contender:LeaseContender.confirm",
    "settle": "lock_manager.guard.guarded_block:GuardedBlock.settle_unfinished",
    "intend": "lock_manager.s3_lease.held_lease:HeldLease.intend",
    "put": "log_store/src/io/deltasluice/storage/GuardedLogStore.java:void put(",
    "another attempt": "lock_manager.s3_lease.lease_intents:LeaseIntents.record",
    "join again": "lock_manager.s3_lease.acquisition:Acquisition._lock",
    "leave": "lock_manager.s3_lease.held_lease:HeldLease.leave",
    "give up": "lock_manager.s3_lease.acquisition:Acquisition.abandon",
}

LEASE = 2.0
"""The lease in steps of time, which is also the time to notice a turn. Its owner trusts it for 1.6."""
_OLDEST = -3.0
"""Longest time that the model tells from longer ones."""
_TABLE = "s3://lake/table"
_HOLDING = frozenset({"holding", "read", "intended"})


class Contents:
    """The contents of the object that occur in a search, by number: numbers are compared faster."""

    def __init__(self) -> None:
        self._queues: list[Queue] = []
        self._numbers: dict[Queue, int] = {}

    def number(self, queue: Queue) -> int:
        """Return the number of a content."""
        if queue not in self._numbers:
            self._numbers[queue] = len(self._queues)
            self._queues.append(queue)
        return self._numbers[queue]

    def __getitem__(self, number: int) -> Queue:
        return self._queues[number]


CONTENTS = Contents()
#: Number of the empty queue, and of contents that do not matter.
EMPTY = CONTENTS.number(Queue(uri=_TABLE, next_token=1))


class Request(NamedTuple):
    """A request on its way to the store: a read, or a conditional write.

    Attributes:
        name: Name of its rule.
        sent_at: When it was sent.
        content: Number of the content to write; None for a read.
        is_current: Whether the condition of the write still holds. After the arrival, whether nobody has changed the
            object since.
        answer: None before the request has arrived. Then whether the write was executed, or the number of the content
            that was read.

    """

    name: str
    sent_at: float
    content: int | None
    is_current: bool = True
    answer: int | None = None


class Client(NamedTuple):
    """A writer.

    Attributes:
        hold: Number of its hold.
        token: Fencing token; 0 before it has joined.
        phase: What it does next.
        known: Number of the content that it knows, if nobody has changed it since.
        is_current: Whether nobody has changed it since.
        asked_at: When the request was sent that returned the known content.
        joined_at: When its first join was sent; 0 before.
        request: Its request that has no answer yet.
        is_unsure: Whether a request got no answer.
        version: Version that it puts.
        beats: Number of renewals that are left.
        attempts: Number of further attempts to put under its hold.
        highest_version: Highest version that an intent of its hold names.
        is_open: Whether the outcome of an attempt is unknown.
        rejoins: How often it joins again after its request was removed.
        lease: Its lease, by any clock.
        speed: Speed of its clock.

    """

    hold: int
    token: int = 0
    phase: str = "idle"
    known: int = EMPTY
    is_current: bool = True
    asked_at: float = 0.0
    joined_at: float = 1.0
    seen: tuple[tuple[str, tuple[tuple[bool, int, int, int], float]], ...] = ()
    valid_until: float = 0.0
    request: Request | None = None
    is_unsure: bool = False
    version: int = -1
    beats: int = 1
    attempts: int = 0
    highest_version: int = -1
    is_open: bool = False
    rejoins: int = 0
    lease: float = LEASE
    speed: float = 1.0

    @property
    def hold_id(self) -> str:
        return f"{self.hold}"

    @property
    def queue(self) -> Queue:
        """The content that it knows."""
        return CONTENTS[self.known]

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more."""
        return self.phase in {"done", "dead"}


class World(NamedTuple):
    """All clients and the store.

    Attributes:
        content: Number of the object's content.
        late: Writes without a reply that may arrive later.
        puts: Versions without a reply that may arrive later: version and token of the hold.
        log: Tokens of the holds that put the versions; 0 for an empty commit.
        readers: Tokens of the holds that have read the log.
        has_zombie: Whether a hold put a version after a later hold had read the log.
        deaths, losses, abandons: How many may still happen.
        has_free_clocks: Whether the clock of each client runs at any speed, which also changes. Then a hold may be
            valid by the clock of its owner although another client has removed it.

    """

    clients: tuple[Client, ...]
    content: int = EMPTY
    late: frozenset[Request] = frozenset()
    puts: frozenset[tuple[int, int]] = frozenset()
    log: tuple[int, ...] = ()
    readers: frozenset[int] = frozenset()
    has_zombie: bool = False
    deaths: int = 0
    losses: int = 0
    abandons: int = 0
    has_free_clocks: bool = False


@dataclass
class Search:
    """The result of a search.

    Attributes:
        states: Number of states.
        steps: Names of the steps that were taken.
        broken: For each broken promise, the shortest sequence of steps.

    """

    states: int = 0
    steps: set[str] = field(default_factory=set)
    broken: dict[str, list[str]] = field(default_factory=dict)


class Model:
    """The steps of a world. ``without`` are the protections that are switched off."""

    def __init__(self, without: Collection[str] = ()) -> None:
        self._without = frozenset(without)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield the name and the result of each possible step."""
        if world.has_free_clocks:
            yield from (("time passes", _later(world, [index])) for index in range(len(world.clients)))
        else:
            yield "time passes", _later(world, range(len(world.clients)))
        for late in world.late:
            yield "late write", self._written(world._replace(late=world.late - {late}), late)
        for version, token in world.puts:
            yield "late put", _put(world._replace(puts=world.puts - {(version, token)}), version, token)
        for index, client in enumerate(world.clients):
            if client.is_over:
                continue
            if world.deaths:
                dead = self._dropped(world, index)
                yield "death", _with(dead, index, phase="dead")._replace(deaths=world.deaths - 1)
            if client.request is not None:
                yield from self._on_the_way(world, index, client.request)
            else:
                yield from self._next(world, index, client)

    # -- requests ------------------------------------------------------------------------------------------------

    def _on_the_way(self, world: World, index: int, request: Request | None) -> Iterator[tuple[str, World]]:
        assert request is not None
        if request.answer is None:
            if request.content is None:
                arrived = request._replace(answer=world.content, is_current=True)
                yield "arrival", _with(world, index, request=arrived)
            elif self._succeeds(request):
                written = self._written(world, request)
                yield "arrival", _with(written, index, request=request._replace(answer=True, is_current=True))
            else:
                yield "conflict", _with(world, index, request=request._replace(answer=False))
        else:
            yield "reply", self._replied(world, index, request)
        if world.losses:
            dropped = self._dropped(world, index)
            yield "lost reply", _with(dropped, index, request=None, is_unsure=True)._replace(losses=world.losses - 1)

    def _succeeds(self, request: Request) -> bool:
        """Return whether a write is executed if it arrives now."""
        return request.is_current or "conditional write" in self._without

    def _dropped(self, world: World, index: int) -> World:
        """Return the world if a client does not wait for its request any more."""
        request = world.clients[index].request
        if request is None or request.content is None or request.answer is not None or not self._succeeds(request):
            return world
        return world._replace(late=world.late | {request._replace(sent_at=0.0)})

    def _written(self, world: World, request: Request) -> World:
        """Return the world after a write: no other knowledge is current any more."""
        assert request.content is not None
        # A store computes the ETag from the content.
        has_same_tag = "unique content" in self._without and request.content == world.content

        def outdated(other: Request) -> Request:
            other = other._replace(is_current=other.is_current and has_same_tag)
            is_void = other.content is not None and other.answer is None and not self._succeeds(other)
            return other._replace(content=EMPTY) if is_void else other

        clients = tuple(
            client._replace(
                is_current=client.is_current and has_same_tag,
                request=None if client.request is None else outdated(client.request),
            )
            for client in world.clients
        )
        late = frozenset(other for other in map(outdated, world.late) if self._succeeds(other))
        return world._replace(content=request.content, clients=clients, late=late)

    def _replied(self, world: World, index: int, request: Request) -> World:
        previous = world.clients[index]
        client = previous._replace(request=None, is_current=request.is_current, is_unsure=False)
        if request.content is None:
            assert request.answer is not None
            client = client._replace(known=request.answer, asked_at=request.sent_at)
            if request.name == "look":
                client = self._looked(client, previous.asked_at)
        elif request.answer:
            client = client._replace(known=request.content, asked_at=request.sent_at)
            client = self._changed(client, request)
        else:
            client = client._replace(is_current=False)
        return _with(world, index, **client._asdict())

    def _send(self, world: World, index: int, name: str, queue: Queue | None) -> tuple[str, World]:
        content = None if queue is None else CONTENTS.number(queue)
        request = Request(name, 0.0, content, is_current=world.clients[index].is_current)
        return name, _with(world, index, request=request)

    def _at_once(self, world: World, index: int, name: str, queue: Queue | None) -> Iterator[tuple[str, World]]:
        """Yield the outcomes of a request whose duration does not matter."""
        _, sent = self._send(world, index, name, queue)
        for step, following in self._on_the_way(sent, index, sent.clients[index].request):
            request = following.clients[index].request
            if request is None:
                yield f"{name}, {step}", following
            else:
                for last_step, end in self._on_the_way(following, index, request):
                    yield f"{name}, {last_step}", end

    # -- a client ------------------------------------------------------------------------------------------------

    def _next(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        if client.phase == "waiting":
            yield self._send(world, index, "look", None)
        if client.is_current and not client.is_unsure:
            actions = {
                "idle": self._join, "waiting": self._wait, "giving up": self._give_up, "leaving": self._leave,
            }  # fmt: skip
            yield from actions.get(client.phase, self._hold)(world, index, client)
        elif client.phase != "waiting":
            read = client._replace(known=world.content, is_current=True, is_unsure=False)
            yield "read", _with(world, index, **read._asdict())

    def _wait(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        for stale in self._stale(client):
            yield from self._at_once(world, index, "expel", self._expelled(client.queue, stale))
        if world.abandons:
            yield "give up", _with(world, index, phase="giving up")._replace(abandons=world.abandons - 1)

    def _give_up(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        left = state.leave(client.queue, client.hold_id)
        if left == client.queue and "forced leave" in self._without:
            yield "given up", _with(world, index, phase="done")
        else:
            yield from self._at_once(world, index, "leave", left)

    def _leave(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        if client.queue.find(client.hold_id) is None:
            yield "left", _with(world, index, phase="done")
        else:
            is_settled = not client.is_open or "kept intent" in self._without
            left = state.leave(client.queue, client.hold_id, settled=is_settled)
            yield from self._at_once(world, index, "leave", left)

    def _join(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        entry = Entry(hold_id=client.hold_id, token=0, lease_seconds=client.lease)
        joined_at = client.joined_at if client.joined_at <= 0 else 0.0
        world = _with(world, index, joined_at=joined_at)
        is_there = client.queue.find(client.hold_id) is not None
        if is_there and "own entry" in self._without:
            yield "join again", _with(world, index, hold=client.hold + 10)
        elif is_there:
            yield "found", _with(world, index, **self._joined(client._replace(joined_at=joined_at))._asdict())
        else:
            yield self._send(world, index, "join", state.join(client.queue, entry))
        if world.abandons and client.joined_at <= 0:
            yield "give up", _with(world, index, phase="giving up")._replace(abandons=world.abandons - 1)

    def _joined(self, client: Client) -> Client:
        entry = client.queue.find(client.hold_id)
        assert entry is not None
        keeps_token = client.token and "new token" in self._without
        client = client._replace(phase="waiting", token=client.token if keeps_token else entry.token)
        return self._turn(self._observed(client), not_held_at=client.joined_at, renewed_at=client.joined_at)

    def _looked(self, client: Client, previous_look_at: float) -> Client:
        """Return a waiting client after a look at the queue."""
        entry = client.queue.find(client.hold_id)
        if entry is None:
            if client.rejoins:
                return client._replace(phase="idle", joined_at=1.0, rejoins=client.rejoins - 1)
            return client._replace(phase="done")
        not_held_at = client.asked_at if "from the look before" in self._without else previous_look_at
        return self._turn(self._observed(client), not_held_at=not_held_at, renewed_at=client.asked_at)

    def _observed(self, client: Client) -> Client:
        """Return a client with its observations of the holders in the queue that it knows."""
        seen = dict(client.seen)
        if "counter" in self._without:
            states = {entry.hold_id: client.queue.state_of(entry) for entry in client.queue.entries}
            seen = {name: (states[name], first_seen_at) for name, (_, first_seen_at) in seen.items() if name in states}
        if "observed token" in self._without:
            tokens = {entry.hold_id: entry.token for entry in client.queue.entries}
            seen = {
                name: ((holds, tokens.get(name, token), *counters), first_seen_at)
                for name, ((holds, token, *counters), first_seen_at) in seen.items()
            }
        observed = state.observe(seen, client.queue, 0.0)
        # When an entry that waits was first seen does not matter here.
        holders = {name: seen for name, seen in observed.items() if client.queue.holds(name)}
        return client._replace(seen=tuple(sorted(holders.items())))

    def _turn(self, client: Client, *, not_held_at: float, renewed_at: float) -> Client:
        """Return a client that has noticed its turn, if it is its turn."""
        if not (client.queue.holds(client.hold_id) or "queue" in self._without):
            return client
        entry = client.queue.find(client.hold_id)
        assert entry is not None
        valid_until = self._valid_until(entry, not_held_at=not_held_at, renewed_at=renewed_at)
        return client._replace(phase="holding", valid_until=max(0.0, valid_until), seen=())

    def _valid_until(self, entry: Entry, *, not_held_at: float, renewed_at: float) -> float:
        valid_until = state.valid_until(entry, not_held_at=not_held_at, renewed_at=renewed_at)
        untrusted_part = 1 - state.VALID_FRACTION if "trusted part" in self._without else 0
        return valid_until + untrusted_part * entry.removal_seconds

    def _stale(self, client: Client) -> list[Entry]:
        entry = client.queue.find(client.hold_id)
        assert entry is not None
        if "removal" in self._without:
            return []
        if "whole lease" in self._without:
            return [holder for holder in client.queue.ahead_of(entry) if client.queue.holds(holder.hold_id)]
        return state.stale_holders(dict(client.seen), client.queue, entry, client.asked_at)

    def _expelled(self, queue: Queue, stale: Entry) -> Queue:
        if "kept intents" in self._without:
            return state.leave(queue, stale.hold_id, settled=True)
        return state.expel(queue, stale)

    def _hold(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        known, hold_id = client.queue, client.hold_id
        if known.find(hold_id) is None and "proof in the intent" not in self._without:
            # It has noticed the loss.
            yield "loss", _with(world, index, phase="done")
            return
        if client.beats:
            yield self._send(_with(world, index, beats=client.beats - 1), index, "beat", state.beat(known, hold_id))
        if client.phase == "holding":
            yield "settle", self._settled(world, index, client)
        elif client.phase == "read":
            highest = client.version if "highest version" in self._without else client.highest_version
            version = max(client.version, highest)
            intent = Intent(hold_id=hold_id, version=version, txn=None, attempt="put", token=client.token)
            content = state.intend(state.beat(known, hold_id), intent)
            yield self._send(world, index, "intend", content)
        elif client.phase == "intended":
            was_open = client.is_open and "every attempt" not in self._without
            put = _with(_put(world, client.version, client.token), index, is_open=was_open)
            late = _with(world._replace(puts=world.puts | {(client.version, client.token)}), index, is_open=True)
            yield "put", _with(put, index, phase="leaving")
            yield "put without reply", _with(late, index, phase="leaving")
            if client.attempts:
                for following in (put, late):
                    # The put of a slow thread comes too late: its version exists.
                    for version in {len(following.log), max(0, len(following.log) - 1)}:
                        again = _with(following, index, phase="read", version=version, attempts=client.attempts - 1)
                        yield "another attempt", again

    def _settled(self, world: World, index: int, client: Client) -> World:
        """Fill the versions of unfinished intents, and read the log."""
        log = world.log
        if "filled intents" not in self._without and any(
            intent.version >= len(log) for intent in client.queue.unfinished()
        ):
            log = (*log, 0)
        read = world._replace(log=log, readers=world.readers | {client.token})
        return _with(read, index, phase="read", version=len(log))

    def _changed(self, client: Client, request: Request) -> Client:
        """Return a client whose change was made."""
        answered_at = 0.0 if "from the sending" in self._without else request.sent_at
        if request.name == "join":
            return self._joined(client)
        if request.name in {"beat", "intend"}:
            entry = client.queue.find(client.hold_id)
            renewed = 0.0 if entry is None else self._valid_until(entry, not_held_at=0, renewed_at=answered_at)
            client = client._replace(valid_until=max(client.valid_until, renewed))
            if request.name == "beat":
                return client
            highest_version = max(client.version, client.highest_version)
            return client._replace(phase="intended", highest_version=highest_version)
        if request.name == "leave":
            return client._replace(phase="done")
        return client


def _with(world: World, index: int, **changes: Any) -> World:
    """Return the world with a changed client, without what does not matter in its phase."""
    client = world.clients[index]._replace(**changes)
    if client.is_over:
        client = Client(client.hold, phase=client.phase)
    if not client.is_current:
        client = client._replace(known=EMPTY)
    if client.phase != "idle":
        client = client._replace(joined_at=1.0)
    if client.phase != "waiting":
        client = client._replace(asked_at=0.0)
    if client.phase not in {"waiting", "idle"}:
        client = client._replace(seen=())
    if world.has_free_clocks:
        client = client._replace(valid_until=0.0)
    clients = (*world.clients[:index], client, *world.clients[index + 1 :])
    return world._replace(clients=clients)


def _later(world: World, indexes: Collection[int]) -> World:
    """Return the world one step of time later for some clients: all times of a client are relative to its now."""
    clients = tuple(
        client if client.is_over or index not in indexes else _older(client, has_lease=not world.has_free_clocks)
        for index, client in enumerate(world.clients)
    )
    return world._replace(clients=clients)


def _older(client: Client, *, has_lease: bool) -> Client:
    """Return a client one step of time later. ``has_lease``: whether it matters until when its hold is valid."""

    def older(moment: float, oldest: float = _OLDEST) -> float:
        return max(oldest, moment - client.speed)

    request = client.request
    if request is not None:
        is_renewal = request.name in {"beat", "intend"} and (request.is_current or request.answer is not None)
        # For the others it does not matter when they were sent.
        has_time = request.name == "look" or (is_renewal and has_lease)
        request = request._replace(sent_at=older(request.sent_at) if has_time else 0.0)
    return client._replace(
        asked_at=older(client.asked_at) if client.phase == "waiting" else client.asked_at,
        joined_at=older(client.joined_at) if client.joined_at <= 0 and has_lease else client.joined_at,
        valid_until=older(client.valid_until, 0.0),
        seen=tuple((name, (entry_state, older(moment))) for name, (entry_state, moment) in client.seen),
        request=request,
    )


def _put(world: World, version: int, token: int) -> World:
    """Return the world after a conditional put of a version."""
    if len(world.log) != version:
        return world
    is_zombie = any(reader > token for reader in world.readers)
    return world._replace(log=(*world.log, token), has_zombie=world.has_zombie or is_zombie)


def broken_promise(world: World) -> str | None:
    """Return the promise that a state breaks; None if it keeps all."""
    if world.has_zombie:
        return NO_ZOMBIE
    holders = [client for client in world.clients if client.phase in _HOLDING]
    content = CONTENTS[world.content]
    if not world.has_free_clocks and any(
        client.valid_until > 0 and content.find(client.hold_id) is None for client in holders
    ):
        return VALID
    if sum(content.find(client.hold_id) is not None for client in holders) > 1:
        return IN_ORDER
    if _is_over(world) and not _is_clean(world):
        return NO_LEAK
    return None


def _is_over(world: World) -> bool:
    """Return whether no client does anything any more, and no request arrives any more."""
    return not world.late and all(client.is_over for client in world.clients)


def _is_clean(world: World) -> bool:
    """Return whether only dead clients are in the queue."""
    dead = {client.hold_id for client in world.clients if client.phase == "dead"}
    return {entry.hold_id for entry in CONTENTS[world.content].entries} <= dead


def search(initial: World, without: Collection[str] = ()) -> Search:
    """Visit every state; stop at the first one that breaks a promise."""
    model, result = Model(without), Search()
    parents: dict[World, tuple[World, str] | None] = {initial: None}
    predecessors: dict[World, list[World]] = {}
    waiting, ends = deque([initial]), []
    while waiting:
        world = waiting.popleft()
        if promise := broken_promise(world):
            result.broken[promise] = _path(parents, world)
            break
        if _is_over(world):
            ends.append(world)
        for name, following in model.steps(world):
            result.steps.add(name)
            predecessors.setdefault(following, []).append(world)
            if following not in parents:
                parents[following] = (world, name)
                waiting.append(following)
    else:
        stuck = parents.keys() - _reaching(ends, predecessors)
        if stuck:
            first = next(world for world in parents if world in stuck)
            result.broken[NO_LEAK] = _path(parents, first)
    result.states = len(parents)
    return result


def _reaching(ends: Collection[World], predecessors: dict[World, list[World]]) -> set[World]:
    """Return the states from which one of these ends can be reached."""
    reaching, waiting = set(ends), deque(ends)
    while waiting:
        for previous in predecessors.get(waiting.popleft(), ()):
            if previous not in reaching:
                reaching.add(previous)
                waiting.append(previous)
    return reaching


def _path(parents: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    path = []
    while (parent := parents[world]) is not None:
        changed = [client.hold for client, old in zip(world.clients, parent[0].clients, strict=True) if client != old]
        path.append(f"{parent[1]} ({changed[0]})" if len(changed) == 1 else parent[1])
        world = parent[0]
    return path[::-1]


def _turn_of_three() -> World:
    """Return a world in which a holder leaves, and two clients wait behind it."""
    number = CONTENTS.number(_queue_of_three())
    seen = (("1", ((True, 1, 1, 0), 0.0)),)
    waiting = [Client(hold, token=hold, phase="waiting", beats=0, is_current=False, seen=seen) for hold in (2, 3)]
    leaving = Client(1, token=1, phase="leaving", beats=0, known=number)
    return World(clients=(leaving, *waiting), content=number, readers=frozenset({1}))


def _unnoticed_turn() -> World:
    """Return a world in which a client has its turn, but has not noticed it yet, and another one waits behind it."""
    number = CONTENTS.number(state.leave(_queue_of_three(), "1"))
    waiting = [Client(hold, token=hold, phase="waiting", beats=0, is_current=False, rejoins=1) for hold in (2, 3)]
    return World(clients=tuple(waiting), content=number, readers=frozenset({1}))


def _queue_of_three() -> Queue:
    queue = CONTENTS[EMPTY]
    for hold in (1, 2, 3):
        queue = state.join(queue, Entry(hold_id=f"{hold}", token=0, lease_seconds=LEASE))
    return queue


_WRITERS = (Client(1, beats=0), Client(2, beats=0))
#: A lease in which the trusted part, 2, and the whole part differ by the clock that is a quarter faster.
_UNEVEN_LEASE = 2.5
#: Initial states by name.
SCENARIOS = {
    ONE: World(clients=(Client(1),), losses=1, abandons=1),
    TWO: World(clients=_WRITERS),
    DEATH: World(clients=_WRITERS, deaths=1),
    FAST: World(clients=(Client(1, beats=0, lease=_UNEVEN_LEASE), Client(2, beats=0, lease=_UNEVEN_LEASE, speed=1.25))),
    FREE: World(clients=_WRITERS, has_free_clocks=True),
    REMOVED: _unnoticed_turn(),
}
#: The same for longer searches.
LARGE_SCENARIOS = {
    RENEWAL: World(clients=(Client(1), Client(2, beats=0))),
    LOST: World(clients=_WRITERS, losses=1),
    THREE: _turn_of_three(),
    ATTEMPTS: World(clients=(Client(1, beats=0, attempts=1), Client(2, beats=0)), log=(0,)),
}


def too_fast() -> World:
    """Return a world with a clock that is three times as fast as the other one: no lease allows for that."""
    slow, fast = SCENARIOS[FAST].clients
    return World(clients=(slow, fast._replace(speed=3.0)))


def without(protection: str) -> Search:
    """Return the search of a protection's scenario without the protection."""
    _, scenario = PROTECTIONS[protection]
    return search({**SCENARIOS, **LARGE_SCENARIOS}[scenario], {protection})


def main() -> None:
    """Print, for each protection, the shortest way to break its promise without it."""
    for protection, (promise, _) in PROTECTIONS.items():
        path = without(protection).broken[promise]
        sys.stdout.write(f"without {protection}: {promise} breaks by {', '.join(path)}\n")


if __name__ == "__main__":
    main()
