"""``upsert.py`` as a stream, in this process: each micro-batch is applied once, and a restarted stream resumes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.change_commits import batches_in
from tests.support.deliveries import Killed, kill_process
from tests.support.error_line import error_line
from tests.support.metrics_text import values_of
from writer_jobs.errors import StorageError
from writer_jobs.job import upsert as upsert_run
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.stream_arguments import StreamArguments

pytestmark = pytest.mark.spark

HEADER = "id,name,at,op"
DAY = 86_400
OPTIONS = ("--keys", "id", "--sequence-by", "at", "--apply-as-deletes", "op = 'd'", "--except-columns", "op")
AVAILABLE_NOW = ("--trigger", "available-now")
ONE_FILE = (*AVAILABLE_NOW, "--max-files-per-batch", "1")


@dataclass
class UpsertStream:
    """The job as a stream of the files in one folder."""

    run_job: Callable[..., Any]
    csv_file: Callable[..., Path]
    rows_of: Callable[..., Any]
    spark: SparkSession
    table: Path
    landing: Path
    checkpoint: Path

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return list(self.rows_of(self.table, *columns))

    def put(self, name: str, rows: list[Any], age: float = 0) -> Path:
        """Put a file of rows into the folder. ``age`` is its age in seconds."""
        path = self.csv_file(f"coming/{name}", HEADER, rows)
        os.utime(path, (time.time() - age,) * 2)
        return path.rename(self.landing / name)

    def put_json(self, name: str, row: dict[str, Any], age: float) -> None:
        path = self.landing / name
        path.write_text(json.dumps(row) + "\n")
        os.utime(path, (time.time() - age,) * 2)

    def run(self, *arguments: Any, options: tuple[str, ...] = OPTIONS, source: Path | None = None) -> Any:
        paths = ("--table", self.table, "--source", source or self.landing, "--checkpoint", self.checkpoint)
        return self.run_job("upsert", *paths, *options, *arguments)

    def run_killed(self, *arguments: Any) -> None:
        """Run the job, and simulate a kill after Spark has planned a batch and before the batch is applied."""
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(upsert_run, "apply_changes", kill_process)
            self.run(*arguments)

    def planned_files(self, batch: int, *, skip_missing: bool = False) -> Any:
        """Return the files of a batch, as the checkpoint lists them."""
        arguments = StreamArguments("available-now", str(self.checkpoint), skip_missing)
        return FileBatches(self.spark, str(self.landing), arguments).files(batch)[0]


@pytest.fixture
def stream(
    run_job: Callable[..., Any],
    csv_file: Callable[..., Path],
    rows_of: Callable[..., Any],
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
) -> UpsertStream:
    landing, checkpoint = tmp_path / "landing", tmp_path / "checkpoint"
    landing.mkdir()
    return UpsertStream(run_job, csv_file, rows_of, spark, table, landing, checkpoint)


@pytest.mark.full
def test_each_file_is_applied_once_and_new_files_next_time(stream: UpsertStream, tmp_path: Path) -> None:
    stream.put("1.csv", [(1, "Ada", "2026-11-01T00:00:00Z", "c"), (2, "Bo", "2026-11-01T00:00:00Z", "c")], age=30)
    stream.put("2.csv", [], age=20)
    stream.put("3.csv", [(2, None, "2026-11-03T00:00:00Z", "d"), (1, "Ada!", "2026-11-02T00:00:00Z", "u")], age=10)
    report_file, metrics_file = tmp_path / "report.json", tmp_path / "job.prom"
    outcome = stream.run(*ONE_FILE, "--report", report_file, "--metrics", metrics_file)
    assert (outcome.code, outcome.error) == (0, "")
    (newest,) = values_of(metrics_file.read_text(), "sluice_feed_newest_timestamp_seconds", trigger="available-now")
    assert newest == datetime(2026, 11, 3, tzinfo=UTC).timestamp()
    assert [line["event"] for line in outcome.lines] == [
        "begun", "holding", "commit", "begun", "commit", "begun", "holding", "commit",
    ]  # fmt: skip
    begun_events = [line for line in outcome.lines if line["event"] == "begun"]
    assert [(line["commit"], line["batch"], line["commits"]) for line in begun_events] == [
        (1, 0, None), (2, 1, None), (3, 2, None),
    ]  # fmt: skip
    counts = [(line["changes"], line["inserted"], line["deleted"], line["version"]) for line in outcome.commits]
    assert counts == [(2, 2, 0, 2), (0, 0, 0, None), (2, 0, 1, 3)]
    lags = [line["lag_s"] for line in outcome.commits]
    assert lags[1] is None
    assert lags[0] == pytest.approx(lags[2] + 2 * DAY, abs=60)
    assert batches_in(stream.table) == [0, 2]
    assert stream.rows("id", "name") == [(1, "Ada!")]
    report = json.loads(report_file.read_text())
    assert (report["exit_code"], [line["batch"] for line in report["commits"]]) == (0, [0, 1, 2])
    assert report["totals"] == {
        "commits": 3, "changes": 4, "folded": 4, "keys": 4, "inserted": 2, "updated": 1, "deleted": 1, "unchanged": 0,
        "dead_letters": 0, "skipped": 0, "filtered": 0, "missing_files": 0, "incomplete": 0,
    }  # fmt: skip
    outcome = stream.run(*ONE_FILE)
    assert (outcome.code, outcome.lines) == (0, [])
    # By default, Spark skips a file that is ten days older than the newest one.
    stream.put("0.csv", [(3, "Cy", "2026-11-01T00:00:00Z", "c")], age=10 * DAY)
    outcome = stream.run(*ONE_FILE)
    assert [(line["batch"], line["inserted"]) for line in outcome.commits] == [(3, 1)], outcome.error
    assert stream.rows("id", "name") == [(1, "Ada!"), (3, "Cy")]


@pytest.mark.parametrize("has_txn", [True, False], ids=["transaction", "negative control: no transaction"])
def test_a_batch_killed_after_its_commit_is_not_applied_again(
    stream: UpsertStream, monkeypatch: pytest.MonkeyPatch, *, has_txn: bool
) -> None:
    options = (*OPTIONS[:-1], "op,at", "--scd-type", "2")
    apply_changes = upsert_run.apply_changes

    def apply(*args: Any, txn: tuple[str, int], **keywords: Any) -> Any:
        return apply_changes(*args, txn=txn if has_txn else None, **keywords)

    def apply_and_end(*args: Any, **keywords: Any) -> None:
        apply(*args, **keywords)
        raise Killed

    stream.put("1.csv", [(1, "Ada", 1, "c"), (2, "Bo", 1, "c")], age=20)
    stream.put("2.csv", [(1, "Eva", 2, "u"), (2, None, 3, "d")], age=10)
    monkeypatch.setattr(upsert_run, "apply_changes", apply_and_end)
    with pytest.raises(Killed):
        stream.run(*ONE_FILE, options=options)
    monkeypatch.setattr(upsert_run, "apply_changes", apply)
    outcome = stream.run(*ONE_FILE, options=options)
    assert outcome.code == 0, outcome.error
    assert [line["batch"] for line in outcome.commits] == [0, 1]
    if has_txn:
        assert [line["already_committed"] for line in outcome.commits] == [True, False]
        assert batches_in(stream.table) == [0, 1]
    else:
        assert batches_in(stream.table) == [None, None, None]
    assert stream.rows("id", "name", "__START_AT", "__END_AT") == [
        (1, "Ada", 1, 2), (1, "Eva", 2, None), (2, "Bo", 1, 3),
    ]  # fmt: skip


@pytest.mark.full
def test_a_batch_killed_before_its_offset_gets_both_file_lists(stream: UpsertStream) -> None:
    stream.put("1.csv", [(1, "Ada", 1, "c")], age=20)
    stream.run_killed(*ONE_FILE)
    for name in ("0", ".0.crc"):
        (stream.checkpoint / "offsets" / name).unlink()
    stream.put("2.csv", [(2, "Bo", 1, "c")], age=10)
    # Every tenth list contains the files of the lists before it.
    for number in range(3, 12):
        (stream.landing / f"{number}.csv").touch()
        os.utime(stream.landing / f"{number}.csv", (time.time() + number,) * 2)
    stream.put("12.csv", [(12, "Cy", 1, "c")], age=-30)
    outcome = stream.run(*ONE_FILE)
    assert outcome.code == 0, outcome.error
    assert [line["changes"] for line in outcome.commits] == [2, *[0] * 9, 1]
    assert stream.rows("id") == [(1,), (12,), (2,)]
    # Spark may have removed the first of two lists if the second one contains its files.
    offsets = stream.checkpoint / "offsets" / "7"
    offsets.write_text(offsets.read_text().replace('{"logOffset":8}', '{"logOffset":9}'))
    offsets.with_name(".7.crc").unlink()
    (stream.checkpoint / "sources" / "0" / "8").unlink()
    for name in ("9.csv", "10.csv"):
        (stream.landing / name).write_text("id\n")
    planned_batch = stream.planned_files(7)
    assert planned_batch is not None
    assert [Path(file.path).name for file in planned_batch.files] == ["10.csv", "9.csv"]


@pytest.mark.full
def test_a_missing_planned_file_is_an_error_or_is_skipped(stream: UpsertStream, tmp_path: Path) -> None:
    file, moved_file = stream.put("1 %20é+.csv", [(1, "Ada", 1, "c")], age=20), tmp_path / "elsewhere.csv"
    stream.run_killed(*ONE_FILE)
    file.rename(moved_file)
    outcome = stream.run(*ONE_FILE)
    assert outcome.code == 2, outcome.error
    assert f"{file} was deleted before micro-batch 0" in error_line(outcome)
    assert "put it back, or pass --skip-missing" in error_line(outcome)
    assert not stream.table.exists()
    moved_file.rename(file)
    assert stream.run(*ONE_FILE).code == 0
    assert stream.rows("id", "name") == [(1, "Ada")]
    # First, one of two files of a batch is missing; then the only file of a batch.
    for names in (("2.csv", "3.csv"), ("4.csv",)):
        files = [stream.put(name, [(number, "Bo", number, "c")]) for number, name in enumerate(names, start=2)]
        stream.run_killed(*AVAILABLE_NOW)
        files[0].unlink()
        outcome = stream.run(*AVAILABLE_NOW, "--skip-missing")
        assert (outcome.code, [line["missing_files"] for line in outcome.commits]) == (0, [1]), outcome.error
    assert stream.rows("id", "name") == [(1, "Ada"), (3, "Bo")]
    # An error of the file system does not prove that a file is missing.
    file_list = stream.checkpoint / "sources" / "0" / "0"
    file_list.write_text(file_list.read_text().replace("file://", "nosuch://"))
    file_list.with_name(".0.crc").unlink()
    for skip_missing in (False, True):
        with pytest.raises(StorageError, match="nosuch"):
            stream.planned_files(0, skip_missing=skip_missing)


@pytest.mark.full
def test_a_failed_batch_ends_the_job_until_its_file_is_fixed(
    stream: UpsertStream, make_rival: Callable[..., Any]
) -> None:
    stream.put("1.csv", [(1, "Ada", 1, "c")], age=20)
    stream.put("2.csv", [(2, "Bo", None, "c")], age=10)
    outcome = stream.run(*ONE_FILE)
    assert outcome.code == 5, outcome.error
    assert "no sequence (null or NaN); keys: id=2" in error_line(outcome)
    assert error_line(outcome).endswith("(commit 1 is in the table)")
    stream.put("2.csv", [(2, "Bo", "soon", "c")])
    assert stream.run(*ONE_FILE).code == 5
    stream.put("2.csv", [(2, "Bo", 2, "c")])
    with make_rival().acquire(stream.table):
        outcome = stream.run(*ONE_FILE, "--lock-timeout", "0")
        assert outcome.code == 3, outcome.error
    assert "not acquired" in error_line(outcome), outcome.error
    outcome = stream.run(*ONE_FILE)
    assert [(line["batch"], line["inserted"]) for line in outcome.commits] == [(1, 1)], outcome.error
    assert stream.rows("id", "name") == [(1, "Ada"), (2, "Bo")]


@pytest.mark.full
def test_a_signal_ends_a_wait_but_not_a_batch_with_its_lock(
    stream: UpsertStream, make_rival: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_changes = upsert_run.apply_changes

    def apply_after_sigterm(*args: Any, **keywords: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return apply_changes(*args, **keywords)

    def apply_with_sigint_under_the_lock(*args: Any, before_write: Callable[[Any], None], **keywords: Any) -> Any:
        def send_sigint(hold: Any) -> None:
            before_write(hold)
            os.kill(os.getpid(), signal.SIGINT)

        return apply_changes(*args, before_write=send_sigint, **keywords)

    stream.put("1.csv", [(1, "Ada", 1, "c")], age=20)
    stream.put("2.csv", [(2, "Bo", 1, "c")], age=10)
    hourly_options = ("--trigger", "1 hour", "--max-files-per-batch", "1")
    monkeypatch.setattr(upsert_run, "apply_changes", apply_after_sigterm)
    with make_rival().acquire(stream.table):
        outcome = stream.run(*hourly_options)
    assert (outcome.code, error_line(outcome)) == (143, "upsert.py: stopped by SIGTERM")
    assert [line["event"] for line in outcome.lines] == ["begun"]
    monkeypatch.setattr(upsert_run, "apply_changes", apply_with_sigint_under_the_lock)
    outcome = stream.run(*hourly_options)
    assert (outcome.code, error_line(outcome)) == (130, "upsert.py: stopped by SIGINT (commit 1 is in the table)")
    assert [line["batch"] for line in outcome.commits] == [0]
    # The checkpoint contains the end of the first batch.
    monkeypatch.setattr(upsert_run, "apply_changes", apply_changes)
    outcome = stream.run(*ONE_FILE)
    assert [line["batch"] for line in outcome.commits] == [1], outcome.error
    assert stream.rows("id", "name") == [(1, "Ada"), (2, "Bo")]


@pytest.mark.full
def test_a_checkpoint_of_another_query_is_refused(stream: UpsertStream, tmp_path: Path) -> None:
    second_folder, second_table = tmp_path / "others", tmp_path / "elsewhere"
    second_folder.mkdir()
    for arguments, message in [
        (("--run-id", "monday"), "not both"),
        (("--source", second_folder), "a folder, or a glob in quotes"),
        (("--checkpoint", stream.table / "notes"), "in the folder of the table"),
        (("--checkpoint", f"{stream.table}_late/notes"), "in the folder of the table"),
    ]:
        outcome = stream.run(*ONE_FILE, "--format", "csv", *arguments)
        assert (outcome.code, message in error_line(outcome)) == (2, True), outcome.error
    file = stream.put("1.csv", [(1, "Ada", 1, "c")])
    assert stream.run(*ONE_FILE, source=file).code == 2
    assert stream.run(*ONE_FILE).code == 0
    file.unlink()
    assert stream.run(*ONE_FILE).code == 0
    for options, source, table, message in [
        (("--keys", "id,name", *OPTIONS[2:]), stream.landing, stream.table, "keys is 'id', not 'id,name'"),
        (OPTIONS, second_folder, stream.table, f"source is 'file:{stream.landing}', not 'file:{second_folder}'"),
        (OPTIONS, stream.landing, second_table, f"table is 'file:{stream.table}', not 'file:{second_table}'"),
    ]:
        outcome = stream.run(*ONE_FILE, "--format", "csv", "--table", table, options=options, source=source)
        assert (outcome.code, message in error_line(outcome)) == (2, True), outcome.error
    assert not second_table.exists()
    (stream.checkpoint / "_sluice" / "query.json").unlink()
    outcome = stream.run(*ONE_FILE)
    assert (outcome.code, "another program" in error_line(outcome)) == (2, True), outcome.error


@pytest.mark.full
def test_the_first_file_with_a_new_column_adds_it(stream: UpsertStream) -> None:
    stream.put_json("a b.json", {"id": 1, "at": 1}, age=30)
    stream.put_json("2.json", {"id": 2, "at": 1, "name": "Bo"}, age=20)
    (stream.landing / "empty.json").write_text("")
    outcome = stream.run(*ONE_FILE, options=("--keys", "id", "--sequence-by", "at", "--schema-evolution"))
    assert outcome.code == 0, outcome.error
    assert stream.rows("id", "name") == [(1, None), (2, "Bo")]
    assert [line["changes"] for line in outcome.commits] == [1, 1, 0]
