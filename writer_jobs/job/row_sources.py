"""Where ``stream.py`` has its rows from: files, a Delta table, or a topic whose messages are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StringType, StructField, StructType

from lock_manager import SluiceError
from writer_jobs.changes.kept import Kept
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.table_log import locate_table
from writer_jobs.errors import SourceError
from writer_jobs.feeds.wire import listed, only_one
from writer_jobs.job.file_stream import FileBatches
from writer_jobs.job.messages import messages_of_topic, of_topic
from writer_jobs.job.sources import SourceReader
from writer_jobs.job.stream_job_arguments import StreamJobArguments
from writer_jobs.writer import LockedDeltaWriter

_CORRUPT, _ROW = "__sluice_corrupt", "__sluice_row"


@dataclass(frozen=True)
class Batch:
    """What a micro-batch has.

    Attributes:
        rows: those that could be read; None: there is nothing.
        dead: messages that could not, as :func:`write_dead_letters` takes them; None: a source of rows has none.

    """

    rows: DataFrame | None
    dead: DataFrame | None = None


class RowSource(Protocol):
    """A source of rows."""

    @property
    def name(self) -> Mapping[str, str]:
        """What the checkpoint is bound to."""

    @property
    def frame(self) -> DataFrame:
        """The stream."""

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[Batch]:
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
        self._batches = FileBatches(spark, arguments.sources[0], arguments.stream.checkpoint)
        self._values = None if arguments.value_schema is None else _Values(arguments.value_schema)
        self.name = {"source": self._batches.path}
        self.frame = self._batches.frame(arguments.max_files_per_batch)

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[Batch]:  # noqa: ARG002 (the files say it)
        """Return the rows of a micro-batch."""
        sources = self._batches.sources(number)
        if sources is None:
            return nullcontext(Batch(None))
        how, table = self._arguments, self._writer
        reader = SourceReader(self._spark, sources, how.format or sources.format, how.options, table.table)
        if self._values is not None:
            return self._values.of(of_topic(reader.read(reader.schema_of_changes(None))))
        return nullcontext(
            Batch(reader.read(reader.schema_of_changes(table.log.state(), evolves=how.schema_evolution)))
        )


class TableRows:
    """Rows that are appended to a Delta table, by Delta's own source.

    Args:
        spark: the session.
        table: its location or its name.
        options: of Delta's source, such as ``startingVersion`` or ``skipChangeCommits``.
        most_files: of a micro-batch; None: as many as Delta takes by default.

    Raises:
        SourceError: there is no such table.

    """

    def __init__(self, spark: SparkSession, table: str, options: Mapping[str, str], most_files: int | None) -> None:
        limit = {} if most_files is None else {"maxFilesPerTrigger": str(most_files)}
        try:
            location = locate_table(spark, table)
            #: The stream.
            self.frame = spark.readStream.format("delta").options(**{**options, **limit}).load(location)
        except (*JVM_ERRORS, PySparkException) as error:
            raise SourceError(f"source table {table} cannot be read: {one_sentence(error)}") from error
        except SluiceError as error:
            raise SourceError(f"source table {table}: {error}") from error
        #: What the checkpoint is bound to.
        self.name = {"source-table": location}

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[Batch]:  # noqa: ARG002 (as others')
        """Return the rows of a micro-batch."""
        return nullcontext(Batch(found))


class TopicRows:
    """Rows in the values of a topic's messages, as JSON; by Spark's own source.

    Args:
        spark: the session.
        arguments: of the job.

    Raises:
        SourceError: the source is not on the class path, or refuses an option.

    """

    def __init__(self, spark: SparkSession, arguments: StreamJobArguments) -> None:
        servers, topic, schema = arguments.kafka or "", arguments.topic or "", arguments.value_schema or ""
        self._values = _Values(schema)
        self.frame = messages_of_topic(spark, servers, topic, arguments.options, stream=True).rows
        self.name = {"topic": topic}

    def batch(self, found: DataFrame, number: int) -> AbstractContextManager[Batch]:  # noqa: ARG002 (as others')
        """Return the rows of a micro-batch."""
        return self._values.of(found)


class _Values:
    """Values of messages that are JSON objects with columns of a schema."""

    def __init__(self, schema: str) -> None:
        try:
            parsed = StructType.fromDDL(schema)
        except (*JVM_ERRORS, PySparkException) as error:
            raise SourceError(f"--value-schema {schema!r}: {one_sentence(error)}") from error
        self._schema = StructType([*parsed, StructField(_CORRUPT, StringType())])

    @contextmanager
    def of(self, messages: DataFrame) -> Iterator[Batch]:
        text = F.col("value").cast("string")
        options = {"columnNameOfCorruptRecord": _CORRUPT}
        kept = Kept(messages.select("key", "value", "origin", F.from_json(text, self._schema, options).alias(_ROW)))
        bad = only_one(listed(text)).isNull() | F.col(_ROW).isNull() | F.col(f"{_ROW}.{_CORRUPT}").isNotNull()
        dead = kept.rows.where(bad).select("key", "value", "origin", F.lit("no JSON of the schema").alias("reason"))
        rows = kept.rows.where(~bad).select(f"{_ROW}.*").drop(_CORRUPT)
        with closing(kept):
            yield Batch(rows, dead)


def rows_of(spark: SparkSession, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowSource:
    """Return the source that a command line names.

    Raises:
        SourceError: it is not there.

    """
    if arguments.source_table is not None:
        return TableRows(spark, arguments.source_table, arguments.options, arguments.max_files_per_batch)
    if arguments.kafka is not None:
        return TopicRows(spark, arguments)
    return FileRows(spark, writer, arguments)
