"""``apply_rows``: apply rows that arrive twice, out of order and late to a table, each row once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Unpack

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.late_rows.options import RowOptions, with_defaults
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.row_application import RowApplication
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

    The event time and the table's partition columns are part of a row's key: all versions of a row have them in common.

    Rows that are too late are appended to ``<location>_late`` after the table's commit, so a refused batch leaves none
    there. Repetitions of rows in the table are not appended. A row that is only in ``<location>_late`` is appended each
    time it arrives.

    It does **not** promise, without ``sequence_by``, that of two rows with one key and different values the one stays
    that was sent first. The row of the earlier batch stays; within a batch, either of the two.

    Args:
        writer: Writer of the table. The table is created if it does not exist.
        rows: The batch.
        newest_before: The newest event time of earlier batches; lateness is relative to it. None: no row is late. To
            repeat a batch with ``txn``, pass the same time, ``watermark_delay`` and ``allowed_lateness`` again.
        txn: ``(txnAppId, txnVersion)``. The rows are skipped if the table has this transaction or a later one. Rows
            that are too late are appended once, too, even if the process was killed between the two commits.
        before_write: Called with the hold, under the lock, before the batch is written.
        options: Options of the rows and the table; see :class:`~writer_jobs.late_rows.options.RowOptions`.

    Raises:
        TypeError: A required option is missing, or there is no such option.
        ValueError: Options contradict each other.
        ChangesError: The rows lack a column, a key is null, an event time is beyond the years 1 to 9999, or two rows
            have the same key and sequence, but different values.
        SchemaMismatchError: The rows do not fit the table, or lack one of its partition columns.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    return RowApplication(writer, rows, with_defaults(options), newest_before, txn, before_write).run()
