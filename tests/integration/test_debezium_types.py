"""A value of each type with a schema: the types of the table in docs/how-to/cdc.md, and their limits."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_debezium import (
    CONNECT,
    CONNECT_MILLIS,
    DATE,
    DATES,
    DEBEZIUM,
    INT,
    ISO_DATE,
    MICROS,
    MILLIS,
    NANOS,
    TEXT,
    VARIABLE,
    ZONED,
    Json,
    base64_of,
    decimal,
    logical,
    reasons,
    row_message,
    rows_by_id,
    struct,
    types,
    utc,
)
from tests.support.events_table import frame
from writer_jobs.feeds.debezium.decode import decode

pytestmark = pytest.mark.spark

DATA, GEOMETRY = "io.debezium.data.", "io.debezium.data.geometry."
MOMENT = 1_529_507_596_945
SMALL, NUMBER, DOUBLE, BYTES = ({"type": name, "optional": True} for name in ("int8", "int32", "double", "bytes"))
TEXTS = {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}, "optional": True}
DAY = {"year": NUMBER, "month": SMALL, "day": SMALL}
CLOCK = {"hour": SMALL, "minute": SMALL, "second": SMALL, "nanos": NUMBER}
ZONE = {"offsetSeconds": NUMBER, "zoneId": TEXT}
SPECIAL, PRECISION = {"specialValue": TEXT}, {"precision": NUMBER}
DURATION = {
    **dict.fromkeys(("years", "months", "days", "hours", "minutes"), NUMBER),
    "seconds": {"type": "int64", "optional": True},
    "nanos": NUMBER,
}
WKB = {"wkb": BYTES, "srid": NUMBER}
SPARSE = {
    "dimensions": {"type": "int16"},
    "vector": {"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}},
}
#: A point in well-known binary.
OCTETS = bytes.fromhex("0101000000000000000000f03f0000000000000040")
WKB_TEXT = base64.b64encode(OCTETS).decode()


def semantic_struct(name: str, fields: Json) -> Json:
    return {**struct(**fields), "name": name}


POINT = semantic_struct(f"{GEOMETRY}Point", {"x": DOUBLE, "y": DOUBLE, **WKB})


def fields(schema: Json, **values: Any) -> Json:
    """Return the value of a struct whose other fields are null."""
    return {**{field["field"]: None for field in schema["fields"]}, **values}


def structured(name: str, column: str, parts: Json, **values: Any) -> tuple[Json, Any, str, Any]:
    """Return a value of the mode ``structured``, and its fields in a column."""
    schema = semantic_struct(f"{DEBEZIUM}{name}", parts)
    return schema, fields(schema, **values), f"struct<{column}>", fields(schema, **values)


DAY_COLUMN, CLOCK_COLUMN = "year:int,month:tinyint,day:tinyint", "hour:tinyint,minute:tinyint,second:tinyint,nanos:int"
DAY_VALUE, CLOCK_VALUE = {"year": 2018, "month": 6, "day": 20}, {"hour": 15, "minute": 13, "second": 16, "nanos": 945}
#: Schema, JSON value, column type and column value.
VALUES: dict[str, tuple[Json, Any, str, Any]] = {
    "boolean": ({"type": "boolean"}, True, "boolean", True),
    "bits": (logical("bytes", f"{DATA}Bits"), "qgI=", "binary", (0b10_1010_1010).to_bytes(2, "little")),
    "int8": ({"type": "int8"}, -7, "tinyint", -7),
    "int16": ({"type": "int16"}, 300, "smallint", 300),
    "int32": ({"type": "int32"}, 70_000, "int", 70_000),
    "int64": ({"type": "int64"}, 2**53 + 1, "bigint", 2**53 + 1),
    "year": (logical("int32", f"{DEBEZIUM}Year"), 2018, "int", 2018),
    "float": ({"type": "float"}, 0.5, "float", 0.5),
    "double": ({"type": "double"}, "NaN", "double", "nan"),
    "text": (TEXT, "a\n\"b'\\", "string", "a\n\"b'\\"),
    "bytes": ({"type": "bytes"}, "3q2+7w==", "binary", b"\xde\xad\xbe\xef"),
    "date": (DATE, 17_702, "date", dt.date(2018, 6, 20)),
    "connect_date": (logical("int32", f"{CONNECT}Date"), -1, "date", dt.date(1969, 12, 31)),
    "iso_date": (ISO_DATE, "2018-06-20Z", "date", dt.date(2018, 6, 20)),
    "millis": (MILLIS, MOMENT, "timestamp", utc(2018, 6, 20, 15, 13, 16, 945_000)),
    "connect_millis": (CONNECT_MILLIS, MOMENT, "timestamp", utc(2018, 6, 20, 15, 13, 16, 945_000)),
    "micros": (MICROS, MOMENT * 1000 + 104, "timestamp", utc(2018, 6, 20, 15, 13, 16, 945_104)),
    "nanos": (NANOS, -1000, "timestamp", utc(1969, 12, 31, 23, 59, 59, 999_999)),
    "iso_timestamp": (
        logical("string", f"{DEBEZIUM}IsoTimestamp"),
        "2018-06-20T15:13:16.945104Z",
        "timestamp",
        utc(2018, 6, 20, 15, 13, 16, 945_104),
    ),
    "zoned": (ZONED, "2018-06-20T15:13:16.945104+02:00", "timestamp", utc(2018, 6, 20, 13, 13, 16, 945_104)),
    "time": (logical("int32", f"{DEBEZIUM}Time"), 86_399_999, "bigint", 86_399_999),
    "connect_time": (logical("int32", f"{CONNECT}Time"), 86_399_999, "bigint", 86_399_999),
    "micro_time": (logical("int64", f"{DEBEZIUM}MicroTime"), 86_399_999_999, "bigint", 86_399_999_999),
    "nano_time": (logical("int64", f"{DEBEZIUM}NanoTime"), 86_399_999_999_999, "bigint", 86_399_999_999_999),
    "iso_time": (logical("string", f"{DEBEZIUM}IsoTime"), "15:13:16.945Z", "string", "15:13:16.945Z"),
    "zoned_time": (logical("string", f"{DEBEZIUM}ZonedTime"), "15:13:16+02:00", "string", "15:13:16+02:00"),
    "micro_duration": (
        logical("int64", f"{DEBEZIUM}MicroDuration"),
        -31_557_600_000_001,
        "bigint",
        -31_557_600_000_001,
    ),
    "interval": (logical("string", f"{DEBEZIUM}Interval"), "P1Y2M3DT4H5M6.78S", "string", "P1Y2M3DT4H5M6.78S"),
    "json": (logical("string", f"{DATA}Json"), '{"a": [1.50]}', "string", '{"a": [1.50]}'),
    "xml": (logical("string", f"{DATA}Xml"), "<a>1 &lt; 2</a>", "string", "<a>1 &lt; 2</a>"),
    "uuid": (logical("string", f"{DATA}Uuid"), "00-ff", "string", "00-ff"),
    "enum": (logical("string", f"{DATA}Enum"), "small", "string", "small"),
    "enum_set": (logical("string", f"{DATA}EnumSet"), "small,large", "string", "small,large"),
    "ltree": (logical("string", f"{DATA}Ltree"), "Top.Science", "string", "Top.Science"),
    "tsvector": (logical("string", f"{DATA}Tsvector"), "'fat':2 'rat':3", "string", "'fat':2 'rat':3"),
    "decimal": (decimal(2, 10), base64_of(-12_345), "decimal(10,2)", Decimal("-123.45")),
    "small_decimal": (decimal(5, 10), base64_of(7), "decimal(10,5)", Decimal("0.00007")),
    "long_decimal": (decimal(10), base64_of(10**38 - 1), "decimal(38,10)", Decimal("9" * 28 + "." + "9" * 10)),
    "every_long_digit": (
        decimal(0),
        base64_of(-12345678901234567890123456789012345678),
        "decimal(38,0)",
        Decimal(-12345678901234567890123456789012345678),
    ),
    "lowest_decimal": (decimal(0), base64_of(-(10**37)), "decimal(38,0)", Decimal(-(10**37))),
    "largest_short": (decimal(0, 18), base64_of(10**18 - 1), "decimal(18,0)", Decimal(10**18 - 1)),
    "lowest_short": (decimal(18, 18), base64_of(-(10**18) + 1), "decimal(18,18)", Decimal("-0." + "9" * 18)),
    "every_digit": (decimal(18, 18), base64_of(123456789012345678), "decimal(18,18)", Decimal("0.123456789012345678")),
    "zero": (decimal(2, 4), base64_of(0), "decimal(4,2)", Decimal("0.00")),
    "longest_decimal": (decimal(30, 65), base64_of(1 - 10**38), "string", "-" + "9" * 8 + "." + "9" * 30),
    "variable": (VARIABLE, {"scale": 3, "value": base64_of(-1_005)}, "string", "-1.005"),
    "variable_large": (VARIABLE, {"scale": -2, "value": base64_of(15)}, "string", "1500"),
    "array": (DATES, [0, None, 1], "array<date>", [dt.date(1970, 1, 1), None, dt.date(1970, 1, 2)]),
    "float_vector": (
        {**logical("array", f"{DATA}FloatVector"), "items": {"type": "float"}},
        [0.5, -2.0],
        "array<float>",
        [0.5, -2.0],
    ),
    "double_vector": (
        {**logical("array", f"{DATA}DoubleVector"), "items": {"type": "double"}},
        [0.1, -2.0],
        "array<double>",
        [0.1, -2.0],
    ),
    "sparse_vector": (
        semantic_struct(f"{DATA}SparseDoubleVector", SPARSE),
        # Kafka Connect writes a map without texts as keys as pairs.
        {"dimensions": 9, "vector": [[1, 0.5], [7, -2.25]]},
        "struct<dimensions:smallint,vector:string>",
        {"dimensions": 9, "vector": "[[1,0.5],[7,-2.25]]"},
    ),
    "map": (TEXTS, {"a": "x", "b": None}, "map<string,string>", {"a": "x", "b": None}),
    "struct": (struct(x=DOUBLE, y=INT), {"x": 1.5, "y": None}, "struct<x:double,y:bigint>", {"x": 1.5, "y": None}),
    "point": (
        POINT,
        {"x": 1.0, "y": 2.0, "wkb": WKB_TEXT, "srid": None},
        "struct<x:double,y:double,wkb:binary,srid:int>",
        {"x": 1.0, "y": 2.0, "wkb": OCTETS, "srid": None},
    ),
    "geometry": (
        semantic_struct(f"{GEOMETRY}Geometry", {**WKB, "extensions": TEXTS}),
        {"wkb": WKB_TEXT, "srid": 4326, "extensions": {"type": "path", "closed": "true"}},
        "struct<wkb:binary,srid:int,extensions:map<string,string>>",
        {"wkb": OCTETS, "srid": 4326, "extensions": {"type": "path", "closed": "true"}},
    ),
    "geography": (
        semantic_struct(f"{GEOMETRY}Geography", WKB),
        {"wkb": WKB_TEXT, "srid": 4326},
        "struct<wkb:binary,srid:int>",
        {"wkb": OCTETS, "srid": 4326},
    ),
    "circle": (
        semantic_struct(f"{GEOMETRY}Circle", {"center": POINT, "radius": DOUBLE}),
        {"center": {"x": 1.0, "y": 2.0, "wkb": WKB_TEXT, "srid": None}, "radius": 0.5},
        "struct<center:struct<x:double,y:double,wkb:binary,srid:int>,radius:double>",
        {"center": {"x": 1.0, "y": 2.0, "wkb": OCTETS, "srid": None}, "radius": 0.5},
    ),
    "line": (
        semantic_struct(f"{GEOMETRY}Line", {"a": DOUBLE, "b": DOUBLE, "c": DOUBLE}),
        {"a": 1.0, "b": -1.0, "c": 0.5},
        "struct<a:double,b:double,c:double>",
        {"a": 1.0, "b": -1.0, "c": 0.5},
    ),
    "structured_date": structured(
        "StructuredDate", f"{DAY_COLUMN},specialValue:string", DAY | SPECIAL, specialValue="POSITIVE_INFINITY"
    ),
    "structured_time": structured(
        "StructuredTime", f"{CLOCK_COLUMN},precision:int", CLOCK | PRECISION, **CLOCK_VALUE, precision=9
    ),
    "structured_zoned_time": structured(
        "StructuredZonedTime",
        f"{CLOCK_COLUMN},offsetSeconds:int,precision:int",
        CLOCK | {"offsetSeconds": NUMBER} | PRECISION,
        **CLOCK_VALUE,
        offsetSeconds=7200,
    ),
    "structured_timestamp": structured(
        "StructuredTimestamp",
        f"{DAY_COLUMN},{CLOCK_COLUMN},specialValue:string,precision:int",
        DAY | CLOCK | SPECIAL | PRECISION,
        **DAY_VALUE,
        **CLOCK_VALUE,
    ),
    "structured_zoned_timestamp": structured(
        "StructuredZonedTimestamp",
        f"{DAY_COLUMN},{CLOCK_COLUMN},offsetSeconds:int,zoneId:string,specialValue:string,precision:int",
        DAY | CLOCK | ZONE | SPECIAL | PRECISION,
        **DAY_VALUE,
        **CLOCK_VALUE,
        offsetSeconds=7200,
        zoneId="Europe/Berlin",
    ),
    "structured_duration": structured(
        "StructuredDuration",
        "years:int,months:int,days:int,hours:int,minutes:int,seconds:bigint,nanos:int,precision:int",
        DURATION | PRECISION,
        days=-1,
        seconds=2**40,
    ),
}


#: Number of batches that the columns are divided among: a plan of all columns takes long to compile.
BATCHES = 4


@pytest.mark.full
@pytest.mark.parametrize("number", range(BATCHES))
def test_each_schema_type_is_decoded_to_its_column_type(spark: SparkSession, number: int) -> None:
    values = {name: VALUES[name] for name in list(VALUES)[number::BATCHES]}
    schema = struct(id=INT, **{name: schema_type for name, (schema_type, *_) in values.items()})
    full_row = {"id": 1, **{name: value for name, (_, value, *_) in values.items()}}
    messages = [row_message(row, schema) for row in (full_row, {**dict.fromkeys(full_row), "id": 2})]
    with decode(frame(spark, messages), table=None) as batch:
        assert reasons(batch) == {}
        column_types, stored = types(batch), rows_by_id(batch)
    assert {name: column_types[name] for name in values} == {name: type_ for name, (*_, type_, _) in values.items()}
    expected = {name: value for name, (*_, value) in values.items()}
    # NaN is not equal to itself.
    assert {name: "nan" if stored[1][name] != stored[1][name] else stored[1][name] for name in values} == expected
    assert {stored[2][name] for name in values} == {None}
