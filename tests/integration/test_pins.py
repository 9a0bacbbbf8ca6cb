"""Pins: a pinned version stays readable, and its rows stay the same after writes, rewrites and VACUUM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from sluice.audit.verify import verify_table
from sluice.local.s3 import LocalS3
from tests.support.deliveries import Killed
from writer_jobs import (
    LockedDeltaWriter,
    Pin,
    PinError,
    StorageError,
    WriteFailedError,
    apply_rows,
    changed_since,
    find_pin,
    list_pins,
    locked,
    pinned_rows,
    remove_pin,
    rows_since,
    stream_into,
    take_pin,
    vacuum,
)
from writer_jobs.delta.data_files import DataFiles
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.maintenance.vacuum import VacuumResult
from writer_jobs.pins import take
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import CHANGE, ChangedSince, changed_before
from writer_jobs.pins.retention import RETENTION_PROPERTY

pytestmark = pytest.mark.spark

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = "key long, at timestamp, place string, value string"
FILE_RETENTION, LOG_RETENTION = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
MISSING_FILE = r"does not exist|FILE_NOT_EXIST|No such file"


def day(number: float) -> datetime:
    return BEGIN + timedelta(days=number)


def in_days(number: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=number)


def keys_of(rows: DataFrame) -> list[int]:
    return sorted(row["key"] for row in rows.collect())


@dataclass
class PinnableTable:
    """A table, its writer and its pins."""

    spark: SparkSession
    manager: ZookeeperLockManager
    copy_of: Callable[..., Path]
    location: str

    @property
    def path(self) -> Path:
        return Path(self.location)

    @cached_property
    def writer(self) -> LockedDeltaWriter:
        return LockedDeltaWriter(self.spark, self.manager, self.location)

    def create(self, rows: int = 3, *, files: int = 1, properties: str = "") -> None:
        """Copy a table with one row for each day. Keys count from 0; the only version is 0."""
        tblproperties = f"TBLPROPERTIES ({properties})" if properties else ""
        self.copy_of(
            f"CREATE TABLE {{t}} USING delta PARTITIONED BY (place) {tblproperties} AS SELECT id AS key, "
            f"timestamp_seconds({BEGIN.timestamp():.0f} + id * 86400) AS at, 'a+b c%20' AS place, "
            f"concat('row ', id) AS value FROM range(0, {rows}, 1, {files})"
        )

    def append(self, keys: Iterable[int]) -> None:
        """Append rows like those of ``create`` as one file."""
        rows = [(key, day(key), "a+b c%20", f"row {key}") for key in keys]
        self.writer.append(self.spark.createDataFrame(rows, SCHEMA).coalesce(1), partition_by=["place"])

    def apply(self, stream: str, batch: int, *rows: tuple[int, float, str]) -> None:
        """Apply a batch of a stream: ``apply("stream", 0, (key, days, value), …)``."""
        data = self.spark.createDataFrame([(key, day(days), "a", value) for key, days, value in rows], SCHEMA)
        apply_rows(
            self.writer,
            data.coalesce(1),
            keys=["key"],
            event_time="at",
            sequence_by="concat(value)",
            txn=(stream, batch),
        )

    def rewrite(self) -> None:
        """Move each row to another file."""
        self.writer.update({"value": "concat(value, '!')"})

    def sql(self, statement: str) -> None:
        """Run a statement under the lock; ``{t}`` stands for the table."""
        with locked(self.spark, self.location, manager=self.manager):
            self.spark.sql(statement.replace("{t}", f"delta.`{self.location}`"))

    def set_file_retention(self, interval: str) -> None:
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{FILE_RETENTION}' = 'interval {interval}')")

    def retention(self) -> dict[str, str]:
        """Return the properties that a pin may change."""
        properties = DeltaTable(self.location).metadata().configuration
        return {
            name: value
            for name, value in properties.items()
            if name in (FILE_RETENTION, LOG_RETENTION, RETENTION_PROPERTY)
        }

    def data_files(self) -> set[str]:
        return {path.name for path in self.path.rglob("*.parquet") if "_delta_log" not in path.parts}

    def keys(self, version: int | None = None) -> list[int]:
        """Read the keys with delta-rs."""
        rows = DeltaTable(self.location, version=version).to_pyarrow_table()
        return sorted(rows.column("key").to_pylist())

    def vacuum(self, **options: Any) -> VacuumResult:
        return vacuum(self.spark, self.location, **{"retain": timedelta(0), "manager": self.manager, **options})

    def stock_vacuum(self, retain: str = "") -> None:
        """Run Delta's own VACUUM."""
        # Spark lists folders in this number of tasks; the default is 10,000.
        parallelism = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
        previous = self.spark.conf.get(parallelism)
        self.spark.conf.set(parallelism, "1")
        try:
            self.sql(f"VACUUM {{t}} {retain}")
        finally:
            self.spark.conf.set(parallelism, previous)

    def pin(self, name: str = "x", *, days: float = 1, column: str | None = None, **options: Any) -> Pin:
        """Pin the newest version for a number of days."""
        return pin_tables(self, name=name, days=days, column=column, **options)

    def pins(self) -> list[Pin]:
        return list_pins(self.spark, self.location)

    def find_pin(self, name: str = "x") -> Pin:
        return find_pin(self.spark, self.location, name)

    def remove_pin(self, name: str = "x") -> None:
        remove_pin(self.spark, self.location, name, manager=self.manager)

    def pinned_keys(self, pin: Pin) -> list[int]:
        return keys_of(pinned_rows(self.spark, pin, self.location))

    def changed_since(self, pin: Pin) -> ChangedSince:
        return changed_since(self.spark, pin, self.location)


def pin_tables(
    *tables: PinnableTable, name: str = "x", days: float = 1, column: str | None = None, **options: Any
) -> Pin:
    options = {"expires_at": in_days(days), "manager": tables[0].manager, **options}
    return take_pin(tables[0].spark, {table.location: column for table in tables}, name=name, **options)


@pytest.fixture
def table(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], tmp_path: Path
) -> PinnableTable:
    """A location for a table; a test creates the table."""
    return PinnableTable(spark, manager, copy_of, str(tmp_path / "table"))


def test_a_pin_keeps_its_rows_and_counts_later_rows(table: PinnableTable) -> None:
    for batch in range(3):
        table.apply("flights", batch, *((key, key, "1") for key in range(batch * 25, batch * 25 + 25)))
    pin = table.pin("day-49", column="at", at=day(49))
    assert table.find_pin("day-49") == pin
    assert table.pins() == [pin]
    assert table.pinned_keys(pin) == list(range(50))
    no_changes = table.changed_since(pin)
    assert (no_changes.rows_new, no_changes.rows_gone, no_changes.files_read, no_changes.files) == (0, 0, 0, 6)

    # These are a late row, a new version of a row, and a row after the pinned moment.
    table.apply("flights", 3, (1000, 12.5, "late"), (30, 30, "2"), (100, 100, "1"))
    changes = table.changed_since(pin)
    assert (changes.rows_new, changes.rows_gone) == (2, 1)
    assert 0 < changes.files_read <= 4
    changed_rows = rows_since(table.spark, pin, table.location).collect()
    assert sorted((row["key"], row["value"], row[CHANGE]) for row in changed_rows) == [
        (30, "1", "gone"), (30, "2", "new"), (1000, "late", "new"),
    ]  # fmt: skip
    assert table.pinned_keys(pin) == list(range(50))


@pytest.mark.full
def test_a_compaction_is_not_counted_as_a_change(table: PinnableTable) -> None:
    table.create(rows=40, files=4)
    pin = table.pin()
    table.writer.optimize()
    no_changes = table.changed_since(pin)
    assert (no_changes.rows_new, no_changes.rows_gone, no_changes.files_read) == (0, 0, 5)
    assert rows_since(table.spark, pin, table.location).isEmpty()
    table.writer.delete("key < 5")
    assert table.changed_since(pin).rows_gone == 5
    assert table.pinned_keys(pin) == list(range(40)) == table.keys(pin.tables[0].version)


@pytest.mark.full
def test_a_moment_at_the_watermark_of_a_stream_is_refused(table: PinnableTable) -> None:
    table.apply("fast", 0, (1, 20, "1"))
    table.apply("slow", 0, (2, 10, "1"))
    with pytest.raises(PinError, match="stream slow has its watermark at 2013-01-11T00:00:00"):
        table.pin(column="at", at=day(10))
    assert table.pins() == []
    assert table.pin(column="at", at=day(10), streams_left_out=["slow"]).at == day(10)
    table.remove_pin()
    assert table.pin(column="at", at=day(9.9)).tables[0].version == DeltaTable(table.location).version()


@pytest.mark.full
def test_a_moment_without_a_watermark_is_refused_by_default(table: PinnableTable) -> None:
    table.create(rows=5)
    options: dict[str, Any] = {"column": "at", "at": day(3)}
    with pytest.raises(PinError, match="has the watermark of a stream"):
        table.pin(**options)
    assert table.pinned_keys(table.pin(**options, without_watermarks=True)) == [0, 1, 2, 3]
    with pytest.raises(PinError, match="has a pin x, taken at"):
        table.pin(**options, without_watermarks=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"expires_at": datetime(2013, 1, 1, tzinfo=UTC)}, PinError, "would have expired already"),
        ({"expires_at": datetime(2100, 1, 1)}, ValueError, "with a time zone"),  # noqa: DTZ001
        ({"name": "../x"}, PinError, "cannot be called"),
        ({"at": BEGIN}, ValueError, "name the column with the event time"),
    ],
)
def test_invalid_arguments_are_refused(
    table: PinnableTable, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        table.pin(**options)


def test_a_column_that_is_no_event_time_is_refused(table: PinnableTable) -> None:
    table.create()
    for column, message in (("value", "must be a timestamp or a date, got string"), ("when", "has no column when")):
        with pytest.raises(PinError, match=message):
            table.pin(column=column, at=BEGIN)


def test_a_missing_or_damaged_pin_is_an_error(table: PinnableTable) -> None:
    table.create()
    for action in (table.find_pin, table.remove_pin):
        with pytest.raises(PinError, match="has no pin x"):
            action()
    (table.path / "_sluice_pins").mkdir()
    (table.path / "_sluice_pins" / "x.json").write_text('{"format": 1')
    # VACUUM cannot know which files the pin keeps, so it removes nothing.
    for action in (table.find_pin, table.vacuum):
        with pytest.raises(PinError, match="is not a readable pin"):
            action()


@pytest.mark.full
def test_a_shallow_clone_is_refused(table: PinnableTable) -> None:
    table.create()
    clone = replace(table, location=f"{table.location}-clone")
    clone.sql(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{table.location}`")
    with pytest.raises(PinError, match="is a shallow clone"):
        clone.pin()


@pytest.fixture
def tables(spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path]) -> list[PinnableTable]:
    """Two tables with one row each."""
    # Copies made by one statement have the same table id, so the statements differ.
    statement = "CREATE TABLE {t} USING delta COMMENT 'NAME' AS SELECT 0L AS id"
    paths = [copy_of(statement.replace("NAME", name), to=name) for name in ("departures", "arrivals")]
    return [PinnableTable(spark, manager, copy_of, str(path)) for path in paths]


@pytest.fixture
def concurrent_writer(zookeeper: Any, tables: list[PinnableTable]) -> Iterator[None]:
    """Append to both tables under one hold, repeatedly, so that under the lock they always have the same version."""
    stop, failures = threading.Event(), []

    def write() -> None:
        rows = pa.table({"id": [0]})
        with ZookeeperLockManager(zookeeper.hosts) as manager:
            while not stop.wait(0.2):
                with manager.acquire_all([table.location for table in tables]):
                    for table in tables:
                        write_deltalake(table.location, rows, mode="append")

    def run() -> None:
        try:
            write()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert failures == []


@pytest.mark.usefixtures("concurrent_writer")
def test_tables_are_pinned_at_one_moment(tables: list[PinnableTable]) -> None:
    versions = set()
    for number in range(3):
        pin = pin_tables(*tables, name=f"pin-{number}")
        departures, arrivals = (table.version for table in pin.tables)
        assert departures == arrivals
        assert tables[1].find_pin(f"pin-{number}") == pin
        versions.add(departures)
    assert len(versions) > 1


@pytest.mark.usefixtures("concurrent_writer")
def test_negative_control_tables_pinned_separately_differ(tables: list[PinnableTable]) -> None:
    for number in range(30):
        departures, arrivals = (table.pin(f"pin-{number}").tables[0].version for table in tables)
        if departures != arrivals:
            return
    pytest.fail("tables that were pinned separately always had the same version")


@contextmanager
def killed_while_writing(monkeypatch: pytest.MonkeyPatch, folder: str) -> Iterator[None]:
    """Simulate a process that is killed when it writes a pin into this folder: nothing is cleaned up."""
    create = PinFiles.create

    def create_or_end(pins: PinFiles, pin: Pin) -> None:
        if folder in pins._folder:
            raise Killed
        create(pins, pin)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(take, "_undo_on_error", lambda *_: nullcontext([]))
        patch.setattr(PinFiles, "create", create_or_end)
        yield


@pytest.mark.full
def test_a_run_killed_between_tables_leaves_an_incomplete_pin(
    tables: list[PinnableTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_while_writing(monkeypatch, "/arrivals/"):
        pin_tables(*tables)
    with pytest.raises(PinError, match="is not in all of its tables"):
        tables[0].find_pin()
    # The incomplete pin keeps files until it is removed or taken again.
    tables[0].writer.delete()
    assert tables[0].vacuum().kept_for_pins == 1
    pin = pin_tables(*tables)
    assert tables[1].find_pin() == pin
    tables[1].remove_pin()
    assert [table.pins() for table in tables] == [[], []]


def test_a_pin_that_fails_for_one_table_is_removed_from_all(
    tables: list[PinnableTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = PinFiles.create

    def create_or_fail(pins: PinFiles, pin: Pin) -> None:
        if "/arrivals/" in pins._folder:
            raise StorageError("the store refuses")
        create(pins, pin)

    monkeypatch.setattr(PinFiles, "create", create_or_fail)
    with pytest.raises(StorageError, match="the store refuses"):
        pin_tables(*tables, days=100)
    for table in tables:
        assert table.pins() == []
        assert table.retention() == {}


def test_a_late_run_neither_replaces_nor_removes_a_pin(table: PinnableTable) -> None:
    table.create()
    pin = table.pin()
    pins, late_pin = PinFiles(HadoopFiles.of(table.spark), pin.tables[0].location), replace(pin, pin_id="late")
    with pytest.raises(StorageError, match="already exists with different content"):
        pins.create(late_pin)
    pins.remove(late_pin)
    assert table.pins() == [pin]


def test_vacuum_keeps_pinned_files_and_removes_unpinned_ones(table: PinnableTable) -> None:
    table.create(rows=30, files=3)
    pin = table.pin("first")
    pinned_files = table.data_files()
    table.rewrite()
    unpinned_files = table.data_files() - pinned_files
    table.rewrite()
    needed_files = table.data_files() - unpinned_files

    dry_run = table.vacuum(dry_run=True)
    assert table.data_files() == needed_files | unpinned_files
    result = table.vacuum()
    assert (dry_run.files, dry_run.size) == (result.files, result.size) == (len(unpinned_files), result.size)
    assert (result.kept_for_pins, result.pins) == (len(pinned_files), ("first",))
    assert table.data_files() == needed_files
    assert table.pinned_keys(pin) == list(range(30)) == table.keys(0)
    with pytest.raises(Exception, match=MISSING_FILE):
        table.spark.read.format("delta").option("versionAsOf", 1).load(table.location).collect()


def test_negative_control_without_the_pin_the_read_fails(table: PinnableTable) -> None:
    table.create()
    pin = table.pin()
    table.rewrite()
    table.remove_pin()
    assert table.vacuum().files == 1
    with pytest.raises(Exception, match=MISSING_FILE):
        table.pinned_keys(pin)
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        table.keys(0)
    assert table.keys() == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    "location", ["s3a://{root}/pins/a b+c%20/", pytest.param("s3://root-of-pins/", marks=pytest.mark.soak)]
)
def test_a_table_on_s3_is_pinned_under_any_of_its_names(table: PinnableTable, s3: Any, location: str) -> None:
    if "root-of-pins" in location:
        if not isinstance(s3, LocalS3):
            pytest.skip("needs a bucket of its own")
        s3.create_bucket("root-of-pins")
    table = replace(table, location=location.format(root=s3.root))
    rows = table.spark.range(0, 2, 1, 2).selectExpr("id as key", "'x y' as place")
    table.writer.append(rows, partition_by=["place"])
    pin = table.pin()
    table.writer.update({"key": "key + 10"})
    table.writer.update({"key": "key + 10"})
    result = table.vacuum()
    assert (result.files, result.kept_for_pins) == (2, 2)
    assert table.vacuum().files == 0
    scheme, path = table.location.split("://")
    alias = replace(table, location=f"{'s3a' if scheme == 's3' else 's3'}://{path}")
    assert alias.pinned_keys(pin) == [0, 1]
    assert keys_of(table.spark.read.format("delta").load(table.location)) == [20, 21]
    alias.remove_pin()
    assert table.vacuum().files == 2


@pytest.mark.full
def test_requests_of_a_measurement_do_not_grow_with_files(
    spark: SparkSession, manager: ZookeeperLockManager, s3: Any
) -> None:
    from writer_jobs.maintenance.measure import measure

    store = spark._jvm.org.apache.hadoop.fs.Path(f"s3a://{s3.root}/").getFileSystem(
        spark._jsparkSession.sessionState().newHadoopConf()
    )

    def requests() -> dict[str, int]:
        counters = store.getIOStatistics().counters()
        return {name: int(counters.get(name)) for name in ("object_metadata_request", "object_list_request")}

    def requests_for(files: int) -> dict[str, int]:
        table = f"s3a://{s3.root}/measured-{files}"
        rows = spark.range(0, files, 1, files).selectExpr("id as key", "id % 2 as place")
        LockedDeltaWriter(spark, manager, table).append(rows, partition_by=["place"])
        earlier_requests = requests()
        assert measure(spark, table).health.total.total.files == files
        assert vacuum(spark, table, manager=manager, dry_run=True).files == 0
        return {name: number - earlier_requests[name] for name, number in requests().items()}

    requests_for_2_files, requests_for_60_files = requests_for(2), requests_for(60)
    assert requests_for_2_files["object_list_request"] > 0
    increases = {name: requests_for_60_files[name] - number for name, number in requests_for_2_files.items()}
    assert max(increases.values()) < 10, increases


@pytest.mark.full
def test_deletion_vectors_of_a_pinned_version_are_kept(table: PinnableTable) -> None:
    table.copy_of(
        "create table {t} using delta tblproperties ('delta.enableDeletionVectors' = 'true') as "
        "select /*+ coalesce(1) */ id as key from range(100)",
        "delete from {t} where key % 10 = 3",
    )
    pin = table.pin()
    table.writer.delete("key % 10 = 4")
    table.writer.update({"key": "key"})
    # With this retention no file is too young to be removed.
    table.set_file_retention("0 hours")
    vectors = {path.name for path in table.path.rglob("*.bin")}
    assert len(vectors) == 2
    table.vacuum()
    assert len({path.name for path in table.path.rglob("*.bin")} & vectors) == 1
    table.sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{FILE_RETENTION}')")
    assert table.pinned_keys(pin) == [key for key in range(100) if key % 10 != 3]


@pytest.mark.full
def test_vacuum_removes_old_uncommitted_files_and_no_young_ones(table: PinnableTable) -> None:
    table.create()
    folder = next(table.path.glob("place=*"))
    young_file, old_file = folder / "part-0-young.parquet", folder / "part-0-old.parquet"
    for path in (young_file, old_file):
        path.write_bytes(b"PAR1")
    eight_days = 8 * 24 * 3600
    os.utime(old_file, (time.time() - eight_days,) * 2)
    result = table.vacuum()
    assert (result.files, old_file.exists(), young_file.exists()) == (1, False, True)
    assert table.keys() == [0, 1, 2]


@pytest.mark.soak
def test_a_stream_continues_during_a_pin_and_vacuums(table: PinnableTable, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    for version in range(3):
        days = [day(key) for key in range(20)]
        rows = {"key": list(range(20)), "at": days, "place": ["a"] * 20, "value": [str(version)] * 20}
        write_deltalake(source, pa.table(rows), mode="append")
    first_batch_applied, pins, failures = threading.Event(), [], []

    def pin_first_batch(batch: int, _: Any) -> None:
        if batch == 0:
            pins.append(table.pin(column="at", at=day(9)))
        first_batch_applied.set()

    def run_stream() -> None:
        try:
            stream_into(
                table.writer,
                table.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source),
                checkpoint=str(tmp_path / "checkpoint"),
                keys=["key"],
                event_time="at",
                sequence_by="concat(value)",
                on_batch=pin_first_batch,
            )
        except Exception as error:
            failures.append(error)

    stream, removed_files = threading.Thread(target=run_stream), []
    stream.start()
    assert first_batch_applied.wait(120)
    while stream.is_alive():
        removed_files.append(table.vacuum().files)
    stream.join()
    removed_files.append(table.vacuum().files)
    assert (failures, sum(removed_files), len(removed_files) > 1) == ([], 1, True)
    rows_in_table = table.spark.read.format("delta").load(table.location).collect()
    assert sorted((row["key"], row["value"]) for row in rows_in_table) == [(key, "2") for key in range(20)]
    (pin,) = pins
    assert table.pinned_keys(pin) == list(range(10))


@pytest.mark.full
def test_files_that_the_store_does_not_remove_are_reported(table: PinnableTable) -> None:
    table.create()
    (path,) = table.path.rglob("place=*/*.parquet")
    table.rewrite()
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(WriteFailedError, match=f"the store has not removed all files, such as .*{path.name}"):
            table.vacuum()
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    assert table.vacuum().files == 1


@pytest.mark.full
def test_the_retention_is_raised_until_the_last_pin_is_removed(table: PinnableTable) -> None:
    table.create(properties=f"'{FILE_RETENTION}' = 'interval 2 days'")
    initial_retention = table.retention()
    short_pin = table.pin("short", days=0.5)
    assert (table.retention(), short_pin.tables[0].version) == (initial_retention, 0)
    longer_pin = table.pin("longer", days=10)
    raised_retention = table.retention()
    assert (raised_retention[FILE_RETENTION], LOG_RETENTION in raised_retention) == ("interval 264 hours", False)
    assert longer_pin.tables[0].version == 1
    table.pin("longest", days=100)
    raised_retention = table.retention()
    assert raised_retention[FILE_RETENTION] == raised_retention[LOG_RETENTION] == "interval 2424 hours"
    for name in ("longest", "longer"):
        table.remove_pin(name)
        assert table.retention() == raised_retention
    table.remove_pin("short")
    assert table.retention() == initial_retention


@pytest.mark.full
def test_a_retention_lowered_by_an_operator_is_raised_again(table: PinnableTable) -> None:
    table.create()
    table.pin("long", days=100)
    table.set_file_retention("2 DAYS")
    (problem,) = verify_table(table.path).problems
    assert f"pin long is in danger: {FILE_RETENTION} is interval 2 DAYS, shorter than the pin lasts" in problem
    table.pin("short")
    assert table.retention()[FILE_RETENTION] == table.retention()[LOG_RETENTION] == "interval 2424 hours"
    assert verify_table(table.path).problems == ()
    for name in ("short", "long"):
        table.remove_pin(name)
    assert table.retention() == {FILE_RETENTION: "interval 2 DAYS"}


def test_vacuum_restores_the_retention_after_a_killed_run(
    table: PinnableTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create()
    with killed_while_writing(monkeypatch, table.location):
        table.pin(days=100)
    assert FILE_RETENTION in table.retention()
    table.vacuum(retain=None)
    assert table.retention() == {}


def test_stock_vacuum_keeps_pinned_files(table: PinnableTable) -> None:
    table.create(properties=f"'{FILE_RETENTION}' = 'interval 0 hours'")
    pin = table.pin()
    pinned_files = table.data_files()
    table.rewrite()
    table.stock_vacuum()
    with pytest.raises(Exception, match="retention"):
        table.stock_vacuum("RETAIN 0 HOURS")
    assert table.pinned_keys(pin) == [0, 1, 2]
    # Control: without the pin, the table's own retention applies, and VACUUM removes the files.
    table.remove_pin()
    table.stock_vacuum()
    assert pinned_files.isdisjoint(table.data_files())


@pytest.mark.full
def test_an_expired_pin_keeps_no_file_and_vacuum_removes_it(table: PinnableTable) -> None:
    table.create()
    pin = table.pin(days=100)
    pins = PinFiles(HadoopFiles.of(table.spark), pin.tables[0].location)
    pins.remove(pin)
    pins.create(replace(pin, expires_at=BEGIN))
    with pytest.raises(PinError, match="expired on 2013"):
        table.find_pin()
    table.rewrite()
    assert table.vacuum().files == 1
    assert (table.pins(), table.retention()) == ([], {})


@pytest.mark.full
def test_a_pinned_version_is_readable_without_the_earlier_log(table: PinnableTable) -> None:
    table.create()
    table.append([3])
    pin = table.pin()
    table.append([4])
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    assert table.keys(pin.tables[0].version) == [0, 1, 2, 3]


@pytest.mark.full
def test_removing_a_copied_pin_keeps_the_original_pin(table: PinnableTable) -> None:
    table.create()
    pin = table.pin()
    copied_table, linked_table = (replace(table, location=f"{table.location}-{suffix}") for suffix in ("copy", "link"))
    shutil.copytree(table.path, copied_table.path)
    with pytest.raises(PinError, match="the files that pin x keeps are unknown: remove the pin"):
        copied_table.vacuum()
    copied_table.remove_pin()
    assert (copied_table.pins(), table.pins()) == ([], [pin])
    # A link is another name of the table itself.
    linked_table.path.symlink_to(table.path)
    with pytest.raises(PinError, match="a table is given twice"):
        pin_tables(table, linked_table, name="y")
    linked_table.remove_pin()
    assert table.pins() == []


@pytest.mark.full
def test_a_pin_does_not_apply_to_a_later_table_at_its_location(table: PinnableTable) -> None:
    table.append(range(3))
    pin = table.pin()
    shutil.rmtree(table.path / "_delta_log")
    for file in table.data_files():
        next(table.path.rglob(file)).unlink()
    table.append(range(5))
    with pytest.raises(PinError, match="is of a table that was at"):
        table.pinned_keys(pin)
    assert "pin x is of an earlier table at this location; remove the pin" in verify_table(table.path).problems


@pytest.mark.soak
def test_undone_commits_and_unnamed_streams_set_no_watermark(table: PinnableTable) -> None:
    table.apply("one", 0, (1, 5, "1"))
    table.apply("one", 1, (2, 20, "1"))
    rows = table.spark.createDataFrame([(3, day(30), "a", "1")], SCHEMA)
    apply_rows(table.writer, rows, keys=["key"], event_time="at", sequence_by="concat(value)")
    with pytest.raises(PinError, match=r"stream one has its watermark at 2013-01-21"):
        table.pin(column="at", at=day(25))
    table.sql("RESTORE {t} TO VERSION AS OF 2")
    with pytest.raises(PinError, match=r"stream one has its watermark at 2013-01-06"):
        table.pin(column="at", at=day(10))
    assert table.pin(column="at", at=day(4)).tables[0].passed_version == 2


@pytest.mark.full
def test_changes_between_the_moment_and_the_pin_are_counted(table: PinnableTable) -> None:
    table.apply("one", 0, *((key, key, "1") for key in range(5)))
    table.apply("one", 1, (10, 10, "1"))
    table.apply("one", 2, (0, 0, "2"), (11, 2.5, "late"))
    table.writer.delete("key = 1")
    pin = table.pin(column="at", at=day(4))
    changes = changed_before(table.spark, pin, table.location)
    assert changes is not None
    assert (pin.tables[0].passed_version, changes.rows_new, changes.rows_gone) == (3, 2, 2)
    assert table.changed_since(pin).rows_new == 0


@pytest.mark.full
def test_rows_are_compared_by_microseconds_and_map_entries(table: PinnableTable) -> None:
    def row(microseconds: int, entries: str) -> DataFrame:
        part = f"named_struct('at', timestamp_micros({microseconds})) as part"
        return table.spark.range(1).selectExpr("id", part, f"map({entries}) as m")

    table.writer.append(row(1, "'a', 1, 'b', 2"))
    pin = table.pin()
    table.writer.overwrite(row(1, "'b', 2, 'a', 1"))
    no_changes = table.changed_since(pin)
    assert (no_changes.rows_new, no_changes.rows_gone, no_changes.files_read) == (0, 0, 2)
    table.writer.overwrite(row(2, "'b', 2, 'a', 1"))
    changes = table.changed_since(pin)
    assert (changes.rows_new, changes.rows_gone) == (1, 1)


@pytest.mark.full
def test_files_of_one_version_are_compared_with_another_version(table: PinnableTable) -> None:
    table.create()
    table.append(range(3, 6))
    old_files, new_files = (DataFiles(table.spark, table.writer.log.snapshot_at(version)) for version in (0, 1))
    assert (new_files.without(old_files).count(), old_files.without(new_files).count()) == (1, 0)
    assert keys_of(new_files.without(old_files).rows()) == [3, 4, 5]
    assert {row[0] for row in new_files.paths().collect()} == {
        str(path.relative_to(table.path)) for path in table.path.rglob("*.parquet") if "_delta_log" not in path.parts
    }


@pytest.mark.full
@pytest.mark.usefixtures("jars")
def test_the_command_lists_adds_and_removes_pins(table: PinnableTable, zookeeper: Any) -> None:
    table.create()

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        command = [sys.executable, "-m", "sluice", "pins", table.location, "--json", *arguments]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return process.returncode, json.loads(process.stdout or "{}"), process.stderr

    assert run() == (0, {"table": table.location, "ok": True, "pins": [], "damaged": []}, "")
    code, report, error = run("--zookeeper", zookeeper.hosts, "--add", "audit", "--expires", "90 days")
    assert code == 0, error
    (pin,) = report["pins"]
    assert (pin["name"], pin["expired"], pin["problem"], pin["tables"][0]["version"]) == ("audit", False, None, 1)
    assert verify_table(table.path).pins == 1

    next(table.path.glob("place=*/*.parquet")).unlink()
    code, report, _ = run()
    assert (code, report["ok"]) == (1, False)
    assert "pin audit is broken: 1 of the 1 data files of version 1 are missing" in report["pins"][0]["problem"]
    assert report["pins"][0]["problem"] in verify_table(table.path).problems
    code, report, error = run("--zookeeper", zookeeper.hosts, "--remove", "audit")
    assert (code, report["pins"]) == (0, []), error
    assert run("--add", "x")[0] == run("--add", "x", "--expires", "soon", "--zookeeper", zookeeper.hosts)[0] == 2
