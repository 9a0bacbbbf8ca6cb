"""Versions of a table and its side table that follow each other without a commit of another writer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import DateType, LongType, StructField

from writer_jobs.merge.newest_sequence import TableVersions

FOUND = TableVersions(StructField("at", LongType()), "a table", 3, 7)


@pytest.mark.parametrize(
    ("changes", "follow"),
    [
        ({"version": 4}, True),
        ({"version": 4, "side_version": 8}, True),
        ({}, False),
        ({"side_version": 8}, False),
        ({"version": 5}, False),
        ({"version": 5, "side_version": 8}, False),
        ({"version": 4, "side_version": 9}, False),
        ({"version": 4, "side_version": 6}, False),
        ({"version": 4, "side_version": None}, False),
        ({"version": 4, "table_id": "another table"}, False),
        ({"version": 4, "sequence": StructField("at", DateType())}, False),
        ({"version": 4, "sequence": StructField("day", LongType())}, False),
    ],
)
def test_one_commit_to_each_table_at_most(changes: dict[str, Any], *, follow: bool) -> None:
    assert replace(FOUND, **changes).follow(FOUND) == follow


def test_tables_without_a_side_table() -> None:
    found = replace(FOUND, side_version=None)
    assert replace(found, version=4).follow(found)
    assert not replace(found, version=4, side_version=0).follow(found)
