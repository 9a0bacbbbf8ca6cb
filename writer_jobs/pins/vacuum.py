"""``vacuum``: removes files that no version needs which is to be read again, and no commit that is on its way."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockManager, canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.pins import Pin
from writer_jobs.changes.kept import Kept
from writer_jobs.commit.operation import session_with
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog, Snapshot, locate_table
from writer_jobs.delta.version_files import VersionFiles, listed_files
from writer_jobs.errors import StorageError, TableError, WriteFailedError
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import pinned_version
from writer_jobs.pins.retention import seconds_without_pins
from writer_jobs.pins.take import remove_expired_pins

_SETTINGS = {
    # What is removed is decided here.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # It would commit twice, and need the lock for that. Nothing that it does changes the table.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # It would note that all commits up to now need not be looked at again.
    "spark.databricks.delta.vacuum.lite.enabled": "false",
}
_INVENTORY = "path string, length bigint, isDir boolean, modificationTime bigint"
_VIEW = "__sluice_removable"
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class VacuumResult:
    """What ``vacuum`` removed.

    Attributes:
        table: canonical URI.
        version: that was the newest one.
        files: how many files were removed; of a dry run, how many would be.
        size: of those, in bytes.
        kept_for_pins: files that would have been removed, were it not for pins.
        pins: by which files were kept.
        dry_run: whether nothing was removed.

    """

    table: str
    version: int
    files: int
    size: int
    kept_for_pins: int
    pins: tuple[str, ...]
    dry_run: bool


def vacuum(
    spark: SparkSession,
    table: str,
    *,
    retain: timedelta | None = None,
    dry_run: bool = False,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
) -> VacuumResult:
    """Remove a table's files that are in no version which is to be read again.

    That is a file which

    - a commit removed from the table longer than ``retain`` ago, or
    - belongs to no version that the log knows, and was written longer ago than ``delta.deletedFileRetentionDuration``
      (or ``retain``, if that is longer): a younger one may be of a commit that is on its way,

    and that no pin keeps. Which it is, is decided here; Delta's own VACUUM removes them, and looks once more whether
    the newest version has them.

    No lock is held meanwhile, because nothing that this does changes the table: no writer waits. Whoever reads a
    version that is older than ``retain``, and is not pinned, may find its files gone; so would a RESTORE to one that
    runs at the same time.

    Args:
        spark: a session with the guarded log store.
        table: location or name in the catalog.
        retain: for how long removed files are kept. By default ``delta.deletedFileRetentionDuration``, as it would be
            without pins.
        dry_run: remove nothing.
        manager: gives the lock under which expired pins are removed, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: to wait for it.

    Raises:
        ValueError: ``retain`` is negative.
        PinError: a pin cannot be read, or its version is not there any more: nothing is removed.
        TableError, StorageError: no such table, or it cannot be read.
        WriteFailedError: not all files could be removed.
        LockTimeoutError and so on: as for :func:`remove_pin`, if pins have expired.

    """
    if retain is not None and retain < timedelta(0):
        raise ValueError("retain: give no negative time")
    log = DeltaTableLog(spark, locate_table(spark, table))
    if not dry_run:
        remove_expired_pins(spark, log.location, manager=manager, lock_timeout_seconds=lock_timeout_seconds)
    # The version first, then the pins: of a pin that is made after that no file has been removed yet.
    snapshot = log.snapshot()
    if snapshot.state is None:
        raise TableError(f"there is no Delta table at {log.location}")
    pins = [pin for pin in PinFiles(HadoopFiles.of(spark), log.location).all() if not pin.has_expired()]
    with ExitStack() as stack:
        try:
            removable = stack.enter_context(closing(Kept(_removable(spark, snapshot, retain)))).rows
            chosen = stack.enter_context(closing(Kept(_not_pinned(spark, log, removable, pins)))).rows
        except (*JVM_ERRORS, PySparkException) as error:
            raise StorageError(f"the files of {log.location} cannot be listed: {one_sentence(error)}") from error
        without_pins = removable.count()
        number, size = chosen.agg(F.count("*"), F.coalesce(F.sum("length"), F.lit(0))).collect()[0]
        if number and not dry_run:
            _remove(spark, log.location, chosen)
    return VacuumResult(
        table=canonical_table_uri(log.location),
        version=snapshot.version,
        files=number,
        size=size,
        kept_for_pins=without_pins - number,
        pins=tuple(pin.name for pin in pins),
        dry_run=dry_run,
    )


def _removable(spark: SparkSession, snapshot: Snapshot, retain: timedelta | None) -> DataFrame:
    """Return the files that could be removed if there were no pins.

    Returns:
        ``path`` below the location, ``length`` in bytes and ``modified_ms``.

    """
    now_ms = time.time() * 1000
    kept_ms = (seconds_without_pins(snapshot) if retain is None else retain.total_seconds()) * 1000
    # As long as a commit may come that has it: the gate goes by what the table says.
    unknown_ms = max(kept_ms, snapshot.file_retention_seconds * 1000)
    files = VersionFiles(spark, snapshot)
    removed = files.removed().withColumnRenamed("deletionTimestamp", "removed_ms")
    listed = (
        listed_files(spark, snapshot.location).join(files.paths(), "path", "left_anti").join(removed, "path", "left")
    )
    is_known = F.col("removed_ms").isNotNull()
    return listed.where(
        (is_known & (F.col("removed_ms") <= now_ms - kept_ms))
        | (~is_known & (F.col("modified_ms") <= now_ms - unknown_ms))
    ).select("path", "length", "modified_ms")


def _not_pinned(spark: SparkSession, log: DeltaTableLog, files: DataFrame, pins: list[Pin]) -> DataFrame:
    for pin in pins:
        try:
            kept = pinned_version(log, pin, pin.of(log.location))
        except PinError as error:
            raise PinError(f"it is not known which files pin {pin.name} keeps: remove it ({error})") from error
        files = files.join(VersionFiles(spark, kept).paths(), "path", "left_anti")
    return files


def _remove(spark: SparkSession, location: str, files: DataFrame) -> None:
    session, table = session_with(spark, _SETTINGS), canonical_table_uri(location)
    inventory = session.createDataFrame([], _INVENTORY).union(
        files.select(
            # As Delta puts a table's location before it, with two slashes for one that is a bucket's root.
            F.concat(F.lit(f"{location}/"), "path").alias("path"),
            "length",
            F.expr("false").alias("isDir"),
            F.col("modified_ms").alias("modificationTime"),
        )
    )
    inventory.createOrReplaceTempView(_VIEW)
    try:
        session.sql(f"VACUUM delta.{quoted(location)} USING INVENTORY (TABLE {_VIEW}) RETAIN 0 HOURS")
        # Delta passes over a file that the store does not let it remove.
        left = listed_files(spark, location).join(files.select("path"), "path", "left_semi").limit(_SHOWN).collect()
    except (*JVM_ERRORS, PySparkException) as error:
        raise WriteFailedError(table=table, reason=one_sentence(error)) from error
    if left:
        shown = ", ".join(row["path"] for row in left)
        raise WriteFailedError(table=table, reason=f"the store has not removed all files, such as {shown}")
