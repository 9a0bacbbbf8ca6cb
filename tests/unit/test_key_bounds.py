"""The bounds of a batch's keys hold all keys, and are the same for batches of similar keys."""

from __future__ import annotations

import random

import pytest
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from writer_jobs.merge.key_bounds import KeyBounds, rounded

#: The smallest and the largest value of each type. Dates and times are those of the years 1900 to 9999.
LIMITS: dict[type[DataType], tuple[int, int]] = {
    ByteType: (-(2**7), 2**7 - 1),
    ShortType: (-(2**15), 2**15 - 1),
    IntegerType: (-(2**31), 2**31 - 1),
    LongType: (-(2**63), 2**63 - 1),
    DateType: (-25_566, 2_932_895),
    TimestampType: (-25_566 * 86_400_000_000, 2_932_895 * 86_400_000_000),
}


@pytest.mark.parametrize("key_type", LIMITS)
def test_rounded_bounds_hold_all_keys_and_are_close(key_type: type[DataType]) -> None:
    numbers, (smallest, largest) = random.Random(5), LIMITS[key_type]
    for _ in range(2000):
        size = 2 ** numbers.randrange(1, largest.bit_length() + 1)
        least, most = sorted(max(smallest, min(numbers.randrange(-size, size), largest)) for _ in range(2))
        for pair in ((least, most), (smallest, most), (least, largest), (least, least), (smallest, largest)):
            low, high = rounded(*pair, key_type())
            assert smallest <= low <= pair[0] <= pair[1] <= high <= largest
            assert max(pair[0] - low, high - pair[1]) <= (pair[1] - pair[0]) / 8


def test_batches_of_similar_keys_have_the_same_bounds() -> None:
    numbers = random.Random(5)
    batches = [[numbers.randrange(100_000) for _ in range(4000)] for _ in range(20)]
    assert len({rounded(min(keys), max(keys), LongType()) for keys in batches}) == 1
    assert len({(min(keys), max(keys)) for keys in batches}) > 10


@pytest.mark.parametrize(
    ("bounds", "key_type"), [(("a", "b"), StringType()), ((-30_000, 5), DateType()), ((5, 4_000_000), DateType())]
)
def test_texts_and_days_without_a_literal_keep_their_bounds(bounds: tuple[object, object], key_type: DataType) -> None:
    assert rounded(*bounds, key_type) == bounds


def test_limits_are_known_where_python_orders_values_as_spark() -> None:
    schema = StructType(
        [
            StructField("number", LongType()),
            StructField("text", StringType()),
            StructField("collated", StringType("UTF8_LCASE")),
            StructField("empty", LongType()),
        ]
    )
    bounds = KeyBounds(schema, schema.names)
    bounds.load({f"{bound} {name}": value for name in schema.names[:3] for bound, value in (("least", 1), ("most", 2))})
    assert [bounds.limits(name) for name in (*schema.names, "unknown")] == [(1, 2), (1, 2), None, None, None]
