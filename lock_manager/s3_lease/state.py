"""The queue of one table, and the rules for its changes: pure functions, which ``queue_object.py`` applies.

The whole queue is one JSON object. Each change replaces it under the condition that no other client has changed it. So
the changes of a queue follow one another, and each client sees all earlier ones.

* An entry holds the lock if no conflicting entry is ahead of it. Entries conflict if their partitions overlap, unless
  both are shared.
* An entry has a counter. Its owner increases the counter from time to time while it holds the lock (:func:`beat`), and
  with each intent. A client that waits behind an entry removes it (:func:`expel`) only if it has seen the entry hold
  the lock with the same counter for a whole lease, by its own monotonic clock. Clocks are never compared.
* An entry that gets the lock because entries ahead of it have left has the counter 0 until its owner notices. It may be
  removed after a part of the lease, because its owner reads the queue every few seconds: a third, at least 5 s.
* The change that stores an intent also proves the hold: it fails if the entry was removed. So the next holder finds the
  intent of every version that may still be put (:mod:`lock_manager.intents`), and no safety depends on a clock.
* A token is the number of an entry. A later entry of a table has a larger one.

The change must be safe to repeat, because a reply may be lost: each function returns its argument if the queue contains
the change already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import Any

from lock_manager.intents import Intent

FORMAT = 1
"""Format of the object. A client refuses a newer one."""

_CLAIM_FRACTION, _MIN_CLAIM_SECONDS = 1 / 3, 5.0
"""Part of the lease after which an entry that got the lock, but whose owner has not noticed, may be removed.

It is at least these seconds, but at most the lease.
"""

VALID_FRACTION = 0.8
"""Part of the lease for which its owner trusts it. The rest covers clocks that run at different speeds."""

#: For each entry, its state (:meth:`Queue.state_of`), and the monotonic time at which this client first saw it.
Observations = Mapping[str, tuple[tuple[bool, int, int, int], float]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A hold, or a request that may become one.

    Attributes:
        hold_id: Unique id.
        token: Fencing token, increasing in the order of the entries.
        shared: Whether other shared entries may hold at the same time.
        partitions: Requested partitions, such as ``year=2013/month=1``, escaped as in Hive; None for the whole table.
        counter: Changes as long as the owner lives and holds the lock; 0 before the owner has noticed that it does.
        lease_seconds: Time without a change of the counter after which a holder may be removed.
        data: JSON values that describe the requester for people: host, pid, job and so on.
        offer: Append that a holder may commit for this request; None for none.
        renewals: Changes from time to time as long as the owner lives and waits with an offer.

    """

    hold_id: str
    token: int
    shared: bool = False
    partitions: tuple[str, ...] | None = None
    counter: int = 0
    lease_seconds: float = 30.0
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    offer: Mapping[str, Any] | None = field(default=None, hash=False)
    renewals: int = 0

    @property
    def removal_seconds(self) -> float:
        """Time without a change after which this entry may be removed while it holds the lock."""
        if self.counter:
            return self.lease_seconds
        return max(_CLAIM_FRACTION * self.lease_seconds, min(self.lease_seconds, _MIN_CLAIM_SECONDS))


class _Scopes:
    """The scopes of some entries: the table, or partitions of it. One step compares an entry with all of them."""

    def __init__(self) -> None:
        self._is_empty = True
        self._has_table = False
        self._partitions: set[str] = set()
        self._ancestors: set[str] = set()

    def add(self, entry: Entry) -> None:
        """Add the scope of an entry."""
        self._is_empty = False
        self._has_table |= entry.partitions is None
        for partition in entry.partitions or ():
            self._partitions.add(partition)
            self._ancestors.update(ancestors(partition))

    def overlap(self, entry: Entry) -> bool:
        """Return whether the scope of an entry has a part of the table in common with these."""
        if self._has_table or entry.partitions is None:
            return not self._is_empty
        return any(
            partition in self._ancestors or not self._partitions.isdisjoint((partition, *ancestors(partition)))
            for partition in entry.partitions
        )


def ancestors(partition: str) -> list[str]:
    """Return the names of the partitions that contain a partition, outermost first."""
    parts = partition.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The queue of one table. A look at it takes time in proportion to its length.

    Attributes:
        uri: Canonical URI of the table.
        next_token: Token of the next entry.
        entries: Entries in queue order.
        intents: Stored intents, of holds in the queue and of earlier ones.
        change_id: Id of the change that stored this queue. It makes the content unique, so that the object never has an
            earlier ETag again: many stores compute the ETag from the content.

    """

    uri: str
    next_token: int
    entries: tuple[Entry, ...] = ()
    intents: tuple[Intent, ...] = ()
    change_id: str = field(default="", compare=False)

    @cached_property
    def _entries_by_id(self) -> Mapping[str, Entry]:
        return {entry.hold_id: entry for entry in self.entries}

    @cached_property
    def holders(self) -> frozenset[str]:
        """Hold ids of the entries without a conflicting entry ahead of them."""
        holders = set()
        all_scopes, exclusive_scopes = _Scopes(), _Scopes()
        for entry in self.entries:
            if not (exclusive_scopes if entry.shared else all_scopes).overlap(entry):
                holders.add(entry.hold_id)
            all_scopes.add(entry)
            if not entry.shared:
                exclusive_scopes.add(entry)
        return frozenset(holders)

    def find(self, hold_id: str) -> Entry | None:
        """Return an entry; None if it is not in the queue."""
        return self._entries_by_id.get(hold_id)

    def ahead_of(self, entry: Entry) -> list[Entry]:
        """Return the conflicting entries ahead of an entry; all conflicting ones if it is not in the queue."""
        ahead: list[Entry] = []
        scopes = _Scopes()
        scopes.add(entry)
        for other in self.entries:
            if other.hold_id == entry.hold_id:
                break
            if not (other.shared and entry.shared) and scopes.overlap(other):
                ahead.append(other)
        return ahead

    def holds(self, hold_id: str) -> bool:
        """Return whether an entry is in the queue and no conflicting entry is ahead of it."""
        return hold_id in self.holders

    def state_of(self, entry: Entry) -> tuple[bool, int, int, int]:
        """Return what changes while the owner of an entry lives: whether it holds the lock, and its two counters.

        The token changes if a request was removed and has joined the queue again.
        """
        return self.holds(entry.hold_id), entry.token, entry.counter, entry.renewals

    def unfinished(self) -> tuple[Intent, ...]:
        """Return the intents of holds that are no longer in the queue."""
        return tuple(intent for intent in self.intents if self.find(intent.hold_id) is None)

    def data(self) -> bytes:
        """Return the content of the object."""
        fields = {
            "format": FORMAT,
            "change": self.change_id,
            "uri": self.uri,
            "next_token": self.next_token,
            "entries": [asdict(entry) for entry in self.entries],
            "intents": [asdict(intent) for intent in self.intents],
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> Queue:
        """Parse the content of :meth:`data`.

        Raises:
            ValueError: The content is malformed, or of a newer format.

        """
        try:
            fields = json.loads(data)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r} is not known")
            # This release would drop what it does not know.
            if unknown := fields.keys() - _FIELDS:
                raise ValueError(f"field {min(unknown)!r} is not known")
            if unknown := {name for intent in fields["intents"] for name in intent} - _INTENT_FIELDS:
                raise ValueError(f"field {min(unknown)!r} of an intent is not known")
            return cls(
                uri=str(fields["uri"]),
                next_token=int(fields["next_token"]),
                entries=tuple(map(_entry, fields["entries"])),
                intents=tuple(Intent.parse(json.dumps(intent).encode()) for intent in fields["intents"]),
                change_id=str(fields["change"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a queue: {data[:100]!r}") from error


_FIELDS = frozenset({"format", "change", "uri", "next_token", "entries", "intents"})
_INTENT_FIELDS = frozenset(field.name for field in dataclass_fields(Intent))


def _entry(fields: Mapping[str, Any]) -> Entry:
    partitions = fields["partitions"]
    return Entry(**{**fields, "partitions": None if partitions is None else tuple(map(str, partitions))})


# -- changes -----------------------------------------------------------------------------------------------------


def join(queue: Queue, entry: Entry) -> Queue:
    """Add an entry at the end, with the next token. It starts with the counter 1 if it holds the lock at once."""
    if queue.find(entry.hold_id) is not None:
        return queue
    entries = (*queue.entries, replace(entry, token=queue.next_token, counter=0))
    joined = replace(queue, entries=entries, next_token=queue.next_token + 1)
    return beat(joined, entry.hold_id) if joined.holds(entry.hold_id) else joined


def may_be_offered(attempt: Queue, queue: Queue, hold_id: str) -> bool:
    """Return whether a holder may have committed the offer of an entry that is not in the queue, after a join.

    Returns False if that is impossible: the entry would have held the lock at once, so that no holder was ahead of it,
    or its token is not given, or is that of another entry. Then the join was not made.

    Args:
        attempt: The queue that the join would have stored. Whether it did is not known.
        queue: The queue as it was read afterwards.
        hold_id: The entry.

    """
    if queue.find(hold_id) is not None or attempt.holds(hold_id):
        return False
    token = attempt.next_token - 1
    return token < queue.next_token and all(entry.token != token for entry in queue.entries)


def beat(queue: Queue, hold_id: str) -> Queue:
    """Increase the counter of an entry."""
    return _with(queue, hold_id, lambda entry: replace(entry, counter=entry.counter + 1))


def describe(queue: Queue, hold_id: str, data: Mapping[str, Any]) -> Queue:
    """Replace the description of an entry for people."""
    return _with(queue, hold_id, lambda entry: replace(entry, data=data))


def renew_offer(queue: Queue, hold_id: str) -> Queue:
    """Show that the owner of a waiting entry lives, so that a holder may commit its offer."""
    return _with(queue, hold_id, lambda entry: replace(entry, renewals=entry.renewals + 1))


def leave(queue: Queue, hold_id: str, *, settled: bool = False) -> Queue:
    """Remove an entry, and its intents if the outcome of all its puts is known (``settled``)."""
    intents = tuple(intent for intent in queue.intents if not (settled and intent.hold_id == hold_id))
    return replace(_without(queue, [hold_id]), intents=intents)


def expel(queue: Queue, stale: Entry) -> Queue:
    """Remove a holder whose token and counter are still the same; its intents stay."""
    entry = queue.find(stale.hold_id)
    if entry is None or (entry.token, entry.counter) != (stale.token, stale.counter) or not queue.holds(stale.hold_id):
        return queue
    return _without(queue, [stale.hold_id])


def intend(queue: Queue, intent: Intent) -> Queue:
    """Store the intent of a holder over its earlier one."""
    others = tuple(other for other in queue.intents if other.hold_id != intent.hold_id)
    return replace(queue, intents=(*others, intent))


def clear(queue: Queue, intents: Collection[Intent]) -> Queue:
    """Delete intents that have not changed since they were read."""
    return replace(queue, intents=tuple(intent for intent in queue.intents if intent not in intents))


def dismiss(queue: Queue, hold_ids: Collection[str]) -> Queue:
    """Remove members, because their offers are committed."""
    return _without(queue, hold_ids)


def offers_behind(queue: Queue, hold_id: str, seen: Observations, now: float) -> dict[str, Mapping[str, Any]]:
    """Return the offers behind an exclusive holder of the whole table, by hold id, in queue order.

    They end with the first entry that has none, because a holder lets no entry overtake one of a different kind. An
    offer whose last renewal is older than a lease is left out: its owner is dead, and may have been started again.
    """
    offers: dict[str, Mapping[str, Any]] = {}
    entry = queue.find(hold_id)
    if entry is None or entry.shared or entry.partitions is not None or not queue.holds(hold_id):
        return offers
    for follower in queue.entries[queue.entries.index(entry) + 1 :]:
        if follower.offer is None or follower.shared:
            break
        _, first_seen_at = seen.get(follower.hold_id, (None, now))
        if now - first_seen_at < follower.lease_seconds:
            offers[follower.hold_id] = follower.offer
    return offers


def _without(queue: Queue, hold_ids: Iterable[str]) -> Queue:
    removed = set(hold_ids)
    return replace(queue, entries=tuple(entry for entry in queue.entries if entry.hold_id not in removed))


def _with(queue: Queue, hold_id: str, change: Callable[[Entry], Entry]) -> Queue:
    entries = tuple(change(entry) if entry.hold_id == hold_id else entry for entry in queue.entries)
    return replace(queue, entries=entries)


# -- time --------------------------------------------------------------------------------------------------------


def valid_until(entry: Entry, *, not_held_at: float, renewed_at: float) -> float:
    """Return the monotonic time of its owner until which no other client can have removed a holder.

    Other clients count the lease from when they first saw the counter. That is not before its owner has sent the change
    that increased it. An entry with the counter 0 had no change when it got the lock. So its owner counts from
    when it sent the last request whose answer shows that it did not hold the lock.

    Args:
        entry: The holder.
        not_held_at: Time before that last request.
        renewed_at: Time before the request that increased the counter.

    """
    return (renewed_at if entry.counter else not_held_at) + VALID_FRACTION * entry.removal_seconds


def observe(seen: Observations, queue: Queue, answered_at: float) -> Observations:
    """Return the observations of a client after one more look at a queue.

    Args:
        seen: Its observations before. It may have made them while it waited for another request, and long ago: a
            counter only increases, so it has had the same value in between.
        queue: The queue.
        answered_at: Monotonic time after the answer.

    """
    observations = {}
    for entry in queue.entries:
        entry_state = queue.state_of(entry)
        seen_state, first_seen_at = seen.get(entry.hold_id, (entry_state, answered_at))
        observations[entry.hold_id] = (entry_state, first_seen_at if seen_state == entry_state else answered_at)
    return observations


def stale_holders(seen: Observations, queue: Queue, entry: Entry, asked_at: float) -> list[Entry]:
    """Return the holders ahead of a waiting entry that it may remove.

    Args:
        seen: The observations of its client, those of this look included.
        queue: The queue.
        entry: The waiting entry.
        asked_at: Monotonic time before the request for the queue.

    """
    ahead = queue.ahead_of(entry)
    holders = [holder for holder in ahead if queue.holds(holder.hold_id) and holder.hold_id in seen]
    return [holder for holder in holders if asked_at - seen[holder.hold_id][1] >= holder.removal_seconds]
