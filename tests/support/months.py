"""Partitions of a table by year and month, for tests of locks without commits."""

from __future__ import annotations

from lock_manager import Partition, PartitionColumn, PartitionSchema

SCHEMA = PartitionSchema((PartitionColumn("year", "integer"), PartitionColumn("month", "integer")))


def part(year: int, month: int | None = None) -> Partition:
    """Return the partition of a month, or of a year."""
    return SCHEMA.partition({"year": year} if month is None else {"year": year, "month": month})
