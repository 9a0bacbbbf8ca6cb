"""``upsert.py`` in this process: files of changes, counts and exit codes. Bad input writes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.error_line import error_line
from writer_jobs.job.inputs.source_files import SourceFiles

pytestmark = pytest.mark.spark

HEADER = "country,id,name,updated_at,op"
FIRST_FILE = [("no", 1, "Ada", 1, "c"), ("no", 2, "Bo", 1, "c"), ("se", 1, "Cy", 1, "c")]
SECOND_FILE = [("no", 1, "Ada!", 3, "u"), ("no", 1, "Ada?", 2, "u"), ("no", 2, None, 2, "d"), ("se", 2, "Di", 2, "c")]
CHANGES = ("--sequence-by", "updated_at", "--apply-as-deletes", "op = 'd'", "--except-columns", "op")
OPTIONS = ("--keys", "country,id", *CHANGES)
ID_OPTIONS = ("--keys", "id", "--sequence-by", "updated_at")


@pytest.fixture
def upsert(run_job: Callable[..., Any], table: Path) -> Callable[..., Any]:
    """Run the job on the table: ``upsert(file, …)``."""

    def run(*arguments: Any, options: tuple[str, ...] = OPTIONS) -> Any:
        return run_job("upsert", "--table", table, *options, "--source", *arguments)

    return run


@pytest.mark.full
def test_files_of_changes_create_and_update_the_table(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    report_file = tmp_path / "report.json"
    outcome = upsert(csv_file("1.csv", HEADER, FIRST_FILE), "--partition-by", "country", "--report", report_file)
    assert (outcome.code, outcome.error) == (0, "")
    assert [line["event"] for line in outcome.lines] == ["begun", "holding", "commit"]
    report = json.loads(report_file.read_text())
    (commit,) = report["commits"]
    assert (report["exit_code"], commit["inserted"], commit["newest_sequence"]) == (0, 3, 1)
    outcome = upsert(csv_file("2.csv", HEADER, SECOND_FILE))
    assert (outcome.code, outcome.error) == (0, "")
    counts = {"changes": 4, "folded": 3, "inserted": 1, "updated": 1, "deleted": 1, "unchanged": 0}
    assert {name: outcome.lines[-1][name] for name in counts} == counts
    expected = [("no", 1, "Ada!", 3), ("se", 1, "Cy", 1), ("se", 2, "Di", 2)]
    assert rows_of(table, "country", "id", "name", "updated_at") == expected
    # All changes are repeated, the oldest ones last.
    outcome = upsert(csv_file("3.csv", HEADER, [*SECOND_FILE, *FIRST_FILE]))
    assert (outcome.code, outcome.lines[-1]["unchanged"]) == (0, 4)
    assert rows_of(table, "country", "id", "name", "updated_at") == expected


@pytest.mark.full
def test_a_run_is_applied_once(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = csv_file("1.csv", HEADER, FIRST_FILE)
    commit = upsert(source, "--run-id", "monday").lines[-1]
    # A source of the same size and modification time is not read.
    status = source.stat()
    source.write_bytes(b"\xff" * status.st_size)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    outcome = upsert(source, "--run-id", "monday")
    events = [(line["event"], line["already_committed"], line["version"]) for line in outcome.lines]
    assert (outcome.code, events) == (0, [("commit", True, commit["version"])])
    assert outcome.lines[0].keys() == commit.keys()
    assert outcome.lines[0]["inserted"] is None
    # The line has no version if the commit is older than the version files that the job reads.
    monkeypatch.setattr("writer_jobs.delta.table_log._RUN_VERSIONS", 1)
    assert upsert(csv_file("2.csv", HEADER, SECOND_FILE)).code == 0
    (line,) = upsert(source, "--run-id", "monday").lines
    assert (line["already_committed"], line["version"]) == (True, None)
    # The source has the same size, but another modification time.
    os.utime(source, (1_700_000_000,) * 2)
    outcome = upsert(source, "--run-id", "monday")
    assert (outcome.code, "choose another run id" in error_line(outcome)) == (2, True)
    assert not outcome.commits
    source = csv_file("2.csv", HEADER, SECOND_FILE)
    with monkeypatch.context() as patch:
        # Earlier releases did not hash modification times.
        patch.setattr(
            SourceFiles, "basis", property(lambda sources: [[file.path, file.length] for file in sources.files])
        )
        assert upsert(source, "--run-id", "sunday").code == 0
    outcome = upsert(source, "--run-id", "sunday")
    assert (outcome.code, [line["already_committed"] for line in outcome.commits]) == (0, [True]), outcome.error


@pytest.mark.parametrize(
    ("options", "rows", "code", "message"),
    [
        (("--keys", "nobody", "--sequence-by", "updated_at"), FIRST_FILE, 5, "no column nobody"),
        (("--keys", "id", "--sequence-by", "updated_by"), FIRST_FILE, 5, "updated_by"),
        ((*ID_OPTIONS, "--apply-as-deletes", "name"), FIRST_FILE, 5, "boolean expression"),
        ((*ID_OPTIONS, "--columns", "a", "--except-columns", "b"), FIRST_FILE, 2, "both"),
        ((*ID_OPTIONS, "--columns", "name"), FIRST_FILE, 2, "would lack the key columns id: "),
        (ID_OPTIONS, FIRST_FILE, 5, "id=1"),
        (OPTIONS, [("no", 1, "Ada", None, "c"), ("no", 2, "Bo", 1, "c")], 5, "no sequence"),
        (OPTIONS, [(None, 1, "Ada", 1, "c")], 5, "country=None"),
    ],
)
def test_bad_input_is_one_error_line_and_writes_nothing(
    upsert: Callable[..., Any],
    csv_file: Callable[..., Path],
    table: Path,
    options: tuple[str, ...],
    rows: list[Any],
    code: int,
    message: str,
) -> None:
    outcome = upsert(csv_file("bad.csv", HEADER, rows), options=options)
    assert outcome.code == code, outcome.error
    assert message in error_line(outcome), outcome.error
    assert not table.exists()


@pytest.mark.full
def test_wrong_types_and_missing_files_write_nothing(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, versions: Callable[[Path], list[str]]
) -> None:
    upsert(csv_file("1.csv", HEADER, FIRST_FILE))
    earlier_versions = versions(table)
    wrong_type = csv_file("wrong.csv", HEADER, [("no", "one", "Ada", 2, "u")])
    new_column = csv_file("more.csv", HEADER + ",age", [("no", 1, "Ada", 2, "u", 7)])
    unreachable_source = "hdfs://127.0.0.1:1/changes"
    outcomes = [upsert(source) for source in (wrong_type, "/nowhere", new_column, unreachable_source)]
    assert [(outcome.code, bool(error_line(outcome))) for outcome in outcomes] == [
        (5, True), (2, True), (5, True), (2, True),
    ]  # fmt: skip
    assert "127.0.0.1:1" in error_line(outcomes[-1])
    # With these options the table would get a second sequence column without values.
    late_change = csv_file("old.csv", HEADER, [("no", 1, "Old", 0, "u")])
    outcome = upsert(late_change, options=(*OPTIONS[:-1], "op,updated_at"))
    assert outcome.code == 5
    assert "sequence column: updated_at in the table, __SEQUENCE in this run" in error_line(outcome)
    outcome = upsert(csv_file("empty.csv", HEADER, []))
    assert (outcome.code, outcome.error) == (0, "")
    assert outcome.lines[-1]["changes"] == 0
    assert versions(table) == earlier_versions


@pytest.mark.full
def test_schema_evolution_adds_a_column_of_some_rows(
    upsert: Callable[..., Any], table: Path, rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    def write_json_file(name: str, *rows: dict[str, Any]) -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    options = ("--keys", "id", "--sequence-by", "at", "--schema-evolution")
    outcome = upsert(write_json_file("1.json", {"id": 1, "at": 1, "price": 1.5}), options=options)
    assert outcome.code == 0, outcome.error
    # Only some rows of the batch have the new column.
    source = write_json_file("2.json", {"id": 1, "at": 2, "price": 2.5}, {"id": 2, "at": 2, "price": 1, "note": "new"})
    assert upsert(source, options=options[:-1]).code == 5
    outcome = upsert(source, options=options)
    assert outcome.code == 0, outcome.error
    assert rows_of(table, "id", "at", "price", "note") == [(1, 2, 2.5, None), (2, 2, 1.0, "new")]


@pytest.mark.full
def test_schema_evolution_widens_an_integer_column(
    upsert: Callable[..., Any], csv_file: Callable[..., Path], table: Path, spark: SparkSession
) -> None:
    options = ("--keys", "id", "--sequence-by", "at")
    assert upsert(csv_file("1.csv", "id,at,n", [(1, 1, 7)]), options=options).code == 0
    large_numbers = csv_file("2.csv", "id,at,n", [(1, 2, 2**40), (2, 2, 8)])
    assert upsert(large_numbers, options=options).code == 5
    outcome = upsert(large_numbers, "--schema-evolution", options=options)
    assert outcome.code == 0, outcome.error
    # delta-rs does not read a table with type widening.
    rows = spark.read.format("delta").load(str(table)).select("id", "at", "n").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, 2, 2**40), (2, 2, 8)]
