"""Whether the commit guard can refuse this process's commits. Without it, partitions cannot be locked one by one.

Holders of different partitions commit to one log. The guard keeps each of them within its partitions.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from lock_manager.errors import UnguardedError
from lock_manager.partitions import PartitionSchema

SchemaOf = Callable[[str], PartitionSchema]
"""Looks up the partition columns of the table at a location."""

_schema_lookups: list[SchemaOf] = []
"""The lookup of the installed commit guard; empty if no guard refuses commits."""


def declare_guard_installed(schema_of: SchemaOf | None) -> None:
    """Declare whether the commit guard refuses each commit of this process that no hold covers.

    ``schema_of`` looks up the partition columns of a table. None declares that no guard refuses commits.
    """
    _schema_lookups[:] = [] if schema_of is None else [schema_of]


def guard_is_installed() -> bool:
    """Return whether the commit guard refuses each commit of this process that no hold covers."""
    return bool(_schema_lookups)


def schema_of(location: str | os.PathLike[str]) -> PartitionSchema:
    """Return the partition columns of the table at a location.

    Raises:
        UnguardedError: The commit guard is not installed.
        SluiceError: The table does not exist or is not partitioned.

    """
    if not _schema_lookups:
        raise UnguardedError(resource=os.fspath(location))
    return _schema_lookups[0](os.fspath(location))
