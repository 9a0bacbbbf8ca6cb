"""The append job in this process: commits, output lines, report, refusals and exit codes."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager, canonical_table_uri
from tests.support.append_driver import AppendDriver
from tests.support.append_rows import HEADER, ROWS
from tests.support.at_the_gate import commit_info
from tests.support.lock_znodes import LockZnodes
from tests.support.rivals import RivalManager
from writer_jobs.append import main
from writer_jobs.job import runner
from writer_jobs.job.append.split import SplitRows

pytestmark = pytest.mark.spark


@pytest.fixture
def job(request: pytest.FixtureRequest) -> AppendDriver:
    return AppendDriver.create(request)


def test_the_first_append_creates_the_table(job: AppendDriver) -> None:
    """Column types are inferred."""
    source = job.csv("s.csv", HEADER, [(1, "x", 0.5), (2, "y", None)])
    outcome = job.succeed("--source", source, "--partition-by", "name")

    assert [line["event"] for line in outcome.lines] == ["begun", "holding", "commit"]
    (line,) = outcome.commits
    assert (line["version"], line["rows"]) == (0, 2)
    assert job.rows("id", "name", "amount") == [(1, "x", 0.5), (2, "y", None)]
    assert {path.name for path in job.table.glob("name=*")} == {"name=x", "name=y"}


def test_output_report_and_metrics_contain_each_commit(
    job: AppendDriver, tmp_path: Path, manager: ZookeeperLockManager
) -> None:
    job.create_table()
    metrics, report_file = tmp_path / "job.prom", tmp_path / "report.json"
    outcome = job.succeed("--source", job.source, "--commits", 2, "--report", report_file, "--metrics", metrics)

    assert [(line["event"], line["commit"], line["commits"]) for line in outcome.lines] == [
        (event, commit, 2) for commit in (1, 2) for event in ("begun", "holding", "commit")
    ]
    for begun_line, holding_line, line in zip(outcome.lines[0::3], outcome.lines[1::3], outcome.commits, strict=True):
        assert set(line) == {
            "event", "commit", "commits", "version", "rows", "already_committed", "waited_s", "held_s", "token",
            "hold_id", "commit_id", "requested_at", "acquired_at", "released_at",
        }  # fmt: skip
        assert begun_line["begun_at"] <= line["requested_at"] <= line["acquired_at"] < line["released_at"]
        assert holding_line["token"] == line["token"]
        assert holding_line["acquired_at"] == line["acquired_at"]
        assert line["waited_s"] == pytest.approx(line["acquired_at"] - line["requested_at"], abs=1e-5)
        assert line["held_s"] == pytest.approx(line["released_at"] - line["acquired_at"], abs=1e-5)
        info = commit_info(job.table, line["version"])
        note = json.loads(info["userMetadata"])["sluice"]
        (node,) = info["sluice"]["nodes"]
        assert (note["commit_id"], info["sluice"]["hold"]) == (line["commit_id"], line["hold_id"])
        assert node["token"] == line["token"]
        assert "run" not in note

    # Each commit has a hold of its own.
    assert outcome.commits[0]["token"] < outcome.commits[1]["token"]
    assert outcome.commits[0]["released_at"] <= outcome.commits[1]["acquired_at"]
    assert manager.queue(job.uri) == []
    report = json.loads(report_file.read_text())
    assert (report["exit_code"], report["error"], report["run_id"]) == (0, None, None)
    assert report["table"] == job.uri
    assert report["commits"] == outcome.commits
    assert report["started_at"] < report["finished_at"]
    text = metrics.read_text()
    assert f'sluice_commits_total{{file="{metrics}",table="{job.uri}"}} 2.0' in text
    assert f'sluice_lock_hold_seconds_count{{file="{metrics}",outcome="released",table="{job.uri}"}} 2.0' in text
    assert f'sluice_lock_contenders{{file="{metrics}",state="holding",table="{job.uri}"}} 0.0' in text


@pytest.mark.full
def test_each_row_is_in_exactly_one_commit(job: AppendDriver) -> None:
    """Equal rows share a commit, and each commit writes one file for each partition."""
    # With two distinct rows, at least one of three commits is empty. Several tasks read the four sources.
    rows = [(0, f"p{number % 2}", None) for number in range(8)]
    sources = [job.csv(f"{number}.csv", HEADER, rows) for number in range(4)]
    outcome = job.run("--source", *sources, "--commits", "3", "--partition-by", "name")

    assert outcome.code == 0
    assert [line["version"] for line in outcome.commits] == list(range(3))
    assert sum(line["rows"] for line in outcome.commits) == 32
    assert 0 in [line["rows"] for line in outcome.commits]
    assert job.rows("id", "name") == sorted(4 * [row[:2] for row in rows])
    assert len(list(job.table.glob("name=*/*.parquet"))) == 2


def test_the_split_depends_on_the_rows_alone(spark: SparkSession) -> None:
    rows = spark.range(100).selectExpr(
        "id", "cast(id as string) as s", "map('k', id) as m", "array(struct(id as a)) as n", "cast(null as date) as d"
    )

    def parts(split: SplitRows) -> list[list[int]]:
        try:
            assert split.count() == 100
            return [sorted(row.id for row in split.part(number).select("id").collect()) for number in range(2)]
        finally:
            split.close()

    reference = parts(SplitRows(rows, 2))
    assert sorted(number for part in reference for number in part) == list(range(100))
    assert all(len(part) > 30 for part in reference)
    assert parts(SplitRows(rows.repartition(3).orderBy("s"), 2)) == reference
    assert parts(SplitRows(rows.coalesce(1), 2, colocated_columns=["d"])) == reference


def test_a_catalog_table_is_appended_to_by_name(
    job: AppendDriver, spark: SparkSession, unguarded_sql: Callable[[str], None]
) -> None:
    unguarded_sql(f"create table orders (id int, name string, amount double) using delta location '{job.table}'")
    try:
        job.succeed("--table", "default.orders", "--source", job.source)
        assert len(job.rows()) == len(ROWS)
    finally:
        spark.sql("drop table orders")


@pytest.mark.full
def test_a_table_created_during_the_wait_keeps_its_types(
    job: AppendDriver,
    original: Callable[..., Path],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    rival_table = original("create table {t} (id bigint, name string) using delta")
    source = job.csv("s.csv", "id,name", [(1, 5), (2, 6)])
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(job.uri):
            running = pool.submit(job.succeed, "--source", source, "--commits", "2")
            # The job has planned a table with two columns of numbers.
            eventually(lambda: len(manager.queue(job.uri)) == 2, label="the job in the queue")
            shutil.copytree(rival_table, job.table, dirs_exist_ok=True)
        outcome = running.result()
    assert [line["event"] for line in outcome.lines][:4] == ["begun", "holding", "begun", "holding"]
    assert job.rows() == [(1, "5"), (2, "6")]


@pytest.mark.full
@pytest.mark.s3
def test_table_source_and_report_may_be_on_s3(job: AppendDriver, s3: Any) -> None:
    from sluice.audit.log_folder import s3_client

    client = s3_client(s3.environment)
    bucket, _, prefix = f"{s3.root}/".partition("/")
    client.upload_file(str(job.source), bucket, f"{prefix}landing/source.csv")
    job.succeed(
        "--table", f"s3://{s3.root}/job", "--source", f"s3a://{s3.root}/landing/*.csv",
        "--report", f"s3://{s3.root}/report.json",
        "--run-id", "on s3",
    )  # fmt: skip
    assert job.read(f"s3://{s3.root}/job", "id") == sorted([row[:1] for row in ROWS], key=repr)
    report = json.loads(client.get_object(Bucket=bucket, Key=f"{prefix}report.json")["Body"].read())
    assert (report["exit_code"], report["table"]) == (0, f"s3://{s3.root}/job")


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "{folder}/missing.csv"], "missing.csv does not exist"),
        (["--source", "{folder}/*.nothing"], "*.nothing does not exist"),
        (["--source", "nowhere://x/y.csv"], "No FileSystem for scheme"),
        (["--source", "s3a://no-such-bucket/x.csv"], "the bucket does not exist"),
        (["--source", "{folder}"], "sub-folder, table"),
        (["--source", "{source}", "--format", "parquet"], "cannot be read as parquet"),
        (["--source", "{folder}/notes"], "give --format"),
        (["--source", "{source}", "--table", "default.missing"], "does not exist in the catalog"),
        (["--source", "{source}", "--table", "s3a://no-such-bucket/t"], "the bucket does not exist"),
        (["--source", "{source}", "--table", "{folder}"], "is not a Delta table"),
        (["--source", "{source}", "--table", "s3a:///t"], "no bucket or host"),
        (["--source", "{source}", "--zookeeper", "zk1:2181,:99"], "is not host:port"),
        (["--source", "{source}", "--zookeeper", "zk1:99999"], "is not host:port"),
        (["--source", "{source}", "--lock-timeout", "-1"], "timeout_seconds"),
        (["--source", "{source}", "--lock-timeout", "soon"], "invalid float"),
        (["--source", "{source}", "--commits", "0"], "'0' is not a whole number from 1"),
        (["--source", "{source}", "--partition-by", "id,,name"], "not a list of distinct column names"),
        (["--source", "{source}", "--partition-by", "nothing"], "is not partitioned, but --partition-by is nothing"),
        (["--source", "{source}", "--option", "sep"], "expected KEY=VALUE"),
        (["--source", "{source}", "--format", "excel"], "invalid choice"),
        (["--source", "{source}", "--run-id", ""], "run id '' must have 1 to 128 printable characters"),
        (["--source", "{source}", "--report", "nowhere://x/y"], "No FileSystem for scheme"),
        (["--source", "{source}", "--surplus"], "unrecognized arguments"),
        ([], "required: --source"),
    ],
)  # fmt: skip
def test_bad_arguments_are_exit_code_2_with_a_one_line_message(
    job: AppendDriver, arguments: list[str], message: str, tmp_path: Path
) -> None:
    job.create_table()
    (tmp_path / "notes").write_text("text")
    refused = job.refuse(2, message, *(word.format(folder=tmp_path, source=job.source) for word in arguments))

    assert len(refused.error.splitlines()) == 1
    assert refused.lines == []
    assert job.version_count() == 1


def test_a_missing_partition_column_creates_no_table(job: AppendDriver) -> None:
    refused = job.refuse(2, "no column year to partition by", "--source", job.source, "--partition-by", "id,year")
    assert refused.lines == []
    assert not job.table.exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("header", "rows", "commits", "message"),
    [
        ("id,name,amount,extra", [(1, "x", 1.0, 2)], "1", "the table has no column extra"),
        ("id,name", [(1, "x")], "1", "the source has no column amount"),
        ("id,name,amount", [(1, "x", 1.0), ("two", "y", 1.0)], "1", "two"),
        ("id,name,amount", [(1, "x", 1.0), ("two", "y", 1.0)], "2", "two"),
        ("id,name,amount", [(1, "x", 1.0), (2, "y")], "1", "2,y"),
    ],
)
def test_rows_that_do_not_fit_are_exit_code_5_without_a_commit(
    job: AppendDriver, header: str, rows: list[Any], commits: str, message: str, manager: ZookeeperLockManager
) -> None:
    job.create_table()
    report_file = job.table.with_name("report.json")
    source = job.csv("s.csv", header, rows)
    failed = job.refuse(5, message, "--source", source, "--commits", commits, "--report", report_file)

    assert len(failed.error.splitlines()) == 1
    assert failed.commits == []
    assert job.version_count() == 1
    assert manager.queue(job.uri) == []
    report = json.loads(report_file.read_text())
    assert report["exit_code"] == 5
    assert report["error"] in failed.error


def test_a_bad_argument_is_in_the_report(job: AppendDriver, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    failed = job.refuse(2, "'0' is not a whole number", "--commits", 0, "--report", report_file)
    report = json.loads(report_file.read_text())
    assert (report["exit_code"], report["table"], report["commits"]) == (2, None, [])
    assert failed.error == f"append.py: {report['error']}\n"
    assert report["started_at"] <= report["finished_at"]


@pytest.mark.full
def test_a_lock_timeout_is_exit_code_3(job: AppendDriver, make_rival: Callable[..., RivalManager]) -> None:
    with make_rival().acquire(job.uri):
        message = "not acquired within 3 s: 1 ahead"
        failed = job.refuse(3, message, "--source", job.source, "--lock-timeout", "3")
    assert [line["event"] for line in failed.lines] == ["begun"]
    assert not [path for path in job.table.rglob("*") if path.is_file()]


def test_an_ensemble_without_an_answer_is_reported_first(job: AppendDriver, tmp_path: Path) -> None:
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{unused_socket.getsockname()[1]}"
        report = tmp_path / "report.json"
        message = f"ZooKeeper at {hosts} did not answer within 2.0 s"
        # The source does not exist. The job does not report that, because it asks the ensemble first.
        failed = job.refuse(3, message, "--source", "/nowhere", "--report", report, hosts=hosts)
    assert f"{hosts}: [Errno 111] Connection refused" in failed.error
    assert json.loads(report.read_text())["exit_code"] == 3


CHANGES = ("--keys", "id", "--sequence-by", "at")
STREAM = ("--trigger", "available-now", "--checkpoint", "{folder}/checkpoint")


@pytest.mark.parametrize(
    ("name", "source", "arguments"),
    [
        ("append", "{folder}/*.csv", ()),
        ("overwrite", "file:{folder}/gone.csv", ("--dynamic",)),
        ("upsert", "{folder}/gone", CHANGES),
        ("upsert", "{folder}/gone", (*CHANGES, *STREAM)),
        ("cdc", "{folder}/gone.json", ("--decoder", "debezium")),
        ("stream", "{folder}/gone", ("--keys", "id", "--event-time", "at", *STREAM)),
    ],
)
def test_a_local_source_is_checked_before_spark_starts(
    run_job: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    source: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setattr(runner, "_session", None)
    source, table = source.format(folder=tmp_path), tmp_path / "table"
    failed = run_job(name, "--table", table, "--source", source, *(word.format(folder=tmp_path) for word in arguments))
    assert (failed.code, failed.lines) == (2, [])
    assert failed.error == f"{name}.py: source {source} does not exist\n"


def test_a_lost_lock_is_exit_code_4(job: AppendDriver, ensemble_client: KazooClient) -> None:
    ended = threading.Event()

    def remove() -> None:
        """Delete every contender until the job ends. A waiter joins the queue again; a holder reports the loss."""
        while not ended.is_set():
            with suppress(NoNodeError):
                LockZnodes(ensemble_client, job.uri).delete_contenders()
            ended.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove)
        try:
            message = f"lock on {job.uri} was lost"
            job.refuse(4, message, "--source", job.source, "--lock-timeout", "30", "--hold", "write")
        finally:
            ended.set()
        removing.result()
    assert job.version_count() == 0


def test_verbose_adds_the_stack_trace(job: AppendDriver) -> None:
    failed = job.refuse(2, "Traceback", "--source", "/nowhere.csv", "--verbose")
    assert failed.error.splitlines()[-1] == "append.py: source /nowhere.csv does not exist"


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--run-id ID", "spark-submit $(sluice submit-args)", "exit codes:", "stopped by SIGTERM", "FAILFAST"):
        assert part in text


def test_an_option_of_a_file_system_is_refused(job: AppendDriver, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ("--source", "/nowhere.csv", "--report", report, "--option", "fs.s3a.secret.key=a-secret")
    refused = job.refuse(2, "with --conf spark.hadoop.fs.s3a.secret.key=…", *arguments)
    assert refused.lines == []
    assert len(refused.error.splitlines()) == 1
    assert "a-secret" not in refused.error + report.read_text()
    assert not job.table.exists()


def test_each_spelling_of_a_location_has_the_same_lock(
    job: AppendDriver, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(canonical_table_uri(job.table)):
        location = f"file://{job.table}/../table//"
        job.refuse(3, "1 ahead", "--table", location, "--source", job.source, "--lock-timeout", "0")
