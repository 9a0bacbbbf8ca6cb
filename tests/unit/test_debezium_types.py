"""The table of types in docs/how-to/cdc.md: each of its rows, and each type of the code in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from writer_jobs.feeds.debezium.decoders import _PRIMITIVE, _SEMANTIC, connect_decoder

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cdc.md"
#: Kafka Connect's other spellings of the types ``float`` and ``double``.
_ALIASES = {"float32", "float64"}
_PARAMETERS = {"scale": "2", "connect.decimal.precision": "10"}


def documented_types() -> list[tuple[str, str, str]]:
    """Return Connect's type, the semantic type or an empty text, and the column of each row."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("### Types of columns") : text.index("### Flattened events")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    return [(*_schema_names(schema), re.findall("`([^`]+)`", column)[0]) for _, schema, column in rows[1:]]


def _schema_names(schema: str) -> tuple[str, str]:
    names = re.findall("`([^`]+)`", schema)
    return names[0], names[1] if len(names) > 1 else ""


def schema_of(connect_type: str, name: str) -> dict[str, Any]:
    """Return a schema of a type; nested types contain strings."""
    text = {"type": "string"}
    nested: dict[str, dict[str, Any]] = {
        "array": {"items": text},
        "map": {"keys": text, "values": text},
        "struct": {"fields": [{"field": "x", "type": "string"}]},
    }
    schema = {"type": connect_type, **({"name": name} if name else {}), **nested.get(connect_type, {})}
    return schema | ({"parameters": _PARAMETERS} if name.endswith(".Decimal") else {})


@pytest.mark.parametrize(("connect_type", "name", "column"), documented_types())
def test_a_documented_type_becomes_its_column(connect_type: str, name: str, column: str) -> None:
    data_type = connect_decoder(schema_of(connect_type, name)).type.simpleString()
    expected = {"decimal(p,s)": "decimal(10,2)", "array": "array<string>", "struct": "struct<x:string>"}
    assert data_type == expected.get(column, column)


def test_each_type_of_the_code_is_documented() -> None:
    documented = documented_types()
    assert set(_SEMANTIC) <= {name for _, name, _ in documented}
    assert set(_PRIMITIVE) - _ALIASES <= {connect_type for connect_type, _, _ in documented}
