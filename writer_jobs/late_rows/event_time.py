"""When a row is late: by its event time, beside the newest event time that came before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, DateType, TimestampType

from writer_jobs.delta.moments import FIRST_MICROS, LAST_MICROS, MICROSECOND, micros_of_moment, moment_of_micros
from writer_jobs.delta.sql_names import quoted

_DAY_MICROS = timedelta(days=1) // MICROSECOND


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """What is late, and what is too late.

    Attributes:
        watermark_delay: the watermark is this much before the newest event time: what is older is late.
        allowed: what is older than the newest event time by more is too late; None: nothing is.

    """

    watermark_delay: timedelta
    allowed: timedelta | None

    def watermark(self, newest: datetime | None) -> datetime | None:
        """Return the watermark if this is the newest event time; None of none."""
        return None if newest is None else moment_of_micros(_before(newest, self.watermark_delay))

    def is_late(self, newest: datetime | None) -> Column:
        """Tell whether a row is late, or too late, after this newest event time."""
        return self._is_older(newest, self.watermark_delay)

    def is_too_late(self, newest: datetime | None) -> Column:
        """Tell whether a row is too late after this newest event time."""
        return self._is_older(newest, self.allowed)

    def _is_older(self, newest: datetime | None, by: timedelta | None) -> Column:
        if newest is None or by is None:
            return F.expr("false")
        return F.coalesce(F.col(EVENT_MICROS) < _before(newest, by), F.expr("false"))


EVENT_MICROS = "__sluice_event_micros"
"""Column of :func:`with_micros`."""

# In another time zone Python may not have the first and the last day.
_EDGE = 2 * _DAY_MICROS
#: The event times that can be, in microseconds since the epoch: those of the years 1 to 9999, but for a day or two.
EVENT_RANGE = (FIRST_MICROS + _EDGE, LAST_MICROS - _EDGE)


def is_event_time(kind: DataType) -> bool:
    """Tell whether a column of this type has moments or days."""
    return isinstance(kind, TimestampType | DateType)


def event_micros(value: Column, kind: DataType) -> Column:
    """Return an event time of this type in microseconds since the epoch, of a day its begin in UTC."""
    return F.unix_date(value).cast("long") * _DAY_MICROS if isinstance(kind, DateType) else F.unix_micros(value)


def with_micros(rows: DataFrame, event_time: str) -> DataFrame:
    """Add :func:`event_micros`."""
    return rows.withColumn(EVENT_MICROS, event_micros(F.col(quoted(event_time)), rows.schema[event_time].dataType))


def _before(newest: datetime, by: timedelta) -> int:
    """Return the moment that is so much before another one, or the first one that there is."""
    return max(FIRST_MICROS, micros_of_moment(newest) - by // MICROSECOND)
