"""``stream_into``: a streaming query whose rows come into a table once each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.moments import MICROSECOND
from writer_jobs.feeds.dead_letters import write_dead_letters
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.late_rows.event_time import LatenessLimits
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.streaming.checkpoint import EventClock, claim_checkpoint
from writer_jobs.streaming.query import AVAILABLE_NOW, BatchQuery
from writer_jobs.writer import LockedDeltaWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowBatch:
    """What a micro-batch has.

    Attributes:
        rows: those that could be read; None: there is nothing.
        dead: what could not, as :func:`write_dead_letters` takes it; None: nothing.
        missing_files: Number of source files that were deleted and are skipped.

    """

    rows: DataFrame | None
    dead: DataFrame | None = None
    missing_files: int = 0


class RowStream:
    """The micro-batches of one stream into one table.

    Args:
        writer: of the table.
        files: of the checkpoint's file system.
        checkpoint: URI of the stream's folder.
        how: arguments of :func:`writer_jobs.apply_rows`, by name, that are the same for each batch.

    """

    def __init__(self, writer: LockedDeltaWriter, files: HadoopFiles, checkpoint: str, how: Mapping[str, Any]) -> None:
        self._writer = writer
        self._clock = EventClock(files, checkpoint)
        self._how = how

    @property
    def query(self) -> dict[str, str]:
        """What its checkpoint is bound to, beside its source; by the names of the job's options."""
        return {
            "keys": ",".join(self._how["keys"]),
            "event-time": self._how["event_time"],
            "sequence-by": self._how["sequence_by"] or "",
            "table": self._writer.table,
        }

    def apply(
        self,
        read: Callable[[], AbstractContextManager[RowBatch]],
        txn: tuple[str, int],
        holding: Callable[[Hold], None],
    ) -> RowsResult:
        """Apply a batch: its rows, then its dead letters. One that is done is not read again.

        Args:
            read: returns the batch.
            txn: its transaction, with its number.
            holding: called under the lock.

        Raises:
            CheckpointError: the checkpoint is not whole.
            SluiceError: see :func:`writer_jobs.apply_rows`.

        """
        number = txn[1]
        if self._clock.is_finished(txn):
            return RowsResult.of_nothing(
                self._writer.table, self._clock.newest_before(number + 1), self._lateness, already_applied=True
            )
        before = self._clock.newest_before(number)
        lateness = _lateness_of(self._clock.start(txn, _noted(self._lateness)))
        with read() as batch:
            result = RowsResult.of_nothing(self._writer.table, before, lateness)
            if batch.rows is not None:
                result = self._applied(batch.rows, before, lateness, txn, holding)
            if batch.dead is not None:
                dead_letters, reason = batch.dead.agg(F.count("*"), F.mode("reason")).collect()[0]
                if dead_letters:
                    options = WriteOptions(
                        lock_timeout_seconds=self._how.get("lock_timeout_seconds"), metadata=self._how.get("metadata")
                    )
                    options = options.after(self._writer.manager, result.commit)
                    write_dead_letters(self._writer, batch.dead, txn, options)
                    result = replace(result, dead_letters=dead_letters, dead_reason=reason)
        self._clock.finish(txn, result.newest)
        return replace(result, missing_files=batch.missing_files)

    def _applied(
        self,
        rows: DataFrame,
        before: datetime | None,
        lateness: LatenessLimits,
        txn: tuple[str, int],
        holding: Callable[[Hold], None],
    ) -> RowsResult:
        how = {**self._how, "watermark_delay": lateness.watermark_delay, "allowed_lateness": lateness.allowed}
        return apply_rows(self._writer, rows, **how, newest_before=before, txn=txn, before_write=holding)

    @property
    def _lateness(self) -> LatenessLimits:
        return LatenessLimits(watermark_delay=self._how["watermark_delay"], allowed=self._how["allowed_lateness"])


def _noted(lateness: LatenessLimits) -> dict[str, int | None]:
    """Return what is late as JSON has it: in microseconds."""
    allowed = lateness.allowed
    return {
        "watermark_delay_us": lateness.watermark_delay // MICROSECOND,
        "allowed_lateness_us": None if allowed is None else allowed // MICROSECOND,
    }


def _lateness_of(noted: Mapping[str, Any]) -> LatenessLimits:
    allowed = noted["allowed_lateness_us"]
    return LatenessLimits(
        watermark_delay=noted["watermark_delay_us"] * MICROSECOND,
        allowed=None if allowed is None else allowed * MICROSECOND,
    )


def stream_into(
    writer: LockedDeltaWriter,
    rows: DataFrame,
    *,
    checkpoint: str,
    keys: Sequence[str],
    event_time: str,
    trigger: str = AVAILABLE_NOW,
    sequence_by: str | None = None,
    watermark_delay: timedelta = timedelta(0),
    allowed_lateness: timedelta | None = None,
    schema_evolution: bool = False,
    partition_by: Sequence[str] = (),
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    on_batch: Callable[[int, RowsResult], None] | None = None,
) -> None:
    """Run a streaming query that brings its rows into a table, each of them once, until it ends.

    ::

        rows = spark.readStream.format("delta").load("s3a://lake/raw_departures")
        stream_into(writer, rows, checkpoint="s3a://lake/_streams/departures", keys=["flight"],
                    event_time="departed_at", trigger="10 seconds")

    Killed at any point and started again with the same checkpoint it applies each micro-batch exactly once; one that
    was begun is decided with the lateness that it was begun with. Ctrl-C lets a batch that has its lock come to its
    end, and one that computes, or waits for it, give up.

    Args:
        writer: of the table, which is made if there is nothing at its location.
        rows: streaming; a checkpoint does not know of which source, so keep them together.
        checkpoint: URI of the folder in which the stream notes how far it is; of this stream alone.
        keys: as for :func:`writer_jobs.apply_rows`, like ``event_time`` and all that is not named here.
        event_time: likewise.
        trigger: ``available-now``, to take what is there and end, or an interval that Spark understands.
        sequence_by: likewise.
        watermark_delay: likewise.
        allowed_lateness: likewise.
        schema_evolution: likewise.
        partition_by: likewise.
        lock_timeout_seconds: of each batch.
        metadata: likewise.
        on_batch: called with the number of each batch, and what became of it.

    Raises:
        CheckpointError: the checkpoint is of another query, or not whole.
        StreamError: the query ended for a reason other than its batches.
        SluiceError: what a batch raises; see :func:`writer_jobs.apply_rows`.

    """
    files = HadoopFiles.of(rows.sparkSession)
    how = {
        "keys": keys,
        "event_time": event_time,
        "sequence_by": sequence_by,
        "watermark_delay": watermark_delay,
        "allowed_lateness": allowed_lateness,
        "schema_evolution": schema_evolution,
        "partition_by": partition_by,
        "lock_timeout_seconds": lock_timeout_seconds,
        "metadata": metadata,
    }
    into = RowStream(writer, files, checkpoint, how)
    claim_checkpoint(files, checkpoint, into.query)

    def apply(batch: DataFrame, txn: tuple[str, int], holding: Callable[[Hold], None]) -> RowsResult:
        done = into.apply(lambda: nullcontext(RowBatch(batch)), txn, holding)
        if on_batch is not None:
            on_batch(txn[1], done)
        return done

    running = BatchQuery(writer, _Log(), apply)
    try:
        running.run(rows, trigger=trigger, checkpoint=checkpoint)
    except KeyboardInterrupt:
        running.stop()
        raise


class _Log:
    """Tells the log what becomes of batches."""

    def begun(self, commit: int, begun_at: float, **more: Any) -> None:
        log.debug("batch %s, the %d. since the start, begun at %.3f", more.get("batch"), commit, begun_at)

    def holding(self, commit: int, token: int, acquired_at: float, **more: Any) -> None:
        log.debug("batch %s, the %d., has the lock since %.3f, token %d", more.get("batch"), commit, acquired_at, token)

    def commit(self, commit: int, result: CommitResult | None, **more: Any) -> None:
        version = None if result is None else result.version
        log.info("batch %s, the %d., is in version %s: %s", more.get("batch"), commit, version, more)
