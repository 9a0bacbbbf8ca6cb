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
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.changes.evolution import loses

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


@pytest.mark.parametrize(("table", "changes"), CUTS)
def test_a_value_that_would_become_another_one_is_found(table: DataType, changes: DataType) -> None:
    assert loses(table, changes)
