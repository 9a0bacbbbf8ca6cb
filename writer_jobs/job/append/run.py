"""The function of ``append.py``."""

from __future__ import annotations

from writer_jobs.job.append.arguments import PROGRAM, AppendArguments, parse_arguments
from writer_jobs.job.append.load import AppendLoad
from writer_jobs.job.runner import Job, JobContext, failing_store_is_a_failed_write
from writer_jobs.writer import LockedDeltaWriter


def _append(context: JobContext[AppendArguments]) -> None:
    writer = LockedDeltaWriter(context.spark, context.manager, context.arguments.table)
    context.report(table=writer.table)
    load = AppendLoad(context.spark, writer, context.arguments, context.output, context.stop.deferred)
    with failing_store_is_a_failed_write(writer.table):
        load.run()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _append)
