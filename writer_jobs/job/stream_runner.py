"""Run a job's streaming query until it ends or a signal stops it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from writer_jobs.job.runner import JobContext, failing_store_is_a_failed_write
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.streaming.query import ApplyBatch, BatchQuery
from writer_jobs.writer import LockedDeltaWriter


def run_stream(
    context: JobContext[Any],
    writer: LockedDeltaWriter,
    frame: DataFrame,
    stream: StreamArguments,
    apply: ApplyBatch,
) -> None:
    """Apply the micro-batches of a streaming query until it ends, is stopped, or a batch fails.

    Each batch prints the events ``begun``, ``holding`` and ``commit``. After a signal, a batch that holds its lock
    finishes; a batch that computes, or waits for its lock, gives up. Another signal cancels the write.

    Args:
        context: Context of the job.
        writer: Writer of the table.
        frame: The streaming rows.
        stream: Trigger and checkpoint. :func:`claim_checkpoint` must have been called.
        apply: Called for each micro-batch in a thread of the query. Its errors are raised here.

    Raises:
        StreamError: The query ended for a reason other than its batches.
        WriteFailedError: A store failed.

    """
    query = BatchQuery(writer, context.output, apply)
    with failing_store_is_a_failed_write(writer.table), context.stop.deferred(query.stop):
        query.run(frame, trigger=stream.trigger, checkpoint=stream.checkpoint)
