"""The state of every file below a table's location, and the reason why a removable file is kept."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.data_files import DataFiles
from writer_jobs.delta.hadoop_files import HadoopFiles, escape_glob
from writer_jobs.delta.listings import list_files, table_folder_prefixes
from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.source_streams import SourceStream
from writer_jobs.delta.table_log import LOG_FOLDER
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.pins_and_streams import KeepReason, PinsAndStreams, pinned_versions, stream_version
from writer_jobs.pins.retention import seconds_without_pins

log = logging.getLogger(__name__)

#: A file that no version names is kept at least this long, even if the table's properties set a shorter time. Nothing
#: else protects a write that holds the lock from its beginning.
MIN_ORPHAN_AGE = timedelta(days=1)
# Folder of Iceberg's metadata below the table's location. Delta's VACUUM skips it if the table has Iceberg readers.
_ICEBERG = "metadata"
_MS = 1000
# Facts about a file in addition to its listing.
_FACTS = {"live": "boolean", "named": "boolean", "removed_ms": "long", "pinned": "boolean", "streamed": "boolean"}


class FileState(StrEnum):
    """The state of a file below a table's location."""

    #: In the newest version.
    LIVE = "live"
    #: Removed from the table, or written as change data, by a commit less than the retention ago. Also a file that is
    #: older than the log, if the log begins after version 0 and less than the retention ago: an earlier version may
    #: have named it.
    REMOVED = "removed"
    #: As REMOVED, but the commit, or the beginning of the log, is at least the retention ago.
    EXPIRED = "expired"
    #: Named by no version, and young: a running write may still commit it. Also: named only by a version after the
    #: newest one that was loaded.
    UNCOMMITTED = "uncommitted"
    #: Named by no version, older than any running write, and not older than a log that begins after version 0.
    ORPHAN = "orphan"


def classify_files(
    spark: SparkSession,
    snapshot: Snapshot,
    pins_and_streams: PinsAndStreams,
    retain: timedelta | None = None,
    *,
    logged_files: LoggedFiles | None = None,
) -> DataFrame:
    """Return every file below a table's location that Delta's VACUUM would look at, with its state.

    Files of nested tables, Iceberg's metadata and streaming checkpoints are left out.

    Args:
        snapshot: Newest version of the table.
        retain: Retention of removed files. Default: ``delta.deletedFileRetentionDuration`` as it would be
            without pins.
        logged_files: Files named by the log, if the log was listed before.

    Returns:
        ``path`` below the location, ``length`` in bytes, ``modified_ms`` since the epoch, ``state`` (a
        :class:`FileState`) and ``kept_by`` (a :class:`.KeepReason` or null), which counts only for expired files and
        orphans.

    Raises:
        PinError: The version of a pin is gone.
        TableError: The version that a stream reads next is gone.

    """
    now_ms = time.time() * _MS
    retention_ms = (seconds_without_pins(snapshot) if retain is None else retain.total_seconds()) * _MS
    # A running write may commit a file up to this age: the gate uses the table's own retention, not `retain`.
    orphan_age_ms = max(retention_ms, snapshot.file_retention_seconds * _MS, MIN_ORPHAN_AGE.total_seconds() * _MS)
    version_files = DataFiles(spark, snapshot)
    logged_files = logged_files or LoggedFiles(spark, snapshot.location)
    oldest_version, log_start_ms = logged_files.oldest_version
    # A removal whose version file is gone was committed before the oldest version of the log. No earlier time is
    # certain: a tombstone in the checkpoint has the time at which the statement ran, before the wait for the lock.
    committed_ms = F.greatest("deletionTimestamp", F.lit(log_start_ms))
    tombstones = version_files.removed_files().select("path", committed_ms.alias("removed_ms"))
    stream_paths = _stream_paths(spark, snapshot, pins_and_streams.streams, logged_files)
    pinned_snapshots = pinned_versions(spark, snapshot.location, pins_and_streams.pins)
    facts = [
        _with_mark(version_files.paths(), "live"),
        _with_mark(logged_files.paths.select("path", "removed_ms"), "named"),
        _with_mark(tombstones, "named"),
        *(_with_mark(DataFiles(spark, version).paths(), "pinned") for version in pinned_snapshots),
        *(_with_mark(paths, "streamed") for paths in stream_paths or ()),
    ]
    listed_files = _table_files(spark, snapshot, version_files)
    for checkpoint in pins_and_streams.checkpoints:
        listed_files = _without_folder(listed_files, _relative_path(spark, snapshot.location, checkpoint))
    files = _join_facts(listed_files, facts)
    if stream_paths is None:
        files = _with_mark(files, "streamed")
    modified_ms, removed_ms = F.col("modified_ms"), F.col("removed_ms")
    is_older_than_log = F.lit(oldest_version > 0) & (modified_ms < log_start_ms)
    state_before_log = FileState.EXPIRED if log_start_ms <= now_ms - retention_ms else FileState.REMOVED
    state = (
        F.when(F.col("live"), FileState.LIVE.value)
        .when(removed_ms <= now_ms - retention_ms, FileState.EXPIRED.value)
        .when(removed_ms.isNotNull(), FileState.REMOVED.value)
        # Named by a version after the snapshot.
        .when(F.col("named"), FileState.UNCOMMITTED.value)
        .when(modified_ms > now_ms - orphan_age_ms, FileState.UNCOMMITTED.value)
        .when(is_older_than_log, state_before_log.value)
        .otherwise(FileState.ORPHAN.value)
    )
    kept_by = F.when(F.col("pinned"), KeepReason.PIN.value).when(F.col("streamed"), KeepReason.STREAM.value)
    return files.select("path", "length", "modified_ms", state.alias("state"), kept_by.alias("kept_by"))


def totals_by_state(files: DataFrame) -> dict[tuple[FileState, KeepReason | None], FileTotals]:
    """Return number and size of the files of :func:`classify_files`, by their state and keep reason."""
    grouped = files.groupBy("state", "kept_by").agg(F.count("*"), F.sum("length"))
    return {
        (FileState(state), None if kept_by is None else KeepReason(kept_by)): FileTotals(number, size)
        for state, kept_by, number, size in grouped.collect()
    }


def _with_mark(paths: DataFrame, mark: str) -> DataFrame:
    return paths.withColumn(mark, F.expr("true"))


def _join_facts(listed_files: DataFrame, facts: Sequence[DataFrame]) -> DataFrame:
    """Return one row per listed file, with all facts about it.

    A union with one aggregation needs one shuffle. Joins would need one shuffle per data frame.

    Args:
        listed_files: ``path``, ``length``, ``modified_ms``.
        facts: Data frames with ``path`` and some of the columns of :data:`_FACTS`.

    """
    rows = listed_files.select("*", *(F.lit(None).cast(fact_type).alias(name) for name, fact_type in _FACTS.items()))
    for paths in facts:
        rows = rows.unionByName(paths, allowMissingColumns=True)
    columns = [name for name in rows.columns if name != "path"]
    return rows.groupBy("path").agg(*(F.max(name).alias(name) for name in columns)).where("length IS NOT NULL")


def _table_files(spark: SparkSession, snapshot: Snapshot, live: DataFiles) -> DataFrame:
    """Return the files below a table's location, without those of nested Delta tables and of Iceberg's metadata.

    Delta's VACUUM treats the files of a nested table as this table's. A folder belongs to this table if it has files of
    the newest version or the name of a partition. Every other folder is checked for a log of its own.
    """
    listed_files = list_files(spark, snapshot)
    table_prefixes = table_folder_prefixes(snapshot)
    table_path = f"^(({'|'.join(map(re.escape, table_prefixes))})[^/]*(/|$))*$"
    folder = F.regexp_extract("path", "^(.*)/[^/]*$", 1).alias("folder")
    foreign_folders = listed_files.select(folder).distinct().where(~F.col("folder").rlike(table_path))
    if foreign_folders.isEmpty():
        return listed_files
    rows = foreign_folders.join(live.paths().select(folder).distinct(), "folder", "left_anti").collect()
    ancestors = {
        "/".join(names[:depth])
        for row in rows
        for names in [row["folder"].split("/")]
        for depth in range(1, len(names) + 1)
        if not names[depth - 1].startswith(tuple(table_prefixes))
    }
    files = HadoopFiles.of(spark)
    if _ICEBERG in ancestors and files.glob(f"{escape_glob(snapshot.location)}/{_ICEBERG}/*.metadata.json"):
        listed_files = _without_folder(listed_files, _ICEBERG)
    for path in sorted(ancestors):
        if files.status(f"{snapshot.location}/{path}/{LOG_FOLDER}") is not None:
            log.info("%s is a nested table, whose files are skipped", path)
            listed_files = _without_folder(listed_files, path)
    return listed_files


def _without_folder(listed_files: DataFrame, folder: str | None) -> DataFrame:
    return listed_files if folder is None else listed_files.where(~F.col("path").startswith(f"{folder}/"))


def _relative_path(spark: SparkSession, location: str, path: str) -> str | None:
    """Return a path relative to a table's location; None: it is not below the location."""
    files = HadoopFiles.of(spark)
    base, absolute = (files.qualify(uri).rstrip("/") for uri in (location, path))
    return absolute.removeprefix(f"{base}/") if absolute.startswith(f"{base}/") else None


def _stream_paths(
    spark: SparkSession, snapshot: Snapshot, streams: Sequence[SourceStream], logged_files: LoggedFiles
) -> list[DataFrame] | None:
    """Return the paths of the files that streams may still read; None: a stream may read any file.

    These are the files of the version that the slowest stream reads next, and all files that later versions name,
    including change data and files that were added and removed again.
    """
    next_versions = [(stream.version, stream) for stream in streams if stream.version is not None]
    if len(next_versions) < len(streams):
        # A stream without a version may start with any version.
        return None
    # A stream that has read everything waits for a version that does not exist yet.
    unread_versions = [(version, stream) for version, stream in next_versions if version <= snapshot.version]
    if not unread_versions:
        return []
    version, stream = min(unread_versions, key=lambda entry: entry[0])
    oldest_snapshot = stream_version(spark, snapshot.location, stream, version)
    later_paths = logged_files.paths.where(F.col("version") >= oldest_snapshot.version).select("path")
    return [DataFiles(spark, oldest_snapshot).paths(), later_paths]
