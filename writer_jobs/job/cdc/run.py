"""The work of ``cdc.py``: apply messages by their decoder, once or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.decode import parse_avro_cells, parse_event_cells, parse_json_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.job.cdc.arguments import FLAT, PROGRAM, CdcArguments, parse_arguments
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.messages import Messages, messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.loads import AppliedTotals, Load, run_stream
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.merge.result import ChangesResult
from writer_jobs.streaming.checkpoint import claim_checkpoint
from writer_jobs.streaming.query import ApplyBatch


class MessageApplier:
    """Applies the batches of one run.

    Raises:
        MappingError: The mapping file is malformed.
        SourceError: The mapping file does not exist.

    """

    def __init__(self, context: JobContext[CdcArguments]) -> None:
        arguments, writer = context.arguments, context.writer
        self._arguments, self._writer = arguments, writer
        self._mapping: HBaseMapping | None = None
        if arguments.mapping is not None:
            text = HadoopFiles.of(context.spark).read_text(arguments.mapping)
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
        before_write: Callable[[Hold], None],
    ) -> ChangesResult:
        """Apply a batch. ``txn`` is None for a load without a run id.

        Raises:
            SourceError: The decoder cannot read messages of this format.
            SluiceError: See :func:`apply_cells` and :func:`apply_events`.

        """
        arguments = self._arguments
        options: dict[str, Any] = {"txn": txn, "metadata": metadata, "before_write": before_write}
        if self._mapping is not None:
            result = apply_cells(
                self._writer,
                _decode_cells(arguments.decoder, messages, self._mapping),
                self._mapping,
                partition_by=arguments.partition_by,
                max_dead_letters=arguments.max_dead_letters,
                retention=arguments.tombstone_retention,
                **options,
            )
        elif messages.are_rows:
            raise SourceError(
                "the source has no messages: give Debezium's events as JSON, or as Parquet with the columns of Kafka's "
                "source"
            )
        else:
            result = apply_events(
                self._writer,
                messages.rows,
                flattened=arguments.decoder == FLAT,
                **arguments.apply_options,
                **options,
            )
        self.totals.add(result.dead_letters, result.dead_reason, result.filtered, is_applied=result.changes > 0)
        return result


def _decode_cells(decoder: str, messages: Messages, mapping: HBaseMapping) -> DataFrame:
    if decoder == "hbase":
        return messages.rows if messages.are_rows else parse_json_cells(messages.rows, mapping)
    if messages.are_lines:
        raise SourceError(
            "the source has lines of text: give the events of HBase's Kafka proxy as Avro in a topic, or as rows of "
            "Parquet"
        )
    return (parse_event_cells if messages.are_rows else parse_avro_cells)(messages.rows, mapping)


def _cdc(context: JobContext[CdcArguments]) -> None:
    arguments, table = context.arguments, context.writer.table
    if arguments.stream is not None:
        _apply_stream(context, arguments.stream)
        return
    if arguments.kafka is not None and arguments.topic is not None:
        messages = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=False)
        basis: dict[str, Any] = {"topic": arguments.topic}
    else:
        sources = find_sources(HadoopFiles.of(context.spark), arguments.sources)
        messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, table)
        basis = {"sources": sources.basis}
    applier = MessageApplier(context)
    Load(context, {**arguments.identity, **basis}).apply(partial(applier.apply, messages))
    applier.totals.refuse_nothing_applied()


def _apply_stream(context: JobContext[CdcArguments], stream: StreamArguments) -> None:
    arguments, files, table = context.arguments, HadoopFiles.of(context.spark), context.writer.table
    applier, query_identity = MessageApplier(context), {**arguments.identity, "table": table}

    def apply_files(_: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> ChangesResult:
        sources, missing_count = batches.files(txn[1])
        result = ChangesResult(table=table)
        if sources is not None:
            messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, table)
            result = applier.apply(messages, txn, None, before_write)
        return replace(result, missing_files=missing_count)

    def apply_topic(batch: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> ChangesResult:
        return applier.apply(Messages(batch), txn, None, before_write)

    apply: ApplyBatch
    if arguments.kafka is not None and arguments.topic is not None:
        claim_checkpoint(files, stream.checkpoint, {**query_identity, "topic": arguments.topic})
        topic = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=True)
        frame, apply, source = topic.rows, apply_topic, arguments.topic
    else:
        batches = FileBatches(context.spark, arguments.sources[0], stream)
        claim_checkpoint(files, stream.checkpoint, {**query_identity, "source": batches.path})
        frame, apply, source = batches.frame(arguments.max_files_per_batch), apply_files, batches.path
    run_stream(context, frame, stream, apply, source=source)
    applier.totals.refuse_nothing_applied()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _cdc)
