"""``apply_rows``: rows that arrive twice, out of order and late, each once into a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from lock_manager.commit_stamp import WATERMARK
from lock_manager.deadline import Deadline
from writer_jobs.arrivals.kinds import FirstRows, LatestRows
from writer_jobs.arrivals.lateness import EVENT_MICROS, Lateness, has_event_time, moment_of_micros, with_micros
from writer_jobs.arrivals.result import RowsResult
from writer_jobs.changes.batch import ChangeBatch
from writer_jobs.changes.kept import Kept
from writer_jobs.changes.parts import T
from writer_jobs.changes.result import ChangesResult
from writer_jobs.changes.rows_beside import write_beside
from writer_jobs.changes.spec import DELETED, SEQ, ChangeSpec
from writer_jobs.changes.table_shape import TableShape, refuse_unknown
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.errors import WriteFailedError
from writer_jobs.writer import LockedDeltaWriter

_SUFFIX = "_late"


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
    event times and its other keys are, are read; only those with a row that gets a newer version are rewritten.

    A row's key has its event time, and the table's partition columns, in it: versions of a row have these in common.

    What it does **not** promise: that of two rows with one key that say different things, and have no sequence, the one
    that was sent first stays. It is the one that comes in an earlier batch.

    Args:
        writer: of the table, which is made if there is nothing at its location.
        rows: what arrived.
        keys: columns that, with the event time, name a row.
        event_time: column with the moment, or the day, at which the row happened.
        sequence_by: column, or SQL, of which the largest value of a key counts; as for
            :func:`writer_jobs.apply_changes`. None: the row that comes first.
        newest_before: the newest event time that came before, by which rows are late; None: none is.
        watermark_delay: by how much a row may be older than that, without being counted as late.
        allowed_lateness: what is older than that by more goes to ``<location>_late``; None: nothing does.
        schema_evolution: as for :func:`writer_jobs.apply_changes`, like all that follows.
        partition_by: likewise.
        txn: likewise; with it rows that are too late are written once, too.
        lock_timeout_seconds: likewise; the lock is asked for when the rows are ready to be committed.
        metadata: likewise.
        before_write: likewise.

    Raises:
        ValueError: arguments that contradict each other.
        ChangesError: the rows lack a column, a key is null, or two rows have one sequence.
        SchemaMismatchError: they do not fit the table.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    state = writer.log.state()
    partitioned_by = tuple(partition_by) if state is None else state.partition_columns
    names = {name.lower(): name for name in (*keys, event_time, *partitioned_by)}
    spec = ChangeSpec.of(writer.table, keys=list(names.values()), sequence_by=sequence_by or event_time)
    spec = spec.of_changes(rows)
    columns = spec.columns(rows)
    (event_time,) = (name for name in columns if name.lower() == event_time.lower())
    if not has_event_time(rows.schema, event_time):
        kind = rows.schema[event_time].dataType.simpleString()
        raise spec.misfit(f"the event time {event_time} is no timestamp and no date, but {kind}")
    if not schema_evolution and state is not None:
        refuse_unknown(writer.table, state, columns, "rows")
    lateness = Lateness(watermark_delay=watermark_delay, allowed=allowed_lateness)
    with ExitStack() as open_ones:
        # Read once: a topic may have more the next time.
        kept = open_ones.enter_context(
            closing(Kept.of(spec, with_micros(spec.prepared(rows), event_time), "rows"))
        ).rows
        is_too_late = lateness.is_too_late(newest_before)
        arrived, late, micros = kept.agg(
            F.count("*"), F.count_if(lateness.is_late(newest_before) & ~is_too_late), F.max(EVENT_MICROS)
        ).collect()[0]
        found = moment_of_micros(micros)
        newest = max((each for each in (newest_before, found) if each is not None), default=None)
        too_late = _set_aside(writer, kept, lateness, newest_before, txn, metadata)
        kind = (FirstRows if sequence_by is None else LatestRows)(spec, columns)
        shape = TableShape(
            rows.sparkSession, writer, spec, kind, evolves=schema_evolution, partition_by=tuple(partition_by)
        )
        in_time = kind.prepared(shape.fitted(kept.where(~is_too_late).drop(EVENT_MICROS)))
        batch = ChangeBatch(in_time, spec, kind.folded_by, kind.preferred_by, ranged_by=event_time)
        open_ones.enter_context(closing(batch))
        options = WriteOptions(
            lock_timeout_seconds=lock_timeout_seconds,
            metadata={**(metadata or {}), **_noted(lateness, newest, txn)},
            before_write=before_write,
        )
        commit = _merged(writer, spec, kind, shape, batch, txn, options) if batch.folded else None
        done = ChangesResult.of_batch(
            writer.table, kind, batch, commit, already_applied=commit is not None and commit.already_committed
        )
    return RowsResult(
        table=writer.table,
        version=done.version,
        already_applied=done.already_applied,
        arrived=arrived,
        repeated=0 if done.already_applied else done.changes - done.inserted - done.updated,
        late=late,
        too_late=too_late,
        inserted=done.inserted,
        updated=done.updated,
        newest=newest,
        watermark=lateness.watermark(newest),
        commit=commit,
    )


def _set_aside(
    writer: LockedDeltaWriter,
    rows: DataFrame,
    lateness: Lateness,
    newest: datetime | None,
    txn: tuple[str, int] | None,
    metadata: Mapping[str, Any] | None,
) -> int:
    """Write the rows that are too late after this newest event time into a table of their own; return how many."""
    if newest is None or lateness.allowed is None:
        return 0
    too_late = rows.where(lateness.is_too_late(newest)).drop(EVENT_MICROS, SEQ, DELETED)
    notes = {"__ARRIVED_AT": F.timestamp_seconds(F.lit(time.time())), "__NEWEST_EVENT_TIME": F.lit(newest)}
    return write_beside(writer, _SUFFIX, too_late, notes, txn=txn, metadata=metadata)


def _noted(lateness: Lateness, newest: datetime | None, txn: tuple[str, int] | None) -> dict[str, Any]:
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
    batch: ChangeBatch,
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> CommitResult:
    seconds = options.lock_timeout_seconds
    deadline = Deadline(writer.manager.settings.timeout_seconds if seconds is None else seconds)
    state = shape.state(kind.row(batch), batch.rows.schema[SEQ].dataType, deadline)
    partitions = shape.partitions(batch.rows, state)
    merge = kind.merge(writer, batch.rows, batch.bounds(T))
    try:
        result: CommitResult = merge.execute(
            lock="table" if partitions is None else list(partitions),
            hold="commit",
            lock_timeout_seconds=deadline.remaining(),
            metadata=options.metadata,
            before_write=options.before_write,
            txn=txn,
        )
    except WriteFailedError as error:
        if refusal := spec.refusal_in(error):
            raise refusal from error
        raise
    return result
