"""The function of ``stream.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.job.applied_totals import AppliedTotals
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream.arguments import PROGRAM, StreamJobArguments, parse_arguments
from writer_jobs.job.stream.row_sources import row_source
from writer_jobs.job.stream_runner import run_stream
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.stream import RowStream
from writer_jobs.streaming.checkpoint import claim_checkpoint
from writer_jobs.writer import LockedDeltaWriter


def _stream(context: JobContext[StreamJobArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    writer = LockedDeltaWriter(spark, context.manager, arguments.table)
    context.report(table=writer.table)
    checkpoint, files = arguments.stream.checkpoint, HadoopFiles.of(spark)
    source, totals = row_source(spark, writer, arguments), AppliedTotals(writer)
    stream = RowStream(writer, files, checkpoint, arguments.row_options)
    claim_checkpoint(files, checkpoint, {**stream.query_identity, **source.name})

    def apply(frame: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> RowsResult:
        result = stream.apply(partial(source.batch, frame, txn[1]), txn, holding)
        is_applied = result.arrived > 0 or result.already_applied
        totals.add(result.dead_letters, result.dead_reason, is_applied=is_applied)
        return result

    run_stream(context, writer, source.frame, arguments.stream, apply)
    totals.refuse_nothing_applied()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _stream)
