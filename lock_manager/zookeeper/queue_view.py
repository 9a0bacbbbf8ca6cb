"""Group the contenders of one table's queues into entries: one entry for each ``acquire``.

An ``acquire`` needs one contender in each queue that it must pass. For a table, that is the table's queue. For a
partition, it is a ``PARTIAL`` or ``PARTIAL_SHARED`` contender in the queue of the table and of every ancestor, and one
in the partition's own queue. Their names begin with the same UUID. An entry holds the lock when it has all of its
contenders, and no conflicting contender is ahead of any of them. Otherwise it waits.

This module sends no requests. :mod:`lock_manager.zookeeper.queue_reader` reads the queues.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lock_manager.queue_entry import QueuedNode, QueueEntry
from lock_manager.zookeeper.request import OFFER
from lock_manager.zookeeper.znodes import Contender, Mode, conflicting_predecessors


@dataclass(frozen=True)
class ContenderZnode:
    """Data and czxid of a contender's znode, and its creation, seconds since the epoch by the ensemble's clock."""

    data: bytes
    token: int
    created_at: float


def entries_of(queues: Mapping[str, Mapping[str, Contender]], znodes: Mapping[str, ContenderZnode]) -> list[QueueEntry]:
    """Group the contenders of a table's queues into entries, in queue order.

    Queues are given by partition (``""`` for the table), their contenders by path and in order. An entry with a
    contender that is not in ``znodes`` joined or left while the queues were read. The entry is left out, but its other
    contenders still block the entries behind them.
    """
    contenders: dict[str, list[tuple[str, Contender, str]]] = defaultdict(list)
    blockers: dict[str, set[str]] = defaultdict(set)
    for partition, queue in queues.items():
        for path, contender in queue.items():
            contenders[contender.hold_id].append((partition, contender, path))
        existing = [contender for path, contender in queue.items() if path in znodes]
        for contender in existing:
            predecessors = conflicting_predecessors(existing, contender)
            blockers[contender.hold_id].update(predecessor.hold_id for predecessor in predecessors)
    entries = []
    for hold_id, places in contenders.items():
        if not all(path in znodes for _, _, path in places):
            continue
        nodes = tuple(
            QueuedNode(
                partition=partition,
                path=path,
                shared=contender.mode in (Mode.SHARED, Mode.PARTIAL_SHARED),
                is_ancestor=contender.mode in (Mode.PARTIAL, Mode.PARTIAL_SHARED),
                token=znodes[path].token,
            )
            for partition, contender, path in sorted(places, key=lambda place: (place[0].count("/"), place[0]))
        )
        data: dict[str, Any] = {}
        for node in nodes:
            data.update(_parse_data(znodes[node.path].data))
        created_at = min(znodes[node.path].created_at for node in nodes)
        entries.append(QueueEntry(hold_id=hold_id, nodes=nodes, data=data, created_at=created_at))
    entries.sort(key=lambda entry: (entry.token, entry.hold_id))
    positions = {entry.hold_id: position for position, entry in enumerate(entries)}

    def position(hold_id: str) -> tuple[int, str]:
        # Blockers that were left out come last.
        return positions.get(hold_id, len(positions)), hold_id

    return [replace(entry, waits_for=tuple(sorted(blockers[entry.hold_id], key=position))) for entry in entries]


def _parse_data(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a contender's data. Other data, of other programs, becomes the ``identifier``."""
    try:
        content = json.loads(data)
    except ValueError:
        # Programs with kazoo's own lock write any text.
        return {"identifier": data.decode(errors="replace")} if data else {}
    if not isinstance(content, dict):
        return {"identifier": str(content)}
    # Offers are large, and only for holders.
    return {name: value for name, value in content.items() if name != OFFER}
