"""The condition that selects the rows of a table up to an event time."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DateType, StructType, TimestampType

from lock_manager.errors import PinError
from writer_jobs.delta.sql_names import quoted


def up_to(schema: StructType, event_time: str, moment: datetime, table: str) -> Column:
    """Return the condition that a row's event time is not after a moment.

    Its literal has the column's type, so that Delta can skip files by their statistics. A date stands for the start of
    that day in UTC, as in watermarks.

    Args:
        schema: Schema of the table.
        event_time: Name of the column with the event time.
        moment: A time with a time zone.
        table: Canonical URI, for error messages.

    Raises:
        PinError: There is no such column, or it is neither a timestamp nor a date.

    """
    return F.expr(up_to_sql(schema, event_time, moment, table))


def up_to_sql(schema: StructType, event_time: str, moment: datetime, table: str) -> str:
    """Return the condition of :func:`up_to` as SQL that has the same meaning in every session."""
    in_utc = moment.astimezone(UTC)
    for field in schema:
        if field.name.lower() == event_time.lower():
            if isinstance(field.dataType, TimestampType):
                return f"{quoted(field.name)} <= TIMESTAMP_LTZ '{in_utc.isoformat()}'"
            if isinstance(field.dataType, DateType):
                return f"{quoted(field.name)} <= DATE '{in_utc.date().isoformat()}'"
            data_type = field.dataType.simpleString()
            raise PinError(f"the event time {event_time} of {table} must be a timestamp or a date, got {data_type}")
    raise PinError(f"{table} has no column {event_time}; its columns are {', '.join(schema.names)}")
