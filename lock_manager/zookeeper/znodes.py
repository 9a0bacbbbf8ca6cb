"""Build and parse every path and name of a znode; no other module does.

::

    <lock root>                           {"format": 1, "ensemble": UUID}
      <sha256 of the table's URI>         {"uri": …}; the queue of the table
        <hold id>__lock__<sequence>       an exclusive contender
        <hold id>__rlock__<sequence>      a shared contender
        <hold id>-part__rlock__<sequence> a contender that writes partitions below
        <hold id>-look__rlock__<sequence> a contender that reads partitions below
        intents
          <hold id>[-<number>]            the intent of the hold
        partitions
          year=2013                       the queue of a partition
            partitions
              month=1                     and so on
      scratch-<unique>                    a short-lived znode that tests the ensemble

Contenders are named as kazoo names them. So programs that use kazoo's ``WriteLock`` and ``ReadLock`` on the same path
take part in the same queue.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from lock_manager.partitions import Partition
from lock_manager.resources import TableResource

_INTENTS = "intents"
PARTITIONS = "partitions"
"""The child of a queue that contains one queue for each value of the next partition column."""

_EXCLUSIVE_MARK = "__lock__"
_SHARED_MARK = "__rlock__"
_PART_MARK = "-part"
_PART_SHARED_MARK = "-look"
_CONTENDER = re.compile(rf"({_EXCLUSIVE_MARK}|(?:{_PART_MARK}|{_PART_SHARED_MARK})?{_SHARED_MARK})(-?\d+)$")
_ID_DIGITS = 32
_WRAP = 2**32
_TABLE = re.compile(r"[0-9a-f]{64}")
# The "=" between column and value distinguishes a partition's queue from a table's, whose name is a hash.
_PARTITION = re.compile(rf"/{PARTITIONS}/[^/]*=[^/]*$")


def parent_of(node: str) -> str:
    """Return the znode above this one; the empty string for a child of the ensemble's root."""
    return node.rpartition("/")[0]


def child_node(parent: str, name: str) -> str:
    """Return the child with this name: a table (by its key), a contender of a queue, a partition's queue, an intent."""
    return f"{parent}/{name}"


def scratch_node_in(parent: str, unique_name: str) -> str:
    """Return the path of a scratch znode below ``parent``."""
    return f"{parent.rstrip('/')}/scratch-{unique_name}"


# -- queues


def table_node(lock_root: str, table: TableResource) -> str:
    """Return the znode of a table, which is its queue."""
    return child_node(lock_root, table.key)


def is_table_name(name: str) -> bool:
    """Return whether a child of the lock root has the name of a table's znode."""
    return _TABLE.fullmatch(name) is not None


def table_uri(data: bytes) -> str | None:
    """Return the URI in the data of a table's znode; None if another program created the znode."""
    try:
        return str(json.loads(data)["uri"])
    except (ValueError, KeyError, TypeError):
        return None


def partition_node(table: str, partition: Partition) -> str:
    """Return the znode of a partition, which is its queue, below the znode of its table."""
    return functools.reduce(lambda queue, name: child_node(partitions_node(queue), name), partition.components, table)


def partitions_node(queue: str) -> str:
    """Return the folder znode of the partitions' queues below the queue of a table or partition."""
    return f"{queue}/{PARTITIONS}"


def is_partitions_node(node: str) -> bool:
    """Return whether a znode has the name of a folder of partitions' queues."""
    return node.endswith(f"/{PARTITIONS}")


def is_partition_name(name: str) -> bool:
    """Return whether a child of :func:`partitions_node` has the name of a partition's queue."""
    return "=" in name


def partition_queues(nodes: Iterable[str]) -> Iterator[str]:
    """Yield the queues of partitions among these queues."""
    return (node for node in nodes if _PARTITION.search(node))


def table_of(queue: str) -> str:
    """Return the znode of the table to which the queue of a partition belongs."""
    while match := _PARTITION.search(queue):
        queue = queue[: match.start()]
    return queue


def nodes_below_table(node: str) -> Iterator[str]:
    """Yield a partition's znode or folder znode, then each ancestor below the table's znode."""
    table = table_of(parent_of(node) if is_partitions_node(node) else node)
    while node != table:
        yield node
        node = parent_of(node)


# -- contenders


class Mode(Enum):
    """How a contender locks a queue; the value is the mark in its name."""

    #: Excludes every mode.
    EXCLUSIVE = _EXCLUSIVE_MARK
    #: Excludes EXCLUSIVE and PARTIAL: its holder reads the whole table or partition.
    SHARED = _SHARED_MARK
    #: Excludes EXCLUSIVE and SHARED: its holder writes partitions below. Databases call it an intention lock (IX).
    #: kazoo treats it as a shared contender.
    PARTIAL = _PART_MARK + _SHARED_MARK
    #: Excludes EXCLUSIVE: its holder reads partitions below (IS). kazoo treats it as a shared contender.
    PARTIAL_SHARED = _PART_SHARED_MARK + _SHARED_MARK

    def conflicts_with(self, mode: Mode) -> bool:
        """Return whether contenders of the two modes cannot hold at the same time."""
        modes = {self, mode}
        return Mode.EXCLUSIVE in modes or modes == {Mode.SHARED, Mode.PARTIAL}


@dataclass(frozen=True)
class Contender:
    """One contender, as parsed from the name of its znode. The sequence orders the queue, see :func:`parse_queue`."""

    sequence: int
    name: str
    mode: Mode

    @property
    def hold_id(self) -> str:
        """Id of the hold or request; for another program's contender, the part of its name before the mark."""
        return self.name.rpartition(self.mode.value)[0]

    def conflicts_with(self, contender: Contender) -> bool:
        """Return whether the two contenders cannot hold at the same time."""
        return self.mode.conflicts_with(contender.mode)


def new_contender_path(queue: str, hold_id: str, mode: Mode) -> str:
    """Return the path for the creation of a contender; ZooKeeper appends the sequence number."""
    return f"{queue}/{hold_id}{mode.value}"


def is_contender_of(name: str, hold_id: str) -> bool:
    """Return whether a child of a queue has the name of a contender of this hold."""
    return name.startswith(hold_id)


def contender_at(path: str) -> Contender:
    """Return the contender whose znode has this path."""
    (contender,) = parse_queue([path.rpartition("/")[2]])
    return contender


def parse_queue(children: Iterable[str]) -> list[Contender]:
    """Return the contenders among a znode's children, in queue order.

    Sequence numbers are a signed 32-bit counter that wraps around. Of two contenders, the earlier one is the one that
    reaches the other's number in fewer than 2**31 increments. So a contender created after 2147483647 is not the
    oldest.
    """
    matches = ((name, _CONTENDER.search(name)) for name in children)
    contenders = [Contender(int(match[2]), name, Mode(match[1])) for name, match in matches if match]
    return sorted(contenders, key=functools.cmp_to_key(_compare_sequences))


def _compare_sequences(first: Contender, second: Contender) -> int:
    return (first.sequence - second.sequence + _WRAP // 2) % _WRAP - _WRAP // 2


def conflicting_predecessors(queue: list[Contender], contender: Contender) -> list[Contender]:
    """Return the conflicting contenders ahead of ``contender``, which is in ``queue``, in queue order.

    All of them must leave before ``contender`` holds the queue.
    """
    return [predecessor for predecessor in queue[: queue.index(contender)] if predecessor.conflicts_with(contender)]


# -- intents


def intents_node(table: str) -> str:
    """Return the parent znode of the intents on a table."""
    return f"{table}/{_INTENTS}"


def intent_node(intents: str, hold_id: str, cleared_count: int = 0) -> str:
    """Return the znode of a hold's intent; other clients have cleared ``cleared_count`` of its earlier intents."""
    return child_node(intents, f"{hold_id}-{cleared_count}" if cleared_count else hold_id)


def hold_of_intent(name: str) -> str:
    """Return the id of the hold whose intent has this name."""
    return name[:_ID_DIGITS]
