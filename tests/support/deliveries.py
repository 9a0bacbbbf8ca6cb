"""Changes in random order, in batches and with repetitions; values that are easily changed; the kill of a process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

#: Twelve different texts. Some reader, partition or cast has changed each of them.
AWKWARD_TEXTS = (
    "", "1", " 12 ", "yes", "null", "1e400", "0." + "1" * 40, 'a "b", \'c\'\\\n\r\nd', "2026-10-25T02:30:00", "{}",
    "__HIVE_DEFAULT_PARTITION__", "gr\u00fcn\u2028",
)  # fmt: skip
#: Timestamps around the clock changes of Europe/Berlin.
CLOCK_CHANGES = (
    "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00+02:00", "2026-03-29T01:00:00.5Z",
)  # fmt: skip
#: Share of the changes that are delivered once; the others are delivered three times.
_SINGLE_SHARE = 0.7
#: Numbers of random histories: in CI and in soaks.
HISTORIES = pytest.mark.parametrize("number", [500, pytest.param(20_000, marks=pytest.mark.soak)])

#: Two timestamps with the local time 02:30 in this zone, because clocks are put back between them.
ZONE, FIRST_TIME, SECOND_TIME = "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"
_MIDNIGHT = datetime(2026, 10, 25, tzinfo=UTC)
#: SQL of a nested value of a row with ``key``, ``at`` (an integer) and ``value``.
DETAIL = (
    f"named_struct('text', value, 'times', array(timestamp_seconds({int(_MIDNIGHT.timestamp())}L + at * 180), null), "
    "'more', map(key, value))"
)

_T = TypeVar("_T")


class Killed(BaseException):
    """Stands for a process that is killed."""


def kill_process(*_: object, **__: object) -> None:
    """Raise :class:`Killed`, as if the process were killed within the function that a test replaces with this one."""
    raise Killed


def odd_text(number: int, name: str) -> str:
    """Return a text that readers, casts or JSON could change.

    Args:
        number: Selects the text; 0 gives the empty text. Texts of successive numbers can be numerically equal.
        name: Part of each text that is neither empty nor a number.

    """
    texts = (
        name, f"{number // 2}.0", f"{number // 2}.00", f'"{name}"', f"it's\n{name}\r\n", f" {name}\\",
        f"{name},\t;å\u2028",
    )  # fmt: skip
    return "" if number == 0 else texts[number % len(texts)]


def detail_of(key: str, at: int, value: str) -> dict[str, Any]:
    """Return the value of :data:`DETAIL` for a row, as delta-rs reads it."""
    return {"text": value, "times": [_MIDNIGHT + timedelta(minutes=3 * at), None], "more": [(key, value)]}


@contextmanager
def session_time_zone(spark: SparkSession, zone: str = ZONE) -> Iterator[None]:
    """Change the time zone of a session within the block."""
    setting = "spark.sql.session.timeZone"
    previous = str(spark.conf.get(setting))
    spark.conf.set(setting, zone)
    try:
        yield
    finally:
        spark.conf.set(setting, previous)


def shuffled_batches(seed: int, changes: list[_T], batch_count: int) -> list[list[_T]]:
    """Distribute changes over batches at random and in random order; some changes appear three times."""
    generator = random.Random(seed)
    batches: list[list[_T]] = [[] for _ in range(batch_count)]
    for change in changes:
        for _ in range(1 if generator.random() < _SINGLE_SHARE else 3):
            batches[generator.randrange(batch_count)].append(change)
    for batch in batches:
        generator.shuffle(batch)
    return batches
