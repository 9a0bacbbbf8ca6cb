"""Values inside structs, arrays and maps: stored as they are, refused, or given a field of the table."""

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


def json_file(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"at": "2026-01-01T00:00:00Z", **row}) + "\n" for row in rows))
    return path


def sentence(outcome: Any) -> str:
    (line,) = [line for line in outcome.error.splitlines() if ".py: " in line]
    return str(line)


def test_nested_json_fields_are_refused_or_added(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], spark: SparkSession, tmp_path: Path
) -> None:
    table = copy_of(*TABLE)
    for column, (value, path) in NEW_FIELDS.items():
        changes = json_file(tmp_path / f"{column}.json", {"id": 1, "n": 2, column: value})
        outcome = run_job("upsert", "--table", table, *UPSERT, "--source", changes)
        assert (outcome.code, f"the table has no column {path}" in sentence(outcome)) == (5, True), outcome.error
        outcome = run_job("append", "--table", table, "--source", changes)
        assert (outcome.code, path in sentence(outcome)) == (5, True), outcome.error
    new = {column: value for column, (value, _) in NEW_FIELDS.items()}
    source = json_file(tmp_path / "files" / "1.json", {"id": 1, "n": 2, **new}, {"id": 2, "n": 1, **new}).parent
    upsert = ("upsert", "--table", table, *UPSERT, "--source", source)
    streamed = copy_of(*TABLE, to="streamed")
    stream = ("stream", "--table", streamed, *STREAM, "--source", source, "--checkpoint", tmp_path / "checkpoint")
    for arguments, names in (
        (upsert, "address.zip-code"),
        (stream, "address.zip-code, labels.value.by, lines.element.y"),
    ):
        outcome = run_job(*arguments)
        assert (outcome.code, names in sentence(outcome)) == (5, True), outcome.error
        outcome = run_job(*arguments, "--schema-evolution")
        assert outcome.code == 0, outcome.error
    (upserted_rows, streamed_rows) = (
        sorted(map(str, spark.read.format("delta").load(str(path)).select("id", "n", *NEW_FIELDS).collect()))
        for path in (table, streamed)
    )
    assert upserted_rows == streamed_rows
    # A field that a JSON object lacks is null: the object is the whole new value.
    less = json_file(tmp_path / "less.json", {"id": 2, "n": 2, "address": {"zip-code": "0151", "no": {"a": 1}}})
    outcome = run_job("upsert", "--table", table, *UPSERT, "--source", less, "--schema-evolution")
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
CUT = {
    "s": (pa.array([{"amount": Decimal("3.75"), "text": "a"}]), "s.amount: table int, rows decimal(3,2)"),
    "l": (pa.array([[1.5, 2.5]]), "l.element: table int, rows double"),
    "m": (pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())), "m.value: table int, rows double"),
    "local": (
        pa.array(MIDNIGHT, pa.timestamp("us")),
        "local: table timestamp, rows timestamp_ntz",
    ),
    "at": (
        pa.array(MIDNIGHT, pa.timestamp("us", "UTC")),
        "at: table timestamp_ntz, rows timestamp",
    ),
    "day": (pa.array(["2026-01-02T23:59:00Z"]), "day: table date, rows string"),
    "price": (pa.array(["19.999"]), "price: table decimal(10,2), rows string"),
}


@pytest.mark.parametrize("job", [("upsert", *UPSERT), ("append",), ("overwrite",)])
def test_types_that_change_values_are_refused_at_once(
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
    pq.write_table(pa.table({"id": [1], "n": [2], **{name: values for name, (values, _) in CUT.items()}}), source)
    outcome = run_job(job[0], "--table", table, *job[1:], "--source", source)
    assert outcome.code == 5
    assert f"({'; '.join(words for _, words in CUT.values())})" in sentence(outcome)
    if job[0] == "upsert":
        # An update replaces the whole struct.
        pq.write_table(pa.table({"id": [1], "n": [2], "s": [{"text": "a"}]}), source)
        outcome = run_job("upsert", "--table", table, *UPSERT, "--source", source)
        assert (outcome.code, "the rows lack s.amount" in sentence(outcome)) == (5, True), outcome.error
    assert len(versions(table)) == 1


def test_parquet_files_with_narrower_types_are_read_with_the_table_s(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    table = copy_of("""
        CREATE TABLE {t} (id BIGINT, n BIGINT, s STRUCT<x: BIGINT>, l ARRAY<DOUBLE>, d DECIMAL(12, 4)) USING delta
    """)
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "n": [1], "s": [{"x": 1}]}), tmp_path / "a.parquet")
    small = pa.array([{"x": 2}], pa.struct([("x", pa.int32())]))
    pq.write_table(pa.table({"id": [1 << 40], "n": [1], "s": small}), tmp_path / "b.parquet")
    floats = pa.array([[0.5]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": [3], "n": [1], "l": floats}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"id": [4], "n": [1], "l": [[0.1]]}), tmp_path / "d.parquet")
    narrow = pa.table({"id": pa.array([5], pa.int32()), "n": pa.array([1], pa.int32()), "d": [Decimal("1.5")]})
    pq.write_table(narrow, tmp_path / "narrow.parquet")
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
    assert (outcome.code, "id: bigint and string" in sentence(outcome)) == (2, True), outcome.error


@pytest.mark.full
def test_a_repetition_may_have_other_field_orders_and_narrower_types(
    run_job: Callable[..., Any], copy_of: Callable[..., Path], rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    statement = """
        CREATE TABLE {t} (id BIGINT, n BIGINT, s STRUCT<street: STRING, zip: STRING, amount: DECIMAL(10, 2)>,
        l ARRAY<STRUCT<x: DOUBLE, y: BIGINT>>, m MAP<STRING, STRUCT<a: BIGINT, b: STRING>>,
        f DOUBLE, t STRING, __START_AT BIGINT, __END_AT BIGINT)
        USING delta
    """
    struct = pa.struct([("zip", pa.string()), ("amount", pa.int32()), ("STREET", pa.string())])
    lines = pa.list_(pa.struct([("y", pa.int32()), ("x", pa.float32())]))
    texts = pa.map_(pa.string(), pa.struct([("b", pa.string()), ("a", pa.int32())]))

    def file(name: str, sequence: int, street: str) -> Path:
        columns = {
            "s": pa.array([{"zip": "1", "amount": 1, "STREET": street}], struct),
            "l": pa.array([[{"y": 1, "x": 0.1}, None]], lines),
            "m": pa.array([[("k", {"b": "c", "a": 1})]], texts),
            "f": pa.array([0.1], pa.float32()),
            "t": pa.array([7], pa.int32()),
        }
        pq.write_table(pa.table({"id": [1], "n": [sequence], **columns}), tmp_path / name)
        return tmp_path / name

    first, contradiction = file("first.parquet", 1, "A"), file("second.parquet", 1, "B")
    history = ("--scd-type", "2", "--except-columns", "n")
    newest = statement.replace(", __START_AT BIGINT, __END_AT BIGINT", "")
    for number, (create, more) in enumerate(((newest, ()), (statement, history))):
        table = copy_of(create, to=f"table{number}")
        for inserted in (1, 0):
            outcome = run_job("upsert", "--table", table, *UPSERT, *more, "--source", first)
            assert (outcome.code, [line["inserted"] for line in outcome.commits]) == (0, [inserted]), outcome.error
        outcome = run_job("upsert", "--table", table, *UPSERT, *more, "--source", contradiction)
        assert (outcome.code, "differs from it: id=1" in sentence(outcome)) == (5, True), outcome.error
        assert rows_of(table, "s", "t") == [({"street": "A", "zip": "1", "amount": Decimal("1.00")}, "7")]


@pytest.mark.full
def test_column_mapping_is_named_and_creates_the_table(
    run_job: Callable[..., Any],
    csv_file: Callable[..., Path],
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    keys = ("--keys", "Flight No.", "--sequence-by", "n")
    spark.conf.set(COLUMN_MAPPING, "none")
    request.addfinalizer(lambda: spark.conf.unset(COLUMN_MAPPING))
    source = csv_file("s.csv", 'Flight No.,n,"a,b"', [("LH 1", 1, "x")])
    for job in (("append",), ("overwrite",), ("upsert", *keys)):
        place = tmp_path / job[0]
        outcome = run_job(job[0], "--table", place, *job[1:], "--source", source)
        assert (outcome.code, "--column-mapping" in sentence(outcome)) == (5, True), outcome.error
        assert "delta.columnMapping.mode" in sentence(outcome)
        outcome = run_job(job[0], "--table", place, *job[1:], "--source", source, "--column-mapping")
        assert outcome.code == 0, outcome.error
        assert [tuple(row) for row in spark.read.format("delta").load(str(place)).collect()] == [("LH 1", 1, "x")]
        assert spark.conf.get(COLUMN_MAPPING) == "none"
    place = tmp_path / "upsert"
    news = csv_file("n.csv", 'Flight No.,n,"a,b","(c)"', [("LH 1", 2, "y", 3), ("LH 2", 1, "z", 4)])
    outcome = run_job("upsert", "--table", place, *keys, "--source", news, "--schema-evolution")
    assert outcome.code == 0, outcome.error
    rows = spark.read.format("delta").load(str(place)).orderBy("`Flight No.`").collect()
    assert [tuple(row) for row in rows] == [("LH 1", 2, "y", 3), ("LH 2", 1, "z", 4)]
    plain = tmp_path / "plain"
    assert run_job("append", "--table", plain, "--source", csv_file("p.csv", "id,n", [(1, 1)])).code == 0
    more = csv_file("m.csv", "id,n,a b", [(1, 2, 3)])
    outcome = run_job("upsert", "--table", plain, *UPSERT, "--source", more, "--schema-evolution")
    assert (outcome.code, "delta.columnMapping.mode to name" in sentence(outcome)) == (5, True), outcome.error
