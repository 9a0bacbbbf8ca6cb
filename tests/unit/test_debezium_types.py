"""The table of types in docs/how-to/cdc.md: each of its rows, each type of the code and each of Debezium's in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, TimestampNTZType

from tests.integration.test_debezium_types import VALUES
from writer_jobs.feeds.debezium.decoders import _PRIMITIVE, _SEMANTIC, connect_decoder

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cdc.md"
#: Kafka Connect's other spellings of the types ``float`` and ``double``.
_ALIASES = {"float32", "float64"}
#: The constants ``LOGICAL_NAME`` and ``SCHEMA_NAME`` of the types of values in Debezium 3.7: the packages
#: ``io.debezium.data``, ``.data.geometry``, ``.data.vector`` and ``.time``, and ``Ltree.java`` of the PostgreSQL
#: connector. ``LOGICAL_NAME`` in ``org.apache.kafka.connect.data`` of Kafka Connect.
SEMANTIC_NAMES = {
    *(
        f"io.debezium.data.{name}"
        for name in (
            *("Bits", "Enum", "EnumSet", "Json", "Ltree", "Tsvector", "Uuid", "VariableScaleDecimal", "Xml"),
            *("DoubleVector", "FloatVector", "SparseDoubleVector"),
        )
    ),
    *(f"io.debezium.data.geometry.{name}" for name in ("Circle", "Geography", "Geometry", "Line", "Point")),
    *(
        f"io.debezium.time.{name}"
        for name in (
            *("Date", "Interval", "IsoDate", "IsoTime", "IsoTimestamp", "MicroDuration", "MicroTime", "MicroTimestamp"),
            *("NanoDuration", "NanoTime", "NanoTimestamp", "Time", "Timestamp", "Year", "ZonedTime", "ZonedTimestamp"),
            *("StructuredDate", "StructuredDuration", "StructuredTime", "StructuredTimestamp"),
            *("StructuredZonedTime", "StructuredZonedTimestamp"),
        )
    ),
    *(f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Decimal", "Time", "Timestamp")),
}
#: Types that only connectors of other databases than those of the page write: Cassandra.
_OF_OTHER_DATABASES = {"io.debezium.time.NanoDuration"}
#: Types that only columns of the table have.
_TABLE_TYPES = {data_type.simpleString(): data_type for data_type in (LongType(), StringType(), TimestampNTZType())}
_PARAMETERS = {"decimal(p,s)": r"decimal\(\d+,\d+\)", "decimal(38,s)": r"decimal\(38,\d+\)"}


def documented_types() -> list[tuple[str, str, tuple[str, ...]]]:
    """Return Connect's type, the semantic type or an empty text, and the types of the column of each row."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("### Types of columns") : text.index("### Flattened events")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    return [(*_schema_names(schema), tuple(re.findall("`([^`]+)`", column))) for _, schema, column in rows[1:]]


def _schema_names(schema: str) -> tuple[str, str]:
    names = re.findall("`([^`]+)`", schema)
    return names[0], names[1] if len(names) > 1 else ""


def has_type(columns: tuple[str, ...], data_type: str) -> bool:
    """Return whether a row names a type; ``struct`` and ``array`` name all their types."""
    patterns = (_PARAMETERS.get(column, re.escape(column)) for column in columns)
    return any(re.fullmatch(rf"{pattern}(<.*>)?", data_type) for pattern in patterns)


@pytest.mark.parametrize(("connect_type", "name", "columns"), documented_types())
def test_a_documented_type_has_a_value_of_each_column(connect_type: str, name: str, columns: tuple[str, ...]) -> None:
    schemas = [
        schema for schema, *_ in VALUES.values() if (schema["type"], schema.get("name", "")) == (connect_type, name)
    ]
    decoders = [connect_decoder(schema) for schema in schemas]
    new_types = [decoder.type.simpleString() for decoder in decoders]
    assert new_types, "add a value to VALUES"
    assert all(has_type(columns, data_type) for data_type in new_types)
    for column in columns:
        if not any(has_type((column,), data_type) for data_type in new_types):
            assert {decoder.for_column(_TABLE_TYPES[column]).type for decoder in decoders} == {_TABLE_TYPES[column]}


def test_each_type_of_the_code_and_of_debezium_is_documented() -> None:
    documented = documented_types()
    names = {name for _, name, _ in documented if name}
    assert names == SEMANTIC_NAMES - _OF_OTHER_DATABASES
    assert set(_SEMANTIC) <= names
    assert set(_PRIMITIVE) - _ALIASES <= {connect_type for connect_type, _, _ in documented}
    assert {(schema["type"], schema.get("name", "")) for schema, *_ in VALUES.values()} == {
        (connect_type, name) for connect_type, name, _ in documented
    }


def test_negative_control_a_misspelled_type_is_not_a_column() -> None:
    assert has_type(("decimal(p,s)", "decimal(38,s)", "string"), "decimal(38,10)")
    assert has_type(("array",), "array<struct<x:int>>")
    assert not has_type(("decimal(p,s)",), "decimal(10)")
    assert not has_type(("string", "struct"), "map<string,string>")
