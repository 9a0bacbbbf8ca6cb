"""Rows that are too late: in a table of their own, ``<location>_late``, unless they are repetitions."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.commit.lock_target import LockTarget, rows_within
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.delta.side_locations import LATE_SUFFIX
from writer_jobs.late_rows.row_models import FirstRows, LatestRows
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.materialized import Kept
from writer_jobs.merge.side_append import as_in, write_beside
from writer_jobs.writer import LockedDeltaWriter


def set_aside(
    writer: LockedDeltaWriter,
    spec: ChangeSpec,
    kind: FirstRows | LatestRows,
    rows: DataFrame,
    event_time: str,
    newest: datetime,
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> int:
    """Write rows that are too late into their table, but for those that the other one has, as new or newer.

    Args:
        writer: of the table for which they were.
        spec: what names a row.
        kind: which of several rows with one key stays.
        rows: prepared, and with the table's types; the same each time they are read.
        event_time: their column.
        newest: the newest event time that came before.
        txn: of the batch; see :func:`write_beside`.
        options: likewise.

    Returns:
        How many were written, now or before.

    Raises:
        SluiceError: see :func:`write_beside`.

    """
    state = writer.log.state()
    there = set() if state is None else {name.lower() for name in state.schema.names}
    # Without these it has none of them; the first batch that has rows in time adds them.
    if all(name.lower() in there for name in spec.keys):
        bounds = KeyBounds.of(rows, spec.keys, ranged_by=event_time).condition()
        table = rows_within(rows.sparkSession, LockTarget.of(writer.log, None), bounds)
        rows = as_in(kind.news(rows, table), table.schema)
    notes = {"__ARRIVED_AT": F.timestamp_seconds(F.lit(time.time())), "__NEWEST_EVENT_TIME": F.lit(newest)}
    with closing(Kept.of(writer.table, rows.drop(SEQ, DELETED), "rows of the table")) as kept:
        count: int = kept.rows.count()
        if count:
            write_beside(writer, LATE_SUFFIX, kept.rows, notes, txn, options)
    return count
