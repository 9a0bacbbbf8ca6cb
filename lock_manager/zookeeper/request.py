"""The request of one acquire: the queues that it joins, its entries in them, and its result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lock_manager.base_manager import AcquireRequest
from lock_manager.scope import TableScope
from lock_manager.zookeeper.znodes import Contender, Mode, partition_node, table_node

ANY_VERSION = -1
"""Version of a znode for a check that passes as long as the znode exists."""
OFFER = "offer"
"""Key of the offer in a contender's data."""


@dataclass(frozen=True)
class RequestedQueue:
    """A queue that a request joins with a contender of this mode.

    Attributes:
        key: Key of the table or partition, for its fencing token.
        table: Canonical URI of the queue's table.
        description: JSON values that the queue's znode contains for people.

    """

    key: str
    path: str
    mode: Mode
    table: str
    description: Mapping[str, Any]


@dataclass(frozen=True)
class JoinedQueue:
    """A queue that a request has joined with the contender at this path, which may be gone.

    The fencing token is the czxid of the contender, a number that only rises.
    """

    queue: RequestedQueue
    path: str
    contender: Contender
    token: int


@dataclass(frozen=True)
class AcquireResult:
    """The entries of a request that is at the head of each of its queues.

    Attributes:
        hold_id: Prefix of the names of all contenders.
        entries: One entry for each queue, in the order of the request.
        session_id: Id of the session that created the contenders.
        unfinished: Names of the unfinished intents when the lock was acquired, by canonical URI of the table.

    """

    hold_id: str
    entries: tuple[JoinedQueue, ...]
    session_id: int
    unfinished: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Request(AcquireRequest):
    """The request of one acquire.

    Attributes:
        lock_root: Parent znode of the tables.

    """

    lock_root: str

    @cached_property
    def tables(self) -> Mapping[str, str]:
        """Znode of each table's queue, by canonical URI."""
        return {uri: table_node(self.lock_root, scope.table) for uri, scope in self.scope.items()}

    @cached_property
    def queues(self) -> tuple[RequestedQueue, ...]:
        """The queues to join, in the same order for all requests."""
        return tuple(queue for scope in self.scope.values() for queue in _queues_of(scope, self.lock_root))

    def contender_data(self, queue: RequestedQueue, *, acquired_at: float | None = None) -> bytes:
        """Return the data of a contender's znode: the requester, the requested partitions and, if held, since when.

        While it waits, the contender also has the offer.

        Requests for partitions join no partition's queue while they wait for the table. So the table's contender lists
        the partitions. A list in each of 64 contenders would make their transaction too large.
        """
        partitions = self.scope[queue.table].stored_fields() if queue.path == self.tables[queue.table] else {}
        fields: dict[str, Any] = {**self.identity, **partitions}
        if acquired_at is not None:
            fields["acquired_at"] = acquired_at
        elif self.offer is not None:
            fields[OFFER] = self.offer.data
        return json.dumps(fields).encode()


def checking_transaction(client: Any, entries: Iterable[JoinedQueue]) -> Any:
    """Return a new transaction that is executed only if the contender of every entry exists."""
    transaction = client.transaction()
    for entry in entries:
        transaction.check(entry.path, ANY_VERSION)
    return transaction


def _queues_of(scope: TableScope, lock_root: str) -> list[RequestedQueue]:
    """Return the table's queue, then the queues of partitions, each after its ancestors."""
    table = scope.table
    path = table_node(lock_root, table)
    mode = Mode.SHARED if scope.shared else Mode.EXCLUSIVE
    ancestor_mode = Mode.PARTIAL_SHARED if scope.shared else Mode.PARTIAL
    description: dict[str, Any] = {"uri": table.uri}
    if scope.partitions is None:
        return [RequestedQueue(table.key, path, mode, table.uri, description)]
    modes = dict.fromkeys(scope.ancestors, ancestor_mode)
    modes |= dict.fromkeys(scope.partitions, mode)
    queues = [RequestedQueue(table.key, path, ancestor_mode, table.uri, description)]
    for partition in sorted(modes, key=lambda partition: partition.sort_key):
        node = partition_node(path, partition)
        description = {"partition": dict(partition.values)}
        queues.append(RequestedQueue(scope.key_of(partition), node, modes[partition], table.uri, description))
    return queues
