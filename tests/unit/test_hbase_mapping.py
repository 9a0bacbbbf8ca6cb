"""Mapping files: a malformed mapping is refused, and the error names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from writer_jobs.errors import MappingError
from writer_jobs.feeds.hbase.mapping import HBaseMapping

ID = {"column": "id", "type": "string"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("{", "not JSON"),
        ([], "give an object"),
        ({}, "lacks row_key"),
        ({"row_key": []}, "list of parts"),
        ({"row_key": [ID], "colums": {}}, "has unknown fields: colums"),
        ({"row_key": [{"column": "id"}]}, "part 1 of row_key lacks type"),
        ({"row_key": [{**ID, "type": "text:double"}]}, "part 1 of row_key, type: choose one of"),
        ({"row_key": [ID, {**ID, "column": "b"}]}, "part 1 of row_key has no end"),
        ({"row_key": [{**ID, "until": "|"}]}, "is the last one"),
        ({"row_key": [{**ID, "until": "|", "length": 2}, ID]}, "until and length"),
        ({"row_key": [{**ID, "length": 0}]}, "1 or more"),
        ({"row_key": [ID], "columns": {"name": None}}, "not family:qualifier"),
        ({"row_key": [ID], "columns": {"d:n": {"type": "varchar"}}}, "there is no type 'varchar'"),
        ({"row_key": [ID], "columns": {"d:n": {"type": "decimal(40,2)"}}}, "1 to 38 digits"),
        ({"row_key": [ID], "columns": {"d:n": {"column": "ID", "type": "int"}}}, "twice"),
        ({"row_key": [ID], "encoding": "latin-1"}, "encoding: choose one of"),
        ({"row_key": [ID], "proxy_deletes": "Put"}, "proxy_deletes: choose one of"),
    ],
)
def test_a_malformed_mapping_is_refused(mapping: Any, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        HBaseMapping.parsed(mapping if isinstance(mapping, str) else json.dumps(mapping))
