"""Mapping files: a malformed mapping is refused, and the error names the place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from writer_jobs.errors import MappingError
from writer_jobs.feeds.hbase.mapping import HBaseMapping

ID = {"column": "id", "type": "string"}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("{", "the mapping is not JSON: "),
        ([], "the mapping: give an object"),
        ({}, "the mapping lacks row_key"),
        ({"row_key": []}, "row_key: give a list of parts"),
        ({"row_key": [ID], "colums": {}}, "the mapping has unknown fields: colums"),
        ({"row_key": [{"column": "id"}]}, "part 1 of row_key lacks type"),
        ({"row_key": [{**ID, "type": "text:double"}]}, "part 1 of row_key, type: choose one of"),
        ({"row_key": [ID, {**ID, "column": "b"}]}, "part 1 of row_key has no end"),
        ({"row_key": [{**ID, "until": "|"}]}, "part 1 of row_key is the last one"),
        ({"row_key": [{**ID, "until": "|", "length": 2}, ID]}, "part 1 of row_key has until and length"),
        ({"row_key": [{**ID, "length": 0}]}, "part 1 of row_key: length is a number"),
        ({"row_key": [ID], "columns": {"name": None}}, "columns: 'name' is not family:qualifier"),
        ({"row_key": [ID], "columns": {"d:n": {"type": "varchar"}}}, "column d:n, type: there is no type 'varchar'"),
        ({"row_key": [ID], "columns": {"d:n": {"type": "decimal(40,2)"}}}, "column d:n, type: decimal(40,2): "),
        ({"row_key": [ID], "new_columns": {"type": "varchar"}}, "new_columns.type: there is no type 'varchar'"),
        (
            {"row_key": [ID], "columns": {"d:n": {"column": "ID", "type": "int"}}},
            "the mapping names a column of the table twice: id, ID",
        ),
        ({"row_key": [ID], "families": ["d"]}, "families: give an object"),
        ({"row_key": [ID], "families": {"d:a": {"versions": 1}}}, "families: 'd:a' is not a name of letters"),
        ({"row_key": [ID], "families": {"d": 1}}, "family d: give an object with versions"),
        ({"row_key": [ID], "families": {"d": {}}}, "family d lacks versions"),
        ({"row_key": [ID], "families": {"d": {"versions": 1, "ttl": 5}}}, "family d has unknown fields: ttl"),
        *(
            ({"row_key": [ID], "families": {"d": {"versions": number}}}, "family d, versions: give 1, or leave out")
            for number in (2, 0, "1", True, 1.0, None)
        ),
        ({"row_key": [ID], "encoding": "latin-1"}, "encoding: choose one of"),
        ({"row_key": [ID], "proxy_deletes": "Put"}, "proxy_deletes: choose one of"),
    ],
)
def test_a_malformed_mapping_is_refused(mapping: Any, message: str) -> None:
    with pytest.raises(MappingError, match=f"^{re.escape(message)}"):
        HBaseMapping.parsed(mapping if isinstance(mapping, str) else json.dumps(mapping))
