"""What ``cdc.py`` does with a batch of messages, by its decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs.changes.application import ChangesResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.decode import cells_of_avro, cells_of_events, cells_of_json
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.job.cdc_arguments import CdcArguments
from writer_jobs.job.messages import Messages
from writer_jobs.writer import LockedDeltaWriter

Apply = Callable[[DataFrame, tuple[str, int] | None, Callable[[Hold], None]], ChangesResult]
"""Applies a batch: its rows, its transaction, and what is to be called under the lock."""


def feed_of(spark: SparkSession, arguments: CdcArguments, writer: LockedDeltaWriter, messages: Messages) -> Apply:
    """Return what applies the messages of a feed.

    Args:
        spark: the session.
        arguments: of the job.
        writer: of the table.
        messages: of which each batch is a part.

    Raises:
        MappingError: the mapping file does not make sense.
        SourceError: it is not there, or the decoder cannot read such messages.

    """
    if arguments.mapping is None:
        if messages.are_rows:
            raise SourceError("the source has no messages: Debezium's events are JSON, or Parquet as of a topic")
        return partial(_apply_events, arguments, writer)
    text = HadoopFiles.of(spark).read_text(arguments.mapping)
    if text is None:
        raise SourceError(f"mapping {arguments.mapping} does not exist")
    return partial(_apply_cells, arguments, writer, HBaseMapping.parsed(text), _cells_of(arguments.decoder, messages))


def _cells_of(decoder: str, messages: Messages) -> Callable[[DataFrame, HBaseMapping], DataFrame]:
    if decoder == "hbase":
        return _as_they_are if messages.are_rows else cells_of_json
    if messages.are_lines:
        raise SourceError("the source has lines: events of HBase's Kafka proxy are Avro in a topic, or rows of Parquet")
    return cells_of_events if messages.are_rows else cells_of_avro


def _as_they_are(rows: DataFrame, _: HBaseMapping) -> DataFrame:
    return rows


def _apply_cells(
    arguments: CdcArguments,
    writer: LockedDeltaWriter,
    mapping: HBaseMapping,
    cells_of: Callable[[DataFrame, HBaseMapping], DataFrame],
    rows: DataFrame,
    txn: tuple[str, int] | None,
    holding: Callable[[Hold], None],
) -> ChangesResult:
    return apply_cells(
        writer,
        cells_of(rows, mapping),
        mapping,
        partition_by=arguments.partition_by,
        retention=arguments.tombstone_retention,
        txn=txn,
        before_write=holding,
    )


def _apply_events(
    arguments: CdcArguments,
    writer: LockedDeltaWriter,
    rows: DataFrame,
    txn: tuple[str, int] | None,
    holding: Callable[[Hold], None],
) -> ChangesResult:
    return apply_events(
        writer,
        rows,
        keys=arguments.keys,
        sequence_by=arguments.sequence_by,
        stored_as_scd_type=arguments.stored_as_scd_type,
        partition_by=arguments.partition_by,
        tombstone_retention=arguments.tombstone_retention,
        txn=txn,
        before_write=holding,
    )
