"""Who holds a table or its partitions, and who waits: what an inspector of :mod:`lock_manager.coordinator` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The whole table, among the names of partitions.
WHOLE_TABLE = ""


@dataclass(frozen=True, kw_only=True)
class QueuedNode:
    """One queue in which an entry is: that of the table, or of a partition.

    Attributes:
        partition: whose queue it is, as ``year=2013/month=1``, escaped as Hive does; empty for the whole table.
        path: by which the coordinator finds the entry there; with ZooKeeper the path of the contender's znode.
        shared: whether what the entry is for is shared, be it this or something below.
        on_the_way: whether the entry is there only for something below.
        token: fencing token.

    """

    partition: str
    path: str
    shared: bool
    on_the_way: bool
    token: int


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """What one ``acquire`` holds or waits for in one table.

    Attributes:
        hold_id: of the hold, or of what may become one; unique.
        nodes: where it is in a queue, the table's first.
        waits_for: entries that have to leave before; empty if it holds.
        data: what it says of itself, as far as it does: host, pid, job, app_id, requested_at and (once it holds)
            acquired_at, and of a request for partitions the names of some, partitions, and their partition_count.
        created_at: when it queued up, seconds since the epoch, by the coordinator's clock.

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
        """Fencing token: that of its first node, which all have that it joined at the same time."""
        return self.nodes[0].token

    @property
    def targets(self) -> tuple[QueuedNode, ...]:
        """What it is for: its nodes, without those in which it is only on the way to another of its own."""
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

        By its own word, on its own clock, where it gives one; else when it queued up, by the coordinator's clock. A
        hold says since when it holds after its first second.
        """
        said = self.data.get("acquired_at" if self.holds else "requested_at")
        sane = isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said) and said > 0
        return float(said) if sane else self.created_at  # type: ignore[arg-type]


def _is_below(one: QueuedNode, other: QueuedNode) -> bool:
    if one.partition == other.partition:
        return False
    return other.partition == WHOLE_TABLE or one.partition.startswith(other.partition + "/")


@dataclass(frozen=True, kw_only=True)
class TableLocks:
    """Who holds a table or its partitions, and who waits.

    Attributes:
        uri: canonical URI; None if it is not known. With ZooKeeper, another program may have made the znode.
        key: by which the coordinator keeps it; with ZooKeeper the name of its znode.
        entries: in the order in which they queued up.

    """

    uri: str | None
    key: str
    entries: tuple[QueueEntry, ...] = ()

    @property
    def name(self) -> str:
        """URI, or what there is instead."""
        return self.uri or f"znode {self.key}"

    @property
    def is_internal(self) -> bool:
        """Whether this is a name below a table's log, which maintenance and checkpoints lock, and no table."""
        return "/_delta_log/" in (self.uri or "")

    @property
    def holders(self) -> tuple[QueueEntry, ...]:
        """Those that hold, first come first."""
        return tuple(entry for entry in self.entries if entry.holds)

    @property
    def waiters(self) -> tuple[QueueEntry, ...]:
        """Those that wait, first come first."""
        return tuple(entry for entry in self.entries if not entry.holds)
