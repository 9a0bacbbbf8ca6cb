"""What ``cdc.py`` does with a batch of messages, by its decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.decode import cells_of_avro, cells_of_events, cells_of_json
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.job.applied import AppliedTotals
from writer_jobs.job.cdc.arguments import CdcArguments
from writer_jobs.job.inputs.messages import Messages
from writer_jobs.merge.result import ChangesResult
from writer_jobs.writer import LockedDeltaWriter


class Feed:
    """What ``cdc.py`` does with batches.

    Args:
        spark: the session.
        arguments: of the job.
        writer: of the table.

    Raises:
        MappingError: the mapping file does not make sense.
        SourceError: it is not there.

    """

    def __init__(self, spark: SparkSession, arguments: CdcArguments, writer: LockedDeltaWriter) -> None:
        self._arguments = arguments
        self._writer = writer
        self._mapping: HBaseMapping | None = None
        if arguments.mapping is not None:
            text = HadoopFiles.of(spark).read_text(arguments.mapping)
            if text is None:
                raise SourceError(f"mapping {arguments.mapping} does not exist")
            self._mapping = HBaseMapping.parsed(text)
        #: Totals of the batches.
        self.totals = AppliedTotals(writer, arguments.source_tables if self._mapping is None else self._mapping.tables)

    def apply(
        self,
        messages: Messages,
        txn: tuple[str, int] | None,
        holding: Callable[[Hold], None],
        metadata: Mapping[str, Any] | None = None,
    ) -> ChangesResult:
        """Apply a batch.

        Args:
            messages: the batch.
            txn: its transaction.
            holding: called under the lock.
            metadata: Metadata of the commits.

        Raises:
            SourceError: the decoder cannot read such messages.
            SluiceError: see :func:`apply_cells` and :func:`apply_events`.

        """
        result = self._apply(messages, txn, holding, metadata)
        self.totals.add(result.dead_letters, result.dead_reason, result.filtered, is_applied=result.changes > 0)
        return result

    def _apply(
        self,
        messages: Messages,
        txn: tuple[str, int] | None,
        holding: Callable[[Hold], None],
        metadata: Mapping[str, Any] | None,
    ) -> ChangesResult:
        arguments = self._arguments
        if self._mapping is not None:
            return apply_cells(
                self._writer,
                _cells_of(arguments.decoder, messages)(messages.rows, self._mapping),
                self._mapping,
                partition_by=arguments.partition_by,
                max_dead_letters=arguments.max_dead_letters,
                retention=arguments.tombstone_retention,
                txn=txn,
                metadata=metadata,
                before_write=holding,
            )
        if messages.are_rows:
            raise SourceError("the source has no messages: Debezium's events are JSON, or Parquet as of a topic")
        return apply_events(
            self._writer,
            messages.rows,
            keys=arguments.keys,
            sequence_by=arguments.sequence_by,
            source_tables=arguments.source_tables,
            max_dead_letters=arguments.max_dead_letters,
            stored_as_scd_type=arguments.stored_as_scd_type,
            partition_by=arguments.partition_by,
            tombstone_retention=arguments.tombstone_retention,
            txn=txn,
            metadata=metadata,
            before_write=holding,
        )


def _cells_of(decoder: str, messages: Messages) -> Callable[[DataFrame, HBaseMapping], DataFrame]:
    if decoder == "hbase":
        return _as_they_are if messages.are_rows else cells_of_json
    if messages.are_lines:
        raise SourceError("the source has lines: events of HBase's Kafka proxy are Avro in a topic, or rows of Parquet")
    return cells_of_events if messages.are_rows else cells_of_avro


def _as_they_are(rows: DataFrame, _: HBaseMapping) -> DataFrame:
    return rows
