"""What is pinned, for those who do not ask for pins: a table of its own, or a view in the catalog."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import LockManager
from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import TableError
from writer_jobs.pins.moment import up_to_sql
from writer_jobs.pins.read import pinned_rows, version_of
from writer_jobs.writer import LockedDeltaWriter

_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")


def name_of(pinned: PinnedTable) -> str:
    """Return by what its copy and its view are called: the last part of its location."""
    return _NO_NAME.sub("_", pinned.location.rstrip("/").rpartition("/")[2])


def refuse_equal_names(pin: Pin) -> None:
    """Make sure that no two tables of a pin would have copies of one name.

    Raises:
        PinError: two would.

    """
    names = [name_of(each) for each in pin.tables]
    if len({name.lower() for name in names}) < len(names):
        raise PinError(f"two tables of pin {pin.name} end in the same name, {', '.join(names)}: copy them in Python")


def copy_pinned(
    spark: SparkSession,
    pin: Pin,
    pinned: PinnedTable,
    folder: str,
    *,
    manager: LockManager,
    lock_timeout_seconds: float | None = None,
) -> tuple[str, CommitResult]:
    """Write the rows that a pin keeps of a table into a table of their own, once; return where, and what was written.

    Args:
        spark: a session with the guarded log store.
        pin: see :func:`take_pin` and :func:`find_pin`.
        pinned: one of its tables.
        folder: the copy is in it, under the table's name, with its partition columns.
        manager: gives the lock on it.
        lock_timeout_seconds: to wait for it.

    Raises:
        PinError: there is a table that is no copy of this pin; or see :func:`pinned_rows`.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    writer = LockedDeltaWriter(spark, manager, f"{folder.rstrip('/')}/{name_of(pinned)}")
    for each in pin.tables:
        one, other = f"{writer.table}/", f"{each.table}/"
        if one.startswith(other) or other.startswith(one):
            raise PinError(f"a copy at {writer.table} would be in {each.table}, or around it: name another place")
    transaction = (f"pin/{pin.pin_id}/{name_of(pinned)}", 1)
    head = writer.log.head(transaction[0])
    if head.version >= 0 and head.last_transaction < transaction[1]:
        raise PinError(f"{writer.table} is a table that is no copy of pin {pin.name}: name another place")
    partitioned_by = version_of(spark, pin, pinned).partition_columns
    copied = writer.append(
        pinned_rows(spark, pin, pinned.location),
        partition_by=partitioned_by if head.version < 0 else (),
        txn=transaction,
        lock_timeout_seconds=lock_timeout_seconds,
        metadata={"pin": pin.name},
    )
    return writer.table, copied


def make_view(spark: SparkSession, pin: Pin, pinned: PinnedTable, database: str) -> str:
    """Make a view of the rows that a pin keeps of a table, or replace one; return its name.

    Args:
        spark: the session, with a catalog that keeps views.
        pin: see :func:`take_pin` and :func:`find_pin`.
        pinned: one of its tables.
        database: of the view.

    Raises:
        PinError: the pin's version is not there any more.
        TableError: the catalog refuses.

    """
    name = f"{'.'.join(map(quoted, database.split('.')))}.{quoted(name_of(pinned))}"
    rows, where = f"delta.{quoted(pinned.location)} VERSION AS OF {pinned.version}", ""
    if pin.at is not None and pinned.event_time is not None:
        schema = version_of(spark, pin, pinned).schema
        where = f" WHERE {up_to_sql(schema, pinned.event_time, pin.at, pinned.table)}"
    try:
        spark.sql(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {rows}{where}")  # noqa: S608 (names are quoted)
    except (*JVM_ERRORS, PySparkException) as error:
        raise TableError(f"the view {database}.{name_of(pinned)} cannot be made: {one_sentence(error)}") from error
    return f"{database}.{name_of(pinned)}"
