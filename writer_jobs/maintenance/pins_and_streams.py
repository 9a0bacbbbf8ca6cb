"""The pins and streams of a table, and the versions that they need."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pyspark.sql import SparkSession

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.source_streams import SourceStream, source_streams
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import pinned_version
from writer_jobs.pins.retention import RETENTION_MARGIN

# A version stays in the log at least this long, even if the table's properties set a shorter time.
_MIN_LOG_RETENTION = timedelta(days=1)


class KeepReason(StrEnum):
    """The reason why a removable file is kept: a pin or a stream needs it."""

    PIN = "pin"
    STREAM = "stream"


@dataclass(frozen=True)
class PinsAndStreams:
    """The pins and streams that need files of a table.

    Attributes:
        pins: Pins that have not expired.
        streams: Streams that have started to read the table.
        checkpoints: All given streaming checkpoints, also of streams that have not started.

    """

    pins: tuple[Pin, ...] = ()
    streams: tuple[SourceStream, ...] = ()
    checkpoints: tuple[str, ...] = ()

    @classmethod
    def of(cls, spark: SparkSession, snapshot: Snapshot, checkpoints: Sequence[str]) -> PinsAndStreams:
        """Read the pins and streams of a table.

        ``snapshot`` was loaded before this call. A pin that is made after this call pins the version of the snapshot or
        a later version, so removing files that the snapshot does not need harms no such pin.

        Raises:
            PinError: A pin cannot be read.
            TableError, StorageError: A streaming checkpoint cannot be read.

        """
        files = HadoopFiles.of(spark)
        pins = (pin for pin in PinFiles(files, snapshot.location).all() if not pin.has_expired())
        streams = source_streams(files, snapshot.table_id, checkpoints)
        return cls(tuple(pins), tuple(streams), tuple(checkpoints))


def log_retention_seconds(spark: SparkSession, snapshot: Snapshot, pins_and_streams: PinsAndStreams) -> float:
    """Return the retention of versions in the log, in seconds: the table's own, or a longer one.

    It is infinite if a stream may need any version. It is at least one day, because a delayed put of a version
    file must not find that version's name free again.

    Raises:
        PinError: The version of a pin is gone.
        TableError: The version that a stream reads next is gone.

    """
    retentions = [snapshot.log_retention_seconds, _MIN_LOG_RETENTION.total_seconds()]
    versions = pinned_versions(spark, snapshot.location, pins_and_streams.pins)
    for stream in pins_and_streams.streams:
        if stream.log_version is None:
            retentions.append(math.inf)
        elif stream.log_version <= snapshot.version:
            versions.append(stream_version(spark, snapshot.location, stream, stream.log_version))
    now, margin = time.time(), RETENTION_MARGIN.total_seconds()
    return max([*retentions, *(now - version.committed_at.timestamp() + margin for version in versions)])


def pinned_versions(spark: SparkSession, location: str, pins: Sequence[Pin]) -> list[Snapshot]:
    """Return the versions of a table that pins keep; raise PinError if the version of a pin is gone."""
    table_log, versions = DeltaTableLog(spark, location), []
    for pin in pins:
        try:
            versions.append(pinned_version(table_log, pin, pin.of(table_log.location)))
        except PinError as error:
            raise PinError(f"the files that pin {pin.name} keeps are unknown: remove the pin ({error})") from error
    return versions


def stream_version(spark: SparkSession, location: str, stream: SourceStream, version: int) -> Snapshot:
    """Return the snapshot of the oldest version that a stream still needs; raise TableError if that version is gone."""
    try:
        return DeltaTableLog(spark, location).snapshot_at(version)
    except TableError as error:
        raise TableError(
            f"the stream of {stream.checkpoint} cannot continue: {error}; start it with a new checkpoint, or remove it "
            "from sluice.maintenance.streams"
        ) from error
