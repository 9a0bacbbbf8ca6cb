"""Appends of the locked writer: results, refusals, lost locks and cancellation, with ZooKeeper and Spark."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockCancelledError, LockLostError, LockTimeoutError, ZookeeperLockManager
from tests.support.at_the_gate import TableAtTheGate, commit_info
from tests.support.lock_znodes import LockZnodes
from tests.support.rivals import RivalManager
from tests.support.spark_settings import spark_settings
from writer_jobs import (
    CommitResult,
    LockedDeltaWriter,
    SchemaMismatchError,
    StorageError,
    TableError,
    UnprovenCommitError,
    UnsupportedSessionError,
    WriteFailedError,
    build_session,
    locate_table,
)
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import DeltaTableLog

pytestmark = [
    pytest.mark.spark,
    # PySpark imports pandas when a user-defined function is created.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@dataclass(kw_only=True)
class Table(TableAtTheGate):
    """A table with one row, or a location without a table."""

    client: KazooClient

    def append(self, first_id: int = 0, **options: Any) -> CommitResult:
        return self.writer.append(self.spark.range(first_id, first_id + 1).coalesce(1), **options)

    def version_count(self) -> int:
        """Return the number of version files."""
        return len(list(self.path.glob("_delta_log/*.json")))

    def lose_lock(self, _: object = None) -> None:
        """Delete each contender of the table. ``before_write`` may call this method."""
        LockZnodes(self.client, self.writer.table).delete_contenders()

    def check_that_lock_is_free(self) -> None:
        """Check that the lock is free, by acquiring it."""
        self.manager.acquire(self.writer.table, timeout_seconds=0).release()

    def user_metadata(self, version: int) -> dict[str, Any]:
        """Return the ``userMetadata`` of a version."""
        user_metadata: dict[str, Any] = json.loads(commit_info(self.path, version)["userMetadata"])
        return user_metadata


@pytest.fixture
def table(request: pytest.FixtureRequest, ensemble_client: KazooClient) -> Table:
    statement = "create table {t} using delta as select id from range(0, 1, 1, 1)"
    return Table.create(request, statement, client=ensemble_client)


@pytest.fixture
def new_table(request: pytest.FixtureRequest, ensemble_client: KazooClient) -> Table:
    return Table.create(request, client=ensemble_client)


class BlockedRows:
    """A data frame with one row, which Spark cannot compute until the test allows it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._started, self._allowed = folder / "started", folder / "allowed"
        started, allowed = str(self._started), str(self._allowed)

        @F.udf("long", useArrow=False)
        def wait(value: int) -> int:
            import pathlib
            import time

            pathlib.Path(started).touch()
            deadline = time.monotonic() + 60
            while not pathlib.Path(allowed).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(0.01)
            return value

        self.rows: DataFrame = spark.range(1).select(wait("id").alias("id"))

    def has_started(self) -> bool:
        return self._started.exists()

    def allow(self) -> None:
        self._allowed.touch()


@pytest.fixture
def blocked_rows(spark: SparkSession, tmp_path: Path) -> Iterator[BlockedRows]:
    rows = BlockedRows(spark, tmp_path)
    yield rows
    rows.allow()


def test_the_first_append_creates_the_table(new_table: Table) -> None:
    spark, started_at = new_table.spark, time.time()
    first = new_table.writer.append(spark.range(5).withColumn("p", F.col("id") % 2), partition_by=["p"])
    second = new_table.writer.append(spark.range(5, 8).withColumn("p", F.lit(0).cast("long")))

    assert (first.version, first.rows, second.version, second.rows) == (0, 5, 1, 3)
    assert not first.already_committed
    assert first.table == f"file:{new_table.path}"
    assert started_at < first.requested_at < first.acquired_at < first.released_at < second.acquired_at < time.time()
    assert second.token > first.token
    assert first.held_seconds == first.released_at - first.acquired_at
    assert new_table.ids() == list(range(8))
    assert {path.name for path in new_table.path.glob("p=*")} == {"p=0", "p=1"}


def test_a_commit_has_a_stamp_and_the_metadata_of_the_caller(new_table: Table) -> None:
    result = new_table.append(options={"userMetadata": "mine"}, metadata={"run": {"id": "r"}})

    user_metadata = new_table.user_metadata(0)
    assert user_metadata["user"] == "mine"
    assert user_metadata["sluice"]["commit_id"] == result.commit_id
    assert user_metadata["sluice"]["run"] == {"id": "r"}
    stamp = commit_info(new_table.path, 0)["sluice"]
    assert stamp["hold"] == result.hold_id
    assert [(node["mode"], node["token"]) for node in stamp["nodes"]] == [("exclusive", result.token)]
    assert stamp["acquired_at"] == result.acquired_at
    assert len(stamp["ensemble"]) >= 32


@pytest.mark.parametrize("skips_empty_commits", [False, True], ids=["a commit", "skipped by a setting of Delta"])
def test_an_append_of_no_rows_has_no_version_if_delta_skips_it(table: Table, *, skips_empty_commits: bool) -> None:
    settings = {"spark.databricks.delta.skipRecordingEmptyCommits": "true"} if skips_empty_commits else {}
    with spark_settings(table.spark.conf, settings):
        result = table.writer.append(table.spark.range(0))
    assert (result.version, result.rows, result.already_committed) == (None if skips_empty_commits else 1, 0, False)


@pytest.mark.full
def test_a_repeated_transaction_is_already_committed(new_table: Table) -> None:
    result = new_table.append(txn=("app", 2))
    assert (result.version, result.already_committed) == (0, False)
    for number in (1, 2):
        repetition = new_table.append(txn=("app", number))
        assert (repetition.version, repetition.rows, repetition.commit_id, repetition.already_committed) == (
            None, None, None, True,
        )  # fmt: skip
    assert new_table.append(txn=("other", 1)).version == 1
    assert new_table.version_count() == 2


def test_a_failed_write_adds_no_version_and_frees_the_lock(table: Table) -> None:
    row_or_error = F.when(F.col("id") < 9, F.col("id")).otherwise(F.raise_error(F.lit("rotten row")))
    with pytest.raises(WriteFailedError, match="rotten row") as error:
        table.writer.append(table.spark.range(10).select(row_or_error.alias("id")))

    assert error.value.__cause__ is not None
    assert "\n" not in str(error.value)
    assert table.version_count() == 1
    table.check_that_lock_is_free()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["id", "id as surplus"], "no column surplus"),
        (["array(id) as id"], "id: table bigint, rows array<bigint>"),
    ],
)
def test_rows_that_do_not_fit_are_a_schema_mismatch(table: Table, columns: list[str], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        table.writer.append(table.spark.range(2).selectExpr(*columns))


@pytest.mark.full
def test_a_mismatch_names_only_the_types_that_delta_refuses(new_table: Table) -> None:
    spark, writer = new_table.spark, new_table.writer
    writer.append(spark.range(1).selectExpr("id", "1 number", "'a' text"))
    narrower_rows = spark.range(1).selectExpr("id", "1S number", "null text")
    writer.append(narrower_rows)
    with pytest.raises(SchemaMismatchError, match=r"the table has no column surplus$"):
        writer.append(narrower_rows.withColumn("surplus", F.lit(1)))
    with pytest.raises(SchemaMismatchError, match=r"\(id: table bigint, rows int\): cast"):
        writer.append(narrower_rows.withColumn("id", F.col("id").cast("int")))


def test_another_partitioning_than_the_table_s_is_refused(new_table: Table) -> None:
    rows = new_table.spark.range(1).selectExpr("id", "id as p", "id as q")
    new_table.writer.append(rows, partition_by=["p"])
    with pytest.raises(WriteFailedError, match=r"Given: \[`q`\]"):
        new_table.writer.append(rows, partition_by=["q"])


@pytest.mark.full
def test_a_plan_that_reads_the_table_reads_its_newest_version(table: Table) -> None:
    rows = table.spark.read.format("delta").load(str(table.path))
    table.writer.append(table.spark.range(1, 3))
    assert table.writer.append(rows).rows == 3


def test_a_lock_lost_before_the_write_writes_nothing(table: Table) -> None:
    with pytest.raises(LockLostError) as error:
        table.append(before_write=table.lose_lock)

    assert not isinstance(error.value, UnprovenCommitError)
    assert table.version_count() == 1


def test_a_lock_lost_at_the_guard_is_not_an_unproven_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    check = GUARD.check

    def lose_and_check(request: str) -> str:
        table.lose_lock()
        return check(request)

    monkeypatch.setattr(GUARD, "check", lose_and_check)
    with pytest.raises(LockLostError, match="contender was gone") as error:
        table.append()
    assert not isinstance(error.value, UnprovenCommitError)
    assert table.version_count() == 1


@pytest.mark.full
def test_a_lock_lost_during_the_write_ends_it(table: Table, blocked_rows: BlockedRows) -> None:
    with ThreadPoolExecutor(1) as pool:
        running_write = pool.submit(table.writer.append, blocked_rows.rows, lock_during="write")
        table.eventually(blocked_rows.has_started, label="the write")
        assert table.queue_length() == 1
        table.lose_lock()
        # The rows stay blocked: the write ends because its jobs are cancelled.
        with pytest.raises(LockLostError) as error:
            running_write.result(60)

    assert not isinstance(error.value, UnprovenCommitError)
    assert table.version_count() == 1


def test_a_lock_lost_after_the_commit_is_an_unproven_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    find_commit = table.writer.log.find_commit

    def lose_and_find(write_id: str, **search: Any) -> Any:
        assert table.queue_length() == 1
        table.lose_lock()
        return find_commit(write_id, **search)

    monkeypatch.setattr(table.writer.log, "find_commit", lose_and_find)
    with pytest.raises(UnprovenCommitError, match="version 1") as error:
        table.append(lock_during="write")

    commit_id = table.user_metadata(1)["sluice"]["commit_id"]
    assert (error.value.version, error.value.commit_id) == (1, commit_id)


def test_cancel_ends_a_write_without_a_commit(table: Table, blocked_rows: BlockedRows) -> None:
    with ThreadPoolExecutor(1) as pool:
        running_write = pool.submit(table.writer.append, blocked_rows.rows)
        table.eventually(blocked_rows.has_started, label="the write")
        table.writer.cancel()
        with pytest.raises(WriteFailedError, match=r"[Cc]ancel"):
            running_write.result(10)

    assert table.version_count() == 1
    table.check_that_lock_is_free()
    with pytest.raises(LockCancelledError):
        table.append()


def test_cancel_ends_a_wait_for_the_lock(new_table: Table) -> None:
    with new_table.waiting_write(new_table.append) as running_write:
        new_table.writer.cancel()
        with pytest.raises(LockCancelledError):
            running_write.result()
        assert new_table.queue_length() == 1


@pytest.mark.full
def test_ctrl_c_is_raised_when_the_write_has_ended(table: Table, blocked_rows: BlockedRows) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        table.eventually(blocked_rows.has_started, label="the write")
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        table.writer.append(blocked_rows.rows)
    thread.join()

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("sluice-write")]
    assert not [thread for thread in threads if thread.is_alive()]
    assert table.version_count() == 1
    table.check_that_lock_is_free()


def test_a_failed_release_does_not_mask_an_error_of_before_write(new_table: Table) -> None:
    def fail(_hold: object) -> None:
        new_table.lose_lock()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        new_table.append(before_write=fail)


@pytest.mark.full
def test_writers_of_one_table_take_turns_without_a_conflict(new_table: Table, zookeeper: Any) -> None:
    def load(number: int) -> list[Any]:
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=120) as manager:
            writer = LockedDeltaWriter(new_table.spark, manager, str(new_table.path))
            return [
                writer.append(new_table.spark.range(row, row + 1).coalesce(1), lock_during="write")
                for row in (2 * number, 2 * number + 1)
            ]

    with ThreadPoolExecutor(2) as pool:
        results = [result for results_of_writer in pool.map(load, range(2)) for result in results_of_writer]
    results.sort(key=lambda result: result.version)

    assert [result.version for result in results] == list(range(4))
    # Each writer committed the first version that it tried: it had read the version just before.
    read_versions = [commit_info(new_table.path, version).get("readVersion", -1) for version in range(4)]
    assert read_versions == list(range(-1, 3))
    assert all(earlier.released_at <= later.acquired_at for earlier, later in pairwise(results))
    assert [result.token for result in results] == sorted(result.token for result in results)
    assert new_table.ids() == [0, 1, 2, 3]


def test_a_lock_timeout_writes_no_file(new_table: Table, make_rival: Callable[..., RivalManager]) -> None:
    with make_rival().acquire(new_table.writer.table), pytest.raises(LockTimeoutError):
        new_table.append(lock_timeout_seconds=0)
    assert not [path for path in new_table.path.rglob("*") if path.is_file()]


def test_a_catalog_name_is_locked_by_the_location_of_its_table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    unguarded_sql: Callable[[str], None],
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    unguarded_sql(f"create table named (id bigint) using delta location '{tmp_path / 'somewhere'}'")
    try:
        writer = LockedDeltaWriter(spark, manager, "default.named")
        queues: list[Any] = []
        writer.append(
            spark.range(1), before_write=lambda _: queues.append(manager.queue(f"file://{tmp_path}//somewhere/"))
        )
        assert writer.table == f"file:{tmp_path}/somewhere"
        assert len(queues[0]) == 1
        assert commit_info(tmp_path / "somewhere", 1)["sluice"]["light"] == "listed"
        assert rows_of(tmp_path / "somewhere") == [(0,)]
    finally:
        spark.sql("drop table named")


@pytest.mark.full
@pytest.mark.s3
def test_an_s3_table_is_one_table_with_each_scheme(
    spark: SparkSession, manager: ZookeeperLockManager, rows_of: Callable[..., Any], s3: Any
) -> None:
    writers = [LockedDeltaWriter(spark, manager, f"{scheme}://{s3.root}/spellings/") for scheme in ("s3", "s3n", "s3a")]
    assert {writer.table for writer in writers} == {f"s3://{s3.root}/spellings"}
    # test_guard.py writes with s3a.
    for number, writer in enumerate(writers[:2]):
        assert writer.append(spark.range(number, number + 1).coalesce(1)).version == number
    assert rows_of(f"s3://{s3.root}/spellings") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("default.missing", "does not exist in the catalog"),
        ("not a name", "neither a location nor a table's name"),
        ("a_view", "is a view"),
        ("a_temporary_view", "is a view"),
        ("a_parquet_table", "not a Delta table but parquet"),
        ("nowhere://host/table", "No FileSystem"),
    ],
)
def test_a_name_of_no_delta_table_is_refused(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, message: str
) -> None:
    spark.sql("create or replace view a_view as select 1 as id")
    spark.range(1).createOrReplaceTempView("a_temporary_view")
    spark.sql("create table if not exists a_parquet_table (id bigint) using parquet")
    with pytest.raises(TableError, match=message) as error:
        LockedDeltaWriter(spark, manager, name)
    assert "\n" not in str(error.value)


def test_a_folder_with_other_files_is_refused_and_left_unchanged(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(TableError, match="not a Delta table"):
        LockedDeltaWriter(spark, manager, str(folder))
    with pytest.raises(TableError, match="a file"):
        LockedDeltaWriter(spark, manager, str(folder / "notes.txt"))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.full
def test_files_of_a_killed_first_append_are_no_obstacle(new_table: Table) -> None:
    (new_table.path / "_delta_log").mkdir(parents=True)
    (new_table.path / "part-00000-orphan.parquet").write_bytes(b"")
    assert new_table.append().version == 0


def test_the_error_for_a_missing_bucket_names_it(spark: SparkSession, manager: ZookeeperLockManager) -> None:
    with pytest.raises(StorageError, match=r"^s3a://no-such-bucket/t: the bucket does not exist$"):
        LockedDeltaWriter(spark, manager, "s3a://no-such-bucket/t")


def test_a_catalog_managed_table_is_refused(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    features = ["catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"]
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    actions = [
        {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1, "operation": "CREATE TABLE"}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [feature for feature in features if feature != "inCommitTimestamp"],
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000000",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {"delta.enableInCommitTimestamps": "true"},
            }
        },
    ]
    (log / f"{0:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))
    # Delta 4.0.0 does not know the feature, and 4.0.1 has another name for it.
    with pytest.raises(TableError, match=r"catalog-managed|catalogManaged|Catalog-Owned"):
        LockedDeltaWriter(spark, manager, str(log.parent))


def test_the_error_for_a_damaged_log_is_one_line(table: Table) -> None:
    log = table.path / "_delta_log"
    (log / f"{0:020d}.json").rename(log / f"{5:020d}.json")
    with pytest.raises(TableError, match="cannot be read as a Delta table") as error:
        LockedDeltaWriter(table.spark, table.manager, str(table.path))
    assert "\n" not in str(error.value)


def test_transactions_are_an_argument_and_no_option(new_table: Table) -> None:
    with pytest.raises(ValueError, match="txnVersion"):
        new_table.append(options={"txnVersion": "1"})


def test_relative_paths_and_delta_identifiers_are_locations(spark: SparkSession, tmp_path: Path) -> None:
    assert locate_table(spark, f"delta.`{tmp_path}/a b`") == f"file:{tmp_path}/a b"
    assert locate_table(spark, "./x/../y") == f"file:{Path.cwd()}/y"
    assert locate_table(spark, "delta.`y`") == f"file:{Path.cwd()}/y"


@pytest.mark.full
def test_another_catalog_decides_where_its_new_tables_are(spark: SparkSession, tmp_path: Path) -> None:
    options = {
        "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        ".url": f"jdbc:derby:{tmp_path / 'derby'};create=true", ".driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }  # fmt: skip
    for name, value in options.items():
        spark.conf.set(f"spark.sql.catalog.others{name}", value)
    assert locate_table(spark, "default.new", new=True).endswith("/new")
    spark.sql("USE others")
    try:
        with pytest.raises(TableError, match="does not exist in the catalog"):
            locate_table(spark, "default.new", new=True)
        assert locate_table(spark, "spark_catalog.default.new", new=True).endswith("/new")
    finally:
        spark.sql("USE spark_catalog")


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(UnsupportedSessionError, match="Spark Connect is not supported"):
        build_session("any")


def test_a_write_under_the_lock_loads_the_table_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each snapshot lists the log while all other writers wait."""
    loaded_versions: list[int] = []
    load = DeltaTableLog.snapshot

    def load_and_record(log: DeltaTableLog) -> Snapshot:
        snapshot = load(log)
        loaded_versions.append(snapshot.version)
        return snapshot

    monkeypatch.setattr(DeltaTableLog, "snapshot", load_and_record)
    assert table.append(lock_during="write").version == 1
    assert loaded_versions == [0]
    # A function that is called under the lock may have committed.
    assert table.append(lock_during="write", before_write=lambda _: None).version == 2
    assert loaded_versions == [0, 1, 1]
