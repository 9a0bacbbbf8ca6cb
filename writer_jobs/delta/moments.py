"""Moments as Spark counts them: microseconds since the epoch, of which Python has fewer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: From which Spark counts.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: In which it counts.
MICROSECOND = timedelta(microseconds=1)
#: The first moment that Python has, in microseconds since the epoch.
FIRST_MICROS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
#: The last one.
LAST_MICROS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND


def moment_of_micros(micros: int) -> datetime:
    """Return microseconds since the epoch as a moment.

    Raises:
        OverflowError: it is before the year 1, or after 9999.

    """
    return EPOCH + micros * MICROSECOND


def micros_of_moment(moment: datetime) -> int:
    """Return a moment as microseconds since the epoch."""
    return (moment - EPOCH) // MICROSECOND
