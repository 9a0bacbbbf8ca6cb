"""The append job, run in the test's own process: what it reads, what it says, what it leaves behind."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pyspark.sql import SparkSession

from lock_manager import LockSettings, TableResource, ZookeeperLockManager, canonical_table_uri
from lock_manager.zookeeper.znodes import table_node
from tests.support.rivals import RivalManager
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.append import main
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import RunError, StorageError
from writer_jobs.job.append_arguments import parse_arguments
from writer_jobs.job.load import AppendLoad
from writer_jobs.job.output import JobOutput
from writer_jobs.job.split import SplitRows

pytestmark = pytest.mark.spark

HEADER = "id,name,amount"
ROWS = [(number, f"name {number}", number / 4) for number in range(40)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def source(csv_file: Callable[..., Path]) -> Path:
    return csv_file("source.csv", HEADER, ROWS)


@pytest.fixture
def existing(table: Path) -> Callable[..., Path]:
    """Create a table, not with Spark: ``existing(id="long", name="string")``."""

    def create(**columns: str) -> Path:
        fields = [Field(name, PrimitiveType(type_name)) for name, type_name in columns.items()]
        DeltaTable.create(table, Schema(fields))
        return table

    return create


# -- what it does ----------------------------------------------------------------------------------------------------


def test_the_first_append_creates_the_table_with_inferred_types_and_partitions(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any]
) -> None:
    source = csv_file("s.csv", HEADER, [(1, "x", 0.5), (2, "y", None)])
    done = append("--table", table, "--source", source, "--partition-by", "name")

    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines] == ["waiting", "holding", "commit"]
    (line,) = done.commits
    assert (line["version"], line["rows"]) == (0, 2)
    assert rows_of(table, "id", "name", "amount") == [(1, "x", 0.5), (2, "y", None)]
    assert {path.name for path in table.glob("name=*")} == {"name=x", "name=y"}


def test_its_locks_and_commits_are_in_its_metrics(
    append: Callable[..., Any], source: Path, table: Path, tmp_path: Path
) -> None:
    file = tmp_path / "job.prom"
    done = append("--table", table, "--source", source, "--commits", "2", "--metrics", file)
    assert (done.code, done.error) == (0, "")
    found = file.read_text()
    assert f'sluice_commits_total{{table="file:{table}"}} 2.0' in found
    assert f'sluice_lock_hold_seconds_count{{outcome="released",table="file:{table}"}} 2.0' in found
    assert f'sluice_lock_contenders{{state="holding",table="file:{table}"}} 0.0' in found


def test_each_commit_is_a_line_with_its_times_its_token_and_its_ids_and_all_are_in_the_report(
    append: Callable[..., Any], source: Path, table: Path, tmp_path: Path, manager: ZookeeperLockManager
) -> None:
    done = append("--table", table, "--source", source, "--commits", "2", "--report", tmp_path / "report.json")

    assert [(line["event"], line["commit"], line["commits"]) for line in done.lines] == [
        (event, commit, 2) for commit in (1, 2) for event in ("waiting", "holding", "commit")
    ]
    for waiting, holding, line in zip(done.lines[0::3], done.lines[1::3], done.commits, strict=True):
        assert set(line) == {
            "event", "commit", "commits", "version", "rows", "already_committed", "waited_s", "held_s", "token",
            "hold_id", "commit_id", "requested_at", "acquired_at", "released_at",
        }  # fmt: skip
        assert waiting["requested_at"] <= line["requested_at"] <= line["acquired_at"] < line["released_at"]
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


def test_every_row_is_in_exactly_one_of_the_commits(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any]
) -> None:
    # Equal rows too, and so many parts that some are empty.
    rows = [(number % 3, "x", None) for number in range(30)]
    done = append("--table", table, "--source", csv_file("s.csv", HEADER, rows), "--commits", "5")

    assert done.code == 0
    assert [line["version"] for line in done.commits] == list(range(5))
    assert sum(line["rows"] for line in done.commits) == 30
    assert 0 in [line["rows"] for line in done.commits]
    assert Counter(row[0] for row in rows_of(table, "id")) == Counter(row[0] for row in rows)


def test_the_split_depends_on_the_rows_and_on_nothing_else(spark: SparkSession) -> None:
    rows = spark.range(500).selectExpr(
        "id", "cast(id as string) as s", "map('k', id) as m", "array(struct(id as a)) as n", "cast(null as date) as d"
    )

    def parts(split: SplitRows) -> list[list[int]]:
        try:
            assert split.count() == 500
            return [sorted(row.id for row in split.part(number).select("id").collect()) for number in range(4)]
        finally:
            split.close()

    first = parts(SplitRows(rows, 4))
    assert sorted(number for part in first for number in part) == list(range(500))
    assert all(len(part) > 80 for part in first)
    assert parts(SplitRows(rows.repartition(7).orderBy("s"), 4)) == first
    assert parts(SplitRows(rows.coalesce(1), 4, together=["d"])) == first


def test_the_files_of_a_partitioned_table_are_few(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path
) -> None:
    sources = [csv_file(f"{number}.csv", HEADER, [(i, f"p{i % 3}", number) for i in range(60)]) for number in range(4)]
    done = append("--table", table, "--source", *sources, "--commits", "2", "--partition-by", "name")
    assert done.code == 0
    assert len(list(table.glob("name=*/*.parquet"))) == 2 * 3


def test_values_are_read_with_the_types_of_an_existing_table_and_matched_by_name(
    append: Callable[..., Any],
    table: Path,
    csv_file: Callable[..., Path],
    spark: SparkSession,
    sql_elsewhere: Callable[[str], None],
) -> None:
    columns = "amount decimal(10,2), id bigint, day date, name string, twice bigint generated always as (id * 2)"
    sql_elsewhere(f"create table delta.`{table}` ({columns}) using delta")
    source = csv_file("s.csv", "DAY,id,name,amount", [("2013-01-31", 7, "NA", "1.5"), ("2013-02-01", 8, "x", "NA")])
    done = append("--table", table, "--source", source, "--null-value", "NA")

    assert (done.code, done.error) == (0, "")
    rows = (
        spark.read.format("delta").load(str(table)).selectExpr("id", "string(amount)", "string(day)", "name", "twice")
    )
    assert sorted(map(tuple, rows.collect())) == [(7, "1.50", "2013-01-31", None, 14), (8, None, "2013-02-01", "x", 16)]


def test_sources_may_be_globs_folders_compressed_named_oddly_and_named_twice(
    append: Callable[..., Any], csv_file: Callable[..., Path], tmp_path: Path, table: Path, rows_of: Callable[..., Any]
) -> None:
    odd = csv_file("odd/a [1] #%20?.csv", HEADER, ROWS[:10])
    csv_file("folder/x.csv", HEADER, ROWS[10:20])
    csv_file("folder/_hidden.csv", "nonsense", [])
    csv_file("many/1.csv", HEADER, ROWS[20:25])
    csv_file("many/2.csv", HEADER, ROWS[25:30])
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(csv_file("z.csv", HEADER, ROWS[30:]).read_bytes()))
    done = append(
        "--table", table,
        "--source", odd, tmp_path / "folder", tmp_path / "many" / "*.csv", f"file://{tmp_path}/z.csv.gz",
        "--source", tmp_path / "many" / "1.csv", odd,
    )  # fmt: skip
    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)


def test_column_value_folders_are_columns(
    append: Callable[..., Any], csv_file: Callable[..., Path], tmp_path: Path, table: Path, rows_of: Callable[..., Any]
) -> None:
    csv_file("parts/year=2013/a.csv", "id", [(1,), (2,)])
    csv_file("parts/year=2014/a.csv", "id", [(3,)])
    done = append("--table", table, "--source", tmp_path / "parts")
    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "year") == [(1, 2013), (2, 2013), (3, 2014)]


def test_json_is_read_with_the_types_of_the_table_and_missing_fields_are_null(
    append: Callable[..., Any],
    sql_elsewhere: Callable[[str], None],
    table: Path,
    tmp_path: Path,
    rows_of: Callable[..., Any],
) -> None:
    sql_elsewhere(
        f"create table delta.`{table}` (id int, at timestamp_ntz, tags array<string>, size double) using delta"
    )
    source = tmp_path / "s.jsonl"
    source.write_text('{"id": 1, "at": "2013-01-01T10:00:00", "tags": ["a"]}\n{"id": 2}\n')
    done = append("--table", table, "--source", source)
    assert (done.code, done.error) == (0, "")
    assert [(row[0], str(row[1]), row[2], row[3]) for row in rows_of(table)] == [
        (1, "2013-01-01 10:00:00", ["a"], None),
        (2, "None", None, None),
    ]


def test_parquet_files_bring_the_columns_of_all_of_them(
    append: Callable[..., Any], spark: SparkSession, tmp_path: Path, table: Path, rows_of: Callable[..., Any]
) -> None:
    spark.range(2).coalesce(1).write.parquet(str(tmp_path / "a"))
    spark.range(2, 3).selectExpr("id", "'x' as later").coalesce(1).write.parquet(str(tmp_path / "b"))
    done = append("--table", table, "--source", tmp_path / "a" / "*.parquet", tmp_path / "b" / "*.parquet")
    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "later") == [(0, None), (1, None), (2, "x")]


def test_a_reader_option_goes_before_the_strict_defaults(
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
    existing: Callable[..., Path],
    rows_of: Callable[..., Any],
) -> None:
    table = existing(id="long", name="string")
    source = csv_file("s.csv", "1;x", [("bad;y",)])
    strict = append("--table", table, "--source", source, "--option", "sep=;", "--option", "header=false")
    lenient = append(
        "--table",
        table,
        "--source",
        source,
        "--option",
        "sep=;",
        "--option",
        "header=false",
        "--option",
        "mode=PERMISSIVE",
    )
    assert (strict.code, lenient.code) == (5, 0)
    assert rows_of(table) == [(1, "x"), (None, "y")]


def test_a_catalog_table_is_appended_to_by_name(
    append: Callable[..., Any], source: Path, spark: SparkSession, sql_elsewhere: Callable[[str], None], table: Path
) -> None:
    spark.sql("create schema if not exists shop")
    sql_elsewhere(f"create table shop.orders (id int, name string, amount double) using delta location '{table}'")
    try:
        done = append("--table", "shop.orders", "--source", source)
        assert (done.code, done.error) == (0, "")
        assert spark.table("shop.orders").count() == 40
    finally:
        spark.sql("drop schema shop cascade")


def test_a_table_that_another_writer_made_meanwhile_is_appended_to_with_its_types(
    append: Callable[..., Any],
    sql_elsewhere: Callable[[str], None],
    csv_file: Callable[..., Path],
    manager: ZookeeperLockManager,
    table: Path,
    rows_of: Callable[..., Any],
    eventually: Callable[..., None],
) -> None:
    source = csv_file("s.csv", "id,name", [(1, 5), (2, 6)])
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(f"file:{table}"):
            running = pool.submit(append, "--table", table, "--source", source, "--commits", "2")
            # It waits with the plan of making a table with two columns of numbers.
            eventually(lambda: len(manager.queue(f"file:{table}")) == 2, what="the job in the queue")
            sql_elsewhere(f"create table delta.`{table}` (id bigint, name string) using delta")
        done = running.result()
    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines][:4] == ["waiting", "holding", "waiting", "holding"]
    assert rows_of(table) == [(1, "5"), (2, "6")]


@pytest.mark.s3
def test_an_s3_table_from_s3_files_with_a_report_on_s3(
    append: Callable[..., Any], source: Path, s3: Any, spark: SparkSession, rows_of: Callable[..., Any]
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


class TextThatAnotherPrecedes(str):
    """A text of which somebody else writes another version after its file was opened, and before it is closed."""

    __slots__ = ("write_another",)

    write_another: Callable[[], object]

    def encode(self, *arguments: Any) -> bytes:
        self.write_another()
        return super().encode(*arguments)


@pytest.mark.s3
@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "control"])
def test_a_record_on_s3_is_created_by_a_conditional_put(
    s3: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, conditional: bool
) -> None:
    from sluice.audit.log_folder import s3_client

    client = s3_client(s3.environment)
    bucket, _, name = f"{s3.root}/records/{conditional}.json".partition("/")
    text = TextThatAnotherPrecedes("ours")
    text.write_another = lambda: client.put_object(Bucket=bucket, Key=name, Body=b"theirs")
    if not conditional:
        monkeypatch.setattr("writer_jobs.delta.hadoop_files._IF_ABSENT", "fs.option.create.no.such.option")
    with pytest.raises(StorageError, match="exists already with another text") if conditional else nullcontext():
        HadoopFiles.of(spark).create_text(f"s3a://{bucket}/{name}", text)
    kept = client.get_object(Bucket=bucket, Key=name)["Body"].read()
    assert kept == (b"theirs" if conditional else b"ours")


@pytest.mark.s3
@pytest.mark.parametrize("where", ["s3a://{s3.root}/records", "{folder}"])
def test_a_record_is_never_written_over_another(spark: SparkSession, s3: Any, tmp_path: Path, where: str) -> None:
    files, path = HadoopFiles.of(spark), f"{where.format(s3=s3, folder=tmp_path)}/new/folder/r.json"
    for _ in range(2):
        files.create_text(path, "one")
    with pytest.raises(StorageError, match="exists already with another text, and is not replaced"):
        files.create_text(path, "another")
    assert files.read_text(path) == "one"


# -- what it refuses -------------------------------------------------------------------------------------------------


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
        (["--source", "{source}", "--zookeeper", "zk1:2181,:99"], "is no host:port"),
        (["--source", "{source}", "--zookeeper", "zk1:99999"], "is no host:port"),
        (["--source", "{source}", "--lock-timeout", "-1"], "timeout_seconds"),
        (["--source", "{source}", "--lock-timeout", "soon"], "invalid float"),
        (["--source", "{source}", "--commits", "0"], "'0' is no number from 1"),
        (["--source", "{source}", "--partition-by", "id,,name"], "no list of different column names"),
        (["--source", "{source}", "--partition-by", "nothing"], "partitioned not, and not by nothing"),
        (["--source", "{source}", "--option", "sep"], "expected KEY=VALUE"),
        (["--source", "{source}", "--format", "excel"], "invalid choice"),
        (["--source", "{source}", "--run-id", ""], "run id '' is no name"),
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
    existing: Callable[..., Path],
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    table = existing(id="integer", name="string", amount="double")
    (tmp_path / "notes").write_text("text")
    given = [argument.format(folder=tmp_path, source=source) for argument in arguments]
    refused = append("--table", table, *given)

    assert refused.code == 2, refused.error
    assert said in refused.error
    assert len(refused.error.splitlines()) == 1
    assert refused.lines == []
    assert len(versions(table)) == 1


def test_a_partition_column_that_the_source_lacks_is_refused_before_there_is_a_table(
    append: Callable[..., Any], source: Path, table: Path
) -> None:
    refused = append("--table", table, "--source", source, "--partition-by", "id,year")
    assert (refused.code, refused.lines) == (2, [])
    assert "no column year to partition by" in refused.error
    assert not table.exists()


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
    existing: Callable[..., Path],
    csv_file: Callable[..., Path],
    versions: Callable[[Path], list[str]],
    manager: ZookeeperLockManager,
) -> None:
    header, rows, commits, said = misfit
    table = existing(id="integer", name="string", amount="double")
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


def test_files_of_one_load_with_different_headers_are_refused(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path, versions: Callable[[Path], list[str]]
) -> None:
    one = csv_file("1.csv", "id,name", [(1, "x")])
    other = csv_file("2.csv", "name,id", [("y", 2)])
    failed = append("--table", table, "--source", one, other)
    assert failed.code == 5
    assert "CSV header does not conform to the schema" in failed.error
    assert versions(table) == []


def test_json_with_unknown_or_malformed_fields_is_refused(
    append: Callable[..., Any],
    sql_elsewhere: Callable[[str], None],
    table: Path,
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    sql_elsewhere(f"create table delta.`{table}` (id int, inner struct<a: int>) using delta")
    source = tmp_path / "s.json"
    for text, said in (
        ('{"id": 1, "inner": {"a": 1, "b": 2}}', "no column inner.b"),
        ('{"id": "one"}', "one"),
        ('{"id": 1}\nnot json', "Malformed"),
    ):
        source.write_text(text)
        failed = append("--table", table, "--source", source)
        assert failed.code == 5
        assert said in failed.error
        assert len(failed.error.splitlines()) == 1
    assert len(versions(table)) == 1


def test_a_lock_that_is_not_free_in_time_is_exit_code_3(
    append: Callable[..., Any], source: Path, table: Path, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(f"file:{table}"):
        failed = append("--table", table, "--source", source, "--lock-timeout", "0.2")
    assert failed.code == 3
    assert [line["event"] for line in failed.lines] == ["waiting"]
    assert "not acquired within 0.2 s: 1 ahead" in failed.error
    assert not table.exists()


def test_an_ensemble_that_does_not_answer_is_found_before_anything_is_read(
    append: Callable[..., Any], table: Path, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{nobody.getsockname()[1]}"
        report = tmp_path / "report.json"
        # A source that does not exist: it is not even looked for.
        failed = append(
            "--table", table, "--source", "/nowhere", "--lock-timeout", "1", "--report", report, hosts=hosts
        )
    assert failed.code == 3
    assert f"ZooKeeper at {hosts} did not answer" in failed.error
    assert json.loads(report.read_text())["exit_code"] == 3


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
        failed = append("--table", table, "--source", source, "--lock-timeout", "30")
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
    for part in ("--run-id ID", "spark-submit $(sluice submit-args)", "exit codes:", "143: by SIGTERM", "FAILFAST"):
        assert part in said


# -- runs ------------------------------------------------------------------------------------------------------------


def run_commits(table: Path, run_id: str) -> list[int]:
    logs = sorted(table.glob("_delta_log/*.json"))
    actions = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return [action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == run_id]


def noted_records(table: Path) -> list[str | None]:
    """Return which record each of a table's commits says that it was made by."""
    logs = sorted(table.glob("_delta_log/*.json"))
    notes = [json.loads(path.read_text().splitlines()[0])["commitInfo"].get("userMetadata") for path in logs]
    return [json.loads(note)["sluice"]["run"].get("basis") for note in notes if note]


def records(table: Path, folder: str) -> list[tuple[str, str]]:
    """Return the names and texts of a run's records."""
    paths = sorted((table / "_sluice" / "runs" / folder).glob("*.json"))
    return [(path.stem, path.read_text()) for path in paths]


def test_a_run_that_is_started_again_does_nothing_and_says_so(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
) -> None:
    arguments = ("--table", table, "--source", source, "--commits", "2", "--run-id", "a/b c")
    first = append(*arguments)
    again = append(*arguments)

    assert (first.code, again.code, again.error) == (0, 0, "")
    assert [line["already_committed"] for line in first.commits] == [False] * 2
    assert [(line["event"], line["commit"], line["already_committed"]) for line in again.lines] == [
        ("commit", number, True) for number in (1, 2)
    ]
    assert all(line["version"] is None and line["rows"] is None for line in again.commits)
    assert run_commits(table, "a/b c") == [1, 2]
    assert len(versions(table)) == 2
    assert [digest for digest, _ in records(table, "a%2Fb%20c")] == noted_records(table)[:1]
    assert len(set(noted_records(table))) == 1
    assert len(rows_of(table)) == 40


def test_a_run_that_locks_partitions_is_begun_under_the_lock_on_the_table(
    append: Callable[..., Any], csv_file: Callable[..., Path], table: Path
) -> None:
    columns = "id,y"
    append("--table", table, "--source", csv_file("0.csv", columns, [(0, 1), (0, 2)]), "--partition-by", "y")
    load = ("--table", table, "--commits", "2", "--run-id", "parts", "--lock", "partitions")
    done = append(*load, "--source", csv_file("1.csv", columns, [(number, 1) for number in range(20)]))
    assert (done.code, [line["version"] for line in done.commits]) == (0, [1, 2])
    key = TableResource.of(table).key
    locked_alone = []
    for version in (1, 2):
        info = json.loads((table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()[0])["commitInfo"]
        locked_alone.append([node["key"] for node in info["sluice"]["nodes"] if node["mode"] == "exclusive"])
    assert locked_alone == [[key], [f"{key}/y=1"]]
    # Another load of that name, of other partitions.
    refused = append(*load, "--source", csv_file("2.csv", columns, [(1, 2)]))
    assert refused.code == 2
    assert "choose another run id" in refused.error


def test_a_run_is_not_continued_with_other_sources_or_another_split(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    csv_file: Callable[..., Path],
    versions: Callable[[Path], list[str]],
) -> None:
    more = csv_file("more.csv", HEADER, [(99, "more", 1.0)])
    arguments = ("--table", table, "--source", source, "--run-id", "r", "--commits", "2")
    assert append(*arguments).code == 0
    changes = {
        "the number of commits changed": ("--commits", "3"),
        "the reader option sep changed": ("--option", "sep=;"),
        "the source files changed": ("--source", more),
    }
    for said, change in changes.items():
        refused = append(*arguments, *change)
        assert refused.code == 2
        assert "run 'r' has 2 of 2 commits in the table already" in refused.error
        assert said in refused.error
    # The same file, rewritten.
    csv_file("source.csv", HEADER, [*ROWS[:-1], (1, "other", 1.0)])
    refused = append(*arguments)
    assert refused.code == 2
    assert "the source files changed" in refused.error
    assert len(versions(table)) == 2


def test_a_run_without_a_commit_may_still_change(
    append: Callable[..., Any], source: Path, table: Path, csv_file: Callable[..., Path], rows_of: Callable[..., Any]
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    # The first attempts fail under the lock, after the run was recorded; the second one finds the record that it needs.
    csv_file("source.csv", "id,name", [(1, "x"), (2,)])
    assert append(*arguments).code == 5
    first = records(table, "r")
    assert append(*arguments).code == 5
    assert records(table, "r") == first
    csv_file("source.csv", "id,name", [(1, "x"), (2, "y")])
    assert append(*arguments).code == 0
    assert rows_of(table) == [(1, "x"), (2, "y")]
    # Nothing was replaced, and the commit says which one counts.
    (kept,) = first
    assert kept in records(table, "r")
    assert {digest for digest, _ in records(table, "r")} == {kept[0], *noted_records(table)}
    assert kept[0] not in noted_records(table)


def test_a_record_that_was_torn_before_the_first_commit_is_in_nobodys_way(
    append: Callable[..., Any], source: Path, table: Path
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    whole = source.read_text()
    # This attempt fails under the lock, after it wrote its record.
    source.write_text(f"{HEADER}\n1,x\n")
    assert append(*arguments).code == 5
    source.write_text(whole)
    ((digest, text),) = records(table, "r")
    # One that Hadoop's checksum of local files tells, and what a store without one may leave.
    folder = table / "_sluice" / "runs" / "r"
    for path in (folder / f"{digest}.json", folder / f"{'0' * 64}.json", folder.with_suffix(".json")):
        path.write_text(text[:-9])
    done = [append(*arguments) for _ in range(2)]
    assert [(each.code, each.error) for each in done] == [(0, "")] * 2
    assert run_commits(table, "r") == [1]
    assert len(records(table, "r")) == 3


@pytest.mark.parametrize("harm", ["missing", "torn", "changed"])
def test_a_run_is_not_completed_without_the_very_record_of_its_commits(
    append: Callable[..., Any], source: Path, table: Path, versions: Callable[[Path], list[str]], harm: str
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    assert append(*arguments).code == 0
    ((digest, text),) = records(table, "r")
    path = table / "_sluice" / "runs" / "r" / f"{digest}.json"
    path.unlink()
    if harm == "changed":
        # Else the checksum that Hadoop keeps beside a local file would tell.
        (path.parent / f".{path.name}.crc").unlink()
    if harm != "missing":
        path.write_text(
            text[:-5] if harm == "torn" else text.replace('"number of commits": 1', '"number of commits": 2')
        )
    refused = append(*arguments)
    assert refused.code == 2
    assert "the record by which they were made is missing or damaged" in refused.error
    assert f"restore file:{path}, or choose another run id" in refused.error
    assert len(versions(table)) == 1


def as_an_earlier_release_left_it(table: Path, options: dict[str, str]) -> str:
    """Give a run's one record and its one commit the form that they had, and return the record's name."""
    ((digest, text),) = records(table, "r")
    record = json.loads(text)
    record["basis"]["reader options"] = options
    folder = table / "_sluice" / "runs" / "r"
    for path in folder.iterdir():
        path.unlink()
    earlier = folder.with_suffix(".json")
    earlier.write_text(json.dumps({**record, "format": 1, "written_at": 1.5}, indent=1))
    commit = table / "_delta_log" / f"{0:020d}.json"
    note = f',\\"basis\\":\\"{digest}\\"'
    assert note in commit.read_text()
    commit.write_text(commit.read_text().replace(note, ""))
    return earlier.name


def test_a_run_of_an_earlier_release_is_completed_by_its_record(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r", "--commits", "2")
    assert append(*arguments).code == 0
    for path in table.glob(f"_delta_log/*{1:020d}*"):
        path.unlink()
    sql_elsewhere(f"alter table delta.`{table}` add column later string")
    defaults = {"enforceschema": "false", "header": "true", "mode": "FAILFAST"}
    of_files = {"ignorecorruptfiles": "false", "ignoremissingfiles": "false"}
    as_an_earlier_release_left_it(table, {**defaults, **of_files, "fs.s3a.secret.key": "open"})
    # What a job left that ended before its first commit says nothing.
    refused = append(*arguments, "--option", "sep=;")
    assert (refused.code, "the reader option sep changed" in refused.error) == (2, True)
    rest = append(*arguments)
    assert (rest.code, rest.error) == (0, "")
    assert [line["already_committed"] for line in rest.commits] == [True, False]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)
    assert noted_records(table) == [None, None]
    assert append(*arguments).code == 0


def test_a_run_whose_commits_were_cleaned_up_has_its_only_record(
    append: Callable[..., Any], source: Path, table: Path, spark: SparkSession, sql_elsewhere: Callable[[str], None]
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    assert append(*arguments).code == 0
    sql_elsewhere(f"alter table delta.`{table}` add column later string")
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table)).checkpoint()
    for path in table.glob(f"_delta_log/*{0:020d}*"):
        path.unlink()
    done = append(*arguments)
    assert (done.code, [line["already_committed"] for line in done.commits]) == (0, [True])
    # Of two it cannot be known which one it was.
    ((_, text),) = records(table, "r")
    other = json.dumps(json.loads(text))
    (table / "_sluice" / "runs" / "r" / f"{hashlib.sha256(other.encode()).hexdigest()}.json").write_text(other)
    refused = append(*arguments)
    assert refused.code == 2
    assert "run 'r' was begun more than once" in refused.error


def test_no_value_of_a_reader_option_is_stored_or_said(
    append: Callable[..., Any], source: Path, table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = tmp_path / "report.json"
    arguments = ("--table", table, "--source", source, "--run-id", "r", "--report", report, "--verbose", "--option")
    first = append(*arguments, "Kms.Token=a-secret-1")
    refused = append(*arguments, "kms.token=a-secret-2")
    again = append(*arguments, "kms.token=a-secret-1")
    malformed = append(*arguments, "a-secret-3")
    assert [each.code for each in (first, refused, again, malformed)] == [0, 2, 0, 2]
    assert "the reader option kms.token changed" in refused.error
    said = [f"{each.lines} {each.error}" for each in (first, refused, again, malformed)]
    kept = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("kms.token" in text for text in kept)
    assert not any("a-secret" in text for text in (*said, *kept, caplog.text))


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


def test_a_name_that_another_application_used_for_its_transactions_is_refused(
    append: Callable[..., Any],
    source: Path,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    existing: Callable[..., Path],
) -> None:
    table = existing(id="integer", name="string", amount="double")
    rows = spark.sql("select 1 as id, 'x' as name, 1.0D as amount")
    writing = rows.write.format("delta").mode("append").option("txnAppId", "stream").option("txnVersion", 3)
    with locked(spark, str(table), manager=manager):
        writing.save(str(table))
    refused = append("--table", table, "--source", source, "--run-id", "stream")
    assert refused.code == 2
    assert "choose another run id" in refused.error


def test_a_run_is_completed_by_the_recorded_schema_when_the_table_has_changed_since(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r", "--commits", "2")
    whole = append(*arguments)
    assert whole.code == 0
    # As if the job had been killed after its first commit, and somebody had added a column.
    for path in table.glob(f"_delta_log/*{1:020d}*"):
        path.unlink()
    sql_elsewhere(f"alter table delta.`{table}` add column later string")
    rest = append(*arguments)

    assert (rest.code, rest.error) == (0, "")
    assert [line["already_committed"] for line in rest.commits] == [True, False]
    assert [line["rows"] for line in rest.commits[1:]] == [line["rows"] for line in whole.commits[1:]]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)


def test_a_run_that_the_table_may_have_forgotten_is_not_done_again(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    retention = "tblproperties ('delta.setTransactionRetentionDuration' = 'interval 0 seconds')"
    sql_elsewhere(f"create table delta.`{table}` (id int, name string, amount double) using delta {retention}")
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    assert append(*arguments).code == 0
    refused = append(*arguments)
    assert refused.code == 2
    assert "the table forgets transactions" in refused.error
    assert len(rows_of(table)) == 40


def test_two_processes_with_one_run_id_make_one_run(
    zookeeper: Any, spark: SparkSession, source: Path, table: Path, tmp_path: Path, rows_of: Callable[..., Any]
) -> None:
    def run(number: int) -> dict[str, Any]:
        report = tmp_path / f"report-{number}.json"
        arguments = ["--table", str(table), "--source", str(source), "--run-id", "twice", "--commits", "2"]
        assert main(["--zookeeper", zookeeper.hosts, "--report", str(report), *arguments]) == 0
        return json.loads(report.read_text())

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(run, range(2)))

    assert run_commits(table, "twice") == [1, 2]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)
    for commit in range(2):
        assert sorted(report["commits"][commit]["already_committed"] for report in reports) == [False, True]


def test_vacuum_and_readers_pass_over_the_record(
    append: Callable[..., Any],
    source: Path,
    table: Path,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    rows_of: Callable[..., Any],
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    assert append(*arguments).code == 0
    (table / "orphan.parquet").write_bytes(b"not in the table")
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    tasks = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(check, "false")
    spark.conf.set(tasks, "2")
    try:
        with locked(spark, str(table), manager=manager):
            spark.sql(f"vacuum delta.`{table}` retain 0 hours")
    finally:
        spark.conf.unset(check)
        spark.conf.unset(tasks)

    assert not (table / "orphan.parquet").exists()
    assert len(records(table, "r")) == 1
    assert len(rows_of(table)) == spark.read.format("delta").load(str(table)).count() == 40
    assert append(*arguments).code == 0


def test_the_location_of_a_table_is_locked_whatever_its_spelling(
    append: Callable[..., Any], source: Path, table: Path, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(canonical_table_uri(table)):
        failed = append("--table", f"file://{table}/../table//", "--source", source, "--lock-timeout", "0")
    assert failed.code == 3


class KilledError(Exception):
    """Stands for the end of a process between two steps of its job."""


class Watched(JobOutput):
    """A job's output that tells where the job is, and can end it before a commit."""

    def __init__(self, commits: int, *, killed_before: int | None = None) -> None:
        super().__init__(commits)
        self.holds = self.slept = False
        self._killed_before = killed_before

    def waiting(self, commit: int, requested_at: float) -> None:
        if commit == self._killed_before:
            raise KilledError
        super().waiting(commit, requested_at)

    def holding(self, commit: int, token: int, acquired_at: float) -> None:
        super().holding(commit, token, acquired_at)
        self.holds = True


def load_by(writer: LockedDeltaWriter, spark: SparkSession, output: JobOutput, *arguments: object) -> AppendLoad:
    asked = parse_arguments(["--table", writer.table, *map(str, arguments)])
    return AppendLoad(spark, writer, asked, output, lambda _: nullcontext())


def test_a_zombie_replaces_no_record_of_its_successors(
    append: Callable[..., Any],
    spark: SparkSession,
    make_manager: Callable[..., ZookeeperLockManager],
    source: Path,
    table: Path,
    ensemble_client: KazooClient,
    rows_of: Callable[..., Any],
) -> None:
    run = ("--source", source, "--run-id", "r")
    writers = [LockedDeltaWriter(spark, make_manager(), str(table)) for _ in range(2)]
    output = Watched(2)
    zombie = load_by(writers[0], spark, output, *run, "--commits", 2)
    successor = load_by(writers[1], spark, Watched(3, killed_before=2), *run, "--commits", 3)
    look = writers[0].log.head
    node = table_node(LockSettings.lock_root, TableResource.of(writers[0].table))

    def look_and_fall_asleep(app_id: str | None = None) -> Any:
        """Look, under the lock, whether the run has begun; lose the lock; return when another one has begun it."""
        found = look(app_id)
        if output.holds and not output.slept:
            output.slept = True
            for name in ensemble_client.get_children(node):
                if "lock__" in name:
                    ensemble_client.delete(f"{node}/{name}")
            with ThreadPoolExecutor(1) as pool, pytest.raises(KilledError):
                pool.submit(successor.run).result()
        return found

    writers[0].log.head = look_and_fall_asleep  # type: ignore[method-assign]
    # The table's first commit is one of three, so the zombie's split does not fit it, and the successor's does.
    with pytest.raises(RunError, match="run 'r' has 1 of 3 commits in the table already"):
        zombie.run()
    assert run_commits(table, "r") == [1]
    refused = append("--table", table, *run, "--commits", "2")
    assert (refused.code, run_commits(table, "r")) == (2, [1])
    assert "run 'r' has 1 of 3 commits in the table already" in refused.error
    done = append("--table", table, *run, "--commits", "3")
    assert (done.code, done.error) == (0, "")
    assert [line["already_committed"] for line in done.commits] == [True, False, False]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)
