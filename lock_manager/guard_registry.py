"""Whether this process's commits pass the commit guard: without it partitions cannot be locked one by one.

Two holders of different partitions commit to one log. What keeps each of them inside its partitions is the guard.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from lock_manager.errors import UnguardedError
from lock_manager.partitions import PartitionSchema

SchemaOf = Callable[[str], PartitionSchema]
"""Looks up the partition columns of the table at a location."""

_installed: list[SchemaOf] = []


def declare_installed(schema_of: SchemaOf | None) -> None:
    """Say that every commit of this process passes the commit guard, so that partitions can be locked.

    Args:
        schema_of: looks up how a table is partitioned; None: commits do not pass it, or do so no more.

    """
    _installed[:] = [] if schema_of is None else [schema_of]


def guard_is_installed() -> bool:
    """Tell whether every commit of this process passes the commit guard."""
    return bool(_installed)


def schema_of(location: str | os.PathLike[str]) -> PartitionSchema:
    """Return the partition columns of the table at a location.

    Raises:
        UnguardedError: there is no guard, which would know.
        SluiceError: there is no such table, or it is not partitioned.

    """
    if not _installed:
        raise UnguardedError(resource=os.fspath(location))
    return _installed[0](os.fspath(location))
