"""Convert between ``datetime`` and Spark's timestamps, which are microseconds since the epoch in a larger range."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Moment zero of Spark's timestamps.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Unit of Spark's timestamps.
MICROSECOND = timedelta(microseconds=1)
#: Earliest moment that a ``datetime`` can hold, in microseconds since the epoch.
FIRST_MICROS = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
#: Latest moment that a ``datetime`` can hold, in microseconds since the epoch.
LAST_MICROS = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND


def moment_of_micros(micros: int) -> datetime:
    """Return the moment for microseconds since the epoch; raise OverflowError before the year 1 and after 9999."""
    return EPOCH + micros * MICROSECOND


def micros_of_moment(moment: datetime) -> int:
    """Return the microseconds from the epoch to a moment."""
    return (moment - EPOCH) // MICROSECOND
