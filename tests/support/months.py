"""Partitions of a table by year and month, for tests of locks to which nothing is committed."""

from __future__ import annotations

from lock_manager import Partition, PartitionColumn, PartitionSchema

SCHEMA = PartitionSchema((PartitionColumn("year", "integer"), PartitionColumn("month", "integer")))


def part(year: int, month: int | None = None) -> Partition:
    """Return a month, or a whole year."""
    return SCHEMA.partition({"year": year} if month is None else {"year": year, "month": month})
