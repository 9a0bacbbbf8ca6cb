"""Values inside structs, arrays and maps are stored, refused, or stored in a new field of the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.error_line import error_line

pytestmark = pytest.mark.spark

COLUMNS = """
    id BIGINT, at TIMESTAMP, n BIGINT, address STRUCT<street: STRING>, lines ARRAY<STRUCT<x: INT>>,
    labels MAP<STRING, STRUCT<text: STRING>>
"""
TABLE = (
    f"CREATE TABLE {{t}} ({COLUMNS}) USING delta",
    "INSERT INTO {t} SELECT 1, timestamp'2026-01-01 00:00:00Z', 1, named_struct('street', 'A'), null, null",
)
COLUMN_MAPPING = "spark.databricks.delta.properties.defaults.columnMapping.mode"
UPSERT = ("--keys", "id", "--sequence-by", "n")
STREAM = ("--keys", "id", "--event-time", "at", "--sequence-by", "n", "--trigger", "available-now")
NEW_FIELDS = {
    "address": ({"Street": "B", "zip-code": "0150"}, "address.zip-code"),
    "lines": ([{"x": 1}, {"x": 1 << 40, "y": True}], "lines.element.y"),
    "labels": ({"no": {"text": "a"}, "se": {"text": "b", "by": {"name": "c"}}}, "labels.value.by"),
}


def write_json_file(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"at": "2026-01-01T00:00:00Z", **row}) + "\n" for row in rows))
    return path


def test_nested_json_fields_are_refused_or_added(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], spark: SparkSession, tmp_path: Path
) -> None:
    table, streamed_table = copy_of(*TABLE), copy_of(*TABLE, to="streamed")
    new_values = {column: value for column, (value, _) in NEW_FIELDS.items()}
    source = write_json_file(
        tmp_path / "files" / "1.json", {"id": 1, "n": 2, **new_values}, {"id": 2, "n": 1, **new_values}
    ).parent
    append = ("append", "--table", table, "--source", source)
    upsert = ("upsert", "--table", table, *UPSERT, "--source", source)
    stream = ("stream", "--table", streamed_table, *STREAM, "--source", source, "--checkpoint", tmp_path / "checkpoint")
    for job in (append, upsert, stream):
        outcome = run_job(*job)
        assert (outcome.code, "the table has no column" in error_line(outcome)) == (5, True), outcome.error
        unnamed_paths = [path for _, path in NEW_FIELDS.values() if path not in error_line(outcome)]
        assert unnamed_paths == [], outcome.error
    for job in (upsert, stream):
        outcome = run_job(*job, "--schema-evolution")
        assert outcome.code == 0, outcome.error
    (upserted_rows, streamed_rows) = (
        sorted(map(str, spark.read.format("delta").load(str(path)).select("id", "n", *NEW_FIELDS).collect()))
        for path in (table, streamed_table)
    )
    assert upserted_rows == streamed_rows
    # A field that a JSON object lacks is null: the object is the whole new value.
    changes = write_json_file(
        tmp_path / "less.json", {"id": 2, "n": 2, "address": {"zip-code": "0151", "no": {"a": 1}}}
    )
    outcome = run_job("upsert", "--table", table, *UPSERT, "--source", changes, "--schema-evolution")
    assert outcome.code == 0, outcome.error
    rows = spark.read.format("delta").load(str(table)).orderBy("id").collect()
    lines = [{"x": 1, "y": None}, {"x": 1 << 40, "y": True}]
    labels = {"no": {"text": "a", "by": None}, "se": {"text": "b", "by": {"name": "c"}}}
    assert [row.asDict(recursive=True) for row in rows] == [
        {"id": 1, "at": rows[0]["at"], "n": 2, "lines": lines, "labels": labels,
         "address": {"street": "B", "zip-code": "0150", "no": None}},
        {"id": 2, "at": rows[1]["at"], "n": 2, "lines": lines, "labels": labels,
         "address": {"street": None, "zip-code": "0151", "no": {"a": 1}}},
    ]  # fmt: skip


MIDNIGHT = [datetime(2026, 1, 1, tzinfo=UTC)]
UNFIT_COLUMNS = {
    "s": (pa.array([{"amount": Decimal("3.75"), "text": "a"}]), "s.amount: table int, rows decimal(3,2)"),
    "l": (pa.array([[1.5, 2.5]]), "l.element: table int, rows double"),
    "m": (pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), "m.value: table int, rows double"),
    "local": (pa.array(MIDNIGHT, pa.timestamp("us")), "local: table timestamp, rows timestamp_ntz"),
    "at": (pa.array(MIDNIGHT, pa.timestamp("us", "UTC")), "at: table timestamp_ntz, rows timestamp"),
    "day": (pa.array(["2026-01-02T23:59:00Z"]), "day: table date, rows string"),
    "price": (pa.array(["19.999"]), "price: table decimal(10,2), rows string"),
}


@pytest.mark.parametrize("job", [("upsert", *UPSERT), ("append",), ("overwrite",)])
def test_types_that_change_values_are_refused(
    run_job: Callable[..., Any],
    copy_of: Callable[..., Path],
    versions: Callable[[Path], list[str]],
    tmp_path: Path,
    job: tuple[str, ...],
) -> None:
    table = copy_of("""
        CREATE TABLE {t} (id BIGINT, n BIGINT, s STRUCT<amount: INT, text: STRING>, l ARRAY<INT>, m MAP<STRING, INT>,
        local TIMESTAMP, at TIMESTAMP_NTZ, day DATE, price DECIMAL(10, 2)) USING delta
    """)
    source = tmp_path / "s.parquet"
    pq.write_table(
        pa.table({"id": [1], "n": [2], **{name: values for name, (values, _) in UNFIT_COLUMNS.items()}}), source
    )
    outcome = run_job(job[0], "--table", table, *job[1:], "--source", source)
    assert outcome.code == 5
    assert f"({'; '.join(reason for _, reason in UNFIT_COLUMNS.values())})" in error_line(outcome)
    if job[0] == "upsert":
        # An update replaces the whole struct.
        pq.write_table(pa.table({"id": [1], "n": [2], "s": [{"text": "a"}]}), source)
        outcome = run_job("upsert", "--table", table, *UPSERT, "--source", source)
        assert (outcome.code, "the rows lack s.amount" in error_line(outcome)) == (5, True), outcome.error
    assert len(versions(table)) == 1


@pytest.mark.full
def test_parquet_files_may_have_narrower_types_than_the_table(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    table = copy_of("""
        CREATE TABLE {t} (id BIGINT, n BIGINT, s STRUCT<x: BIGINT>, l ARRAY<DOUBLE>, d DECIMAL(12, 4)) USING delta
    """)
    narrow_structs = pa.array([{"x": 2}], pa.struct([("x", pa.int32())]))
    narrow_lists = pa.array([[0.5]], pa.list_(pa.float32()))
    files: dict[str, dict[str, Any]] = {
        "a": {"id": pa.array([1], pa.int32()), "n": [1], "s": [{"x": 1}]},
        "b": {"id": [1 << 40], "n": [1], "s": narrow_structs},
        "c": {"id": [3], "n": [1], "l": narrow_lists},
        "d": {"id": [4], "n": [1], "l": [[0.1]]},
        "narrow": {"id": pa.array([5], pa.int32()), "n": pa.array([1], pa.int32()), "d": [Decimal("1.5")]},
    }
    for name, columns in files.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    outcome = run_job("append", "--table", table, "--source", tmp_path / "narrow.parquet")
    assert outcome.code == 0, outcome.error
    rows = [(1, {"x": 1}, None, None), (1 << 40, {"x": 2}, None, None), (3, None, [0.5], None), (4, None, [0.1], None)]
    rows += [(5, None, None, Decimal("1.5000"))]
    for job in (("append",), ("upsert", *UPSERT)):
        outcome = run_job(job[0], "--table", table, *job[1:], "--source", tmp_path / "?.parquet")
        assert outcome.code == 0, outcome.error
    assert rows_of(table, "id", "s", "l", "d") == sorted(rows, key=repr)
    pq.write_table(pa.table({"id": ["x"], "n": [1]}), tmp_path / "e.parquet")
    outcome = run_job("append", "--table", table, "--source", tmp_path / "?.parquet")
    assert (outcome.code, "id: bigint and string" in error_line(outcome)) == (2, True), outcome.error


@pytest.mark.soak
def test_a_repetition_may_reorder_fields_and_narrow_types(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    history_statement = """
        CREATE TABLE {t} (id BIGINT, n BIGINT, s STRUCT<street: STRING, zip: STRING, amount: DECIMAL(10, 2)>,
        l ARRAY<STRUCT<x: DOUBLE, y: BIGINT>>, m MAP<STRING, STRUCT<a: BIGINT, b: STRING>>,
        f DOUBLE, t STRING, __START_AT BIGINT, __END_AT BIGINT)
        USING delta
    """
    struct = pa.struct([("zip", pa.string()), ("amount", pa.int32()), ("STREET", pa.string())])
    lines = pa.list_(pa.struct([("y", pa.int32()), ("x", pa.float32())]))
    texts = pa.map_(pa.string(), pa.struct([("b", pa.string()), ("a", pa.int32())]))

    def write_file(name: str, sequence: int, street: str) -> Path:
        columns = {
            "s": pa.array([{"zip": "1", "amount": 1, "STREET": street}], struct),
            "l": pa.array([[{"y": 1, "x": 0.1}, None]], lines),
            "m": pa.array([[("k", {"b": "c", "a": 1})]], texts),
            "f": pa.array([0.1], pa.float32()),
            "t": pa.array([7], pa.int32()),
        }
        pq.write_table(pa.table({"id": [1], "n": [sequence], **columns}), tmp_path / name)
        return tmp_path / name

    change_file, contradicting_file = write_file("first.parquet", 1, "A"), write_file("second.parquet", 1, "B")
    history_options = ("--scd-type", "2", "--except-columns", "n")
    newest_rows_statement = history_statement.replace(", __START_AT BIGINT, __END_AT BIGINT", "")
    for number, (create, options) in enumerate(((newest_rows_statement, ()), (history_statement, history_options))):
        table = copy_of(create, to=f"table{number}")
        for inserted_count in (1, 0):
            outcome = run_job("upsert", "--table", table, *UPSERT, *options, "--source", change_file)
            assert (outcome.code, [line["inserted"] for line in outcome.commits]) == (0, [inserted_count]), (
                outcome.error
            )
        outcome = run_job("upsert", "--table", table, *UPSERT, *options, "--source", contradicting_file)
        assert (outcome.code, "differs from it: id=1" in error_line(outcome)) == (5, True), outcome.error
        assert rows_of(table, "s", "t") == [({"street": "A", "zip": "1", "amount": Decimal("1.00")}, "7")]


@pytest.mark.full
def test_names_with_special_characters_need_column_mapping(
    run_job: Callable[..., Any],
    csv_file: Callable[..., Path],
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    upsert_options = ("--keys", "Flight No.", "--sequence-by", "n")
    spark.conf.set(COLUMN_MAPPING, "none")
    request.addfinalizer(lambda: spark.conf.unset(COLUMN_MAPPING))
    source = csv_file("s.csv", 'Flight No.,n,"a,b"', [("LH 1", 1, "x")])
    for job in (("append",), ("overwrite",), ("upsert", *upsert_options)):
        table = tmp_path / job[0]
        outcome = run_job(job[0], "--table", table, *job[1:], "--source", source)
        assert (outcome.code, "--column-mapping" in error_line(outcome)) == (5, True), outcome.error
        assert "delta.columnMapping.mode" in error_line(outcome)
        outcome = run_job(job[0], "--table", table, *job[1:], "--source", source, "--column-mapping")
        assert outcome.code == 0, outcome.error
        assert [tuple(row) for row in spark.read.format("delta").load(str(table)).collect()] == [("LH 1", 1, "x")]
        assert spark.conf.get(COLUMN_MAPPING) == "none"
    table = tmp_path / "upsert"
    changes = csv_file("n.csv", 'Flight No.,n,"a,b","(c)"', [("LH 1", 2, "y", 3), ("LH 2", 1, "z", 4)])
    outcome = run_job("upsert", "--table", table, *upsert_options, "--source", changes, "--schema-evolution")
    assert outcome.code == 0, outcome.error
    rows = spark.read.format("delta").load(str(table)).orderBy("`Flight No.`").collect()
    assert [tuple(row) for row in rows] == [("LH 1", 2, "y", 3), ("LH 2", 1, "z", 4)]
    table = tmp_path / "plain"
    assert run_job("append", "--table", table, "--source", csv_file("p.csv", "id,n", [(1, 1)])).code == 0
    changes = csv_file("m.csv", "id,n,a b", [(1, 2, 3)])
    outcome = run_job("upsert", "--table", table, *UPSERT, "--source", changes, "--schema-evolution")
    assert (outcome.code, "delta.columnMapping.mode to name" in error_line(outcome)) == (5, True), outcome.error
