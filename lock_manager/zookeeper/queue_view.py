"""Whose contenders they are: the queues of one table and of its partitions, told as entries.

One ``acquire`` puts one contender into each queue that it has to pass: into the table's, and for partitions a shared
one into the table's and every ancestor's and one into the partition's own. They are made in one transaction, and their
names begin with the same UUID. Such a group is an *entry* here: it holds when none of its contenders has a conflicting
one ahead of it, and else it waits.

Pure: reads no server. :mod:`lock_manager.zookeeper.queue_reader` does.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lock_manager.queue_entry import QueuedNode, QueueEntry
from lock_manager.zookeeper.znodes import Contender, Mode, conflicting_ahead, contender_node, parse_queue


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
            QueuedNode(
                partition=partition,
                path=path,
                shared=contender.mode in (Mode.SHARED, Mode.PARTIAL_SHARED),
                on_the_way=contender.mode in (Mode.PARTIAL, Mode.PARTIAL_SHARED),
                token=found[path].token,
            )
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
