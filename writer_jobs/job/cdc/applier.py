"""Apply batches of messages for ``cdc.py`` by their decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.decode import parse_avro_cells, parse_event_cells, parse_json_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.job.applied_totals import AppliedTotals
from writer_jobs.job.cdc.arguments import CdcArguments
from writer_jobs.job.inputs.messages import Messages
from writer_jobs.merge.result import ChangesResult
from writer_jobs.writer import LockedDeltaWriter


class MessageApplier:
    """The applier of the batches of one run.

    Args:
        spark: The session.
        arguments: Arguments of the job.
        writer: Writer of the table.

    Raises:
        MappingError: The mapping file is malformed.
        SourceError: The mapping file does not exist.

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
        metadata: Mapping[str, Any] | None,
        holding: Callable[[Hold], None],
    ) -> ChangesResult:
        """Apply a batch.

        Args:
            messages: Messages of the batch.
            txn: Id and version of the batch's transaction; None for a load without a run id.
            metadata: Metadata of the commits.
            holding: Called under the lock.

        Raises:
            SourceError: The decoder cannot read such messages.
            SluiceError: See :func:`apply_cells` and :func:`apply_events`.

        """
        arguments = self._arguments
        options: dict[str, Any] = {"txn": txn, "metadata": metadata, "before_write": holding}
        if self._mapping is not None:
            result = apply_cells(
                self._writer,
                _cells(arguments.decoder, messages, self._mapping),
                self._mapping,
                partition_by=arguments.partition_by,
                max_dead_letters=arguments.max_dead_letters,
                retention=arguments.tombstone_retention,
                **options,
            )
        elif messages.are_rows:
            raise SourceError(
                "the source has no messages: Debezium's events are JSON, or Parquet with the columns of Kafka's source"
            )
        else:
            result = apply_events(self._writer, messages.rows, **arguments.apply_options, **options)
        self.totals.add(result.dead_letters, result.dead_reason, result.filtered, is_applied=result.changes > 0)
        return result


def _cells(decoder: str, messages: Messages, mapping: HBaseMapping) -> DataFrame:
    if decoder == "hbase":
        return messages.rows if messages.are_rows else parse_json_cells(messages.rows, mapping)
    if messages.are_lines:
        raise SourceError("the source has lines: events of HBase's Kafka proxy are Avro in a topic, or rows of Parquet")
    return (parse_event_cells if messages.are_rows else parse_avro_cells)(messages.rows, mapping)
