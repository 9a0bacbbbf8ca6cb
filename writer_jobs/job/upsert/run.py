"""The function of ``upsert.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.source_files import SourceFiles, find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.load_transaction import LoadTransaction, apply_once, is_applied
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.stream_runner import run_stream
from writer_jobs.job.upsert.arguments import PROGRAM, UpsertArguments, parse_arguments
from writer_jobs.merge.apply import apply_changes
from writer_jobs.merge.result import COUNTERS, ChangesResult
from writer_jobs.streaming.checkpoint import claim_checkpoint
from writer_jobs.writer import LockedDeltaWriter


def _upsert(context: JobContext[UpsertArguments]) -> None:
    writer = LockedDeltaWriter(context.spark, context.manager, context.arguments.table)
    context.report(table=writer.table)
    if context.arguments.stream is None:
        _upsert_once(context, writer)
    else:
        _upsert_stream(context, writer, context.arguments.stream)


def _upsert_once(context: JobContext[UpsertArguments], writer: LockedDeltaWriter) -> None:
    arguments = context.arguments
    sources = find_sources(HadoopFiles.of(context.spark), arguments.sources)
    transaction = LoadTransaction.of(context, PROGRAM, writer, {**arguments.identity, "sources": sources.basis})
    if is_applied(context, transaction, (*COUNTERS, "newest_sequence", "lag_s")):
        return
    changes = _read(context, writer, sources)

    def apply(
        txn: tuple[str, int] | None, metadata: Mapping[str, Any] | None, holding: Callable[[Hold], None]
    ) -> ChangesResult:
        options = arguments.apply_options
        return apply_changes(writer, changes, **options, txn=txn, metadata=metadata, before_write=holding)

    apply_once(context, writer, transaction, apply)


def _upsert_stream(context: JobContext[UpsertArguments], writer: LockedDeltaWriter, stream: StreamArguments) -> None:
    arguments = context.arguments
    batches = FileBatches(context.spark, arguments.sources[0], stream)
    query = {**arguments.identity, "table": writer.table, "source": batches.path}
    claim_checkpoint(HadoopFiles.of(context.spark), stream.checkpoint, query)

    def apply(_: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        files, result = batches.files(txn[1]), ChangesResult.of_nothing(writer.table)
        if files.sources is not None:
            changes = _read(context, writer, files.sources)
            result = apply_changes(writer, changes, **arguments.apply_options, txn=txn, before_write=holding)
        return replace(result, missing_files=files.missing)

    run_stream(context, writer, batches.frame(arguments.max_files_per_batch), stream, apply)


def _read(context: JobContext[UpsertArguments], writer: LockedDeltaWriter, sources: SourceFiles) -> DataFrame:
    arguments = context.arguments
    reader = SourceReader(context.spark, sources, arguments.format or sources.format, arguments.options, writer.table)
    return reader.read(reader.schema_of_changes(writer.log.state(), evolves=arguments.schema_evolution))


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _upsert)
