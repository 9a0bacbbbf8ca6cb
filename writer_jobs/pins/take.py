"""Pins are made, and removed: all tables of one at once, under one hold."""

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
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.delta.version_files import VersionFiles
from writer_jobs.errors import StorageError, TableError
from writer_jobs.locking import locked_all
from writer_jobs.pins.moment import up_to
from writer_jobs.pins.pin_files import PinFiles, is_whole, whole_pin
from writer_jobs.pins.retention import Retention
from writer_jobs.pins.watermarks import Watermarks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Table:
    """A table that is to be pinned."""

    uri: str
    log: DeltaTableLog
    event_time: str | None
    pins: PinFiles
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
    """Pin the newest versions of several tables, as they are at one moment when nobody writes any of them.

    ::

        pin = take_pin(
            spark,
            {"s3a://lake/departures": "departed_at", "s3a://lake/arrivals": "arrived_at"},
            name="2013-01-31",
            at=datetime(2013, 2, 1, tzinfo=UTC),
            expires_at=datetime(2013, 3, 1, tzinfo=UTC),
        )
        rows = pinned_rows(spark, pin, "s3a://lake/departures")

    All tables are locked at once, for as long as it takes to look at their logs and to write the pin. A table whose
    retention is too short for the pin gets a longer one by a commit, which is the pinned version then; when the last
    pin is gone, it gets back what it had.

    Args:
        spark: a session with the guarded log store.
        tables: location or name in the catalog, and the column with the event time; None where ``at`` is None.
        name: of the pin; letters, digits, dots, dashes.
        expires_at: with a time zone; until then the versions are kept.
        at: with a time zone: rows up to this event time, and of it, belong to the pin. The watermark of each stream
            that writes a table has to be past it, by the table's log. None: all rows do.
        manager: gives the lock, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: total, for all tables.
        streams_left_out: ids of streams that do not count, because they have ended.
        without_watermarks: also of tables in whose log no stream has noted a watermark.

    Raises:
        ValueError: arguments that contradict each other, a time without a time zone.
        PinError: there is a pin of this name, or a stream is not past the moment, or a table cannot be pinned.
        TableError, StorageError: no such table, or one that cannot be read or written.
        LockTimeoutError and so on: see :func:`writer_jobs.locked_all`.

    """
    _check(tables, name, expires_at, at)
    attach_unless_off(spark)
    files = HadoopFiles.of(spark)
    found = [_found(spark, files, table, event_time, at) for table, event_time in tables.items()]
    if len({each.uri for each in found}) < len(found):
        raise PinError(f"a table is given twice: {', '.join(tables)}")
    everything: dict[str, None] = {each.log.location: None for each in found}
    with locked_all(spark, everything, manager=manager, timeout_seconds=lock_timeout_seconds) as hold:
        # What a table had of this name that nobody can read: it was not whole, or has expired.
        others = {each.uri: _without(files, each, name) for each in found}
        for each in found:
            if each.watermarks is not None:
                each.watermarks.refresh()
        passed = {
            each.uri: each.watermarks.passed(at, each.uri, left_out=streams_left_out, unknown=without_watermarks)
            for each in found
            if each.watermarks is not None and at is not None
        }
        with _taken_back(spark, found) as written:
            for each in found:
                each.retention.keep_until(expires_at, others[each.uri])
            snapshots = {each.uri: each.log.snapshot() for each in found}
            pin = Pin(
                name=name,
                pin_id=uuid.uuid4().hex,
                at=at,
                created_at=datetime.now(UTC),
                expires_at=expires_at,
                tables=tuple(
                    PinnedTable(
                        table=each.uri,
                        location=each.log.location,
                        table_id=snapshots[each.uri].table_id,
                        version=snapshots[each.uri].version,
                        committed_at=snapshots[each.uri].committed_at,
                        passed_version=passed.get(each.uri),
                        event_time=each.event_time,
                    )
                    for each in found
                ),
                job=spark.sparkContext.appName,
            )
            hold.check()
            written.append(pin)
            for each in found:
                each.pins.create(pin)
            # Somebody else may have removed files of these versions, if it was lost before the pin was there.
            hold.check()
    for each, pinned in zip(found, pin.tables, strict=True):
        _make_checkpoint(each.log, pinned.version)
    return pin


def _make_checkpoint(log: DeltaTableLog, version: int) -> None:
    try:
        log.make_checkpoint(version)
    except StorageError as error:
        # The pin is there, and holds as long as the log before it.
        _log.warning("version %d is pinned, without a checkpoint of its own: %s", version, error)


def find_pin(spark: SparkSession, table: str, name: str) -> Pin:
    """Return a pin that holds.

    Args:
        spark: the session.
        table: one of its tables: location or name in the catalog.
        name: of the pin.

    Raises:
        PinError: there is none, it has expired, or a run that made or removed it was killed in the middle.
        TableError, StorageError: no such table, or it cannot be read.

    """
    pin = whole_pin(HadoopFiles.of(spark), locate_table(spark, table), name)
    if pin.has_expired():
        raise PinError(f"pin {name} has expired on {pin.expires_at.isoformat()}: nothing keeps its files any more")
    return pin


def list_pins(spark: SparkSession, table: str) -> list[Pin]:
    """Return all pins of a table, also those that have expired and are not removed yet.

    Raises:
        PinError: one cannot be read.
        TableError, StorageError: no such table, or it cannot be read.

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
    """Remove a pin from all of its tables, and what has expired with it; return what it was.

    Args:
        spark: a session with the guarded log store.
        table: one of its tables: location or name in the catalog.
        name: of the pin.
        manager: gives the lock, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: total, for all tables.

    Raises:
        PinError: there is none, or it cannot be read.
        TableError, StorageError: no such table, or one that cannot be read or written.
        LockTimeoutError and so on: see :func:`writer_jobs.locked_all`.

    """
    attach_unless_off(spark)
    files, location = HadoopFiles.of(spark), locate_table(spark, table)
    pin = PinFiles(files, location).find(name)
    if pin is None:
        raise PinError(f"{location} has no pin {name}")
    places = {canonical_table_uri(location): location}
    if any(each.table in places for each in pin.tables):
        # Else the table is a copy, with the pins of the original.
        places |= {each.table: each.location for each in pin.tables if each.table not in places}
    locations = dict.fromkeys(places.values())
    with locked_all(spark, locations, manager=manager, timeout_seconds=lock_timeout_seconds):
        for each in locations:
            PinFiles(files, each).remove(pin)
        for each in locations:
            _settle(spark, PinFiles(files, each), DeltaTableLog(spark, each))
    return pin


def remove_expired_pins(
    spark: SparkSession,
    location: str,
    *,
    manager: LockManager | None = None,
    lock_timeout_seconds: float | None = None,
) -> None:
    """Remove a table's pins that have expired, and bring back its retention if none is left.

    It takes no lock if there is nothing to do.

    Args:
        spark: a session with the guarded log store.
        location: of the table.
        manager: gives the lock, as for :func:`writer_jobs.locked`.
        lock_timeout_seconds: to wait for it.

    Raises:
        PinError: one cannot be read.
        TableError, StorageError, LockTimeoutError and so on: as for :func:`remove_pin`.

    """
    pins = PinFiles(HadoopFiles.of(spark), location)
    there = pins.all()
    if any(pin.has_expired() for pin in there) or (
        not there and Retention(spark, DeltaTableLog(spark, location)).is_raised()
    ):
        with locked_all(spark, {location: None}, manager=manager, timeout_seconds=lock_timeout_seconds):
            _settle(spark, pins, DeltaTableLog(spark, location))


def _settle(spark: SparkSession, pins: PinFiles, log: DeltaTableLog) -> None:
    """Remove what has expired, and bring back the retention if nothing is left. To be called under the lock."""
    _remove_expired(pins)
    if not pins.all():
        Retention(spark, log).restore()


def _remove_expired(pins: PinFiles) -> None:
    for pin in pins.all():
        if pin.has_expired():
            pins.remove(pin)


def _without(files: HadoopFiles, table: _Table, name: str) -> list[Pin]:
    """Remove what keeps nothing, and what nobody can read under a name; return the pins that are left.

    Raises:
        PinError: there is a pin of this name.

    """
    _remove_expired(table.pins)
    if (there := table.pins.find(name)) is not None:
        if is_whole(files, there):
            raise PinError(f"{table.uri} has a pin {name}, made at {there.created_at.isoformat()}: remove it first")
        table.pins.remove(there)
    return table.pins.all()


def _check(tables: Mapping[str, str | None], name: str, expires_at: datetime, at: datetime | None) -> None:
    check_name(name)
    if not tables:
        raise ValueError("give at least one table")
    if any(moment is not None and moment.tzinfo is None for moment in (expires_at, at)):
        raise ValueError("give times with a time zone")
    if expires_at <= datetime.now(UTC):
        raise PinError(f"a pin until {expires_at.isoformat()} would have expired already")
    for table, event_time in tables.items():
        if (event_time is None) != (at is None):
            raise ValueError(f"{table}: a pin up to a moment needs the column with the event time, and no other does")


def _found(spark: SparkSession, files: HadoopFiles, table: str, event_time: str | None, at: datetime | None) -> _Table:
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    snapshot = log.snapshot()
    if snapshot.state is None:
        raise TableError(f"there is no Delta table at {log.location}")
    if VersionFiles(spark, snapshot).has_files_elsewhere():
        raise PinError(f"{uri} is a shallow clone, whose files are another table's: pin that one")
    watermarks = None
    if event_time is not None and at is not None:
        up_to(snapshot.state.schema, event_time, at, uri)
        watermarks = Watermarks(spark, log)
    return _Table(uri, log, event_time, PinFiles(files, log.location), Retention(spark, log), watermarks)


@contextmanager
def _taken_back(spark: SparkSession, tables: Collection[_Table]) -> Iterator[list[Pin]]:
    """Undo what was done for a pin that did not get into all tables: the pins in the list, and the retention."""
    written: list[Pin] = []
    try:
        yield written
    except BaseException:
        for each in tables:
            with suppress(SluiceError):
                for pin in written:
                    each.pins.remove(pin)
                _settle(spark, each.pins, each.log)
        raise
