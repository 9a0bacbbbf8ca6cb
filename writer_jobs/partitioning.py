"""The partitions of a Delta table, as the lock has to know them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from lock_manager import HeldLock, PartitionColumn, PartitionSchema, TableResource, TableScope
from lock_manager.guard import GuardedHold
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.delta_log import DeltaTableLog
from writer_jobs.errors import TableError
from writer_jobs.guarded import guarded

_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_TIME_ZONE = "spark.sql.session.timeZone"

Lock = Literal["table", "partitions"] | Collection[Mapping[str, object]]
"""What a write locks: all of the table, the partitions that its rows are in, or these."""


def partition_schema(spark: SparkSession, log: DeltaTableLog) -> PartitionSchema:
    """Return the partition columns of a table's newest version.

    Raises:
        TableError: there is no table, or it is not partitioned.
        ResourceError: a column's type is one whose values Delta does not write exactly.

    """
    state = log.state()
    if state is None:
        raise TableError(f"there is no Delta table at {log.location}: its first version needs the lock on the table")
    if not state.partition_columns:
        raise TableError(f"{log.location} is not partitioned: lock the table")
    columns = []
    for name in state.partition_columns:
        field = state.schema[name]
        physical = (field.metadata or {}).get(_PHYSICAL_NAME, name)
        columns.append(PartitionColumn(name, str(field.dataType.jsonValue()), str(physical)))
    return PartitionSchema(tuple(columns), str(spark.conf.get(_TIME_ZONE)))


@dataclass(frozen=True)
class Part:
    """What is to be locked of a table.

    Attributes:
        log: of the table.
        scope: what to ask for.
        schema: of its partitions, if it is some of them.

    """

    log: DeltaTableLog
    scope: TableScope
    schema: PartitionSchema | None = None

    @classmethod
    def of(cls, spark: SparkSession, log: DeltaTableLog, partitions: Collection[Mapping[str, object]] | None) -> Part:
        """Make it of partitions by column, or of the whole table.

        Raises:
            TableError, ResourceError: the table has no such partitions.

        """
        table = TableResource.of(log.location)
        if partitions is None:
            return cls(log, TableScope.of(table))
        schema = partition_schema(spark, log)
        return cls(log, TableScope.of(table, [schema.partition(values) for values in partitions]), schema)

    @contextmanager
    def guarded(self, spark: SparkSession, hold: HeldLock, about: Mapping[str, Any]) -> Iterator[GuardedHold | None]:
        """Bind this thread's commits to the hold, as :func:`writer_jobs.guarded.guarded`.

        Raises:
            TableError: the table was partitioned anew while the lock was waited for.

        """
        if self.schema is not None and partition_schema(spark, self.log) != self.schema:
            raise TableError(f"{self.log.location} was partitioned anew while its lock was waited for: try again")
        with guarded(spark, hold, self.log, about, schema=self.schema) as bound:
            yield bound


def part_of(spark: SparkSession, log: DeltaTableLog, df: DataFrame, lock: Lock) -> Part:
    """Return what to lock for writing these rows.

    Raises:
        TableError, ResourceError: there are no such partitions.
        ValueError: ``lock`` is another word.

    """
    if not isinstance(lock, str):
        return Part.of(spark, log, lock)
    if lock not in ("table", "partitions"):
        raise ValueError(f"lock={lock!r}: choose 'table', 'partitions', or a list of partitions")
    state = log.state() if lock == "partitions" else None
    if state is None or not state.partition_columns:
        return Part.of(spark, log, None)
    # As Delta will write them: cast to the column's type, moments in the session's time zone.
    columns = [
        col(f"`{name}`").cast(state.schema[name].dataType).cast("string").alias(name)
        for name in state.partition_columns
    ]
    rows = df.select(*columns).distinct().limit(MOST_PARTITIONS + 1).collect()
    if not rows or len(rows) > MOST_PARTITIONS:
        return Part.of(spark, log, None)
    return Part.of(spark, log, [row.asDict() for row in rows])
