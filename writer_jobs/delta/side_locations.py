"""Suffixes of the locations of the tables that Sluice writes next to a table."""

from __future__ import annotations

#: Table of deleted keys, see :mod:`writer_jobs.merge.side_table`.
TOMBSTONES_SUFFIX = "_tombstones"
#: Table of HBase cells, see :mod:`writer_jobs.feeds.hbase.cells`.
CELLS_SUFFIX = "_cells"
#: Table of rows that are too late, see :mod:`writer_jobs.late_rows.apply`.
LATE_SUFFIX = "_late"
#: Table of messages that cannot be decoded, see :mod:`writer_jobs.feeds.dead_letters`.
DEAD_LETTERS_SUFFIX = "_dead_letters"

#: Suffixes of the side tables, which a feed reads again. Maintenance deletes their expired rows.
SIDE_TABLE_SUFFIXES = (TOMBSTONES_SUFFIX, CELLS_SUFFIX)
#: Suffixes of all tables that Sluice writes next to a table.
ALL_SUFFIXES = (*SIDE_TABLE_SUFFIXES, LATE_SUFFIX, DEAD_LETTERS_SUFFIX)
