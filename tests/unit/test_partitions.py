"""What a partition is called: one form for each value, and the one order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from lock_manager import Partition, PartitionColumn, PartitionSchema, ResourceError
from lock_manager.partitions import smallest_cover
from lock_manager.zookeeper.znodes import partition_node


def schema(kind: str, **more: str) -> PartitionSchema:
    return PartitionSchema((PartitionColumn("p", kind),), **more)


def form(kind: str, value: object, **more: str) -> str | None:
    ((_, found),) = schema(kind, **more).partition({"p": value}).values
    return found


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("integer", [1, "1", "01", " 1 ", "+1"], "1"),
        ("long", [-5, "-5"], "-5"),
        ("string", ["01"], "01"),
        ("string", ["a/b=c d%é"], "a/b=c d%é"),
        ("boolean", [True, "true", "TRUE"], "true"),
        ("date", [date(2013, 1, 2), "2013-01-02"], "2013-01-02"),
        ("decimal(10,2)", [Decimal("1.1"), "1.10", "1.1", (1.10).__str__()], "1.10"),
        (
            "timestamp",
            [
                datetime(2013, 1, 2, 3, tzinfo=UTC),
                "2013-01-02T03:00:00.000000Z",
                "2013-01-02 03:00:00",
                "2013-01-02 04:00:00+01:00",
            ],
            "2013-01-02T03:00:00.000000Z",
        ),
        ("timestamp_ntz", [datetime(2013, 1, 2, 3), "2013-01-02 03:00:00"], "2013-01-02T03:00:00.000000"),  # noqa: DTZ001
        ("integer", [None, ""], None),
        ("string", [None, ""], None),
    ],
)
def test_spellings_of_a_value_are_one(kind: str, values: list[object], expected: str | None) -> None:
    assert {form(kind, value) for value in values} == {expected}


def test_a_moment_without_a_zone_is_of_the_session_s() -> None:
    assert form("timestamp", "2013-01-02 04:00:00", time_zone="Europe/Zurich") == "2013-01-02T03:00:00.000000Z"
    assert form("timestamp", "2013-01-02 04:00:00", time_zone="+01:00") == "2013-01-02T03:00:00.000000Z"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "one"), ("integer", 1.5), ("integer", True), ("integer", 2**31), ("byte", 128), ("string", 1),
        ("boolean", "yes"), ("date", "2013-13-01"), ("date", datetime(2013, 1, 1)), ("decimal(10,2)", "1.234"),  # noqa: DTZ001
        ("decimal(10,2)", 1.1), ("timestamp", "noon"), ("timestamp_ntz", "2013-01-02T03:00:00Z"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(kind: str, value: object) -> None:
    with pytest.raises(ResourceError, match="does not fit the"):
        form(kind, value)


@pytest.mark.parametrize("kind", ["double", "float", "binary", "struct<a:int>"])
def test_a_type_without_exact_values_is_refused(kind: str) -> None:
    with pytest.raises(ResourceError, match="lock the table"):
        schema(kind)


BOTH = PartitionSchema((PartitionColumn("Year", "integer"), PartitionColumn("month", "integer", "col-1")))


def test_the_first_columns_are_enough_in_any_case_and_order() -> None:
    whole = BOTH.partition({"MONTH": 1, "year": 2013})
    assert whole.values == (("Year", "2013"), ("col-1", "1"))
    assert BOTH.partition({"year": "2013"}).contains(whole)
    assert not whole.contains(BOTH.partition({"year": 2013}))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"month": 1}, "the value of 'Year' is missing"),
        ({"day": 1}, "'day' is not a partition column; those are Year, month"),
        ({}, "leave partitions out"),
    ],
)
def test_other_columns_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ResourceError, match=sentence):
        BOTH.partition(values)


def test_a_file_s_partition_is_found_by_physical_names_and_what_is_missing_is_null() -> None:
    assert BOTH.touched({"Year": "2013", "col-1": "01"}) == BOTH.partition({"year": 2013, "month": 1})
    assert BOTH.touched({"Year": "2013"}) == BOTH.partition({"year": 2013, "month": None})
    with pytest.raises(ResourceError, match="do not fit"):
        BOTH.touched({"Year": "2013", "month": "1"})


def test_names_are_hive_s() -> None:
    found = PartitionSchema((PartitionColumn("a=b", "string"), PartitionColumn("c", "string")))
    partition = found.partition({"a=b": "x/y:z é", "c": None})
    assert partition.components == ("a%3Db=x%2Fy%3Az é", "c=__HIVE_DEFAULT_PARTITION__")
    assert partition_node("/t", partition) == "/t/partitions/a%3Db=x%2Fy%3Az é/partitions/c=__HIVE_DEFAULT_PARTITION__"


def test_the_cover_is_in_order_and_has_nothing_twice() -> None:
    def part(*values: int) -> Partition:
        return BOTH.partition(dict(zip(("year", "month"), values, strict=False)))

    assert smallest_cover([part(2014, 2), part(2013), part(2013, 1), part(2014, 2)]) == (part(2013), part(2014, 2))
