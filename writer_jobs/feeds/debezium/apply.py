"""``apply_events``: merge Debezium's change events of one table into a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions, options_of_next_write
from writer_jobs.errors import ChangesError, FeedError
from writer_jobs.feeds.dead_letters import DeadLetterLimit, write_dead_letters
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.merge.apply import RETENTION, apply_changes
from writer_jobs.merge.result import ChangesResult
from writer_jobs.writer import LockedDeltaWriter


def apply_events(
    writer: LockedDeltaWriter,
    messages: DataFrame,
    *,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    source_tables: Collection[str] = (),
    max_dead_letters: DeadLetterLimit | None = None,
    stored_as_scd_type: int = 1,
    partition_by: Sequence[str] = (),
    tombstone_retention: timedelta = RETENTION,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of Debezium's events of one table, so that the Delta table equals it, or has its history.

    ::

        apply_events(writer, spark.read.format("kafka")….load().selectExpr("key", "value", "topic AS origin"))

    The rules are those of :func:`writer_jobs.feeds.debezium.decode.decode` and of :func:`writer_jobs.apply_changes`;
    new columns and wider types come with the events. What cannot be decoded goes to ``<location>_dead_letters``, and is
    counted; tombstones of Kafka and messages that are about no row are passed over.

    Args:
        writer: of the table, which is made if there is nothing at its location.
        messages: ``key`` and ``value`` (binary), ``origin`` (string).
        keys: columns that together name a row; by default the fields of the messages' keys.
        sequence_by: SQL over the envelope's ``source``, ``op``, ``ts_ms``, ``transaction`` and ``origin``; by default
            the place in the database's log.
        source_tables: Tables whose events are applied, such as ``shop.public.orders`` or ``orders``; those of others
            are left out and counted as ``filtered``. A name that means several tables is refused. By default events of
            several tables are refused.
        max_dead_letters: A batch with more is refused.
        stored_as_scd_type: as for :func:`writer_jobs.apply_changes`, like all that follows.
        partition_by: likewise.
        tombstone_retention: likewise.
        txn: likewise; with it dead letters are written once, too.
        lock_timeout_seconds: likewise.
        metadata: likewise.
        before_write: likewise.

    Raises:
        ChangesError: the events cannot be ordered, have no key, are of several tables, or truncate the table; or too
            many cannot be decoded.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    try:
        decoded = decode(
            messages,
            table=writer.log.state(),
            keys=keys,
            sequence_by=sequence_by,
            source_tables=source_tables,
            partition_by=partition_by,
        )
    except FeedError as error:
        raise ChangesError(table=writer.table, reason=str(error)) from error
    with decoded:
        if max_dead_letters is not None:
            messages_count = decoded.event_count + decoded.dead_count
            max_dead_letters.check(writer.table, decoded.dead_count, messages_count, decoded.dead_reason)
        result = ChangesResult.of_nothing(writer.table)
        if decoded.count:
            result = apply_changes(
                writer,
                decoded.changes,
                **decoded.how,
                stored_as_scd_type=stored_as_scd_type,
                schema_evolution=True,
                partition_by=partition_by,
                tombstone_retention=tombstone_retention,
                txn=txn,
                lock_timeout_seconds=lock_timeout_seconds,
                metadata=metadata,
                before_write=before_write,
            )
            result = replace(result, newest_at=decoded.newest_source_time)
        if decoded.dead_count:
            options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata)
            write_dead_letters(writer, decoded.dead, txn, options_of_next_write(options, writer.manager, result.commit))
        return replace(
            result,
            dead_letters=decoded.dead_count,
            dead_reason=decoded.dead_reason,
            skipped=decoded.skipped,
            filtered=decoded.filtered,
        )
