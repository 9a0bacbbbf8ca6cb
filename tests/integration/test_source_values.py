"""Values of source files are stored exactly, or refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from tests.support.deliveries import ZONE, session_time_zone
from tests.support.error_line import error_line
from writer_jobs.delta.exact_cast import exact_cast
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import error_reason
from writer_jobs.errors import SourceError, WriteFailedError
from writer_jobs.job.inputs import source_values
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader

pytestmark = pytest.mark.spark


#: For each type, texts and their values as Spark prints them in UTC. None if the text is no value of the type.
CASTS: dict[str, dict[str, str | None]] = {
    "boolean": {"true": "true", "FALSE": "false", "true\n": None, "yes": None, "1": None, " true": None, "": None},
    "tinyint": {"127": "127", "200": None},
    "int": {
        "7": "7", "-7.0": "-7", "7.5": None, "7\n": None, "7.0\n": None, "2147483648": None, " 7": None, "7e0": None,
        "": None,
    },
    "bigint": {"9223372036854775807": "9223372036854775807", "9223372036854775808": None},
    "decimal(10,2)": {
        "19.99": "19.99", "19.99\n": None, "1e2\n": None, "19.990": "19.99", "19.999": None, "0.005": None,
        "1e2": "100.00", "1e-3": None, "1.5e-1": "0.15", "123456789": None, "1,5": None, "1d": None, "NaN": None,
        "-.5": "-0.50", "": None, "1500e-3": "1.50", "1200.0e1": "12000.00", "1505e-3": None, "0e-5": "0.00",
    },
    "double": {
        "0.1": "0.1", "9007199254740993": None, "9007199254740992": "9.007199254740992E15", "1e400": None,
        "-Infinity": "-Infinity", "NaN": "NaN", "Inf": "Infinity", "1d": None, "0x1p3": None, " 1": None,
        "1e-400": None, "0e9": "0.0", "9007199254740993.0": None, "9007199254740993e0": None, "1.2e300": "1.2E300",
        "0.1\n": None, "90071992547409930e-1": None, "9007199254740992.00e1": "9.007199254740992E16",
        "1152921504606846976": "1.15292150460684698E18",
        "1.7976931348623157E308": "1.7976931348623157E308", "9223372036854775807": None, "1e23": "9.999999999999999E22",
    },
    "float": {
        "16777217": None, "16777217.0": None, "1e-60": None, "16777216": "1.6777216E7", "0.1": "0.1", "1e39": None,
    },
    "date": {
        "2026-01-02": "2026-01-02", "2026-01-02T00:00:00": "2026-01-02", "2026-01-02T23:59:00Z": None, "2026-01": None,
        "2026-02-30": None, "2026-01-02 x": None, "2026-01-02\n": None,
    },
    "timestamp": {
        "2026-01-02T23:59:00Z": "2026-01-02 23:59:00", "2026-01-02 23:59:00.123456": "2026-01-02 22:59:00.123456",
        "2026-01-02T23:59:00.1234567Z": None, "2026-03-29 02:30:00": None, "1700000000000": None, "12:30": None,
        "2026-01-02": "2026-01-01 23:00:00", "2026-01-02T23:59:00-01:00": "2026-01-03 00:59:00",
        "2026-10-25T02:30:00": None, "2026-10-25T02:30:00+02:00": "2026-10-25 00:30:00",
        "2026-10-25T01:59:59": "2026-10-24 23:59:59", "2026-10-25T03:00:00": "2026-10-25 02:00:00",
        "2026-01-02 10:00:00\n": None, "2026-01-02T23:59:00Z\n": None,
    },
    "timestamp_ntz": {
        "2026-01-02T23:59:00": "2026-01-02 23:59:00", "2026-01-02T23:59:00Z": None, "2026-01-02T23:59:00.0000001": None,
        "2026-03-29 02:30:00": "2026-03-29 02:30:00", "2026-10-25T02:30:00": "2026-10-25 02:30:00",
    },
}  # fmt: skip


def test_a_text_is_cast_exactly_or_to_null(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(text,) for text in sorted({*chain(*CASTS.values())})], "text string")
    columns = []
    for name in CASTS:
        value = exact_cast(F.col("text"), StructType.fromDDL(f"x {name}")["x"].dataType)
        value = F.to_utc_timestamp(value, ZONE) if name == "timestamp" else value
        columns.append(value.cast("string").alias(name))
    with session_time_zone(spark):
        values = {row["text"]: row.asDict() for row in rows.select("text", *columns).collect()}
    assert {name: {text: values[text][name] for text in texts} for name, texts in CASTS.items()} == CASTS


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    """Read a file: ``read("csv", "a;b\\n1;2\\n", "a int, b int", sep=";")`` returns its rows, or the error's reason."""

    def run(file_format: str, content: str | bytes, ddl: str | None, **options: str) -> Any:
        source = tmp_path / f"source.{file_format}"
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            reader = SourceReader(spark, find_sources(HadoopFiles.of(spark), [str(source)]), file_format, options, "t")
            schema = reader.schema(None) if ddl is None else StructType.fromDDL(ddl)
            return [tuple(row) for row in reader.read(schema).collect()]
        except (WriteFailedError, SourceError, PySparkException) as error:
            return error_reason(error)

    return run


#: Format, content, columns, options, and the expected rows or a part of the expected error.
SOURCE_CASES: list[tuple[str, str | bytes, str, dict[str, str], Any]] = [
    ("json", '{"x":19.999}', "x decimal(10,2)", {}, "column x: the value '19.999' is not exactly a value of type dec"),
    ("json", '{"x":"19.99"}\n\t\n{"x":1e1}', "x decimal(10,2)", {}, [(Decimal("19.99"),), (Decimal("10.00"),)]),
    ("json", '{"x":0.1234567890123456789}', "x decimal(38,19)", {}, [(Decimal("0.1234567890123456789"),)]),
    ("json", '[{"x":0.1234567890123456789},\n{}]', "x decimal(38,19)", {"multiLine": "true"},
     [(Decimal("0.1234567890123456789"),), (None,)]),
    ("json", '{"x":9007199254740993}', "x double", {}, "'9007199254740993'"),
    ("json", '{"x":1e400}', "x double", {}, "'1e400'"),
    ("json", '{"x":1700000000000}', "x timestamp", {}, "'1700000000000'"),
    ("json", '{"x":"2026-01-02T23:59:00Z"}', "x date", {}, "'2026-01-02T23:59:00Z'"),
    ("json", '{"x":"02.01.2026"}', "x date", {"dateFormat": "dd.MM.yyyy"}, [(date(2026, 1, 2),)]),
    ("json", '{"x":"02.01.2026 10:00"}', "x date", {"dateFormat": "dd.MM.yyyy HH:mm"}, "'02.01.2026 10:00'"),
    ("json", '{"x":1700000000000}', "x timestamp", {"timestampFormat": "dd.MM.yyyy"}, "'1700000000000'"),
    ("csv", "x\n02.01.2026 10:00\n", "x timestamp_ntz", {"timestampNTZFormat": "dd.MM.yyyy HH:mm"},
     [(datetime.fromisoformat("2026-01-02T10:00"),)]),
    ("csv", "x,y\n02.01.2026 10:00 Z,a\n", "x timestamp, y string", {"timestampFormat": "dd.MM.yyyy HH:mm X"},
     [(datetime(2026, 1, 2, 10, tzinfo=UTC).astimezone().replace(tzinfo=None), "a")]),
    ("csv", "x\n2026-01-02 10:00:00.1234567\n", "x timestamp", {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSS"},
     ".1234567'"),
    ("csv", "x\n2026-01-02 10:00\n", "x timestamp", {"timeZone": "Asia/Tokyo"}, "--conf spark.sql.session.timeZone"),
    ("json", '{"x":200}', "x tinyint", {}, "'200'"),
    ("json", '{"x":-128}', "x tinyint", {}, [(-128,)]),
    ("json", '{"x":"19.99\\n"}', "x decimal(10,2)", {}, "column x"),
    ("json", '{"x":19.999}\n{"x":1}', "x decimal(10,2)", {"mode": "PERMISSIVE"}, [(None,), (Decimal("1.00"),)]),
    ("json", '{"s":{"x":19.999}}', "s struct<x: decimal(10,2)>", {}, "column s.x"),
    ("json", '{"m":{"k":[1.5, 0.005]}}', "m map<string, array<decimal(10,2)>>", {}, "column m[][]: the value '0.005'"),
    ("json", '{"m":{"k":[{"x":1.5}]}, "a":null}', "m map<string, array<struct<x: decimal(10,2)>>>, a array<double>",
     {}, [({"k": [(Decimal("1.50"),)]}, None)]),
    ("json", '{"id":1,"n":1}{"id":2,"n":1}', "id int, n int", {}, "is not one JSON object"),
    ("json", '{"id":1}],[{"id":2}', "id int", {}, "is not one JSON object"),
    ("json", '{"id":1},0] anything', "id int", {}, "is not one JSON object"),
    ("json", '{"id":1} // one', "id int", {"allowComments": "true"}, [(1,)]),
    ("json", '{"id":1}\n{"id":2}', "id int", {"multiLine": "true"}, "is not one JSON object"),
    ("json", '{"id":1,"id":2}', "id int", {}, "names each field once"),
    ("json", '{"t":"x\\ud800"}', "t string", {}, "is not one JSON object"),
    ("json", b'{"t":"caf\xe9"}', "t string", {}, "in UTF-8"),
    ("json", '{"x":1}', "x int", {"encoding": "UTF-16"}, "read as UTF-8 only"),
    ("csv", "x,y\n19.999,a\n", "x decimal(10,2), y string", {}, "column x: the value '19.999'"),
    ("csv", 'x,y\n"1,5",a\n', "x decimal(10,2), y string", {}, "'1,5'"),
    ("csv", 'x;y\n"1.234,5";a\n', "x decimal(10,2), y string", {"locale": "de", "sep": ";"},
     [(Decimal("1234.50"), "a")]),
    ("csv", "x\nInf\n-\n9007199254740993\n", "x double", {"nanValue": "-"}, "'9007199254740993'"),
    ("csv", 'id,t\n1,"the ""big"" one"\n2,"C:\\dir\\"\n', "id int, t string", {},
     [(1, 'the "big" one'), (2, "C:\\dir\\")]),
    ("csv", 'id,t\n1,"A\n2,B"\n', "id int, t string", {}, [(1, "A\n2,B")]),
    ("csv", 'id,t\r\n1,"A\r\n2,""B"\r\n2,"x\ny\rz"\r\n3,p', "id int, t string", {},
     [(1, 'A\r\n2,"B'), (2, "x\ny\rz"), (3, "p")]),
    ("csv", 'id,t\n1,"A\r\nB"\n2,p\n', "id int, t string", {}, [(1, "A\r\nB"), (2, "p")]),
    ("csv", 'id,t\n1,"A\nB"\r\n2,p\n', "id int, t string", {}, "some records end with CRLF"),
    ("csv", 'id,t\n1,"A\nB"\n2,p\r\n', "id int, t string", {}, "some records end with CRLF"),
    ("csv", 'id,t\n1,"A\nB"\n', "id int, t string", {"multiLine": "false"}, "replace --option multiLine=false"),
    ("csv", 'id,t\n1,"A\n', "id int, t string", {}, "quotes that are not closed"),
    ("csv", 'id,t\n1,"a"b"\n2,"c\nd"\n', "id int, t string", {}, "malformed quotes"),
    ("csv", 'id,t\n1,"a"b"c"\n', "id int, t string", {}, "whose quotes are malformed"),
    ("csv", 'id,t\n1,5" and 6" pipe\n', "id int, t string", {}, "whose quotes are malformed"),
    ("csv", 'id,t\n1,5""\n', "id int, t string", {}, "whose quotes are malformed"),
    ("csv", 'id,t\n1,""x\n', "id int, t string", {}, "whose quotes are malformed"),
    ("csv", 'id,t\n1,5""\n2,"A\nB"\n', "id int, t string", {}, "malformed quotes"),
    ("csv", 'id,t\n1,""""\n2,"""a"""\n3,"a"", b"\n4,""\n', "id int, t string", {},
     [(1, '"'), (2, '"a"'), (3, 'a", b'), (4, None)]),
    ("csv", 'id,t\n1,"a"\u2028\n', "id int, t string", {}, "whose quotes are malformed"),
    ("csv", 'id,t\n1,5" pipe\n', "id int, t string", {"quote": ""}, [(1, '5" pipe')]),
    ("csv", 'id,t\n1, "a"\n', "id int, t string", {"ignoreLeadingWhiteSpace": "true"}, [(1, "a")]),
    ("csv", 'id\tt\n1\t"a\tb"\n', "id int, t string", {"sep": "\\t"}, [(1, "a\tb")]),
    ("csv", 'id,t\n1,"say \\"no\\""\n', "id int, t string", {"escape": "\\"}, [(1, 'say "no"')]),
    ("csv", b"id,t\n1,caf\xe9\n", "id int, t string", {}, "bytes that are not UTF-8"),
    ("csv", b"id,t\n1,caf\xe9\n", "id int, t string", {"encoding": "ISO-8859-1"}, [(1, "café")]),
    ("csv", b"id,t\n1,caf\xe9\n", "id int, t string", {"encoding": "US-ASCII"}, "column t"),
    ("text", '{"t":"5\\" pipe"}\n', "value string", {"mode": "FAILFAST"}, [('{"t":"5\\" pipe"}',)]),
]  # fmt: skip


def test_values_of_files_are_read_exactly_or_refused(read: Callable[..., Any]) -> None:
    wrong_results = []
    for file_format, content, ddl, options, expected in SOURCE_CASES:
        result = read(file_format, content, ddl, **options)
        is_expected = expected in str(result) if isinstance(expected, str) else expected == result
        if not is_expected:
            wrong_results.append((file_format, content, options, expected, result))
    assert not wrong_results, "\n".join(map(repr, wrong_results))


def test_negative_control_spark_s_own_casts_change_values(
    read: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_values, "INEXACT_TYPES", ())
    assert read("json", '{"x":19.999}', "x decimal(10,2)") == [(Decimal("20.00"),)]
    assert read("json", '{"x":"2026-01-02T23:59:00Z"}', "x date") == [(date(2026, 1, 2),)]


def test_types_are_inferred_only_where_they_keep_values(read: Callable[..., Any]) -> None:
    header = "code,plus,whole,large,share,moment,nanos,big\n"
    rows = "007,+1,7,9007199254740993,1.50,2026-01-02 10:00:00Z,2026-01-02 10:00:00.1234567,1e400\n,,8,1.5,,,,\n"
    first_row, second_row = read("csv", header + rows, None)
    assert first_row[:5] == ("007", "+1", 7, "9007199254740993", 1.5)
    assert first_row[6:] == ("2026-01-02 10:00:00.1234567", "1e400")
    assert second_row[2:4] == (8, "1.5")


JOBS: dict[str, tuple[str, ...]] = {
    "append": (),
    "overwrite": (),
    "upsert": ("--keys", "id", "--sequence-by", "id"),
    "stream": ("--keys", "id", "--event-time", "at", "--trigger", "available-now"),
}


@pytest.mark.full
@pytest.mark.parametrize("job", JOBS)
def test_a_job_stores_exact_values_and_refuses_others(
    job: str, run_job: Callable[..., Any], copy_of: Callable[..., Path], tmp_path: Path, rows_of: Callable[..., Any]
) -> None:
    table = copy_of("create table {t} (id int, text string, price decimal(10,2), at timestamp) using delta")
    landing, arguments = tmp_path / "landing", ["--table", table, "--source", tmp_path / "landing", *JOBS[job]]
    arguments += ["--checkpoint", tmp_path / "checkpoint"] if job == "stream" else []
    landing.mkdir()
    (landing / "1.csv").write_text('id,text,price,at\n1,"the ""big""\none",1.50,2013-01-01T08:00:00Z\n')
    outcome = run_job(job, *arguments)
    assert (outcome.code, outcome.error) == (0, "")
    assert rows_of(table, "id", "text", "price") == [(1, 'the "big"\none', Decimal("1.50"))]
    (landing / "1.csv").unlink()
    (landing / "2.csv").write_text("id,text,price,at\n2,x,19.999,2013-01-01T08:00:00Z\n")
    outcome = run_job(job, *arguments)
    assert outcome.code == 5
    assert "column price: the value '19.999' is not exactly a value of type decimal(10,2)" in outcome.error
    assert error_line(outcome).startswith(f"{job}.py: ")
    assert len(rows_of(table, "id")) == 1
