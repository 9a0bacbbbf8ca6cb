"""OpenLineage events of writes and jobs: sources, table, version and run, and collectors that do not answer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, ZookeeperLockManager
from lock_manager.table_records.commit_stamp import lineage_run_of, writer_infos
from lock_manager.testing.embedded import free_ports
from tests.support.append_rows import ROWS
from tests.support.at_the_gate import commit_info
from tests.support.lineage import Collector, EventFile, names, write_of
from tests.support.lock_znodes import LockZnodes
from tests.support.submitted_job import SubmittedJob
from writer_jobs import CommitResult, LockedDeltaWriter, UnprovenCommitError, WriteFailedError, append
from writer_jobs.delta.java_classes import log_store
from writer_jobs.lineage import sender
from writer_jobs.lineage.plan_sources import catalog_symlink
from writer_jobs.lineage.records import DatasetName
from writer_jobs.lineage.sender import PROCESS_SENDER, Sender
from writer_jobs.merge import materialized
from writer_jobs.merge.materialized import MaterializedRows

pytestmark = pytest.mark.spark

PEOPLE = "create table {t} using delta as select id, cast(id as string) as name from range(3)"
GLUE = "com.amazonaws.glue.catalog.metastore"
CATALOG, GROUP_COMMITS = "spark.sql.catalogImplementation", "spark.sluice.groupCommits"
CHANGES = ("--keys", "id", "--sequence-by", "at", "--apply-as-deletes", "op = 'd'", "--except-columns", "op")


@dataclass
class Lineage:
    """A table, a file of the events of this process, and its jobs."""

    spark: SparkSession
    manager: ZookeeperLockManager
    file: EventFile
    table: Path
    csv: Callable[..., Path]
    job: Callable[..., Any]
    copy: Callable[..., Path]

    @classmethod
    def create(cls, request: pytest.FixtureRequest) -> Self:
        get = request.getfixturevalue
        folder, variables = get("tmp_path"), get("monkeypatch")
        file = EventFile(folder / "events.jsonl")
        for name, value in file.variables.items():
            variables.setenv(name, value)
        lineage = cls(
            get("spark"), get("manager"), file, folder / "people", get("csv_file"), get("run_job"), get("copy_of")
        )
        lineage.copy(PEOPLE, to=lineage.table.name)
        return lineage

    def writer(self, table: str | None = None) -> LockedDeltaWriter:
        return LockedDeltaWriter(self.spark, self.manager, table or str(self.table))

    def run_job(self, job: str, *arguments: object) -> Any:
        outcome = self.job(job, "--table", self.table, *map(str, arguments))
        assert (outcome.code, outcome.error) == (0, "")
        return outcome

    @property
    def name(self) -> tuple[str, str]:
        return ("file", str(self.table))


@pytest.fixture(autouse=True)
def fresh_sender() -> Iterator[None]:
    PROCESS_SENDER.reset()
    yield
    PROCESS_SENDER.reset()


@pytest.fixture
def lineage(request: pytest.FixtureRequest) -> Lineage:
    return Lineage.create(request)


def merge(writer: LockedDeltaWriter, source: Any) -> Any:
    return writer.merge(source.alias("s"), "t.id = s.id", alias="t").whenMatchedUpdateAll().whenNotMatchedInsertAll()


def test_a_merge_names_its_sources_its_table_and_its_version(lineage: Lineage) -> None:
    """The source is a view with a filter and a subquery, which upstream's listener loses (OpenLineage issue 3942)."""
    spark, people = lineage.spark, lineage.copy(PEOPLE, to="names")
    folder = lineage.csv("landing/day=1/a.csv", "id,name", [(2, "b"), (3, "c")]).parents[1]
    spark.read.csv(str(folder), header=True).createOrReplaceTempView("news")
    source = spark.sql(
        f"""with n as (select cast(id as bigint) id, name from news)
        select * from n where id in (select id + 1 from delta.`{people}` version as of 0)"""
    )

    result = merge(lineage.writer(), source).execute()

    start, end = lineage.file.read()
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    for event in (start, end):
        assert names(event["inputs"]) == {("file", str(folder)), ("file", str(people))}
        versions = {
            source["name"]: source["facets"].get("version", {}).get("datasetVersion") for source in event["inputs"]
        }
        assert versions == {str(folder): None, str(people): "0"}
        assert names(event["outputs"]) == {lineage.name}
        assert event["job"]["namespace"] == "tests"
        assert event["job"]["name"].endswith(".merge." + str(lineage.table).strip("/").replace("/", "_"))
    (output,) = end["outputs"]
    assert output["facets"]["version"]["datasetVersion"] == str(result.version)
    columns = [(field["name"], field["type"]) for field in output["facets"]["schema"]["fields"]]
    assert columns == [("id", "bigint"), ("name", "string")]
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (2, int(result.metrics["numTargetFilesAdded"]))
    write = write_of(end)
    assert (write["commitId"], write["holdId"], write["unknownSources"]) == (result.commit_id, result.hold_id, 0)
    assert lineage_run_of(commit_info(lineage.table, result.version or 0)) == end["run"]["runId"]


def test_rows_of_a_local_checkpoint_keep_their_sources(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control is a copy whose sources are not remembered."""
    folder = lineage.csv("landing/a.csv", "id,name", [(7, "g")]).parent
    rows = lineage.spark.read.csv(str(folder), header=True, schema="id bigint, name string")
    remembered = MaterializedRows(rows)
    monkeypatch.setattr(materialized, "remember_sources", lambda *_: None)
    forgotten = MaterializedRows(rows)
    for copy in (remembered, forgotten):
        lineage.writer().append(copy.rows.where("id > 1"))
        copy.close()

    end, control = lineage.file.ends("append")
    assert (names(end["inputs"]), write_of(end)["unknownSources"]) == ({("file", str(folder))}, 0)
    assert (names(control["inputs"]), write_of(control)["unknownSources"]) == (set(), 1)


@pytest.mark.full
def test_writes_of_a_job_are_runs_of_the_job(lineage: Lineage) -> None:
    source = lineage.csv("changes/a.csv", "id,name,at,op", [(1, "x", 1, "u"), (2, None, 1, "d")])
    lineage.table = lineage.table.with_name("new")
    lineage.run_job("upsert", "--source", source, *CHANGES)

    job_start, *writes, job_end = lineage.file.read()
    assert (job_start["eventType"], job_end["eventType"]) == ("START", "COMPLETE")
    assert job_start["run"]["runId"] == job_end["run"]["runId"]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in writes} == {job_start["run"]["runId"]}
    tombstones = ("file", f"{lineage.table}_tombstones")
    (merge_end,) = lineage.file.ends("merge")
    assert names(merge_end["inputs"]) == {("file", str(source.parent))}
    side_rows = [event for event in lineage.file.ends("append") if names(event["outputs"]) == {tombstones}]
    assert names(side_rows[-1]["inputs"]) == {("file", str(source.parent))}
    # The result of a batch with an older change depends on the tombstones.
    late_source = lineage.csv("changes/late.csv", "id,name,at,op", [(2, "x", 0, "u"), (3, "y", 1, "u")])
    lineage.run_job("upsert", "--source", late_source, *CHANGES)
    assert names(lineage.file.ends("merge")[-1]["inputs"]) >= {("file", str(source.parent)), tombstones}


@pytest.mark.full
def test_a_micro_batch_of_a_job_has_the_sources_of_the_stream(lineage: Lineage, tmp_path: Path) -> None:
    source = lineage.copy("create table {t} using delta as select 1 id, timestamp'2013-01-01' at", to="source")
    lineage.table = tmp_path / "new"
    keys = ("--keys", "id", "--event-time", "at")
    lineage.run_job(
        "stream", "--source-table", source, *keys, "--trigger", "available-now", "--checkpoint", tmp_path / "c"
    )
    job_start, *_ = lineage.file.read()
    assert job_start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (end,) = lineage.file.ends("merge")
    assert names(end["inputs"]) == {("file", str(source))}
    assert write_of(end)["transaction"]["version"] == 0


def test_a_write_in_foreach_batch_has_the_sources_of_its_stream(lineage: Lineage, tmp_path: Path) -> None:
    landing = lineage.csv("landing/a.csv", "3,d", []).parent
    writer = lineage.writer()
    frame = lineage.spark.readStream.schema("id bigint, name string").csv(f"{landing}/*.csv")
    stream = frame.writeStream.foreachBatch(lambda rows, _: writer.append(rows) and None)
    stream = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    stream.start().awaitTermination()
    (end,) = lineage.file.ends("append")
    assert names(end["inputs"]) == {("file", str(landing))}


@pytest.mark.full
def test_tables_of_a_catalog_have_its_name_as_a_symlink(lineage: Lineage, unguarded_sql: Callable[[str], None]) -> None:
    unguarded_sql("create or replace table people_of_catalog (id bigint, name string) using delta")
    unguarded_sql("create table if not exists files_of_catalog using parquet as select 1L as id, 'a' as name")
    spark = lineage.spark
    rows = spark.table("people_of_catalog").union(spark.table("files_of_catalog"))
    lineage.writer("people_of_catalog").append(rows)

    (end,) = lineage.file.ends("append")
    warehouse = (spark.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
    namespace = f"file:{Path(warehouse).resolve()}"
    for dataset in (*end["inputs"], *end["outputs"]):
        name = f"default.{Path(dataset['name']).name}"
        symlinks = dataset["facets"]["symlinks"]["identifiers"]
        assert symlinks == [{"namespace": namespace, "name": name, "type": "TABLE"}]
    assert len(end["inputs"]) == 2

    hadoop, settings = spark.sparkContext._jsc.hadoopConfiguration(), spark.sparkContext._jsc.sc().conf()
    # The settings of sessions with another catalog.
    glue = {
        "hive.metastore.client.factory.class": f"{GLUE}.AWSGlueDataCatalogHiveClientFactory",
        "hive.metastore.glue.catalogid": "123456789012",
    }
    with new_settings(hadoop, glue, "unset"):
        symlink = catalog_symlink(spark, "people_of_catalog")
        assert symlink is not None
        assert symlink.namespace.endswith(":123456789012")
        assert symlink.name == "table/default/people_of_catalog"
    metastore = {"hive.metastore.uris": "thrift://Metastore:9083,thrift://other:9083"}
    with new_settings(hadoop, metastore, "unset"), new_settings(settings, {CATALOG: "hive"}, "remove"):
        symlink = catalog_symlink(spark, "people_of_catalog")
    assert symlink == DatasetName("hive://metastore:9083", "default.people_of_catalog")


@contextmanager
def new_settings(conf: Any, settings: Mapping[str, str], remove: str) -> Iterator[None]:
    """Add settings to a driver's or to Hadoop's, and remove them by the method of this name."""
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            getattr(conf, remove)(name)


@pytest.mark.full
def test_sources_that_are_not_known_are_left_out_and_counted(lineage: Lineage, tmp_path: Path) -> None:
    """A table of Derby, which OpenLineage's rules do not name, and rows of an RDD. The log has no password."""
    spark = lineage.spark
    url = f"jdbc:derby:{tmp_path}/derby;create=true;user=secret;password=secret"
    options = {"url": url, "dbtable": "sysibm.sysdummy1", "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    database = spark.read.format("jdbc").options(**options).load().selectExpr("cast(1 as bigint) as id")
    sources = json.loads(log_store(spark, "PlanSources").of(spark._jsparkSession, [database._jdf]))
    assert sources == [{"jdbc": url, "table": "sysibm.sysdummy1"}]

    rows_of_rdd = spark.createDataFrame([(8,)], "id bigint")
    lineage.writer().append(database.union(rows_of_rdd).union(spark.range(1)))
    (end,) = lineage.file.ends("append")
    assert (end["inputs"], write_of(end)["unknownSources"]) == ([], 2)


def test_a_failed_a_cancelled_and_a_repeated_write_end_without_a_version(lineage: Lineage) -> None:
    writer, spark = lineage.writer(), lineage.spark
    with pytest.raises(WriteFailedError):
        writer.append(spark.range(1).withColumnRenamed("id", "key"))
    writer.append(spark.range(1), txn=("nightly", 1))
    repeated = writer.append(spark.range(1), txn=("nightly", 1))
    writer.cancel()
    with pytest.raises(LockCancelledError):
        writer.append(spark.range(1))

    failed, written, repetition, cancelled = lineage.file.ends("append")
    assert [event["eventType"] for event in (failed, written, repetition, cancelled)] == [
        "FAIL", "COMPLETE", "COMPLETE", "ABORT",
    ]  # fmt: skip
    assert "key" in failed["run"]["facets"]["errorMessage"]["message"]
    assert repeated.already_committed
    assert write_of(repetition)["alreadyCommitted"] is True
    assert write_of(repetition)["transaction"] == {"appId": "nightly", "version": 1}
    for event in (failed, repetition, cancelled):
        assert "version" not in event["outputs"][0].get("facets", {})


def test_the_parent_is_the_run_that_the_scheduler_names(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, root = (str(uuid.uuid4()) for _ in range(2))
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/nightly.load/{parent}")
    monkeypatch.setenv("OPENLINEAGE_ROOT_PARENT_ID", f"airflow/nightly/{root}")
    lineage.writer().append(lineage.spark.range(1))
    conf = lineage.spark.sparkContext._jsc.sc().conf()
    settings = {"parentRunId": root, "parentJobNamespace": "airflow", "parentJobName": "other"}
    with new_settings(conf, {f"spark.openlineage.{name}": value for name, value in settings.items()}, "remove"):
        lineage.writer().append(lineage.spark.range(1))

    first, second = (event["run"]["facets"]["parent"] for event in lineage.file.ends("append"))
    assert (first["job"]["namespace"], first["job"]["name"], first["run"]["runId"]) == (
        "airflow", "nightly.load", parent,
    )  # fmt: skip
    assert (first["root"]["job"]["name"], first["root"]["run"]["runId"]) == ("nightly", root)
    assert (second["job"]["name"], second["run"]["runId"], second["root"]["run"]["runId"]) == ("other", root, root)


@pytest.mark.full
def test_writers_of_one_version_have_a_run_each(
    lineage: Lineage, waiting_appends: Callable[..., list[CommitResult]]
) -> None:
    writer, spark = lineage.writer(), lineage.spark
    writer.append(spark.range(1))
    results = waiting_appends(writer, *(spark.range(number, number + 1) for number in (7, 8)))
    assert [result.version for result in results] == [2, 2]

    first, *group = lineage.file.ends("append")
    assert [event["outputs"][0]["facets"]["version"]["datasetVersion"] for event in group] == ["2", "2"]
    assert [event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for event in group] == [1, 1]
    infos = writer_infos(commit_info(lineage.table, 2))
    runs = {event["sluice"]["commit_id"]: lineage_run_of(event) for event in infos}
    assert runs == {write_of(event)["commitId"]: event["run"]["runId"] for event in group}
    assert first["run"]["runId"] not in runs.values()


@pytest.fixture
def waiting_appends(lineage: Lineage, eventually: Callable[..., None]) -> Iterator[Callable[..., list[CommitResult]]]:
    """Append rows by several threads that wait for the lock together."""
    conf = lineage.spark.sparkContext._jsc.sc().conf()
    conf.set(GROUP_COMMITS, "true")

    def append(writer: LockedDeltaWriter, *rows: Any) -> list[CommitResult]:
        with ThreadPoolExecutor(len(rows)) as pool:
            with lineage.manager.acquire(writer.table):
                running = []
                for length, frame in enumerate(rows, start=2):
                    running.append(pool.submit(writer.append, frame))
                    eventually(
                        lambda length=length: len(lineage.manager.queue(writer.table)) == length,
                        within=60,
                        label="an append in the queue",
                    )
            return [append.result(120) for append in running]

    yield append
    conf.remove(GROUP_COMMITS)


@pytest.mark.full
def test_a_commit_without_a_confirmed_lock_fails_with_its_version(
    lineage: Lineage, ensemble_client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lineage.writer()
    find_commit = writer.log.find_commit

    def lose_and_find(write_id: str, **search: Any) -> Any:
        LockZnodes(ensemble_client, writer.table).delete_contenders()
        return find_commit(write_id, **search)

    monkeypatch.setattr(writer.log, "find_commit", lose_and_find)
    with pytest.raises(UnprovenCommitError) as error:
        writer.append(lineage.spark.range(1), lock_during="write")
    (end,) = lineage.file.ends("append")
    assert (end["eventType"], write_of(end)["commitId"]) == ("FAIL", error.value.commit_id)
    assert end["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    assert lineage_run_of(commit_info(lineage.table, 1)) == end["run"]["runId"]


COLLECTORS = {"hangs": None, "answers": 201, "fails": 500}


@pytest.mark.parametrize("collector", ["hangs", "answers", pytest.param("fails", marks=pytest.mark.full)])
def test_a_collector_changes_no_outcome(
    run_job: Callable[..., Any],
    source: Path,
    table: Path,
    rows_of: Callable[..., Any],
    collector: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The control is the collector that answers: it gets the events of the job and its write."""
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 60 if collector == "answers" else 0.5)
    with Collector.running(COLLECTORS[collector]) as server:
        monkeypatch.setenv("OPENLINEAGE_URL", server.url)
        outcome = run_job("append", "--table", table, "--source", source)
        begun_at = time.monotonic()
        PROCESS_SENDER.reset()
        closed_after = time.monotonic() - begun_at
        assert (outcome.code, outcome.error, len(outcome.commits)) == (0, "", 1)
        assert len(rows_of(table)) == len(ROWS)
        if collector == "answers":
            assert [event["eventType"] for event in server.events] == ["START", "START", "COMPLETE", "COMPLETE"]
            assert "lineage events" not in caplog.text
        else:
            assert closed_after < 10 * sender.CLOSE_SECONDS
            assert "4 of 4 lineage events were not sent" in caplog.text


@pytest.mark.full
def test_a_submitted_job_warns_of_events_that_were_not_sent(
    submit: Callable[..., SubmittedJob], source: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are sent until the end of the process. Nothing listens at the collector's address."""
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    job = submit(Path(append.__file__), "--table", table, "--source", source)
    assert (job.wait(300), len(job.commits)) == (0, 1)
    assert "4 of 4 lineage events were not sent" in job.error


def test_a_write_does_not_wait_for_a_collector(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    """The first event has no response, so the last one is not sent. A write that waited would have sent it.

    The control sends each event in the thread of the write, which then waits for the collector.
    """
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    with Collector.running(None) as collector, ThreadPoolExecutor() as threads:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", collector.url)
        writer = lineage.writer()
        assert writer.append(lineage.spark.range(1)).version == 1
        assert "COMPLETE" not in [event["eventType"] for event in collector.events]
        eventually(lambda: collector.events, label="the first event")
        first_run = collector.events[0]["run"]["runId"]

        send = sender._connect().send
        monkeypatch.setattr(Sender, "put", lambda _, record: send(record))
        waiting_write = threads.submit(writer.append, lineage.spark.range(1))
        eventually(
            lambda: any(event["run"]["runId"] != first_run for event in collector.events),
            within=120,
            label="an event of the second write",
        )
        assert not waiting_write.done()
        collector.status = 201
        collector.closing.set()
        assert waiting_write.result().version == 2
