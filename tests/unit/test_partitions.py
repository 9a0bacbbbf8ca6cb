"""Names of partitions: equal values have one normalised form, and a cover of partitions has one order."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from lock_manager import Partition, PartitionColumn, PartitionSchema, ResourceError
from lock_manager.partitions import smallest_cover
from lock_manager.zookeeper.znodes import partition_node


def schema(column_type: str, **options: str) -> PartitionSchema:
    return PartitionSchema((PartitionColumn("p", column_type),), **options)


def normal_form(column_type: str, value: object, **options: str) -> str | None:
    ((_, text),) = schema(column_type, **options).partition({"p": value}).values
    return text


@pytest.mark.parametrize(
    ("column_type", "values", "expected"),
    [
        ("integer", [1, "1", "01", " 1 ", "+1"], "1"),
        ("long", [-5, "-5"], "-5"),
        ("string", ["01"], "01"),
        ("string", ["a/b=c d%é"], "a/b=c d%é"),
        ("boolean", [True, "true", "TRUE"], "true"),
        ("date", [date(2013, 1, 2), "2013-01-02"], "2013-01-02"),
        ("decimal(10,2)", [Decimal("1.1"), "1.10", "1.1"], "1.10"),
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
def test_all_spellings_of_a_value_have_one_form(column_type: str, values: list[object], expected: str | None) -> None:
    assert {normal_form(column_type, value) for value in values} == {expected}


def test_a_timestamp_without_a_zone_is_in_the_session_zone() -> None:
    assert normal_form("timestamp", "2013-01-02 04:00:00", time_zone="Europe/Zurich") == "2013-01-02T03:00:00.000000Z"
    assert normal_form("timestamp", "2013-01-02 04:00:00", time_zone="+01:00") == "2013-01-02T03:00:00.000000Z"


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("integer", "one"), ("integer", 1.5), ("integer", True), ("integer", 2**31), ("byte", 128), ("string", 1),
        ("boolean", "yes"), ("date", "2013-13-01"), ("date", datetime(2013, 1, 1)), ("decimal(10,2)", "1.234"),  # noqa: DTZ001
        ("decimal(10,2)", 1.1), ("timestamp", "noon"), ("timestamp_ntz", "2013-01-02T03:00:00Z"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(column_type: str, value: object) -> None:
    with pytest.raises(ResourceError, match="does not fit the"):
        normal_form(column_type, value)


@pytest.mark.parametrize("column_type", ["double", "float", "binary", "struct<a:int>"])
def test_a_type_without_exact_values_is_refused(column_type: str) -> None:
    with pytest.raises(ResourceError, match="lock the table"):
        schema(column_type)


YEAR_MONTH = PartitionSchema((PartitionColumn("Year", "integer"), PartitionColumn("month", "integer", "col-1")))


def test_leading_columns_suffice_in_any_case_and_order() -> None:
    january = YEAR_MONTH.partition({"MONTH": 1, "year": 2013})
    assert january.values == (("Year", "2013"), ("col-1", "1"))
    assert YEAR_MONTH.partition({"year": "2013"}).contains(january)
    assert not january.contains(YEAR_MONTH.partition({"year": 2013}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"month": 1}, "the value of 'Year' is missing"),
        ({"day": 1}, "'day' is not a partition column; the partition columns are Year, month"),
        ({}, "omit the argument partitions"),
    ],
)
def test_missing_and_unknown_columns_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ResourceError, match=message):
        YEAR_MONTH.partition(values)


def test_a_file_s_partition_has_physical_names_and_nulls() -> None:
    assert YEAR_MONTH.partition_of_file({"Year": "2013", "col-1": "01"}) == YEAR_MONTH.partition(
        {"year": 2013, "month": 1}
    )
    assert YEAR_MONTH.partition_of_file({"Year": "2013"}) == YEAR_MONTH.partition({"year": 2013, "month": None})
    with pytest.raises(ResourceError, match="do not fit"):
        YEAR_MONTH.partition_of_file({"Year": "2013", "month": "1"})


def test_znode_names_are_encoded_as_in_hive() -> None:
    columns = PartitionSchema((PartitionColumn("a=b", "string"), PartitionColumn("c", "string")))
    partition = columns.partition({"a=b": "x/y:z é", "c": None})
    assert partition.components == ("a%3Db=x%2Fy%3Az é", "c=__HIVE_DEFAULT_PARTITION__")
    assert partition_node("/t", partition) == "/t/partitions/a%3Db=x%2Fy%3Az é/partitions/c=__HIVE_DEFAULT_PARTITION__"


def test_the_smallest_cover_is_sorted_without_duplicates() -> None:
    def partition(*values: int) -> Partition:
        return YEAR_MONTH.partition(dict(zip(("year", "month"), values, strict=False)))

    assert smallest_cover([partition(2014, 2), partition(2013), partition(2013, 1), partition(2014, 2)]) == (
        partition(2013),
        partition(2014, 2),
    )
