"""VACUUM that keeps the files of pins, of the streams that read the table, and of running writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockManager, canonical_table_uri
from writer_jobs.delta.java_classes import java_class, scala_object
from writer_jobs.delta.jvm_errors import JVM_ERRORS, SPARK_ERRORS, error_reason
from writer_jobs.delta.listings import list_files
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.session import session_with
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError, TableError, WriteFailedError
from writer_jobs.maintenance.file_states import FileState, classify_files, totals_by_state
from writer_jobs.maintenance.health import FileTotals, sum_totals
from writer_jobs.maintenance.pins_and_streams import KeepReason, PinsAndStreams
from writer_jobs.maintenance.policy import Policy
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.pins.take import remove_expired_pins

_SETTINGS = {
    # This module decides which files are removed.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Logging makes two commits, which need the lock. VACUUM itself does not change the table.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # VACUUM LITE records that later runs may skip all commits until now.
    "spark.databricks.delta.vacuum.lite.enabled": "false",
}
_INVENTORY = "path string, length bigint, isDir boolean, modificationTime bigint"
_VIEW = "__sluice_removable"
_MAX_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class VacuumResult:
    """The result of ``vacuum``.

    Attributes:
        table: Canonical URI.
        version: Newest version of the table.
        files: Number of removed files; in a dry run, of files that would be removed.
        size: Size of these files, in bytes.
        orphans: Number of these files that no version ever named.
        orphans_size: Size of the orphans, in bytes.
        kept_for_pins: Number of removable files that a pin needs.
        kept_for_streams: Number of removable files that a stream needs and no pin.
        pins: Names of the pins that have not expired.
        dry_run: Whether the files were only counted.

    """

    table: str
    version: int
    files: int
    size: int
    orphans: int
    orphans_size: int
    kept_for_pins: int
    kept_for_streams: int
    pins: tuple[str, ...]
    dry_run: bool


def vacuum(
    spark: SparkSession,
    table: str,
    *,
    retain: timedelta | None = None,
    dry_run: bool = False,
    streams: Sequence[str] | None = None,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
) -> VacuumResult:
    """Remove the files of a table that no readable version needs.

    A file is removed if it

    - was removed from the table by a commit longer than ``retain`` ago, or
    - belongs to no version in the log, and was written longer ago than each of ``delta.deletedFileRetentionDuration``,
      ``retain`` and one day: a running write may still commit a younger file,

    and no pin keeps it, and no stream that reads the table may still read it. If the log begins after version 0, a file
    that is older than the log is also kept until that beginning is ``retain`` ago. This function chooses the files.
    Delta's own VACUUM removes them, after it has checked once more that the newest version does not have them.

    The function holds no lock meanwhile, because it does not change the table, so no writer waits. A reader of a
    version that is older than ``retain`` and not pinned may miss files; so may a RESTORE to such a version at the same
    time.

    Args:
        spark: A session with the guarded log store.
        table: Location or name in the catalog.
        retain: Retention of removed files. Default: ``delta.deletedFileRetentionDuration`` as it would be
            without pins.
        dry_run: Count the files without removing them.
        streams: Checkpoint folders of the streams that read the table. Default: those of the table property
            ``sluice.maintenance.streams``.
        manager: Lock manager for the removal of expired pins, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: Seconds to wait for that lock.

    Raises:
        ValueError: ``retain`` is negative.
        PinError: A pin cannot be read, or its version is gone; no file was removed.
        TableError, StorageError: There is no such table, or it or its maintenance policy cannot be read; a stream's
            checkpoint cannot be read, or the version that the stream reads next is gone.
        WriteFailedError: Some files could not be removed.
        LockTimeoutError and other errors of :func:`remove_pin`: Expired pins could not be removed.

    """
    if retain is not None and retain < timedelta(0):
        raise ValueError("retain must not be negative")
    log = DeltaTableLog(spark, locate_table(spark, table))
    if not dry_run:
        remove_expired_pins(spark, log.location, manager=manager, lock_timeout_seconds=lock_timeout_seconds)
    # The snapshot is loaded before the pins are read, see PinsAndStreams.of.
    snapshot = log.snapshot()
    if snapshot.state is None:
        raise TableError(f"there is no Delta table at {log.location}")
    if streams is None:
        streams = Policy.of(snapshot.properties, canonical_table_uri(log.location)).streams
    pins_and_streams = PinsAndStreams.of(spark, snapshot, streams)
    with ExitStack() as stack:
        try:
            removable = classify_files(spark, snapshot, pins_and_streams, retain).where(
                F.col("state").isin(FileState.EXPIRED.value, FileState.ORPHAN.value)
            )
            files = stack.enter_context(closing(MaterializedRows(removable))).rows
        except SPARK_ERRORS as error:
            raise StorageError(f"the files of {log.location} cannot be listed: {error_reason(error)}") from error
        totals = totals_by_state(files)
        unneeded_total = sum_totals(total for (_, kept_by), total in totals.items() if kept_by is None)
        if unneeded_total.files and not dry_run:
            _remove(spark, snapshot, files.where("kept_by IS NULL"))
    orphans = totals.get((FileState.ORPHAN, None), FileTotals())
    kept_files = {
        reason: sum(total.files for (_, kept_by), total in totals.items() if kept_by is reason) for reason in KeepReason
    }
    return VacuumResult(
        table=canonical_table_uri(log.location),
        version=snapshot.version,
        files=unneeded_total.files,
        size=unneeded_total.size,
        orphans=orphans.files,
        orphans_size=orphans.size,
        kept_for_pins=kept_files[KeepReason.PIN],
        kept_for_streams=kept_files[KeepReason.STREAM],
        pins=tuple(pin.name for pin in pins_and_streams.pins),
        dry_run=dry_run,
    )


@contextmanager
def _silent_console(spark: SparkSession) -> Iterator[None]:
    """Discard the output that Delta prints in this thread, because standard output has the JSON lines of a job."""
    jvm: Any = spark._jvm  # noqa: SLF001
    console = scala_object(jvm, "scala.Console")
    stdout = console.out()
    no_output = java_class(jvm, "java.io.OutputStream").nullOutputStream()
    console.setOutDirect(java_class(jvm, "java.io.PrintStream")(no_output))
    try:
        yield
    finally:
        # The JVM may be gone.
        with suppress(*JVM_ERRORS):
            console.setOutDirect(stdout)


def _remove(spark: SparkSession, snapshot: Snapshot, files: DataFrame) -> None:
    session, location = session_with(spark, _SETTINGS), snapshot.location
    table = canonical_table_uri(location)
    inventory = session.createDataFrame([], _INVENTORY).union(
        files.select(
            # Delta joins a table's location and a path in this way; a bucket's root then has two slashes.
            F.concat(F.lit(f"{location}/"), "path").alias("path"),
            "length",
            F.expr("false").alias("isDir"),
            F.col("modified_ms").alias("modificationTime"),
        )
    )
    inventory.createOrReplaceTempView(_VIEW)
    try:
        with _silent_console(spark):
            session.sql(f"VACUUM delta.{quoted(location)} USING INVENTORY (TABLE {_VIEW}) RETAIN 0 HOURS")
        # Delta skips a file that the store does not let it remove.
        remaining = list_files(spark, snapshot).join(files.select("path"), "path", "left_semi")
        examples = remaining.limit(_MAX_EXAMPLES).collect()
    except SPARK_ERRORS as error:
        raise WriteFailedError(table=table, reason=error_reason(error)) from error
    if examples:
        paths = ", ".join(row["path"] for row in examples)
        raise WriteFailedError(table=table, reason=f"the store has not removed all files, such as {paths}")
