"""Takes the figures of a table's health, without a lock: from Delta's own snapshot, its log, and its folder."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.table_records.commit_stamp import MAINTENANCE, maintenance_of
from writer_jobs.delta.hadoop_files import escaped
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.listings import session_for_many_files
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import PHYSICAL_NAME, Snapshot, TableState
from writer_jobs.delta.table_log import LOG_FOLDER, DeltaTableLog, commit_info_of
from writer_jobs.delta.version_files import version_file_rows
from writer_jobs.errors import StorageError, TableError
from writer_jobs.maintenance.file_states import FileState, Keeper, Keepers, folder_files, log_retention_seconds
from writer_jobs.maintenance.health import (
    SIZE_BOUNDS,
    FileTotals,
    FolderHealth,
    LogHealth,
    PartitionHealth,
    TableHealth,
)
from writer_jobs.maintenance.policy import Policy
from writer_jobs.maintenance.side_rows import SideRows
from writer_jobs.pins.retention import seconds_without_pins

_log = logging.getLogger(__name__)

#: The store's clock may be so far ahead of that of whoever commits, in milliseconds.
SKEW_MS = 60_000
_WEEK = timedelta(days=7)
_HOUR = timedelta(hours=1)
_DAY_SECONDS = timedelta(days=1).total_seconds()
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..*(parquet|json)")
_NOTHING = FileTotals()
_NOTES = "partition_values map<string, string>, ordered_ms bigint"


@dataclass(frozen=True)
class Measured:
    """A table that was looked at.

    Attributes:
        health: its figures.
        policy: how it wants to be looked after.
        state: its columns.

    """

    health: TableHealth
    policy: Policy
    state: TableState


def measure(spark: SparkSession, table: str) -> Measured:
    """Take the figures of a table's health. No lock is needed, and none is taken.

    Args:
        spark: a session with Delta.
        table: location or name in the catalog.

    Raises:
        TableError: no Delta table, or a property of its policy that makes no sense.
        StorageError: the table cannot be read.

    """
    log = DeltaTableLog(spark, locate_table(spark, table))
    try:
        return _measured(spark, log)
    except StorageError as error:
        # A writer's checkpoint may have cleaned the log up meanwhile.
        _log.info("looking at %s again: %s", table, error)
        return _measured(spark, log)


def _measured(spark: SparkSession, log: DeltaTableLog) -> Measured:
    begun = time.monotonic()
    uri = canonical_table_uri(log.location)
    snapshot = log.snapshot()
    if (state := snapshot.state) is None:
        raise TableError(f"there is no Delta table at {log.location}")
    policy = Policy.of(snapshot.properties, uri)
    try:
        clustered_by = snapshot.clustering_columns
        if (order_problem := _no_order(policy.zorder_by, state, clustered_by)) is not None:
            policy = replace(policy, zorder_by=())
        keepers, log_retention, problem = _keepers(spark, snapshot, policy)
        logged = LoggedFiles(spark, snapshot.location)
        versions = _LogFiles(snapshot, logged, log_retention)
        partitions = tuple(_partitions(spark, snapshot, state, policy, is_clustered=bool(clustered_by)))
        folder = replace(_folder(spark, snapshot, keepers, logged), problem=problem)
        growth, commits = versions.by_day(log)
        remembered, expired = _side_rows(spark, snapshot.location, SideRows.of(state, policy))
    except (*JVM_ERRORS, PySparkException) as error:
        raise StorageError(f"{log.location} cannot be read: {one_sentence(error)}") from error
    health = TableHealth(
        table=uri,
        table_id=snapshot.table_id,
        version=snapshot.version,
        committed_at=snapshot.committed_at,
        measured_at=datetime.now(UTC),
        measuring_seconds=time.monotonic() - begun,
        partition_columns=state.partition_columns,
        clustering_columns=clustered_by,
        zorder_by=policy.zorder_by,
        order_problem=order_problem,
        target_file_size=policy.target_file_size,
        partitions=partitions,
        log=versions.health,
        folder=folder,
        growth_per_day=growth,
        commits_per_day=commits,
        pins=tuple(pin.name for pin in keepers.pins),
        remembered_rows=remembered,
        expired_rows=expired,
    )
    return Measured(health, policy, state)


def _side_rows(spark: SparkSession, location: str, side: SideRows | None) -> tuple[int, int]:
    """Return how many rows a side table has, and how many of them are expired."""
    if side is None:
        return 0, 0
    rows = spark.read.format("delta").load(location)
    number = rows.count()
    return number, number - side.kept(rows).count()


def _keepers(spark: SparkSession, snapshot: Snapshot, policy: Policy) -> tuple[Keepers, float, str | None]:
    """Return what keeps files, for how long versions are needed, and why that is not known."""
    try:
        keepers = Keepers.of(spark, snapshot, policy.streams)
        return keepers, log_retention_seconds(spark, snapshot, keepers), None
    except (PinError, TableError, StorageError) as error:
        return Keepers(), math.inf, str(error)


def ordered_by(found: Measured, columns: tuple[str, ...]) -> Measured:
    """Return a table as if its policy were to put its rows in Z-order by these columns, and none were yet.

    Raises:
        TableError: it has no such columns, or is clustered.

    """
    health = found.health
    if (problem := _no_order(columns, found.state, health.clustering_columns)) is not None:
        raise TableError(f"{health.table} cannot be put in Z-order by {', '.join(columns)}: {problem}")
    # Nothing says when that was done the last time.
    parts = tuple(replace(part, unordered=part.total) for part in health.partitions)
    return replace(
        found,
        health=replace(health, zorder_by=columns, order_problem=None, partitions=parts),
        policy=replace(found.policy, zorder_by=columns),
    )


def _no_order(columns: Sequence[str], state: TableState, clustered_by: Sequence[str]) -> str | None:
    """Return why rows cannot be put in Z-order by columns; None: they can."""
    if columns and clustered_by:
        return f"the table is clustered by {', '.join(clustered_by)}"
    known = {name.lower() for name in state.schema.names}
    partitioned_by = {name.lower() for name in state.partition_columns}
    for name in columns:
        if name.lower() in partitioned_by:
            return f"{name} is a partition column"
        if name.lower() not in known:
            return f"{name} is no column of the table"
    return None


def _partitions(
    spark: SparkSession, snapshot: Snapshot, state: TableState, policy: Policy, *, is_clustered: bool
) -> Iterator[PartitionHealth]:
    key = F.to_json(F.array_sort(F.map_entries("partitionValues")))
    files = version_file_rows(spark, snapshot).withColumn("values", key)
    if policy.zorder_by:
        files, unordered = _with_order(spark, snapshot, policy, files)
    else:
        unordered = F.expr("false")
    small = F.col("size") < policy.small_file_size
    deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
    records = F.get_json_object("stats", "$.numRecords").cast("long")
    bounds: list[int] = [0, *SIZE_BOUNDS]
    size = F.col("size")
    classes = [
        F.count_if((size >= low) & (size < high) if high else size >= low).alias(f"class{at}")
        for at, (low, high) in enumerate(zip(bounds, [*bounds[1:], None], strict=True))
    ]
    unclustered = F.col("clusteringProvider").isNull() if is_clustered else F.expr("false")
    grouped = files.groupBy("values").agg(
        *_totals("total", F.expr("true")),
        *_totals("small", small),
        F.count_if(records.isNull()).alias("without_rows"),
        F.coalesce(F.sum(records - deleted), F.lit(0)).alias("rows"),
        F.coalesce(F.sum(records), F.lit(0)).alias("stored_rows"),
        F.sum(deleted).alias("deleted_rows"),
        *_totals("with_deleted_rows", deleted > 0),
        *_totals("unordered", unordered),
        *_totals("unclustered", unclustered),
        *classes,
    )
    names = {
        str((field.metadata or {}).get(PHYSICAL_NAME, field.name)): field.name
        for field in state.schema
        if field.name in state.partition_columns
    }
    for row in grouped.collect():
        written = {names.get(each["key"], each["key"]): each.get("value") for each in json.loads(row["values"])}
        yield PartitionHealth(
            values={name: written.get(name) or None for name in state.partition_columns},
            total=_total_of(row, "total"),
            small=_total_of(row, "small"),
            rows=None if row["without_rows"] else row["rows"],
            stored_rows=row["stored_rows"],
            deleted_rows=row["deleted_rows"],
            with_deleted_rows=_total_of(row, "with_deleted_rows"),
            unordered=_total_of(row, "unordered"),
            unclustered=_total_of(row, "unclustered"),
            histogram=tuple(row[f"class{at}"] for at in range(len(classes))),
        )


def _totals(name: str, condition: Column) -> tuple[Column, Column]:
    size = F.sum(F.when(condition, F.col("size")).otherwise(0))
    return F.count_if(condition).alias(f"{name}_files"), F.coalesce(size, F.lit(0)).alias(f"{name}_size")


def _total_of(row: Any, name: str) -> FileTotals:
    return FileTotals(row[f"{name}_files"], row[f"{name}_size"])


def _with_order(spark: SparkSession, snapshot: Snapshot, policy: Policy, files: DataFrame) -> tuple[DataFrame, Column]:
    """Return files with when their partition was put in Z-order the last time, and whether one came after that.

    The commits of maintenance note what they ordered. One that the log has no more is forgotten: its partition is
    ordered again.

    Args:
        spark: the session.
        snapshot: of the table.
        policy: of the table.
        files: with their partitions' ``values``, as text.

    """
    ordered: dict[str, int] = {}
    whole = 0
    for info in _noted_commits(spark, snapshot.location):
        note = maintenance_of(info)
        if note is None or tuple(note.get("columns") or ()) != policy.zorder_by:
            continue
        at = int(info["timestamp"]) + SKEW_MS
        if not note.get("partitions"):
            whole = max(at, whole)
        for values in map(json.dumps, note.get("partitions") or ()):
            ordered[values] = max(at, ordered.get(values, 0))
    notes = spark.createDataFrame([(json.loads(values), at) for values, at in ordered.items()], _NOTES)
    of_partition = notes.select(
        F.to_json(F.array_sort(F.map_entries("partition_values"))).alias("values"), "ordered_ms"
    )
    # Values that are spelled in two ways are one partition.
    newest = of_partition.groupBy("values").agg(F.max("ordered_ms").alias("ordered_ms"))
    ordered_ms = F.greatest(F.coalesce("ordered_ms", F.lit(0)), F.lit(whole))
    return files.join(F.broadcast(newest), "values", "left"), F.col("modificationTime") > ordered_ms


def _noted_commits(spark: SparkSession, location: str) -> list[Mapping[str, Any]]:
    lines = session_for_many_files(spark).read.text(escaped(f"{location}/{LOG_FOLDER}") + "/*.json")
    chosen = lines.where(F.col("value").startswith('{"commitInfo"') & F.col("value").contains(MAINTENANCE))
    return [commit_info_of(row[0]) for row in chosen.select("value").collect()]


def _folder(spark: SparkSession, snapshot: Snapshot, keepers: Keepers, logged: LoggedFiles) -> FolderHealth:
    files = folder_files(spark, snapshot, keepers, logged=logged)
    totals = {
        (state, kept_by): FileTotals(number, size)
        for state, kept_by, number, size in files.groupBy("state", "kept_by")
        .agg(F.count("*"), F.sum("length"))
        .collect()
    }
    removable = (FileState.EXPIRED, FileState.ORPHAN)

    def total(state: FileState, kept_by: Keeper | None = None) -> FileTotals:
        return totals.get((state.value, None if kept_by is None else kept_by.value), _NOTHING)

    def whatever_keeps(state: FileState) -> FileTotals:
        return sum((each for (found, _), each in totals.items() if found == state.value), _NOTHING)

    return FolderHealth(
        removed=whatever_keeps(FileState.REMOVED),
        expired=total(FileState.EXPIRED),
        kept_for_pins=sum((total(state, Keeper.PIN) for state in removable), _NOTHING),
        kept_for_streams=sum((total(state, Keeper.STREAM) for state in removable), _NOTHING),
        uncommitted=whatever_keeps(FileState.UNCOMMITTED),
        orphans=total(FileState.ORPHAN),
        retention_seconds=seconds_without_pins(snapshot),
    )


class _LogFiles:
    """The files of a log.

    Args:
        snapshot: the newest version.
        logged: the log, listed after that.
        retention_seconds: for how long its versions are needed; see :func:`.folder.log_retention_seconds`.

    """

    def __init__(self, snapshot: Snapshot, logged: LoggedFiles, retention_seconds: float) -> None:
        self._snapshot = snapshot
        self._retention_seconds = retention_seconds
        self._now = datetime.now(UTC)
        self._total = FileTotals(len(logged.listed), sum(row["length"] for row in logged.listed))
        self._at = {version: modified_ms / 1000 for version, modified_ms in logged.versions.items()}
        self._checkpoints: dict[int, float] = {}
        for row in logged.listed:
            if (match := _CHECKPOINT_FILE.fullmatch(row["name"])) is not None:
                self._checkpoints[int(match[1])] = row["modified_ms"] / 1000

    @property
    def health(self) -> LogHealth:
        """What is to be known of it."""
        # Not the newest that is listed: of one in several parts some may be missing.
        newest = self._snapshot.checkpoint_version
        checkpointed_at = None if newest is None else self._checkpoints.get(newest)
        # What Delta's clean-up goes by: the midnight (UTC) before. Infinite: nothing is.
        cutoff = self._now.timestamp() - self._retention_seconds
        before = cutoff if math.isinf(cutoff) else cutoff // _DAY_SECONDS * _DAY_SECONDS
        young = min((version for version, at in self._at.items() if at > before), default=self._snapshot.version)
        # It takes whole stretches between two checkpoints, and only behind all that is as old.
        known = {*self._checkpoints, *([] if newest is None else [newest])}
        first_kept = max((each for each in known if each <= min(young, newest or 0)), default=0)
        expired = [version for version in self._at if version < first_kept]
        since = self._snapshot.version if newest is None else self._snapshot.version - newest
        return LogHealth(
            total=self._total,
            first_version=min(self._at, default=self._snapshot.version),
            versions=len(self._at),
            checkpoint_version=newest,
            checkpointed_at=None if checkpointed_at is None else datetime.fromtimestamp(checkpointed_at, UTC),
            since_checkpoint=max(0, since),
            checkpoint_interval=self._snapshot.checkpoint_interval,
            expired_versions=len(expired),
            retention_seconds=self._snapshot.log_retention_seconds,
            writers_clean=self._snapshot.cleans_log,
        )

    def by_day(self, log: DeltaTableLog) -> tuple[float | None, float | None]:
        """Return by how many bytes the table grew, and how many versions it got, on a day of the last week."""
        week_ago = (self._now - _WEEK).timestamp()
        begin = max(
            (version for version, at in self._at.items() if at <= week_ago), default=min(self._at, default=None)
        )
        if begin is None:
            return None, None
        # What was the newest version a week ago may be much older.
        span = min(self._now.timestamp() - self._at[begin], _WEEK.total_seconds())
        if span < _HOUR.total_seconds():
            return None, None
        days = span / _DAY_SECONDS
        commits = (self._snapshot.version - begin) / days
        try:
            return (self._snapshot.size - log.snapshot_at(begin).size) / days, commits
        except TableError:
            # Its checkpoint is gone.
            return None, commits
