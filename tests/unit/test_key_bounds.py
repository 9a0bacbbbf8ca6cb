"""The bounds of a batch's keys hold all keys, and are the same for batches of similar keys."""

from __future__ import annotations

import random

import pytest
from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, StringType, TimestampType

from writer_jobs.merge.key_bounds import _rounded

LIMITS: dict[type[DataType], int] = {ByteType: 2**7, IntegerType: 2**31, LongType: 2**63, TimestampType: 2**62}


@pytest.mark.parametrize("key_type", LIMITS)
def test_rounded_bounds_hold_all_keys_and_are_close(key_type: type[DataType]) -> None:
    numbers, limit = random.Random(5), LIMITS[key_type]
    for _ in range(2000):
        largest = 2 ** numbers.randrange(1, limit.bit_length() + 1)
        least, most = sorted(max(-limit, min(numbers.randrange(-largest, largest), limit - 1)) for _ in range(2))
        for pair in ((least, most), (-limit, most), (least, limit - 1), (least, least)):
            low, high = _rounded(*pair, key_type())
            assert low <= pair[0] <= pair[1] <= high
            assert max(pair[0] - low, high - pair[1]) <= (pair[1] - pair[0]) / 8
            assert key_type is TimestampType or -limit <= low <= high < limit


def test_batches_of_similar_keys_have_the_same_bounds() -> None:
    numbers = random.Random(5)
    batches = [[numbers.randrange(100_000) for _ in range(4000)] for _ in range(20)]
    assert len({_rounded(min(keys), max(keys), LongType()) for keys in batches}) == 1
    assert len({(min(keys), max(keys)) for keys in batches}) > 10


def test_bounds_of_texts_stay() -> None:
    assert _rounded("a", "b", StringType()) == ("a", "b")
