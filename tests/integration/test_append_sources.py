"""The append job's source files: which they are, and how their values are read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.append_rows import HEADER, ROWS

pytestmark = pytest.mark.spark


def test_values_are_read_with_the_types_of_an_existing_table_and_matched_by_name(
    append: Callable[..., Any],
    copy_of: Callable[..., Path],
    csv_file: Callable[..., Path],
    rows_of: Callable[..., Any],
) -> None:
    columns = "amount decimal(10,2), id bigint, day date, name string, twice bigint generated always as (id * 2)"
    table = copy_of(f"create table {{t}} ({columns}) using delta")
    source = csv_file("s.csv", "DAY,id,name,amount", [("2013-01-31", 7, "NA", "1.5"), ("2013-02-01", 8, "x", "NA")])
    done = append("--table", table, "--source", source, "--null-value", "NA")

    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "amount", "day", "name", "twice") == [
        (7, Decimal("1.50"), date(2013, 1, 31), None, 14),
        (8, None, date(2013, 2, 1), "x", 16),
    ]


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
    csv_file("parts/year=2013/code=007/a.csv", "id", [(1,), (2,)])
    csv_file("parts/year=2014/code=8/a.csv", "id", [(3,)])
    done = append("--table", table, "--source", tmp_path / "parts")
    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "year", "code") == [(1, 2013, "007"), (2, 2013, "007"), (3, 2014, "8")]
    pq.write_table(pa.table({"id": pa.array([4], pa.int32())}), csv_file("more/year=2015/code=09/a.parquet", "", []))
    parquet = append("--table", table, "--source", tmp_path / "more")
    assert (parquet.code, parquet.error) == (0, "")
    assert rows_of(table, "id", "year", "code")[-1] == (4, 2015, "09")


def test_json_is_read_with_the_types_of_the_table_and_missing_fields_are_null(
    append: Callable[..., Any],
    copy_of: Callable[..., Path],
    tmp_path: Path,
    rows_of: Callable[..., Any],
) -> None:
    columns = "id int, at timestamp_ntz, tags array<string>, size double, inner struct<a: int, b: int>"
    table = copy_of(f"create table {{t}} ({columns}) using delta")
    source = tmp_path / "s.jsonl"
    source.write_text('{"id": 1, "at": "2013-01-01T10:00:00", "tags": ["a"], "inner": {"B": 2}}\n{"id": 2}\n')
    done = append("--table", table, "--source", source)
    assert (done.code, done.error) == (0, "")
    assert [(row[0], str(row[1]), *row[2:]) for row in rows_of(table)] == [
        (1, "2013-01-01 10:00:00", ["a"], None, {"a": None, "b": 2}),
        (2, "None", None, None, None),
    ]


def test_parquet_files_bring_the_columns_of_all_of_them(
    append: Callable[..., Any], tmp_path: Path, table: Path, rows_of: Callable[..., Any]
) -> None:
    pq.write_table(pa.table({"id": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "later": ["x"]}), tmp_path / "b.parquet")
    done = append("--table", table, "--source", tmp_path / "[ab].parquet")
    assert (done.code, done.error) == (0, "")
    assert rows_of(table, "id", "later") == [(0, None), (1, None), (2, "x")]


def test_a_reader_option_goes_before_the_strict_defaults(
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
    copy_of: Callable[..., Path],
    rows_of: Callable[..., Any],
) -> None:
    table = copy_of("create table {t} (id bigint, name string) using delta")
    source = csv_file("s.csv", "1;x", [("bad;y",)])
    arguments = ("--table", table, "--source", source, "--option", "sep=;", "--option", "header=false")
    strict = append(*arguments)
    lenient = append(*arguments, "--option", "mode=PERMISSIVE")
    assert (strict.code, lenient.code) == (5, 0)
    assert rows_of(table) == [(1, "x"), (None, "y")]


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
    copy_of: Callable[..., Path],
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
) -> None:
    table = copy_of("create table {t} (id int, inner struct<a: int>) using delta")
    source = tmp_path / "s.json"
    for text, said in (
        ('{"id": 1, "inner": {"a": 1, "b": 2}}', "no column inner.b"),
        ('{"id": "one"}', "one"),
        ('{"id": 1}\nnot json', "'not json', which is not one JSON object"),
    ):
        source.write_text(text)
        failed = append("--table", table, "--source", source)
        assert failed.code == 5
        assert said in failed.error
        assert len(failed.error.splitlines()) == 1
    assert len(versions(table)) == 1
