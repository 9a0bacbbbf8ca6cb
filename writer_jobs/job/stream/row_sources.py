"""The sources of ``stream.py``: files, a Delta table, or a topic whose messages are JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import SluiceError
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.locate import locate_table
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.message_rows import ROW, JsonMessages, separate_dead_letters, with_event_timestamps
from writer_jobs.job.inputs.messages import messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.stream.arguments import StreamJobArguments
from writer_jobs.late_rows.stream import RowBatch
from writer_jobs.writer import LockedDeltaWriter


@dataclass(frozen=True)
class RowSource:
    """A source of rows.

    Attributes:
        name: The source as the checkpoint records it.
        frame: The streaming data frame.
        batch: Returns a context with the rows of a micro-batch, from its data frame and its number.

    """

    name: Mapping[str, str]
    frame: DataFrame
    batch: Callable[[DataFrame, int], AbstractContextManager[RowBatch]]


def row_source(spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowSource:
    """Return the source that a command line names.

    Args:
        spark: The session.
        writer: Writer of the target table.
        arguments: Arguments of the job.

    Raises:
        SourceError: The source does not exist, or refuses an option.

    """
    if arguments.source_table is not None:
        return _table_source(spark, writer, arguments, arguments.source_table)
    if arguments.kafka is not None:
        return _topic_source(spark, writer, arguments)
    return _file_source(spark, writer, arguments)


def _topic_source(spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowSource:
    servers, topic, schema = arguments.kafka or "", arguments.topic or "", arguments.value_schema or ""
    json_messages = JsonMessages(writer, arguments, schema)
    frame = messages_of_topic(spark, servers, topic, arguments.options, stream=True).rows
    return RowSource({"topic": topic}, frame, lambda batch, _: json_messages.rows(batch))


def _table_source(
    spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments, table: str
) -> RowSource:
    """Return the rows that are appended to a Delta table. A dead letter has the JSON of its row."""
    most_files = arguments.max_files_per_batch
    limit = {} if most_files is None else {"maxFilesPerTrigger": str(most_files)}
    try:
        location = locate_table(spark, table)
        frame = spark.readStream.format("delta").options(**{**arguments.options, **limit}).load(location)
    except (*JVM_ERRORS, PySparkException) as error:
        raise SourceError(f"source table {table} cannot be read: {error_reason(error)}") from error
    except SluiceError as error:
        raise SourceError(f"source table {table}: {error}") from error

    def batch(rows: DataFrame, _: int) -> AbstractContextManager[RowBatch]:
        messages = rows.select(
            F.lit(None).cast("binary").alias("key"),
            F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).cast("binary").alias("value"),
            F.lit(location).alias("origin"),
            F.struct("*").alias(ROW),
        )
        return nullcontext(separate_dead_letters(messages, writer, arguments))

    return RowSource({"source-table": location}, frame, batch)


def _file_source(spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowSource:
    """Return the rows in files; see :class:`FileBatches`."""
    batches = FileBatches(spark, arguments.sources[0], arguments.stream)
    schema = arguments.value_schema
    json_messages = None if schema is None else JsonMessages(writer, arguments, schema)

    @contextmanager
    def batch(_: DataFrame, number: int) -> Iterator[RowBatch]:
        files = batches.files(number)
        if files.sources is None:
            yield RowBatch(None, missing_files=files.missing)
        elif json_messages is None:
            rows = _file_rows(spark, writer, arguments, files.sources)
            yield RowBatch(rows, missing_files=files.missing)
        else:
            with json_messages.rows(_file_messages(spark, writer, arguments, files.sources)) as rows_of_messages:
                yield replace(rows_of_messages, missing_files=files.missing)

    return RowSource({"source": batches.path}, batches.frame(arguments.max_files_per_batch), batch)


def _file_rows(
    spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments, sources: SourceFiles
) -> DataFrame:
    reader = SourceReader(spark, sources, arguments.format or sources.format, arguments.options, writer.table)
    rows = reader.read(reader.schema_of_changes(writer.log.state(), evolves=arguments.schema_evolution))
    return with_event_timestamps(rows, arguments.event_time)


def _file_messages(
    spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments, sources: SourceFiles
) -> DataFrame:
    """Return the messages in files with the columns of Spark's source for Kafka.

    Raises:
        SourceError: The files have other columns.

    """
    if (file_format := arguments.format or sources.format) == "parquet":
        messages = messages_of_files(spark, sources, file_format, arguments.options, writer.table)
        if not messages.are_rows:
            return messages.rows
    raise SourceError(
        "--value-schema applies to messages, and the files are not Parquet with the columns value, topic, partition "
        "and offset of Spark's source for Kafka"
    )
