"""Maintenance removes no file or version that a pin, a stream, a pending write or another table still needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, LockTimeoutError, ZookeeperLockManager
from sluice.audit.log_folder import s3_client
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.maintained import age_all_files, findings_by_code, set_file_age
from tests.support.maintained_table import MaintainedTable, TableStream
from writer_jobs import LockedDeltaWriter, TableError, locked, pinned_rows, take_pin
from writer_jobs.delta.data_files import DataFiles
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.listings import list_files
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.maintenance.exclusive_run import belongs_to_this_process, give_way
from writer_jobs.maintenance.pins_and_streams import PinsAndStreams
from writer_jobs.maintenance.policy import Action

pytestmark = pytest.mark.spark

DAY = timedelta(days=1)
FILE_RETENTION, LOG_RETENTION = "delta__deletedFileRetentionDuration", "delta__logRetentionDuration"
MISSING_FILE = r"FILE_NOT_EXIST|FileNotFound|does not exist"


@pytest.fixture
def table(request: pytest.FixtureRequest) -> MaintainedTable:
    """A location for a table; a test creates the table."""
    return MaintainedTable.of(request)


@pytest.fixture
def stream(table: MaintainedTable, tmp_path: Path) -> TableStream:
    """A stream that copies the table's rows."""
    return TableStream(table, tmp_path / "checkpoint", tmp_path / "output", {"skipChangeCommits": "true"})


def spark_keys(table: MaintainedTable) -> list[int]:
    rows = table.spark.read.format("delta").load(str(table.path)).select("key").collect()
    return sorted(row["key"] for row in rows)


def create_old_log(table: MaintainedTable, make_checkpoint: Callable[[DeltaTableLog], object]) -> None:
    """Create a table of 15 versions with a checkpoint of version 10. The first 13 versions are older than two weeks."""
    table.create(
        {"a": 1},
        delta__enableExpiredLogCleanup="false",
        **{LOG_RETENTION: "interval 2 days", FILE_RETENTION: "interval 1 day"},
    )
    for version in range(1, 15):
        table.append_without_spark(version)
        if version == 10:
            make_checkpoint(DeltaTableLog(table.spark, f"file:{table.path}"))
    table.make_versions_old({version: 24 * (30 - version) for version in range(13)})
    for checkpoint in (table.path / "_delta_log").glob("*.checkpoint.parquet"):
        set_file_age(checkpoint, 24 * 20)


@pytest.mark.full
def test_without_a_pointer_to_a_checkpoint_no_version_expires(table: MaintainedTable) -> None:
    """A pin's checkpoint does not change Delta's pointer, and Delta removes only versions before the pointer."""
    create_old_log(table, lambda log: log.make_checkpoint(10))
    measurement = table.measure()
    assert (measurement.health.log.checkpoint_version, measurement.health.log.expired_versions) == (10, 0)
    assert "long-log" not in findings_by_code(measurement)
    assert table.maintain(Action.CLEAN_LOG).after.log.first_version == 0


@pytest.mark.full
def test_the_expired_log_is_removed_up_to_a_checkpoint(table: MaintainedTable) -> None:
    create_old_log(table, DeltaTableLog.make_newest_checkpoint)
    measurement = table.measure()
    assert measurement.health.log.checkpoint_version == 10
    assert measurement.health.log.expired_versions == 10
    assert "long-log" in findings_by_code(measurement)
    assert "writers-clean-log" not in findings_by_code(measurement)
    report = table.maintain(Action.CLEAN_LOG)
    assert report.done[0].removed.files > report.done[0].added.files
    assert report.after.log.first_version == 10
    assert report.after.log.expired_versions == 0
    assert table.keys() == list(range(15))
    assert verify_table(table.path, key=["key"]).ok


@pytest.mark.full
def test_orphans_are_removed_and_unread_changes_are_kept(table: MaintainedTable, tmp_path: Path) -> None:
    table.create({"a": 1}, rows=3, delta__enableChangeDataFeed="true")
    options = {"readChangeFeed": "true", "startingVersion": 1}
    stream = TableStream(table, tmp_path / "checkpoint", tmp_path / "output", options)
    table.append(3)
    assert [(row["key"], row["_change_type"]) for row in stream.read()] == [(3, "insert")]
    table.writer.update({"value": "'new'"}, "key = 3")
    table.append(4, place="b")
    table.writer.delete("key = 4")
    age_all_files(table.path)
    orphan = table.write_file("part-orphan.parquet", hours=24 * 8)
    result = table.vacuum(retain=timedelta(0), streams=[str(stream.checkpoint)])
    assert (result.files, result.orphans, result.kept_for_streams >= 2) == (1, 1, True)
    assert not orphan.exists()
    assert len(stream.read()) == 5
    # Control: without the stream's checkpoint, VACUUM removes unread changes.
    table.writer.update({"value": "'newer'"}, "key = 3")
    age_all_files(table.path)
    assert table.vacuum(retain=timedelta(0), streams=[]).kept_for_streams == 0
    with pytest.raises(Exception, match=MISSING_FILE):
        stream.read()
    offsets = tmp_path / "other-checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"reservoirId": "another", "reservoirVersion": 1}\n')
    with pytest.raises(TableError, match=r"reads table another"):
        table.vacuum(streams=[str(offsets.parent)])


@pytest.mark.soak
def test_needed_files_in_folders_with_random_names_are_kept(table: MaintainedTable) -> None:
    table.create(
        {"a": 1},
        rows=5,
        delta__randomizeFilePrefixes="true",
        delta__enableDeletionVectors="true",
        delta__enableChangeDataFeed="true",
    )
    table.writer.update({"value": "'new'"}, "key = 3")
    table.append(*range(10, 20))
    table.writer.delete("key = 13")
    vectors = list(table.path.rglob("deletion_vector_*.bin"))
    assert any(path.parent != table.path for path in vectors)
    age_all_files(table.path)
    folder = table.measure().health.folder
    # Change data counts as removed when it is written, so it expires. It is no orphan in any folder.
    change_files = list(table.path.rglob("cdc-*.parquet"))
    assert any(path.parent != table.path / "_change_data" for path in change_files)
    assert (folder.orphans.files, folder.uncommitted.files) == (0, 0)
    assert folder.expired.files == len(change_files)
    result = table.vacuum(retain=timedelta(0))
    assert (result.files, result.orphans) == (folder.expired.files, 0)
    assert all(path.exists() for path in vectors)
    assert spark_keys(table) == [*range(5), *range(10, 13), *range(14, 20)]
    # A deletion vector is removed after another one has replaced it.
    table.writer.delete("key = 14")
    age_all_files(table.path)
    assert table.vacuum(retain=timedelta(0)).files >= 1
    assert spark_keys(table) == [*range(5), *range(10, 13), *range(15, 20)]


@pytest.mark.full
def test_the_listing_leaves_out_hidden_files_and_folders(
    spark: SparkSession, manager: ZookeeperLockManager, s3: Any, tmp_path: Path
) -> None:
    listed_paths = {
        "part-1.parquet",
        "_p=1/part 2%20+.parquet",
        "_p=1/q=x/part-3.parquet",
        "metadata/a.parquet",
        "_change_data/cdc-1.parquet",
    }
    hidden_paths = {
        ".part-1.parquet.crc",
        ".x/a.parquet",
        "_x/a.parquet",
        # These folders belong to other programs: _x is not a partition column.
        "_x=1/a.parquet",
        "_p=1/_x=1/a.parquet",
        "_p/a.parquet",
    }
    local_table, s3_table = str(tmp_path / "a b%20c"), f"s3a://{s3.root}/listed a+b/"
    for table in (local_table, s3_table):
        LockedDeltaWriter(spark, manager, table).append(spark.sql("SELECT 1 AS _p, 2 AS q"), partition_by=["_p"])
        files = HadoopFiles.of(spark)
        for path in (*listed_paths, *hidden_paths):
            files.write_text(f"{table.rstrip('/')}/{path}", "x")
        # Some tools write an empty object for a folder.
        if table == s3_table:
            bucket, _, prefix = s3.root.partition("/")
            s3_client(s3.environment).put_object(Bucket=bucket, Key=f"{prefix}/listed a+b/_p=1/empty/")
        rows = list_files(spark, DeltaTableLog(spark, table).snapshot()).collect()
        assert {row["path"] for row in rows if not row["path"].endswith(".snappy.parquet")} == listed_paths


@pytest.mark.full
def test_checkpoints_of_named_streams_in_the_table_are_kept(table: MaintainedTable, stream: TableStream) -> None:
    table.create({"a": 1})
    folder = table.path / "streams"
    stream.checkpoint = folder / "checkpoint"
    assert len(stream.read()) == 1
    (folder / "not-named").write_text("x")
    (folder / "not-begun").mkdir()
    (folder / "not-begun" / "metadata").write_text('{"id": "x"}')
    streams = f"{stream.checkpoint}, file:{folder}/not-begun/"
    table.set_properties_without_spark(sluice__maintenance__streams=streams)
    age_all_files(table.path)
    checkpoint_files = {path for path in folder.rglob("*") if {"checkpoint", "not-begun"} & {*path.parts}}
    # Control: a file that belongs to no named stream is removed.
    assert table.vacuum().orphans == 1
    assert not (folder / "not-named").exists()
    assert all(path.exists() for path in checkpoint_files)
    table.append_without_spark(1)
    assert len(stream.read()) == 2


@pytest.mark.parametrize("orphan_count", [100, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_protected", [True, False], ids=["protected", "negative control"])
def test_orphans_are_removed_and_needed_files_are_kept(
    table: MaintainedTable,
    stream: TableStream,
    orphan_count: int,
    is_protected: bool,  # noqa: FBT001 (a parameter of the test)
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table.create({"a": 1}, rows=3, **{FILE_RETENTION: "interval 1 day", LOG_RETENTION: "interval 30 days"})
    expires_at = datetime.now(UTC) + DAY
    pin = take_pin(table.spark, {str(table.path): None}, name="audit", expires_at=expires_at, manager=table.manager)
    assert len(stream.read()) == 3
    table.append_without_spark(3, place="b")
    table.writer.delete("place = 'b'")
    table.writer.update({"value": "concat(value, '!')"})
    table.set_properties_without_spark(sluice__maintenance__streams=str(stream.checkpoint))
    orphans = [
        table.write_file(f"place={place}/orphan-{index:05}.parquet")
        for place in "ab"
        for index in range(orphan_count // 2)
    ]
    # All files outside the log are older than the retention, which the pin has raised to two days.
    for path in filter(Path.is_file, table.path.rglob("*")):
        set_file_age(path, 30 if "_delta_log" in path.parts else 50)
    old_files = table.data_files()
    monkeypatch.setattr("writer_jobs.maintenance.file_states.seconds_without_pins", lambda _: 0.0)
    if not is_protected:
        monkeypatch.setattr("writer_jobs.maintenance.pins_and_streams.PinsAndStreams.of", lambda *_: PinsAndStreams())
        monkeypatch.setattr("writer_jobs.delta.snapshot.Snapshot.file_retention_seconds", 0.0)
        monkeypatch.setattr("writer_jobs.maintenance.file_states.MIN_ORPHAN_AGE", timedelta(0))
    with ThreadPoolExecutor(1) as pool:
        with in_another_thread(lambda: table.manager.acquire(table.writer.table)):
            append = pool.submit(table.append, 100)
            eventually(table.waiters, within=60, label="an append at the gate")
            (staged_file,) = table.data_files() - old_files
            # Neither the measurement nor VACUUM waits for the table's lock.
            health = table.measure().health
            result = table.vacuum()
        append.result()
    folder = health.folder
    assert health.next_pin_expiry == (expires_at if is_protected else None)
    assert folder.orphans.files == orphan_count + (not is_protected)
    assert result.orphans == folder.orphans.files
    assert not any(orphan.exists() for orphan in orphans)
    assert staged_file.exists() == is_protected
    monkeypatch.undo()

    def pinned_keys() -> list[int]:
        return sorted(row["key"] for row in pinned_rows(table.spark, pin, str(table.path)).collect())

    if is_protected:
        assert result.files == orphan_count
        assert result.kept_for_pins > 0
        assert result.kept_for_streams > 0
        assert table.keys() == [0, 1, 2, 100]
        assert pinned_keys() == [0, 1, 2]
        assert len(stream.read()) == 5
        assert verify_table(table.path).ok
        return
    for read in (lambda: spark_keys(table), pinned_keys, stream.read):
        with pytest.raises(Exception, match=MISSING_FILE):
            read()


def forget_removals(table: MaintainedTable) -> None:
    """Let removed files expire, and wait until Delta's snapshot contains none of them."""
    table.set_properties_without_spark(**{FILE_RETENTION: "interval 1 second", LOG_RETENTION: "interval 30 days"})
    log, deadline = DeltaTableLog(table.spark, f"file:{table.path}"), time.monotonic() + 60
    number = 0
    while not DataFiles(table.spark, log.snapshot()).removed_files().isEmpty():
        assert time.monotonic() < deadline, "the snapshot still contains removed files after 60 s"
        # Delta decides once for each version which removals have expired.
        number += 1
        table.set_properties_without_spark(number=str(number))


def test_a_forgotten_file_is_kept_for_a_stream_that_must_read_it(
    table: MaintainedTable, stream: TableStream, tmp_path: Path
) -> None:
    table.create({"a": 1})
    assert len(stream.read()) == 1
    # The compaction removes these files before the stream reads them.
    table.append_without_spark(1)
    table.append_without_spark(2)
    assert table.writer.optimize().metrics["numRemovedFiles"] == "3"
    forget_removals(table)
    age_all_files(table.path)
    streams = [str(stream.checkpoint)]
    dry_run = table.vacuum(streams=streams, dry_run=True)
    # The snapshot no longer lists these files, but they were committed, so they are no orphans.
    assert (dry_run.files, dry_run.orphans, dry_run.kept_for_streams) == (0, 0, 3)
    copy = table.copy_to(tmp_path / "copy")
    assert table.vacuum(streams=streams).files == 0
    assert len(stream.read()) == 3
    # Control: without the stream's checkpoint VACUUM removes the files.
    assert (copy.vacuum(streams=[]).files, copy.keys()) == (3, [0, 1, 2])


@pytest.mark.full
def test_change_data_and_forgotten_files_are_no_orphans(table: MaintainedTable) -> None:
    table.create({"a": 1}, rows=3, delta__enableChangeDataFeed="true")
    table.writer.update({"value": "'new'"}, "key = 1")
    table.write_file("place=a/part-orphan.parquet")
    folder = table.measure().health.folder
    assert (folder.uncommitted.files, folder.orphans.files, folder.expired.files) == (1, 0, 0)
    # These are the file that the update replaced and the file with its change data.
    assert folder.removed.files == 2
    forget_removals(table)
    age_all_files(table.path)
    folder = table.measure().health.folder
    assert (folder.uncommitted.files, folder.orphans.files, folder.expired.files) == (0, 1, 2)
    # The orphan is now older than version 0. No earlier version can have contained it, so it remains an orphan.
    table.version_file(0).touch()
    folder = table.measure().health.folder
    assert (folder.orphans.files, folder.expired.files) == (1, 2)


@pytest.mark.full
def test_an_inner_table_and_iceberg_metadata_are_kept(table: MaintainedTable) -> None:
    table.create({"a": 1}, rows=3)
    inner_table = table.copy_of("CREATE TABLE {t} USING delta AS SELECT id FROM range(5)", to="table/archive")
    orphan = table.write_file("tmp/part-orphan.parquet")
    iceberg = [table.write_file(f"metadata/{name}") for name in ("v1.metadata.json", "snap-1.avro")]
    age_all_files(table.path)
    assert table.measure().health.folder.orphans.files == 1
    assert table.vacuum().files == 1
    assert not orphan.exists()
    assert all(path.exists() for path in iceberg)
    assert DeltaTable(str(inner_table)).to_pyarrow_table().num_rows == 5


@pytest.mark.full
def test_an_orphan_is_kept_for_a_day_under_any_retention(table: MaintainedTable) -> None:
    table.create({"a": 1}, **{FILE_RETENTION: "interval 1 second", LOG_RETENTION: "interval 2 days"})
    young_orphan, old_orphan = (table.write_file(f"place=a/part-{hours}.parquet", hours=hours) for hours in (23, 25))
    assert table.vacuum().orphans == 1
    assert (young_orphan.exists(), old_orphan.exists()) == (True, False)


@pytest.mark.full
@pytest.mark.parametrize("reader", ["pin", pytest.param("stream", marks=pytest.mark.soak), "none"])
def test_the_log_keeps_the_versions_of_a_pin_and_a_stream(
    table: MaintainedTable, stream: TableStream, reader: str
) -> None:
    table.create(
        {"a": 1},
        delta__enableExpiredLogCleanup="true",
        delta__checkpointInterval="1000",
        **{LOG_RETENTION: "interval 60 days", FILE_RETENTION: "interval 60 days"},
    )

    def versions() -> set[int]:
        return {int(path.stem) for path in (table.path / "_delta_log").glob("*.json") if path.stem.isdecimal()}

    if reader == "pin":
        expires_at = datetime.now(UTC) + DAY
        take_pin(table.spark, {str(table.path): None}, name="audit", expires_at=expires_at, manager=table.manager)
    if reader == "stream":
        assert len(stream.read()) == 1
        table.set_properties_without_spark(sluice__maintenance__streams=str(stream.checkpoint))
    # A restarted stream begins at the end of its second-to-last batch.
    needed_version = table.version()
    table.append_without_spark(1)
    if reader == "stream":
        assert len(stream.read()) == 2
    for key in range(2, 4):
        table.append_without_spark(key)
    # An operator lowers the retention, which a pin may have raised.
    table.set_properties_without_spark(**{LOG_RETENTION: "interval 1 hour", FILE_RETENTION: "interval 1 hour"})
    newest_version = table.version()
    table.make_versions_old({version: 24 * (30 - version) for version in versions()})
    for path in (table.path / "_delta_log").glob("*.checkpoint*"):
        set_file_age(path, 24 * 20)
    # The checkpoint action does not clean up the log, although the table's properties enable that.
    assert table.maintain(Action.CHECKPOINT).failure is None
    assert min(versions()) == 0
    assert table.maintain(Action.CLEAN_LOG).failure is None
    assert max(versions()) == newest_version
    assert (min(versions()) <= needed_version) == (reader != "none")
    assert table.keys() == [0, 1, 2, 3]
    if reader == "stream":
        assert len(stream.read()) == 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("stream/offsets/0", b'{"reservoirId": "ID", "reservoirVersion": null}', "reads no Delta table"),
        ("stream/offsets/0", b"\xff\xfe", "offsets/0 is not text in UTF-8"),
        ("table/_sluice_pins/audit.json", b"\xff\xfe", "audit.json is not text in UTF-8"),
    ],
    ids=["stream without a version", "unreadable stream", "unreadable pin"],
)
def test_an_unreadable_pin_or_stream_is_a_finding(
    table: MaintainedTable, file: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    table.create({"a": 1})
    if file.startswith("stream"):
        table.set_properties_without_spark(sluice__maintenance__streams=str(tmp_path / "stream"))
    (tmp_path / file).parent.mkdir(parents=True)
    table_id = str(DeltaTable(str(table.path)).metadata().id)
    (tmp_path / file).write_bytes(content.replace(b"ID", table_id.encode()))
    measurement = table.measure()
    assert problem in str(measurement.health.folder.problem)
    assert "broken-retention" in findings_by_code(measurement)


@pytest.mark.full
def test_a_broken_stream_stops_only_the_removal_of_files(table: MaintainedTable, tmp_path: Path) -> None:
    table.create({"a": 6})
    table.set_properties_without_spark(sluice__maintenance__streams=str(tmp_path / "nowhere"))
    orphan = table.write_file("place=a/part-orphan.parquet")
    age_all_files(table.path)
    report = table.maintain()
    assert "nowhere does not exist" in str(report.before.folder.problem)
    finding_codes = [finding.code for finding in report.findings]
    assert "broken-retention" in finding_codes
    assert "orphans" not in finding_codes
    # A removal that is impossible is a failure, so that a scheduler reports it.
    assert [(result.action, result.failure is None) for result in report.done] == [
        (Action.COMPACT, True),
        (Action.VACUUM, False),
    ]
    assert "nowhere does not exist" in str(report.failure)
    report = table.maintain(Action.VACUUM, Action.CLEAN_LOG)
    assert [result.failure is None for result in report.done] == [False, False]
    assert orphan.exists()


def test_a_stop_and_waiters_of_this_process_cause_no_wait(
    table: MaintainedTable, eventually: Callable[..., None]
) -> None:
    uri, manager = table.writer.table, table.manager
    stop = threading.Event()

    def wait_for_lock() -> None:
        with suppress(LockCancelledError), manager.acquire(uri, timeout_seconds=60):
            pass

    with in_another_thread(lambda: manager.acquire(uri)):
        waiter = threading.Thread(target=wait_for_lock, daemon=True)
        waiter.start()
        eventually(table.waiters, label="a waiting writer")
        assert give_way(table.inspector, uri, 30, is_ignored=belongs_to_this_process) < 15
        stop.set()
        assert give_way(table.inspector, uri, 30, stopped=stop) < 15
        manager.cancel(uri)
        waiter.join(20)


@pytest.mark.full
def test_a_partition_that_fails_does_not_stop_the_others(table: MaintainedTable) -> None:
    table.create({"a": 2, "b": 2, "c": 2})
    with in_another_thread(
        lambda: locked(table.spark, str(table.path), partitions=[{"place": "b"}], manager=table.manager)
    ):
        report = table.maintain(Action.COMPACT, lock_timeout_seconds=0)
    success_by_place = {result.partitions[0]["place"]: result.problem is None for result in report.done}
    assert success_by_place == {"a": True, "b": False, "c": True}
    assert isinstance(report.failure, LockTimeoutError)
    assert report.after is not None
    assert report.after.total.total.files == 4


def test_compaction_with_identity_column_writes_before_the_lock(
    table: MaintainedTable, eventually: Callable[..., None], rows_of: Callable[..., list[tuple[Any, ...]]]
) -> None:
    table.copy_of(
        "CREATE TABLE {t} (id BIGINT GENERATED BY DEFAULT AS IDENTITY, value STRING) USING delta",
        "INSERT INTO {t} (value) SELECT 'a' FROM range(0, 3, 1, 3)",
    )
    with ThreadPoolExecutor(1) as pool:
        with in_another_thread(lambda: table.manager.acquire(table.writer.table)):
            compaction = pool.submit(table.writer.optimize, again=False)
            # The compaction writes its file while another thread holds the lock.
            eventually(lambda: len(table.data_files()) == 4, label="the new file")
            assert not compaction.done()
        assert compaction.result(60).metrics["numRemovedFiles"] == "3"
    assert rows_of(table.path, "value") == [("a",)] * 3
