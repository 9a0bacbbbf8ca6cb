"""Append rejected rows (rows that are too late, dead letters) to a table of their own, so that none is lost."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from writer_jobs.commit.options import WriteOptions, lock_deadline
from writer_jobs.delta.side_locations import DEAD_LETTERS_SUFFIX, LATE_SUFFIX
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.evolution import alter_clauses, target_type
from writer_jobs.merge.table_shape import alter_if_needed
from writer_jobs.writer import LockedDeltaWriter


def append_rejected_rows(
    writer: LockedDeltaWriter,
    suffix: str,
    rows: DataFrame,
    notes: Mapping[str, Column],
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> None:
    """Append rejected rows of a batch to their own table, and add or widen its columns if needed.

    Call it after the commit of the batch, so that a refused batch appends nothing. If the process is killed between the
    two commits, the repeated batch finds its transaction in the first table only. So call it for a batch that was
    applied before, too: each of the two tables has a transaction of its own.

    Args:
        suffix: Suffix of the rejected rows' table, such as ``_late``. The ``txnAppId`` of ``txn`` gets ``/late`` there.
        rows: At least one row; the same rows each time they are read.
        notes: Additional columns, by name, such as the reason and the time.
        txn: Transaction of the batch; rows of one transaction are appended once, however often it is repeated.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Raises:
        SchemaMismatchError: A column cannot be widened to the type of the rows.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    target, deadline = writer.side_writer(suffix), lock_deadline(options, writer.manager)
    target_txn = None if txn is None else (_rejected_app_id(txn[0], suffix), txn[1])
    snapshot = target.log.snapshot()
    if snapshot.has_transaction(target_txn):
        return
    rows = rows.select("*", *(column.alias(name) for name, column in notes.items()))
    if snapshot.state is not None:
        rows = cast_where_exact(rows, snapshot.state.schema)
        schema, columns = rows.schema, tuple(rows.columns)
        spark, state = rows.sparkSession, snapshot.state
        alter_if_needed(spark, target, state, lambda newest: alter_clauses(newest.schema, schema, columns), deadline)
    target.append(rows, txn=target_txn, lock_timeout_seconds=deadline.remaining(), metadata=options.get("metadata"))


def table_that_may_have_dropped(writer: LockedDeltaWriter, app_id: str, since: float) -> str | None:
    """Return the table, or a table of its rejected rows, that may have dropped a transaction of an application.

    Return its canonical URI; None if all of them have every transaction. For ``since`` see
    :meth:`Snapshot.may_have_dropped`.

    Raises:
        TableError, StorageError: A table cannot be read.

    """
    writers = {app_id: writer}
    for suffix in (LATE_SUFFIX, DEAD_LETTERS_SUFFIX):
        writers[_rejected_app_id(app_id, suffix)] = writer.side_writer(suffix)
    return next(
        (
            table_writer.table
            for table_app_id, table_writer in writers.items()
            if table_writer.log.snapshot().may_have_dropped(table_app_id, since)
        ),
        None,
    )


def _rejected_app_id(app_id: str, suffix: str) -> str:
    return f"{app_id}/{suffix.removeprefix('_')}"


def cast_where_exact(rows: DataFrame, table: StructType) -> DataFrame:
    """Cast columns to the types of a table's columns, except where :func:`target_type` is the type of the rows."""
    table_types = {field.name.lower(): field.dataType for field in table}
    return rows.select(
        *(
            F.col(quoted(field.name))
            .cast(target_type(table_types.get(field.name.lower(), field.dataType), field.dataType))
            .alias(field.name)
            for field in rows.schema
        )
    )
