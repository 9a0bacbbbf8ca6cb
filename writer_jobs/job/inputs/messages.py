"""Messages of change data from files or from a Kafka topic, read once or as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.sources import LINES, SourceReader

_TOPIC_COLUMNS = {"value", "topic", "partition", "offset"}


@dataclass(frozen=True)
class Messages:
    """The input of a change-data job: messages, or the rows of Parquet files without message columns (``are_rows``).

    Attributes:
        rows: ``key`` and ``value`` (binary) and ``origin`` (string: topic/partition/offset, or a file). For Parquet
            files without the columns of Kafka's source, the columns of the files.
        are_lines: Whether each message is a line of a file.
        are_rows: Whether ``rows`` has the columns of the files instead of messages.

    """

    rows: DataFrame
    are_lines: bool = False
    are_rows: bool = False


def messages_of_topic(
    spark: SparkSession, servers: str, topic: str, options: Mapping[str, str], *, stream: bool
) -> Messages:
    """Return the messages of a Kafka topic.

    The options are those of Spark's source, such as ``kafka.security.protocol``.

    Raises:
        SourceError: The source is not on the class path, or refuses an option.

    """
    reader = (spark.readStream if stream else spark.read).format("kafka").option("startingOffsets", "earliest")
    try:
        records = reader.options(**{**options, "kafka.bootstrap.servers": servers, "subscribe": topic}).load()
    except SPARK_ERRORS as error:
        reason = error_reason(error)
        if "kafka" in reason and "find" in reason:
            reason = (
                "Spark's source for Kafka is not on the class path: give spark-submit --packages "
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
            )
        raise SourceError(f"topic {topic} cannot be read: {reason}") from error
    return Messages(_from_records(records))


def messages_of_files(
    spark: SparkSession, sources: SourceFiles, file_format: str | None, options: Mapping[str, str], table: str
) -> Messages:
    """Return the messages in files. In ``json`` files each line is a message.

    See :class:`SourceReader` for the arguments.

    Raises:
        SourceError: The files have another format, a reader option would change values, or a message column has
            another type.

    """
    file_format = file_format or sources.format
    if file_format not in ("json", "parquet"):
        raise SourceError(
            f"messages come in json or parquet files, not in {file_format}; "
            "convert the files, or give --format json or parquet"
        )
    if file_format == "json":
        lines = SourceReader(spark, sources, "text", options, table).read(LINES)
        key, origin = F.lit(None).cast("binary").alias("key"), F.col("_metadata.file_path").alias("origin")
        rows = lines.select(key, F.col("value").cast("binary"), origin).where(F.octet_length("value") > 0)
        return Messages(rows, are_lines=True)
    rows = SourceReader(spark, sources, "parquet", options, table).read_changes(None)
    return Messages(_from_records(rows)) if set(rows.columns) >= _TOPIC_COLUMNS else Messages(rows, are_rows=True)


def _from_records(records: DataFrame) -> DataFrame:
    """Return the messages of rows with the columns of Kafka's source."""
    key = F.col("key") if "key" in records.columns else F.lit(None)
    origin = F.concat_ws("/", "topic", "partition", "offset")
    try:
        return records.select(key.cast("binary").alias("key"), F.col("value").cast("binary"), origin.alias("origin"))
    except PySparkException as error:
        raise SourceError(
            f"the files do not have the types of Spark's source for Kafka: {error_reason(error)}"
        ) from error
