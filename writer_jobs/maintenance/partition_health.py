"""The health of a table's partitions, from the data files in Delta's snapshot and the log's notes of Z-orders."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.table_records.commit_stamp import MAINTENANCE
from writer_jobs.delta.commit_lines import commit_lines, info_field, record_field
from writer_jobs.delta.data_files import data_file_rows
from writer_jobs.delta.snapshot import PHYSICAL_NAME, Snapshot, TableState
from writer_jobs.maintenance.health import SIZE_BOUNDS, FileTotals, PartitionHealth
from writer_jobs.maintenance.policy import Policy

#: Largest difference between the store's clock and the clock of a committing driver, in milliseconds.
MAX_CLOCK_SKEW_MS = 60_000
_NOTE = "columns array<string>, partitions array<map<string, string>>"


def measure_partitions(
    spark: SparkSession, snapshot: Snapshot, state: TableState, policy: Policy, *, is_clustered: bool
) -> tuple[PartitionHealth, ...]:
    """Return the health of each partition that has files. The policy's Z-order must be possible for the table."""
    files = data_file_rows(spark, snapshot).withColumn("values", _partition_text("partitionValues"))
    is_unordered = F.expr("false")
    if policy.zorder_by:
        files = _with_zorder_times(spark, snapshot, policy, files)
        is_unordered = F.col("modificationTime") > F.col("ordered_ms")
    is_unclustered = F.col("clusteringProvider").isNull() if is_clustered else F.expr("false")
    size = F.col("size")
    deleted_count = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
    record_count = F.get_json_object("stats", "$.numRecords").cast("long")
    lower_bounds = [0, *SIZE_BOUNDS]
    class_counts = [
        F.count_if((size >= low) & (size < high) if high else size >= low).alias(f"class{index}")
        for index, (low, high) in enumerate(zip(lower_bounds, [*SIZE_BOUNDS, None], strict=True))
    ]
    grouped = files.groupBy("values").agg(
        *_totals("total", F.expr("true")),
        *_totals("small", size < policy.small_file_size),
        F.count_if(record_count.isNull()).alias("files_without_statistics"),
        F.coalesce(F.sum(record_count - deleted_count), F.lit(0)).alias("rows"),
        F.coalesce(F.sum(record_count), F.lit(0)).alias("stored_rows"),
        F.sum(deleted_count).alias("deleted_rows"),
        *_totals("with_deleted_rows", deleted_count > 0),
        *_totals("unordered", is_unordered),
        *_totals("unclustered", is_unclustered),
        *class_counts,
    )
    logical_names = {
        str((field.metadata or {}).get(PHYSICAL_NAME, field.name)): field.name
        for field in state.schema
        if field.name in state.partition_columns
    }
    return tuple(_partition_health(row, logical_names, state.partition_columns) for row in grouped.collect())


def _partition_health(
    row: Row, logical_names: Mapping[str, str], partition_columns: tuple[str, ...]
) -> PartitionHealth:
    entries = json.loads(row["values"])
    values = {logical_names.get(entry["key"], entry["key"]): entry.get("value") for entry in entries}
    return PartitionHealth(
        values={name: values.get(name) or None for name in partition_columns},
        total=_read_totals(row, "total"),
        small=_read_totals(row, "small"),
        rows=None if row["files_without_statistics"] else row["rows"],
        stored_rows=row["stored_rows"],
        deleted_rows=row["deleted_rows"],
        with_deleted_rows=_read_totals(row, "with_deleted_rows"),
        unordered=_read_totals(row, "unordered"),
        unclustered=_read_totals(row, "unclustered"),
        histogram=tuple(row[f"class{index}"] for index in range(len(SIZE_BOUNDS) + 1)),
    )


def _partition_text(column: str) -> Column:
    """Return a map of partition values as text that is equal for equal partitions."""
    return F.to_json(F.array_sort(F.map_entries(column)))


def _totals(name: str, condition: Column) -> tuple[Column, Column]:
    """Return the number and the total size of the files that satisfy a condition."""
    size = F.sum(F.when(condition, F.col("size")).otherwise(0))
    return F.count_if(condition).alias(f"{name}_files"), F.coalesce(size, F.lit(0)).alias(f"{name}_size")


def _read_totals(row: Row, name: str) -> FileTotals:
    return FileTotals(row[f"{name}_files"], row[f"{name}_size"])


def _with_zorder_times(spark: SparkSession, snapshot: Snapshot, policy: Policy, files: DataFrame) -> DataFrame:
    """Add ``ordered_ms`` to files: the time of the last Z-order of their partition, in ms since the epoch; 0: never.

    ``MAX_CLOCK_SKEW_MS`` is added to the time. Maintenance commits note the partitions that they put in Z-order. If the
    log no longer has such a commit, its partitions count as unordered. The column ``values`` of a file is the text of
    its partition (:func:`_partition_text`).
    """
    times = {row["values"]: row["ordered_ms"] for row in _zorders(spark, snapshot.location, policy).collect()}
    table_ms = times.pop(None, 0)
    partition_times = spark.createDataFrame(list(times.items()), "values string, partition_ms bigint")
    ordered_ms = F.greatest(F.coalesce("partition_ms", F.lit(0)), F.lit(table_ms))
    return files.join(F.broadcast(partition_times), "values", "left").withColumn("ordered_ms", ordered_ms)


def _zorders(spark: SparkSession, location: str, policy: Policy) -> DataFrame:
    """Return the time of the last Z-order by the policy's columns of each partition that a commit notes.

    The columns are ``values``, the text of the partition, or null for the table; and ``ordered_ms``.
    """
    lines = commit_lines(spark, location).where(F.col("line").contains(MAINTENANCE))
    notes = lines.select(
        F.from_json(record_field(MAINTENANCE), _NOTE).alias("note"),
        (info_field("timestamp").cast("long") + MAX_CLOCK_SKEW_MS).alias("ordered_ms"),
    ).where(F.col("note.columns") == F.array(*map(F.lit, policy.zorder_by)))
    # Notes may list the values of one partition in different orders; their texts are equal.
    partitions = notes.select(F.explode_outer("note.partitions").alias("partition"), "ordered_ms")
    times = partitions.select(_partition_text("partition").alias("values"), "ordered_ms")
    return times.groupBy("values").agg(F.max("ordered_ms").alias("ordered_ms"))
