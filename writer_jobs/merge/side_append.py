"""Rows that do not belong into a table, in another one beside it: never dropped."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.evolution import evolution_of, joined
from writer_jobs.merge.table_shape import evolved
from writer_jobs.writer import LockedDeltaWriter


def write_beside(
    writer: LockedDeltaWriter,
    suffix: str,
    rows: DataFrame,
    notes: Mapping[str, Column],
    txn: tuple[str, int] | None,
    options: WriteOptions,
) -> None:
    """Append rows to a table beside another one.

    After their batch is in the other one: a batch that is refused leaves none here. If the process is killed between
    the two commits, the batch that comes again is in that table, and not in this one. So call this whether the batch
    was applied now or before: each table has a transaction of its own.

    Columns that the other table lacks are added, and types widened.

    Args:
        writer: of the table for which they were.
        suffix: of the other one's location; without ``_`` also of the ``txnAppId`` there, behind a ``/``.
        rows: at least one; the same each time they are read.
        notes: more columns, by name, which say when and why.
        txn: of the batch: with it rows of one batch are written once, however often it is tried.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Raises:
        SchemaMismatchError: the other table has columns of types that cannot become theirs.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    target, deadline = writer.beside(suffix), options.deadline(writer.manager)
    mark = None if txn is None else (f"{txn[0]}/{suffix.removeprefix('_')}", txn[1])
    snapshot = target.log.snapshot()
    if mark is not None and snapshot.last_transaction(mark[0]) >= mark[1]:
        return
    noted = rows.select("*", *(column.alias(name) for name, column in notes.items()))
    if snapshot.state is not None:
        noted = as_in(noted, snapshot.state.schema)
        schema, columns = noted.schema, tuple(noted.columns)
        evolved(
            rows.sparkSession,
            target,
            snapshot.state,
            lambda found: evolution_of(found.schema, schema, columns),
            deadline,
        )
    target.append(noted, txn=mark, lock_timeout_seconds=deadline.remaining(), metadata=options.metadata)


def as_in(rows: DataFrame, table: StructType) -> DataFrame:
    """Cast rows to the types of a table's columns, where that loses nothing."""
    types = {field.name.lower(): field.dataType for field in table}
    kinds = {field.name: joined(types.get(field.name.lower(), field.dataType), field.dataType) for field in rows.schema}
    return rows.select(*(F.col(quoted(name)).cast(kind).alias(name) for name, kind in kinds.items()))
