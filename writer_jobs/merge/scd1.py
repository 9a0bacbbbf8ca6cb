"""SCD type 1: the table has the newest row of each key."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import WriteFailedError
from writer_jobs.merge.change_spec import DELETED, SEQ, SEQUENCE, ChangeSpec
from writer_jobs.merge.merge_sql import S, T, all_of, as_stored, comparable, matched, named, of, without_known
from writer_jobs.merge.table_model import OfChanges
from writer_jobs.writer import LockedDeltaWriter

_TOMB, _KNOWN = "__sluice_tombstone", "__sluice_known"


class NewestRows(OfChanges):
    """How changes become rows of which each key has one, the newest.

    Args:
        spec: how changes are applied.
        columns: that the table gets of the changes.

    """

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        #: The table's column with a row's sequence.
        self.sequence = spec.sequence_column(columns)
        #: Of each group of changes by these the newest counts.
        self.folded_by = spec.keys
        # Whether the source of the merge is the result of a comparison with the table.
        self._compares = False

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs beside those of the changes."""
        return [StructField(SEQUENCE, sequence)] if self.sequence == SEQUENCE else []

    def source(
        self,
        rows: DataFrame,
        read_table: Callable[[], DataFrame],
        tombstones: DataFrame | None,
    ) -> DataFrame:
        """Return the changes to merge, without those that the table has if a file would be rewritten for them.

        Args:
            rows: the newest change of each key.
            read_table: returns the table's rows.
            tombstones: keys and ``SEQ`` of the deletes of earlier batches that are remembered.

        """
        counted = rows if tombstones is None else self._without_stale(rows, tombstones)
        table = read_table()
        self._compares = self.rewrites_for_nothing(rows, table)
        return self.news(counted, table) if self._compares else counted

    def rewrites_for_nothing(self, rows: DataFrame, table: DataFrame) -> bool:
        """Tell whether a merge rewrites a file for a row that changes nothing, because it is not newer.

        Delta rewrites each file that has a match. Only keys and sequences of the table are read.

        Raises:
            WriteFailedError: The table's files cannot be read.

        """
        if self.sequence.lower() not in {name.lower() for name in table.columns}:
            return False
        keys = list(map(quoted, self._spec.keys))
        sequences = table.select(*keys, F.col(quoted(self.sequence)).alias(_KNOWN))
        near = sequences.join(rows.select(*keys, SEQ), list(self._spec.keys))
        try:
            return not near.where(F.col(SEQ) <= F.col(_KNOWN)).isEmpty()
        except (*JVM_ERRORS, PySparkException) as error:
            reason = f"the rows of the table cannot be read: {one_sentence(error)}"
            raise WriteFailedError(table=self._spec.table, reason=reason) from error

    def news(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Leave out rows whose key a table has with a larger sequence, or with the same sequence and the same values.

        A row or a delete with the sequence of the table's row that contradicts it stays: :meth:`merge` refuses it.
        """
        there = {name.lower() for name in table.columns}
        if self.sequence.lower() not in there:
            return rows
        rows = as_stored(rows, table.schema)

        def is_same(field: StructField) -> Column:
            if field.name.lower() not in there:
                return of(S, field.name).isNull()
            return comparable(field, S).eqNullSafe(comparable(field, T))

        new, known = of(S, SEQ), of(T, self.sequence)
        same = all_of(is_same(field) for field in rows.schema if field.name not in (SEQ, DELETED))
        is_known = (new < known) | ((new == known) & same & ~of(S, DELETED))
        return without_known(rows, table, self._spec.keys, is_known)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table, whose rows that matter are ``within``."""
        new, known, deleted = of(S, SEQ), of(T, self.sequence), of(S, DELETED)
        newer = known.isNull() | (new > known)
        fields = [field for field in source.schema if field.name not in (SEQ, DELETED)]
        same = all_of(comparable(field, S).eqNullSafe(comparable(field, T)) for field in fields)
        message = named(
            "a change has the sequence of the row in the table and says something else: ", self._spec.keys, S
        )
        values = {quoted(name): of(S, name) for name in self._columns}
        if self.sequence == SEQUENCE:
            values[SEQUENCE] = new
        merge = (
            writer.merge(source.alias(S), matched(self._spec.keys, within), alias=T)
            .whenMatchedUpdate(
                (new == known) & (deleted | ~same),
                {quoted(self.sequence): F.raise_error(message).cast(source.schema[SEQ].dataType)},
            )
            .whenMatchedDelete(deleted & newer)
            .whenMatchedUpdate(~deleted & newer, values)
            .whenNotMatchedInsert(~deleted, values)
        )
        # Delta copies a source that compares, or it would compare in each of its passes.
        return merge if self._compares else merge.of_kept_source()

    def _without_stale(self, rows: DataFrame, tombstones: DataFrame) -> DataFrame:
        """Leave out what is older than the tombstone of its key, and fail on what is as old."""
        keys = list(self._spec.keys)
        newest = tombstones.groupBy(*map(quoted, keys)).agg(F.max(SEQ).alias(_TOMB))
        known = rows.join(newest, keys, "left")
        tie = ~F.col(DELETED) & (F.col(SEQ) == F.col(_TOMB))
        kept = known.where(F.col(DELETED) | F.col(_TOMB).isNull() | (F.col(SEQ) >= F.col(_TOMB)))
        message = named("a change has the sequence of a delete of its key, so that the newest is not known: ", keys)
        error = F.raise_error(message).cast(rows.schema[SEQ].dataType)
        return kept.withColumn(SEQ, F.when(tie, error).otherwise(F.col(SEQ))).drop(_TOMB)
