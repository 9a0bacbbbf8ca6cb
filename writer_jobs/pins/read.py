"""What is pinned, read again; and what has come since that belongs to its moment."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.listings import listed_files
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.delta.version_files import VersionFiles
from writer_jobs.errors import StorageError, TableError
from writer_jobs.merge.merge_sql import comparable
from writer_jobs.pins.moment import up_to

_log = logging.getLogger(__name__)

CHANGE = "__CHANGE"
"""Column of :func:`rows_since`."""

_TIMES, _SAME = "__sluice_times", "__sluice_same"
_SHOWN = 3


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
    pinned_version(DeltaTableLog(spark, pinned.location), pin, pinned)
    rows = spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.location)
    return rows if (condition := _condition(pin, pinned, rows.schema)) is None else rows.where(condition)


def rows_since(spark: SparkSession, pin: Pin, table: str) -> DataFrame:
    """Return the rows of a pin's moment that have come since, or are gone.

    What the pin keeps without those that are gone, and with the new ones, is what the newest version has of the moment.

    Args:
        spark: the session.
        pin: see :func:`take_pin` and :func:`find_pin`.
        table: location or name in the catalog.

    Returns:
        The columns of the pinned version, and ``__CHANGE``: ``new`` or ``gone``. A row that was replaced is there as
        both. Columns that the table has got since are not there.

    Raises:
        PinError: the pin is of other tables, its version is not there any more, or a column of it.
        TableError, StorageError: no such table, or it cannot be read.

    """
    difference = _Difference(spark, pin, *_then_and_now(spark, pin, table))
    change = F.when(F.col(_TIMES) > 0, "new").otherwise("gone").alias(CHANGE)
    each = F.explode(F.sequence(F.lit(1), F.abs(_TIMES))).alias(_TIMES)
    rows = difference.times().where(F.col(_TIMES) != 0)
    return rows.select(*map(quoted, difference.names), change, each).drop(_TIMES)


def changed_since(spark: SparkSession, pin: Pin, table: str) -> ChangedSince:
    """Find out what has become of a pin's moment since it was made: how many rows of it came later, or are gone.

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
    return _counted(spark, pin, *_then_and_now(spark, pin, table))


def changed_before(spark: SparkSession, pin: Pin, table: str) -> ChangedSince | None:
    """Find out what became of a pin's moment before it was made: after all streams were past it.

    As :func:`changed_since`, for the version that is pinned, and the one at which the watermarks were past the moment.

    Returns:
        None if that version is not known, or cannot be read any more: the log or the files of versions of its age are
        removed.

    Raises:
        PinError, TableError, StorageError: see :func:`changed_since`.

    """
    pinned = _pinned(spark, pin, table)
    if pinned.passed_version is None:
        return None
    log = DeltaTableLog(spark, pinned.location)
    pinned_snapshot = pinned_version(log, pin, pinned)
    try:
        return _counted(spark, pin, pinned, log.snapshot_at(pinned.passed_version), pinned_snapshot)
    except (TableError, PinError) as error:
        _log.info("changes of %s before pin %s was made are not counted: %s", pinned.table, pin.name, error)
        return None


def _then_and_now(spark: SparkSession, pin: Pin, table: str) -> tuple[PinnedTable, Snapshot, Snapshot]:
    """Return what is pinned of a table, that version, and the newest one."""
    pinned = _pinned(spark, pin, table)
    log = DeltaTableLog(spark, pinned.location)
    newest = log.snapshot()
    return pinned, pinned_version(log, pin, pinned), newest


def _counted(spark: SparkSession, pin: Pin, pinned: PinnedTable, one: Snapshot, other: Snapshot) -> ChangedSince:
    if one.version == other.version:
        files = 2 * VersionFiles(spark, one).count()
        return ChangedSince(table=pinned.table, version=one.version, rows_new=0, rows_gone=0, files=files, files_read=0)
    difference = _Difference(spark, pin, pinned, one, other)
    files_read = difference.new.count() + difference.gone.count()
    new, gone = 0, 0
    if files_read:
        more, less = (F.sum(F.greatest(sign * F.col(_TIMES), F.lit(0))) for sign in (1, -1))
        try:
            new, gone = (number or 0 for number in difference.times().agg(more, less).collect()[0])
        except (*JVM_ERRORS, PySparkException) as error:
            reason = one_sentence(error)
            raise PinError(f"{pinned.table} cannot be compared with pin {pin.name}: {reason}") from error
    return ChangedSince(
        table=pinned.table,
        version=other.version,
        rows_new=new,
        rows_gone=gone,
        files=difference.files,
        files_read=files_read,
    )


class _Difference:
    """Of which files two versions of a pinned table differ, in what belongs to the pin's moment."""

    def __init__(self, spark: SparkSession, pin: Pin, pinned: PinnedTable, one: Snapshot, other: Snapshot) -> None:
        then, now = (_Side(spark, pin, pinned, each) for each in (one, other))
        self.names = then.schema.names
        there = {name.lower() for name in now.schema.names}
        if missing := [name for name in self.names if name.lower() not in there]:
            raise PinError(f"{pinned.table} has no column {', '.join(missing)} any more, but pin {pin.name} has")
        self.files = then.all_files + now.all_files
        self.new, self.gone = now.files.without(then.files), then.files.without(now.files)
        self._schema = then.schema
        self._conditions = (now.condition, then.condition)

    def times(self) -> DataFrame:
        """Return each row of those files once, and how many times more often the later version has it."""
        # By these rows are grouped, whatever their types.
        same = {f"{_SAME}{number}": comparable(field) for number, field in enumerate(self._schema)}
        whole = list(map(quoted, self.names))
        new, gone = (
            files.rows()
            .where(condition)
            .select(*whole, *(value.alias(name) for name, value in same.items()), F.lit(sign).alias(_TIMES))
            for files, condition, sign in zip((self.new, self.gone), self._conditions, (1, -1), strict=True)
        )
        first = (F.first(quoted(name)).alias(name) for name in self.names)
        return new.union(gone).groupBy(*same).agg(*first, F.sum(_TIMES).alias(_TIMES)).drop(*same)


def refuse_missing_files(spark: SparkSession, pin: Pin, pinned: PinnedTable) -> None:
    """Make sure that the data files of a version that a pin keeps are there.

    Raises:
        PinError: some are not, or the version is not.
        StorageError: they cannot be listed.

    """
    version = pinned_version(DeltaTableLog(spark, pinned.location), pin, pinned)
    try:
        missing = (
            VersionFiles(spark, version)
            .paths()
            .join(listed_files(spark, version), "path", "left_anti")
            .limit(_SHOWN)
            .collect()
        )
    except (*JVM_ERRORS, PySparkException) as error:
        raise StorageError(f"the files of {pinned.location} cannot be listed: {one_sentence(error)}") from error
    if missing:
        shown = ", ".join(row["path"] for row in missing)
        raise PinError(f"pin {pin.name} no longer holds: data files of {pinned.table} are gone, such as {shown}")


def version_of(spark: SparkSession, pin: Pin, pinned: PinnedTable) -> TableState:
    """Return schema and partitioning of a version that a pin keeps.

    Raises:
        PinError: it is not there any more.

    """
    state = pinned_version(DeltaTableLog(spark, pinned.location), pin, pinned).state
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
        try:
            self.files = files if condition is None else files.within(condition)
        except (*JVM_ERRORS, PySparkException) as error:
            reason = one_sentence(error)
            raise PinError(f"version {snapshot.version} of {pinned.table} cannot be read: {reason}") from error
        self.condition = F.expr("true") if condition is None else condition


def _pinned(spark: SparkSession, pin: Pin, table: str) -> PinnedTable:
    return pin.of(canonical_table_uri(locate_table(spark, table)))


def pinned_version(log: DeltaTableLog, pin: Pin, pinned: PinnedTable) -> Snapshot:
    """Return the version that a pin keeps of a table.

    Raises:
        PinError: it is not there any more, or another table is at its place.
        StorageError: the store does not answer.

    """
    try:
        found = log.snapshot_at(pinned.version)
    except TableError as error:
        raise PinError(f"pin {pin.name} no longer holds: {error}") from error
    if found.table_id != pinned.table_id:
        raise PinError(f"pin {pin.name} is of another table, which was at {pinned.table} before: remove it")
    return found


def _condition(pin: Pin, pinned: PinnedTable, schema: StructType) -> Column | None:
    if pin.at is None or pinned.event_time is None:
        return None
    return up_to(schema, pinned.event_time, pin.at, pinned.table)
