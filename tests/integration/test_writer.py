"""The locked writer against a real ZooKeeper and a real Spark driver."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockCancelledError, LockLostError, LockTimeoutError, ZookeeperLockManager
from tests.support.at_the_gate import contenders
from tests.support.rivals import RivalManager
from writer_jobs import (
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
    # PySpark looks for pandas wherever a user-defined function is made.
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture
def writer(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> LockedDeltaWriter:
    """Of a table that is not there yet."""
    return LockedDeltaWriter(spark, manager, str(table))


@pytest.fixture
def made(copy_of: Callable[..., Path], table: Path) -> Path:
    """The table, with one version and one row."""
    return copy_of("create table {t} using delta as select id from range(0, 1, 1, 1)", to=table.name)


def commit_info(table: Path, version: int) -> dict[str, Any]:
    line = (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()[0]
    return json.loads(line)["commitInfo"]


class Gate:
    """A data frame whose only row is not computed before the gate is opened."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._reached, self._open = folder / "reached", folder / "open"
        reached, opened = str(self._reached), str(self._open)

        @F.udf("long", useArrow=False)
        def pass_gate(value: int) -> int:
            import pathlib
            import time

            pathlib.Path(reached).touch()
            deadline = time.monotonic() + 60
            while not pathlib.Path(opened).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(0.01)
            return value

        self.rows: DataFrame = spark.range(1).select(pass_gate("id").alias("id"))

    @property
    def reached(self) -> bool:
        return self._reached.exists()

    def open(self) -> None:
        self._open.touch()


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Iterator[Gate]:
    made = Gate(spark, tmp_path)
    yield made
    made.open()


def test_the_first_append_creates_the_table_and_the_next_ones_follow(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, rows_of: Callable[..., Any]
) -> None:
    before = time.time()
    first = writer.append(spark.range(5).withColumn("p", F.col("id") % 2), partition_by=["p"])
    second = writer.append(spark.range(5, 8).withColumn("p", F.lit(0).cast("long")))

    assert (first.version, first.rows, second.version, second.rows) == (0, 5, 1, 3)
    assert not first.already_committed
    assert first.table == f"file:{table}"
    assert before < first.requested_at < first.acquired_at < first.released_at < second.acquired_at < time.time()
    assert second.token > first.token
    assert first.held_seconds == first.released_at - first.acquired_at
    assert [row[0] for row in rows_of(table, "id")] == list(range(8))
    assert {path.name for path in table.glob("p=*")} == {"p=0", "p=1"}


def test_every_commit_carries_its_stamp_beside_the_callers_own_metadata(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path
) -> None:
    result = writer.append(spark.range(1), options={"userMetadata": "mine"}, metadata={"run": {"id": "r"}})

    noted = json.loads(commit_info(table, 0)["userMetadata"])
    assert noted["user"] == "mine"
    assert noted["sluice"]["commit_id"] == result.commit_id
    assert noted["sluice"]["run"] == {"id": "r"}
    guard = commit_info(table, 0)["sluice"]
    assert guard["hold"] == result.hold_id
    assert [(node["mode"], node["token"]) for node in guard["nodes"]] == [("exclusive", result.token)]
    assert guard["acquired_at"] == result.acquired_at
    assert len(guard["ensemble"]) >= 32


@pytest.mark.usefixtures("made")
def test_an_append_of_no_rows_is_a_commit_too(spark: SparkSession, writer: LockedDeltaWriter) -> None:
    result = writer.append(spark.range(0))

    assert (result.version, result.rows, result.already_committed) == (1, 0, False)


@pytest.mark.usefixtures("made")
def test_an_empty_append_that_delta_was_told_to_skip_is_reported_as_no_version(
    spark: SparkSession, writer: LockedDeltaWriter
) -> None:
    spark.conf.set("spark.databricks.delta.skipRecordingEmptyCommits", "true")
    try:
        result = writer.append(spark.range(0))
    finally:
        spark.conf.set("spark.databricks.delta.skipRecordingEmptyCommits", "false")

    assert (result.version, result.rows, result.already_committed) == (None, 0, False)


@pytest.mark.full
def test_a_transaction_that_was_committed_is_reported_as_such_and_not_done_again(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, versions: Callable[[Path], list[str]]
) -> None:
    made = writer.append(spark.range(3), txn=("app", 2))
    assert (made.version, made.already_committed) == (0, False)
    for number in (1, 2):
        again = writer.append(spark.range(3), txn=("app", number))
        assert (again.version, again.rows, again.commit_id, again.already_committed) == (None, None, None, True)
    other = writer.append(spark.range(3), txn=("other", 1))

    assert other.version == 1
    assert len(versions(table)) == 2


@pytest.mark.usefixtures("made")
def test_a_write_that_fails_leaves_the_table_as_it_was_and_gives_the_lock_back(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    writer: LockedDeltaWriter,
    table: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    broken = spark.range(10).select(F.when(F.col("id") < 9, F.col("id")).otherwise(F.raise_error(F.lit("rotten row"))))
    with pytest.raises(WriteFailedError, match="rotten row") as failed:
        writer.append(broken.toDF("id"))

    assert failed.value.__cause__ is not None
    assert "\n" not in str(failed.value)
    assert len(versions(table)) == 1
    manager.acquire(writer.table, timeout_seconds=0).release()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id", "id as surplus"], "no column surplus"),
        (["array(id) as id"], "id: table bigint, rows array<bigint>"),
    ],
)
@pytest.mark.usefixtures("made")
def test_rows_that_do_not_fit_are_a_schema_mismatch(
    spark: SparkSession, writer: LockedDeltaWriter, columns: list[str], said: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=said):
        writer.append(spark.range(2).selectExpr(*columns))


@pytest.mark.full
def test_a_mismatch_names_only_the_types_that_delta_refuses(spark: SparkSession, writer: LockedDeltaWriter) -> None:
    writer.append(spark.range(1).selectExpr("id", "1 number", "'a' text"))
    narrower = spark.range(1).selectExpr("id", "1S number", "null text")
    writer.append(narrower)
    with pytest.raises(SchemaMismatchError, match=r"the table has no column surplus$"):
        writer.append(narrower.withColumn("surplus", F.lit(1)))
    with pytest.raises(SchemaMismatchError, match=r"\(id: table bigint, rows int\): cast"):
        writer.append(narrower.withColumn("id", F.col("id").cast("int")))


def test_a_partitioning_that_is_not_the_tables_is_refused_by_name(
    spark: SparkSession, writer: LockedDeltaWriter
) -> None:
    writer.append(spark.range(1).selectExpr("id", "id as p", "id as q"), partition_by=["p"])
    with pytest.raises(WriteFailedError, match="q"):
        writer.append(spark.range(1).selectExpr("id", "id as p", "id as q"), partition_by=["q"])


@pytest.mark.full
@pytest.mark.usefixtures("made")
def test_a_plan_that_reads_the_table_reads_it_under_the_lock(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path
) -> None:
    itself = spark.read.format("delta").load(str(table))
    writer.append(spark.range(1, 3))
    assert writer.append(itself).rows == 3


@pytest.mark.usefixtures("made")
def test_a_lock_that_is_lost_before_the_write_means_that_nothing_is_written(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    table: Path,
    ensemble_client: KazooClient,
    versions: Callable[[Path], list[str]],
) -> None:

    def lose(_hold: object) -> None:
        for node in contenders(ensemble_client, writer.table):
            ensemble_client.delete(node)

    with pytest.raises(LockLostError) as lost:
        writer.append(spark.range(1), before_write=lose)

    assert not isinstance(lost.value, UnprovenCommitError)
    assert len(versions(table)) == 1


@pytest.mark.usefixtures("made")
def test_a_lock_of_which_the_commit_finds_out_that_it_is_lost_is_a_lost_lock(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    table: Path,
    ensemble_client: KazooClient,
    versions: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not a commit of which nobody knows: Delta was refused it by the guard."""
    check = GUARD.check

    def lose_and_check(request: str) -> str:
        for node in contenders(ensemble_client, writer.table):
            ensemble_client.delete(node)
        return check(request)

    monkeypatch.setattr(GUARD, "check", lose_and_check)
    with pytest.raises(LockLostError, match="contender was gone") as lost:
        writer.append(spark.range(1))
    assert not isinstance(lost.value, UnprovenCommitError)
    assert len(versions(table)) == 1


@pytest.mark.full
@pytest.mark.usefixtures("made")
def test_a_lock_that_is_lost_during_the_write_ends_it_without_a_commit(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    gate: Gate,
    table: Path,
    ensemble_client: KazooClient,
    versions: Callable[[Path], list[str]],
    eventually: Callable[..., None],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(writer.append, gate.rows, lock_during="write")
        eventually(lambda: gate.reached, what="the write")
        (node,) = contenders(ensemble_client, writer.table)
        ensemble_client.delete(node)
        # The gate stays shut: the write ends because its jobs are cancelled.
        with pytest.raises(LockLostError) as lost:
            running.result(60)

    assert not isinstance(lost.value, UnprovenCommitError)
    assert len(versions(table)) == 1


@pytest.mark.usefixtures("made")
def test_a_lock_that_is_lost_after_the_commit_is_reported_with_what_was_committed(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    table: Path,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_commit = writer.log.find_commit

    def lose(write_id: str, **search: Any) -> Any:
        (node,) = contenders(ensemble_client, writer.table)
        ensemble_client.delete(node)
        return find_commit(write_id, **search)

    monkeypatch.setattr(writer.log, "find_commit", lose)
    with pytest.raises(UnprovenCommitError, match="version 1") as lost:
        writer.append(spark.range(1), lock_during="write")

    noted = json.loads(commit_info(table, 1)["userMetadata"])["sluice"]
    assert (lost.value.version, lost.value.commit_id) == (1, noted["commit_id"])


@pytest.mark.usefixtures("made")
def test_cancel_ends_a_write_without_a_commit(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    writer: LockedDeltaWriter,
    gate: Gate,
    table: Path,
    versions: Callable[[Path], list[str]],
    eventually: Callable[..., None],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(writer.append, gate.rows)
        eventually(lambda: gate.reached, what="the write")
        writer.cancel()
        with pytest.raises(WriteFailedError, match=r"[Cc]ancel"):
            running.result(10)

    assert len(versions(table)) == 1
    manager.acquire(writer.table, timeout_seconds=0).release()
    with pytest.raises(LockCancelledError):
        writer.append(spark.range(1))


def test_cancel_ends_waiting(
    spark: SparkSession,
    zookeeper: Any,
    manager: ZookeeperLockManager,
    writer: LockedDeltaWriter,
    eventually: Callable[..., None],
) -> None:
    with ZookeeperLockManager(zookeeper.hosts) as rival, rival.acquire(writer.table), ThreadPoolExecutor(1) as pool:
        running = pool.submit(writer.append, spark.range(1))
        eventually(lambda: len(manager.queue(writer.table)) == 2, what="a second in the queue")
        writer.cancel()
        with pytest.raises(LockCancelledError):
            running.result()
        assert len(manager.queue(writer.table)) == 1


@pytest.mark.full
@pytest.mark.usefixtures("made")
def test_an_interrupt_is_raised_when_the_write_is_over_and_not_before(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    writer: LockedDeltaWriter,
    gate: Gate,
    table: Path,
    versions: Callable[[Path], list[str]],
    eventually: Callable[..., None],
) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        eventually(lambda: gate.reached, what="the write")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        writer.append(gate.rows)
    thread.join()

    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("sluice-write") and thread.is_alive()
    ]
    assert len(versions(table)) == 1
    manager.acquire(writer.table, timeout_seconds=0).release()


def test_what_before_write_raises_is_not_masked_by_a_release_that_fails(
    spark: SparkSession, writer: LockedDeltaWriter, ensemble_client: KazooClient
) -> None:
    def fail(_hold: object) -> None:
        for node in contenders(ensemble_client, writer.table):
            ensemble_client.delete(node)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.append(spark.range(1), before_write=fail)


@pytest.mark.full
def test_writers_of_one_table_take_turns_and_never_conflict(
    spark: SparkSession, zookeeper: Any, table: Path, rows_of: Callable[..., Any]
) -> None:
    def load(number: int) -> list[Any]:
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=120) as manager:
            writer = LockedDeltaWriter(spark, manager, str(table))
            return [
                writer.append(spark.range(2 * number + part, 2 * number + part + 1).coalesce(1), lock_during="write")
                for part in range(2)
            ]

    with ThreadPoolExecutor(2) as pool:
        results = sorted((result for done in pool.map(load, range(2)) for result in done), key=lambda r: r.version)

    assert [result.version for result in results] == list(range(4))
    # Nobody had to try a second version, and no hold overlapped another.
    assert [commit_info(table, version).get("readVersion", -1) for version in range(4)] == list(range(-1, 3))
    assert all(one.released_at <= other.acquired_at for one, other in pairwise(results))
    assert [result.token for result in results] == sorted(result.token for result in results)
    assert rows_of(table) == [(0,), (1,), (2,), (3,)]


def test_a_lock_that_is_not_free_in_time_is_a_timeout(
    spark: SparkSession, make_rival: Callable[..., RivalManager], writer: LockedDeltaWriter, table: Path
) -> None:
    with make_rival().acquire(writer.table), pytest.raises(LockTimeoutError):
        writer.append(spark.range(1).coalesce(1), lock_timeout_seconds=0)
    assert not [path for path in table.rglob("*") if path.is_file()]


def test_a_catalog_name_is_locked_by_the_location_of_its_table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    sql_elsewhere(f"create table named (id bigint) using delta location '{tmp_path / 'somewhere'}'")
    try:
        writer = LockedDeltaWriter(spark, manager, "default.named")
        queues: list[Any] = []
        writer.append(
            spark.range(1), before_write=lambda _: queues.append(manager.queue(f"file://{tmp_path}//somewhere/"))
        )
        assert writer.table == f"file:{tmp_path}/somewhere"
        assert len(queues[0]) == 1
        assert rows_of(tmp_path / "somewhere") == [(0,)]
    finally:
        spark.sql("drop table named")


@pytest.mark.full
@pytest.mark.s3
def test_an_s3_table_is_one_table_in_all_its_spellings(
    spark: SparkSession, manager: ZookeeperLockManager, rows_of: Callable[..., Any], s3: Any
) -> None:
    writers = [LockedDeltaWriter(spark, manager, f"{scheme}://{s3.root}/spellings/") for scheme in ("s3", "s3n", "s3a")]
    assert {writer.table for writer in writers} == {f"s3://{s3.root}/spellings"}
    # With the third one test_guard.py writes.
    for number, writer in enumerate(writers[:2]):
        assert writer.append(spark.range(number, number + 1).coalesce(1)).version == number
    assert rows_of(f"s3://{s3.root}/spellings") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("default.missing", "does not exist in the catalog"),
        ("not a name", "neither a location nor a table's name"),
        ("a_view", "is a view"),
        ("a_temporary_view", "is a view"),
        ("a_parquet_table", "not a Delta table but parquet"),
        ("nowhere://host/table", "No FileSystem"),
    ],
)
def test_what_is_no_delta_table_is_refused(
    spark: SparkSession, manager: ZookeeperLockManager, name: str, said: str
) -> None:
    spark.sql("create or replace view a_view as select 1 as id")
    spark.range(1).createOrReplaceTempView("a_temporary_view")
    spark.sql("create table if not exists a_parquet_table (id bigint) using parquet")
    with pytest.raises(TableError, match=said) as refused:
        LockedDeltaWriter(spark, manager, name)
    assert "\n" not in str(refused.value)


def test_a_folder_with_other_files_is_refused_and_left_alone(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path
) -> None:
    table.mkdir()
    (table / "notes.txt").write_text("mine")
    with pytest.raises(TableError, match="not a Delta table"):
        LockedDeltaWriter(spark, manager, str(table))
    with pytest.raises(TableError, match="a file"):
        LockedDeltaWriter(spark, manager, str(table / "notes.txt"))
    assert [path.name for path in table.iterdir()] == ["notes.txt"]


@pytest.mark.full
def test_what_a_killed_first_append_leaves_behind_is_no_obstacle(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path
) -> None:
    (table / "_delta_log").mkdir(parents=True)
    (table / "part-00000-orphan.parquet").write_bytes(b"")
    assert writer.append(spark.range(1)).version == 0


def test_a_bucket_that_does_not_exist_is_named_in_one_sentence(
    spark: SparkSession, manager: ZookeeperLockManager
) -> None:
    with pytest.raises(StorageError, match=r"^s3a://no-such-bucket/t: the bucket does not exist$"):
        LockedDeltaWriter(spark, manager, "s3a://no-such-bucket/t")


def test_a_table_whose_catalog_decides_its_commits_is_refused(
    spark: SparkSession, manager: ZookeeperLockManager, table: Path
) -> None:
    log = table / "_delta_log"
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
    with pytest.raises(TableError, match="catalog-managed"):
        LockedDeltaWriter(spark, manager, str(table))


def test_a_damaged_log_is_one_sentence(spark: SparkSession, manager: ZookeeperLockManager, made: Path) -> None:
    log = made / "_delta_log"
    (log / f"{0:020d}.json").rename(log / f"{5:020d}.json")
    with pytest.raises(TableError, match="cannot be read as a Delta table") as refused:
        LockedDeltaWriter(spark, manager, str(made))
    assert "\n" not in str(refused.value)


def test_transactions_are_an_argument_and_no_option(spark: SparkSession, writer: LockedDeltaWriter) -> None:
    with pytest.raises(ValueError, match="txnVersion"):
        writer.append(spark.range(1), options={"txnVersion": "1"})


def test_relative_paths_are_locations_and_delta_identifiers_too(spark: SparkSession, tmp_path: Path) -> None:
    assert locate_table(spark, f"delta.`{tmp_path}/a b`") == f"file:{tmp_path}/a b"
    assert locate_table(spark, "./x/../y") == f"file:{Path.cwd()}/y"


def test_spark_connect_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(UnsupportedSessionError, match="Spark Connect is not supported"):
        build_session("any")


def test_a_write_under_the_lock_loads_the_table_once(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each snapshot lists the log, while everybody else waits."""
    table = str(copy_of("CREATE TABLE {t} USING delta AS SELECT id FROM range(3)"))
    writer = LockedDeltaWriter(spark, manager, table)
    loaded: list[int] = []
    snapshot = DeltaTableLog.snapshot

    def counted(log: DeltaTableLog) -> Snapshot:
        found = snapshot(log)
        loaded.append(found.version)
        return found

    monkeypatch.setattr(DeltaTableLog, "snapshot", counted)
    assert writer.append(spark.range(1), lock_during="write").version == 1
    assert loaded == [0]
    # Whoever is called under the lock may have written.
    assert writer.append(spark.range(1), lock_during="write", before_write=lambda _: None).version == 2
    assert loaded == [0, 1, 1]
