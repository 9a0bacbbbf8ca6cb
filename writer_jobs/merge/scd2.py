"""SCD type 2: the table has every row that a key ever had, and from when to when it was valid.

A row is valid from ``__START_AT`` up to, and without, ``__END_AT``; null there: until now. So a key has at most one
current row, and its validities have no overlap: a row ends where the next change of its key begins, and a gap is the
time for which it was deleted. All of it follows from the changes of a key alone. So the rows of the keys that a batch
touches are made anew from what the table, the tombstones and the batch know of them, and what differs is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.change_spec import DELETED, END, SEQ, START, ChangeSpec
from writer_jobs.merge.merge_sql import S, T, as_stored, content_hash, matched, named, of
from writer_jobs.merge.table_model import OfChanges
from writer_jobs.writer import LockedDeltaWriter

_KNOWN, _NEXT, _ROW, _WAS = "__sluice_known", "__sluice_next", "__sluice_row", "__sluice_was"
_UNLIKE, _BEFORE = "__sluice_unlike", "__sluice_before"


class RowHistory(OfChanges):
    """How changes become rows with the time for which each was valid.

    Args:
        spec: how changes are applied.
        columns: that the table gets of the changes.

    """

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        self._others = [name for name in columns if name not in spec.keys]
        #: The table's column with a row's sequence.
        self.sequence = START
        #: Every change counts; those of one key and sequence are repetitions of one.
        self.folded_by = (*spec.keys, SEQ)

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs beside those of the changes."""
        return [StructField(START, sequence), StructField(END, sequence)]

    def source(self, rows: DataFrame, read_table: Callable[[], DataFrame], tombstones: DataFrame | None) -> DataFrame:
        """Return the rows of the table that are new, or end at another time than they did.

        Args:
            rows: the changes, each key and sequence once.
            read_table: returns the table's rows.
            tombstones: keys and ``SEQ`` of the deletes of earlier batches that are remembered.

        Returns:
            The columns of the table. Those that the changes do not have are those of the row before.

        """
        keys = list(self._spec.keys)
        touched = rows.select(*map(quoted, keys)).distinct()
        known = read_table().join(touched, keys, "left_semi")
        rows = as_stored(rows, known.schema)
        ours = {name.lower() for name in (*self._columns, START, END)}
        missing = [name for name in known.columns if name.lower() not in ours]
        changes = rows.withColumn(_KNOWN, F.expr("false")).unionByName(
            known.select(
                *map(quoted, self._columns), F.col(START).alias(SEQ), F.expr("false").alias(DELETED),
                F.expr("true").alias(_KNOWN), F.col(END).alias(_WAS),
                F.struct(F.expr("true"), *map(quoted, missing)).alias(_BEFORE),
            ),
            allowMissingColumns=True,
        )  # fmt: skip
        deletes = self._deletes_in(known)
        if tombstones is not None:
            deletes = deletes.unionByName(tombstones.join(touched, keys, "left_semi"))
        changes = changes.unionByName(
            deletes.withColumn(DELETED, F.expr("true")).withColumn(_KNOWN, F.expr("false")), allowMissingColumns=True
        )
        return self._ended(self._one_each(changes), missing)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table, whose rows that matter are ``within``."""
        values = {quoted(name): of(S, name) for name in source.columns}
        return (
            writer.merge(source.alias(S), matched((*self._spec.keys, START), within), alias=T)
            .whenMatchedUpdate(None, {END: of(S, END)})
            .whenNotMatchedInsert(None, values)
        )

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:  # noqa: ARG002 (as others')
        """Return how many of the changes that do not delete the table had already."""
        return max(0, batch.folded - batch.deletes - inserted)

    def _deletes_in(self, known: DataFrame) -> DataFrame:
        """Return the deletes that rows of the table show: where one ends, and no other begins."""
        keys = [quoted(name) for name in self._spec.keys]
        following = F.lead(START).over(Window.partitionBy(*keys).orderBy(START))
        ends = known.select(*keys, F.col(END).alias(SEQ), following.alias(_NEXT))
        return ends.where(F.col(SEQ).isNotNull() & ~F.col(SEQ).eqNullSafe(F.col(_NEXT))).select(*keys, SEQ)

    def _one_each(self, changes: DataFrame) -> DataFrame:
        """Fold what is said of one key and sequence into one change, and fail if it is not one."""
        keys = [quoted(name) for name in self._spec.keys]
        row = F.when(~F.col(DELETED), F.struct(DELETED, *map(quoted, self._others)))
        said = content_hash(changes, self._others)
        grouped = changes.groupBy(*keys, SEQ).agg(
            F.first(row, ignorenulls=True).alias(_ROW),
            F.bool_or(DELETED).alias(DELETED),
            F.bool_or(_KNOWN).alias(_KNOWN),
            F.max(_WAS).alias(_WAS),
            F.first(_BEFORE, ignorenulls=True).alias(_BEFORE),
            (F.min(said) != F.max(said)).alias(_UNLIKE),
        )
        message = named("a change has the sequence of another one and says something else: ", self._spec.keys)
        error = F.raise_error(message).cast(changes.schema[SEQ].dataType)
        return grouped.withColumn(SEQ, F.when(F.col(_UNLIKE), error).otherwise(F.col(SEQ)))

    def _ended(self, changes: DataFrame, missing: Sequence[str]) -> DataFrame:
        """Return the rows that begin with a change and end with the next, as far as the table has them otherwise.

        Columns that are ``missing`` in the changes a row has from the one before it, if that was not deleted.
        """
        keys = [quoted(name) for name in self._spec.keys]
        in_order = Window.partitionBy(*keys).orderBy(SEQ)
        end = F.lead(SEQ).over(in_order)
        last = F.last(F.when(F.col(DELETED) | F.col(_KNOWN), F.struct(DELETED, _BEFORE)), ignorenulls=True)
        before = last.over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))[_BEFORE]
        rows = changes.withColumn(END, end).withColumn(_BEFORE, before).where(~F.col(DELETED))
        return rows.where(~F.col(_KNOWN) | ~F.col(END).eqNullSafe(F.col(_WAS))).select(
            *keys,
            *(F.col(f"{_ROW}.{quoted(name)}") for name in self._others),
            *(F.col(f"{_BEFORE}.{quoted(name)}") for name in missing),
            F.col(SEQ).alias(START),
            END,
        )
