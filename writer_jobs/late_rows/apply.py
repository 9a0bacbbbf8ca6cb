"""``apply_rows``: apply rows to a table, each row once, even if they arrive twice, out of order or late.

The rows in time are merged, and those that are too late are appended to ``<location>_late``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from typing import Unpack

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from lock_manager.table_records.commit_stamp import WATERMARK
from writer_jobs.commit.lock_target import LockTarget, rows_within
from writer_jobs.commit.options import WriteOptions, lock_deadline, options_of_next_write
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.moments import moment_of_micros
from writer_jobs.delta.side_locations import LATE_SUFFIX
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SchemaMismatchError
from writer_jobs.late_rows.event_time import EVENT_MICROS, EVENT_RANGE, LatenessLimits, is_event_time, with_micros
from writer_jobs.late_rows.options import RowOptions, with_defaults
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.row_models import FirstRows, LatestRows
from writer_jobs.merge.batch import ChangeBatch, has_null_key, refuse_null_keys
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.merge_sql import T
from writer_jobs.merge.rejected_rows import append_rejected_rows, cast_where_exact
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.table_feed import TableFeed
from writer_jobs.merge.table_shape import TableShape
from writer_jobs.writer import LockedDeltaWriter


def apply_rows(
    writer: LockedDeltaWriter,
    rows: DataFrame,
    *,
    newest_before: datetime | None = None,
    txn: tuple[str, int] | None = None,
    before_write: Callable[[Hold], None] | None = None,
    **options: Unpack[RowOptions],
) -> RowsResult:
    """Apply a batch of rows to a table, each row once.

    ::

        apply_rows(writer, rows, keys=["flight"], event_time="departed_at", partition_by=["month"])

    The table itself stores the earlier rows, so none is ever forgotten. Rows with the keys of a batch are found by the
    files' statistics: only files in the batch's partitions, and within the ranges of its event times and other keys,
    are read. With ``sequence_by``, the rows in these files are compared before the merge. So a repetition rewrites no
    file, and only files with a row that gets a newer version are rewritten.

    The event time and the table's partition columns are part of a row's key: all versions of a row have the same values
    in them.

    Rows that are too late are appended to ``<location>_late`` after the table's commit, so a refused batch leaves none
    there. Repetitions of rows in the table are not appended. A row that is only in ``<location>_late`` is appended each
    time it arrives.

    Without ``sequence_by`` it does **not** promise that the row that was sent first stays. If two rows have one key and
    different values, the row of the earlier batch stays; within one batch, either of the two may stay.

    Args:
        writer: Writer of the table. The table is created if it does not exist.
        rows: The batch.
        newest_before: The newest event time of earlier batches, to which lateness is relative. None: no row is late. To
            repeat a batch with ``txn``, pass the same time, ``watermark_delay`` and ``allowed_lateness`` again.
        txn: ``(txnAppId, txnVersion)``. The rows are skipped if the table has this transaction or a later one. Rows
            that are too late are appended once, too, even if the process was killed between the two commits.
        before_write: Called with the hold, under the lock, before the batch is written.
        options: Options of the rows and the table; see :class:`~writer_jobs.late_rows.options.RowOptions`.

    Raises:
        TypeError: A required option is missing, or an option does not exist.
        ValueError: Options contradict each other.
        ChangesError: The rows lack a column, a key is null, an event time is outside 0001-01-03 to 9999-12-29
            (UTC), or two rows have the same key and sequence, but different values.
        SchemaMismatchError: The rows do not fit the table, or lack one of its partition columns.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    return RowBatchApplier(writer, rows, with_defaults(options), newest_before, txn, before_write).run()


class RowBatchApplier:
    """Applies one batch of rows. The arguments are those of :func:`writer_jobs.apply_rows`, with all options set."""

    def __init__(
        self,
        writer: LockedDeltaWriter,
        rows: DataFrame,
        options: RowOptions,
        newest_before: datetime | None,
        txn: tuple[str, int] | None,
        before_write: Callable[[Hold], None] | None,
    ) -> None:
        self._writer = writer
        self._options = options
        self._newest_before = newest_before
        self._txn = txn
        self._before_write = before_write
        self._limits = LatenessLimits(watermark_delay=options["watermark_delay"], allowed=options["allowed_lateness"])
        self._is_too_late = self._limits.is_too_late(newest_before)
        self._snapshot = writer.log.snapshot()
        state, spark, sequence_by = self._snapshot.state, rows.sparkSession, options["sequence_by"]
        self._spec = spec = self._row_spec(rows)
        columns = spec.columns(rows)
        self._event_time = next(name for name in columns if name.lower() == options["event_time"].lower())
        self._refuse_other_event_time_type(rows)
        self._model = model = (FirstRows if sequence_by is None else LatestRows)(spec, columns)
        feed = TableFeed(
            model="rows",
            keys=spec.keys,
            sequence_by=sequence_by,
            sequence_column=model.sequence,
            event_time=self._event_time,
        )
        evolves, partition_by = options["schema_evolution"], options["partition_by"]
        self._shape = TableShape(spark, writer, spec, model, feed, evolves, partition_by)
        self._prepared_rows = with_micros(self._shape.fit(spec.prepare(rows), state), self._event_time)

    def run(self) -> RowsResult:
        """Merge the rows in time, and append the rows that are too late to ``<location>_late``."""
        # The rows are read once: a source such as a topic may have more rows at the next read.
        with closing(MaterializedRows.of(self._writer.table, self._prepared_rows, "rows")) as materialized:
            rows = materialized.rows
            counts = self._count(rows)
            # This includes rows that are too late, which the merge does not check.
            refuse_null_keys(self._spec, rows, counts.null_keys)
            newest = self._newest_event_time(counts)
            options = self._write_options(newest)
            merge_result = self._merge(rows, counts, options)
            too_late = self._append_too_late(rows, counts, options, merge_result)
        merged_repetitions = (
            0 if merge_result.already_applied else merge_result.changes - merge_result.inserted - merge_result.updated
        )
        return RowsResult(
            table=self._writer.table,
            version=merge_result.version,
            already_applied=merge_result.already_applied,
            arrived=counts.arrived,
            repeated=merged_repetitions + counts.too_late - too_late,
            late=counts.late,
            too_late=too_late,
            inserted=merge_result.inserted,
            updated=merge_result.updated,
            newest=newest,
            watermark=self._limits.watermark(newest),
            commit=merge_result.commit,
        )

    # -- before the batch is read ----------------------------------------------------------------------------------

    def _row_spec(self, rows: DataFrame) -> ChangeSpec:
        """Return the specification of the rows. Its keys include the event time and the partition columns."""
        state, options = self._snapshot.state, self._options
        partition_columns = tuple(options["partition_by"]) if state is None else state.partition_columns
        row_columns = {name.lower() for name in rows.columns}
        if missing_columns := [name for name in partition_columns if name.lower() not in row_columns]:
            raise SchemaMismatchError(
                table=self._writer.table,
                reason=f"the rows have no column {', '.join(missing_columns)}, by which the table is partitioned: add "
                "it to the rows, even if Delta could generate it",
            )
        keys = {name.lower(): name for name in (*options["keys"], options["event_time"], *partition_columns)}
        sequence_by = options["sequence_by"] or quoted(options["event_time"])
        spec = ChangeSpec(table=self._writer.table, keys=list(keys.values()), sequence_by=sequence_by)
        return spec.with_keys_of(rows)

    def _refuse_other_event_time_type(self, rows: DataFrame) -> None:
        """Make sure that the event time is a timestamp or a date, in the rows and in the table."""
        name, state = self._event_time, self._snapshot.state
        requirement = f"the event time {name} must be a timestamp or a date"
        if not is_event_time(row_type := rows.schema[name].dataType):
            raise self._spec.misfit(f"{requirement}, got {row_type.simpleString()}")
        table_types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
        if not is_event_time(table_type := table_types.get(name.lower(), row_type)):
            reason = f"{requirement}, but is {table_type.simpleString()} in the table"
            raise SchemaMismatchError(table=self._writer.table, reason=reason)

    # -- before the lock -------------------------------------------------------------------------------------------

    def _count(self, rows: DataFrame) -> Row:
        """Return the counters of the batch, and its event times ``oldest`` and ``newest`` in microseconds."""
        is_late = self._limits.is_late(self._newest_before) & ~self._is_too_late
        counts: Row = rows.agg(
            F.count("*").alias("arrived"),
            F.count_if(has_null_key(self._spec)).alias("null_keys"),
            F.count_if(is_late).alias("late"),
            F.count_if(self._is_too_late).alias("too_late"),
            F.min(EVENT_MICROS).alias("oldest"),
            F.max(EVENT_MICROS).alias("newest"),
        ).collect()[0]
        return counts

    def _newest_event_time(self, counts: Row) -> datetime | None:
        """Return the newest event time of this batch and of all before it; None if there is none."""
        first, last = EVENT_RANGE
        event_times = [micros for micros in (counts.oldest, counts.newest) if micros is not None]
        if any(not first <= micros <= last for micros in event_times):
            raise self._spec.misfit(f"a row's event time {self._event_time} is outside 0001-01-03 to 9999-12-29 (UTC)")
        earlier_times = () if self._newest_before is None else (self._newest_before,)
        return max((*earlier_times, *map(moment_of_micros, event_times)), default=None)

    def _write_options(self, newest: datetime | None) -> WriteOptions:
        """Return the options of the merge. Its commit records the watermark."""
        state, watermark = self._snapshot.state, self._limits.watermark(newest)
        metadata = dict(self._options["metadata"] or {})
        if watermark is not None:
            stream = None if self._txn is None else self._txn[0]
            metadata[WATERMARK] = {"at": watermark.isoformat(), "stream": stream}
        return WriteOptions(
            lock_during="commit" if state is None or state.is_serializable else "write",
            lock_timeout_seconds=self._options["lock_timeout_seconds"],
            metadata=metadata,
            before_write=self._before_write,
        )

    # -- the commits -----------------------------------------------------------------------------------------------

    def _merge(self, rows: DataFrame, counts: Row, options: WriteOptions) -> ChangesResult:
        """Merge the rows that are not too late, unless the table has the transaction."""
        table = self._writer.table
        if self._snapshot.has_transaction(self._txn):
            return ChangesResult(table=table, already_applied=True)
        if counts.too_late == counts.arrived:
            return ChangesResult(table=table)
        spec, model = self._spec, self._model
        in_time = model.prepare(rows.where(~self._is_too_late).drop(EVENT_MICROS))
        batch = ChangeBatch(in_time, spec, model.group_columns, model.tie_breaker, range_column=self._event_time)
        with closing(batch):
            commit = self._commit(batch, options)
            already_applied = commit is not None and commit.already_committed
            return ChangesResult.of_batch(table, model, batch, commit, already_applied=already_applied)

    def _commit(self, batch: ChangeBatch, options: WriteOptions) -> CommitResult | None:
        """Commit the merge of a batch; return None if a comparison with the table leaves no rows."""
        writer, model = self._writer, self._model
        deadline = lock_deadline(options, writer.manager)
        row = model.row(batch)
        state = self._shape.ensure_table(self._snapshot.state, row, batch.rows.schema[SEQ].dataType, deadline)
        partitions = self._shape.partitions(batch.rows, state)

        def check_again(hold: Hold) -> None:
            # The write has loaded the table under the lock before it calls this function.
            self._shape.check_again(writer.log.known_snapshot().state, row)
            if (before_write := options.get("before_write")) is not None:
                before_write(hold)

        with ExitStack() as resources:
            source = batch.rows
            if self._snapshot.state is not None:
                # The merge itself compares rows that other writers commit after this snapshot.
                target = LockTarget.of(writer.log, partitions, self._snapshot)
                table = rows_within(source.sparkSession, target, batch.bounds())
                if model.needs_comparison(source, table, batch.sequences):
                    source = model.without_repetitions(source, table)
                    materialized = MaterializedRows.of(writer.table, source, "rows of the table")
                    source = resources.enter_context(closing(materialized)).rows
                    if source.isEmpty():
                        return None
            with self._spec.refusals():
                commit: CommitResult = model.merge(writer, source, batch.bounds(T)).execute(
                    lock="table" if partitions is None else list(partitions),
                    lock_during=options["lock_during"],
                    lock_timeout_seconds=deadline.remaining(),
                    metadata=options.get("metadata"),
                    before_write=check_again,
                    txn=self._txn,
                )
        return commit

    def _append_too_late(self, rows: DataFrame, counts: Row, options: WriteOptions, merge_result: ChangesResult) -> int:
        """Append the rows that are too late, except repetitions of rows in the table.

        Return the number of appended rows, of this call or of an earlier one with this transaction.
        """
        writer, keys, newest_before = self._writer, self._spec.keys, self._newest_before
        if not counts.too_late or newest_before is None:
            return 0
        too_late_rows = rows.where(self._is_too_late).drop(EVENT_MICROS)
        state = writer.log.state()
        columns = set() if state is None else {name.lower() for name in state.schema.names}
        # A table that lacks a key column has none of the rows. The first batch with rows in time adds the column.
        if all(name.lower() in columns for name in keys):
            bounds = KeyBounds.of(too_late_rows, keys, range_column=self._event_time).condition()
            table = rows_within(rows.sparkSession, LockTarget.of(writer.log, None), bounds)
            too_late_rows = cast_where_exact(self._model.without_repetitions(too_late_rows, table), table.schema)
        note_columns = {
            "__ARRIVED_AT": F.timestamp_seconds(F.lit(time.time())),
            "__NEWEST_EVENT_TIME": F.lit(newest_before),
        }
        options = options_of_next_write(options, writer.manager, merge_result.commit)
        options["metadata"] = self._options["metadata"]
        with closing(
            MaterializedRows.of(writer.table, too_late_rows.drop(SEQ, DELETED), "rows of the table")
        ) as materialized:
            count: int = materialized.rows.count()
            if count:
                append_rejected_rows(writer, LATE_SUFFIX, materialized.rows, note_columns, self._txn, options)
        return count
