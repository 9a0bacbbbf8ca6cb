"""Runs of the append job: their records, their completion and their run ids."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import TableResource, ZookeeperLockManager
from tests.support.append_driver import AppendDriver
from tests.support.append_rows import EMPTY, HEADER, ROWS
from tests.support.at_the_gate import commit_info
from tests.support.lock_znodes import LockZnodes
from tests.support.spark_settings import spark_settings
from writer_jobs import locked
from writer_jobs.append import main
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import RunError, StorageError
from writer_jobs.job.append.arguments import parse_arguments
from writer_jobs.job.append.load import AppendLoad
from writer_jobs.job.output import JobOutput
from writer_jobs.job.runner import JobContext
from writer_jobs.job.stop_signals import StopSignals

pytestmark = pytest.mark.spark

RUN_ID, RUN_FOLDER = "a/b c", "a%2Fb%20c"
SORTED_ROWS = sorted(ROWS, key=repr)


@dataclass
class RunDriver(AppendDriver):
    """The append job on one table, and the runs that the table and its records contain."""

    def commits_of(self, run_id: str) -> list[int]:
        """Return the numbers of a run's commits, which are its transaction versions."""
        logs = sorted(self.table.glob("_delta_log/*.json"))
        actions = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
        return [action["txn"]["version"] for action in actions if action.get("txn", {}).get("appId") == run_id]

    def record_folder(self, folder: str = RUN_FOLDER) -> Path:
        return self.table / "_sluice" / "runs" / folder

    def records(self, folder: str = RUN_FOLDER) -> list[tuple[str, str]]:
        """Return the digests and texts of a run's records."""
        return [(path.stem, path.read_text()) for path in sorted(self.record_folder(folder).glob("*.json"))]

    def digests_in_commits(self) -> list[str | None]:
        """Return the digest of the record that each commit of a run contains."""
        versions = sorted(int(path.stem) for path in self.table.glob("_delta_log/*.json"))
        notes = [commit_info(self.table, version).get("userMetadata") for version in versions]
        return [json.loads(note)["sluice"]["run"].get("basis") for note in notes if note]

    def repeat(self, *changes: object) -> Any:
        """Run the job with the arguments of run ``a/b c``, followed by arguments that replace or extend them."""
        return self.run(*run_arguments(self.source), *changes)

    def lose_second_commit(self) -> None:
        """Leave the table as if the job had been killed after its first commit."""
        for path in self.table.glob(f"_delta_log/*{2:020d}*"):
            path.unlink()


def run_arguments(source: Path) -> tuple[str, ...]:
    return ("--source", str(source), "--run-id", RUN_ID, "--commits", "2")


@pytest.fixture(scope="module", autouse=True)
def quick_hashes() -> Iterator[None]:
    """Hash reader options with few iterations: these tests hash some hundred of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("writer_jobs.job.append.runs._HASH_ITERATIONS", 10)
        yield


@pytest.fixture
def job(request: pytest.FixtureRequest) -> RunDriver:
    """The job on a path without a table."""
    return RunDriver.create(request)


@pytest.fixture(scope="module")
def committed_run(
    spark: SparkSession, zookeeper: Any, original: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A table with both commits of run ``a/b c``, and the source. The record contains the source's path and time."""
    folder = tmp_path_factory.mktemp("run")
    table, source = Path(shutil.copytree(original(EMPTY), folder / "table")), folder / "source.csv"
    source.write_text("\n".join([HEADER, *(",".join(map(str, row)) for row in ROWS)]) + "\n", encoding="utf-8")
    assert main(["--zookeeper", zookeeper.hosts, "--table", str(table), *run_arguments(source)]) == 0
    return table, source


@pytest.fixture
def committed_job(request: pytest.FixtureRequest, committed_run: tuple[Path, Path]) -> Iterator[RunDriver]:
    """The job on a copy of the table with both commits of run ``a/b c``: versions 1 and 2."""
    table, source = committed_run
    job = RunDriver.create(request)
    shutil.copytree(table, job.table)
    job.source = source
    text, times = source.read_bytes(), source.stat()
    yield job
    source.write_bytes(text)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.full
def test_a_completed_run_commits_nothing_when_repeated(committed_job: RunDriver) -> None:
    repeated = committed_job.repeat()
    assert (repeated.code, repeated.error) == (0, "")
    assert [(line["event"], line["commit"], line["already_committed"]) for line in repeated.lines] == [
        ("commit", number, True) for number in (1, 2)
    ]
    assert [(line["version"], line["rows"]) for line in repeated.commits] == [(1, None), (2, None)]
    assert committed_job.commits_of(RUN_ID) == [1, 2]
    assert committed_job.version_count() == 3
    digests = committed_job.digests_in_commits()
    assert [digest for digest, _ in committed_job.records()] == digests[:1]
    assert len(set(digests)) == 1
    assert committed_job.rows("id", "name", "amount") == SORTED_ROWS


def test_the_first_commit_of_a_run_is_written_before_its_lock(
    job: RunDriver, manager: ZookeeperLockManager, eventually: Callable[..., None]
) -> None:
    job.create_table("create table {t} (id int) using delta")
    source = job.csv("s.csv", "id", [(1,)])
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(job.uri):
            running = pool.submit(job.succeed, "--source", source, "--run-id", "early")
            eventually(lambda: len(manager.queue(job.uri)) == 2, label="the job in the queue")
            staged = list(job.table.glob("*.parquet"))
        outcome = running.result()
    assert len(staged) == 1
    assert outcome.commits[0]["version"] == 1


@pytest.mark.full
def test_the_first_commit_of_a_run_locks_the_whole_table(job: RunDriver) -> None:
    """Later commits lock the partitions of their rows."""
    job.create_table("create table {t} (id int, y int) using delta partitioned by (y)")
    arguments = ("--commits", "2", "--run-id", "parts", "--lock", "partitions", "--source")
    outcome = job.run(*arguments, job.csv("1.csv", "id,y", [(number, 1) for number in range(20)]))
    assert (outcome.code, [line["version"] for line in outcome.commits]) == (0, [1, 2])
    exclusive = []
    for version in (1, 2):
        nodes = commit_info(job.table, version)["sluice"]["nodes"]
        exclusive.append([node["key"] for node in nodes if node["mode"] == "exclusive"])
    key = TableResource.of(job.table).key
    assert exclusive == [[key], [f"{key}/y=1"]]
    # Another load with this run id, into another partition.
    job.refuse(2, "choose another run id", *arguments, job.csv("2.csv", "id,y", [(1, 2)]))


def test_a_run_with_other_sources_or_another_split_is_refused(committed_job: RunDriver) -> None:
    more = committed_job.csv("more.csv", HEADER, [(99, "more", 1.0)])
    changes: dict[str, tuple[object, ...]] = {
        "the number of commits changed": ("--commits", "3"),
        "the reader option sep changed": ("--option", "sep=;"),
        "the source files changed": ("--source", more),
    }
    for message, change in changes.items():
        refused = committed_job.repeat(*change)
        assert refused.code == 2
        assert "run 'a/b c' has 2 of 2 commits in the table already" in refused.error
        assert message in refused.error
    # The same file with other content.
    committed_job.source.write_text(committed_job.source.read_text().replace("name 1,", "other,"))
    refused = committed_job.repeat()
    assert refused.code == 2
    assert "the source files changed" in refused.error
    assert committed_job.version_count() == 3


@pytest.mark.full
def test_a_run_without_a_commit_may_change(job: RunDriver) -> None:
    # Two attempts fail under the lock, after they recorded the run. Both have the same record.
    source = job.csv("source.csv", "id,name", [(1, "x"), (2,)])
    arguments = ("--source", source, "--run-id", "r", "--hold", "write")
    assert job.run(*arguments).code == 5
    records = job.records("r")
    assert job.run(*arguments).code == 5
    assert job.records("r") == records
    job.csv("source.csv", "id,name", [(1, "x"), (2, "y")])
    assert job.run(*arguments).code == 0
    assert job.rows() == [(1, "x"), (2, "y")]
    # The record of the failed attempts stays, and the commit contains the digest of its own record.
    (unused_record,) = records
    digests = job.digests_in_commits()
    assert unused_record in job.records("r")
    assert {digest for digest, _ in job.records("r")} == {unused_record[0], *digests}
    assert unused_record[0] not in digests


@pytest.mark.full
def test_a_torn_record_does_not_block_a_run_without_a_commit(committed_job: RunDriver, tmp_path: Path) -> None:
    """Attempts that failed under the lock left torn records: with Hadoop's checksum file, and without it."""
    job = replace(committed_job, table=tmp_path / "new", source=tmp_path / "source.csv")
    folder = job.record_folder("r")
    shutil.copytree(committed_job.record_folder(), folder)
    ((digest, text),) = job.records("r")
    assert (folder / f".{digest}.json.crc").exists()
    for path in (folder / f"{digest}.json", folder / f"{'0' * 64}.json", folder.with_suffix(".json")):
        path.write_text(text[:-9])
    for _ in range(2):
        job.succeed("--source", job.source, "--run-id", "r")
    assert job.commits_of("r") == [1]
    assert len(job.records("r")) == 3


def test_a_run_is_not_completed_without_its_record(committed_job: RunDriver) -> None:
    ((digest, text),) = committed_job.records()
    path = committed_job.record_folder() / f"{digest}.json"

    def change_number_of_commits() -> None:
        # Without its checksum file Hadoop does not detect the change.
        (path.parent / f".{path.name}.crc").unlink()
        path.write_text(text.replace('"number of commits": 2', '"number of commits": 3'))

    for damage in (path.unlink, lambda: path.write_text(text[:-5]), change_number_of_commits):
        damage()
        refused = committed_job.repeat()
        assert refused.code == 2
        assert "the record by which they were made is missing or damaged" in refused.error
        assert f"restore file:{path}, or choose another run id" in refused.error
    assert committed_job.version_count() == 3
    # The control: with the original record the job succeeds.
    path.write_text(text)
    assert committed_job.repeat().code == 0


def convert_record_to_format_1(job: RunDriver, options: dict[str, str]) -> None:
    """Give the run's record and its first commit the form of an earlier release."""
    ((digest, text),) = job.records()
    record = json.loads(text)
    record["basis"]["reader options"] = options
    for path in job.record_folder().iterdir():
        path.unlink()
    record_of_format_1 = json.dumps({**record, "format": 1, "written_at": 1.5}, indent=1)
    job.record_folder().with_suffix(".json").write_text(record_of_format_1)
    commit = job.table / "_delta_log" / f"{1:020d}.json"
    note = f',\\"basis\\":\\"{digest}\\"'
    assert note in commit.read_text()
    commit.write_text(commit.read_text().replace(note, ""))


@pytest.mark.full
def test_a_run_of_an_earlier_release_is_completed(
    committed_job: RunDriver, unguarded_sql: Callable[[str], None]
) -> None:
    committed_job.lose_second_commit()
    unguarded_sql(f"alter table delta.`{committed_job.table}` add column later string")
    csv_options = {"enforceschema": "false", "header": "true", "mode": "FAILFAST"}
    csv_options |= {"escape": '"', "unescapedquotehandling": "RAISE_ERROR"}
    file_options = {"ignorecorruptfiles": "false", "ignoremissingfiles": "false"}
    convert_record_to_format_1(committed_job, {**csv_options, **file_options, "fs.s3a.secret.key": "open"})
    refused = committed_job.repeat("--option", "sep=;")
    assert (refused.code, "the reader option sep changed" in refused.error) == (2, True)
    completed = committed_job.repeat()
    assert (completed.code, completed.error) == (0, "")
    assert [line["already_committed"] for line in completed.commits] == [True, False]
    assert committed_job.rows("id", "name", "amount") == SORTED_ROWS
    assert committed_job.digests_in_commits() == [None, None]
    assert committed_job.repeat().code == 0


def test_a_run_is_recognized_after_log_clean_up(committed_job: RunDriver) -> None:
    table = committed_job.table
    delta_rs = DeltaTable(table)
    delta_rs.alter.add_columns([Field("later", PrimitiveType("string"))])
    delta_rs.create_checkpoint()
    for version in range(3):
        for path in table.glob(f"_delta_log/*{version:020d}*"):
            path.unlink()
    # A job that is killed while it writes its record leaves a temporary file.
    (committed_job.record_folder() / ".record.json.0.tmp").write_text("{}")
    repeated = committed_job.repeat()
    assert (repeated.code, [line["already_committed"] for line in repeated.commits]) == (0, [True, True])
    # With two records the record of the commits is unknown.
    ((_, text),) = committed_job.records()
    second_text = json.dumps(json.loads(text))
    second_digest = hashlib.sha256(second_text.encode()).hexdigest()
    (committed_job.record_folder() / f"{second_digest}.json").write_text(second_text)
    refused = committed_job.repeat()
    assert refused.code == 2
    assert "run 'a/b c' was begun more than once" in refused.error


@pytest.mark.full
def test_the_value_of_a_reader_option_is_not_stored_or_printed(
    job: RunDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = tmp_path / "report.json"
    arguments = ("--source", job.source, "--run-id", "r", "--report", report, "--verbose", "--option")
    options = ("Kms.Token=a-secret-1", "kms.token=a-secret-2", "kms.token=a-secret-1", "a-secret-3")
    outcomes = [job.run(*arguments, option) for option in options]
    assert [outcome.code for outcome in outcomes] == [0, 2, 0, 2]
    assert "the reader option kms.token changed" in outcomes[1].error
    printed = [f"{outcome.lines} {outcome.error}" for outcome in outcomes]
    stored = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("kms.token" in text for text in stored)
    assert not any("a-secret" in text for text in (*printed, *stored, caplog.text))


def test_a_run_id_of_another_application_is_refused(
    job: RunDriver, spark: SparkSession, manager: ZookeeperLockManager
) -> None:
    job.create_table()
    rows = spark.sql("select 1 as id, 'x' as name, 1.0D as amount").coalesce(1)
    append = rows.write.format("delta").mode("append").option("txnAppId", "stream").option("txnVersion", 3)
    with locked(spark, str(job.table), manager=manager):
        append.save(str(job.table))
    job.refuse(2, "choose another run id", "--source", job.source, "--run-id", "stream")


def test_a_run_is_completed_with_the_recorded_schema(
    committed_job: RunDriver, unguarded_sql: Callable[[str], None]
) -> None:
    """The table has one more column than when the run began."""
    lost_info = commit_info(committed_job.table, 2)
    committed_job.lose_second_commit()
    unguarded_sql(f"alter table delta.`{committed_job.table}` add column later string")
    completed = committed_job.repeat()

    assert (completed.code, completed.error) == (0, "")
    assert [line["already_committed"] for line in completed.commits] == [True, False]
    assert str(completed.commits[1]["rows"]) == lost_info["operationMetrics"]["numOutputRows"]
    assert committed_job.rows("id", "name", "amount") == SORTED_ROWS


def test_a_run_whose_transactions_may_be_dropped_is_refused(
    committed_job: RunDriver, unguarded_sql: Callable[[str], None]
) -> None:
    def drop_transactions_after(interval: str) -> None:
        retention = f"('delta.setTransactionRetentionDuration' = '{interval}')"
        unguarded_sql(f"alter table delta.`{committed_job.table}` set tblproperties {retention}")

    drop_transactions_after("interval 0 seconds")
    refused = committed_job.repeat()
    assert refused.code == 2
    assert "the table drops old transactions" in refused.error
    assert len(committed_job.rows()) == len(ROWS)

    # As if the run had been killed before its first commit. Its source is younger than the retention.
    for number in (1, 2, 3):
        for path in committed_job.table.glob(f"_delta_log/*{number:020d}*"):
            path.unlink()
    drop_transactions_after("interval 30 days")
    assert committed_job.records()
    assert committed_job.repeat().code == 0
    assert committed_job.rows("id", "name", "amount") == SORTED_ROWS


@pytest.mark.full
def test_two_jobs_with_one_run_id_make_one_run(job: RunDriver, zookeeper: Any, tmp_path: Path) -> None:
    def run(number: int) -> dict[str, Any]:
        report = tmp_path / f"report-{number}.json"
        arguments = ["--table", str(job.table), "--source", str(job.source), "--run-id", "twice", "--commits", "2"]
        assert main(["--zookeeper", zookeeper.hosts, "--report", str(report), *arguments]) == 0
        return json.loads(report.read_text())

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(run, range(2)))

    assert job.commits_of("twice") == [1, 2]
    assert job.rows("id", "name", "amount") == SORTED_ROWS
    for commit in range(2):
        assert sorted(report["commits"][commit]["already_committed"] for report in reports) == [False, True]


@pytest.mark.full
def test_vacuum_and_readers_ignore_the_record(
    committed_job: RunDriver, spark: SparkSession, manager: ZookeeperLockManager
) -> None:
    records, orphan = committed_job.records(), committed_job.table / "orphan.parquet"
    orphan.write_bytes(b"not in the table")
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    with spark_settings(spark.conf, settings), locked(spark, str(committed_job.table), manager=manager):
        spark.sql(f"vacuum delta.`{committed_job.table}` retain 0 hours")

    assert not orphan.exists()
    assert records
    assert committed_job.records() == records
    assert len(committed_job.rows()) == len(ROWS)


class TextWithRival(str):
    """A text during whose encoding a rival writes its file: after the file was opened, before it is closed."""

    __slots__ = ("write_rival",)

    write_rival: Callable[[], object]

    def encode(self, *arguments: Any) -> bytes:
        self.write_rival()
        return super().encode(*arguments)


@pytest.mark.s3
@pytest.mark.parametrize("conditional", [True, False], ids=["conditional", "negative control"])
def test_a_record_on_s3_is_created_by_a_conditional_put(
    s3: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, conditional: bool
) -> None:
    from sluice.audit.log_folder import s3_client

    client = s3_client(s3.environment)
    bucket, _, name = f"{s3.root}/records/{conditional}.json".partition("/")
    text = TextWithRival("ours")
    text.write_rival = lambda: client.put_object(Bucket=bucket, Key=name, Body=b"theirs")
    if not conditional:
        monkeypatch.setattr("writer_jobs.delta.hadoop_files._IF_ABSENT", "fs.option.create.no.such.option")
    with pytest.raises(StorageError, match="already exists with different content") if conditional else nullcontext():
        HadoopFiles.of(spark).create_text(f"s3a://{bucket}/{name}", text)
    stored = client.get_object(Bucket=bucket, Key=name)["Body"].read()
    assert stored == (b"theirs" if conditional else b"ours")


@pytest.mark.s3
@pytest.mark.parametrize("store", ["s3a://{s3.root}/records", "{folder}"])
def test_a_record_is_never_overwritten(spark: SparkSession, s3: Any, tmp_path: Path, store: str) -> None:
    files, path = HadoopFiles.of(spark), f"{store.format(s3=s3, folder=tmp_path)}/new/folder/r.json"
    for _ in range(2):
        files.create_text(path, "one")
    with pytest.raises(StorageError, match="already exists with different content"):
        files.create_text(path, "another")
    assert files.read_text(path) == "one"


def test_readers_see_the_old_or_the_new_report_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    files, path = HadoopFiles.of(spark), f"{tmp_path}/new/folder/r.json"
    texts = ["one" * 10_000, "two" * 10_000]
    # Hadoop's local file system writes a checksum file, too.
    files.create_text(path, texts[0])
    read_texts, ended = Counter[str](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            read_texts[files.read_text(path) or ""] += 1

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            while len(read_texts) < len(texts) or sum(read_texts.values()) < 30:
                for text in reversed(texts):
                    files.write_text(path, text)
                assert not reading.done(), reading.result()
        finally:
            ended.set()
        reading.result()
    assert set(read_texts) == set(texts)
    assert [file.name for file in Path(path).parent.iterdir()] == ["r.json"]


def test_a_report_may_be_a_link_or_a_pipe_but_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles.of(spark)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    files.write_text(f"{tmp_path}/link", "one")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "elsewhere").read_text()) == (True, "one")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit((tmp_path / "pipe").read_text)
        files.write_text(f"{tmp_path}/pipe", "two")
        assert reading.result(30) == "two"
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"/folder: Is a directory"):
        files.write_text(f"{tmp_path}/folder", "three")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "folder", "link", "pipe"]


class KilledError(Exception):
    """Stands for the end of a process between two steps of its job."""


class WatchedOutput(JobOutput):
    """Job output that records whether the job has acquired its lock, and can end the job before a commit."""

    def __init__(self, commits: int, *, killed_before: int | None = None) -> None:
        super().__init__(commits)
        self.has_acquired = False
        self._killed_before = killed_before

    def begun(self, commit: int, begun_at: float) -> None:
        if commit == self._killed_before:
            raise KilledError
        super().begun(commit, begun_at)

    def holding(self, commit: int, token: int, acquired_at: float) -> None:
        super().holding(commit, token, acquired_at)
        self.has_acquired = True


@pytest.mark.full
def test_a_zombie_replaces_no_record_of_its_successor(
    job: RunDriver,
    spark: SparkSession,
    make_manager: Callable[..., ZookeeperLockManager],
    ensemble_client: KazooClient,
) -> None:
    run = ("--source", job.source, "--run-id", "r")

    def load_of(output: JobOutput, commits: int) -> AppendLoad:
        words = map(str, ("--table", job.table, *run, "--commits", commits))
        return AppendLoad(
            JobContext(
                program="append.py",
                arguments=parse_arguments([*words]),
                spark=spark,
                manager=make_manager(),
                output=output,
                stop=StopSignals(),
                report=lambda **_: None,
            )
        )

    output = WatchedOutput(1)
    zombie, successor = load_of(output, 1), load_of(WatchedOutput(2, killed_before=2), 2)
    log = zombie._writer.log
    read_head, paused = log.head, threading.Event()

    def read_head_and_pause(app_id: str | None = None) -> Any:
        """Read the table under the lock, lose the lock, and return after the successor's first commit."""
        head = read_head(app_id)
        if output.has_acquired and not paused.is_set():
            paused.set()
            LockZnodes(ensemble_client, job.uri).delete_contenders()
            with ThreadPoolExecutor(1) as pool, pytest.raises(KilledError):
                pool.submit(successor.run).result()
        return head

    log.head = read_head_and_pause  # type: ignore[method-assign]
    # The table contains the first of the successor's two commits, but the zombie's run has only one commit.
    with pytest.raises(RunError, match="run 'r' has 1 of 2 commits in the table already"):
        zombie.run()
    assert job.commits_of("r") == [1]
    job.refuse(2, "run 'r' has 1 of 2 commits in the table already", *run, "--commits", "1")
    assert job.commits_of("r") == [1]
    completed = job.succeed(*run, "--commits", "2")
    assert [line["already_committed"] for line in completed.commits] == [True, False]
    assert job.rows("id", "name", "amount") == SORTED_ROWS
