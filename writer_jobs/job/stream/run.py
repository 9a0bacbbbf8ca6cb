"""The work of ``stream.py``. Its sources are files, a Delta table, or a topic whose messages are JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold, SluiceError
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.locate import locate_table
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.message_rows import ROW, JsonMessages, separate_dead_letters, with_event_timestamps
from writer_jobs.job.inputs.messages import messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.loads import AppliedTotals, run_stream
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream.arguments import PROGRAM, StreamJobArguments, parse_arguments
from writer_jobs.late_rows.options import RowOptions
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.stream import RowBatch, RowStream
from writer_jobs.streaming.checkpoint import claim_checkpoint


@dataclass(frozen=True)
class RowSource:
    """A source of rows.

    Attributes:
        kind: Name of the field of the source in the checkpoint's record of the query.
        name: Value of that field: the topic, or the location of the table or the files.
        frame: The streaming data frame.
        open_batch: Returns a context with the rows of a micro-batch, from its data frame and its number.

    """

    kind: str
    name: str
    frame: DataFrame
    open_batch: Callable[[DataFrame, int], AbstractContextManager[RowBatch]]


def _row_source(context: JobContext[StreamJobArguments]) -> RowSource:
    if context.arguments.source_table is not None:
        return _table_source(context, context.arguments.source_table)
    return _file_source(context) if context.arguments.kafka is None else _topic_source(context)


def _topic_source(context: JobContext[StreamJobArguments]) -> RowSource:
    arguments = context.arguments
    servers, topic, schema = arguments.kafka or "", arguments.topic or "", arguments.value_schema or ""
    json_messages = JsonMessages(context.writer, arguments, schema)
    frame = messages_of_topic(context.spark, servers, topic, arguments.options, stream=True).rows
    return RowSource("topic", topic, frame, lambda batch, _: json_messages.rows(batch))


def _table_source(context: JobContext[StreamJobArguments], table: str) -> RowSource:
    """Return the source of the rows that are appended to a Delta table. A dead letter has the JSON of its row."""
    arguments, max_files = context.arguments, context.arguments.max_files_per_batch
    limit = {} if max_files is None else {"maxFilesPerTrigger": str(max_files)}
    try:
        location = locate_table(context.spark, table)
        frame = context.spark.readStream.format("delta").options(**{**arguments.options, **limit}).load(location)
    except SPARK_ERRORS as error:
        raise SourceError(f"source table {table} cannot be read: {error_reason(error)}") from error
    except SluiceError as error:
        raise SourceError(f"source table {table}: {error}") from error

    def open_batch(rows: DataFrame, _: int) -> AbstractContextManager[RowBatch]:
        messages = rows.select(
            F.lit(None).cast("binary").alias("key"),
            F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).cast("binary").alias("value"),
            F.lit(location).alias("origin"),
            F.struct("*").alias(ROW),
        )
        return nullcontext(separate_dead_letters(messages, context.writer, arguments))

    return RowSource("source-table", location, frame, open_batch)


def _file_source(context: JobContext[StreamJobArguments]) -> RowSource:
    """Return the source of the rows in files; see :class:`FileBatches`."""
    arguments, schema = context.arguments, context.arguments.value_schema
    batches = FileBatches(context.spark, arguments.sources[0], arguments.stream)
    json_messages = None if schema is None else JsonMessages(context.writer, arguments, schema)

    @contextmanager
    def open_batch(_: DataFrame, number: int) -> Iterator[RowBatch]:
        sources, missing_count = batches.files(number)
        if sources is None:
            yield RowBatch(None, missing_files=missing_count)
        elif json_messages is None:
            yield RowBatch(_file_rows(context, sources), missing_files=missing_count)
        else:
            with json_messages.rows(_file_messages(context, sources)) as rows_of_messages:
                yield replace(rows_of_messages, missing_files=missing_count)

    return RowSource("source", batches.path, batches.frame(arguments.max_files_per_batch), open_batch)


def _file_rows(context: JobContext[StreamJobArguments], sources: SourceFiles) -> DataFrame:
    arguments, writer = context.arguments, context.writer
    reader = SourceReader(context.spark, sources, arguments.format, arguments.options, writer.table)
    rows = reader.read_changes(writer.log.state(), evolves=arguments.schema_evolution)
    return with_event_timestamps(rows, arguments.event_time)


def _file_messages(context: JobContext[StreamJobArguments], sources: SourceFiles) -> DataFrame:
    """Return the messages in files with the columns of Spark's source for Kafka.

    Raises:
        SourceError: The files are not Parquet, or have other columns.

    """
    if (file_format := context.arguments.format or sources.format) == "parquet":
        messages = messages_of_files(
            context.spark, sources, file_format, context.arguments.options, context.writer.table
        )
        if not messages.are_rows:
            return messages.rows
    raise SourceError(
        "--value-schema applies to messages, and the files are not Parquet with the columns value, topic, partition "
        "and offset of Spark's source for Kafka"
    )


def _stream(context: JobContext[StreamJobArguments]) -> None:
    arguments, writer = context.arguments, context.writer
    checkpoint, files = arguments.stream.checkpoint, HadoopFiles.of(context.spark)
    source, totals = _row_source(context), AppliedTotals(writer)
    stream = RowStream(writer, files, checkpoint, cast("RowOptions", arguments.apply_options))
    claim_checkpoint(files, checkpoint, {**stream.query_identity, source.kind: source.name})

    def apply(frame: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> RowsResult:
        result = stream.apply(partial(source.open_batch, frame, txn[1]), txn, before_write)
        is_applied = result.arrived > 0 or result.already_applied
        totals.add(result.dead_letters, result.dead_reason, is_applied=is_applied)
        return result

    run_stream(context, source.frame, arguments.stream, apply, source=source.name)
    totals.refuse_nothing_applied()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _stream)
