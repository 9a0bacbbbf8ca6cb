"""``apply_events``: merge Debezium's change events of one table into a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions, options_of_next_write
from writer_jobs.commit.result import CommitResult
from writer_jobs.errors import ChangesError, FeedError
from writer_jobs.feeds.dead_letters import DeadLetterLimit, write_dead_letters
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DecodedBatch, OnTruncate
from writer_jobs.feeds.debezium.infinity import Infinity
from writer_jobs.feeds.debezium.schema_registry import SchemaRegistry
from writer_jobs.feeds.debezium.undecodable import UNAVAILABLE
from writer_jobs.merge.apply import RETENTION, apply_changes
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.truncate import apply_truncate
from writer_jobs.writer import LockedDeltaWriter


def apply_events(
    writer: LockedDeltaWriter,
    messages: DataFrame,
    *,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    source_tables: Collection[str] = (),
    unavailable_value: str = UNAVAILABLE,
    flattened: bool = False,
    schema_registry: SchemaRegistry | None = None,
    infinity: Infinity = "dead-letter",
    local_times: bool = False,
    on_truncate: OnTruncate = "refuse",
    max_dead_letters: DeadLetterLimit | None = None,
    stored_as_scd_type: int = 1,
    partition_by: Sequence[str] = (),
    tombstone_retention: timedelta = RETENTION,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of Debezium's events of one table. The Delta table then has the source's rows, or their history.

    ::

        apply_events(writer, spark.read.format("kafka")….load().selectExpr("key", "value", "topic AS origin"))

    The rules are those of :func:`writer_jobs.feeds.debezium.decode.decode` and of :func:`writer_jobs.apply_changes`.
    New columns and wider types are added to the table. Messages that cannot be decoded are written to
    ``<location>_dead_letters`` and counted. Kafka's tombstones and messages that change no row are skipped.

    Args:
        writer: Writer of the table. The table is created if its location is empty.
        messages: ``key`` and ``value`` (binary), ``origin`` (string).
        keys: Columns that together identify a row; by default the fields of the messages' keys.
        sequence_by: SQL expression over the envelope's ``source``, ``op``, ``ts_ms``, ``ts_us``, ``ts_ns``,
            ``transaction``, ``origin``, and columns of ``row``; by default the position in the database's log.
        source_tables: Tables whose events are applied, such as ``shop.public.orders`` or ``orders``. Events of other
            tables are filtered out and counted as ``filtered``. A name that matches several tables is refused. By
            default events of several tables are refused.
        unavailable_value: The connector's ``unavailable.value.placeholder``. An update that has it instead of a value
            keeps the column's value; with SCD type 2, and where the value is not that of the row, it is a dead letter.
        flattened: Whether the transform ``ExtractNewRecordState`` has flattened the events; see
            :func:`writer_jobs.feeds.debezium.decode.decode`.
        schema_registry: Registry with the schemas of messages in Avro.
        infinity: What PostgreSQL's ``infinity`` in a date or a time becomes: ``dead-letter``; ``largest``, the largest
            time of the year 9999, and for ``-infinity`` the smallest of the year 1; or ``null``, except inside nested
            values, where it makes the message a dead letter.
        local_times: Whether new columns with times without a zone are ``timestamp_ntz``, by the messages' schemas. They
            are ``timestamp`` otherwise, as if they were in UTC. Columns of the table keep their type.
        on_truncate: Effect of a truncate of the source table. ``refuse``: the batch is refused. ``delete``: rows with a
            smaller sequence are deleted, in a commit before the other changes of the batch are applied; changes with a
            smaller sequence that arrive later are dropped. ``ignore``: the rows stay.
        max_dead_letters: Maximum number of dead letters of a batch; a batch with more is refused. None: no limit.
        stored_as_scd_type: 1 to store the newest row of each key, 2 to store all rows of each key.
        partition_by: Partition columns of a new table.
        tombstone_retention: How long tombstones are kept.
        txn: Id and version of the batch's transaction. With it, the batch and its dead letters are applied once.
        lock_timeout_seconds: Seconds to wait for the lock; None for the lock manager's default.
        metadata: Metadata of the commits.
        before_write: Called under the lock, before the write.

    Raises:
        ChangesError: The events cannot be ordered, have no key, are of several tables, or truncate the table; or too
            many messages cannot be decoded.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    snapshot = writer.log.snapshot()
    table = snapshot.state
    with ExitStack() as resources:
        try:
            # A batch with a transaction needs the table's state.
            with nullcontext() if txn is None else snapshot.computed_meanwhile():
                batch = resources.enter_context(
                    decode(
                        messages,
                        table=table,
                        keys=keys,
                        sequence_by=sequence_by,
                        source_tables=source_tables,
                        partition_by=partition_by,
                        unavailable_value=unavailable_value,
                        flattened=flattened,
                        schema_registry=schema_registry,
                        infinity=infinity,
                        local_times=local_times,
                        on_truncate=on_truncate,
                        keeps_history=stored_as_scd_type != 1,
                    )
                )
        except FeedError as error:
            raise ChangesError(table=writer.table, reason=str(error)) from error
        if max_dead_letters is not None:
            counted_messages = batch.event_count + batch.dead_count
            max_dead_letters.check(writer.table, batch.dead_count, counted_messages, batch.dead_reason)
        result = ChangesResult(table=writer.table)
        truncate = partial(
            _truncate,
            messages.sparkSession,
            writer,
            batch,
            lock_timeout_seconds,
            metadata,
            # The changes are the last write of the batch.
            None if batch.count else before_write,
        )
        # A new table is created with its first changes.
        is_new = writer.log.state() is None
        truncate_commit = None if is_new else truncate()
        if batch.count:
            result = apply_changes(
                writer,
                batch.changes,
                **batch.apply_options,
                stored_as_scd_type=stored_as_scd_type,
                schema_evolution=True,
                partition_by=partition_by,
                tombstone_retention=tombstone_retention,
                txn=txn,
                lock_timeout_seconds=lock_timeout_seconds,
                metadata=metadata,
                before_write=before_write,
            )
            result = replace(result, newest_at=batch.newest_source_time)
        if is_new:
            truncate_commit = truncate()
        if truncate_commit is not None:
            result = replace(
                result,
                version=truncate_commit.version if result.version is None else result.version,
                changes=result.changes + batch.truncate_count,
                deleted=result.deleted + int(truncate_commit.metrics.get("numDeletedRows", 0)),
            )
        if batch.dead_count:
            options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata)
            write_dead_letters(
                writer, batch.dead_letters, txn, options_of_next_write(options, writer.manager, result.commit)
            )
        return replace(
            result,
            dead_letters=batch.dead_count,
            dead_reason=batch.dead_reason,
            skipped=batch.skipped_count,
            filtered=batch.filtered_count,
        )


def _truncate(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    batch: DecodedBatch,
    lock_timeout_seconds: float | None,
    metadata: Mapping[str, Any] | None,
    before_write: Callable[[Hold], None] | None,
) -> CommitResult | None:
    """Apply the last truncate of a batch; None if there is none."""
    if batch.truncated_at is None:
        return None
    if writer.log.state() is None:
        raise ChangesError(
            table=writer.table,
            reason="the source's table was truncated before the table has a change: use --on-truncate ignore until it "
            "has",
        )
    return apply_truncate(
        spark,
        writer,
        batch.truncated_at,
        sequence_name=batch.order,
        source_tables=batch.source_tables,
        lock_timeout_seconds=lock_timeout_seconds,
        metadata=metadata,
        before_write=before_write,
    )
