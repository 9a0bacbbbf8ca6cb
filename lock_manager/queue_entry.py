"""Holders and waiters of a table and its partitions, as :class:`lock_manager.coordinator.Inspector` returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lock_manager.times import time_of

#: Name of the whole table among the names of partitions.
WHOLE_TABLE = ""


@dataclass(frozen=True, kw_only=True)
class QueuedNode:
    """The place of an entry in one queue, that of the table or of a partition.

    Attributes:
        partition: Partition of the queue, such as ``year=2013/month=1``, escaped as in Hive; empty for the whole table.
        path: Coordinator's key of the place; with ZooKeeper the path of the contender's znode.
        shared: Whether the request is shared, for this partition or for one below.
        is_ancestor: Whether the request is for a partition below, and not for this one.
        token: Fencing token of the contender.

    """

    partition: str
    path: str
    shared: bool
    is_ancestor: bool
    token: int


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """The hold or request of one ``acquire`` on one table.

    Attributes:
        hold_id: Unique id of the hold, or of the request that may become one.
        nodes: Places in queues, the table's first.
        waits_for: Ids of the entries that must leave first; empty if the lock is held.
        data: Fields that the contender stores, each optional: host, pid, job, app_id and requested_at; acquired_at once
            the lock is held; for partitions, some of their names (partitions) and their number (partition_count).
        created_at: When it joined the queue, seconds since the epoch, by the coordinator's clock.

    """

    hold_id: str
    nodes: tuple[QueuedNode, ...]
    waits_for: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it holds the lock: no entry is ahead, and it has a place in every queue that it requested.

        A request that waits in one queue has left the later queues. It joins them again at its turn.
        """
        is_complete = not any(node.is_ancestor for node in self.targets) and len(self.targets) >= self._stored_count
        return is_complete and not self.waits_for

    @property
    def token(self) -> int:
        """Fencing token of the first node. Nodes that were created in one transaction have the same token."""
        return self.nodes[0].token

    @property
    def targets(self) -> tuple[QueuedNode, ...]:
        """The innermost nodes: those of the requested table or partitions, unless :attr:`QueuedNode.is_ancestor`."""
        return tuple(node for node in self.nodes if not any(_is_below(inner, node) for inner in self.nodes))

    @property
    def partitions(self) -> tuple[str, ...]:
        """Requested partitions, as far as they are known; see :attr:`more_partitions` and :attr:`within`."""
        joined = [node.partition for node in self.targets if not node.is_ancestor and node.partition != WHOLE_TABLE]
        return tuple(dict.fromkeys([*joined, *self._stored_names]))

    @property
    def more_partitions(self) -> int:
        """Number of requested partitions whose names are not known."""
        return max(0, self._stored_count - len(self.partitions))

    @property
    def within(self) -> tuple[str, ...]:
        """The innermost queues of a request for partitions whose names are not known; else empty."""
        return () if self.partitions else tuple(node.partition for node in self.targets if node.is_ancestor)

    @property
    def _stored_names(self) -> list[str]:
        names = self.data.get("partitions")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    @property
    def _stored_count(self) -> int:
        count = self.data.get("partition_count")
        return count if isinstance(count, int) else 0

    @property
    def shared(self) -> bool:
        """Whether the lock is shared."""
        return all(node.shared for node in self.targets)

    @property
    def since(self) -> float:
        """Time since which it holds or waits, seconds since the epoch.

        This is the time that the contender stores, by the clock of its machine; :attr:`created_at` if it stores none. A
        hold stores its time after its first second.
        """
        return time_of(self.data.get("acquired_at" if self.holds else "requested_at")) or self.created_at


def _is_below(inner: QueuedNode, outer: QueuedNode) -> bool:
    if outer.partition == WHOLE_TABLE:
        return inner.partition != WHOLE_TABLE
    return inner.partition.startswith(f"{outer.partition}/")


def is_internal(uri: str) -> bool:
    """Return whether this is a name below a table's log, which maintenance or checkpoints lock, and not a table."""
    return "/_delta_log/" in uri


@dataclass(frozen=True, kw_only=True)
class TableLocks:
    """The queue entries of one table and its partitions.

    Attributes:
        uri: Canonical URI; None if it is not known: with ZooKeeper, another program may have created the znode.
        key: Coordinator's key of the table; with ZooKeeper the name of its znode.
        entries: Entries in the order in which they joined.

    """

    uri: str | None
    key: str
    entries: tuple[QueueEntry, ...] = ()

    @property
    def name(self) -> str:
        """The URI, or the znode if the URI is not known."""
        return self.uri or f"znode {self.key}"

    @property
    def is_internal(self) -> bool:
        """Whether this is a name below a table's log, which maintenance or checkpoints lock, and not a table."""
        return is_internal(self.uri or "")

    @property
    def holders(self) -> tuple[QueueEntry, ...]:
        """The entries that hold the lock, in order."""
        return tuple(entry for entry in self.entries if entry.holds)

    @property
    def waiters(self) -> tuple[QueueEntry, ...]:
        """The entries that wait, in order."""
        return tuple(entry for entry in self.entries if not entry.holds)
