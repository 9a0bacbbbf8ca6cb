"""Every path and name that this project gives to a znode, written and parsed here and nowhere else.

::

    <lock root>                           {"format": 1, "ensemble": UUID}
      <sha256 of the table's URI>         {"uri": …}; the queue of the table
        <hold id>__lock__<sequence>       an exclusive contender
        <hold id>__rlock__<sequence>      a shared one
        <hold id>-part__rlock__<sequence> one that writes partitions below
        <hold id>-look__rlock__<sequence> one that reads partitions below
        intents
          <hold id>                       what the hold is about to put
        partitions
          year=2013                       the queue of a partition
            partitions
              month=1                     and so on
      scratch-<unique>                    there for a moment, to try the ensemble

Names of contenders are kazoo's, so that programs with kazoo's ``WriteLock`` and ``ReadLock`` on the same path take part
in the same queue.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from lock_manager.partitions import Partition
from lock_manager.resources import TableResource

_INTENTS = "intents"
PARTITIONS = "partitions"
"""The child of a queue below which there is a queue for each value of the next partition column."""

_EXCLUSIVE_MARK = "__lock__"
_SHARED_MARK = "__rlock__"
_PART_MARK = "-part"
_PART_SHARED_MARK = "-look"
_CONTENDER = re.compile(rf"({_EXCLUSIVE_MARK}|(?:{_PART_MARK}|{_PART_SHARED_MARK})?{_SHARED_MARK})(-?\d+)$")
_ID_DIGITS = 32
_WRAP = 2**32
_TABLE = re.compile(r"[0-9a-f]{64}")
# A column and its value; the znode of a table is a hash.
_PARTITION = re.compile(rf"/{PARTITIONS}/[^/]*=[^/]*$")


def parent_of(node: str) -> str:
    """Return the znode above this one; the empty string if that is the root of the ensemble."""
    return node.rpartition("/")[0]


def scratch_node_in(parent: str, unique: str) -> str:
    """Return the path of a znode with which an ensemble is tried, below ``parent``."""
    return f"{parent.rstrip('/')}/scratch-{unique}"


# -- queues


def table_node(lock_root: str, table: TableResource) -> str:
    """Return the znode of a table: its queue."""
    return table_node_of(lock_root, table.key)


def table_node_of(lock_root: str, key: str) -> str:
    """Return the znode of the table with this key, which is the znode's name."""
    return f"{lock_root}/{key}"


def is_table_name(name: str) -> bool:
    """Tell whether a child of the lock root is, by its name, the znode of a table."""
    return _TABLE.fullmatch(name) is not None


def partition_node(table: str, partition: Partition) -> str:
    """Return the znode of a partition, its queue, below the znode of its table."""
    return functools.reduce(lambda queue, name: partition_in(partitions_node(queue), name), partition.components, table)


def partitions_node(queue: str) -> str:
    """Return the znode below which the queues of a table's, or a partition's, partitions are."""
    return f"{queue}/{PARTITIONS}"


def is_partitions_node(node: str) -> bool:
    """Tell whether a znode is, by its name, one below which queues of partitions are."""
    return node.endswith(f"/{PARTITIONS}")


def partition_in(partitions: str, name: str) -> str:
    """Return the znode of the partition with this name, from the znode of :func:`partitions_node`."""
    return f"{partitions}/{name}"


def is_partition_name(name: str) -> bool:
    """Tell whether a child of :func:`partitions_node` is, by its name, the queue of a partition."""
    return "=" in name


def partition_queues(nodes: Iterable[str]) -> Iterator[str]:
    """Yield those of these queues that are of partitions."""
    return (node for node in nodes if _PARTITION.search(node))


def table_of(queue: str) -> str:
    """Return the znode of the table to which the queue of a partition belongs."""
    while match := _PARTITION.search(queue):
        queue = queue[: match.start()]
    return queue


def below_table(node: str) -> Iterator[str]:
    """Yield the znode of a partition, or of a folder of partitions, and all above it that are below its table."""
    table = table_of(parent_of(node) if is_partitions_node(node) else node)
    while node != table:
        yield node
        node = parent_of(node)


# -- contenders


class Mode(Enum):
    """How a contender asks for a queue; the value is the mark in its name."""

    #: Excludes everybody.
    EXCLUSIVE = _EXCLUSIVE_MARK
    #: Excludes EXCLUSIVE and PARTIAL: its holder reads all of it.
    SHARED = _SHARED_MARK
    #: Excludes EXCLUSIVE and SHARED: its holder writes partitions below it. Databases call it an intention lock (IX).
    #: kazoo takes it for a shared contender.
    PARTIAL = _PART_MARK + _SHARED_MARK
    #: Excludes EXCLUSIVE: its holder reads partitions below it (IS). kazoo takes it for a shared contender.
    PARTIAL_SHARED = _PART_SHARED_MARK + _SHARED_MARK


@dataclass(frozen=True)
class Contender:
    """One entry of a queue, as the name of its znode tells.

    Attributes:
        sequence: number by which the queue is ordered, see :func:`parse_queue`.
        name: of its znode.
        mode: how it asks.

    """

    sequence: int
    name: str
    mode: Mode

    @property
    def shared(self) -> bool:
        """Whether others may hold at the same time."""
        return self.mode is not Mode.EXCLUSIVE

    @property
    def hold_id(self) -> str:
        """Name of the hold that it is, or may become, a part of: what stands before its mark, whoever made it."""
        return self.name.rpartition(self.mode.value)[0]

    def conflicts_with(self, other: Contender) -> bool:
        """Tell whether the two may not hold at the same time."""
        return not (self.shared and other.shared) or {self.mode, other.mode} == {Mode.SHARED, Mode.PARTIAL}


def new_contender(queue: str, hold_id: str, mode: Mode) -> str:
    """Return the path with which a contender is created; ZooKeeper adds its sequence number."""
    return f"{queue}/{hold_id}{mode.value}"


def contender_node(queue: str, name: str) -> str:
    """Return the znode of the contender with this name."""
    return f"{queue}/{name}"


def is_of_hold(name: str, hold_id: str) -> bool:
    """Tell whether a child of a queue is, by its name, a contender of this hold."""
    return name.startswith(hold_id)


def contender_at(path: str) -> Contender:
    """Return the contender whose znode is at this path."""
    (contender,) = parse_queue([path.rpartition("/")[2]])
    return contender


def parse_queue(children: Iterable[str]) -> list[Contender]:
    """Return the contenders among a znode's children, first come first.

    Sequence numbers are a signed 32-bit counter that wraps around: of two, the one that a short way up leads from is
    the earlier, so that a newcomer behind 2147483647 is not taken for the oldest.
    """
    matches = ((name, _CONTENDER.search(name)) for name in children)
    contenders = [Contender(int(match[2]), name, Mode(match[1])) for name, match in matches if match]
    return sorted(contenders, key=functools.cmp_to_key(_steps_after))


def _steps_after(one: Contender, other: Contender) -> int:
    return (one.sequence - other.sequence + _WRAP // 2) % _WRAP - _WRAP // 2


def conflicting_ahead(queue: list[Contender], own: Contender) -> list[Contender]:
    """Return who has to leave before ``own``, which is in ``queue``, may hold; first come first."""
    return [other for other in queue[: queue.index(own)] if other.conflicts_with(own)]


# -- intents


def intents_node(table: str) -> str:
    """Return the znode below which the intents on a table are, from the table's znode."""
    return f"{table}/{_INTENTS}"


def intent_node(intents: str, hold_id: str, renewed: int = 0) -> str:
    """Return the znode of a hold's intent.

    Args:
        intents: see :func:`intents_node`.
        hold_id: of the hold.
        renewed: how often somebody else has cleared an intent of the hold away.

    """
    return intent_at(intents, f"{hold_id}-{renewed}" if renewed else hold_id)


def intent_at(intents: str, name: str) -> str:
    """Return the znode of the intent with this name, from the znode of :func:`intents_node`."""
    return f"{intents}/{name}"


def hold_of_intent(name: str) -> str:
    """Return the id of the hold whose intent has this name."""
    return name[:_ID_DIGITS]
