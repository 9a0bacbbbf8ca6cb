"""The jobs on tables in HDFS, and the names of such tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from lock_manager.table_records.pins import PINS_FOLDER
from tests.support.hdfs import NEEDS_HADOOP, ROOT, SERVICE, HdfsCluster, client_settings, hdfs_cluster
from writer_jobs import LockedDeltaWriter, TableError, WriteFailedError
from writer_jobs.commit.gate_rules import reason_for_whole_write
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.hadoop_files import HadoopFiles

pytestmark = [pytest.mark.spark, pytest.mark.full, NEEDS_HADOOP]


@pytest.fixture(scope="module")
def hdfs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A cluster that the driver knows by its name service."""
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in client_settings(cluster.addresses).items():
            conf.set(name, value)
        yield cluster
        for name in client_settings(cluster.addresses):
            conf.unset(name)


@pytest.fixture
def table(hdfs: HdfsCluster, request: pytest.FixtureRequest) -> str:
    return f"{ROOT}/{request.node.name}"


@pytest.fixture
def writer(spark: SparkSession, manager: ZookeeperLockManager, table: str) -> LockedDeltaWriter:
    """A writer of a table with the ids 0 to 2."""
    writer = LockedDeltaWriter(spark, manager, table)
    writer.append(spark.range(3))
    return writer


@dataclass(frozen=True)
class Jobs:
    """Runs jobs on one table, with files of JSON lines in HDFS."""

    run_job: Callable[..., Any]
    files: HadoopFiles
    table: str

    def source(self, name: str, *rows: dict[str, Any]) -> str:
        """Write rows to a file; return its path."""
        path = f"{ROOT}/landing/{name}.json"
        self.files.write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
        return path

    def run(self, job: str, *arguments: str) -> None:
        """Run a job, which must succeed."""
        outcome = self.run_job(job, "--table", self.table, *arguments)
        assert outcome.code == 0, outcome.error


@pytest.fixture
def jobs(spark: SparkSession, run_job: Callable[..., Any], table: str) -> Jobs:
    return Jobs(run_job, HadoopFiles.of(spark), table)


def test_jobs_write_tables_on_hdfs(spark: SparkSession, jobs: Jobs) -> None:
    first = jobs.source("first", *({"id": number, "name": "first"} for number in range(6)))
    for _ in range(2):
        jobs.run("append", "--source", first, "--run-id", "first", "--partition-by", "id", "--commits", "2")
    second = jobs.source("second", {"id": 7, "name": "second"}, {"id": 8, "name": "second"})
    jobs.run("overwrite", "--source", second, "--replace-where", "id > 6")
    jobs.run("snapshot", "--pin", "before", "--expires", "1 day")
    jobs.run("overwrite", "--source", second)
    jobs.run("maintain", "--auto")
    assert sorted(map(tuple, spark.read.format("delta").load(jobs.table).collect())) == [(7, "second"), (8, "second")]
    assert [file.name for file in jobs.files.json_files(f"{jobs.table}/{PINS_FOLDER}")] == ["before.json"]


def test_changes_are_applied_on_hdfs(spark: SparkSession, jobs: Jobs) -> None:
    first = jobs.source("inserts", *({"id": number, "name": "first", "op": "I", "at": number} for number in range(4)))
    second = jobs.source("changes", {"id": 1, "name": "new", "op": "U", "at": 8}, {"id": 2, "op": "D", "at": 9})
    for source in (first, second, first):
        jobs.run(
            "upsert", "--source", source, "--keys", "id", "--sequence-by", "at", "--apply-as-deletes", "op = 'D'",
            "--except-columns", "op,at",
        )  # fmt: skip
    rows = spark.read.format("delta").load(jobs.table).select("id", "name").collect()
    assert sorted(map(tuple, rows)) == [(0, "first"), (1, "new"), (3, "first")]


def test_change_feeds_are_applied_on_hdfs(spark: SparkSession, jobs: Jobs) -> None:
    def message(op: str, at: int, number: int, name: str) -> dict[str, Any]:
        source = {"connector": "postgresql", "lsn": at, "sequence": f'["{at}","{at}"]'}
        row = {"before" if op == "d" else "after": {"id": number, "name": name}}
        return {"key": {"id": number}, "value": {"op": op, "before": None, "after": None, **row, "source": source}}

    first = jobs.source("messages/1", message("c", 1, 1, "Ada"), message("c", 2, 2, "Bo"), message("d", 9, 2, "Bo"))
    for _ in range(2):
        jobs.run("cdc", "--decoder", "debezium", "--source", first, "--run-id", "first")
    rest = [message("u", 5, 1, "Ada!"), message("u", 4, 2, "late"), {"key": {"id": 3}, "value": {"op": "x"}}]
    for number in range(2):
        jobs.source(f"messages/stream/{number}", *rest[number::2])
        jobs.run(
            "cdc", "--decoder", "debezium", "--source", f"{ROOT}/landing/messages/stream/", "--format", "json",
            "--trigger", "available-now", "--checkpoint", f"{ROOT}/streams/messages",
        )  # fmt: skip
    rows = spark.read.format("delta").load(jobs.table).select("id", "name").collect()
    assert sorted(map(tuple, rows)) == [(1, "Ada!")]
    (letter,) = spark.read.format("delta").load(f"{jobs.table}_dead_letters").collect()
    assert "not known" in letter.reason


def test_a_write_that_the_name_node_refuses_has_a_known_outcome(
    spark: SparkSession, writer: LockedDeltaWriter, table: str
) -> None:
    jvm: Any = spark._jvm
    log = jvm.org.apache.hadoop.fs.Path(f"{table}/_delta_log")
    system = log.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    quota = jvm.org.apache.hadoop.hdfs.protocol.HdfsConstants
    system.setQuota(log, 2, quota.QUOTA_DONT_SET)
    with pytest.raises(WriteFailedError, match="quota"):
        writer.append(spark.range(3, 4))
    system.setQuota(log, quota.QUOTA_RESET, quota.QUOTA_DONT_SET)
    assert writer.append(spark.range(3, 5)).version == 1
    assert sorted(row.id for row in spark.read.format("delta").load(table).collect()) == [0, 1, 2, 3, 4]


def test_streams_have_their_checkpoint_on_hdfs(spark: SparkSession, jobs: Jobs) -> None:
    for number in range(3):
        jobs.source(f"stream/{number}", {"id": number, "at": "2013-01-01T00:00:00Z"})
        jobs.run(
            "stream", "--source", f"{ROOT}/landing/stream/", "--format", "json", "--keys", "id", "--event-time", "at",
            "--trigger", "available-now", "--checkpoint", f"{ROOT}/streams/one",
        )  # fmt: skip
    assert sorted(row.id for row in spark.read.format("delta").load(jobs.table).collect()) == [0, 1, 2]


def test_a_plan_that_reads_the_table_by_a_name_node_holds_the_lock_over_the_write(
    spark: SparkSession, writer: LockedDeltaWriter, hdfs: HdfsCluster, table: str
) -> None:
    rows = spark.read.parquet(table.replace(ROOT, f"hdfs://{hdfs.addresses[0]}"))
    reason = reason_for_whole_write(spark, writer.log, Operation(lambda *_: None, reads=[rows]))
    assert reason == "the write reads the table itself"


def test_a_table_under_the_address_of_a_name_node_is_refused(
    spark: SparkSession, manager: ZookeeperLockManager, hdfs: HdfsCluster, table: str
) -> None:
    for address in hdfs.addresses:
        name = table.replace(ROOT, f"hdfs://{address}")
        with pytest.raises(TableError, match=f"use {table}"):
            LockedDeltaWriter(spark, manager, name).append(spark.range(1))


def test_a_name_node_without_failover_is_its_table_s_name(
    spark: SparkSession, manager: ZookeeperLockManager, hdfs: HdfsCluster, table: str
) -> None:
    name = table.replace(ROOT, f"hdfs://{hdfs.addresses[0]}")
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    provider = f"dfs.client.failover.proxy.provider.{SERVICE}"
    previous = conf.get(provider)
    conf.unset(provider)
    try:
        assert LockedDeltaWriter(spark, manager, name).append(spark.range(1)).version == 0
    finally:
        conf.set(provider, previous)


def test_readers_see_a_file_before_or_after_it_is_replaced(spark: SparkSession, table: str) -> None:
    files, path, ended = HadoopFiles.of(spark), f"{table}/file.json", Event()
    texts = {json.dumps([number] * 1000) for number in range(20)}

    def replace() -> None:
        try:
            for text in texts:
                files.write_text(path, text)
        finally:
            ended.set()

    files.write_text(path, min(texts))
    thread = Thread(target=replace)
    thread.start()
    read_texts = set()
    while not ended.is_set():
        read_texts.add(files.read_text(path))
    thread.join()
    assert read_texts <= texts
    assert [file.name for file in files.children(table)] == ["file.json"]
