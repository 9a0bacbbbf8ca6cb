"""Runs of the append job: how they are recorded, completed, and kept apart."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import LockSettings, TableResource, ZookeeperLockManager
from lock_manager.zookeeper.znodes import table_node
from tests.support.append_rows import EMPTY, HEADER, ROWS
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.append import main
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import RunError, StorageError
from writer_jobs.job.append.arguments import parse_arguments
from writer_jobs.job.append.load import AppendLoad
from writer_jobs.job.output import JobOutput

pytestmark = pytest.mark.spark

RUN, FOLDER = "a/b c", "a%2Fb%20c"


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


@pytest.fixture(scope="module", autouse=True)
def quick_hashes() -> Iterator[None]:
    """Hash the readers' options in no time: these tests have some hundred hashed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("writer_jobs.job.append.runs._HASH_ITERATIONS", 10)
        yield


@dataclass(frozen=True)
class WholeRun:
    """A table with both commits of run ``a/b c``, the versions 1 and 2, and by which arguments they were made."""

    table: Path
    source: Path

    @property
    def arguments(self) -> tuple[str | Path, ...]:
        return ("--table", self.table, "--source", self.source, "--run-id", RUN, "--commits", "2")

    def lose_second_commit(self) -> None:
        """Leave the table as if the job had been killed after its first commit."""
        for path in self.table.glob(f"_delta_log/*{2:020d}*"):
            path.unlink()


@pytest.fixture(scope="module")
def original_run(
    spark: SparkSession, zookeeper: Any, original: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> WholeRun:
    """Made once; the source's path and time are in its record."""
    folder = tmp_path_factory.mktemp("run")
    made = WholeRun(Path(shutil.copytree(original(EMPTY), folder / "table")), folder / "source.csv")
    made.source.write_text("\n".join([HEADER, *(",".join(map(str, row)) for row in ROWS)]) + "\n", encoding="utf-8")
    assert main(["--zookeeper", zookeeper.hosts, *map(str, made.arguments)]) == 0
    return made


@pytest.fixture
def whole(original_run: WholeRun, tmp_path: Path) -> Iterator[WholeRun]:
    """The test's own copy of that table, and the source that they share."""
    source = original_run.source
    text, times = source.read_bytes(), source.stat()
    yield WholeRun(Path(shutil.copytree(original_run.table, tmp_path / "whole")), source)
    source.write_bytes(text)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.full
def test_a_run_that_is_started_again_does_nothing_and_says_so(
    append: Callable[..., Any],
    whole: WholeRun,
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
) -> None:
    again, table = append(*whole.arguments), whole.table
    assert (again.code, again.error) == (0, "")
    assert [(line["event"], line["commit"], line["already_committed"]) for line in again.lines] == [
        ("commit", number, True) for number in (1, 2)
    ]
    assert [(line["version"], line["rows"]) for line in again.commits] == [(1, None), (2, None)]
    assert run_commits(table, RUN) == [1, 2]
    assert len(versions(table)) == 3
    assert [digest for digest, _ in records(table, FOLDER)] == noted_records(table)[:1]
    assert len(set(noted_records(table))) == 1
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)


def test_the_first_commit_of_a_run_is_written_before_its_lock(
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    table = copy_of("create table {t} (id int) using delta")
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(f"file:{table}"):
            source = csv_file("s.csv", "id", [(1,)])
            running = pool.submit(append, "--table", table, "--source", source, "--run-id", "early")
            eventually(lambda: len(manager.queue(f"file:{table}")) == 2, what="the job in the queue")
            staged = list(table.glob("*.parquet"))
        outcome = running.result()
    assert (outcome.code, outcome.error, len(staged)) == (0, "", 1)
    assert outcome.commits[0]["version"] == 1


@pytest.mark.full
def test_a_run_that_locks_partitions_is_begun_under_the_lock_on_the_table(
    append: Callable[..., Any], csv_file: Callable[..., Path], copy_of: Callable[..., Path]
) -> None:
    columns, table = "id,y", copy_of("create table {t} (id int, y int) using delta partitioned by (y)")
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
    whole: WholeRun,
    csv_file: Callable[..., Path],
    versions: Callable[[Path], list[str]],
) -> None:
    more = csv_file("more.csv", HEADER, [(99, "more", 1.0)])
    changes = {
        "the number of commits changed": ("--commits", "3"),
        "the reader option sep changed": ("--option", "sep=;"),
        "the source files changed": ("--source", more),
    }
    for said, change in changes.items():
        refused = append(*whole.arguments, *change)
        assert refused.code == 2
        assert "run 'a/b c' has 2 of 2 commits in the table already" in refused.error
        assert said in refused.error
    # The same file, rewritten.
    whole.source.write_text(whole.source.read_text().replace("name 1,", "other,"))
    refused = append(*whole.arguments)
    assert refused.code == 2
    assert "the source files changed" in refused.error
    assert len(versions(whole.table)) == 3


@pytest.mark.full
def test_a_run_without_a_commit_may_still_change(
    append: Callable[..., Any], table: Path, csv_file: Callable[..., Path], rows_of: Callable[..., Any]
) -> None:
    # The first attempts fail under the lock, after the run was recorded; the second one finds the record that it needs.
    source = csv_file("source.csv", "id,name", [(1, "x"), (2,)])
    arguments = ("--table", table, "--source", source, "--run-id", "r", "--hold", "write")
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


@pytest.mark.full
def test_a_record_that_was_torn_before_the_first_commit_is_in_nobodys_way(
    append: Callable[..., Any], whole: WholeRun, source: Path, table: Path
) -> None:
    arguments = ("--table", table, "--source", source, "--run-id", "r")
    # Attempts that failed under the lock left them. One that Hadoop's checksum of local files tells, and what a store
    # without one may leave.
    folder = table / "_sluice" / "runs" / "r"
    shutil.copytree(whole.table / "_sluice" / "runs" / FOLDER, folder)
    ((digest, text),) = records(table, "r")
    assert (folder / f".{digest}.json.crc").exists()
    for path in (folder / f"{digest}.json", folder / f"{'0' * 64}.json", folder.with_suffix(".json")):
        path.write_text(text[:-9])
    done = [append(*arguments) for _ in range(2)]
    assert [(each.code, each.error) for each in done] == [(0, "")] * 2
    assert run_commits(table, "r") == [1]
    assert len(records(table, "r")) == 3


def test_a_run_is_not_completed_without_the_very_record_of_its_commits(
    append: Callable[..., Any], whole: WholeRun, versions: Callable[[Path], list[str]]
) -> None:
    ((digest, text),) = records(whole.table, FOLDER)
    path = whole.table / "_sluice" / "runs" / FOLDER / f"{digest}.json"

    def change() -> None:
        # Else the checksum that Hadoop keeps beside a local file would tell.
        (path.parent / f".{path.name}.crc").unlink()
        path.write_text(text.replace('"number of commits": 2', '"number of commits": 3'))

    for harm in (path.unlink, lambda: path.write_text(text[:-5]), change):
        harm()
        refused = append(*whole.arguments)
        assert refused.code == 2
        assert "the record by which they were made is missing or damaged" in refused.error
        assert f"restore file:{path}, or choose another run id" in refused.error
    assert len(versions(whole.table)) == 3
    # The control: with the record as it was there is nothing to refuse.
    path.write_text(text)
    assert append(*whole.arguments).code == 0


def as_an_earlier_release_left_it(table: Path, options: dict[str, str]) -> str:
    """Give a run's one record and its one commit the form that they had, and return the record's name."""
    ((digest, text),) = records(table, FOLDER)
    record = json.loads(text)
    record["basis"]["reader options"] = options
    folder = table / "_sluice" / "runs" / FOLDER
    for path in folder.iterdir():
        path.unlink()
    earlier = folder.with_suffix(".json")
    earlier.write_text(json.dumps({**record, "format": 1, "written_at": 1.5}, indent=1))
    commit = table / "_delta_log" / f"{1:020d}.json"
    note = f',\\"basis\\":\\"{digest}\\"'
    assert note in commit.read_text()
    commit.write_text(commit.read_text().replace(note, ""))
    return earlier.name


@pytest.mark.full
def test_a_run_of_an_earlier_release_is_completed_by_its_record(
    append: Callable[..., Any],
    whole: WholeRun,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    table, arguments = whole.table, whole.arguments
    whole.lose_second_commit()
    sql_elsewhere(f"alter table delta.`{table}` add column later string")
    defaults = {"enforceschema": "false", "header": "true", "mode": "FAILFAST"}
    defaults |= {"escape": '"', "unescapedquotehandling": "RAISE_ERROR"}
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


def test_a_run_whose_commits_were_cleaned_up_has_its_only_record(append: Callable[..., Any], whole: WholeRun) -> None:
    table, arguments = whole.table, whole.arguments
    other_engine = DeltaTable(table)
    other_engine.alter.add_columns([Field("later", PrimitiveType("string"))])
    other_engine.create_checkpoint()
    for version in range(3):
        for path in table.glob(f"_delta_log/*{version:020d}*"):
            path.unlink()
    done = append(*arguments)
    assert (done.code, [line["already_committed"] for line in done.commits]) == (0, [True, True])
    # Of two it cannot be known which one it was.
    ((_, text),) = records(table, FOLDER)
    other = json.dumps(json.loads(text))
    (table / "_sluice" / "runs" / FOLDER / f"{hashlib.sha256(other.encode()).hexdigest()}.json").write_text(other)
    refused = append(*arguments)
    assert refused.code == 2
    assert "run 'a/b c' was begun more than once" in refused.error


@pytest.mark.full
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


def test_a_name_that_another_application_used_for_its_transactions_is_refused(
    append: Callable[..., Any],
    source: Path,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    existing: Path,
) -> None:
    table = existing
    rows = spark.sql("select 1 as id, 'x' as name, 1.0D as amount")
    writing = rows.coalesce(1).write.format("delta").mode("append").option("txnAppId", "stream").option("txnVersion", 3)
    with locked(spark, str(table), manager=manager):
        writing.save(str(table))
    refused = append("--table", table, "--source", source, "--run-id", "stream")
    assert refused.code == 2
    assert "choose another run id" in refused.error


def test_a_run_is_completed_by_the_recorded_schema_when_the_table_has_changed_since(
    append: Callable[..., Any],
    whole: WholeRun,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    table = whole.table
    lost = json.loads((table / "_delta_log" / f"{2:020d}.json").read_text().splitlines()[0])["commitInfo"]
    whole.lose_second_commit()
    sql_elsewhere(f"alter table delta.`{table}` add column later string")
    rest = append(*whole.arguments)

    assert (rest.code, rest.error) == (0, "")
    assert [line["already_committed"] for line in rest.commits] == [True, False]
    assert str(rest.commits[1]["rows"]) == lost["operationMetrics"]["numOutputRows"]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)


def test_a_run_that_the_table_may_have_forgotten_is_not_done_again(
    append: Callable[..., Any],
    whole: WholeRun,
    sql_elsewhere: Callable[[str], None],
    rows_of: Callable[..., Any],
) -> None:
    retention = "('delta.setTransactionRetentionDuration' = 'interval 0 seconds')"
    sql_elsewhere(f"alter table delta.`{whole.table}` set tblproperties {retention}")
    refused = append(*whole.arguments)
    assert refused.code == 2
    assert "the table forgets transactions" in refused.error
    assert len(rows_of(whole.table)) == len(ROWS)


@pytest.mark.full
def test_two_processes_with_one_run_id_make_one_run(
    zookeeper: Any, source: Path, table: Path, tmp_path: Path, rows_of: Callable[..., Any]
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


@pytest.mark.full
def test_vacuum_and_readers_pass_over_the_record(
    whole: WholeRun,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    rows_of: Callable[..., Any],
) -> None:
    table, before = whole.table, records(whole.table, FOLDER)
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
    assert before
    assert records(table, FOLDER) == before
    assert len(rows_of(table)) == len(ROWS)


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


def test_whoever_reads_a_report_while_it_is_replaced_has_all_of_the_old_or_of_the_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, path = HadoopFiles.of(spark), f"{tmp_path}/new/folder/r.json"
    texts = ["one" * 10_000, "two" * 10_000]
    # Hadoop's local file system keeps a checksum in another file.
    files.create_text(path, texts[0])
    seen, is_over = Counter[str](), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen[files.read_text(path) or ""] += 1

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            while len(seen) < len(texts) or sum(seen.values()) < 30:
                for text in reversed(texts):
                    files.write_text(path, text)
                assert not reading.done(), reading.result()
        finally:
            is_over.set()
        reading.result()
    assert set(seen) == set(texts)
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
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "folder", "link", "pipe"]


class KilledError(Exception):
    """Stands for the end of a process between two steps of its job."""


class Watched(JobOutput):
    """A job's output that tells where the job is, and can end it before a commit."""

    def __init__(self, commits: int, *, killed_before: int | None = None) -> None:
        super().__init__(commits)
        self.holds = self.slept = False
        self._killed_before = killed_before

    def begun(self, commit: int, begun_at: float) -> None:
        if commit == self._killed_before:
            raise KilledError
        super().begun(commit, begun_at)

    def holding(self, commit: int, token: int, acquired_at: float) -> None:
        super().holding(commit, token, acquired_at)
        self.holds = True


def load_by(writer: LockedDeltaWriter, spark: SparkSession, output: JobOutput, *arguments: object) -> AppendLoad:
    asked = parse_arguments(["--table", writer.table, *map(str, arguments)])
    return AppendLoad(spark, writer, asked, output, lambda _: nullcontext())


@pytest.mark.full
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
    output = Watched(1)
    zombie = load_by(writers[0], spark, output, *run, "--commits", 1)
    successor = load_by(writers[1], spark, Watched(2, killed_before=2), *run, "--commits", 2)
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
    # The table's first commit is one of two, so the zombie's split does not fit it, and the successor's does.
    with pytest.raises(RunError, match="run 'r' has 1 of 2 commits in the table already"):
        zombie.run()
    assert run_commits(table, "r") == [1]
    refused = append("--table", table, *run, "--commits", "1")
    assert (refused.code, run_commits(table, "r")) == (2, [1])
    assert "run 'r' has 1 of 2 commits in the table already" in refused.error
    done = append("--table", table, *run, "--commits", "2")
    assert (done.code, done.error) == (0, "")
    assert [line["already_committed"] for line in done.commits] == [True, False]
    assert rows_of(table, "id", "name", "amount") == sorted(ROWS, key=repr)
