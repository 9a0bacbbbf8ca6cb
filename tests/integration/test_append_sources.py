"""Source files of the append job: which files it reads, and how it reads their values."""

from __future__ import annotations

import gzip
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.append_driver import AppendDriver
from tests.support.append_rows import HEADER, ROWS

pytestmark = pytest.mark.spark


@pytest.fixture
def job(request: pytest.FixtureRequest) -> AppendDriver:
    return AppendDriver.create(request)


def test_values_get_the_types_of_an_existing_table(job: AppendDriver) -> None:
    """Columns are matched by name."""
    columns = "amount decimal(10,2), id bigint, day date, name string, twice bigint generated always as (id * 2)"
    job.create_table(f"create table {{t}} ({columns}) using delta")
    source = job.csv("s.csv", "DAY,id,name,amount", [("2013-01-31", 7, "NA", "1.5"), ("2013-02-01", 8, "x", "NA")])
    job.succeed("--source", source, "--null-value", "NA")
    assert job.rows("id", "amount", "day", "name", "twice") == [
        (7, Decimal("1.50"), date(2013, 1, 31), None, 14),
        (8, None, date(2013, 2, 1), "x", 16),
    ]


def test_sources_may_be_globs_folders_or_compressed(job: AppendDriver, tmp_path: Path) -> None:
    """Names may contain special characters, and a file that is named twice is read once."""
    special = job.csv("odd/a [1] #%20?.csv", HEADER, ROWS[:10])
    job.csv("folder/x.csv", HEADER, ROWS[10:20])
    job.csv("folder/_hidden.csv", "nonsense", [])
    job.csv("many/1.csv", HEADER, ROWS[20:25])
    job.csv("many/2.csv", HEADER, ROWS[25:30])
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(job.csv("z.csv", HEADER, ROWS[30:]).read_bytes()))
    job.succeed(
        "--source", special, tmp_path / "folder", tmp_path / "many" / "*.csv", f"file://{tmp_path}/z.csv.gz",
        "--source", tmp_path / "many" / "1.csv", special,
    )  # fmt: skip
    assert job.rows("id", "name", "amount") == sorted(ROWS, key=repr)


def test_folders_of_partition_values_become_columns(job: AppendDriver, tmp_path: Path) -> None:
    job.csv("parts/year=2013/_code=007/a.csv", "id", [(1,), (2,)])
    job.csv("parts/year=2014/_code=8/a.csv", "id", [(3,)])
    job.succeed("--source", tmp_path / "parts")
    assert job.rows("id", "year", "_code") == [(1, 2013, "007"), (2, 2013, "007"), (3, 2014, "8")]
    pq.write_table(pa.table({"id": pa.array([4], pa.int32())}), job.csv("more/year=2015/_code=09/a.parquet", "", []))
    job.succeed("--source", tmp_path / "more")
    assert job.rows("id", "year", "_code")[-1] == (4, 2015, "09")


def test_files_beside_folders_of_partition_values_are_refused(job: AppendDriver, tmp_path: Path) -> None:
    job.csv("parts/a.csv", "id", [(1,)])
    job.csv("parts/year=2014/a.csv", "id", [(2,)])
    job.refuse(2, "parts has files beside column=value folders", "--source", tmp_path / "parts")
    assert job.version_count() == 0


def test_missing_json_fields_are_null(job: AppendDriver, tmp_path: Path) -> None:
    columns = "id int, at timestamp_ntz, tags array<string>, size double, inner struct<a: int, b: int>"
    job.create_table(f"create table {{t}} ({columns}) using delta")
    source = tmp_path / "s.jsonl"
    source.write_text('{"id": 1, "at": "2013-01-01T10:00:00", "tags": ["a"], "inner": {"B": 2}}\n{"id": 2}\n')
    job.succeed("--source", source)
    assert [(row[0], str(row[1]), *row[2:]) for row in job.rows()] == [
        (1, "2013-01-01 10:00:00", ["a"], None, {"a": None, "b": 2}),
        (2, "None", None, None, None),
    ]


def test_the_columns_of_all_parquet_files_are_loaded(job: AppendDriver, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "later": ["x"]}), tmp_path / "b.parquet")
    job.succeed("--source", tmp_path / "[ab].parquet")
    assert job.rows("id", "later") == [(0, None), (1, None), (2, "x")]


def test_a_reader_option_overrides_a_strict_default(job: AppendDriver) -> None:
    job.create_table("create table {t} (id bigint, name string) using delta")
    arguments = ("--source", job.csv("s.csv", "1;x", [("bad;y",)]), "--option", "sep=;", "--option", "header=false")
    assert job.run(*arguments).code == 5
    assert job.run(*arguments, "--option", "mode=PERMISSIVE").code == 0
    assert job.rows() == [(1, "x"), (None, "y")]


def test_files_with_different_headers_are_refused(job: AppendDriver) -> None:
    sources = job.csv("1.csv", "id,name", [(1, "x")]), job.csv("2.csv", "name,id", [("y", 2)])
    job.refuse(5, "CSV header does not conform to the schema", "--source", *sources)
    assert job.version_count() == 0


def test_json_with_unknown_or_malformed_fields_is_refused(job: AppendDriver, tmp_path: Path) -> None:
    job.create_table("create table {t} (id int, inner struct<a: int>) using delta")
    source = tmp_path / "s.json"
    for text, message in (
        ('{"id": 1, "inner": {"a": 1, "b": 2}}', "no column inner.b"),
        ('{"id": "one"}', "one"),
        ('{"id": 1}\nnot json', "'not json', which is not one JSON object"),
    ):
        source.write_text(text)
        failed = job.refuse(5, message, "--source", source)
        assert len(failed.error.splitlines()) == 1
    assert job.version_count() == 1
