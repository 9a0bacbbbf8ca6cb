"""``upsert.py`` as a stream, in this process: each micro-batch once, whatever ends it, and it goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.change_commits import batches_in
from tests.support.deliveries import Killed
from writer_jobs.errors import StorageError
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.upsert import run as upsert_run

pytestmark = pytest.mark.spark

HEADER = "id,name,at,op"
DAY = 86_400
HOW = ("--keys", "id", "--sequence-by", "at", "--apply-as-deletes", "op = 'd'", "--except-columns", "op")
ONE_BY_ONE = ("--trigger", "available-now", "--max-files-per-batch", "1")


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """The folder that gets files of changes."""
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


@pytest.fixture
def put(landing: Path, csv_file: Callable[..., Path]) -> Callable[..., Path]:
    """Put a file there, so many seconds old: ``put("1.csv", rows, age=60)``."""

    def write(name: str, rows: list[Any], age: float = 0) -> Path:
        path = csv_file(f"coming/{name}", HEADER, rows)
        then = time.time() - age
        os.utime(path, (then, then))
        return path.rename(landing / name)

    return write


@pytest.fixture
def stream(run_job: Callable[..., Any], table: Path, landing: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the job on the table as a stream: ``stream("--trigger", …)``."""

    def run(*arguments: Any, how: tuple[str, ...] = HOW, source: Path = landing, table: Path = table) -> Any:
        place = ("--table", table, "--source", source, "--checkpoint", tmp_path / "checkpoint")
        return run_job("upsert", *place, *how, *arguments)

    return run


@pytest.fixture
def through_batches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have each batch pass through a function: ``through_batches(lambda go_on, txn: go_on(txn, under_lock=…))``."""

    def through(function: Callable[..., Any]) -> None:
        def apply(writer: Any, rows: Any, *, txn: Any, before_write: Any, **options: Any) -> Any:
            def go_on(mark: Any, under_lock: Callable[[], None] = lambda: None) -> Any:
                def held(hold: Any) -> None:
                    before_write(hold)
                    under_lock()

                return real(writer, rows, txn=mark, before_write=held, **options)

            return function(go_on, txn)

        monkeypatch.setattr(upsert_run, "apply_changes", apply)

    real = upsert_run.apply_changes

    return through


def sentence(done: Any) -> str:
    (said,) = [line for line in done.error.splitlines() if line.startswith("upsert.py: ")]
    return str(said)


@pytest.mark.full
def test_each_file_is_applied_once_and_what_comes_later_the_next_time(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    table: Path,
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    put("1.csv", [(1, "Ada", "2026-11-01T00:00:00Z", "c"), (2, "Bo", "2026-11-01T00:00:00Z", "c")], age=30)
    put("2.csv", [], age=20)
    put("3.csv", [(2, None, "2026-11-03T00:00:00Z", "d"), (1, "Ada!", "2026-11-02T00:00:00Z", "u")], age=10)
    report = tmp_path / "report.json"
    done = stream(*ONE_BY_ONE, "--report", report)
    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines] == [
        "begun", "holding", "commit", "begun", "commit", "begun", "holding", "commit",
    ]  # fmt: skip
    assert [(line["commit"], line["batch"], line["commits"]) for line in done.lines if line["event"] == "begun"] == [
        (1, 0, None), (2, 1, None), (3, 2, None),
    ]  # fmt: skip
    counted = [(line["changes"], line["inserted"], line["deleted"], line["version"]) for line in done.commits]
    assert counted == [(2, 2, 0, 2), (0, 0, 0, None), (2, 0, 1, 3)]
    lags = [line["lag_s"] for line in done.commits]
    assert lags[1] is None
    assert lags[0] == pytest.approx(lags[2] + 2 * DAY, abs=60)
    assert batches_in(table) == [0, 2]
    assert rows_of(table, "id", "name") == [(1, "Ada!")]
    told = json.loads(report.read_text())
    assert (told["exit_code"], [line["batch"] for line in told["commits"]]) == (0, [0, 1, 2])
    assert told["totals"] == {
        "commits": 3, "changes": 4, "folded": 4, "keys": 4, "inserted": 2, "updated": 1, "deleted": 1, "unchanged": 0,
        "dead_letters": 0, "skipped": 0, "filtered": 0, "missing_files": 0,
    }  # fmt: skip

    again = stream(*ONE_BY_ONE)
    assert (again.code, again.lines) == (0, [])

    # Spark's own default would pass over a file that is so much older than the newest.
    put("0.csv", [(3, "Cy", "2026-11-01T00:00:00Z", "c")], age=10 * DAY)
    done = stream(*ONE_BY_ONE)
    assert [(line["batch"], line["inserted"]) for line in done.commits] == [(3, 1)], done.error
    assert rows_of(table, "id", "name") == [(1, "Ada!"), (3, "Cy")]


@pytest.mark.parametrize("marked", [True, False], ids=["once", "negative control: twice without the transaction"])
def test_a_batch_whose_process_ends_behind_its_commit_is_not_applied_again(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    through_batches: Callable[..., None],
    table: Path,
    rows_of: Callable[..., Any],
    *,
    marked: bool,
) -> None:
    how = (*HOW[:-1], "op,at", "--scd-type", "2")
    alive = [False]

    def apply(go_on: Callable[..., Any], txn: tuple[str, int]) -> Any:
        done = go_on(txn if marked else None)
        if not alive[0]:
            raise Killed
        return done

    through_batches(apply)
    put("1.csv", [(1, "Ada", 1, "c"), (2, "Bo", 1, "c")], age=20)
    put("2.csv", [(1, "Eva", 2, "u"), (2, None, 3, "d")], age=10)
    with pytest.raises(Killed):
        stream(*ONE_BY_ONE, how=how)
    alive[0] = True
    done = stream(*ONE_BY_ONE, how=how)
    assert done.code == 0, done.error
    assert [line["batch"] for line in done.commits] == [0, 1]
    if marked:
        assert [line["already_committed"] for line in done.commits] == [True, False]
        assert batches_in(table) == [0, 1]
    else:
        assert batches_in(table) == [None, None, None]
    assert rows_of(table, "id", "name", "__START_AT", "__END_AT") == [
        (1, "Ada", 1, 2), (1, "Eva", 2, None), (2, "Bo", 1, 3),
    ]  # fmt: skip


def test_a_batch_has_both_lists_of_files_if_it_was_killed_between_its_list_and_its_offset(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    landing: Path,
    spark: SparkSession,
    through_batches: Callable[..., None],
    table: Path,
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    alive = [False]

    def apply(go_on: Callable[..., Any], txn: Any) -> Any:
        if not alive[0]:
            raise Killed
        return go_on(txn)

    through_batches(apply)
    put("1.csv", [(1, "Ada", 1, "c")], age=20)
    with pytest.raises(Killed):
        stream(*ONE_BY_ONE)
    alive[0] = True
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "offsets" / name).unlink()
    put("2.csv", [(2, "Bo", 1, "c")], age=10)
    # Every tenth list of files has those before, too.
    for number in range(3, 12):
        (landing / f"{number}.csv").touch()
        os.utime(landing / f"{number}.csv", (time.time() + number,) * 2)
    put("12.csv", [(12, "Cy", 1, "c")], age=-30)
    done = stream(*ONE_BY_ONE)
    assert done.code == 0, done.error
    assert [line["changes"] for line in done.commits] == [2, *[0] * 9, 1]
    assert rows_of(table, "id") == [(1,), (12,), (2,)]
    # Where the second of two lists has those before, Spark may have removed the first.
    offsets = tmp_path / "checkpoint" / "offsets" / "7"
    offsets.write_text(offsets.read_text().replace('{"logOffset":8}', '{"logOffset":9}'))
    offsets.with_name(".7.crc").unlink()
    (tmp_path / "checkpoint" / "sources" / "0" / "8").unlink()
    for name in ("9.csv", "10.csv"):
        (landing / name).write_text("id\n")
    arguments = StreamArguments("available-now", str(tmp_path / "checkpoint"))
    planned = FileBatches(spark, str(landing), arguments).files(7).sources
    assert planned is not None
    assert [Path(file.path).name for file in planned.files] == ["10.csv", "9.csv"]


def test_a_planned_file_that_is_gone_ends_the_stream_or_is_skipped_and_counted(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    table: Path,
    landing: Path,
    spark: SparkSession,
    through_batches: Callable[..., None],
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    planned = [False]

    def apply(go_on: Callable[..., Any], txn: Any) -> Any:
        if not planned[0]:
            raise Killed
        return go_on(txn)

    through_batches(apply)
    file, elsewhere = put("1 %20é+.csv", [(1, "Ada", 1, "c")], age=20), tmp_path / "elsewhere.csv"
    with pytest.raises(Killed):
        stream(*ONE_BY_ONE)
    planned[0] = True
    file.rename(elsewhere)
    done = stream(*ONE_BY_ONE)
    assert done.code == 2, done.error
    assert f"{file} does not exist" in sentence(done)
    assert "put it back, or pass --skip-missing" in sentence(done)
    assert not table.exists()
    elsewhere.rename(file)
    assert stream(*ONE_BY_ONE).code == 0
    assert rows_of(table, "id", "name") == [(1, "Ada")]
    # In the middle of a batch, and all of a batch.
    for names in (("2.csv", "3.csv"), ("4.csv",)):
        files = [put(name, [(number, "Bo", number, "c")]) for number, name in enumerate(names, start=2)]
        planned[0] = False
        with pytest.raises(Killed):
            stream("--trigger", "available-now")
        planned[0] = True
        files[0].unlink()
        job = stream("--trigger", "available-now", "--skip-missing")
        assert (job.code, [line["missing_files"] for line in job.commits]) == (0, [1]), job.error
    assert rows_of(table, "id", "name") == [(1, "Ada"), (3, "Bo")]
    # A file system that refuses does not say that a file is gone.
    files = tmp_path / "checkpoint" / "sources" / "0" / "0"
    files.write_text(files.read_text().replace("file://", "nosuch://"))
    files.with_name(".0.crc").unlink()
    for skips in (False, True):
        arguments = StreamArguments("available-now", str(tmp_path / "checkpoint"), skips)
        with pytest.raises(StorageError, match="nosuch"):
            FileBatches(spark, str(landing), arguments).files(0)


@pytest.mark.full
def test_what_a_batch_fails_with_ends_the_job_and_a_mended_file_lets_it_go_on(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    make_rival: Callable[..., Any],
    table: Path,
    rows_of: Callable[..., Any],
) -> None:
    put("1.csv", [(1, "Ada", 1, "c")], age=20)
    put("2.csv", [(2, "Bo", None, "c")], age=10)
    done = stream(*ONE_BY_ONE)
    assert done.code == 5, done.error
    assert "no sequence (null or NaN); keys: id=2" in sentence(done)
    assert sentence(done).endswith("(commit 1 is in the table)")
    put("2.csv", [(2, "Bo", "soon", "c")])
    assert stream(*ONE_BY_ONE).code == 5
    put("2.csv", [(2, "Bo", 2, "c")])
    with make_rival().acquire(table):
        done = stream(*ONE_BY_ONE, "--lock-timeout", "0")
        assert done.code == 3, done.error
    assert "not acquired" in sentence(done), done.error
    done = stream(*ONE_BY_ONE)
    assert [(line["batch"], line["inserted"]) for line in done.commits] == [(1, 1)], done.error
    assert rows_of(table, "id", "name") == [(1, "Ada"), (2, "Bo")]


def test_a_signal_lets_a_batch_with_its_lock_come_to_its_end_and_one_that_waits_give_up(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    through_batches: Callable[..., None],
    make_rival: Callable[..., Any],
    table: Path,
    rows_of: Callable[..., Any],
) -> None:
    def apply(go_on: Callable[..., Any], txn: tuple[str, int]) -> Any:
        if where == "begun":
            os.kill(os.getpid(), signal.SIGTERM)
        return go_on(txn, lambda: os.kill(os.getpid(), signal.SIGINT) if where == "holding" else None)

    through_batches(apply)
    put("1.csv", [(1, "Ada", 1, "c")], age=20)
    put("2.csv", [(2, "Bo", 1, "c")], age=10)
    for_hours = ("--trigger", "1 hour", "--max-files-per-batch", "1")
    where = "begun"
    with make_rival().acquire(table):
        done = stream(*for_hours)
    assert (done.code, sentence(done)) == (143, "upsert.py: stopped by SIGTERM")
    assert [line["event"] for line in done.lines] == ["begun"]
    where = "holding"
    done = stream(*for_hours)
    assert (done.code, sentence(done)) == (130, "upsert.py: stopped by SIGINT (commit 1 is in the table)")
    assert [line["batch"] for line in done.commits] == [0]
    # That it is done was noted, too.
    where = "nowhere"
    done = stream(*ONE_BY_ONE)
    assert [line["batch"] for line in done.commits] == [1], done.error
    assert rows_of(table, "id", "name") == [(1, "Ada"), (2, "Bo")]


def test_a_checkpoint_of_another_query_is_refused(
    stream: Callable[..., Any], put: Callable[..., Path], landing: Path, table: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for arguments, says in [
        (("--format", "csv", "--run-id", "monday"), "not both"),
        (("--format", "csv", "--source", others), "one folder"),
        (("--format", "csv", "--checkpoint", table / "notes"), "in the folder of the table"),
        (("--format", "csv", "--checkpoint", f"{table}_late/notes"), "in the folder of the table"),
    ]:
        done = stream(*ONE_BY_ONE, *arguments)
        assert (done.code, says in sentence(done)) == (2, True), done.error
    file = put("1.csv", [(1, "Ada", 1, "c")])
    assert stream(*ONE_BY_ONE, source=file).code == 2
    assert stream(*ONE_BY_ONE).code == 0
    file.unlink()
    assert stream(*ONE_BY_ONE).code == 0
    elsewhere = tmp_path / "elsewhere"
    other_keys = ("--keys", "id,name", *HOW[2:])
    for changed, says in [
        ({"how": other_keys}, "keys id, not id,name"),
        ({"source": others}, f"source file:{landing}, not file:{others}"),
        ({"table": elsewhere}, f"table file:{table}, not file:{elsewhere}"),
    ]:
        done = stream(*ONE_BY_ONE, "--format", "csv", **changed)
        assert (done.code, says in sentence(done)) == (2, True), done.error
    assert not elsewhere.exists()
    (tmp_path / "checkpoint" / "_sluice" / "query.json").unlink()
    done = stream(*ONE_BY_ONE)
    assert (done.code, "another program" in sentence(done)) == (2, True), done.error


def test_a_column_comes_with_the_first_file_that_has_it(
    stream: Callable[..., Any], landing: Path, rows_of: Callable[..., Any], table: Path
) -> None:
    def put_json(name: str, age: float, row: dict[str, Any]) -> Path:
        file = landing / name
        file.write_text(json.dumps(row) + "\n")
        os.utime(file, (time.time() - age, time.time() - age))
        return file

    how = ("--keys", "id", "--sequence-by", "at", "--schema-evolution")
    put_json("a b.json", 30, {"id": 1, "at": 1})
    put_json("2.json", 20, {"id": 2, "at": 1, "name": "Bo"})
    (landing / "empty.json").write_text("")
    done = stream(*ONE_BY_ONE, how=how)
    assert done.code == 0, done.error
    assert rows_of(table, "id", "name") == [(1, None), (2, "Bo")]
    assert [line["changes"] for line in done.commits] == [1, 1, 0]
