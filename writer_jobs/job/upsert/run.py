"""The work of ``upsert.py``."""

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
from writer_jobs.job.once import LoadMark, apply_once, is_applied
from writer_jobs.job.runner import Job, JobContext, failing_store_is_a_failed_write
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.streams import run_stream
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
    mark = LoadMark.of(context, PROGRAM, writer, {**arguments.query, "sources": sources.basis})
    if is_applied(context, mark, (*COUNTERS, "newest_sequence", "lag_s")):
        return
    changes = _read(context, writer, sources)

    def apply(holding: Callable[[Hold], None]) -> ChangesResult:
        txn, metadata = (None, None) if mark is None else (mark.txn, mark.metadata)
        return _apply(arguments, writer, changes, txn, holding, metadata)

    apply_once(context, writer, mark, apply)


def _upsert_stream(context: JobContext[UpsertArguments], writer: LockedDeltaWriter, how: StreamArguments) -> None:
    arguments = context.arguments
    batches = FileBatches(context.spark, arguments.sources[0], how)
    query = {**arguments.query, "table": writer.table, "source": batches.path}
    claim_checkpoint(HadoopFiles.of(context.spark), how.checkpoint, query)

    def apply(_: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> ChangesResult:
        files, result = batches.files(txn[1]), ChangesResult.of_nothing(writer.table)
        if files.sources is not None:
            result = _apply(arguments, writer, _read(context, writer, files.sources), txn, holding)
        return replace(result, missing_files=files.missing)

    with failing_store_is_a_failed_write(writer.table):
        run_stream(context, writer, batches.frame(arguments.max_files_per_batch), how, apply)


def _read(context: JobContext[UpsertArguments], writer: LockedDeltaWriter, sources: SourceFiles) -> DataFrame:
    arguments = context.arguments
    reader = SourceReader(context.spark, sources, arguments.format or sources.format, arguments.options, writer.table)
    return reader.read(reader.schema_of_changes(writer.log.state(), evolves=arguments.schema_evolution))


def _apply(
    arguments: UpsertArguments,
    writer: LockedDeltaWriter,
    changes: DataFrame,
    txn: tuple[str, int] | None,
    holding: Callable[[Hold], None],
    metadata: Mapping[str, Any] | None = None,
) -> ChangesResult:
    return apply_changes(
        writer,
        changes,
        keys=arguments.keys,
        sequence_by=arguments.sequence_by,
        apply_as_deletes=arguments.apply_as_deletes,
        column_list=arguments.column_list,
        except_column_list=arguments.except_column_list,
        stored_as_scd_type=arguments.stored_as_scd_type,
        schema_evolution=arguments.schema_evolution,
        partition_by=arguments.partition_by,
        tombstone_retention=arguments.tombstone_retention,
        txn=txn,
        metadata=metadata,
        before_write=holding,
    )


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _upsert)
