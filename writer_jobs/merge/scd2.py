"""SCD type 2: the table has every row that a key ever had, and the range of sequences of its validity.

A row is valid from ``__START_AT`` (inclusive) up to ``__END_AT`` (exclusive; null in the current row). So a key has at
most one current row, and its ranges do not overlap: a row ends at the next change of its key, and a gap between two
ranges means that the key was deleted. All of this follows from the changes of the key alone. So the rows of a batch's
keys are recomputed from the table, the tombstones and the batch, and the rows that differ are merged.
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
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.merge_sql import S, T, as_stored, content_hash, fail_where, match_on, qualified
from writer_jobs.merge.table_model import ScdRows
from writer_jobs.writer import LockedDeltaWriter

_IS_STORED, _STORED_END, _ROW = "__sluice_is_stored", "__sluice_stored_end", "__sluice_row"
_NEXT_START, _IS_AMBIGUOUS = "__sluice_next_start", "__sluice_is_ambiguous"
# Values of the table's columns that the changes lack.
_MISSING_VALUES = "__sluice_missing_values"


class RowHistory(ScdRows):
    """Every row of each key with the sequences from and to which it was valid."""

    sequence = START

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        self._value_columns = [name for name in columns if name not in spec.keys]
        #: Every change is applied; changes with the same key and sequence are repetitions.
        self.group_columns = (*spec.keys, SEQ)

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs in addition to those of the changes."""
        return [StructField(START, sequence), StructField(END, sequence)]

    def source(
        self,
        rows: DataFrame,
        read_table: Callable[[], DataFrame],
        side_rows: DataFrame | None,
        sequences: KeyBounds,  # noqa: ARG002 (as NewestRows)
        are_newest: Callable[[], bool],  # noqa: ARG002
    ) -> DataFrame:
        """Return the rows, with all columns of the table, that the table lacks or has with another end.

        A column that the changes lack has the value of the previous row, or null after a delete.
        """
        keys = list(self._spec.keys)
        batch_keys = rows.select(*map(quoted, keys)).distinct()
        stored_rows = read_table().join(batch_keys, keys, "left_semi")
        rows = as_stored(rows, stored_rows.schema)
        written_columns = {name.lower() for name in (*self._columns, START, END)}
        missing_columns = [name for name in stored_rows.columns if name.lower() not in written_columns]
        changes = rows.withColumn(_IS_STORED, F.expr("false")).unionByName(
            stored_rows.select(
                *map(quoted, self._columns), F.col(START).alias(SEQ), F.expr("false").alias(DELETED),
                F.expr("true").alias(_IS_STORED), F.col(END).alias(_STORED_END),
                F.struct(F.expr("true"), *map(quoted, missing_columns)).alias(_MISSING_VALUES),
            ),
            allowMissingColumns=True,
        )  # fmt: skip
        deletes = self._deletes_in(stored_rows)
        if side_rows is not None:
            deletes = deletes.unionByName(side_rows.join(batch_keys, keys, "left_semi"))
        changes = changes.unionByName(
            deletes.select("*", F.expr("true").alias(DELETED), F.expr("false").alias(_IS_STORED)),
            allowMissingColumns=True,
        )
        return self._changed_rows(self._fold_repetitions(changes), missing_columns)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table. All matching rows of the table satisfy ``within``."""
        values = {quoted(name): qualified(S, name) for name in source.columns}
        return (
            writer.merge(source.alias(S), match_on((*self._spec.keys, START), within), alias=T)
            .whenMatchedUpdate(None, {END: qualified(S, END)})
            .whenNotMatchedInsert(None, values)
        )

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:  # noqa: ARG002 (as RowModel)
        """Return the number of changes, without deletes, that the table had before."""
        return max(0, batch.folded_count - batch.delete_count - inserted)

    def _deletes_in(self, stored_rows: DataFrame) -> DataFrame:
        """Return the deletes that the table's rows imply: a row ends where no other row of its key starts."""
        keys = [quoted(name) for name in self._spec.keys]
        next_start = F.lead(START).over(Window.partitionBy(*keys).orderBy(START))
        ends = stored_rows.select(*keys, F.col(END).alias(SEQ), next_start.alias(_NEXT_START))
        return ends.where(F.col(SEQ).isNotNull() & ~F.col(SEQ).eqNullSafe(F.col(_NEXT_START))).select(*keys, SEQ)

    def _fold_repetitions(self, changes: DataFrame) -> DataFrame:
        """Fold the changes of each key and sequence into one; fail if their content differs."""
        keys = [quoted(name) for name in self._spec.keys]
        row = F.when(~F.col(DELETED), F.struct(DELETED, *map(quoted, self._value_columns)))
        content = content_hash(changes, self._value_columns)
        folded = changes.groupBy(*keys, SEQ).agg(
            F.first(row, ignorenulls=True).alias(_ROW),
            F.bool_or(DELETED).alias(DELETED),
            F.bool_or(_IS_STORED).alias(_IS_STORED),
            F.max(_STORED_END).alias(_STORED_END),
            F.first(_MISSING_VALUES, ignorenulls=True).alias(_MISSING_VALUES),
            (F.min(content) != F.max(content)).alias(_IS_AMBIGUOUS),
        )
        message = "a change has the sequence of another change of its key and differs from it: "
        return fail_where(F.col(_IS_AMBIGUOUS), folded, message, self._spec.keys)

    def _changed_rows(self, changes: DataFrame, missing_columns: Sequence[str]) -> DataFrame:
        """Return the rows that follow from the changes and that the table lacks or has with another end.

        Columns that the changes lack keep the values of the previous row, unless a delete follows it.
        """
        keys = [quoted(name) for name in self._spec.keys]
        by_sequence = Window.partitionBy(*keys).orderBy(SEQ)
        end = F.lead(SEQ).over(by_sequence)
        # A delete resets the missing values to null.
        missing_values = F.when(F.col(DELETED) | F.col(_IS_STORED), F.struct(DELETED, _MISSING_VALUES))
        up_to_here = by_sequence.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        inherited_values = F.last(missing_values, ignorenulls=True).over(up_to_here)[_MISSING_VALUES]
        rows = changes.withColumn(END, end).withColumn(_MISSING_VALUES, inherited_values).where(~F.col(DELETED))
        return rows.where(~F.col(_IS_STORED) | ~F.col(END).eqNullSafe(F.col(_STORED_END))).select(
            *keys,
            *(F.col(f"{_ROW}.{quoted(name)}") for name in self._value_columns),
            *(F.col(f"{_MISSING_VALUES}.{quoted(name)}") for name in missing_columns),
            F.col(SEQ).alias(START),
            END,
        )
