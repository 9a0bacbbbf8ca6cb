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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, overload

from lock_manager.queue_entry import QueuedNode, QueueEntry
from lock_manager.zookeeper.request import OFFER
from lock_manager.zookeeper.znodes import Contender, Mode


@dataclass(frozen=True)
class ContenderZnode:
    """Data and czxid of a contender's znode, and its creation, seconds since the epoch by the ensemble's clock."""

    data: bytes
    token: int
    created_at: float


class _Blockers(Sequence[str]):
    """Ids of the entries that must leave first, in the order of the entries.

    The ids are computed when they are read. All entries share one list of ids for each queue and mode, so that the
    memory for a queue is proportional to its number of contenders.

    Args:
        prefixes: Conflicting ids in a queue, in queue order, and the number of those ahead, at least 1.
        positions: Position of each entry. Ids without a position come last.

    """

    def __init__(self, prefixes: Sequence[tuple[Mapping[str, None], int]], positions: Mapping[str, int]) -> None:
        self._prefixes = prefixes
        self._positions = positions

    def _ids(self) -> tuple[str, ...]:
        ids = {hold_id for queue_ids, count in self._prefixes for hold_id in islice(queue_ids, count)}
        return tuple(sorted(ids, key=lambda hold_id: (self._positions.get(hold_id, len(self._positions)), hold_id)))

    def __bool__(self) -> bool:
        return bool(self._prefixes)

    def __len__(self) -> int:
        if len(self._prefixes) == 1:
            return self._prefixes[0][1]
        return len(self._ids())

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self._ids()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids())

    def __eq__(self, value: object) -> bool:
        return tuple(self) == tuple(value) if isinstance(value, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._ids())

    def __repr__(self) -> str:
        return repr(self._ids())


def entries_of(queues: Mapping[str, Mapping[str, Contender]], znodes: Mapping[str, ContenderZnode]) -> list[QueueEntry]:
    """Group the contenders of a table's queues into entries, in queue order.

    Queues are given by partition (``""`` for the table), their contenders by path and in order. An entry with a
    contender that is not in ``znodes`` joined or left while the queues were read. The entry is left out, but its other
    contenders still block the entries behind them.
    """
    contenders: dict[str, list[tuple[str, Contender, str]]] = defaultdict(list)
    prefixes: dict[str, list[tuple[Mapping[str, None], int]]] = defaultdict(list)
    for partition, queue in queues.items():
        conflicting_ids: dict[Mode, dict[str, None]] = {mode: {} for mode in Mode}
        for path, contender in queue.items():
            contenders[contender.hold_id].append((partition, contender, path))
            if path not in znodes:
                continue
            if ids_ahead := conflicting_ids[contender.mode]:
                prefixes[contender.hold_id].append((ids_ahead, len(ids_ahead)))
            for mode, ids in conflicting_ids.items():
                if contender.mode.conflicts_with(mode):
                    ids[contender.hold_id] = None
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
    return [replace(entry, waits_for=_Blockers(prefixes[entry.hold_id], positions)) for entry in entries]


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
