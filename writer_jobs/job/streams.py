"""Streams of a job: a query that ends as the job's signals want it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from writer_jobs.job.runner import JobContext
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.streaming.query import ApplyBatch, BatchQuery
from writer_jobs.writer import LockedDeltaWriter


def run_stream(
    context: JobContext[Any],
    writer: LockedDeltaWriter,
    frame: DataFrame,
    how: StreamArguments,
    apply: ApplyBatch,
) -> None:
    """Apply the micro-batches of a streaming query until it ends, is stopped, or a batch fails.

    Each batch has its lines: ``waiting``, ``holding``, ``commit``. A signal lets a batch that has its lock come to its
    end, and one that computes or waits for it give up; another signal cancels the write.

    Args:
        context: of the job.
        writer: of the table.
        frame: the rows, streaming.
        how: trigger and checkpoint; :func:`claim_checkpoint` has to be called before.
        apply: called for each micro-batch, in a thread of the query. What it raises is raised here.

    Raises:
        StreamError: the query ended, for a reason other than its batches.

    """
    query = BatchQuery(writer, context.output, apply)
    with context.stop.deferred(query.stop):
        query.run(frame, trigger=how.trigger, checkpoint=how.checkpoint)
