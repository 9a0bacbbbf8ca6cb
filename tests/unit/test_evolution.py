"""Which types hold which values: exactly, by widening, or not."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.changes.evolution import confuses, joined, loses

# Of the table, of the changes. What is too large for a whole number is an error of Spark's.
KEEPS: list[tuple[DataType, DataType]] = [
    (IntegerType(), IntegerType()),
    (LongType(), IntegerType()),
    (IntegerType(), LongType()),
    (DoubleType(), IntegerType()),
    (DoubleType(), FloatType()),
    (StringType(), IntegerType()),
    (DecimalType(12, 4), DecimalType(10, 4)),
    (TimestampType(), DateType()),
]
CUTS: list[tuple[DataType, DataType]] = [
    (FloatType(), DoubleType()),
    (DoubleType(), LongType()),
    (IntegerType(), DoubleType()),
    (IntegerType(), DecimalType(5, 2)),
    (DecimalType(10, 2), DecimalType(10, 4)),
    (DecimalType(10, 2), DoubleType()),
    (DateType(), TimestampType()),
    (DateType(), TimestampNTZType()),
]


@pytest.mark.parametrize(("table", "changes"), KEEPS)
def test_a_value_that_stays_what_it_is_may_come(table: DataType, changes: DataType) -> None:
    assert not loses(table, changes)
    assert not confuses(table, changes)


@pytest.mark.parametrize(("table", "changes"), CUTS)
def test_a_value_that_would_become_another_one_is_found(table: DataType, changes: DataType) -> None:
    assert loses(table, changes)
    assert confuses(table, changes)
    assert joined(table, changes) == changes


# As a value this is the same in one time zone; as a key it is another one in another.
@pytest.mark.parametrize(
    ("table", "keys"),
    [(StringType(), TimestampType()), (TimestampType(), TimestampNTZType()), (LongType(), TimestampType())],
)
def test_a_moment_is_a_key_as_such_only(table: DataType, keys: DataType) -> None:
    assert (loses(table, keys), confuses(table, keys)) == (False, True)


@pytest.mark.parametrize(
    ("table", "rows", "is_kept"),
    [
        (LongType(), IntegerType(), True),
        (IntegerType(), LongType(), False),
        (StringType(), IntegerType(), True),
        (StructType([]), StructType([StructField("a", LongType())]), False),
    ],
)
def test_rows_take_the_type_of_a_column_that_keeps_each_value(
    table: DataType, rows: DataType, *, is_kept: bool
) -> None:
    assert joined(table, rows) == (table if is_kept else rows)
