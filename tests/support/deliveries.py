"""How changes arrive: in any order, cut anywhere, some again; and a process that ends in the middle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

#: Texts that readers, partitions or casts have changed: twelve, each another one.
AWKWARD_TEXTS = (
    "", "1", " 12 ", "yes", "null", "1e400", "0." + "1" * 40, 'a "b", \'c\'\\\n\r\nd', "2026-10-25T02:30:00", "{}",
    "__HIVE_DEFAULT_PARTITION__", "gr\u00fcn\u2028",
)  # fmt: skip
#: Moments around the clock changes of Europe/Berlin.
CLOCK_CHANGES = (
    "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00+02:00", "2026-03-29T01:00:00.5Z",
)  # fmt: skip
_ONCE = 0.7
#: The number of random histories in CI and in soaks.
HISTORIES = pytest.mark.parametrize("number", [500, pytest.param(20_000, marks=pytest.mark.soak)])

#: The local times of both begin with half past two in this zone, and clocks are put back in between.
ZONE, FIRST, SECOND = "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"
_MIDNIGHT = datetime(2026, 10, 25, tzinfo=UTC)
#: SQL of nested values of a row with ``key``, ``at`` (a whole number) and ``value``.
DETAIL = (
    f"named_struct('text', value, 'times', array(timestamp_seconds({int(_MIDNIGHT.timestamp())}L + at * 180), null), "
    "'more', map(key, value))"
)

_T = TypeVar("_T")


class Killed(BaseException):
    """Stands for the end of the process."""


def end_of_the_process(*_: object, **__: object) -> None:
    """End it."""
    raise Killed


def odd_text(number: int, name: str) -> str:
    """Return a text that readers, casts and JSON like to change.

    Args:
        number: Chooses the kind of the text: 0 is the empty text, and a number and the next one may have texts that
            are equal as numbers.
        name: Makes the text different from others.

    """
    kinds = (
        "",
        name,
        f"{number // 2}.0",
        f"{number // 2}.00",
        f'"{name}"',
        f"it's\n{name}\r\n",
        f" {name}\\",
        f"{name},\t;å\u2028",
    )
    return kinds[0] if number == 0 else kinds[1 + number % (len(kinds) - 1)]


def detail_of(key: str, at: int, value: str) -> dict[str, Any]:
    """Return what :data:`DETAIL` is of a row, as ``deltalake`` reads it."""
    return {"text": value, "times": [_MIDNIGHT + timedelta(minutes=3 * at), None], "more": [(key, value)]}


@contextmanager
def zone_of(spark: SparkSession, zone: str = ZONE) -> Iterator[None]:
    """Give a session another time zone for a while."""
    setting = "spark.sql.session.timeZone"
    previous = str(spark.conf.get(setting))
    spark.conf.set(setting, zone)
    try:
        yield
    finally:
        spark.conf.set(setting, previous)


def delivered(seed: int, changes: list[_T], batches: int) -> list[list[_T]]:
    """Return the changes in any order, cut anywhere, each at least once, many again."""
    chance = random.Random(seed)
    cut: list[list[_T]] = [[] for _ in range(batches)]
    for change in changes:
        for _ in range(1 if chance.random() < _ONCE else 3):
            cut[chance.randrange(batches)].append(change)
    for batch in cut:
        chance.shuffle(batch)
    return cut
