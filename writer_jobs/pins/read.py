"""Read a pin: its rows, and the rows of its moment that were added or removed since it was taken.

The moment of a pin is its ``at``. A row belongs to the moment if its event time is not after it; without ``at`` all
rows do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DateType, StructType, TimestampType

from lock_manager import canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.delta.data_files import DataFiles
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.listings import list_files
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError, TableError
from writer_jobs.merge.merge_sql import comparable

_log = logging.getLogger(__name__)

#: Column of :func:`rows_since` with the kind of change.
CHANGE = "__CHANGE"
_SURPLUS, _GROUP_KEY = "__sluice_surplus", "__sluice_group_key"
_SHOWN_FILES = 3


@dataclass(frozen=True, kw_only=True)
class ChangedSince:
    """Difference between the pinned version of a table and another version, in the rows of the pin's moment.

    A row that was replaced counts once as new and once as gone.

    Attributes:
        table: Canonical URI.
        version: Number of the later version.
        rows_new: Number of rows that only the later version has.
        rows_gone: Number of rows that only the earlier version has.
        files: Number of data files of both versions.
        files_read: Number of these files that were read to compare the versions.

    """

    table: str
    version: int
    rows_new: int
    rows_gone: int
    files: int
    files_read: int


def pinned_rows(spark: SparkSession, pin: Pin, table: str) -> DataFrame:
    """Return the pinned rows of a table: the same rows each time.

    Args:
        spark: The session.
        pin: Pin, see :func:`take_pin` and :func:`find_pin`.
        table: Location or name in the catalog.

    Raises:
        PinError: The pin is not of this table, or its version is gone.
        TableError, StorageError: There is no such table, or it cannot be read.

    """
    pinned_table = _pinned_table(spark, pin, table)
    pinned_version(DeltaTableLog(spark, pinned_table.location), pin, pinned_table)
    rows = spark.read.format("delta").option("versionAsOf", pinned_table.version).load(pinned_table.location)
    return rows if (condition := _condition(pin, pinned_table, rows.schema)) is None else rows.where(condition)


def rows_since(spark: SparkSession, pin: Pin, table: str) -> DataFrame:
    """Return the rows of a pin's moment that were added or removed since the pin was taken.

    The pinned rows without the removed ones and with the added ones are the rows of the moment in the newest version.

    Args:
        spark, pin, table: See :func:`pinned_rows`.

    Returns:
        The columns of the pinned version, and ``__CHANGE``: ``new`` or ``gone``. A replaced row is there once as
        ``new`` and once as ``gone``. Columns that were added to the table since then are left out.

    Raises:
        PinError: The pin is not of this table, or its version is gone, or the table has lost a column of that version.
        TableError, StorageError: There is no such table, or it cannot be read.

    """
    difference = _Difference(spark, pin, *_pinned_and_newest(spark, pin, table))
    change = F.when(F.col(_SURPLUS) > 0, "new").otherwise("gone").alias(CHANGE)
    repetitions = F.explode(F.sequence(F.lit(1), F.abs(_SURPLUS))).alias(_SURPLUS)
    rows = difference.surplus().where(F.col(_SURPLUS) != 0)
    return rows.select(*map(quoted, difference.names), change, repetitions).drop(_SURPLUS)


def changed_since(spark: SparkSession, pin: Pin, table: str) -> ChangedSince:
    """Count the rows of a pin's moment that were added or removed since the pin was taken.

    This reads only files that are in exactly one of the two versions and that, by their statistics, may have rows of
    the moment.

    Args:
        spark, pin, table: See :func:`pinned_rows`.

    Raises:
        PinError, TableError, StorageError: See :func:`rows_since`.

    """
    return _count_changes(spark, pin, *_pinned_and_newest(spark, pin, table))


def changed_before(spark: SparkSession, pin: Pin, table: str) -> ChangedSince | None:
    """Count the rows of a pin's moment that were added or removed before the pin was taken.

    This compares the version at which all watermarks were past the moment with the pinned version.

    Returns:
        None if the version at which all watermarks were past the moment is unknown or can no longer be read, because
        its log or its files were removed.

    Raises:
        PinError, TableError, StorageError: See :func:`rows_since`.

    """
    pinned_table = _pinned_table(spark, pin, table)
    if pinned_table.passed_version is None:
        return None
    log = DeltaTableLog(spark, pinned_table.location)
    pinned_snapshot = pinned_version(log, pin, pinned_table)
    try:
        passed_snapshot = log.snapshot_at(pinned_table.passed_version)
        return _count_changes(spark, pin, pinned_table, passed_snapshot, pinned_snapshot)
    except (TableError, PinError) as error:
        _log.info("changes of %s before pin %s are not counted: %s", pinned_table.table, pin.name, error)
        return None


def _pinned_and_newest(spark: SparkSession, pin: Pin, table: str) -> tuple[PinnedTable, Snapshot, Snapshot]:
    """Return a table of a pin, its pinned version, and its newest version."""
    pinned_table = _pinned_table(spark, pin, table)
    log = DeltaTableLog(spark, pinned_table.location)
    newest = log.snapshot()
    return pinned_table, pinned_version(log, pin, pinned_table), newest


def _count_changes(
    spark: SparkSession, pin: Pin, pinned_table: PinnedTable, earlier_snapshot: Snapshot, later_snapshot: Snapshot
) -> ChangedSince:
    if earlier_snapshot.version == later_snapshot.version:
        files, files_read, rows_new, rows_gone = 2 * DataFiles(spark, earlier_snapshot).count(), 0, 0, 0
    else:
        difference = _Difference(spark, pin, pinned_table, earlier_snapshot, later_snapshot)
        files, files_read = difference.file_count, difference.files_new.count() + difference.files_gone.count()
        try:
            rows_new, rows_gone = difference.count_rows() if files_read else (0, 0)
        except SPARK_ERRORS as error:
            reason = error_reason(error)
            raise PinError(f"{pinned_table.table} cannot be compared with pin {pin.name}: {reason}") from error
    return ChangedSince(
        table=pinned_table.table,
        version=later_snapshot.version,
        rows_new=rows_new,
        rows_gone=rows_gone,
        files=files,
        files_read=files_read,
    )


class _Difference:
    """The files that only one of two versions of a pinned table has, and their rows of the pin's moment."""

    def __init__(
        self,
        spark: SparkSession,
        pin: Pin,
        pinned_table: PinnedTable,
        earlier_snapshot: Snapshot,
        later_snapshot: Snapshot,
    ) -> None:
        self._earlier, self._later = (
            _MomentFiles(spark, pin, pinned_table, snapshot) for snapshot in (earlier_snapshot, later_snapshot)
        )
        self.names = self._earlier.schema.names
        later_names = {name.lower() for name in self._later.schema.names}
        if missing_columns := [name for name in self.names if name.lower() not in later_names]:
            raise PinError(f"{pinned_table.table} has lost the columns {', '.join(missing_columns)} of pin {pin.name}")
        self.file_count = self._earlier.file_count + self._later.file_count
        self.files_new = self._later.files.without(self._earlier.files)
        self.files_gone = self._earlier.files.without(self._later.files)

    def surplus(self) -> DataFrame:
        """Return each row of these files once, and how many more times the later version has it (negative: fewer)."""
        # Columns of any type, in a form that can be grouped.
        keys = {f"{_GROUP_KEY}{index}": comparable(field) for index, field in enumerate(self._earlier.schema)}
        columns = list(map(quoted, self.names))
        added_rows, removed_rows = (
            files.rows()
            .where(condition)
            .select(*columns, *(key.alias(name) for name, key in keys.items()), F.lit(sign).alias(_SURPLUS))
            for files, condition, sign in (
                (self.files_new, self._later.condition, 1),
                (self.files_gone, self._earlier.condition, -1),
            )
        )
        values = (F.first(quoted(name)).alias(name) for name in self.names)
        return added_rows.union(removed_rows).groupBy(*keys).agg(*values, F.sum(_SURPLUS).alias(_SURPLUS)).drop(*keys)

    def count_rows(self) -> tuple[int, int]:
        """Return how many rows only the later version has, and how many only the earlier one has."""
        later_surplus, earlier_surplus = (F.sum(F.greatest(sign * F.col(_SURPLUS), F.lit(0))) for sign in (1, -1))
        counts = self.surplus().agg(later_surplus, earlier_surplus).collect()[0]
        return counts[0] or 0, counts[1] or 0


class _MomentFiles:
    """The data files of one version that may have rows of a pin's moment, and the condition of these rows."""

    def __init__(self, spark: SparkSession, pin: Pin, pinned_table: PinnedTable, snapshot: Snapshot) -> None:
        state = snapshot.state
        if state is None:
            raise TableError(f"there is no Delta table at {pinned_table.location} any more")
        self.schema = state.schema
        condition = _condition(pin, pinned_table, state.schema)
        files = DataFiles(spark, snapshot)
        self.file_count = files.count()
        try:
            self.files = files if condition is None else files.within(condition)
        except SPARK_ERRORS as error:
            reason = error_reason(error)
            raise PinError(f"version {snapshot.version} of {pinned_table.table} cannot be read: {reason}") from error
        self.condition = F.expr("true") if condition is None else condition


def refuse_missing_files(spark: SparkSession, pin: Pin, pinned_table: PinnedTable) -> None:
    """Check that all data files of a pinned version exist.

    Raises:
        PinError: A data file is missing, or the version is gone.
        StorageError: The files cannot be listed.

    """
    snapshot = pinned_version(DeltaTableLog(spark, pinned_table.location), pin, pinned_table)
    try:
        paths = DataFiles(spark, snapshot).paths()
        missing_files = paths.join(list_files(spark, snapshot), "path", "left_anti").limit(_SHOWN_FILES).collect()
    except SPARK_ERRORS as error:
        raise StorageError(f"the files of {pinned_table.location} cannot be listed: {error_reason(error)}") from error
    if missing_files:
        examples = ", ".join(row["path"] for row in missing_files)
        table = pinned_table.table
        raise PinError(f"pin {pin.name} no longer holds: data files of {table} are missing, such as {examples}")


def pinned_state(spark: SparkSession, pin: Pin, pinned_table: PinnedTable) -> TableState:
    """Return the schema and partitioning of a pinned version; raise PinError if the version is gone."""
    state = pinned_version(DeltaTableLog(spark, pinned_table.location), pin, pinned_table).state
    if state is None:
        raise PinError(f"pin {pin.name} no longer holds: {pinned_table.table} has no version {pinned_table.version}")
    return state


def pinned_version(log: DeltaTableLog, pin: Pin, pinned_table: PinnedTable) -> Snapshot:
    """Return the pinned version of a table.

    Raises:
        PinError: The version is gone, or the location has another table now.
        StorageError: The store does not answer.

    """
    try:
        snapshot = log.snapshot_at(pinned_table.version)
    except TableError as error:
        raise PinError(f"pin {pin.name} no longer holds: {error}") from error
    if snapshot.table_id != pinned_table.table_id:
        raise PinError(
            f"pin {pin.name} is of a table that was at {pinned_table.table} before the present one: remove the pin"
        )
    return snapshot


def _pinned_table(spark: SparkSession, pin: Pin, table: str) -> PinnedTable:
    return pin.of(canonical_table_uri(locate_table(spark, table)))


def _condition(pin: Pin, pinned_table: PinnedTable, schema: StructType) -> Column | None:
    """Return the condition that a row belongs to a pin's moment; None: all rows do."""
    if pin.at is None or pinned_table.event_time is None:
        return None
    return F.expr(up_to_sql(schema, pinned_table.event_time, pin.at, pinned_table.table))


def up_to_sql(schema: StructType, event_time: str, moment: datetime, table: str) -> str:
    """Return the condition that a row's event time is not after a moment; it has the same meaning in every session.

    Its literal has the column's type, so that Delta can skip files by their statistics. A date stands for the start of
    that day in UTC, as in watermarks.

    Args:
        moment: A time with a time zone.
        table: Canonical URI, for error messages.

    Raises:
        PinError: There is no such column, or it is neither a timestamp nor a date.

    """
    in_utc = moment.astimezone(UTC)
    for field in schema:
        if field.name.lower() == event_time.lower():
            if isinstance(field.dataType, TimestampType):
                return f"{quoted(field.name)} <= TIMESTAMP_LTZ '{in_utc.isoformat()}'"
            if isinstance(field.dataType, DateType):
                return f"{quoted(field.name)} <= DATE '{in_utc.date().isoformat()}'"
            data_type = field.dataType.simpleString()
            raise PinError(f"the event time {event_time} of {table} must be a timestamp or a date, got {data_type}")
    raise PinError(f"{table} has no column {event_time}; its columns are {', '.join(schema.names)}")
