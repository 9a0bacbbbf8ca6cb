"""The append job, run in the test's own process: what it does, what it says, what it refuses."""

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

from lock_manager import LockSettings, TableResource, ZookeeperLockManager, canonical_table_uri
from lock_manager.zookeeper.znodes import table_node
from tests.support.append_rows import HEADER, ROWS
from tests.support.rivals import RivalManager
from writer_jobs.append import main
from writer_jobs.job import runner
from writer_jobs.job.append.split import SplitRows

pytestmark = pytest.mark.spark


def test_the_first_append_creates_the_table_with_inferred_types_and_partitions(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any]
) -> None:
    source = csv_file("s.csv", HEADER, [(1, "x", 0.5), (2, "y", None)])
    done = append("--table", table, "--source", source, "--partition-by", "name")

    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines] == ["begun", "holding", "commit"]
    (line,) = done.commits
    assert (line["version"], line["rows"]) == (0, 2)
    assert rows_of(table, "id", "name", "amount") == [(1, "x", 0.5), (2, "y", None)]
    assert {path.name for path in table.glob("name=*")} == {"name=x", "name=y"}


def test_each_commit_is_a_line_with_its_times_its_token_and_its_ids_and_all_are_in_report_and_metrics(
    append: Callable[..., Any], source: Path, existing: Path, tmp_path: Path, manager: ZookeeperLockManager
) -> None:
    table, metrics = existing, tmp_path / "job.prom"
    done = append(
        "--table", table, "--source", source, "--commits", "2",
        "--report", tmp_path / "report.json",
        "--metrics", metrics,
    )  # fmt: skip
    assert (done.code, done.error) == (0, "")

    assert [(line["event"], line["commit"], line["commits"]) for line in done.lines] == [
        (event, commit, 2) for commit in (1, 2) for event in ("begun", "holding", "commit")
    ]
    for first_line, holding, line in zip(done.lines[0::3], done.lines[1::3], done.commits, strict=True):
        assert set(line) == {
            "event", "commit", "commits", "version", "rows", "already_committed", "waited_s", "held_s", "token",
            "hold_id", "commit_id", "requested_at", "acquired_at", "released_at",
        }  # fmt: skip
        assert first_line["begun_at"] <= line["requested_at"] <= line["acquired_at"] < line["released_at"]
        assert holding["token"] == line["token"]
        assert holding["acquired_at"] == line["acquired_at"]
        assert line["waited_s"] == pytest.approx(line["acquired_at"] - line["requested_at"], abs=1e-5)
        assert line["held_s"] == pytest.approx(line["released_at"] - line["acquired_at"], abs=1e-5)
        first = (table / "_delta_log" / f"{line['version']:020d}.json").read_text().splitlines()[0]
        info = json.loads(first)["commitInfo"]
        stamp = json.loads(info["userMetadata"])["sluice"]
        (node,) = info["sluice"]["nodes"]
        assert (stamp["commit_id"], info["sluice"]["hold"]) == (line["commit_id"], line["hold_id"])
        assert node["token"] == line["token"]
        assert "run" not in stamp

    # Each commit has a hold of its own.
    assert done.commits[0]["token"] < done.commits[1]["token"]
    assert done.commits[0]["released_at"] <= done.commits[1]["acquired_at"]
    assert manager.queue(f"file:{table}") == []
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["exit_code"], report["error"], report["run_id"]) == (0, None, None)
    assert report["table"] == f"file:{table}"
    assert report["commits"] == done.commits
    assert report["started_at"] < report["finished_at"]
    found = metrics.read_text()
    assert f'sluice_commits_total{{file="{metrics}",table="file:{table}"}} 2.0' in found
    assert f'sluice_lock_hold_seconds_count{{file="{metrics}",outcome="released",table="file:{table}"}} 2.0' in found
    assert f'sluice_lock_contenders{{file="{metrics}",state="holding",table="file:{table}"}} 0.0' in found


@pytest.mark.full
def test_every_row_is_in_exactly_one_of_the_commits_and_the_files_of_a_partitioned_table_are_few(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any]
) -> None:
    # Equal rows too, so many parts that some are empty, and sources for several tasks.
    rows = [(0, f"p{number % 2}", None) for number in range(8)]
    sources = [csv_file(f"{number}.csv", HEADER, rows) for number in range(4)]
    done = append("--table", table, "--source", *sources, "--commits", "3", "--partition-by", "name")

    assert done.code == 0
    assert [line["version"] for line in done.commits] == list(range(3))
    assert sum(line["rows"] for line in done.commits) == 32
    assert 0 in [line["rows"] for line in done.commits]
    assert rows_of(table, "id", "name") == sorted(4 * [row[:2] for row in rows])
    # One for each partition: equal rows share a commit.
    assert len(list(table.glob("name=*/*.parquet"))) == 2


def test_the_split_depends_on_the_rows_and_on_nothing_else(spark: SparkSession) -> None:
    rows = spark.range(100).selectExpr(
        "id", "cast(id as string) as s", "map('k', id) as m", "array(struct(id as a)) as n", "cast(null as date) as d"
    )

    def parts(split: SplitRows) -> list[list[int]]:
        try:
            assert split.count() == 100
            return [sorted(row.id for row in split.part(number).select("id").collect()) for number in range(2)]
        finally:
            split.close()

    first = parts(SplitRows(rows, 2))
    assert sorted(number for part in first for number in part) == list(range(100))
    assert all(len(part) > 30 for part in first)
    assert parts(SplitRows(rows.repartition(3).orderBy("s"), 2)) == first
    assert parts(SplitRows(rows.coalesce(1), 2, together=["d"])) == first


def test_a_catalog_table_is_appended_to_by_name(
    append: Callable[..., Any],
    source: Path,
    spark: SparkSession,
    sql_elsewhere: Callable[[str], None],
    table: Path,
    rows_of: Callable[..., Any],
) -> None:
    sql_elsewhere(f"create table orders (id int, name string, amount double) using delta location '{table}'")
    try:
        done = append("--table", "default.orders", "--source", source)
        assert (done.code, done.error) == (0, "")
        assert len(rows_of(table)) == len(ROWS)
    finally:
        spark.sql("drop table orders")


@pytest.mark.full
def test_a_table_that_another_writer_made_meanwhile_is_appended_to_with_its_types(
    append: Callable[..., Any],
    original: Callable[..., Path],
    csv_file: Callable[..., Path],
    manager: ZookeeperLockManager,
    table: Path,
    rows_of: Callable[..., Any],
    eventually: Callable[..., None],
) -> None:
    of_another = original("create table {t} (id bigint, name string) using delta")
    source = csv_file("s.csv", "id,name", [(1, 5), (2, 6)])
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(f"file:{table}"):
            running = pool.submit(append, "--table", table, "--source", source, "--commits", "2")
            # It waits with the plan of making a table with two columns of numbers.
            eventually(lambda: len(manager.queue(f"file:{table}")) == 2, what="the job in the queue")
            shutil.copytree(of_another, table, dirs_exist_ok=True)
        done = running.result()
    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines][:4] == ["begun", "holding", "begun", "holding"]
    assert rows_of(table) == [(1, "5"), (2, "6")]


@pytest.mark.full
@pytest.mark.s3
def test_an_s3_table_from_s3_files_with_a_report_on_s3(
    append: Callable[..., Any], source: Path, s3: Any, rows_of: Callable[..., Any]
) -> None:
    from sluice.audit.log_folder import s3_client

    client = s3_client(s3.environment)
    bucket, _, prefix = f"{s3.root}/".partition("/")
    client.upload_file(str(source), bucket, f"{prefix}landing/source.csv")
    done = append(
        "--table", f"s3://{s3.root}/job", "--source", f"s3a://{s3.root}/landing/*.csv",
        "--report", f"s3://{s3.root}/report.json",
        "--run-id", "on s3",
    )  # fmt: skip
    assert (done.code, done.error) == (0, "")
    assert rows_of(f"s3://{s3.root}/job", "id") == [(row[0],) for row in sorted(ROWS, key=lambda row: repr((row[0],)))]
    report = json.loads(client.get_object(Bucket=bucket, Key=f"{prefix}report.json")["Body"].read())
    assert (report["exit_code"], report["table"]) == (0, f"s3://{s3.root}/job")


# -- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
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
        (["--source", "{source}", "--partition-by", "nothing"], "partitioned not, and not by nothing"),
        (["--source", "{source}", "--option", "sep"], "expected KEY=VALUE"),
        (["--source", "{source}", "--format", "excel"], "invalid choice"),
        (["--source", "{source}", "--run-id", ""], "run id '' must have 1 to 128 printable characters"),
        (["--source", "{source}", "--report", "nowhere://x/y"], "No FileSystem for scheme"),
        (["--source", "{source}", "--surplus"], "unrecognized arguments"),
        ([], "required: --source"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence_and_exit_code_2(
    append: Callable[..., Any],
    arguments: list[str],
    said: str,
    source: Path,
    existing: Path,
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    (tmp_path / "notes").write_text("text")
    given = [argument.format(folder=tmp_path, source=source) for argument in arguments]
    refused = append("--table", existing, *given)

    assert refused.code == 2, refused.error
    assert said in refused.error
    assert len(refused.error.splitlines()) == 1
    assert refused.lines == []
    assert len(versions(existing)) == 1


def test_a_partition_column_that_the_source_lacks_is_refused_before_there_is_a_table(
    append: Callable[..., Any], source: Path, table: Path
) -> None:
    refused = append("--table", table, "--source", source, "--partition-by", "id,year")
    assert (refused.code, refused.lines) == (2, [])
    assert "no column year to partition by" in refused.error
    assert not table.exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "misfit",
    [
        ("id,name,amount,extra", [(1, "x", 1.0, 2)], "1", "the table has no column extra"),
        ("id,name", [(1, "x")], "1", "the source has no column amount"),
        ("id,name,amount", [(1, "x", 1.0), ("two", "y", 1.0)], "1", "two"),
        ("id,name,amount", [(1, "x", 1.0), ("two", "y", 1.0)], "2", "two"),
        ("id,name,amount", [(1, "x", 1.0), (2, "y")], "1", "2,y"),
    ],
)
def test_rows_that_do_not_fit_are_one_sentence_and_exit_code_5_and_the_table_is_unchanged(
    append: Callable[..., Any],
    misfit: tuple[str, list[Any], str, str],
    existing: Path,
    csv_file: Callable[..., Path],
    versions: Callable[[Path], list[str]],
    manager: ZookeeperLockManager,
) -> None:
    header, rows, commits, said = misfit
    table = existing
    report = table.with_name("report.json")
    source = csv_file("s.csv", header, rows)
    failed = append("--table", table, "--source", source, "--commits", commits, "--report", report)

    assert failed.code == 5
    assert said in failed.error
    assert len(failed.error.splitlines()) == 1
    assert failed.commits == []
    assert len(versions(table)) == 1
    assert manager.queue(f"file:{table}") == []
    found = json.loads(report.read_text())
    assert found["exit_code"] == 5
    assert found["error"] in failed.error


@pytest.mark.full
def test_a_lock_that_is_not_free_in_time_is_exit_code_3(
    append: Callable[..., Any], source: Path, table: Path, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(f"file:{table}"):
        failed = append("--table", table, "--source", source, "--lock-timeout", "5")
    assert failed.code == 3
    assert [line["event"] for line in failed.lines] == ["begun"]
    assert "not acquired within 5 s: 1 ahead" in failed.error
    assert not [path for path in table.rglob("*") if path.is_file()]


def test_an_ensemble_that_does_not_answer_is_found_before_anything_is_read(
    append: Callable[..., Any], table: Path, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{nobody.getsockname()[1]}"
        report = tmp_path / "report.json"
        # A source that does not exist: it is not even looked for.
        failed = append("--table", table, "--source", "/nowhere", "--report", report, hosts=hosts)
    assert failed.code == 3
    assert f"ZooKeeper at {hosts} did not answer within 2.0 s" in failed.error
    assert f"{hosts}: [Errno 111] Connection refused" in failed.error
    assert json.loads(report.read_text())["exit_code"] == 3


CHANGES = ("--keys", "id", "--sequence-by", "at")
STREAM = ("--trigger", "available-now", "--checkpoint", "{folder}/checkpoint")


@pytest.mark.parametrize(
    ("job", "source", "arguments"),
    [
        ("append", "{folder}/*.csv", ()),
        ("overwrite", "file:{folder}/gone.csv", ("--dynamic",)),
        ("upsert", "{folder}/gone", CHANGES),
        ("upsert", "{folder}/gone", (*CHANGES, *STREAM)),
        ("cdc", "{folder}/gone.json", ("--decoder", "debezium")),
        ("stream", "{folder}/gone", ("--keys", "id", "--event-time", "at", *STREAM)),
    ],
)
def test_a_local_source_is_looked_for_before_spark_starts(
    run_job: Callable[..., Any],
    tmp_path: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    source: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setattr(runner, "_session", None)
    source = source.format(folder=tmp_path)
    failed = run_job(job, "--table", table, "--source", source, *(word.format(folder=tmp_path) for word in arguments))
    assert (failed.code, failed.lines) == (2, [])
    assert failed.error == f"{job}.py: source {source} does not exist\n"


def test_a_lost_lock_is_exit_code_4(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    ensemble_client: KazooClient,
    versions: Callable[[Path], list[str]],
) -> None:
    node = table_node(LockSettings.lock_root, TableResource.of(f"file:{table}"))
    gone = threading.Event()

    def remove() -> None:
        """Remove every contender, also those that come back to the queue, until the job has noticed as a holder."""
        while not gone.is_set():
            for name in ensemble_client.get_children(node) if ensemble_client.exists(node) else []:
                if "lock__" in name:
                    with suppress(NoNodeError):
                        ensemble_client.delete(f"{node}/{name}")
            gone.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove)
        failed = append("--table", table, "--source", source, "--lock-timeout", "30", "--hold", "write")
        gone.set()
        removing.result()
    assert failed.code == 4, failed.error
    assert f"lock on file:{table} was lost" in failed.error
    assert versions(table) == []


def test_verbose_brings_the_stack_trace(append: Callable[..., Any], table: Path) -> None:
    failed = append("--table", table, "--source", "/nowhere.csv", "--verbose")
    assert failed.code == 2
    assert "Traceback" in failed.error
    assert failed.error.splitlines()[-1] == "append.py: source /nowhere.csv does not exist"


def test_help_explains_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for part in ("--run-id ID", "spark-submit $(sluice submit-args)", "exit codes:", "stopped by SIGTERM", "FAILFAST"):
        assert part in said


def test_an_option_of_a_file_system_is_refused_before_anything_is_read(
    append: Callable[..., Any], table: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    source = ("--table", table, "--source", "/nowhere.csv", "--report", report)
    refused = append(*source, "--option", "fs.s3a.secret.key=a-secret")
    assert (refused.code, refused.lines) == (2, [])
    assert "with --conf spark.hadoop.fs.s3a.secret.key=…" in refused.error
    assert len(refused.error.splitlines()) == 1
    assert "a-secret" not in refused.error + report.read_text()
    assert not table.exists()


def test_the_location_of_a_table_is_locked_whatever_its_spelling(
    append: Callable[..., Any], source: Path, table: Path, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(canonical_table_uri(table)):
        failed = append("--table", f"file://{table}/../table//", "--source", source, "--lock-timeout", "0")
    assert failed.code == 3
