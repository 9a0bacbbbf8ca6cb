"""Where ``stream.py`` has its rows from: files, a Delta table, or a topic whose messages are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import SluiceError
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.locate import locate_table
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.message_rows import ROW, JsonValues, placed, with_moments
from writer_jobs.job.inputs.messages import messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.stream.arguments import StreamJobArguments
from writer_jobs.late_rows.stream import RowBatch
from writer_jobs.writer import LockedDeltaWriter


class RowSource(Protocol):
    """A source of rows."""

    @property
    def name(self) -> Mapping[str, str]:
        """What the checkpoint is bound to."""

    @property
    def frame(self) -> DataFrame:
        """The stream."""

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[RowBatch]:
        """Return the rows of a micro-batch, of which the stream has ``found``; as long as it is open."""


class FileRows:
    """Rows in files; see :class:`FileBatches`.

    Args:
        spark: the session.
        writer: of the table, whose types columns have.
        arguments: of the job.

    """

    def __init__(self, spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> None:
        self._spark = spark
        self._writer = writer
        self._arguments = arguments
        self._batches = FileBatches(spark, arguments.sources[0], arguments.stream)
        self._values = None if arguments.value_schema is None else JsonValues(writer, arguments, arguments.value_schema)
        self.name = {"source": self._batches.path}
        self.frame = self._batches.frame(arguments.max_files_per_batch)

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[RowBatch]:  # noqa: ARG002 (the files say it)
        """Return the rows of a micro-batch."""
        files = self._batches.files(number)
        if (sources := files.sources) is None:
            return nullcontext(RowBatch(None, missing_files=files.missing))
        if self._values is not None:
            return self._of_messages(self._values, sources, files.missing)
        how, table = self._arguments, self._writer
        reader = SourceReader(self._spark, sources, how.format or sources.format, how.options, table.table)
        rows = reader.read(reader.schema_of_changes(table.log.state(), evolves=how.schema_evolution))
        return nullcontext(RowBatch(with_moments(rows, how.event_time), missing_files=files.missing))

    @contextmanager
    def _of_messages(self, values: JsonValues, sources: SourceFiles, missing: int) -> Iterator[RowBatch]:
        with values.of(self._messages(sources)) as batch:
            yield replace(batch, missing_files=missing)

    def _messages(self, sources: SourceFiles) -> DataFrame:
        """Return messages that files have as Spark's source for Kafka has them.

        Raises:
            SourceError: the files are others.

        """
        how = self._arguments
        if (form := how.format or sources.format) == "parquet":
            messages = messages_of_files(self._spark, sources, form, how.options, self._writer.table)
            if not messages.are_rows:
                return messages.rows
        raise SourceError(
            "--value-schema is of messages: the files are not Parquet with the columns value, topic, partition and "
            "offset, as Spark's source for Kafka has them"
        )


class TableRows:
    """Rows that are appended to a Delta table, by Delta's own source.

    Args:
        spark: the session.
        writer: of the table that gets them.
        arguments: of the job; its options are of Delta's source, such as ``skipChangeCommits``.
        table: location or name of the one that has them.

    Raises:
        SourceError: there is no such table.

    """

    def __init__(
        self, spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments, table: str
    ) -> None:
        self._writer = writer
        self._arguments = arguments
        most = arguments.max_files_per_batch
        limit = {} if most is None else {"maxFilesPerTrigger": str(most)}
        try:
            location = locate_table(spark, table)
            #: The stream.
            self.frame = spark.readStream.format("delta").options(**{**arguments.options, **limit}).load(location)
        except (*JVM_ERRORS, PySparkException) as error:
            raise SourceError(f"source table {table} cannot be read: {one_sentence(error)}") from error
        except SluiceError as error:
            raise SourceError(f"source table {table}: {error}") from error
        #: What the checkpoint is bound to.
        self.name = {"source-table": location}

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[RowBatch]:  # noqa: ARG002 (as others')
        """Return the rows of a micro-batch; as a message a row is its JSON."""
        text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        messages = found.select(
            F.lit(None).cast("binary").alias("key"),
            text.cast("binary").alias("value"),
            F.lit(self.name["source-table"]).alias("origin"),
            F.struct("*").alias(ROW),
        )
        return nullcontext(placed(messages, self._writer, self._arguments))


class TopicRows:
    """Rows in the values of a topic's messages, as JSON; by Spark's own source.

    Args:
        spark: the session.
        writer: of the table that gets them.
        arguments: of the job.

    Raises:
        SourceError: the source is not on the class path, or refuses an option.

    """

    def __init__(self, spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> None:
        servers, topic, schema = arguments.kafka or "", arguments.topic or "", arguments.value_schema or ""
        self._values = JsonValues(writer, arguments, schema)
        self.frame = messages_of_topic(spark, servers, topic, arguments.options, stream=True).rows
        self.name = {"topic": topic}

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[RowBatch]:  # noqa: ARG002 (as others')
        """Return the rows of a micro-batch."""
        return self._values.of(found)


def rows_of(spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowSource:
    """Return the source that a command line names.

    Raises:
        SourceError: it is not there.

    """
    if arguments.source_table is not None:
        return TableRows(spark, writer, arguments, arguments.source_table)
    if arguments.kafka is not None:
        return TopicRows(spark, writer, arguments)
    return FileRows(spark, writer, arguments)
