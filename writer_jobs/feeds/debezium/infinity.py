"""PostgreSQL's ``infinity`` and ``-infinity`` in dates and times, which Delta does not have.

Debezium writes a text, or a number or a text of a year that most readers do not support, such as 294247.

Sources: Debezium's ``PostgresValueConverter.java`` (``POSITIVE_INFINITY_…``) and pull requests 1853, 7382 and 7927; the
PostgreSQL JDBC driver's ``PGStatement.java`` (``DATE_POSITIVE_INFINITY``, in milliseconds, which Debezium uses as
microseconds). Dates overflow in Debezium.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, DateType, TimestampNTZType

Infinity = Literal["dead-letter", "largest", "null"]
"""What an infinite date or time becomes."""
#: All values of :data:`Infinity`.
INFINITY_MODES: tuple[Infinity, ...] = get_args(Infinity)

_LARGEST_LONG, _SMALLEST_LONG = (1 << 63) - 1, -(1 << 63)
# Beyond these limits: Debezium's microseconds end there, although PostgreSQL has later times.
_LIMITS: Mapping[str, tuple[int, int]] = {
    "millis": (9_223_372_036_825_200, -9_223_372_036_832_400),
    "micros": (9_223_372_036_825_200_000, -9_223_372_036_832_400_000),
    "nanos": (_LARGEST_LONG, _SMALLEST_LONG),
}
# PostgreSQL's last date is in the year 5874897. The other numbers, and the years in the texts, have overflowed: in a
# stream, and in a snapshot with two possible time zones of the connector.
_LAST_DAY = 2_145_042_905
_DAYS = ((-2_147_472_692, -622_191_234, -622_191_233), (-2_147_472_691, -625_821_272, -625_821_271))
_DATES = (
    ("infinity", "-5877611-06-21Z", "+5877611-06-21Z", "+292278994-08-16Z", "+292278994-08-17Z"),
    ("-infinity", "-5877611-06-22Z", "+292269055-12-02Z", "+292269055-12-03Z"),
)
_TIMES = (("infinity", "+294247-01-10T04:00:25.2Z"), ("-infinity", "-290308-12-21T19:59:27.6Z"))

#: Encodings of dates and times; see :class:`writer_jobs.feeds.debezium.json_values.Decoder`.
TIME_ENCODINGS = frozenset({*_LIMITS, "days", "date", "zoned", "local"})

_LAST_DATE, _FIRST_DATE = "9999-12-31", "0001-01-01"
_LAST_LOCAL_TIME, _FIRST_LOCAL_TIME = f"{_LAST_DATE}T23:59:59.999999", f"{_FIRST_DATE}T00:00:00"
# In the years 9999 and 1 in every time zone, because readers convert a time to their own zone. Python's
# datetime.fromtimestamp reads the day before, too.
_LAST_TIME, _FIRST_TIME = f"{_LAST_DATE}T09:59:59.999999Z", "0001-01-02T12:00:00Z"


def infinity_sign(encoding: str, number: Column, text: Column) -> Column:
    """Return 1 for ``infinity``, -1 for ``-infinity`` and null for other values.

    Args:
        encoding: One of :data:`TIME_ENCODINGS`.
        number: The value as ``bigint``; null if it is not a JSON number.
        text: The value as text; null if it is not a JSON string.

    """
    if encoding in _LIMITS:
        largest, smallest = _LIMITS[encoding]
        return _sign(number >= largest, number <= smallest)
    if encoding == "days":
        return _sign(*_days(number))
    if encoding == "date":
        pairs = zip(_days(number), _DATES, strict=True)
        return _sign(*(F.coalesce(is_infinite, text.isin(*dates)) for is_infinite, dates in pairs))
    return _sign(*(text.isin(*times) for times in _TIMES))


def largest_value(sign: Column, data_type: DataType) -> Column:
    """Return the largest value of the years 1 to 9999, the smallest for the sign -1, and null for no sign."""
    if isinstance(data_type, DateType):
        largest, smallest = _LAST_DATE, _FIRST_DATE
    elif isinstance(data_type, TimestampNTZType):
        largest, smallest = _LAST_LOCAL_TIME, _FIRST_LOCAL_TIME
    else:
        largest, smallest = _LAST_TIME, _FIRST_TIME
    return F.when(sign == 1, F.lit(largest).cast(data_type)).when(sign == -1, F.lit(smallest).cast(data_type))


def _days(number: Column) -> tuple[Column, Column]:
    return number.isin(*_DAYS[0]) | (number > _LAST_DAY), number.isin(*_DAYS[1])


def _sign(is_positive: Column, is_negative: Column) -> Column:
    return F.when(is_positive, 1).when(is_negative, -1)
