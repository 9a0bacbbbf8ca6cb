"""Event times in microseconds, and the limits beyond which a row is late or too late."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, DateType, TimestampType

from writer_jobs.delta.moments import FIRST_MICROS, LAST_MICROS, MICROSECOND, micros_of_moment, moment_of_micros
from writer_jobs.delta.sql_names import quoted

_DAY_MICROS = timedelta(days=1) // MICROSECOND

EVENT_MICROS = "__sluice_event_micros"
"""Column of :func:`with_micros`."""

# In some time zones Python cannot represent the first and the last day.
_MARGIN = 2 * _DAY_MICROS
#: Allowed event times in microseconds since the epoch: the years 1 to 9999, without two days at each end.
EVENT_RANGE = (FIRST_MICROS + _MARGIN, LAST_MICROS - _MARGIN)


@dataclass(frozen=True, kw_only=True)
class LatenessLimits:
    """Limits on the age of a row relative to the newest event time.

    Attributes:
        watermark_delay: Time between the newest event time and the watermark. A row before the watermark is late.
        allowed: Rows that are older than the newest event time by more than this are too late; None: no row is.

    """

    watermark_delay: timedelta
    allowed: timedelta | None

    def watermark(self, newest: datetime | None) -> datetime | None:
        """Return the watermark for a newest event time; None if there is none."""
        return None if newest is None else moment_of_micros(_micros_before(newest, self.watermark_delay))

    def is_late(self, newest: datetime | None) -> Column:
        """Return the condition that a row is late or too late after a newest event time."""
        return _is_older(newest, self.watermark_delay)

    def is_too_late(self, newest: datetime | None) -> Column:
        """Return the condition that a row is too late after a newest event time."""
        return _is_older(newest, self.allowed)


def is_event_time(data_type: DataType) -> bool:
    """Return whether a column of this type can be the event time: a timestamp or a date."""
    return isinstance(data_type, TimestampType | DateType)


def event_micros(value: Column, data_type: DataType) -> Column:
    """Return an event time in microseconds since the epoch; a date counts from its start in UTC."""
    return F.unix_date(value).cast("long") * _DAY_MICROS if isinstance(data_type, DateType) else F.unix_micros(value)


def with_micros(rows: DataFrame, event_time: str) -> DataFrame:
    """Add the column ``EVENT_MICROS`` with the values of :func:`event_micros`."""
    return rows.withColumn(EVENT_MICROS, event_micros(F.col(quoted(event_time)), rows.schema[event_time].dataType))


def _is_older(newest: datetime | None, limit: timedelta | None) -> Column:
    if newest is None or limit is None:
        return F.expr("false")
    return F.coalesce(F.col(EVENT_MICROS) < _micros_before(newest, limit), F.expr("false"))


def _micros_before(newest: datetime, span: timedelta) -> int:
    """Return the time ``span`` before ``newest``, in microseconds since the epoch; at least ``FIRST_MICROS``."""
    return max(FIRST_MICROS, micros_of_moment(newest) - span // MICROSECOND)
