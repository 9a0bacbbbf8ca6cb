"""The rows of a table up to a moment of their event time."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DateType, StructType, TimestampType

from lock_manager.errors import PinError
from writer_jobs.delta.sql_names import quoted


def up_to(schema: StructType, event_time: str, moment: datetime, table: str) -> Column:
    """Return the condition that a row's event time is not after a moment.

    Its literal has the column's type, so that Delta passes over files by their statistics. A day happens at its begin
    in UTC, as for the watermark.

    Args:
        schema: of the table.
        event_time: the column.
        moment: with a time zone.
        table: canonical URI, for messages.

    Raises:
        PinError: there is no such column, or it is no timestamp and no date.

    """
    return F.expr(up_to_sql(schema, event_time, moment, table))


def up_to_sql(schema: StructType, event_time: str, moment: datetime, table: str) -> str:
    """Return the condition of :func:`up_to` as SQL, which means the same in any session."""
    in_utc = moment.astimezone(UTC)
    for field in schema:
        if field.name.lower() == event_time.lower():
            if isinstance(field.dataType, TimestampType):
                return f"{quoted(field.name)} <= TIMESTAMP_LTZ '{in_utc.isoformat()}'"
            if isinstance(field.dataType, DateType):
                return f"{quoted(field.name)} <= DATE '{in_utc.date().isoformat()}'"
            kind = field.dataType.simpleString()
            raise PinError(f"the event time {event_time} of {table} is no timestamp and no date, but {kind}")
    raise PinError(f"{table} has no column {event_time}; it has {', '.join(schema.names)}")
