"""Messages of change data: lines of files, rows of Parquet, a topic of Kafka; at once or as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.sources import LINES, SourceReader

_TOPIC_COLUMNS = {"value", "topic", "partition", "offset"}


@dataclass(frozen=True)
class Messages:
    """Messages, or rows that are none.

    Attributes:
        rows: ``key`` and ``value`` (binary) and ``origin`` (string: topic/partition/offset, or a file); or, of Parquet
            without the columns of Kafka's source, what the files have.
        are_lines: whether each is a line of a file.
        are_rows: whether they are no messages, but rows with columns of their own.

    """

    rows: DataFrame
    are_lines: bool = False
    are_rows: bool = False


def messages_of_topic(
    spark: SparkSession, servers: str, topic: str, options: Mapping[str, str], *, stream: bool
) -> Messages:
    """Return the messages of a Kafka topic, by Spark's own source.

    Args:
        spark: the session; the source's package has to be on its class path.
        servers: ``host:port,…``.
        topic: its name.
        options: of the source, such as ``kafka.security.protocol``.
        stream: whether to go on with what comes.

    Raises:
        SourceError: the source is not on the class path, or refuses an option.

    """
    reader = (spark.readStream if stream else spark.read).format("kafka").option("startingOffsets", "earliest")
    try:
        read = reader.options(**{**options, "kafka.bootstrap.servers": servers, "subscribe": topic}).load()
    except (*JVM_ERRORS, PySparkException) as error:
        reason = one_sentence(error)
        if "kafka" in reason and "find" in reason:
            reason = (
                "Spark's source for Kafka is not on the class path: give spark-submit --packages "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
            )
        raise SourceError(f"topic {topic} cannot be read: {reason}") from error
    return Messages(_of_topic(read))


def messages_of_files(
    spark: SparkSession, sources: SourceFiles, file_format: str | None, options: Mapping[str, str], table: str
) -> Messages:
    """Return the messages in files.

    Args:
        spark: the session.
        sources: the files.
        file_format: ``json`` (a message a line) or ``parquet``; None: what the names tell.
        options: of Spark's reader.
        table: canonical URI, for messages.

    Raises:
        SourceError: they have no such format.

    """
    if _known(file_format or sources.format) == "json":
        return Messages(_of_lines(SourceReader(spark, sources, "text", options, table).read(LINES)), are_lines=True)
    reader = SourceReader(spark, sources, "parquet", options, table)
    return _of_parquet(reader.read(reader.schema_of_changes(None)))


def _of_topic(read: DataFrame) -> DataFrame:
    """Return messages of what has the columns of Kafka's source."""
    key = F.col("key") if "key" in read.columns else F.lit(None)
    origin = F.concat_ws("/", "topic", "partition", "offset")
    try:
        return read.select(key.cast("binary").alias("key"), F.col("value").cast("binary"), origin.alias("origin"))
    except PySparkException as error:
        raise SourceError(
            f"the files have no messages as Spark's source for Kafka has them: {one_sentence(error)}"
        ) from error


def _of_lines(lines: DataFrame) -> DataFrame:
    return lines.select(
        F.lit(None).cast("binary").alias("key"),
        F.col("value").cast("binary"),
        F.col("_metadata.file_path").alias("origin"),
    ).where(F.octet_length("value") > 0)


def _of_parquet(rows: DataFrame) -> Messages:
    return Messages(_of_topic(rows)) if set(rows.columns) >= _TOPIC_COLUMNS else Messages(rows, are_rows=True)


def _known(file_format: str) -> str:
    if file_format not in ("json", "parquet"):
        raise SourceError(f"messages come in json or parquet files, not in {file_format}")
    return file_format
