"""The work of ``cdc.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.job.cdc.arguments import PROGRAM, CdcArguments, parse_arguments
from writer_jobs.job.cdc.feeds import Feed
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.messages import Messages, messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.once import LoadMark, apply_once
from writer_jobs.job.runner import Job, JobContext, failing_store_is_a_failed_write
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.streams import run_stream
from writer_jobs.merge.result import ChangesResult
from writer_jobs.streaming.checkpoint import claim_checkpoint
from writer_jobs.streaming.query import ApplyBatch
from writer_jobs.writer import LockedDeltaWriter


def _cdc(context: JobContext[CdcArguments]) -> None:
    arguments = context.arguments
    writer = LockedDeltaWriter(context.spark, context.manager, arguments.table)
    context.report(table=writer.table)
    if arguments.stream is None:
        _once(context, writer)
    else:
        _stream(context, writer, arguments.stream)


def _once(context: JobContext[CdcArguments], writer: LockedDeltaWriter) -> None:
    arguments = context.arguments
    if arguments.kafka is not None and arguments.topic is not None:
        messages = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=False)
        basis: dict[str, Any] = {"topic": arguments.topic}
    else:
        sources = find_sources(HadoopFiles.of(context.spark), arguments.sources)
        messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, writer.table)
        basis = {"sources": sources.basis}
    feed = Feed(context.spark, arguments, writer)
    mark = LoadMark.of(context, PROGRAM, writer, {**arguments.query, **basis})

    def apply(holding: Callable[[Hold], None]) -> ChangesResult:
        txn, metadata = (None, None) if mark is None else (mark.txn, mark.metadata)
        return feed.apply(messages, txn, holding, metadata)

    apply_once(context, writer, mark, apply)
    feed.totals.refuse_nothing_applied()


def _stream(context: JobContext[CdcArguments], writer: LockedDeltaWriter, how: StreamArguments) -> None:
    arguments, files = context.arguments, HadoopFiles.of(context.spark)
    feed, query = Feed(context.spark, arguments, writer), {**arguments.query, "table": writer.table}

    def apply_files(_: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        files, result = batches.files(txn[1]), ChangesResult.of_nothing(writer.table)
        if (sources := files.sources) is not None:
            messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, writer.table)
            result = feed.apply(messages, txn, holding)
        return replace(result, missing_files=files.missing)

    def apply_topic(batch: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        return feed.apply(Messages(batch), txn, holding)

    apply: ApplyBatch
    if arguments.kafka is not None and arguments.topic is not None:
        claim_checkpoint(files, how.checkpoint, {**query, "topic": arguments.topic})
        topic = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=True)
        frame, apply = topic.rows, apply_topic
    else:
        batches = FileBatches(context.spark, arguments.sources[0], how)
        claim_checkpoint(files, how.checkpoint, {**query, "source": batches.path})
        frame, apply = batches.frame(arguments.max_files_per_batch), apply_files
    with failing_store_is_a_failed_write(writer.table):
        run_stream(context, writer, frame, how, apply)
    feed.totals.refuse_nothing_applied()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _cdc)
