"""What care of a table must never remove: what a pin, a stream, a write on its way or another table still needs."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, LockTimeoutError, TableResource, ZookeeperLockManager, canonical_table_uri
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.log_folder import s3_client
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.maintained import codes, keys_of, made_all_old, made_old, stream_of
from writer_jobs import LockedDeltaWriter, TableError, locked, pinned_rows, take_pin, vacuum
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.listings import list_files
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.delta.version_files import DataFiles
from writer_jobs.maintenance.exclusive_run import belongs_to_this_process, give_way
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.measure import measure
from writer_jobs.maintenance.pins_and_streams import PinsAndStreams
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.result import MaintenanceReport

pytestmark = pytest.mark.spark

DAY = timedelta(days=1)
RETENTION = {"delta__deletedFileRetentionDuration": "interval 1 day", "delta__logRetentionDuration": "interval 30 days"}


@pytest.mark.full
def test_a_log_is_cleaned_up_and_the_newest_versions_stay(
    spark: SparkSession,
    table: Path,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
    properties: Callable[..., None],
) -> None:
    put([0])
    properties(
        delta__enableExpiredLogCleanup="false",
        delta__logRetentionDuration="interval 2 days",
        delta__deletedFileRetentionDuration="interval 1 day",
    )
    for key in range(1, 15):
        put([key])
    for version in range(13):
        made_old(table / "_delta_log" / f"{version:020}.json", 24 * (30 - version))
    for checkpoint in (table / "_delta_log").glob("*.checkpoint.parquet"):
        made_old(checkpoint, 24 * 20)
    found = measure(spark, str(table))
    newest = found.health.log.checkpoint_version
    assert newest == 10
    assert found.health.log.expired_versions == 10
    assert "long-log" in codes(found)
    assert "writers-clean-log" not in codes(found)
    report = care(Action.CLEAN_LOG)
    assert report.done[0].removed.files > report.done[0].added.files
    assert report.after.log.first_version == 10
    assert report.after.log.expired_versions == 0
    assert keys_of(spark, table) == list(range(15))
    assert verify_table(str(table), key=["key"]).ok


@pytest.mark.full
def test_orphans_go_and_what_a_stream_has_not_read_stays(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put(range(3))
    properties(delta__enableChangeDataFeed="true")
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def read() -> list[tuple[int, str]]:
        query = (
            spark.readStream.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", 2)
            .load(str(table))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination(60)
        assert query.exception() is None
        return sorted((row["key"], row["_change_type"]) for row in spark.read.parquet(str(out)).collect())

    put([3])
    assert read() == [(3, "insert")]
    writer.update({"value": "'new'"}, "key = 3")
    put([4], "b")
    writer.delete("key = 4")
    made_all_old(table)
    orphan = table / "part-orphan.parquet"
    orphan.write_bytes(b"x")
    made_old(orphan, 24 * 8)
    spared = vacuum(spark, str(table), retain=timedelta(0), streams=[str(checkpoint)], manager=writer.manager)
    assert (spared.files, spared.orphans, spared.kept_for_streams >= 2) == (1, 1, True)
    assert not orphan.exists()
    assert len(read()) == 5
    # The control: without what the stream says of itself, what it has not read is gone.
    writer.update({"value": "'newer'"}, "key = 3")
    made_all_old(table)
    assert vacuum(spark, str(table), retain=timedelta(0), streams=[], manager=writer.manager).kept_for_streams == 0
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|does not exist"):
        read()
    with pytest.raises(TableError, match=r"reads table another"):
        _stream_of_another_table(spark, table, tmp_path)


@pytest.mark.full
def test_files_and_deletion_vectors_in_folders_with_random_names_are_the_table_s(
    spark: SparkSession,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put(range(5))
    properties(
        delta__randomizeFilePrefixes="true", delta__enableDeletionVectors="true", delta__enableChangeDataFeed="true"
    )
    writer.update({"value": "'new'"}, "key = 3")
    put(range(10, 20))
    writer.delete("key = 13")
    vectors = list(table.rglob("deletion_vector_*.bin"))
    assert any(path.parent != table for path in vectors)
    made_all_old(table)
    found = measure(spark, str(table)).health
    # What has changed is not of the table, wherever it is, and no orphan either.
    changed = {path for path in table.rglob("cdc-*.parquet") if path.parent != table / "_change_data"}
    assert changed
    assert (found.folder.orphans.files, found.folder.uncommitted.files) == (0, 0)
    assert found.folder.expired.files == len(list(table.rglob("cdc-*.parquet")))
    gone = vacuum(spark, str(table), retain=timedelta(0), manager=writer.manager)
    assert (gone.files, gone.orphans) == (found.folder.expired.files, 0)
    assert all(path.exists() for path in vectors)
    assert keys_of(spark, table) == [*range(5), *range(10, 13), *range(14, 20)]
    # Once another vector takes its place, it goes.
    writer.delete("key = 14")
    made_all_old(table)
    assert vacuum(spark, str(table), retain=timedelta(0), manager=writer.manager).files >= 1
    assert keys_of(spark, table) == [*range(5), *range(10, 13), *range(15, 20)]


def test_only_what_delta_s_vacuum_would_look_at_is_listed(
    spark: SparkSession, manager: ZookeeperLockManager, s3: Any, tmp_path: Path
) -> None:
    listed = {
        "part-1.parquet",
        "_p=1/part 2%20+.parquet",
        "_p=1/q=x/part-3.parquet",
        "metadata/a.parquet",
        "_change_data/cdc-1.parquet",
    }
    hidden = {
        ".part-1.parquet.crc",
        ".x/a.parquet",
        "_x/a.parquet",
        # Another program's: it is no partition column.
        "_x=1/a.parquet",
        "_p=1/_x=1/a.parquet",
        "_p/a.parquet",
    }

    def seen(table: str) -> set[str]:
        found = list_files(spark, DeltaTableLog(spark, table).snapshot()).collect()
        return {row["path"] for row in found if not row["path"].endswith(".snappy.parquet")}

    local = str(tmp_path / "a b%20c")
    on_s3 = f"s3a://{s3.root}/listed a+b/"
    for table in (local, on_s3):
        LockedDeltaWriter(spark, manager, table).append(spark.sql("SELECT 1 AS _p, 2 AS q"), partition_by=["_p"])
        files = HadoopFiles.of(spark)
        for path in (*listed, *hidden):
            files.write_text(f"{table.rstrip('/')}/{path}", "x")
        # As other tools make it on a store that has no folders.
        if table == on_s3:
            bucket, _, prefix = s3.root.partition("/")
            s3_client(s3.environment).put_object(Bucket=bucket, Key=f"{prefix}/listed a+b/_p=1/empty/")
        assert seen(table) == listed


@pytest.mark.full
def test_the_checkpoint_of_a_named_stream_stays_also_below_the_table(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    manager: ZookeeperLockManager,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put([0])
    inside = table / "streams"
    read = stream_of(spark, table, inside, tmp_path / "out")
    assert read() == 1
    (inside / "not-named").write_text("x")
    (table / "streams" / "not-begun").mkdir()
    (table / "streams" / "not-begun" / "metadata").write_text('{"id": "x"}')
    properties(sluice__maintenance__streams=f"{inside}/checkpoint, file:{inside}/not-begun/")
    made_all_old(table)
    kept = {path for path in inside.rglob("*") if "checkpoint" in path.parts or "not-begun" in path.parts}
    # The control: what nobody has named goes.
    assert vacuum(spark, str(table), manager=manager).orphans == 1
    assert not (inside / "not-named").exists()
    assert all(path.exists() for path in kept)
    put([1])
    assert read() == 2


def _stream_of_another_table(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "offsets").mkdir(parents=True)
    (tmp_path / "other" / "offsets" / "0").write_text('v1\n{}\n{"reservoirId": "another", "reservoirVersion": 1}\n')
    vacuum(spark, str(table), streams=[str(tmp_path / "other")])


@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("is_protected", [True, False], ids=["protected", "negative control"])
def test_orphans_go_and_no_file_of_a_stage_a_stream_or_a_pin(  # noqa: PLR0917 (fixtures)
    number: int,
    is_protected: bool,  # noqa: FBT001 (a parameter of the test)
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    table: Path,
    tmp_path: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(range(3))
    properties(**RETENTION)
    pin = take_pin(spark, {str(table): None}, name="audit", expires_at=datetime.now(UTC) + DAY, manager=manager)
    pinned = [row["key"] for row in pinned_rows(spark, pin, str(table)).collect()]
    read = stream_of(spark, table, tmp_path)
    assert read() == 3
    put([3], "b")
    writer.delete("place = 'b'")
    writer.update({"value": "concat(value, '!')"})
    properties(sluice__maintenance__streams=str(tmp_path / "checkpoint"))
    orphans = [
        table / f"place={place}" / f"part-{each:05}-orphan.parquet" for place in "ab" for each in range(number // 2)
    ]
    for orphan in orphans:
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"x")
    # As if all of this were long ago: longer than a file is kept, which the pin has raised to two days.
    for path in table.rglob("*"):
        if path.is_file():
            made_old(path, 30 if "_delta_log" in path.parts else 50)
    before = {path for path in table.rglob("*.parquet") if path.parent != table / "_delta_log"}
    monkeypatch.setattr("writer_jobs.maintenance.file_states.seconds_without_pins", lambda _: 0.0)
    if not is_protected:
        monkeypatch.setattr("writer_jobs.maintenance.pins_and_streams.PinsAndStreams.of", lambda *_: PinsAndStreams())
        monkeypatch.setattr("writer_jobs.delta.snapshot.Snapshot.file_retention_seconds", 0.0)
        monkeypatch.setattr("writer_jobs.maintenance.file_states.MIN_ORPHAN_AGE", timedelta(0))
    with in_another_thread(lambda: manager.acquire(writer.table)):
        staged = threading.Thread(target=put, args=([100],))
        staged.start()
        while not inspector.table(TableResource.of(writer.table)).waiters:
            time.sleep(0.05)
        stage = {path for path in table.rglob("*.parquet") if path.parent != table / "_delta_log"} - before
        assert len(stage) == 1
        # Not the lock on the table is needed, which somebody else has.
        found = measure(spark, str(table)).health.folder
        removed = vacuum(spark, str(table), manager=manager)
    staged.join()
    assert found.orphans.files == number + (not is_protected)
    assert removed.orphans == found.orphans.files
    assert not any(orphan.exists() for orphan in orphans)
    assert all(path.exists() for path in stage) == is_protected
    monkeypatch.undo()
    if is_protected:
        assert removed.files == number
        assert removed.kept_for_pins > 0
        assert removed.kept_for_streams > 0
        assert keys_of(spark, table) == [0, 1, 2, 100]
        assert sorted(row["key"] for row in pinned_rows(spark, pin, str(table)).collect()) == sorted(pinned)
        assert read() == 5
        assert verify_table(str(table)).ok
        return
    for fails in (
        lambda: keys_of(spark, table),
        lambda: pinned_rows(spark, pin, str(table)).collect(),
        read,
    ):
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|does not exist"):
            fails()


def forget_removals(spark: SparkSession, table: Path, properties: Callable[..., None]) -> None:
    """Wait until Delta's snapshot tells no removed file any more."""
    properties(delta__deletedFileRetentionDuration="interval 1 second", delta__logRetentionDuration="interval 30 days")
    log, deadline = DeltaTableLog(spark, f"file:{table}"), time.monotonic() + 60
    for number in range(100):
        # Delta looks at the time once for each version.
        if DataFiles(spark, log.snapshot()).removed().isEmpty():
            return
        assert time.monotonic() < deadline
        properties(looked=str(number))


def test_a_file_that_delta_has_forgotten_stays_for_a_stream_that_is_to_read_it(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    manager: ZookeeperLockManager,
    put: Callable[..., None],
    properties: Callable[..., None],
    care: Callable[..., MaintenanceReport],
) -> None:
    put([0])
    read = stream_of(spark, table, tmp_path)
    assert read() == 1
    # Added and put together behind the stream's back.
    put([1])
    put([2])
    assert [each.removed.files for each in care(Action.COMPACT).done] == [3]
    forget_removals(spark, table, properties)
    made_all_old(table)
    streams = [str(tmp_path / "checkpoint")]
    kept = vacuum(spark, str(table), streams=streams, manager=manager, dry_run=True)
    # They are lost by the table, and nobody has failed to commit them.
    assert (kept.files, kept.orphans, kept.kept_for_streams) == (0, 0, 3)
    copy = tmp_path / "copy"
    shutil.copytree(table, copy)
    assert vacuum(spark, str(table), streams=streams, manager=manager).files == 0
    assert read() == 3
    # The control: without the stream's name they go.
    assert (vacuum(spark, str(copy), streams=[], manager=manager).files, keys_of(spark, copy)) == (3, [0, 1, 2])


@pytest.mark.full
def test_change_data_and_forgotten_files_are_no_orphans(
    spark: SparkSession,
    table: Path,
    writer: LockedDeltaWriter,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put(range(3))
    properties(delta__enableChangeDataFeed="true")
    writer.update({"value": "'new'"}, "key = 1")
    (table / "place=a" / "part-orphan.parquet").write_bytes(b"x")
    folder = measure(spark, str(table)).health.folder
    assert (folder.uncommitted.files, folder.orphans.files, folder.expired.files) == (1, 0, 0)
    # One file that the update replaced, and one with what it changed.
    assert folder.removed.files == 2
    forget_removals(spark, table, properties)
    made_all_old(table)
    folder = measure(spark, str(table)).health.folder
    assert (folder.uncommitted.files, folder.orphans.files, folder.expired.files) == (0, 1, 2)
    # The log begins later than that file: it may have been named once.
    for version in range(2):
        (table / "_delta_log" / f"{version:020}.json").touch()
    folder = measure(spark, str(table)).health.folder
    assert (folder.orphans.files, folder.expired.files) == (1, 2)


@pytest.mark.full
def test_a_table_within_the_table_and_what_iceberg_needs_are_left_alone(
    spark: SparkSession, table: Path, manager: ZookeeperLockManager, put: Callable[..., None]
) -> None:
    put(range(3))
    within = table / "archive"
    LockedDeltaWriter(spark, manager, str(within)).append(spark.range(5))
    orphan = table / "tmp" / "part-orphan.parquet"
    iceberg = [table / "metadata" / name for name in ("v1.metadata.json", "snap-1.avro")]
    for path in (orphan, *iceberg):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    made_all_old(table)
    assert measure(spark, str(table)).health.folder.orphans.files == 1
    assert vacuum(spark, str(table), manager=manager).files == 1
    assert not orphan.exists()
    assert all(path.exists() for path in iceberg)
    assert spark.read.format("delta").load(str(within)).count() == 5


@pytest.mark.full
def test_an_orphan_is_spared_for_a_day_whatever_the_table_says(
    spark: SparkSession,
    table: Path,
    manager: ZookeeperLockManager,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put(range(3))
    properties(delta__deletedFileRetentionDuration="interval 1 second", delta__logRetentionDuration="interval 2 days")
    young, old = table / "place=a" / "part-young.parquet", table / "place=a" / "part-old.parquet"
    for path, hours in ((young, 23), (old, 25)):
        path.write_bytes(b"x")
        made_old(path, hours)
    assert vacuum(spark, str(table), manager=manager).orphans == 1
    assert (young.exists(), old.exists()) == (True, False)


def versions_there(table: Path) -> set[int]:
    return {int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdecimal()}


@pytest.mark.full
@pytest.mark.parametrize("keeper", ["pin", "stream", "nothing"])
def test_the_log_keeps_the_versions_that_a_pin_or_a_stream_needs(
    keeper: str,
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    manager: ZookeeperLockManager,
    put: Callable[..., None],
    properties: Callable[..., None],
    care: Callable[..., MaintenanceReport],
) -> None:
    long = {
        "delta__logRetentionDuration": "interval 60 days",
        "delta__deletedFileRetentionDuration": "interval 60 days",
    }
    put([0])
    properties(delta__enableExpiredLogCleanup="true", delta__checkpointInterval="1000", **long)
    if keeper == "pin":
        take_pin(spark, {str(table): None}, name="audit", expires_at=datetime.now(UTC) + DAY, manager=manager)
    read = stream_of(spark, table, tmp_path)
    if keeper == "stream":
        assert read() == 1
        properties(sluice__maintenance__streams=str(tmp_path / "checkpoint"))
    # Where its last batch but one ended: there Spark begins when it starts the stream again.
    needed = max(versions_there(table))
    put([1])
    if keeper == "stream":
        assert read() == 2
    for key in range(2, 4):
        put([key])
    # Somebody lowers what a pin has raised.
    properties(delta__logRetentionDuration="interval 1 hour", delta__deletedFileRetentionDuration="interval 1 hour")
    newest = max(versions_there(table))
    for version in versions_there(table):
        made_old(table / "_delta_log" / f"{version:020}.json", 24 * (30 - version))
    for path in (table / "_delta_log").glob("*.checkpoint*"):
        made_old(path, 24 * 20)
    # Its checkpoint does not clean up, although the table would have it so.
    assert care(Action.CHECKPOINT).failure is None
    assert min(versions_there(table)) == 0
    report = care(Action.CLEAN_LOG)
    assert report.failure is None
    assert max(versions_there(table)) == newest
    left = min(versions_there(table))
    assert (left <= needed) == (keeper != "nothing")
    assert keys_of(spark, table) == [0, 1, 2, 3]
    if keeper == "stream":
        assert read() == 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("stream/offsets/0", b'{"reservoirId": "ID", "reservoirVersion": null}', "reads no Delta table"),
        ("stream/offsets/0", b"\xff\xfe", "offsets/0 is not text in UTF-8"),
        ("table/_sluice_pins/audit.json", b"\xff\xfe", "audit.json is not text in UTF-8"),
    ],
)
def test_a_pin_or_a_stream_that_cannot_be_read_is_found(
    file: str,
    content: bytes,
    says: str,
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
) -> None:
    put([0])
    if file.startswith("stream"):
        properties(sluice__maintenance__streams=str(tmp_path / "stream"))
    identity = measure(spark, str(table)).health.table_id
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_bytes(content.replace(b"ID", identity.encode()))
    found = measure(spark, str(table))
    assert says in str(found.health.folder.problem)
    assert "broken-retention" in {finding.code for finding in find(found.health, found.policy)}


@pytest.mark.full
def test_what_keeps_files_and_is_broken_stops_nothing_but_their_removal(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
    care: Callable[..., MaintenanceReport],
) -> None:
    for key in range(6):
        put([key])
    properties(sluice__maintenance__streams=str(tmp_path / "nowhere"))
    orphan = table / "place=a" / "part-orphan.parquet"
    orphan.write_bytes(b"x")
    made_all_old(table)
    report = care()
    assert "nowhere is not there" in str(report.before.folder.problem)
    codes = [finding.code for finding in report.findings]
    assert "broken-retention" in codes
    assert "orphans" not in codes
    # That nothing can be removed is a failure, which a scheduler notices.
    assert [(each.action, each.failure is None) for each in report.done] == [
        (Action.COMPACT, True),
        (Action.VACUUM, False),
    ]
    assert "nowhere is not there" in str(report.failure)
    report = care(Action.VACUUM, Action.CLEAN_LOG)
    assert [each.failure is None for each in report.done] == [False, False]
    assert orphan.exists()


def test_who_is_stopped_begins_no_more_and_its_own_writes_are_no_reason_to_wait(
    spark: SparkSession,
    table: Path,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    put: Callable[..., None],
) -> None:
    put([0])
    uri = canonical_table_uri(str(table))
    stopped = threading.Event()

    def wait_for_lock() -> None:
        with suppress(LockCancelledError), manager.acquire(uri, timeout_seconds=60):
            pass

    with in_another_thread(lambda: manager.acquire(uri)):
        waiter = threading.Thread(target=wait_for_lock, daemon=True)
        waiter.start()
        while not inspector.table(TableResource.of(uri)).waiters:
            time.sleep(0.05)
        assert give_way(inspector, uri, 30, is_own=belongs_to_this_process) < 15
        stopped.set()
        assert give_way(inspector, uri, 30, stopped=stopped) < 15
        manager.cancel(uri)
        waiter.join(20)


@pytest.mark.full
def test_one_thing_that_fails_keeps_nothing_else_back(
    spark: SparkSession,
    table: Path,
    manager: ZookeeperLockManager,
    put: Callable[..., None],
    care: Callable[..., MaintenanceReport],
) -> None:
    for place in "abc":
        for key in range(2):
            put([key], place)
    with in_another_thread(lambda: locked(spark, str(table), partitions=[{"place": "b"}], manager=manager)):
        report = care(Action.COMPACT, lock_timeout_seconds=0)
    done = {each.partitions[0]["place"]: each for each in report.done}
    assert {place: each.problem is None for place, each in done.items()} == {"a": True, "b": False, "c": True}
    assert isinstance(report.failure, LockTimeoutError)
    assert report.after is not None
    assert report.after.total.total.files == 4


def test_a_table_with_identities_is_compacted_without_a_lock_on_the_work(
    spark: SparkSession,
    table: Path,
    manager: ZookeeperLockManager,
    sql: Callable[[str], None],
    eventually: Callable[..., None],
) -> None:
    with locked(spark, str(table), manager=manager):
        spark.sql(
            f"CREATE TABLE delta.`{table}` (id BIGINT GENERATED BY DEFAULT AS IDENTITY, value STRING) USING delta"
        )
    for _ in range(3):
        sql("INSERT INTO {table} (value) VALUES ('a')")
    writer = LockedDeltaWriter(spark, manager, str(table))
    done: list[Any] = []
    compaction = threading.Thread(target=lambda: done.append(writer.optimize(again=False)), daemon=True)
    with in_another_thread(lambda: manager.acquire(writer.table)):
        compaction.start()
        # It writes before it has the lock.
        eventually(lambda: len(list(table.glob("*.parquet"))) == 4, what="the new file")
        assert not done
    compaction.join(60)
    assert done[0].metrics["numRemovedFiles"] == "3"
    assert sorted(row["value"] for row in spark.read.format("delta").load(str(table)).collect()) == ["a"] * 3
