"""The table of rows that are too late, ``<location>_late``. Repetitions are not in it."""

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
from writer_jobs.merge.side_append import cast_where_exact, write_beside
from writer_jobs.writer import LockedDeltaWriter


def set_aside(
    writer: LockedDeltaWriter,
    spec: ChangeSpec,
    model: FirstRows | LatestRows,
    rows: DataFrame,
    event_time: str,
    newest: datetime,
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> int:
    """Append rows that are too late to their table, without those that the batch's table has as new or newer.

    Args:
        writer: Writer of the batch's table.
        spec: Keys and table of the rows.
        model: Model of rows with one key.
        rows: Prepared rows with the table's types; the same rows each time they are read.
        event_time: Column with the event time.
        newest: The newest event time of earlier batches.
        txn: Transaction of the batch; see :func:`write_beside`.
        options: Options of the write; see :func:`write_beside`.

    Returns:
        Number of appended rows, of this call or an earlier one.

    Raises:
        SluiceError: See :func:`write_beside`.

    """
    state = writer.log.state()
    columns = set() if state is None else {name.lower() for name in state.schema.names}
    # A table that lacks a key column has none of the rows. The first batch with rows in time adds the column.
    if all(name.lower() in columns for name in spec.keys):
        bounds = KeyBounds.of(rows, spec.keys, ranged_by=event_time).condition()
        table = rows_within(rows.sparkSession, LockTarget.of(writer.log, None), bounds)
        rows = cast_where_exact(model.without_repetitions(rows, table), table.schema)
    notes = {"__ARRIVED_AT": F.timestamp_seconds(F.lit(time.time())), "__NEWEST_EVENT_TIME": F.lit(newest)}
    with closing(Kept.of(writer.table, rows.drop(SEQ, DELETED), "rows of the table")) as late_rows:
        count: int = late_rows.rows.count()
        if count:
            write_beside(writer, LATE_SUFFIX, late_rows.rows, notes, txn, options)
    return count
