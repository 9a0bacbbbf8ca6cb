"""``vacuum``: removes files that no version needs which is to be read again, and no commit that is on its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockManager, canonical_table_uri
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.listings import listed_files
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.session import session_with
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError, TableError, WriteFailedError
from writer_jobs.maintenance.file_states import FileState, Keeper, Keepers, folder_files
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.policy import Policy
from writer_jobs.merge.materialized import Kept
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
        orphans: how many of them no version that the log knows has ever named.
        orphans_size: of those, in bytes.
        kept_for_pins: files that would have been removed, were it not for pins.
        kept_for_streams: files that would have been removed, were it not for streams that read the table.
        pins: by which files were kept.
        dry_run: whether nothing was removed.

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
    """Remove a table's files that are in no version which is to be read again.

    That is a file which

    - a commit removed from the table longer than ``retain`` ago, or
    - belongs to no version that the log knows, and was written longer ago than ``delta.deletedFileRetentionDuration``
      (or ``retain``, if that is longer): a younger one may be of a commit that is on its way,

    and that no pin keeps, and no stream that reads the table may still read. Which it is, is decided here; Delta's own
    VACUUM removes them, and looks once more whether the newest version has them.

    No lock is held meanwhile, because nothing that this does changes the table: no writer waits. Whoever reads a
    version that is older than ``retain``, and is not pinned, may find its files gone; so would a RESTORE to one that
    runs at the same time.

    Args:
        spark: a session with the guarded log store.
        table: location or name in the catalog.
        retain: for how long removed files are kept. By default ``delta.deletedFileRetentionDuration``, as it would be
            without pins.
        dry_run: remove nothing.
        streams: checkpoint folders of the streams that read the table. By default those of the table's property
            ``sluice.maintenance.streams``.
        manager: gives the lock under which expired pins are removed, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: to wait for it.

    Raises:
        ValueError: ``retain`` is negative.
        PinError: a pin cannot be read, or its version is not there any more: nothing is removed.
        TableError, StorageError: no such table, or it cannot be read; or a stream's checkpoint cannot, or what that
            stream is to read next is gone.
        WriteFailedError: not all files could be removed.
        LockTimeoutError and so on: as for :func:`remove_pin`, if pins have expired.

    """
    if retain is not None and retain < timedelta(0):
        raise ValueError("retain: give no negative time")
    log = DeltaTableLog(spark, locate_table(spark, table))
    if not dry_run:
        remove_expired_pins(spark, log.location, manager=manager, lock_timeout_seconds=lock_timeout_seconds)
    # The version first, see Keepers.
    snapshot = log.snapshot()
    if snapshot.state is None:
        raise TableError(f"there is no Delta table at {log.location}")
    if streams is None:
        streams = Policy.of(snapshot.properties, canonical_table_uri(log.location)).streams
    keepers = Keepers.of(spark, snapshot, streams)
    with ExitStack() as stack:
        try:
            removable = folder_files(spark, snapshot, keepers, retain).where(
                F.col("state").isin(FileState.EXPIRED.value, FileState.ORPHAN.value)
            )
            found = stack.enter_context(closing(Kept(removable))).rows
        except (*JVM_ERRORS, PySparkException) as error:
            raise StorageError(f"the files of {log.location} cannot be listed: {one_sentence(error)}") from error
        totals = _totals(found)
        unkept = {state: number for (state, kept_by), number in totals.items() if kept_by is None}
        chosen = sum(unkept.values(), FileTotals())
        if chosen.files and not dry_run:
            _remove(spark, snapshot, found.where("kept_by IS NULL"))
    orphans = unkept.get(FileState.ORPHAN, FileTotals())
    return VacuumResult(
        table=canonical_table_uri(log.location),
        version=snapshot.version,
        files=chosen.files,
        size=chosen.size,
        orphans=orphans.files,
        orphans_size=orphans.size,
        kept_for_pins=_kept(totals, Keeper.PIN),
        kept_for_streams=_kept(totals, Keeper.STREAM),
        pins=tuple(pin.name for pin in keepers.pins),
        dry_run=dry_run,
    )


@contextmanager
def _scala_prints_nothing(spark: SparkSession) -> Iterator[None]:
    """Keep what Delta prints in this thread from standard output, which has the lines of a job."""
    jvm: Any = spark._jvm  # noqa: SLF001
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    before = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        # What failed may be the JVM.
        with suppress(*JVM_ERRORS):
            console.setOutDirect(before)


def _totals(files: DataFrame) -> dict[tuple[FileState, Keeper | None], FileTotals]:
    grouped = files.groupBy("state", "kept_by").agg(F.count("*"), F.sum("length"))
    return {
        (FileState(state), None if kept_by is None else Keeper(kept_by)): FileTotals(number, size)
        for state, kept_by, number, size in grouped.collect()
    }


def _kept(totals: dict[tuple[FileState, Keeper | None], FileTotals], keeper: Keeper) -> int:
    return sum(each.files for (_, kept_by), each in totals.items() if kept_by is keeper)


def _remove(spark: SparkSession, snapshot: Snapshot, files: DataFrame) -> None:
    session, location = session_with(spark, _SETTINGS), snapshot.location
    table = canonical_table_uri(location)
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
        with _scala_prints_nothing(spark):
            session.sql(f"VACUUM delta.{quoted(location)} USING INVENTORY (TABLE {_VIEW}) RETAIN 0 HOURS")
        # Delta passes over a file that the store does not let it remove.
        left = listed_files(spark, snapshot).join(files.select("path"), "path", "left_semi").limit(_SHOWN).collect()
    except (*JVM_ERRORS, PySparkException) as error:
        raise WriteFailedError(table=table, reason=one_sentence(error)) from error
    if left:
        shown = ", ".join(row["path"] for row in left)
        raise WriteFailedError(table=table, reason=f"the store has not removed all files, such as {shown}")
