"""Pins: one moment of tables that is read again, the same each time, whatever is written, rewritten and removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from sluice.audit.verify import verify_table
from sluice.local.s3 import LocalS3
from tests.support.deliveries import Killed
from writer_jobs import (
    LockedDeltaWriter,
    PinError,
    StorageError,
    WriteFailedError,
    apply_rows,
    changed_since,
    find_pin,
    list_pins,
    locked_all,
    pinned_rows,
    remove_pin,
    rows_since,
    stream_into,
    take_pin,
    vacuum,
)
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.version_files import DataFiles
from writer_jobs.pins import take
from writer_jobs.pins.pin_files import PinFiles
from writer_jobs.pins.read import CHANGE, changed_before
from writer_jobs.pins.retention import RETENTION_PROPERTY

pytestmark = pytest.mark.spark

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = "key long, at timestamp, place string, value string"
NOW = timedelta(0)
FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"


def day(number: float) -> datetime:
    return BEGIN + timedelta(days=number)


def soon(days: float = 1) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


@pytest.fixture
def writer(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> LockedDeltaWriter:
    return LockedDeltaWriter(spark, manager, str(table))


@pytest.fixture
def put(spark: SparkSession, writer: LockedDeltaWriter) -> Callable[..., None]:
    """Append one row for each of these keys, a day each, as one file: ``put(range(10))``."""

    def append(keys: Any, place: str = "a+b c%20") -> None:
        rows = [(key, day(key), place, f"row {key}") for key in keys]
        writer.append(spark.createDataFrame(rows, SCHEMA).coalesce(1), partition_by=["place"])

    return append


@pytest.fixture
def bring(spark: SparkSession, writer: LockedDeltaWriter) -> Callable[..., None]:
    """Bring rows as a batch of a stream: ``bring("stream", 0, (key, days, value), …)``."""

    def apply(stream: str, batch: int, *rows: tuple[int, float, str]) -> None:
        made = spark.createDataFrame([(key, day(days), "a", value) for key, days, value in rows], SCHEMA)
        apply_rows(
            writer, made.coalesce(1), keys=["key"], event_time="at", sequence_by="concat(value)", txn=(stream, batch)
        )

    return apply


def keys_of(rows: DataFrame) -> list[int]:
    return sorted(row["key"] for row in rows.collect())


def elsewhere(table: Path, version: int) -> list[int]:
    """Read the keys of a version with a reader that is not ours."""
    found = DeltaTable(str(table), version=version).to_pyarrow_table()
    return sorted(found.column("key").to_pylist())


def data_files(table: Path) -> set[str]:
    return {path.name for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def rewrite(writer: LockedDeltaWriter) -> None:
    """Have each row in another file than before."""
    writer.update({"value": "concat(value, '!')"})


def stock_vacuum(spark: SparkSession, table: Path, how: str = "") -> None:
    # It lists folders in so many tasks.
    parallel = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    before = spark.conf.get(parallel)
    spark.conf.set(parallel, "1")
    try:
        spark.sql(f"VACUUM delta.`{table}` {how}")
    finally:
        spark.conf.set(parallel, before)


def test_rows_of_the_moment_stay_the_same_and_what_comes_later_is_counted(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, bring: Callable[..., None]
) -> None:
    for batch in range(4):
        bring("flights", batch, *((batch * 25 + each, batch * 25 + each, "1") for each in range(25)))
    pin = take_pin(spark, {str(table): "at"}, name="day-49", at=day(49), expires_at=soon(), manager=manager)
    assert find_pin(spark, str(table), "day-49") == pin
    assert list_pins(spark, str(table)) == [pin]
    assert keys_of(pinned_rows(spark, pin, str(table))) == list(range(50))
    same = changed_since(spark, pin, str(table))
    assert (same.rows_new, same.rows_gone, same.files_read, same.files) == (0, 0, 0, 8)

    # One that is late, another version of one, and one that is not of the moment.
    bring("flights", 4, (1000, 12.5, "late"), (30, 30, "2"), (100, 100, "1"))
    changed = changed_since(spark, pin, str(table))
    assert (changed.rows_new, changed.rows_gone) == (2, 1)
    assert 0 < changed.files_read <= 4
    since = rows_since(spark, pin, str(table)).collect()
    assert sorted((row["key"], row["value"], row[CHANGE]) for row in since) == [
        (30, "1", "gone"), (30, "2", "new"), (1000, "late", "new"),
    ]  # fmt: skip
    assert keys_of(pinned_rows(spark, pin, str(table))) == list(range(50))


@pytest.mark.full
def test_other_files_with_the_same_rows_are_no_change(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    for start in range(0, 40, 10):
        put(range(start, start + 10))
    writer = LockedDeltaWriter(spark, manager, str(table))
    pin = take_pin(spark, {str(table): None}, name="all", expires_at=soon(), manager=manager)
    writer.optimize()
    same = changed_since(spark, pin, str(table))
    assert (same.rows_new, same.rows_gone, same.files_read) == (0, 0, 5)
    assert rows_since(spark, pin, str(table)).isEmpty()
    writer.delete("key < 5")
    assert changed_since(spark, pin, str(table)).rows_gone == 5
    assert keys_of(pinned_rows(spark, pin, str(table))) == list(range(40)) == elsewhere(table, 3)


@pytest.mark.full
def test_a_moment_that_a_stream_is_not_past_is_refused_and_the_stream_is_named(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, bring: Callable[..., None]
) -> None:
    bring("fast", 0, (1, 20, "1"))
    bring("slow", 0, (2, 10, "1"))

    def take_at(moment: datetime, **how: Any) -> Any:
        return take_pin(spark, {str(table): "at"}, name="x", at=moment, expires_at=soon(), manager=manager, **how)

    with pytest.raises(PinError, match="stream slow has its watermark at 2013-01-11T00:00:00"):
        take_at(day(10))
    assert list_pins(spark, str(table)) == []
    assert take_at(day(10), streams_left_out=["slow"]).at == day(10)
    remove_pin(spark, str(table), "x", manager=manager)
    assert take_at(day(9.9)).tables[0].version == DeltaTable(str(table)).version()


@pytest.mark.full
def test_without_a_watermark_nothing_says_that_all_rows_are_there(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(5))
    how: dict[str, Any] = {"name": "x", "at": day(3), "expires_at": soon(), "manager": manager}
    with pytest.raises(PinError, match="no stream has noted a watermark"):
        take_pin(spark, {str(table): "at"}, **how)
    pin = take_pin(spark, {str(table): "at"}, **how, without_watermarks=True)
    assert keys_of(pinned_rows(spark, pin, str(table))) == [0, 1, 2, 3]
    with pytest.raises(PinError, match="has a pin x, made at"):
        take_pin(spark, {str(table): "at"}, **how, without_watermarks=True)


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ({"expires_at": datetime(2013, 1, 1, tzinfo=UTC)}, PinError, "would have expired already"),
        ({"expires_at": datetime(2100, 1, 1)}, ValueError, "with a time zone"),  # noqa: DTZ001
        ({"name": "../x"}, PinError, "cannot be called"),
        ({"at": BEGIN}, ValueError, "needs the column with the event time"),
    ],
)
def test_arguments_that_make_no_pin(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    how: dict[str, Any],
    kind: type[Exception],
    words: str,
) -> None:
    with pytest.raises(kind, match=words):
        take_pin(spark, {str(table): None}, **{"name": "x", "expires_at": soon(), "manager": manager, **how})


def test_columns_that_are_no_event_time(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(2))
    for column, words in (("value", "must be a timestamp or a date, got string"), ("when", "has no column when")):
        with pytest.raises(PinError, match=words):
            take_pin(spark, {str(table): column}, name="x", at=BEGIN, expires_at=soon(), manager=manager)


def test_a_pin_that_is_not_there_or_is_damaged(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(2))
    with pytest.raises(PinError, match="has no pin x"):
        find_pin(spark, str(table), "x")
    with pytest.raises(PinError, match="has no pin x"):
        remove_pin(spark, str(table), "x", manager=manager)
    (table / "_sluice_pins").mkdir()
    (table / "_sluice_pins" / "x.json").write_text('{"format": 1')
    with pytest.raises(PinError, match="is not a readable pin"):
        find_pin(spark, str(table), "x")
    # What it keeps is not known, so nothing is removed.
    with pytest.raises(PinError, match="is not a readable pin"):
        vacuum(spark, str(table), retain=NOW, manager=manager)


@pytest.mark.full
def test_a_shallow_clone_whose_files_are_another_table_s(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, put: Callable[..., None], table: Path
) -> None:
    put(range(2))
    clone = tmp_path / "clone"
    with locked_all(spark, {str(clone): None}, manager=manager):
        spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{table}`")
    with pytest.raises(PinError, match="is a shallow clone"):
        take_pin(spark, {str(clone): None}, name="x", expires_at=soon(), manager=manager)


@pytest.fixture
def pair(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> list[LockedDeltaWriter]:
    writers = [LockedDeltaWriter(spark, manager, str(tmp_path / name)) for name in ("one", "two")]
    for each in writers:
        each.append(spark.range(1).coalesce(1))
    return writers


@pytest.fixture
def both_written(spark: SparkSession, zookeeper: Any, pair: list[LockedDeltaWriter]) -> Iterator[Any]:
    """Write both tables, both under one hold, again and again: whoever sees both sees as many versions of each."""
    end, failed = threading.Event(), []

    def write() -> None:
        rows = spark.range(1).coalesce(1)
        with ZookeeperLockManager(zookeeper.hosts) as own:
            while not end.is_set():
                with locked_all(spark, dict.fromkeys(each.location for each in pair), manager=own):
                    for each in pair:
                        rows.write.format("delta").mode("append").save(each.location)

    def run() -> None:
        try:
            write()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    end.set()
    thread.join()
    assert failed == []


@pytest.mark.usefixtures("both_written")
def test_what_is_pinned_together_was_there_together(
    spark: SparkSession, manager: ZookeeperLockManager, pair: list[LockedDeltaWriter]
) -> None:
    seen = set()
    for number in range(4):
        tables = {each.location: None for each in pair}
        pin = take_pin(spark, tables, name=f"pin-{number}", expires_at=soon(), manager=manager)
        one, two = (each.version for each in pin.tables)
        assert one == two
        assert find_pin(spark, pair[1].location, f"pin-{number}") == pin
        seen.add(one)
    assert len(seen) > 1


@pytest.mark.usefixtures("both_written")
def test_negative_control_pinned_one_after_the_other_they_were_not(
    spark: SparkSession, manager: ZookeeperLockManager, pair: list[LockedDeltaWriter]
) -> None:
    for number in range(30):
        one, two = (
            take_pin(spark, {each.location: None}, name=f"pin-{number}", expires_at=soon(), manager=manager)
            for each in pair
        )
        if one.tables[0].version != two.tables[0].version:
            return
    pytest.fail("whatever is not pinned at once was there at once all the same")


def killed_at(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Have a process end when it writes a pin into this folder: nothing is cleaned up behind it."""
    create = PinFiles.create

    def killed(pins: PinFiles, pin: Any) -> None:
        if place in pins._folder:
            raise Killed
        create(pins, pin)

    monkeypatch.setattr(take, "_undo_on_error", lambda *_: nullcontext([]))
    monkeypatch.setattr(PinFiles, "create", killed)


@pytest.mark.full
def test_a_run_that_is_killed_between_two_tables_leaves_no_pin_and_its_name_can_be_used(
    spark: SparkSession, manager: ZookeeperLockManager, pair: list[LockedDeltaWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {each.location: None for each in pair}
    with monkeypatch.context() as patch:
        killed_at(patch, "/two/")
        with pytest.raises(Killed):
            take_pin(spark, tables, name="x", expires_at=soon(), manager=manager)
    with pytest.raises(PinError, match="is not in all of its tables"):
        find_pin(spark, pair[0].location, "x")
    # Until it is removed, or made again, it keeps what it names.
    pair[0].delete()
    assert vacuum(spark, pair[0].location, retain=NOW, manager=manager).kept_for_pins == 1
    pin = take_pin(spark, tables, name="x", expires_at=soon(), manager=manager)
    assert find_pin(spark, pair[1].location, "x") == pin
    remove_pin(spark, pair[1].location, "x", manager=manager)
    assert [list_pins(spark, each.location) for each in pair] == [[], []]


def test_a_pin_that_does_not_get_into_all_tables_leaves_nothing(
    spark: SparkSession, manager: ZookeeperLockManager, pair: list[LockedDeltaWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = PinFiles.create

    def refused(pins: PinFiles, pin: Any) -> None:
        if "/two/" in pins._folder:
            raise StorageError("the store refuses")
        create(pins, pin)

    monkeypatch.setattr(PinFiles, "create", refused)
    with pytest.raises(StorageError, match="the store refuses"):
        take_pin(spark, {each.location: None for each in pair}, name="x", expires_at=soon(100), manager=manager)
    for each in pair:
        assert list_pins(spark, each.location) == []
        assert properties(Path(each.location.removeprefix("file:"))) == {}


def test_whoever_lost_the_lock_harms_no_pin_of_the_next_holder(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    pins, late = PinFiles(HadoopFiles.of(spark), pin.tables[0].location), replace(pin, pin_id="late")
    with pytest.raises(StorageError, match="exists already with another text"):
        pins.create(late)
    pins.remove(late)
    assert list_pins(spark, str(table)) == [pin]


def test_pinned_versions_are_read_back_whole_and_other_files_are_gone(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    writer = LockedDeltaWriter(spark, manager, str(table))
    for start in range(0, 30, 10):
        put(range(start, start + 10))
    first = take_pin(spark, {str(table): None}, name="first", expires_at=soon(), manager=manager)
    pinned = data_files(table)
    rewrite(writer)
    between = data_files(table) - pinned
    rewrite(writer)
    kept = data_files(table) - between

    would = vacuum(spark, str(table), retain=NOW, dry_run=True, manager=manager)
    assert data_files(table) == kept | between
    done = vacuum(spark, str(table), retain=NOW, manager=manager)
    assert (would.files, would.size) == (done.files, done.size) == (len(between), done.size)
    assert (done.kept_for_pins, done.pins) == (len(pinned), ("first",))
    assert data_files(table) == kept
    assert keys_of(pinned_rows(spark, first, str(table))) == list(range(30)) == elsewhere(table, 2)
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|No such file"):
        spark.read.format("delta").option("versionAsOf", 3).load(str(table)).collect()


def test_negative_control_without_the_pin_the_read_fails(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    rewrite(LockedDeltaWriter(spark, manager, str(table)))
    remove_pin(spark, str(table), "x", manager=manager)
    assert vacuum(spark, str(table), retain=NOW, manager=manager).files == 1
    with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST|No such file"):
        pinned_rows(spark, pin, str(table)).collect()
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        elsewhere(table, 0)
    assert keys_of(spark.read.format("delta").load(str(table))) == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize("place", ["s3a://{root}/pins/a b+c%20/", "s3://root-of-pins/"])
def test_a_table_on_s3_by_any_of_its_names_and_in_the_root_of_a_bucket(
    spark: SparkSession, manager: ZookeeperLockManager, s3: Any, place: str
) -> None:
    if "root-of-pins" in place:
        if not isinstance(s3, LocalS3):
            pytest.skip("needs a bucket of its own")
        s3.create_bucket("root-of-pins")
    table = place.format(root=s3.root)
    writer = LockedDeltaWriter(spark, manager, table)
    for key in range(2):
        writer.append(spark.range(key, key + 1).selectExpr("id as key", "'x y' as place"), partition_by=["place"])
    pin = take_pin(spark, {table: None}, name="x", expires_at=soon(), manager=manager)
    writer.update({"key": "key + 10"})
    writer.update({"key": "key + 10"})
    done = vacuum(spark, table, retain=NOW, manager=manager)
    assert (done.files, done.kept_for_pins) == (2, 2)
    assert vacuum(spark, table, retain=NOW, manager=manager).files == 0
    other_name = table.replace("s3://", "s3a://") if table.startswith("s3:") else table.replace("s3a://", "s3://")
    assert keys_of(pinned_rows(spark, pin, other_name)) == [0, 1]
    assert keys_of(spark.read.format("delta").load(table)) == [20, 21]
    remove_pin(spark, other_name, "x", manager=manager)
    assert vacuum(spark, table, retain=NOW, manager=manager).files == 2


@pytest.mark.full
def test_to_look_at_a_table_on_s3_asks_for_listings_and_for_no_file(
    spark: SparkSession, manager: ZookeeperLockManager, s3: Any
) -> None:
    from writer_jobs.maintenance.measure import measure

    store = spark._jvm.org.apache.hadoop.fs.Path(f"s3a://{s3.root}/").getFileSystem(
        spark._jsparkSession.sessionState().newHadoopConf()
    )

    def asked() -> dict[str, int]:
        found = store.getIOStatistics().counters()
        return {name: int(found.get(name)) for name in ("object_metadata_request", "object_list_request")}

    def requests_of(files: int) -> dict[str, int]:
        table = f"s3a://{s3.root}/looked-at-{files}"
        rows = spark.range(0, files, 1, files).selectExpr("id as key", "id % 2 as place")
        LockedDeltaWriter(spark, manager, table).append(rows, partition_by=["place"])
        before = asked()
        assert measure(spark, table).health.total.total.files == files
        assert vacuum(spark, table, manager=manager, dry_run=True).files == 0
        return {name: number - before[name] for name, number in asked().items()}

    few, many = requests_of(2), requests_of(60)
    assert few["object_list_request"] > 0
    assert {name: many[name] - few[name] < 10 for name in few} == dict.fromkeys(few, True), (few, many)


@pytest.mark.full
def test_deletion_vectors_of_a_pinned_version_are_kept(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, copy_of: Callable[..., Path]
) -> None:
    copy_of(
        "create table {t} using delta tblproperties ('delta.enableDeletionVectors' = 'true') as "
        "select /*+ coalesce(1) */ id as key from range(100)",
        "delete from {t} where key % 10 = 3",
    )
    writer = LockedDeltaWriter(spark, manager, str(table))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    writer.delete("key % 10 = 4")
    writer.update({"key": "key"})
    # As if it had been written so long ago that it can be of no commit that is on its way.
    with locked_all(spark, {str(table): None}, manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{FILES}' = 'interval 0 hours')")
    vectors = {path.name for path in table.rglob("*.bin")}
    assert len(vectors) == 2
    vacuum(spark, str(table), retain=NOW, manager=manager)
    assert len({path.name for path in table.rglob("*.bin")} & vectors) == 1
    with locked_all(spark, {str(table): None}, manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('{FILES}')")
    assert keys_of(pinned_rows(spark, pin, str(table))) == [key for key in range(100) if key % 10 != 3]


@pytest.mark.full
def test_files_of_a_commit_that_is_on_its_way_are_spared_and_old_ones_of_none_are_not(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    folder = next(table.glob("place=*"))
    young, old = folder / "part-0-young.parquet", folder / "part-0-old.parquet"
    for each in (young, old):
        each.write_bytes(b"PAR1")
    week = 8 * 24 * 3600
    os.utime(old, (time.time() - week,) * 2)
    result = vacuum(spark, str(table), retain=NOW, manager=manager)
    assert (result.files, old.exists(), young.exists()) == (1, False, True)
    assert keys_of(spark.read.format("delta").load(str(table))) == [0, 1, 2]


@pytest.mark.full
def test_a_stream_goes_on_beside_it(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    raw = LockedDeltaWriter(spark, manager, str(source))
    for version in range(3):
        rows = [(key, day(key), "a", str(version)) for key in range(20)]
        raw.append(spark.createDataFrame(rows, SCHEMA).coalesce(1))
    writer, swept = LockedDeltaWriter(spark, manager, str(table)), []
    pins: list[Any] = []

    def look(batch: int, _: Any) -> None:
        if batch == 0:
            how: dict[str, Any] = {"at": day(9), "expires_at": soon(), "manager": manager}
            pins.append(take_pin(spark, {str(table): "at"}, name="x", **how))
        begun.set()

    begun, failed = threading.Event(), []

    def stream() -> None:
        try:
            stream_into(
                writer,
                spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(source)),
                checkpoint=str(tmp_path / "checkpoint"),
                keys=["key"],
                event_time="at",
                sequence_by="concat(value)",
                on_batch=look,
            )
        except Exception as error:
            failed.append(error)

    running = threading.Thread(target=stream)
    running.start()
    assert begun.wait(120)
    while running.is_alive():
        swept.append(vacuum(spark, str(table), retain=NOW, manager=manager).files)
    running.join()
    swept.append(vacuum(spark, str(table), retain=NOW, manager=manager).files)
    assert (failed, sum(swept), len(swept) > 1) == ([], 1, True)
    found = spark.read.format("delta").load(str(table)).collect()
    assert sorted((row["key"], row["value"]) for row in found) == [(key, "2") for key in range(20)]
    (pin,) = pins
    assert keys_of(pinned_rows(spark, pin, str(table))) == list(range(10))


@pytest.mark.full
def test_files_that_the_store_does_not_remove_are_told(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    (stays,) = data_files(table)
    rewrite(LockedDeltaWriter(spark, manager, str(table)))
    (path,) = table.rglob(stays)
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no files that cannot be removed")
    try:
        with pytest.raises(WriteFailedError, match=f"the store has not removed all files, such as .*{stays}"):
            vacuum(spark, str(table), retain=NOW, manager=manager)
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    assert vacuum(spark, str(table), retain=NOW, manager=manager).files == 1


def properties(table: Path) -> dict[str, str]:
    found = DeltaTable(str(table)).metadata().configuration
    return {name: value for name, value in found.items() if name in (FILES, LOG, RETENTION_PROPERTY)}


@pytest.mark.full
def test_it_is_raised_as_long_as_pins_need_it_and_then_what_it_was(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    with locked_all(spark, {str(table): None}, manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{FILES}' = 'interval 2 days')")
    before = properties(table)
    short = take_pin(spark, {str(table): None}, name="short", expires_at=soon(0.5), manager=manager)
    assert (properties(table), short.tables[0].version) == (before, 1)
    longer = take_pin(spark, {str(table): None}, name="longer", expires_at=soon(10), manager=manager)
    raised = properties(table)
    assert (raised[FILES], LOG in raised, longer.tables[0].version) == ("interval 264 hours", False, 2)
    take_pin(spark, {str(table): None}, name="longest", expires_at=soon(100), manager=manager)
    raised = properties(table)
    assert raised[FILES] == raised[LOG] == "interval 2424 hours"
    for name in ("longest", "longer"):
        remove_pin(spark, str(table), name, manager=manager)
        assert properties(table) == raised
    remove_pin(spark, str(table), "short", manager=manager)
    assert properties(table) == before


@pytest.mark.full
def test_what_somebody_sets_meanwhile_stays_and_what_somebody_lowers_is_raised_again(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    def operator_sets(interval: str) -> None:
        with locked_all(spark, {str(table): None}, manager=manager):
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{FILES}' = 'interval {interval}')")

    put(range(3))
    take_pin(spark, {str(table): None}, name="long", expires_at=soon(100), manager=manager)
    operator_sets("2 days")
    (danger,) = verify_table(table).problems
    assert f"pin long is in danger: {FILES} is interval 2 days, shorter than the pin lasts" in danger
    take_pin(spark, {str(table): None}, name="short", expires_at=soon(1), manager=manager)
    assert properties(table)[FILES] == properties(table)[LOG] == "interval 2424 hours"
    assert verify_table(table).problems == ()
    for name in ("short", "long"):
        remove_pin(spark, str(table), name, manager=manager)
    assert properties(table) == {FILES: "interval 2 days"}


def test_a_run_that_is_killed_behind_the_raising_leaves_it_to_the_next_vacuum_to_bring_it_back(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    put: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(range(3))
    with monkeypatch.context() as patch:
        killed_at(patch, str(table))
        with pytest.raises(Killed):
            take_pin(spark, {str(table): None}, name="x", expires_at=soon(100), manager=manager)
    assert FILES in properties(table)
    vacuum(spark, str(table), manager=manager)
    assert properties(table) == {}


def test_stock_vacuum_spares_what_is_pinned(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    with locked_all(spark, {str(table): None}, manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{FILES}' = 'interval 0 hours')")
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    rewrite(LockedDeltaWriter(spark, manager, str(table)))
    with locked_all(spark, {str(table): None}, manager=manager):
        stock_vacuum(spark, table)
        with pytest.raises(Exception, match="retention"):
            stock_vacuum(spark, table, "RETAIN 0 HOURS")
    assert keys_of(pinned_rows(spark, pin, str(table))) == [0, 1, 2]
    # Control: with the table's own retention it takes them.
    remove_pin(spark, str(table), "x", manager=manager)
    with locked_all(spark, {str(table): None}, manager=manager):
        stock_vacuum(spark, table)
    with pytest.raises(Exception, match=r"(?i)retention|does not exist|FILE_NOT_EXIST"):
        pinned_rows(spark, pin, str(table)).collect()


@pytest.mark.full
def test_what_has_expired_keeps_nothing_and_goes_with_the_next_vacuum(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(100), manager=manager)
    pins = PinFiles(HadoopFiles.of(spark), pin.tables[0].location)
    pins.remove(pin)
    pins.create(replace(pin, expires_at=BEGIN))
    with pytest.raises(PinError, match="has expired on 2013"):
        find_pin(spark, str(table), "x")
    rewrite(LockedDeltaWriter(spark, manager, str(table)))
    assert vacuum(spark, str(table), retain=NOW, manager=manager).files == 1
    assert (list_pins(spark, str(table)), properties(table)) == ([], {})


@pytest.mark.full
def test_a_pinned_version_can_be_read_when_the_log_before_it_is_gone(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    for key in range(3):
        put([key])
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    put([3])
    for version in range(2):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    assert elsewhere(table, pin.tables[0].version) == [0, 1, 2]


@pytest.mark.full
def test_a_copy_of_a_table_has_pins_of_the_original_and_removing_them_there_leaves_these(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, tmp_path: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    copy, link = tmp_path / "copy", tmp_path / "link"
    shutil.copytree(table, copy)
    with pytest.raises(PinError, match="the files that pin x keeps are unknown: remove the pin"):
        vacuum(spark, str(copy), retain=NOW, manager=manager)
    remove_pin(spark, str(copy), "x", manager=manager)
    assert (list_pins(spark, str(copy)), list_pins(spark, str(table))) == ([], [pin])
    # By another name of the table itself.
    link.symlink_to(table)
    with pytest.raises(PinError, match="a table is given twice"):
        take_pin(spark, {str(table): None, str(link): None}, name="y", expires_at=soon(), manager=manager)
    remove_pin(spark, str(link), "x", manager=manager)
    assert list_pins(spark, str(table)) == []


@pytest.mark.full
def test_a_pin_is_of_its_table_and_not_of_the_next_one_at_its_place(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    shutil.rmtree(table / "_delta_log")
    for file in data_files(table):
        next(table.rglob(file)).unlink()
    put(range(5))
    with pytest.raises(PinError, match="is of another table, which was at"):
        pinned_rows(spark, pin, str(table))
    assert "pin x is of an earlier table at this location; remove the pin" in verify_table(table).problems


@pytest.mark.full
def test_watermarks_of_what_was_restored_away_and_of_rows_without_a_stream_prove_nothing(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, bring: Callable[..., None]
) -> None:
    bring("one", 0, (1, 5, "1"))
    bring("one", 1, (2, 20, "1"))
    writer = LockedDeltaWriter(spark, manager, str(table))
    made = spark.createDataFrame([(3, day(30), "a", "1")], SCHEMA)
    apply_rows(writer, made, keys=["key"], event_time="at", sequence_by="concat(value)")
    how: dict[str, Any] = {"name": "x", "expires_at": soon(), "manager": manager}
    with pytest.raises(PinError, match=r"stream one has its watermark at 2013-01-21"):
        take_pin(spark, {str(table): "at"}, at=day(25), **how)
    with locked_all(spark, {str(table): None}, manager=manager):
        spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 2")
    with pytest.raises(PinError, match=r"stream one has its watermark at 2013-01-06"):
        take_pin(spark, {str(table): "at"}, at=day(10), **how)
    pin = take_pin(spark, {str(table): "at"}, at=day(4), **how)
    assert pin.tables[0].passed_version == 2


@pytest.mark.full
def test_what_became_of_a_moment_before_it_was_pinned_is_told(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, bring: Callable[..., None]
) -> None:
    bring("one", 0, *((key, key, "1") for key in range(5)))
    bring("one", 1, (10, 10, "1"))
    bring("one", 2, (0, 0, "2"), (11, 2.5, "late"))
    LockedDeltaWriter(spark, manager, str(table)).delete("key = 1")
    pin = take_pin(spark, {str(table): "at"}, name="x", at=day(4), expires_at=soon(), manager=manager)
    before = changed_before(spark, pin, str(table))
    assert before is not None
    assert (pin.tables[0].passed_version, before.rows_new, before.rows_gone) == (3, 2, 2)
    assert changed_since(spark, pin, str(table)).rows_new == 0


@pytest.mark.full
def test_rows_are_compared_to_the_microsecond_in_their_parts_and_maps_in_any_order(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path
) -> None:
    def made(micros: int, entries: str) -> DataFrame:
        at = f"named_struct('at', timestamp_micros({micros})) as part"
        return spark.range(1).selectExpr("id", at, f"map({entries}) as m")

    writer = LockedDeltaWriter(spark, manager, str(table))
    writer.append(made(1, "'a', 1, 'b', 2"))
    pin = take_pin(spark, {str(table): None}, name="x", expires_at=soon(), manager=manager)
    writer.overwrite(made(1, "'b', 2, 'a', 1"))
    same = changed_since(spark, pin, str(table))
    assert (same.rows_new, same.rows_gone, same.files_read) == (0, 0, 2)
    writer.overwrite(made(2, "'b', 2, 'a', 1"))
    other = changed_since(spark, pin, str(table))
    assert (other.rows_new, other.rows_gone) == (1, 1)


@pytest.mark.full
def test_files_of_one_version_that_are_not_in_another(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path, put: Callable[..., None]
) -> None:
    put(range(3))
    put(range(3, 6))
    log = LockedDeltaWriter(spark, manager, str(table)).log
    first, second = (DataFiles(spark, log.snapshot_at(version)) for version in (0, 1))
    assert (second.without(first).count(), first.without(second).count()) == (1, 0)
    assert keys_of(second.without(first).rows()) == [3, 4, 5]
    assert {row[0] for row in second.paths().collect()} == {
        str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts
    }


@pytest.mark.full
def test_the_command_lists_adds_and_removes(
    spark: SparkSession, zookeeper: Any, table: Path, put: Callable[..., None], jars: list[Path]
) -> None:
    put(range(3))

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        command = [sys.executable, "-m", "sluice", "pins", str(table), "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    assert run() == (0, {"table": str(table), "ok": True, "pins": [], "damaged": []}, "")
    code, said, error = run("--zookeeper", zookeeper.hosts, "--add", "audit", "--expires", "90 days")
    assert code == 0, error
    (pin,) = said["pins"]
    assert (pin["name"], pin["expired"], pin["problem"], pin["tables"][0]["version"]) == ("audit", False, None, 1)
    assert verify_table(table).pins == 1

    next(table.glob("place=*/*.parquet")).unlink()
    code, said, _ = run()
    assert (code, said["ok"]) == (1, False)
    assert "pin audit is broken: 1 of the 1 data files of version 1 are missing" in said["pins"][0]["problem"]
    assert said["pins"][0]["problem"] in verify_table(table).problems
    code, said, error = run("--zookeeper", zookeeper.hosts, "--remove", "audit")
    assert (code, said["pins"]) == (0, []), error
    assert run("--add", "x")[0] == run("--add", "x", "--expires", "soon", "--zookeeper", zookeeper.hosts)[0] == 2
