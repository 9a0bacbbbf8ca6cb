"""When a row is late: by its event time, beside the newest event time that came before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DateType, StructType, TimestampType

from writer_jobs.delta.sql_names import quoted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_MICROS = timedelta(days=1) // _MICROSECOND


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
        return None if newest is None else newest - self.watermark_delay

    def is_late(self, newest: datetime | None) -> Column:
        """Tell whether a row is late, or too late, after this newest event time."""
        return self._is_older(newest, self.watermark_delay)

    def is_too_late(self, newest: datetime | None) -> Column:
        """Tell whether a row is too late after this newest event time."""
        return self._is_older(newest, self.allowed)

    def _is_older(self, newest: datetime | None, by: timedelta | None) -> Column:
        if newest is None or by is None:
            return F.expr("false")
        return F.coalesce(F.col(EVENT_MICROS) < (newest - by - _EPOCH) // _MICROSECOND, F.expr("false"))


EVENT_MICROS = "__sluice_event_micros"
"""Column of :func:`with_micros`."""


def has_event_time(schema: StructType, column: str) -> bool:
    """Tell whether a column is a moment or a day."""
    return isinstance(schema[column].dataType, TimestampType | DateType)


def with_micros(rows: DataFrame, event_time: str) -> DataFrame:
    """Add the event time in microseconds since the epoch, of a day its begin in UTC."""
    column = F.col(quoted(event_time))
    is_day = isinstance(rows.schema[event_time].dataType, DateType)
    micros = F.unix_date(column).cast("long") * _DAY_MICROS if is_day else F.unix_micros(column)
    return rows.withColumn(EVENT_MICROS, micros)


def moment_of_micros(micros: int | None) -> datetime | None:
    """Return microseconds since the epoch as a moment; None of none."""
    return None if micros is None else _EPOCH + micros * _MICROSECOND
