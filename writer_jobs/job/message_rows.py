"""Rows out of messages, and of messages without a row that has a place in the table: what nobody can mend there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from writer_jobs.arrivals.lateness import EVENT_RANGE, event_micros, is_event_time
from writer_jobs.arrivals.stream import RowBatch
from writer_jobs.changes.kept import Kept
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SourceError
from writer_jobs.feeds.wire import listed, only_one
from writer_jobs.job.stream_job_arguments import StreamJobArguments
from writer_jobs.writer import LockedDeltaWriter

ROW = "__sluice_row"
"""Column with the row that a message has."""

_CORRUPT, _REASON = "__sluice_corrupt", "__sluice_reason"


class JsonValues:
    """Values of messages that are JSON objects with columns of a schema.

    Args:
        writer: of the table that gets them.
        arguments: of the job.
        schema: the columns.

    Raises:
        SourceError: there is no such schema.

    """

    def __init__(self, writer: LockedDeltaWriter, arguments: StreamJobArguments, schema: str) -> None:
        self._writer = writer
        self._arguments = arguments
        try:
            parsed = StructType.fromDDL(schema)
        except (*JVM_ERRORS, PySparkException) as error:
            raise SourceError(f"--value-schema {schema!r}: {one_sentence(error)}") from error
        self._schema = StructType([*parsed, StructField(_CORRUPT, StringType())])

    @contextmanager
    def of(self, messages: DataFrame) -> Iterator[RowBatch]:
        """Return the rows of messages, as long as it is open.

        Raises:
            SourceError: JSON has no such columns.
            ChangesError: the messages cannot be read.

        """
        text = F.col("value").cast("string")
        parsed = F.from_json(text, self._schema, {"columnNameOfCorruptRecord": _CORRUPT})
        bad = only_one(listed(text)).isNull() | F.col(ROW).isNull() | F.col(f"{ROW}.{_CORRUPT}").isNotNull()
        try:
            read = messages.select("key", "value", "origin", parsed.alias(ROW))
            read = read.withColumn(_REASON, F.when(bad, "no JSON of the schema"))
        except PySparkException as error:
            raise SourceError(f"--value-schema: {one_sentence(error)}") from error
        with closing(
            Kept.of(self._writer.table, read.withColumn(ROW, F.col(ROW).dropFields(_CORRUPT)), "messages")
        ) as kept:
            yield placed(kept.rows, self._writer, self._arguments)


def placed(messages: DataFrame, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowBatch:
    """Return the rows of messages, and as dead letters those that have no place in the table.

    For nobody can mend them where they are.

    Args:
        messages: ``key``, ``value``, ``origin``, a row in ``ROW``, and why there is none in ``_REASON``, or not.
        writer: of the table.
        arguments: of the job.

    """
    state = writer.log.state()
    partitioned_by = arguments.partition_by if state is None else state.partition_columns
    row = messages.schema[ROW].dataType
    fields = {field.name.lower(): field for field in (row if isinstance(row, StructType) else ())}
    names = dict.fromkeys(name.lower() for name in (*arguments.keys, arguments.event_time, *partitioned_by))
    values = {fields[name].name: F.col(f"{ROW}.{quoted(fields[name].name)}") for name in names if name in fields}
    nulls = F.concat_ws(", ", *(F.when(value.isNull(), name) for name, value in values.items()))
    reasons = [F.when(nulls != "", F.concat(F.lit("null in "), nulls))]
    if (at := fields.get(arguments.event_time.lower())) is not None:
        reasons += _of_event_time(values[at.name], at.dataType)
    if _REASON in messages.columns:
        reasons.insert(0, F.col(_REASON))
    told = messages.withColumn(_REASON, F.coalesce(*reasons))
    dead = told.where(F.col(_REASON).isNotNull()).select("key", "value", "origin", F.col(_REASON).alias("reason"))
    rows = told.where(F.col(_REASON).isNull()).select(f"{ROW}.*")
    return RowBatch(with_moments(rows, arguments.event_time), dead)


def _of_event_time(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield why rows with such an event time have no place; null of all others."""
    moment, read_as = value.try_cast(_moment_or(kind)), _moment_or(kind)
    yield F.when(moment.isNull(), "the event time is no moment")
    if is_event_time(read_as):
        yield F.when(
            ~event_micros(moment, read_as).between(*EVENT_RANGE), "the event time is beyond the years 1 to 9999"
        )


def with_moments(rows: DataFrame, event_time: str) -> DataFrame:
    """Read the event time as a timestamp if it is text, as in JSON it is; what is none fails."""
    for field in rows.schema:
        if field.name.lower() == event_time.lower() and isinstance(field.dataType, StringType):
            return rows.withColumn(field.name, rows[quoted(field.name)].cast(_moment_or(field.dataType)))
    return rows


def _moment_or(kind: DataType) -> DataType:
    return TimestampType() if isinstance(kind, StringType) else kind
