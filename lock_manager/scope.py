"""The scope of a request or a hold on one table: all of it, or some partitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lock_manager.guard_registry import schema_of
from lock_manager.partitions import MAX_PARTITIONS, Partition, format_partitions, smallest_cover
from lock_manager.resources import TableResource

log = logging.getLogger(__name__)

# Limits of the partition names that a contender stores: every inspection of the queue reads them.
_MAX_STORED_NAMES = 12
_MAX_STORED_CHARACTERS = 2000


@dataclass(frozen=True)
class TableScope:
    """The part of one table that is requested or held.

    Attributes:
        table: The table.
        partitions: Partitions in lock order, none of which contains another; None for the whole table.
        shared: Whether other shared holders may hold at the same time.

    """

    table: TableResource
    partitions: tuple[Partition, ...] | None = None
    shared: bool = False

    @classmethod
    def of(
        cls,
        resource: str | os.PathLike[str] | TableResource,
        partitions: Collection[Partition | Mapping[str, object]] | None = None,
        *,
        shared: bool = False,
    ) -> TableScope:
        """Return the scope of a table, or of some of its partitions; of the whole table for more than 64 partitions.

        Args:
            resource: Location of the table.
            partitions: Partitions of the table, or values by column; None for the whole table. For values by column,
                the commit guard looks up the partition columns of the table.
            shared: Whether other shared holders may hold at the same time.

        Raises:
            ValueError: ``partitions`` is empty.
            ResourceError: The location is not usable, or a partition does not fit the table.
            UnguardedError, SluiceError: The lookup of the columns fails; see :func:`.guard_registry.schema_of`.

        """
        table = TableResource.of(resource)
        if partitions is None:
            return cls(table, None, shared)
        if not partitions:
            raise ValueError("partitions=[] names no partition: leave the argument out to lock the whole table")
        scope_partitions = [partition for partition in partitions if isinstance(partition, Partition)]
        if column_values := [values for values in partitions if not isinstance(values, Partition)]:
            # One call for all values, because it reads the table's log.
            schema = schema_of(resource.uri if isinstance(resource, TableResource) else resource)
            scope_partitions += map(schema.partition, column_values)
        cover = smallest_cover(scope_partitions)
        if len(cover) > MAX_PARTITIONS:
            log.warning("%d partitions of %s are requested: locking the whole table", len(cover), table.uri)
            return cls(table, None, shared)
        return cls(table, cover, shared)

    def __str__(self) -> str:
        if self.partitions is None:
            return self.table.uri
        return f"{self.table.uri} [{format_partitions(self.partitions, 3)}]"

    @property
    def ancestors(self) -> tuple[Partition, ...]:
        """The partitions that contain the requested ones."""
        ancestors = (ancestor for partition in self.partitions or () for ancestor in partition.ancestors())
        return tuple(dict.fromkeys(ancestors))

    def key_of(self, partition: Partition) -> str:
        """Return the key of a partition of the table. Fencing tokens are stored by key."""
        return f"{self.table.key}/{partition}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the table or the partitions that are requested."""
        return (self.table.key,) if self.partitions is None else tuple(map(self.key_of, self.partitions))

    @property
    def ancestor_keys(self) -> tuple[str, ...]:
        """Keys of the table and the partitions that contain the requested partitions; none for the whole table."""
        return () if self.partitions is None else (self.table.key, *map(self.key_of, self.ancestors))

    def stored_fields(self) -> dict[str, Any]:
        """Return the fields that a contender stores for people: the number of partitions and some of their names."""
        if self.partitions is None:
            return {}
        names, free_characters = [], _MAX_STORED_CHARACTERS
        for partition in self.partitions[:_MAX_STORED_NAMES]:
            free_characters -= len(str(partition))
            if free_characters < 0:
                break
            names.append(str(partition))
        return {"partitions": names, "partition_count": len(self.partitions)}

    def covers(self, other: TableScope) -> bool:
        """Return whether this scope includes all of ``other``; a shared scope never includes an exclusive one."""
        if self.table != other.table or (self.shared and not other.shared):
            return False
        return self.partitions is None or (other.partitions is not None and self.contains(other.partitions))

    def contains(self, partitions: Collection[Partition]) -> bool:
        """Return whether all of these partitions lie in this scope."""
        return self.partitions is None or all(
            any(locked.contains(partition) for locked in self.partitions) for partition in partitions
        )
