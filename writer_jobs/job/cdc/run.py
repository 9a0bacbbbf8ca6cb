"""The function of ``cdc.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.job.cdc.applier import MessageApplier
from writer_jobs.job.cdc.arguments import PROGRAM, CdcArguments, parse_arguments
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.messages import Messages, messages_of_files, messages_of_topic
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.load_transaction import LoadTransaction, apply_once
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.stream_runner import run_stream
from writer_jobs.merge.result import ChangesResult
from writer_jobs.streaming.checkpoint import claim_checkpoint
from writer_jobs.streaming.query import ApplyBatch
from writer_jobs.writer import LockedDeltaWriter


def _cdc(context: JobContext[CdcArguments]) -> None:
    arguments = context.arguments
    writer = LockedDeltaWriter(context.spark, context.manager, arguments.table)
    context.report(table=writer.table)
    if arguments.stream is None:
        _apply_once(context, writer)
    else:
        _apply_stream(context, writer, arguments.stream)


def _apply_once(context: JobContext[CdcArguments], writer: LockedDeltaWriter) -> None:
    arguments = context.arguments
    if arguments.kafka is not None and arguments.topic is not None:
        messages = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=False)
        basis: dict[str, Any] = {"topic": arguments.topic}
    else:
        sources = find_sources(HadoopFiles.of(context.spark), arguments.sources)
        messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, writer.table)
        basis = {"sources": sources.basis}
    applier = MessageApplier(context.spark, arguments, writer)
    transaction = LoadTransaction.of(context, PROGRAM, writer, {**arguments.identity, **basis})

    apply_once(context, writer, transaction, partial(applier.apply, messages))
    applier.totals.refuse_nothing_applied()


def _apply_stream(context: JobContext[CdcArguments], writer: LockedDeltaWriter, stream: StreamArguments) -> None:
    arguments, files = context.arguments, HadoopFiles.of(context.spark)
    applier, query = MessageApplier(context.spark, arguments, writer), {**arguments.identity, "table": writer.table}

    def apply_files(_: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        files, result = batches.files(txn[1]), ChangesResult.of_nothing(writer.table)
        if (sources := files.sources) is not None:
            messages = messages_of_files(context.spark, sources, arguments.format, arguments.options, writer.table)
            result = applier.apply(messages, txn, None, holding)
        return replace(result, missing_files=files.missing)

    def apply_topic(batch: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        return applier.apply(Messages(batch), txn, None, holding)

    apply: ApplyBatch
    if arguments.kafka is not None and arguments.topic is not None:
        claim_checkpoint(files, stream.checkpoint, {**query, "topic": arguments.topic})
        topic = messages_of_topic(context.spark, arguments.kafka, arguments.topic, arguments.options, stream=True)
        frame, apply = topic.rows, apply_topic
    else:
        batches = FileBatches(context.spark, arguments.sources[0], stream)
        claim_checkpoint(files, stream.checkpoint, {**query, "source": batches.path})
        frame, apply = batches.frame(arguments.max_files_per_batch), apply_files
    run_stream(context, writer, frame, stream, apply)
    applier.totals.refuse_nothing_applied()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _cdc)
