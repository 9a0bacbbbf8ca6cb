"""Pinned rows for readers that do not know pins: a table of their own, or a view in the catalog."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from lock_manager import LockManager
from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import TableError
from writer_jobs.pins.read import pinned_rows, pinned_state, up_to_sql
from writer_jobs.writer import LockedDeltaWriter

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


def copy_name(pinned_table: PinnedTable) -> str:
    """Return the name of a table's copy and view: the last part of the table's location."""
    return _NOT_IN_NAMES.sub("_", pinned_table.location.rstrip("/").rpartition("/")[2])


def refuse_equal_names(pin: Pin) -> None:
    """Raise PinError if the copies of two of a pin's tables would have the same name."""
    names = [copy_name(pinned_table) for pinned_table in pin.tables]
    if len({name.lower() for name in names}) < len(names):
        raise PinError(f"two tables of pin {pin.name} end in the same name ({', '.join(names)}): copy them in Python")


def copy_pinned(
    spark: SparkSession, pin: Pin, pinned_table: PinnedTable, folder: str, *, manager: LockManager
) -> tuple[str, CommitResult]:
    """Copy the pinned rows of a table once, into a table with its :func:`copy_name` in a folder.

    Return the canonical URI of the copy, and the result of the write. The copy has the partition columns of the table.

    Raises:
        PinError: The copy would lie inside a pinned table, or contain one; the copy's location has another table; or
            see :func:`pinned_rows`.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    name = copy_name(pinned_table)
    writer = LockedDeltaWriter(spark, manager, f"{folder.rstrip('/')}/{name}")
    for source in pin.tables:
        target_path, source_path = f"{writer.table}/", f"{source.table}/"
        if target_path.startswith(source_path) or source_path.startswith(target_path):
            raise PinError(f"a copy at {writer.table} would lie in {source.table}, or contain it: name another folder")
    transaction = (f"pin/{pin.pin_id}/{name}", 1)
    head = writer.log.head(transaction[0])
    if head.version >= 0 and head.last_transaction < transaction[1]:
        raise PinError(f"{writer.table} is not a copy of pin {pin.name}: name another folder")
    partition_columns = pinned_state(spark, pin, pinned_table).partition_columns
    result = writer.append(
        pinned_rows(spark, pin, pinned_table.location),
        partition_by=partition_columns if head.version < 0 else (),
        txn=transaction,
        metadata={"pin": pin.name},
    )
    return writer.table, result


def make_view(spark: SparkSession, pin: Pin, pinned_table: PinnedTable, database: str) -> str:
    """Create or replace a view of the pinned rows of a table in the session's catalog; return the view's name.

    Raises:
        PinError, TableError: The pinned version is gone, or the catalog refuses the view.

    """
    name = copy_name(pinned_table)
    quoted_name = f"{'.'.join(map(quoted, database.split('.')))}.{quoted(name)}"
    source, condition = f"delta.{quoted(pinned_table.location)} VERSION AS OF {pinned_table.version}", ""
    if pin.at is not None and pinned_table.event_time is not None:
        schema = pinned_state(spark, pin, pinned_table).schema
        condition = f" WHERE {up_to_sql(schema, pinned_table.event_time, pin.at, pinned_table.table)}"
    try:
        spark.sql(f"CREATE OR REPLACE VIEW {quoted_name} AS SELECT * FROM {source}{condition}")  # noqa: S608 (names are quoted)
    except SPARK_ERRORS as error:
        raise TableError(f"the view {database}.{name} cannot be created: {error_reason(error)}") from error
    return f"{database}.{name}"
