"""``apply_rows``: rows that arrive twice, out of order and late, each once into a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from lock_manager.table_records.commit_stamp import WATERMARK
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import LockTarget, rows_within
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.delta.moments import moment_of_micros
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SchemaMismatchError
from writer_jobs.late_rows.event_time import EVENT_MICROS, EVENT_RANGE, LatenessLimits, is_event_time, with_micros
from writer_jobs.late_rows.late_table import set_aside
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.row_models import FirstRows, LatestRows
from writer_jobs.merge.batch import ChangeBatch, has_null_key, refuse_null_keys
from writer_jobs.merge.change_spec import SEQ, ChangeSpec
from writer_jobs.merge.materialized import Kept
from writer_jobs.merge.merge_sql import T
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.table_feed import FeedBinding, TableFeed
from writer_jobs.merge.table_shape import TableShape
from writer_jobs.writer import LockedDeltaWriter

_THERE = "rows of the table"


def apply_rows(
    writer: LockedDeltaWriter,
    rows: DataFrame,
    *,
    keys: Sequence[str],
    event_time: str,
    sequence_by: str | None = None,
    newest_before: datetime | None = None,
    watermark_delay: timedelta = timedelta(0),
    allowed_lateness: timedelta | None = None,
    schema_evolution: bool = False,
    partition_by: Sequence[str] = (),
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> RowsResult:
    """Bring a batch of rows into a table, each of them once.

    ::

        apply_rows(writer, rows, keys=["flight"], event_time="departed_at", partition_by=["month"])

    The table itself is what is remembered of earlier rows, so that nothing is ever forgotten. What can have a batch's
    keys is found by the files' statistics: only files in the batch's partitions, and within the ranges in which its
    event times and its other keys are, are read. With ``sequence_by`` the rows in these files are compared before the
    merge, so that a repetition rewrites no file; only files with a row that gets a newer version are rewritten.

    A row's key has its event time, and the table's partition columns, in it: versions of a row have these in common.

    Rows that are too late are written after the table's commit: what is refused leaves none. Of these a repetition of a
    row in the table is left out; a row that is in ``<location>_late`` only, and comes again, is there again.

    What it does **not** promise, without ``sequence_by``: of two rows with one key that say different things, that the
    one that was sent first stays. The one stays that comes in the earlier batch; within a batch, any of the two.

    Args:
        writer: of the table, which is made if there is nothing at its location.
        rows: what arrived.
        keys: columns that, with the event time, name a row.
        event_time: column with the moment, or the day, at which the row happened.
        sequence_by: column, or SQL, of which the largest value of a key counts; as for
            :func:`writer_jobs.apply_changes`. None: the row that comes first.
        newest_before: the newest event time that came before, by which rows are late; None: none is. Give this, and the
            two that follow, again as they were when a batch with ``txn`` is tried again.
        watermark_delay: by how much a row may be older than that, without being counted as late.
        allowed_lateness: what is older than that by more goes to ``<location>_late``; None: nothing does.
        schema_evolution: as for :func:`writer_jobs.apply_changes`, like all that follows.
        partition_by: likewise.
        txn: likewise; with it rows that are too late are written once, too, also if the table has the transaction and
            the process was killed before they were written.
        lock_timeout_seconds: likewise; the lock is asked for when the rows are ready to be committed.
        metadata: likewise.
        before_write: likewise.

    Raises:
        ValueError: arguments that contradict each other.
        ChangesError: the rows lack a column, a key is null, an event time is beyond the years 1 to 9999, or two rows
            have one sequence and say different things.
        SchemaMismatchError: they do not fit the table, or lack one of its partition columns.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    snapshot = writer.log.snapshot()
    state = snapshot.state
    already_applied = txn is not None and snapshot.last_transaction(txn[0]) >= txn[1]
    partitioned_by = tuple(partition_by) if state is None else state.partition_columns
    _refuse_without(writer.table, rows, partitioned_by)
    names = {name.lower(): name for name in (*keys, event_time, *partitioned_by)}
    spec = ChangeSpec.of(writer.table, keys=list(names.values()), sequence_by=sequence_by or quoted(event_time))
    spec = spec.with_keys_of(rows)
    columns = spec.columns(rows)
    (event_time,) = (name for name in columns if name.lower() == event_time.lower())
    _refuse_other_than_event_time(spec, state, rows, event_time)
    kind = (FirstRows if sequence_by is None else LatestRows)(spec, columns)
    feed = TableFeed(
        model="rows", keys=spec.keys, sequence_by=sequence_by, sequence_column=kind.sequence, event_time=event_time
    )
    binding = FeedBinding(rows.sparkSession, writer.table, feed)
    lateness = LatenessLimits(watermark_delay=watermark_delay, allowed=allowed_lateness)
    shape = TableShape(
        rows.sparkSession, writer, spec, kind, binding, evolves=schema_evolution, partition_by=tuple(partition_by)
    )
    with ExitStack() as open_ones:
        # Read once: a topic may have more the next time.
        fitted = with_micros(shape.fit(spec.prepare(rows), state), event_time)
        kept = open_ones.enter_context(closing(Kept.of(writer.table, fitted, "rows"))).rows
        is_too_late = lateness.is_too_late(newest_before)
        arrived, without_key, late, too_old, *ends = kept.agg(
            F.count("*"),
            F.count_if(has_null_key(spec)),
            F.count_if(lateness.is_late(newest_before) & ~is_too_late),
            F.count_if(is_too_late),
            F.min(EVENT_MICROS),
            F.max(EVENT_MICROS),
        ).collect()[0]
        # Also of rows that are too late: these never get to the batch that is merged.
        refuse_null_keys(spec, kept, without_key)
        newest = _newest(spec, event_time, newest_before, ends)
        options = WriteOptions(
            hold="commit" if state is None or state.is_serializable else "write",
            lock_timeout_seconds=lock_timeout_seconds,
            metadata={**(metadata or {}), **_noted(lateness, newest, txn)},
            before_write=before_write,
        )
        done = ChangesResult.of_nothing(writer.table)
        if not already_applied and too_old < arrived:
            in_time = kind.prepare(kept.where(~is_too_late).drop(EVENT_MICROS))
            batch = ChangeBatch(in_time, spec, kind.folded_by, kind.preferred_by, ranged_by=event_time)
            open_ones.enter_context(closing(batch))
            commit = _merged(writer, spec, kind, shape, snapshot, batch, txn, options)
            already_applied = commit is not None and commit.already_committed
            done = ChangesResult.of_batch(writer.table, kind, batch, commit, already_applied=already_applied)
        too_late = 0
        if too_old and newest_before is not None:
            aside = kept.where(is_too_late).drop(EVENT_MICROS)
            beside = replace(options.after(writer.manager, done.commit), metadata=metadata)
            too_late = set_aside(writer, spec, kind, aside, event_time, newest_before, txn, beside)
    return RowsResult(
        table=writer.table,
        version=done.version,
        already_applied=already_applied,
        arrived=arrived,
        repeated=too_old - too_late + (0 if already_applied else done.changes - done.inserted - done.updated),
        late=late,
        too_late=too_late,
        inserted=done.inserted,
        updated=done.updated,
        newest=newest,
        watermark=lateness.watermark(newest),
        commit=done.commit,
    )


def _refuse_without(table: str, rows: DataFrame, partitioned_by: Collection[str]) -> None:
    """Make sure that rows have a table's partition columns."""
    has = {name.lower() for name in rows.columns}
    if lost := [name for name in partitioned_by if name.lower() not in has]:
        raise SchemaMismatchError(
            table=table,
            reason=f"the rows have no column {', '.join(lost)}, by which the table is partitioned: add it to the rows, "
            "even if Delta could generate it",
        )


def _refuse_other_than_event_time(spec: ChangeSpec, state: TableState | None, rows: DataFrame, event_time: str) -> None:
    """Make sure that a column has moments or days, in the rows and in the table."""
    if not is_event_time(given := rows.schema[event_time].dataType):
        raise spec.misfit(f"the event time {event_time} is no timestamp and no date, but {given.simpleString()}")
    there = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
    if not is_event_time(kind := there.get(event_time.lower(), given)):
        raise SchemaMismatchError(
            table=spec.table,
            reason=f"the event time {event_time} is no timestamp and no date in the table, but {kind.simpleString()}",
        )


def _newest(spec: ChangeSpec, event_time: str, before: datetime | None, ends: Sequence[int | None]) -> datetime | None:
    """Return the newest of event times, of which the first and the last are given, and of those before."""
    least, most = EVENT_RANGE
    found = [micros for micros in ends if micros is not None]
    if any(not least <= micros <= most for micros in found):
        raise spec.misfit(f"a row has an event time {event_time} beyond the years 1 to 9999")
    return max((each for each in (before, *map(moment_of_micros, found)) if each is not None), default=None)


def _noted(lateness: LatenessLimits, newest: datetime | None, txn: tuple[str, int] | None) -> dict[str, Any]:
    """Return what the commit says of the event time."""
    watermark = lateness.watermark(newest)
    if watermark is None:
        return {}
    return {WATERMARK: {"at": watermark.isoformat(), "stream": None if txn is None else txn[0]}}


def _merged(
    writer: LockedDeltaWriter,
    spec: ChangeSpec,
    kind: FirstRows | LatestRows,
    shape: TableShape,
    before: Snapshot,
    batch: ChangeBatch,
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> CommitResult | None:
    """Merge a batch into the table; None: the table has all of it, so that there is nothing to commit."""
    deadline = options.deadline(writer.manager)
    row = kind.row(batch)
    state = shape.ensure_table(before.state, row, batch.rows.schema[SEQ].dataType, deadline)
    partitions = shape.partitions(batch.rows, state)

    def check_again(hold: Hold) -> None:
        # Before this is called the table was loaded under the lock.
        shape.check_again(writer.log.known().state, row)
        if options.before_write is not None:
            options.before_write(hold)

    with ExitStack() as open_ones:
        source = batch.rows
        if before.state is not None:
            # What others commit from here on the merge itself compares.
            table = rows_within(source.sparkSession, LockTarget.of(writer.log, partitions, before), batch.bounds())
            if kind.rewrites_for_nothing(source, table):
                source = open_ones.enter_context(
                    closing(Kept.of(writer.table, kind.without_repetitions(source, table), _THERE))
                ).rows
                if source.isEmpty():
                    return None
        with spec.refusals():
            result: CommitResult = kind.merge(writer, source, batch.bounds(T)).execute(
                lock="table" if partitions is None else list(partitions),
                hold=options.hold,
                lock_timeout_seconds=deadline.remaining(),
                metadata=options.metadata,
                before_write=check_again,
                txn=txn,
            )
    return result
