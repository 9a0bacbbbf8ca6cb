"""The partitions of a Delta table, as the lock has to know them."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lock_manager.partitions import PartitionColumn, PartitionSchema
from writer_jobs.delta_log import DeltaTableLog
from writer_jobs.errors import TableError

_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_TIME_ZONE = "spark.sql.session.timeZone"


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
