"""Every file below a table's location: which state it is in, and what keeps it."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin
from writer_jobs.delta.hadoop_files import HadoopFiles, escaped
from writer_jobs.delta.listings import listed_files, own_folders
from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.source_streams import SourceStream, source_streams
from writer_jobs.delta.table_log import LOG_FOLDER, DeltaTableLog
from writer_jobs.delta.version_files import VersionFiles
from writer_jobs.errors import TableError
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import pinned_version
from writer_jobs.pins.retention import seconds_without_pins

log = logging.getLogger(__name__)

#: A file that no version names is spared at least so long, whatever the table's properties say: a write that holds the
#: lock over all of its time is bound by nothing else.
LEAST_ORPHAN_AGE = timedelta(days=1)
#: A version stays in the log at least so long, whatever the table's properties say.
LEAST_LOG_RETENTION = timedelta(days=1)
# A log's clean-up goes by whole days and by the files' own times, and clocks differ.
_MARGIN = timedelta(days=1)
# Of what is below a table's location, Delta's VACUUM spares what Iceberg's readers need.
_ICEBERG = "metadata"
_MS = 1000
# What is told of a file beside what its listing says.
_TOLD = {
    "live": "boolean",
    "named": "boolean",
    "removed_ms": "long",
    "pinned": "boolean",
    "streamed": "boolean",
}


class FileState(StrEnum):
    """What a file below a table's location is."""

    #: Of the newest version.
    LIVE = "live"
    #: Removed from the table, or change data of a version, for less than the retention; or older than the log, which
    #: may have named it, where the log is younger than the retention.
    REMOVED = "removed"
    #: The same, for longer than the retention.
    EXPIRED = "expired"
    #: Named by no version yet, and young: a write may be on its way to commit it.
    UNCOMMITTED = "uncommitted"
    #: Named by no version, younger than the log, and older than any write on its way.
    ORPHAN = "orphan"


class Keeper(StrEnum):
    """What keeps a file that could be removed."""

    PIN = "pin"
    STREAM = "stream"


@dataclass(frozen=True)
class Keepers:
    """What keeps files of a table that could be removed.

    Attributes:
        pins: those that have not expired.
        streams: those that have begun to read the table.
        checkpoints: folders of the checkpoints of all that are named.

    """

    pins: tuple[Pin, ...] = ()
    streams: tuple[SourceStream, ...] = ()
    checkpoints: tuple[str, ...] = ()

    @classmethod
    def of(cls, spark: SparkSession, snapshot: Snapshot, checkpoints: Sequence[str]) -> Keepers:
        """Look them up.

        Args:
            spark: the session.
            snapshot: of the table. It is older than what is looked up: of a pin that is made later no file is gone yet.
            checkpoints: of the streams that read the table.

        Raises:
            PinError: a pin cannot be read.
            TableError, StorageError: a checkpoint cannot.

        """
        files = HadoopFiles.of(spark)
        pins = (pin for pin in PinFiles(files, snapshot.location).all() if not pin.has_expired())
        streams = source_streams(files, snapshot.table_id, checkpoints)
        return cls(tuple(pins), tuple(streams), tuple(checkpoints))


def log_retention_seconds(spark: SparkSession, snapshot: Snapshot, keepers: Keepers) -> float:
    """Return for how long versions stay in the log: as the table says, and those that a pin or a stream needs.

    Infinity: a stream may need any version.

    At least for a day: a put that was sent long ago must not find the name of its version free again.

    Raises:
        PinError: the version of a pin is not there any more.
        TableError: nor is that which a stream is to read next.

    """
    needed = [snapshot.log_retention_seconds, LEAST_LOG_RETENTION.total_seconds()]
    versions = pinned_versions(spark, snapshot.location, keepers.pins)
    for stream in keepers.streams:
        if stream.log_version is None:
            needed.append(math.inf)
        elif stream.log_version <= snapshot.version:
            versions.append(oldest_read(DeltaTableLog(spark, snapshot.location), stream, stream.log_version))
    kept = (time.time() - each.committed_at.timestamp() + _MARGIN.total_seconds() for each in versions)
    return max([*needed, *kept])


def folder_files(
    spark: SparkSession,
    snapshot: Snapshot,
    keepers: Keepers,
    retain: timedelta | None = None,
    *,
    logged: LoggedFiles | None = None,
) -> DataFrame:
    """Return every file below a table's location that Delta's VACUUM would look at.

    Args:
        spark: the session.
        snapshot: the newest version.
        keepers: what keeps files.
        retain: for how long removed files are kept. By default ``delta.deletedFileRetentionDuration``, as it would be
            without pins.
        logged: what the log names, if it was listed before.

    Returns:
        ``path`` below the location, ``length`` in bytes, ``modified_ms``, ``state`` (a :class:`FileState`) and
        ``kept_by`` (a :class:`Keeper`, or null), which counts for files that are expired or orphans.

    Raises:
        PinError: the version of a pin is not there any more.
        TableError: nor is that which a stream is to read next.

    """
    now_ms = time.time() * _MS
    kept_ms = (seconds_without_pins(snapshot) if retain is None else retain.total_seconds()) * _MS
    # As long as a commit may come that has it: the gate goes by what the table says.
    unknown_ms = max(kept_ms, snapshot.file_retention_seconds * _MS, LEAST_ORPHAN_AGE.total_seconds() * _MS)
    files, logged = VersionFiles(spark, snapshot), logged or LoggedFiles(spark, snapshot.location)
    first_version, log_begun_ms = logged.oldest
    # A removal whose version file is gone was committed before the oldest version of the log. No earlier time is
    # certain: a tombstone in the checkpoint has the time at which the statement ran, before the wait for the lock.
    committed_ms = F.greatest("deletionTimestamp", F.lit(log_begun_ms))
    tombstones = files.removed().select("path", committed_ms.alias("removed_ms"))
    forgotten = FileState.EXPIRED if log_begun_ms <= now_ms - kept_ms else FileState.REMOVED
    streamed = _streamed(spark, snapshot, keepers.streams, logged)
    told = [
        _marked(files.paths(), "live"),
        _marked(logged.paths.select("path", "removed_ms"), "named"),
        _marked(tombstones, "named"),
        *(_marked(kept, "pinned") for kept in _pinned(spark, snapshot, keepers.pins)),
        *(_marked(kept, "streamed") for kept in streamed or ()),
    ]
    own = _own_files(spark, snapshot, files)
    for checkpoint in keepers.checkpoints:
        own = _without_folder(own, _below(spark, snapshot.location, checkpoint))
    listed = _by_path(own, told)
    if streamed is None:
        listed = _marked(listed, "streamed")
    modified_ms, is_forgotten = F.col("modified_ms"), F.lit(first_version > 0) & (F.col("modified_ms") < log_begun_ms)
    removed_ms = F.col("removed_ms")
    state = (
        F.when(F.col("live"), FileState.LIVE.value)
        .when(removed_ms <= now_ms - kept_ms, FileState.EXPIRED.value)
        .when(removed_ms.isNotNull(), FileState.REMOVED.value)
        # By a version that came after the one that was looked at.
        .when(F.col("named"), FileState.UNCOMMITTED.value)
        .when(modified_ms > now_ms - unknown_ms, FileState.UNCOMMITTED.value)
        .when(is_forgotten, forgotten.value)
        .otherwise(FileState.ORPHAN.value)
    )
    kept_by = F.when(F.col("pinned"), Keeper.PIN.value).when(F.col("streamed"), Keeper.STREAM.value)
    return listed.select("path", "length", "modified_ms", state.alias("state"), kept_by.alias("kept_by"))


def _marked(paths: DataFrame, mark: str) -> DataFrame:
    return paths.withColumn(mark, F.expr("true"))


def _by_path(listed: DataFrame, told: Sequence[DataFrame]) -> DataFrame:
    """Return the files that were listed, a row for each, with all that is told of it.

    By one shuffle of everything: a join for each of what is told would be several.

    Args:
        listed: ``path``, ``length``, ``modified_ms``.
        told: ``path``, and some of the columns of :data:`_TOLD`.

    """
    rows = listed.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in _TOLD.items()))
    for each in told:
        rows = rows.unionByName(each, allowMissingColumns=True)
    known = [name for name in rows.columns if name != "path"]
    return rows.groupBy("path").agg(*(F.max(name).alias(name) for name in known)).where("length IS NOT NULL")


def _own_files(spark: SparkSession, snapshot: Snapshot, live: VersionFiles) -> DataFrame:
    """Return the files below a table's location without those of another table that lies within it, and Iceberg's.

    Delta's VACUUM takes these for its own. A folder with files of the newest version is the table's, and so is one that
    is named like a partition; of every other one is asked whether it has a log.
    """
    listed = listed_files(spark, snapshot)
    own_names = own_folders(snapshot)
    of_own_names = f"^(({'|'.join(map(re.escape, own_names))})[^/]*(/|$))*$"
    folder = F.regexp_extract("path", "^(.*)/[^/]*$", 1).alias("folder")
    others = listed.select(folder).distinct().where(~F.col("folder").rlike(of_own_names))
    if others.isEmpty():
        return listed
    rows = others.join(live.paths().select(folder).distinct(), "folder", "left_anti").collect()
    above = {
        "/".join(parts[:depth])
        for row in rows
        for parts in [row["folder"].split("/")]
        for depth in range(1, len(parts) + 1)
        if not parts[depth - 1].startswith(tuple(own_names))
    }
    files = HadoopFiles.of(spark)
    if _ICEBERG in above and files.glob(f"{escaped(snapshot.location)}/{_ICEBERG}/*.metadata.json"):
        listed = _without_folder(listed, _ICEBERG)
    for path in sorted(above):
        if files.status(f"{snapshot.location}/{path}/{LOG_FOLDER}") is not None:
            log.info("%s has a table of its own, which is left alone", path)
            listed = _without_folder(listed, path)
    return listed


def _without_folder(listed: DataFrame, folder: str | None) -> DataFrame:
    return listed if folder is None else listed.where(~F.col("path").startswith(f"{folder}/"))


def _below(spark: SparkSession, location: str, path: str) -> str | None:
    """Return where a path is below a table's location; None: it is elsewhere."""
    files = HadoopFiles.of(spark)
    base, found = (files.qualify(each).rstrip("/") for each in (location, path))
    return found.removeprefix(f"{base}/") if found.startswith(f"{base}/") else None


def _pinned(spark: SparkSession, snapshot: Snapshot, pins: Sequence[Pin]) -> list[DataFrame]:
    return [VersionFiles(spark, kept).paths() for kept in pinned_versions(spark, snapshot.location, pins)]


def pinned_versions(spark: SparkSession, location: str, pins: Sequence[Pin]) -> list[Snapshot]:
    """Return the versions of a table that pins keep.

    Raises:
        PinError: one is not there any more.

    """
    table_log, found = DeltaTableLog(spark, location), []
    for pin in pins:
        try:
            found.append(pinned_version(table_log, pin, pin.of(table_log.location)))
        except PinError as error:
            raise PinError(f"it is not known which files pin {pin.name} keeps: remove it ({error})") from error
    return found


def _streamed(
    spark: SparkSession, snapshot: Snapshot, streams: Sequence[SourceStream], logged: LoggedFiles
) -> list[DataFrame] | None:
    """Return the files that streams may still read; None: any file.

    These are the files of the version from which on one reads, and all that later versions name: also those that were
    added and removed again since, and what changed.
    """
    if any(stream.version is None for stream in streams):
        # It may begin with any version.
        return None
    # The next version that is to be committed may not be there yet.
    behind = [stream for stream in streams if stream.version is not None and stream.version <= snapshot.version]
    if not behind:
        return []
    stream = min(behind, key=lambda stream: stream.version or 0)
    oldest = oldest_read(DeltaTableLog(spark, snapshot.location), stream, stream.version or 0)
    later = logged.paths.where(F.col("version") >= oldest.version).select("path")
    return [VersionFiles(spark, oldest).paths(), later]


def oldest_read(table_log: DeltaTableLog, stream: SourceStream, version: int) -> Snapshot:
    """Return the version from which on a stream reads, or needs the log.

    Raises:
        TableError: it is gone.

    """
    try:
        return table_log.snapshot_at(version)
    except TableError as error:
        raise TableError(
            f"the stream of {stream.checkpoint} cannot go on: {error}; begin it anew, or take it out of "
            "sluice.maintenance.streams"
        ) from error
