"""``stream_into``: a streaming query whose rows are applied to a table, each row once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Unpack

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions, options_of_next_write
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.moments import MICROSECOND
from writer_jobs.feeds.dead_letters import write_dead_letters
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.late_rows.event_time import LatenessLimits
from writer_jobs.late_rows.options import RowOptions, with_defaults
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.streaming.checkpoint import StreamProgress, claim_checkpoint
from writer_jobs.streaming.query import AVAILABLE_NOW, BatchQuery
from writer_jobs.writer import LockedDeltaWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowBatch:
    """The rows of a micro-batch.

    Attributes:
        rows: Rows that could be read; None if there are none.
        dead_letters: Messages that could not be read, as :func:`write_dead_letters` takes them; None if there are none.
        missing_files: Number of source files that were deleted and are skipped.

    """

    rows: DataFrame | None
    dead_letters: DataFrame | None = None
    missing_files: int = 0


class RowStream:
    """Applies the micro-batches of the stream with this checkpoint folder to one table, with the same options."""

    def __init__(self, writer: LockedDeltaWriter, files: HadoopFiles, checkpoint: str, options: RowOptions) -> None:
        self._writer = writer
        self._progress = StreamProgress(files, checkpoint)
        self._options = with_defaults(options)

    @property
    def query_identity(self) -> dict[str, str]:
        """Options that must not change while the checkpoint is in use, by the job's option name.

        The job adds the source.
        """
        return {
            "keys": ",".join(self._options["keys"]),
            "event-time": self._options["event_time"],
            "sequence-by": self._options["sequence_by"] or "",
            "table": self._writer.table,
        }

    def apply(
        self,
        read: Callable[[], AbstractContextManager[RowBatch]],
        txn: tuple[str, int],
        before_write: Callable[[Hold], None],
    ) -> RowsResult:
        """Apply a batch: its rows, then its dead letters. A batch that was finished before is not read again.

        Its transaction is the id of the query and the batch's number.

        Raises:
            CheckpointError: The checkpoint is incomplete.
            SluiceError: See :func:`writer_jobs.apply_rows`.

        """
        table, progress, options = self._writer.table, self._progress, self._options
        limits = LatenessLimits(watermark_delay=options["watermark_delay"], allowed=options["allowed_lateness"])
        if progress.is_finished(txn):
            newest = progress.newest_before(txn[1] + 1)
            return RowsResult(table=table, already_applied=True, newest=newest, watermark=limits.watermark(newest))
        newest_before = progress.newest_before(txn[1])
        limits = _parse_limits(progress.start(txn, _limits_json(limits)))
        options = {**options, "watermark_delay": limits.watermark_delay, "allowed_lateness": limits.allowed}
        with read() as batch:
            result = RowsResult(table=table, newest=newest_before, watermark=limits.watermark(newest_before))
            if batch.rows is not None:
                result = apply_rows(
                    self._writer,
                    batch.rows,
                    **options,
                    newest_before=newest_before,
                    txn=txn,
                    before_write=before_write,
                )
            if batch.dead_letters is not None:
                result = self._append_dead_letters(batch.dead_letters, txn, result)
        progress.finish(txn, result.newest)
        return replace(result, missing_files=batch.missing_files)

    def _append_dead_letters(self, dead_letters: DataFrame, txn: tuple[str, int], result: RowsResult) -> RowsResult:
        count, reason = dead_letters.agg(F.count("*"), F.mode("reason")).collect()[0]
        if not count:
            return result
        options = WriteOptions(
            lock_timeout_seconds=self._options["lock_timeout_seconds"], metadata=self._options["metadata"]
        )
        options = options_of_next_write(options, self._writer.manager, result.commit)
        write_dead_letters(self._writer, dead_letters, txn, options)
        return replace(result, dead_letters=count, dead_reason=reason)


def _limits_json(limits: LatenessLimits) -> dict[str, int | None]:
    """Return the limits in microseconds, for the checkpoint."""
    allowed = limits.allowed
    return {
        "watermark_delay_us": limits.watermark_delay // MICROSECOND,
        "allowed_lateness_us": None if allowed is None else allowed // MICROSECOND,
    }


def _parse_limits(stored_limits: Mapping[str, Any]) -> LatenessLimits:
    allowed = stored_limits["allowed_lateness_us"]
    return LatenessLimits(
        watermark_delay=stored_limits["watermark_delay_us"] * MICROSECOND,
        allowed=None if allowed is None else allowed * MICROSECOND,
    )


def stream_into(
    writer: LockedDeltaWriter,
    rows: DataFrame,
    *,
    checkpoint: str,
    trigger: str = AVAILABLE_NOW,
    on_batch: Callable[[int, RowsResult], None] | None = None,
    **options: Unpack[RowOptions],
) -> None:
    """Run a streaming query that applies its rows to a table, each row once, until the query ends.

    ::

        rows = spark.readStream.format("delta").load("s3a://lake/raw_departures")
        stream_into(writer, rows, checkpoint="s3a://lake/_streams/departures", keys=["flight"],
                    event_time="departed_at", trigger="10 seconds")

    If the process is killed at any point and the query is started again with the same checkpoint, each micro-batch is
    applied exactly once. A batch that was started before keeps the ``watermark_delay`` and ``allowed_lateness`` of its
    first start. On Ctrl-C, a batch that has its lock is finished, and a batch that computes or waits for the lock is
    cancelled.

    Args:
        writer: Writer of the table. The table is created if it does not exist.
        rows: Streaming rows. The checkpoint does not store their source, so always use the same source with it.
        checkpoint: URI of the folder with the progress of the stream. Each stream needs its own folder.
        trigger: ``available-now`` to apply the available rows and end, or an interval such as ``10 seconds``.
        on_batch: Called with the number and the result of each batch.
        options: Options of the rows and the table; see :class:`~writer_jobs.late_rows.options.RowOptions`.

    Raises:
        TypeError: A required option is missing, or an option does not exist.
        CheckpointError: The checkpoint belongs to another query, is incomplete, or is so old that the table may have
            dropped the transaction of the batch.
        StreamError: The query failed outside its batches.
        SluiceError: A batch failed; see :func:`writer_jobs.apply_rows`.

    """
    files = HadoopFiles.of(rows.sparkSession)
    stream = RowStream(writer, files, checkpoint, options)
    claim_checkpoint(files, checkpoint, stream.query_identity)

    def apply(batch: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> RowsResult:
        result = stream.apply(lambda: nullcontext(RowBatch(batch)), txn, before_write)
        if on_batch is not None:
            on_batch(txn[1], result)
        return result

    query = BatchQuery(writer, _BatchLog(), apply)
    try:
        query.run(rows, trigger=trigger, checkpoint=checkpoint)
    except KeyboardInterrupt:
        query.stop()
        raise


class _BatchLog:
    """Logs the events of batches."""

    def begun(self, commit: int, begun_at: float, **fields: Any) -> None:
        log.debug("batch %s (number %d since the start) began at %.3f", fields.get("batch"), commit, begun_at)

    def holding(self, commit: int, token: int, acquired_at: float, **fields: Any) -> None:
        text = "batch %s (number %d since the start) got the lock at %.3f, token %d"
        log.debug(text, fields.get("batch"), commit, acquired_at, token)

    def commit(self, commit: int, result: CommitResult | None, **fields: Any) -> None:
        version = None if result is None else result.version
        text = "batch %s (number %d since the start) is finished, version %s: %s"
        log.info(text, fields.get("batch"), commit, version, fields)
