"""Every file below a table's location: which state it is in, and what keeps it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.errors import PinError
from lock_manager.pins import Pin
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.source_streams import SourceStream, source_streams
from writer_jobs.delta.table_log import DeltaTableLog, Snapshot
from writer_jobs.delta.version_files import CHANGE_DATA, VersionFiles, listed_files
from writer_jobs.errors import TableError
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import pinned_version
from writer_jobs.pins.retention import seconds_without_pins

# Clocks of those that removed a file, and of the store, may differ.
_SKEW = timedelta(hours=1)


class FileState(StrEnum):
    """What a file below a table's location is."""

    #: Of the newest version.
    LIVE = "live"
    #: Lost by the table, not long ago.
    REMOVED = "removed"
    #: Lost by the table, longer ago than it is kept.
    EXPIRED = "expired"
    #: Named by no version, and young: a write may be on its way to commit it.
    UNCOMMITTED = "uncommitted"
    #: Named by no version, and older than any write on its way.
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
        streams: those that read the table.

    """

    pins: tuple[Pin, ...] = ()
    streams: tuple[SourceStream, ...] = ()

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
        return cls(tuple(pins), tuple(source_streams(files, snapshot.table_id, checkpoints)))


def folder_files(
    spark: SparkSession, snapshot: Snapshot, keepers: Keepers, retain: timedelta | None = None
) -> DataFrame:
    """Return every file below a table's location that Delta's VACUUM would look at.

    Args:
        spark: the session.
        snapshot: the newest version.
        keepers: what keeps files.
        retain: for how long removed files are kept. By default ``delta.deletedFileRetentionDuration``, as it would be
            without pins.

    Returns:
        ``path`` below the location, ``length`` in bytes, ``modified_ms``, ``state`` (a :class:`FileState`) and
        ``kept_by`` (a :class:`Keeper`, or null), which counts for files that are expired or orphans.

    Raises:
        PinError: the version of a pin is not there any more.
        TableError: nor is that which a stream is to read next.

    """
    now_ms = time.time() * 1000
    kept_ms = (seconds_without_pins(snapshot) if retain is None else retain.total_seconds()) * 1000
    # As long as a commit may come that has it: the gate goes by what the table says.
    unknown_ms = max(kept_ms, snapshot.file_retention_seconds * 1000)
    files = VersionFiles(spark, snapshot)
    removed_ms = F.col("removed_ms")
    listed = (
        listed_files(spark, snapshot.location)
        .join(_marked(files.paths(), "live"), "path", "left")
        .join(files.removed().withColumnRenamed("deletionTimestamp", "removed_ms"), "path", "left")
    )
    state = (
        F.when(F.col("live"), FileState.LIVE.value)
        .when(removed_ms <= now_ms - kept_ms, FileState.EXPIRED.value)
        .when(removed_ms.isNotNull(), FileState.REMOVED.value)
        .when(F.col("modified_ms") <= now_ms - unknown_ms, FileState.ORPHAN.value)
        .otherwise(FileState.UNCOMMITTED.value)
    )
    pinned, streamed = _pinned(spark, snapshot, keepers.pins), _Streamed(spark, snapshot, keepers.streams)
    listed = listed.join(_marked(pinned, "pinned"), "path", "left").join(
        _marked(streamed.paths(), "streamed"), "path", "left"
    )
    kept_by = F.when(F.col("pinned"), Keeper.PIN.value).when(
        F.coalesce(F.col("streamed"), F.expr("false")) | streamed.is_kept(), Keeper.STREAM.value
    )
    return listed.select("path", "length", "modified_ms", state.alias("state"), kept_by.alias("kept_by"))


def _marked(paths: DataFrame, mark: str) -> DataFrame:
    return paths.distinct().withColumn(mark, F.expr("true"))


def _pinned(spark: SparkSession, snapshot: Snapshot, pins: Sequence[Pin]) -> DataFrame:
    log, found = DeltaTableLog(spark, snapshot.location), []
    for pin in pins:
        try:
            kept = pinned_version(log, pin, pin.of(log.location))
        except PinError as error:
            raise PinError(f"it is not known which files pin {pin.name} keeps: remove it ({error})") from error
        found.append(VersionFiles(spark, kept).paths())
    return functools.reduce(DataFrame.union, found, spark.createDataFrame([], "path string"))


class _Streamed:
    """What streams may still read: the version from which on they read, and all that came after it.

    Args:
        spark: the session.
        snapshot: the newest version.
        streams: that read the table.

    """

    def __init__(self, spark: SparkSession, snapshot: Snapshot, streams: Sequence[SourceStream]) -> None:
        self._spark = spark
        self._snapshot = snapshot
        # A stream that may read anything may begin with any version.
        self._keeps_all = any(stream.version is None for stream in streams)
        log = DeltaTableLog(spark, snapshot.location)
        self._oldest: Snapshot | None = None
        for stream in sorted(streams, key=lambda stream: stream.version or 0):
            # The next one that is to be committed may not be there yet.
            if stream.version is None or stream.version > snapshot.version:
                continue
            try:
                self._oldest = self._oldest or log.snapshot_at(stream.version)
            except TableError as error:
                raise TableError(
                    f"the stream of {stream.checkpoint} cannot go on: {error}; begin it anew, or take it out of "
                    "sluice.maintenance.streams"
                ) from error

    def paths(self) -> DataFrame:
        """Return the files of the oldest version from which on one reads."""
        if self._oldest is None:
            return self._spark.createDataFrame([], "path string")
        return VersionFiles(self._spark, self._oldest).paths()

    def is_kept(self) -> Column:
        """Tell of a file whether it may be of a later version, or of what changed in one."""
        if self._keeps_all:
            return F.expr("true")
        if self._oldest is None:
            return F.expr("false")
        since_ms = (self._oldest.committed_at - _SKEW).timestamp() * 1000
        # The gate commits nothing whose files are older than half of that.
        written_ms = since_ms - self._snapshot.file_retention_seconds * 1000 / 2
        is_change = F.col("path").startswith(f"{CHANGE_DATA}/") & (F.col("modified_ms") >= written_ms)
        return F.coalesce(F.col("removed_ms") >= since_ms, F.expr("false")) | is_change
