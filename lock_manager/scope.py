"""The scope of a request or a hold on one table: all of it, or some partitions."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lock_manager.guard_registry import schema_of
from lock_manager.partitions import MOST_PARTITIONS, Partition, smallest_cover
from lock_manager.resources import TableResource

log = logging.getLogger(__name__)

_MOST_TOLD = 12
_MOST_TOLD_CHARACTERS = 2000
"""How much of the names of partitions a contender says of itself: it is read by everybody who looks."""


@dataclass(frozen=True)
class TableScope:
    """What is asked for, or held, of one table.

    Attributes:
        table: the table.
        partitions: in the one order, none part of another; None for the whole table.
        shared: together with other shared holders.

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
        """Make the scope; of more than 64 partitions it is the table.

        Args:
            resource: location of the table.
            partitions: of it, or values by column, for which the commit guard looks up how the table is partitioned.
            shared: together with other shared holders.

        Raises:
            ValueError: no partition.
            ResourceError: no usable location, or no such partition.
            UnguardedError: values by column, in a process without the commit guard.

        """
        table = TableResource.of(resource)
        if partitions is None:
            return cls(table, None, shared)
        if not partitions:
            raise ValueError("partitions=[] asks for nothing: leave it out for the whole table")
        made = [each for each in partitions if isinstance(each, Partition)]
        if named := [each for each in partitions if not isinstance(each, Partition)]:
            # Once: the table's log is read for it.
            schema = schema_of(resource.uri if isinstance(resource, TableResource) else resource)
            made += map(schema.partition, named)
        cover = smallest_cover(made)
        if len(cover) > MOST_PARTITIONS:
            log.warning("%d partitions of %s are asked for: locking the whole table", len(cover), table.uri)
            return cls(table, None, shared)
        return cls(table, cover, shared)

    def __str__(self) -> str:
        if self.partitions is None:
            return self.table.uri
        names = ", ".join(str(each) for each in self.partitions[:3])
        more = f" and {len(self.partitions) - 3} more" if len(self.partitions) > 3 else ""  # noqa: PLR2004
        return f"{self.table.uri} [{names}{more}]"

    def told(self) -> dict[str, Any]:
        """Return what a contender says of it, for people: some names of partitions, and how many there are."""
        if self.partitions is None:
            return {}
        names, left = [], _MOST_TOLD_CHARACTERS
        for each in self.partitions[:_MOST_TOLD]:
            left -= len(str(each))
            if left < 0:
                break
            names.append(str(each))
        return {"partitions": names, "partition_count": len(self.partitions)}

    def covers(self, other: TableScope) -> bool:
        """Tell whether this scope includes all of ``other``."""
        if self.table != other.table or (self.shared and not other.shared):
            return False
        return self.partitions is None or (other.partitions is not None and self.contains(other.partitions))

    def contains(self, partitions: Collection[Partition]) -> bool:
        """Tell whether every one of these partitions lies in it."""
        return self.partitions is None or all(any(own.contains(each) for own in self.partitions) for each in partitions)
