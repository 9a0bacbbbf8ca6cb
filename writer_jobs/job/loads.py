"""Apply a load of a job, or the micro-batches of a stream.

A load with a run id is one transaction, which is applied once; the id must not be reused for another load. Each
micro-batch is a transaction, too.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from lock_manager import Hold
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import run_note
from writer_jobs.errors import NothingAppliedError, RunError
from writer_jobs.job.inputs.file_arguments import FileJobArguments
from writer_jobs.job.inputs.source_files import newest_modification
from writer_jobs.job.runner import JobContext, storage_errors_as_failed_writes
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.merge.rejected_rows import table_that_may_have_dropped
from writer_jobs.merge.table_feed import feed_of
from writer_jobs.streaming.feed_metrics import FeedProgress
from writer_jobs.streaming.query import ApplyBatch, BatchQuery, BatchResult, LoadResult
from writer_jobs.writer import LockedDeltaWriter

_Arguments = TypeVar("_Arguments", bound=FileJobArguments)
_HEX_DIGITS = 15  # 60 bits: a txnVersion is a non-negative integer of 64 bits


class Load:
    """A load of a job. With a run id it is a transaction, whose version is a hash of its sources and options.

    ``basis`` has these sources and options; JSON values.

    Raises:
        RunError: The table has another load with this run id, or may have dropped the transaction of this load.

    """

    def __init__(self, context: JobContext[_Arguments], basis: Mapping[str, Any]) -> None:
        self._writer, self._output, self._stop = context.writer, context.output, context.stop
        self._run_id = context.arguments.run_id
        self._is_applied, self._newest_version = False, NO_VERSION
        self._txn: tuple[str, int] | None = None
        self._metadata: Mapping[str, Any] | None = None
        if self._run_id is not None:
            name = f"{context.program}/{self._run_id}"
            self._txn, self._metadata = (name, _hash(basis)), run_note(name, 1, 1)
            # An earlier release hashed no modification times.
            sources = [source[:2] for source in basis.get("sources", ())]
            self._earlier_release_hash = _hash({**basis, "sources": sources}) if sources else NO_VERSION
        self._look_up()
        if self._txn is not None:
            self._refuse_dropped(self._txn[0], newest_modification(basis.get("sources", ())))

    def print_if_applied(self, counters: Iterable[str] = ()) -> bool:
        """Print the commit of the load if the table already has the load, and return whether it has.

        ``counters`` are the names of the job's counters; the printed event has null for each. Call this before the
        sources are read. A load that writes something after its commit to the table must not use it.
        """
        if self._is_applied:
            self._output.commit(1, None, **dict.fromkeys(counters), version=self._version())
        return self._is_applied

    def apply(
        self,
        apply: Callable[[tuple[str, int] | None, Mapping[str, Any] | None, Callable[[Hold], None]], LoadResult],
    ) -> None:
        """Apply the load and print its result.

        Args:
            apply: Applies the load with the transaction and the metadata of its commit, both None for a load without a
                run id. Calls its third argument with the hold, under the lock.

        Raises:
            RunError: The table has another load with this run id.
            SluiceError: An error of ``apply``.

        """
        version_field = {}
        with storage_errors_as_failed_writes(self._writer.table), self._stop.deferred(self._writer.cancel):
            self._output.begun(1, time.time())
            result = apply(self._txn, self._metadata, self._before_write)
            if self._txn is not None and result.already_applied:
                self._look_up()
                version_field = {"version": self._version()}
            counts = {**result.counts, **version_field}
            self._output.commit(1, result.commit, **counts, already_committed=result.already_applied)

    def _before_write(self, hold: Hold) -> None:
        self._look_up()
        self._output.holding(1, hold.token, hold.acquired_at)

    def _look_up(self) -> None:
        """Look up whether the newest version of the table has this load.

        Raises:
            RunError: The table has another load with this run id.

        """
        if self._txn is None:
            return
        application, version = self._txn
        head = self._writer.log.head(application)
        last_version, self._newest_version = head.last_transaction, head.version
        if last_version != NO_VERSION and last_version == self._earlier_release_hash:
            version = last_version
            self._txn = (application, version)
        if last_version not in (NO_VERSION, version):
            raise RunError(
                f"run {self._run_id!r} is in the table, with other sources or other arguments: choose another run id"
            )
        self._is_applied = last_version == version

    def _refuse_dropped(self, application: str, sources_modified: float) -> None:
        """Raise RunError if the load may be in the table without its transaction. It is younger than its sources."""
        table = table_that_may_have_dropped(self._writer, application, sources_modified)
        if table is not None:
            raise RunError(
                f"run {self._run_id!r} may have been applied before: {table} drops old transactions "
                "(delta.setTransactionRetentionDuration), and its sources are not younger than that; look into the "
                "table's history, and load them without --run-id if they are not in the table"
            )

    def _version(self) -> int | None:
        """Return the table version of the load's commit as of the last :meth:`_look_up`.

        None if the log no longer has the commit, or if an earlier release made it.
        """
        if self._txn is None:
            return None
        return self._writer.log.run_versions(self._txn[0], newest=self._newest_version).get(1)


def _hash(basis: Mapping[str, Any]) -> int:
    """Return the hash of a load's sources and options."""
    text = json.dumps(basis, sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS], 16)


def run_stream(
    context: JobContext[Any], frame: DataFrame, stream: StreamArguments, apply: ApplyBatch, *, source: str
) -> None:
    """Apply the micro-batches of a streaming query until it ends, is stopped, or a batch fails.

    Each batch prints the events ``begun``, ``holding`` and ``commit``. After a signal, a batch that holds its lock
    finishes; a batch that computes, or waits for its lock, gives up. A second signal, at least 10 seconds later,
    cancels the write.

    ``apply`` is called for each micro-batch in a thread of the query. Its errors are raised here. ``source`` is the
    name of the topic, folder or table that the query reads, for the metrics. :func:`claim_checkpoint` must have been
    called.

    Raises:
        StreamError: The query ended for a reason other than its batches.
        WriteFailedError: A store failed.

    """
    progress = FeedProgress(context.writer.table, source, stream.trigger)

    def apply_and_record(rows: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> BatchResult:
        result = apply(rows, txn, before_write)
        progress.record(result.newest_at)
        return result

    query = BatchQuery(context.writer, context.output, apply_and_record)
    with storage_errors_as_failed_writes(context.writer.table), context.stop.deferred(query.stop):
        query.run(frame, trigger=stream.trigger, checkpoint=stream.checkpoint)


class AppliedTotals:
    """Totals of a run of ``cdc.py`` or ``stream.py``, to find out whether it applied nothing of a non-empty input.

    ``source_tables`` are the source tables whose events are applied; empty: all.
    """

    def __init__(self, writer: LockedDeltaWriter, source_tables: tuple[str, ...] = ()) -> None:
        self._writer = writer
        self._source_tables = source_tables
        self._is_applied = False
        self._dead_letters = self._filtered = 0
        self._dead_reason: str | None = None

    def add(self, dead_letters: int, dead_reason: str | None = None, filtered: int = 0, *, is_applied: bool) -> None:
        """Add the numbers of a batch; ``is_applied``: rows or changes were applied by this run or by an earlier one."""
        self._is_applied |= is_applied
        self._dead_letters += dead_letters
        self._dead_reason = dead_reason or self._dead_reason
        self._filtered += filtered

    def refuse_nothing_applied(self) -> None:
        """Make sure that the run applied something, unless its batches had nothing to apply.

        A run whose events are all of other source tables passes if the table is bound to the named source tables: these
        had no events. If the table is not bound to them, a name may be misspelled, and the run is refused.

        Raises:
            NothingAppliedError: Each message is a dead letter, or an event of another source table.

        """
        if self._is_applied or not (self._dead_letters or (self._filtered and not self._is_bound())):
            return
        reasons = []
        if self._dead_letters:
            reason_note = "" if self._dead_reason is None else f", the last batch most often: {self._dead_reason}"
            reasons.append(f"{self._dead_letters} messages are in {self._writer.table}_dead_letters{reason_note}")
        if self._filtered:
            names = ", ".join(self._source_tables)
            reasons.append(f"{self._filtered} events are of other source tables than {names}")
        raise NothingAppliedError(table=self._writer.table, reason="; ".join(reasons))

    def _is_bound(self) -> bool:
        """Return whether the table property ``sluice.feed`` has the named source tables."""
        feed = feed_of(self._writer.log.state())
        return feed is not None and feed.has_tables(self._source_tables)
