"""``upsert.py`` in this process: files of changes, counts, exit codes, and what bad input leaves behind: nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from writer_jobs.job.inputs.source_files import SourceFiles

pytestmark = pytest.mark.spark

HEADER = "country,id,name,updated_at,op"
FIRST = [("no", 1, "Ada", 1, "c"), ("no", 2, "Bo", 1, "c"), ("se", 1, "Cy", 1, "c")]
SECOND = [("no", 1, "Ada!", 3, "u"), ("no", 1, "Ada?", 2, "u"), ("no", 2, None, 2, "d"), ("se", 2, "Di", 2, "c")]
HOW = (
    "--keys",
    "country,id",
    "--sequence-by",
    "updated_at",
    "--apply-as-deletes",
    "op = 'd'",
    "--except-columns",
    "op",
)


def sentence(done: Any) -> str:
    """Return the one sentence that the job says of its failure; in this process PySpark logs beside it."""
    (said,) = [line for line in done.error.splitlines() if line.startswith("upsert.py: ")]
    return str(said)


@pytest.fixture
def upsert(run_job: Callable[..., Any], table: Path) -> Callable[..., Any]:
    """Run the job on the table: ``upsert(file, …)``."""

    def run(*arguments: Any, how: tuple[str, ...] = HOW) -> Any:
        return run_job("upsert", "--table", table, *how, "--source", *arguments)

    return run


@pytest.mark.full
def test_files_of_changes_make_the_table_and_keep_it_up_to_date(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    done = upsert(csv_file("1.csv", HEADER, FIRST), "--partition-by", "country", "--report", report)
    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines] == ["begun", "holding", "commit"]
    told = json.loads(report.read_text())
    assert (told["exit_code"], told["commits"][0]["inserted"], told["commits"][0]["newest_sequence"]) == (0, 3, 1)
    done = upsert(csv_file("2.csv", HEADER, SECOND))
    assert (done.code, done.error) == (0, "")
    counts = {"changes": 4, "folded": 3, "inserted": 1, "updated": 1, "deleted": 1, "unchanged": 0}
    assert {name: done.lines[-1][name] for name in counts} == counts
    after = [("no", 1, "Ada!", 3), ("se", 1, "Cy", 1), ("se", 2, "Di", 2)]
    assert rows_of(table, "country", "id", "name", "updated_at") == after
    # All of it again, the late ones last.
    done = upsert(csv_file("3.csv", HEADER, [*SECOND, *FIRST]))
    assert (done.code, done.lines[-1]["unchanged"]) == (0, 4)
    assert rows_of(table, "country", "id", "name", "updated_at") == after


@pytest.mark.full
def test_a_run_is_applied_once(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = csv_file("1.csv", HEADER, FIRST)
    first = upsert(source, "--run-id", "monday").lines[-1]
    # Of the same size and time: it is not even read.
    times, size = source.stat(), source.stat().st_size
    source.write_bytes(b"\xff" * size)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    outcome = upsert(source, "--run-id", "monday")
    events = [(line["event"], line["already_committed"], line["version"]) for line in outcome.lines]
    assert (outcome.code, events) == (0, [("commit", True, first["version"])])
    assert outcome.lines[0].keys() == first.keys()
    assert outcome.lines[0]["inserted"] is None
    # Older commits than the newest version files that are read have no version in the line.
    monkeypatch.setattr("writer_jobs.delta.table_log._RUN_VERSIONS", 1)
    assert upsert(csv_file("2.csv", HEADER, SECOND)).code == 0
    (outcome,) = upsert(source, "--run-id", "monday").lines
    assert (outcome["already_committed"], outcome["version"]) == (True, None)
    # Another text of the same length.
    os.utime(source, (1_700_000_000,) * 2)
    outcome = upsert(source, "--run-id", "monday")
    assert (outcome.code, "choose another run id" in sentence(outcome)) == (2, True)
    assert not outcome.commits
    source = csv_file("2.csv", HEADER, SECOND)
    with monkeypatch.context() as patch:
        # An earlier release hashed no modification times.
        patch.setattr(
            SourceFiles, "basis", property(lambda sources: [[file.path, file.length] for file in sources.files])
        )
        assert upsert(source, "--run-id", "sunday").code == 0
    outcome = upsert(source, "--run-id", "sunday")
    assert (outcome.code, [line["already_committed"] for line in outcome.commits]) == (0, [True]), outcome.error


@pytest.mark.parametrize(
    ("how", "rows", "code", "says"),
    [
        (("--keys", "nobody", "--sequence-by", "updated_at"), FIRST, 5, "no column nobody"),
        (("--keys", "id", "--sequence-by", "updated_by"), FIRST, 5, "updated_by"),
        (("--keys", "id", "--sequence-by", "updated_at", "--apply-as-deletes", "name"), FIRST, 5, "boolean expression"),
        (("--keys", "id", "--sequence-by", "updated_at", "--columns", "a", "--except-columns", "b"), FIRST, 2, "both"),
        (("--keys", "id", "--sequence-by", "updated_at", "--columns", "name"), FIRST, 2, "key columns: id"),
        (("--keys", "id", "--sequence-by", "updated_at"), FIRST, 5, "id=1"),
        (HOW, [("no", 1, "Ada", None, "c"), ("no", 2, "Bo", 1, "c")], 5, "no sequence"),
        (HOW, [(None, 1, "Ada", 1, "c")], 5, "country=None"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    upsert: Callable[..., Any],
    csv_file: Callable[..., Path],
    table: Path,
    how: tuple[str, ...],
    rows: list[Any],
    code: int,
    says: str,
) -> None:
    done = upsert(csv_file("bad.csv", HEADER, rows), how=how)
    assert done.code == code, done.error
    assert says in sentence(done), done.error
    assert not table.exists()


@pytest.mark.full
def test_wrong_types_and_missing_files_are_too(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, versions: Callable[[Path], list[str]]
) -> None:
    upsert(csv_file("1.csv", HEADER, FIRST))
    before = versions(table)
    wrong = csv_file("wrong.csv", HEADER, [("no", "one", "Ada", 2, "u")])
    empty = csv_file("empty.csv", HEADER, [])
    more = csv_file("more.csv", HEADER + ",age", [("no", 1, "Ada", 2, "u", 7)])
    unreachable = "hdfs://127.0.0.1:1/changes"
    assert [(done.code, bool(sentence(done))) for done in map(upsert, (wrong, "/nowhere", more, unreachable))] == [
        (5, True), (2, True), (5, True), (2, True),
    ]  # fmt: skip
    assert "127.0.0.1:1" in sentence(upsert(unreachable))
    # The table would get a second sequence column, without values.
    job = upsert(csv_file("old.csv", HEADER, [("no", 1, "Old", 0, "u")]), how=(*HOW[:-1], "op,updated_at"))
    assert job.code == 5
    assert "sequence column: updated_at in the table, __SEQUENCE in this run" in sentence(job)
    done = upsert(empty)
    assert (done.code, done.error) == (0, "")
    assert done.lines[-1]["changes"] == 0
    assert versions(table) == before


@pytest.mark.full
def test_new_columns_and_wider_types_come_on_the_way_if_asked_for(
    upsert: Callable[..., Any], table: Path, rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    def changes(name: str, *rows: dict[str, Any]) -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    how = ("--keys", "id", "--sequence-by", "at", "--schema-evolution")
    done = upsert(changes("1.json", {"id": 1, "at": 1, "price": 1.5}), how=how)
    assert done.code == 0, done.error
    # In the middle of a batch: some of its rows have the new column.
    news = changes("2.json", {"id": 1, "at": 2, "price": 2.5}, {"id": 2, "at": 2, "price": 1, "note": "new"})
    assert upsert(news, how=how[:-1]).code == 5
    done = upsert(news, how=how)
    assert done.code == 0, done.error
    assert rows_of(table, "id", "at", "price", "note") == [(1, 2, 2.5, None), (2, 2, 1.0, "new")]


@pytest.mark.full
def test_a_number_that_the_column_cannot_hold_widens_it(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, spark: SparkSession
) -> None:
    how = ("--keys", "id", "--sequence-by", "at")
    assert upsert(csv_file("1.csv", "id,at,n", [(1, 1, 7)]), how=how).code == 0
    large = csv_file("2.csv", "id,at,n", [(1, 2, 2**40), (2, 2, 8)])
    assert upsert(large, how=how).code == 5
    done = upsert(large, "--schema-evolution", how=how)
    assert done.code == 0, done.error
    # delta-rs does not read a table with this feature.
    rows = spark.read.format("delta").load(str(table)).select("id", "at", "n").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, 2, 2**40), (2, 2, 8)]
