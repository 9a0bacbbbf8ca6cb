"""What an acquire asks ZooKeeper for, and what it returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lock_manager.coordinator import Cancellation
from lock_manager.scope import TableScope
from lock_manager.zookeeper.znodes import Contender, Mode, partition_node, table_node


@dataclass(frozen=True)
class Node:
    """A queue that a request stands in.

    Attributes:
        key: of what is locked there; for its fencing token.
        path: of the znode.
        mode: how it is asked for.
        table: canonical URI of the table to which it belongs.
        about: what the znode says of itself, for people; JSON values.

    """

    key: str
    path: str
    mode: Mode
    table: str
    about: Mapping[str, Any]


@dataclass(frozen=True)
class OwnEntry:
    """Our entry in one queue: a contender of ours that exists, or existed.

    Attributes:
        node: of the queue.
        path: of its znode.
        contender: what its name says, its order in the queue included.
        token: its czxid, a number that only rises: the fencing token.

    """

    node: Node
    path: str
    contender: Contender
    token: int


@dataclass(frozen=True)
class Acquired:
    """What an acquire returns: an entry at the head of each queue.

    Attributes:
        hold_id: with which the names of all contenders begin.
        entries: one for each node, in the order of the request.
        session_id: of the session that they live with.
        unfinished: by table, names of the unfinished intents that were found at the end.

    """

    hold_id: str
    entries: tuple[OwnEntry, ...]
    session_id: int
    unfinished: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        resource: what it is, for messages.
        tables: znode of each table's queue, by canonical URI.
        nodes: queues to stand in, in the one order in which everybody asks.
        identity: who asks, for people: host, pid, job and so on. JSON values.
        wanted: what is asked for of each table, for people, likewise; by canonical URI. Who waits behind a table stands
            in no queue that would tell.
        cancellation: to stop waiting; see :meth:`Acquisition.cancel`.

    """

    resource: str
    tables: Mapping[str, str]
    nodes: tuple[Node, ...]
    identity: Mapping[str, Any]
    cancellation: Cancellation
    wanted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def data(self, node: Node, **since: float) -> bytes:
        """Return what a contender's znode holds: who it is, what for and, once it holds, ``acquired_at``."""
        # Once is enough: with it in each of 64 contenders their transaction would become large.
        wanted = self.wanted.get(node.table, {}) if node.path == self.tables[node.table] else {}
        return json.dumps({**self.identity, **wanted, **since}).encode()


def queues_of(scope: TableScope, lock_root: str) -> list[Node]:
    """Return the queues to stand in: the table's, then those of partitions, each after what it is a part of."""
    table = scope.table
    path = table_node(lock_root, table)
    own = Mode.SHARED if scope.shared else Mode.EXCLUSIVE
    above = Mode.PARTIAL_SHARED if scope.shared else Mode.PARTIAL
    if scope.partitions is None:
        return [Node(table.key, path, own, table.uri, {"uri": table.uri})]
    modes = {ancestor: above for each in scope.partitions for ancestor in each.ancestors()}
    modes |= dict.fromkeys(scope.partitions, own)
    found = [Node(table.key, path, above, table.uri, {"uri": table.uri})]
    for each in sorted(modes, key=lambda partition: partition.sort_key):
        about = {"partition": dict(each.values)}
        found.append(Node(f"{table.key}/{each}", partition_node(path, each), modes[each], table.uri, about))
    return found
