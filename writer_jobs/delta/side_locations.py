"""Suffixes of the locations of the tables that feeds write beside a table."""

from __future__ import annotations

#: Keys that were deleted, see :mod:`writer_jobs.merge.side_table`.
TOMBSTONES_SUFFIX = "_tombstones"
#: Cells of HBase, see :mod:`writer_jobs.feeds.hbase.cells`.
CELLS_SUFFIX = "_cells"
#: Rows that are too late, see :mod:`writer_jobs.late_rows.too_late`.
LATE_SUFFIX = "_late"
#: Messages that cannot be decoded, see :mod:`writer_jobs.feeds.dead_letters`.
DEAD_LETTERS_SUFFIX = "_dead_letters"

#: Suffixes of the side tables; maintenance deletes their expired rows.
SIDE_TABLE_SUFFIXES = (TOMBSTONES_SUFFIX, CELLS_SUFFIX)
#: Suffixes of all tables beside a table.
SUFFIXES = (*SIDE_TABLE_SUFFIXES, LATE_SUFFIX, DEAD_LETTERS_SUFFIX)
