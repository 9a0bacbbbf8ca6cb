"""Whose contenders they are: the queues of one table and of its partitions, told as entries.

One ``acquire`` puts one contender into each queue that it has to pass: into the table's, and for partitions a shared
one into the table's and every ancestor's and one into the partition's own. They are made in one transaction, and their
names begin with the same UUID. Such a group is an *entry* here: it holds when none of its contenders has a conflicting
one ahead of it, and else it waits.

Pure: reads no server. :mod:`lock_manager.zookeeper.queue_reader` does.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lock_manager.zookeeper.znodes import Contender, Mode, conflicting_ahead, contender_node, parse_queue

#: The whole table, among the names of partitions.
WHOLE_TABLE = ""


@dataclass(frozen=True)
class Found:
    """A contender's znode, as it was read.

    Attributes:
        data: what it holds.
        token: czxid.
        created_at: seconds since the epoch, by the ensemble's clock.

    """

    data: bytes
    token: int
    created_at: float


@dataclass(frozen=True, kw_only=True)
class QueuedNode:
    """One contender of an entry.

    Attributes:
        partition: whose queue it is in, as ``year=2013/month=1``, escaped as Hive does; empty for the whole table.
        path: of its znode.
        mode: how it asks.
        token: its czxid.

    """

    partition: str
    path: str
    mode: Mode
    token: int

    @property
    def shared(self) -> bool:
        """Whether what it is for is shared, be it this or something below."""
        return self.mode in (Mode.SHARED, Mode.PARTIAL_SHARED)

    @property
    def on_the_way(self) -> bool:
        """Whether it is there only for something below."""
        return self.mode in (Mode.PARTIAL, Mode.PARTIAL_SHARED)


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """What one ``acquire`` holds or waits for in one table.

    Attributes:
        hold_id: with which the names of its contenders begin; a UUID.
        nodes: its contenders, the table's first.
        waits_for: entries that have to leave before; empty if it holds.
        data: what it says of itself: host, pid, job, app_id, requested_at and (once it holds) acquired_at, as far as
            it does.
        created_at: when it queued up, seconds since the epoch, by the ensemble's clock.

    """

    hold_id: str
    nodes: tuple[QueuedNode, ...]
    waits_for: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it holds the lock: nobody is ahead, and it stands in every queue that it asked for.

        A request that waits in one queue has deleted its entries in the later ones. It joins them again at its turn.
        """
        whole = not any(node.on_the_way for node in self.targets) and len(self.targets) >= self._count
        return whole and not self.waits_for

    @property
    def token(self) -> int:
        """Fencing token: the czxid of its first contender, which is that of all if they were made together."""
        return self.nodes[0].token

    @property
    def targets(self) -> tuple[QueuedNode, ...]:
        """What it is for: its contenders but for those that it has only on the way to another of its own."""
        return tuple(node for node in self.nodes if not any(_is_below(other, node) for other in self.nodes))

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions that it is for, as far as they are known; see :attr:`more_partitions`, and :attr:`within`."""
        standing = [node.partition for node in self.targets if not node.on_the_way and node.partition != WHOLE_TABLE]
        return tuple(dict.fromkeys([*standing, *self._told]))

    @property
    def more_partitions(self) -> int:
        """How many it asks for beside those that are known by name, as far as it says."""
        return max(0, self._count - len(self.partitions))

    @property
    def within(self) -> tuple[str, ...]:
        """Where it asks for partitions, if it is not known for which: the innermost queues that it stands in."""
        on_the_way = tuple(node.partition for node in self.targets if node.on_the_way)
        return () if self.partitions else on_the_way

    @property
    def _told(self) -> list[str]:
        told = self.data.get("partitions")
        return [each for each in told if isinstance(each, str)] if isinstance(told, list) else []

    @property
    def _count(self) -> int:
        said = self.data.get("partition_count")
        return said if isinstance(said, int) else 0

    @property
    def shared(self) -> bool:
        """Whether it shares what it is for."""
        return all(node.shared for node in self.targets)

    @property
    def since(self) -> float:
        """Since when it holds or waits, seconds since the epoch.

        By its own word, on its own clock, where it gives one; else when it queued up, by the ensemble's clock. A hold
        says since when it holds after its first second.
        """
        said = self.data.get("acquired_at" if self.holds else "requested_at")
        sane = isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said) and said > 0
        return float(said) if sane else self.created_at  # type: ignore[arg-type]


def _is_below(one: QueuedNode, other: QueuedNode) -> bool:
    if one.partition == other.partition:
        return False
    return other.partition == WHOLE_TABLE or one.partition.startswith(other.partition + "/")


def entries_of(
    queues: Mapping[str, list[str]], found: Mapping[str, Found], node_of: Mapping[str, str]
) -> list[QueueEntry]:
    """Group the contenders of a table's queues into entries, in the order in which they queued up.

    Args:
        queues: names of the children of each queue's znode, by partition (``""`` for the table).
        found: contenders as they were read, by path. An entry of which one is missing came or went meanwhile: it is not
            told, but those that were read are in the way of who is behind them.
        node_of: the queue's znode, by partition.

    """
    names: dict[str, list[tuple[str, Contender, str]]] = defaultdict(list)
    for partition, children in queues.items():
        for contender in parse_queue(children):
            path = contender_node(node_of[partition], contender.name)
            names[contender.hold_id].append((partition, contender, path))
    standing = {entry for entry, places in names.items() if all(path in found for _, _, path in places)}
    ahead: dict[str, set[str]] = defaultdict(set)
    for partition, children in queues.items():
        queue_node = node_of[partition]
        queue = [each for each in parse_queue(children) if contender_node(queue_node, each.name) in found]
        for contender in queue:
            ahead[contender.hold_id].update(each.hold_id for each in conflicting_ahead(queue, contender))
    entries = []
    for hold_id in standing:
        places = sorted(names[hold_id], key=lambda place: (place[0].count("/"), place[0]))
        nodes = tuple(
            QueuedNode(partition=partition, path=path, mode=contender.mode, token=found[path].token)
            for partition, contender, path in places
        )
        data: dict[str, Any] = {}
        for node in nodes:
            data.update(_described(found[node.path].data))
        created_at = min(found[node.path].created_at for node in nodes)
        entries.append(
            QueueEntry(hold_id=hold_id, nodes=nodes, waits_for=tuple(ahead[hold_id]), data=data, created_at=created_at)
        )
    entries.sort(key=lambda entry: (entry.token, entry.hold_id))
    order = [entry.hold_id for entry in entries]
    return [_with_order(entry, order) for entry in entries]


def _with_order(entry: QueueEntry, order: list[str]) -> QueueEntry:
    waits_for = tuple(
        sorted(entry.waits_for, key=lambda each: (order.index(each) if each in order else len(order), each))
    )
    return replace(entry, waits_for=waits_for)


def _described(data: bytes) -> dict[str, Any]:
    """Return what the data of a contender says, also of one that another program made."""
    try:
        said = json.loads(data)
    except ValueError:
        # A program with kazoo's own lock writes whatever it likes.
        return {"identifier": data.decode(errors="replace")} if data else {}
    return said if isinstance(said, dict) else {"identifier": str(said)}
