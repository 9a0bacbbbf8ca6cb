"""What ``snapshot.py`` says of a table that is pinned."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.pins.read import changed_before, changed_since


def pinned_line(spark: SparkSession, pin: Pin, pinned: PinnedTable, *, made: bool) -> dict[str, Any]:
    """Return what has become of a pin's moment in one of its tables: since it was made, and before.

    Args:
        spark: the session.
        pin: that holds.
        pinned: one of its tables.
        made: whether it was made now.

    Raises:
        PinError: it does not hold.
        TableError, StorageError: the table cannot be read.

    """
    since, before = changed_since(spark, pin, pinned.location), changed_before(spark, pin, pinned.location)
    return {
        "table": pinned.table,
        "version": pinned.version,
        "made": made,
        "expires_at": pin.expires_at.isoformat(),
        "newest_version": since.version,
        "rows_new": since.rows_new,
        "rows_gone": since.rows_gone,
        "files": since.files,
        "files_read": since.files_read,
        "passed_version": pinned.passed_version,
        "rows_new_before": None if before is None else before.rows_new,
        "rows_gone_before": None if before is None else before.rows_gone,
    }
