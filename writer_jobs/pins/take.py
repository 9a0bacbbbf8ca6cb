"""Take and remove pins: all tables of a pin at once, under one hold."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from lock_manager import LockManager, SluiceError, canonical_table_uri
from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable, check_name
from writer_jobs.commit.driver_guard import attach_unless_off
from writer_jobs.delta.data_files import DataFiles
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError, TableError
from writer_jobs.locking import locked_all
from writer_jobs.pins.pin_files import PinFiles, is_complete
from writer_jobs.pins.read import up_to_sql
from writer_jobs.pins.retention import RETENTION_PROPERTY, Retention
from writer_jobs.pins.watermarks import Watermarks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Table:
    """A table of the new pin."""

    uri: str
    log: DeltaTableLog
    event_time: str | None
    pin_files: PinFiles
    retention: Retention
    watermarks: Watermarks | None


def take_pin(
    spark: SparkSession,
    tables: Mapping[str, str | None],
    *,
    name: str,
    expires_at: datetime,
    at: datetime | None = None,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
    streams_left_out: Collection[str] = (),
    without_watermarks: bool = False,
) -> Pin:
    """Pin the newest versions of several tables at one moment at which no writer writes any of them.

    ::

        pin = take_pin(
            spark,
            {"s3a://lake/departures": "departed_at", "s3a://lake/arrivals": "arrived_at"},
            name="2013-01-31",
            at=datetime(2013, 2, 1, tzinfo=UTC),
            expires_at=datetime(2013, 3, 1, tzinfo=UTC),
        )
        rows = pinned_rows(spark, pin, "s3a://lake/departures")

    All tables are locked at once, until their logs are read and the pin is written. If the retention of a table is too
    short for the pin, a commit raises it, and the pinned version is that commit's. When the last pin is gone, the table
    gets its own retention back.

    Args:
        spark: A session with the guarded log store.
        tables: Tables (location or name in the catalog), each with its event-time column; None if ``at`` is None.
        name: Name of the pin; letters, digits, dots, dashes and underscores.
        expires_at: A time with a time zone; the versions are kept until then.
        at: A time with a time zone: rows up to and including this event time belong to the pin. According to the
            table's log, the watermark of each stream that writes a table must be past it. None: all rows belong to the
            pin.
        manager: Lock manager, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: Seconds to wait for the locks on all tables.
        streams_left_out: Ids of streams to ignore, because they have ended.
        without_watermarks: Whether to accept tables whose log has no watermark of a stream.

    Raises:
        ValueError: Arguments contradict each other, or a time has no time zone.
        PinError: The name is invalid or taken, the expiry time has passed, a stream is not past the moment, or a table
            cannot be pinned.
        TableError, StorageError: There is no such table, or it cannot be read or written.
        LockTimeoutError and other errors of :func:`writer_jobs.locked_all`: The tables cannot be locked.

    """
    _check_arguments(tables, name, expires_at, at)
    attach_unless_off(spark)
    files = HadoopFiles.of(spark)
    pin_tables = [_open(spark, files, table, event_time, at) for table, event_time in tables.items()]
    if len({table.uri for table in pin_tables}) < len(pin_tables):
        raise PinError(f"a table is given twice: {', '.join(tables)}; name each table once")
    locations: dict[str, None] = {table.log.location: None for table in pin_tables}
    with locked_all(spark, locations, manager=manager, timeout_seconds=lock_timeout_seconds) as hold:
        other_pins = {table.uri: _remove_expired_and_incomplete(files, table, name) for table in pin_tables}
        passed_versions = {
            table.uri: table.watermarks.passed_version(
                table.uri, left_out=streams_left_out, accept_none=without_watermarks
            )
            for table in pin_tables
            if table.watermarks is not None
        }
        with _undo_on_error(spark, pin_tables) as written_pins:
            for table in pin_tables:
                table.retention.extend_until(expires_at, other_pins[table.uri])
            versions = [(table, table.log.snapshot()) for table in pin_tables]
            pin = Pin(
                name=name,
                pin_id=uuid.uuid4().hex,
                at=at,
                created_at=datetime.now(UTC),
                expires_at=expires_at,
                tables=tuple(
                    PinnedTable(
                        table=table.uri,
                        location=table.log.location,
                        table_id=snapshot.table_id,
                        version=snapshot.version,
                        committed_at=snapshot.committed_at,
                        passed_version=passed_versions.get(table.uri),
                        event_time=table.event_time,
                    )
                    for table, snapshot in versions
                ),
                job=spark.sparkContext.appName,
            )
            hold.check()
            written_pins.append(pin)
            for table in pin_tables:
                table.pin_files.create(pin)
            # If the hold was lost before the pin was written, files of these versions may be gone.
            hold.check()
    for table, snapshot in versions:
        try:
            table.log.make_checkpoint(snapshot.version)
        except StorageError as error:
            # The pinned version stays readable nevertheless, as long as the log before it exists.
            _log.warning("version %d is pinned without a checkpoint of its own: %s", snapshot.version, error)
    return pin


def find_pin(spark: SparkSession, table: str, name: str) -> Pin:
    """Return a pin that has not expired and is in all of its tables.

    Args:
        spark: The session.
        table: One of the pin's tables: location or name in the catalog.
        name: Name of the pin.

    Raises:
        PinError: There is no such pin, it has expired, or a run was killed while it wrote or removed the pin.
        TableError, StorageError: There is no such table, or it cannot be read.

    """
    files, location = HadoopFiles.of(spark), locate_table(spark, table)
    pin = PinFiles(files, location).get(name)
    if not is_complete(files, pin):
        tables = ", ".join(pinned_table.table for pinned_table in pin.tables)
        raise PinError(
            f"pin {name} is not in all of its tables ({tables}): a run was killed, or a table is gone; remove the pin, "
            "or take it again"
        )
    if pin.has_expired():
        raise PinError(
            f"pin {name} expired on {pin.expires_at.isoformat()}, so nothing keeps its files: take a new pin"
        )
    return pin


def list_pins(spark: SparkSession, table: str) -> list[Pin]:
    """Return all pins of a table, including expired pins that are not removed yet.

    Raises:
        PinError: A pin cannot be read.
        TableError, StorageError: There is no such table, or it cannot be read.

    """
    return PinFiles(HadoopFiles.of(spark), locate_table(spark, table)).all()


def remove_pin(
    spark: SparkSession,
    table: str,
    name: str,
    *,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
) -> Pin:
    """Remove a pin, and all expired pins, from each of the pin's tables; return the pin.

    Args:
        spark: A session with the guarded log store.
        table: One of the pin's tables: location or name in the catalog.
        name: Name of the pin.
        manager, lock_timeout_seconds: See :func:`take_pin`.

    Raises:
        PinError: There is no such pin, or it cannot be read.
        TableError, StorageError: There is no such table, or it cannot be read or written.
        LockTimeoutError and other errors of :func:`writer_jobs.locked_all`: The tables cannot be locked.

    """
    attach_unless_off(spark)
    files, location = HadoopFiles.of(spark), locate_table(spark, table)
    pin = PinFiles(files, location).get(name)
    uris = {canonical_table_uri(location): location}
    if any(pinned_table.table in uris for pinned_table in pin.tables):
        for pinned_table in pin.tables:
            uris.setdefault(pinned_table.table, pinned_table.location)
    # Otherwise this table is a copy of a pinned table. The pin is removed from the copy only.
    locations = dict.fromkeys(uris.values())
    with locked_all(spark, locations, manager=manager, timeout_seconds=lock_timeout_seconds):
        for pinned_location in locations:
            PinFiles(files, pinned_location).remove(pin)
        for pinned_location in locations:
            _clean_up(spark, PinFiles(files, pinned_location), DeltaTableLog(spark, pinned_location))
    return pin


def remove_expired_pins(
    spark: SparkSession,
    location: str,
    *,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
) -> None:
    """Remove the expired pins of a table, and restore its retention if no pin is left.

    The function takes the lock only if there is something to do.

    Raises:
        PinError: A pin cannot be read.
        TableError, StorageError, LockTimeoutError and so on: See :func:`remove_pin`.

    """
    pin_files = PinFiles(HadoopFiles.of(spark), location)
    pins, log = pin_files.all(), DeltaTableLog(spark, location)
    is_raised = not pins and log.snapshot().property_of(RETENTION_PROPERTY) is not None
    if is_raised or any(pin.has_expired() for pin in pins):
        with locked_all(spark, {location: None}, manager=manager, timeout_seconds=lock_timeout_seconds):
            _clean_up(spark, pin_files, log)


def _clean_up(spark: SparkSession, pin_files: PinFiles, log: DeltaTableLog) -> None:
    """Remove expired pins, and restore the retention if no pin is left. The caller holds the lock on the table."""
    if not _remove_expired(pin_files):
        Retention(spark, log).restore()


def _remove_expired(pin_files: PinFiles) -> list[Pin]:
    """Remove expired pins, and return the others."""
    for pin in pin_files.all():
        if pin.has_expired():
            pin_files.remove(pin)
    return pin_files.all()


def _remove_expired_and_incomplete(files: HadoopFiles, table: _Table, name: str) -> list[Pin]:
    """Remove expired pins and an incomplete pin with a name, and return the others; refuse a complete one."""
    pins = _remove_expired(table.pin_files)
    pin = table.pin_files.find(name)
    if pin is None:
        return pins
    if is_complete(files, pin):
        raise PinError(f"{table.uri} has a pin {name}, taken at {pin.created_at.isoformat()}: remove it first")
    table.pin_files.remove(pin)
    return table.pin_files.all()


def _check_arguments(tables: Mapping[str, str | None], name: str, expires_at: datetime, at: datetime | None) -> None:
    check_name(name)
    if not tables:
        raise ValueError("give at least one table")
    if any(moment is not None and moment.tzinfo is None for moment in (expires_at, at)):
        raise ValueError("expires_at and at must be times with a time zone")
    if expires_at <= datetime.now(UTC):
        raise PinError(f"pin {name} would have expired already, on {expires_at.isoformat()}: choose a later time")
    for table, event_time in tables.items():
        if (event_time is None) != (at is None):
            raise ValueError(f"{table}: name the column with the event time if and only if at is given")


def _open(spark: SparkSession, files: HadoopFiles, table: str, event_time: str | None, at: datetime | None) -> _Table:
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    snapshot = log.snapshot()
    if snapshot.state is None:
        raise TableError(f"there is no Delta table at {log.location}")
    if DataFiles(spark, snapshot).has_files_elsewhere():
        raise PinError(f"{uri} is a shallow clone, whose files belong to another table: pin that table")
    watermarks = None
    if event_time is not None and at is not None:
        up_to_sql(snapshot.state.schema, event_time, at, uri)
        watermarks = Watermarks(spark, log, at)
    return _Table(uri, log, event_time, PinFiles(files, log.location), Retention(spark, log), watermarks)


@contextmanager
def _undo_on_error(spark: SparkSession, tables: Collection[_Table]) -> Iterator[list[Pin]]:
    """If the block fails, remove the pins in the yielded list from all tables, and restore their retention."""
    written_pins: list[Pin] = []
    try:
        yield written_pins
    except BaseException:
        for table in tables:
            with suppress(SluiceError):
                for pin in written_pins:
                    table.pin_files.remove(pin)
                _clean_up(spark, table.pin_files, table.log)
        raise
