"""The measurement of a table's health, without a lock: from Delta's snapshot, the log and a listing of its files."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError, TableError
from writer_jobs.maintenance.file_states import FileState, classify_files, totals_by_state
from writer_jobs.maintenance.health import FileTotals, FolderHealth, TableHealth, sum_totals
from writer_jobs.maintenance.log_health import LogMeasurement
from writer_jobs.maintenance.partition_health import measure_partitions
from writer_jobs.maintenance.pins_and_streams import KeepReason, PinsAndStreams, log_retention_seconds
from writer_jobs.maintenance.policy import Policy
from writer_jobs.maintenance.side_rows import SideTableRetention
from writer_jobs.pins.retention import seconds_without_pins

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measurement:
    """The health of a table, its policy, and its state (schema and partitioning) in the measured version."""

    health: TableHealth
    policy: Policy
    state: TableState


def measure(spark: SparkSession, table: str) -> Measurement:
    """Measure the health of a table (location or name in the catalog), without a lock.

    Raises:
        TableError: There is no Delta table, or a property of its policy is invalid.
        StorageError: The table cannot be read.

    """
    log = DeltaTableLog(spark, locate_table(spark, table))
    try:
        return _measure_once(spark, log)
    except StorageError as error:
        # The checkpoint of a writer may have cleaned up the log meanwhile.
        _log.info("%s is measured again: %s", table, error)
        return _measure_once(spark, log)


def _measure_once(spark: SparkSession, log: DeltaTableLog) -> Measurement:
    start = time.monotonic()
    uri = canonical_table_uri(log.location)
    snapshot = log.snapshot()
    if (state := snapshot.state) is None:
        raise TableError(f"there is no Delta table at {log.location}")
    policy = Policy.of(snapshot.properties, uri)
    try:
        clustering_columns = snapshot.clustering_columns
        if (order_problem := _zorder_problem(policy.zorder_by, state, clustering_columns)) is not None:
            policy = replace(policy, zorder_by=())
        pins_and_streams, log_retention, problem = _find_pins_and_streams(spark, snapshot, policy)
        logged_files = LoggedFiles(spark, snapshot.location)
        log_measurement = LogMeasurement(snapshot, logged_files, log.pointed_checkpoint(), log_retention)
        partitions = measure_partitions(spark, snapshot, state, policy, is_clustered=bool(clustering_columns))
        folder = replace(_measure_folder(spark, snapshot, pins_and_streams, logged_files), problem=problem)
        growth_per_day, commits_per_day = log_measurement.daily_rates(log)
        remembered_rows, expired_rows = _count_side_rows(spark, snapshot.location, SideTableRetention.of(state, policy))
    except SPARK_ERRORS as error:
        raise StorageError(f"{log.location} cannot be read: {error_reason(error)}") from error
    health = TableHealth(
        table=uri,
        table_id=snapshot.table_id,
        version=snapshot.version,
        committed_at=snapshot.committed_at,
        measured_at=datetime.now(UTC),
        measuring_seconds=time.monotonic() - start,
        partition_columns=state.partition_columns,
        clustering_columns=clustering_columns,
        zorder_by=policy.zorder_by,
        order_problem=order_problem,
        target_file_size=policy.target_file_size,
        partitions=partitions,
        log=log_measurement.health,
        folder=folder,
        growth_per_day=growth_per_day,
        commits_per_day=commits_per_day,
        pins=tuple(pin.name for pin in pins_and_streams.pins),
        next_pin_expiry=min((pin.expires_at for pin in pins_and_streams.pins), default=None),
        remembered_rows=remembered_rows,
        expired_rows=expired_rows,
    )
    return Measurement(health, policy, state)


def _count_side_rows(spark: SparkSession, location: str, retention: SideTableRetention | None) -> tuple[int, int]:
    """Return the number of rows of a side table and the number of its expired rows; 0 for any other table."""
    if retention is None:
        return 0, 0
    rows = spark.read.format("delta").load(location)
    row_count = rows.count()
    return row_count, row_count - retention.drop_expired(rows).count()


def _find_pins_and_streams(
    spark: SparkSession, snapshot: Snapshot, policy: Policy
) -> tuple[PinsAndStreams, float, str | None]:
    """Return the pins and streams, the retention of the log in seconds, and the problem if they cannot be read."""
    try:
        pins_and_streams = PinsAndStreams.of(spark, snapshot, policy.streams)
        return pins_and_streams, log_retention_seconds(spark, snapshot, pins_and_streams), None
    except (PinError, TableError, StorageError) as error:
        return PinsAndStreams(), math.inf, str(error)


def with_zorder(measurement: Measurement, columns: tuple[str, ...]) -> Measurement:
    """Return a measurement as if the table's policy set a Z-order by these columns and no file had it yet.

    Raises:
        TableError: The table lacks a column, is partitioned by it, or is clustered.

    """
    health = measurement.health
    if (problem := _zorder_problem(columns, measurement.state, health.clustering_columns)) is not None:
        raise TableError(f"{health.table} cannot be put in Z-order by {', '.join(columns)}: {problem}")
    partitions = tuple(replace(part, unordered=part.total) for part in health.partitions)
    return replace(
        measurement,
        health=replace(health, zorder_by=columns, order_problem=None, partitions=partitions),
        policy=replace(measurement.policy, zorder_by=columns),
    )


def _zorder_problem(columns: Sequence[str], state: TableState, clustering_columns: Sequence[str]) -> str | None:
    """Return the reason why a Z-order by these columns is not possible; None: it is."""
    if columns and clustering_columns:
        return f"the table is clustered by {', '.join(clustering_columns)}"
    table_columns = {name.lower() for name in state.schema.names}
    partition_columns = {name.lower() for name in state.partition_columns}
    for name in columns:
        if name.lower() in partition_columns:
            return f"{name} is a partition column"
        if name.lower() not in table_columns:
            return f"{name} is not a column of the table"
    return None


def _measure_folder(
    spark: SparkSession, snapshot: Snapshot, pins_and_streams: PinsAndStreams, logged_files: LoggedFiles
) -> FolderHealth:
    totals = totals_by_state(classify_files(spark, snapshot, pins_and_streams, logged_files=logged_files))
    any_reason = (None, *KeepReason)

    def total(*states: FileState, kept_by: Collection[KeepReason | None] = (None,)) -> FileTotals:
        return sum_totals(totals.get((state, reason), FileTotals()) for state in states for reason in kept_by)

    return FolderHealth(
        removed=total(FileState.REMOVED, kept_by=any_reason),
        expired=total(FileState.EXPIRED),
        kept_for_pins=total(FileState.EXPIRED, FileState.ORPHAN, kept_by=(KeepReason.PIN,)),
        kept_for_streams=total(FileState.EXPIRED, FileState.ORPHAN, kept_by=(KeepReason.STREAM,)),
        uncommitted=total(FileState.UNCOMMITTED, kept_by=any_reason),
        orphans=total(FileState.ORPHAN),
        retention_seconds=seconds_without_pins(snapshot),
    )
