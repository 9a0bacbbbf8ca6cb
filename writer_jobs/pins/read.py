"""What is pinned, read again; and what has come since that belongs to its moment."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.pins import Pin, PinnedTable
from writer_jobs.changes.parts import comparable
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog, Snapshot, TableState, locate_table
from writer_jobs.delta.version_files import VersionFiles
from writer_jobs.errors import TableError
from writer_jobs.pins.moment import up_to

_TIMES = "__sluice_times"


@dataclass(frozen=True, kw_only=True)
class ChangedSince:
    """How the newest version of a table differs from a pin, in the rows that belong to the pin's moment.

    A row that another one has replaced counts as new and as gone.

    Attributes:
        table: canonical URI.
        version: the newest.
        rows_new: rows that the pin has not.
        rows_gone: rows that only the pin has.
        files: data files of both versions.
        files_read: those that were read to find out.

    """

    table: str
    version: int
    rows_new: int
    rows_gone: int
    files: int
    files_read: int


def pinned_rows(spark: SparkSession, pin: Pin, table: str) -> DataFrame:
    """Return the rows of a table that a pin keeps: the same each time.

    Args:
        spark: the session.
        pin: see :func:`take_pin` and :func:`find_pin`.
        table: location or name in the catalog.

    Raises:
        PinError: the pin is of other tables, or its version is not there any more.
        TableError, StorageError: no such table, or it cannot be read.

    """
    pinned = _pinned(spark, pin, table)
    rows = spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.location)
    return rows if (condition := _condition(pin, pinned, rows.schema)) is None else rows.where(condition)


def changed_since(spark: SparkSession, pin: Pin, table: str) -> ChangedSince:
    """Find out what has become of a pin's moment: rows of it that came later, or were changed.

    Only files that are in one of both versions are read, and only those whose statistics say that they may have rows of
    the moment.

    Args:
        spark: the session.
        pin: see :func:`take_pin` and :func:`find_pin`.
        table: location or name in the catalog.

    Raises:
        PinError: the pin is of other tables, its version is not there any more, or a column of it.
        TableError, StorageError: no such table, or it cannot be read.

    """
    pinned = _pinned(spark, pin, table)
    log = DeltaTableLog(spark, pinned.location)
    newest = log.snapshot()
    if newest.version == pinned.version:
        files = 2 * VersionFiles(spark, newest).count()
        return ChangedSince(
            table=pinned.table, version=newest.version, rows_new=0, rows_gone=0, files=files, files_read=0
        )
    then, now = (_Side(spark, pin, pinned, each) for each in (_pinned_version(log, pin, pinned), newest))
    names = then.schema.names
    if missing := {name.lower() for name in names} - {name.lower() for name in now.schema.names}:
        raise PinError(f"{pinned.table} has no column {', '.join(sorted(missing))} any more, but pin {pin.name} has")
    gone, new = then.files.without(now.files), now.files.without(then.files)
    rows = new.rows().where(now.condition).select(*_values(then.schema), F.lit(1).alias(_TIMES))
    rows = rows.union(gone.rows().where(then.condition).select(*_values(then.schema), F.lit(-1).alias(_TIMES)))
    times = rows.groupBy(*map(quoted, names)).agg(F.sum(_TIMES).alias(_TIMES))
    found = times.agg(F.sum(F.greatest(_TIMES, F.lit(0))), F.sum(F.greatest(-F.col(_TIMES), F.lit(0)))).collect()[0]
    return ChangedSince(
        table=pinned.table,
        version=newest.version,
        rows_new=found[0] or 0,
        rows_gone=found[1] or 0,
        files=then.all_files + now.all_files,
        files_read=new.count() + gone.count(),
    )


def version_of(spark: SparkSession, pin: Pin, pinned: PinnedTable) -> TableState:
    """Return schema and partitioning of a version that a pin keeps.

    Raises:
        PinError: it is not there any more.

    """
    state = _pinned_version(DeltaTableLog(spark, pinned.location), pin, pinned).state
    if state is None:
        raise PinError(f"pin {pin.name} no longer holds: {pinned.table} has no version {pinned.version}")
    return state


class _Side:
    """One of two versions that are compared."""

    def __init__(self, spark: SparkSession, pin: Pin, pinned: PinnedTable, snapshot: Snapshot) -> None:
        state = snapshot.state
        if state is None:
            raise TableError(f"there is no Delta table at {pinned.location} any more")
        self.schema = state.schema
        condition = _condition(pin, pinned, state.schema)
        files = VersionFiles(spark, snapshot)
        self.all_files = files.count()
        self.files = files if condition is None else files.within(condition)
        self.condition = F.expr("true") if condition is None else condition


def _values(schema: StructType) -> list[Column]:
    """Return columns that can be grouped by, whatever their types."""
    return [comparable(field).alias(field.name) for field in schema]


def _pinned(spark: SparkSession, pin: Pin, table: str) -> PinnedTable:
    return pin.of(canonical_table_uri(locate_table(spark, table)))


def _pinned_version(log: DeltaTableLog, pin: Pin, pinned: PinnedTable) -> Snapshot:
    try:
        return log.snapshot_at(pinned.version)
    except TableError as error:
        raise PinError(f"pin {pin.name} no longer holds: {error}") from error


def _condition(pin: Pin, pinned: PinnedTable, schema: StructType) -> Column | None:
    if pin.at is None or pinned.event_time is None:
        return None
    return up_to(schema, pinned.event_time, pin.at, pinned.table)
