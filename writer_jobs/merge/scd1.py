"""SCD type 1: the table has the newest row of each key."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, MapType, StringType, StructField

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, error_reason, has_condition
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import WriteFailedError
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES, DELETED, SEQ, SEQUENCE, ChangeSpec
from writer_jobs.merge.column_sequences import (
    DELETED_AT,
    SEQUENCES,
    lacks_value,
    other_sequences,
    with_deleted_at,
    with_stored_values,
)
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.merge_sql import (
    S,
    T,
    all_of,
    as_stored,
    comparable,
    fail_where,
    match_on,
    qualified,
    with_keys,
    without_matches,
)
from writer_jobs.merge.table_model import ScdRows
from writer_jobs.writer import LockedDeltaWriter

_T = TypeVar("_T")

_TOMBSTONE, _STORED = "__sluice_tombstone", "__sluice_stored"


class NewestRows(ScdRows):
    """The newest row of each key."""

    sequence: str

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        self.sequence = spec.sequence_column(columns)
        # How the source of the merge was computed from the table and the tombstones.
        self._is_compared = self._has_sequences = self._has_stored_values = False
        self._source_rows: MaterializedRows | None = None

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs in addition to those of the changes."""
        fields = [StructField(SEQUENCE, sequence)] if self.sequence == SEQUENCE else []
        if self._spec.unchanged_columns:
            fields.append(StructField(COLUMN_SEQUENCES, MapType(StringType(), sequence)))
        return fields

    def source(
        self,
        rows: DataFrame,
        read_table: Callable[[], DataFrame],
        side_rows: DataFrame | None,
        sequences: KeyBounds,
        are_newest: Callable[[], bool],
    ) -> DataFrame:
        """Return the changes to merge, without those that are older than a tombstone of their key.

        Repetitions are dropped if the merge would rewrite files for them. If rows of the batch or of the table lack
        columns, see :func:`~writer_jobs.merge.column_sequences.with_stored_values`.
        """
        table = read_table()
        self._has_sequences, self._has_stored_values = COLUMN_SEQUENCES in table.columns, False
        is_incomplete = SEQUENCES in rows.columns
        self._is_compared = is_incomplete or (
            not self._read_table(are_newest) and self.needs_comparison(rows, table, sequences, side_rows)
        )
        if not self._is_compared:
            return rows.drop(DELETED_AT)
        source = rows if side_rows is None else self._without_stale(rows, side_rows)
        if self._has_sequences:
            return self._with_stored_values(source, table)
        source = source.drop(DELETED_AT)
        if is_incomplete:
            raise self._spec.misfit(f"another program has removed the column {COLUMN_SEQUENCES}: run the job again")
        return self.without_repetitions(source, table)

    def _with_stored_values(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Return the rows of :func:`~writer_jobs.merge.column_sequences.with_stored_values`, computed once."""
        source = with_stored_values(with_deleted_at(rows), table, self._spec.keys, self._columns, self.sequence)
        self._has_stored_values = True
        self._source_rows = self._read_table(lambda: MaterializedRows(source))
        incomplete_rows = self._source_rows.rows.where(lacks_value(self._columns))
        self.incomplete_count = self._read_table(incomplete_rows.count)
        return self._source_rows.rows

    def close(self) -> None:
        """Release the rows of the merge."""
        if self._source_rows is not None:
            self._source_rows.close()

    def side_rows(self, batch: ChangeBatch) -> DataFrame | None:
        """Return the deletes of a batch, also those that a newer change of the key follows; None: there are none."""
        if DELETED_AT not in batch.rows.columns:
            return super().side_rows(batch)
        deletes = batch.rows.where(F.col(DELETED_AT).isNotNull()).withColumn(SEQ, F.col(DELETED_AT))
        return None if self._read_table(deletes.isEmpty) else deletes

    def needs_comparison(
        self, rows: DataFrame, table: DataFrame, sequences: KeyBounds, tombstones: DataFrame | None = None
    ) -> bool:
        """Return whether a row of the batch is not newer than the table's row or a tombstone with its key.

        Delta rewrites each file with a match, so the merge would rewrite a file for a row that changes nothing. Each
        pass of the merge would repeat a comparison with tombstones. Only keys and sequences are read, and only from
        files that may have a sequence within ``sequences``, those of the batch, or a later one: from no file if the
        changes arrive in order.

        Raises:
            WriteFailedError: The files of the table or of the tombstones cannot be read.

        """
        keys = list(map(quoted, self._spec.keys))
        stored = [] if tombstones is None else [tombstones.select(*keys, F.col(SEQ).alias(_STORED))]
        if self.sequence.lower() in {name.lower() for name in table.columns}:
            stored.append(table.select(*keys, F.col(quoted(self.sequence)).alias(_STORED)))
        if not stored:
            return False
        stored_rows = reduce(DataFrame.unionByName, stored)
        late_rows = stored_rows.where(sequences.is_at_least(F.col(_STORED), SEQ))
        matches = late_rows.join(rows.select(*keys, SEQ), list(self._spec.keys)).where(F.col(SEQ) <= F.col(_STORED))
        return not self._read_table(matches.isEmpty)

    def without_repetitions(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Drop rows that are older than the table's row with their key, or equal to it.

        A row with the table's sequence stays if it is a delete or has other values; :meth:`merge` refuses it.
        """
        columns = {name.lower() for name in table.columns}
        if self.sequence.lower() not in columns:
            return rows
        rows = as_stored(rows, table.schema)

        def is_same(field: StructField) -> Column:
            if field.name.lower() not in columns:
                return qualified(S, field.name).isNull()
            return comparable(field, S).eqNullSafe(comparable(field, T))

        sequence, stored_sequence = qualified(S, SEQ), qualified(T, self.sequence)
        has_same_values = all_of(is_same(field) for field in rows.schema if field.name not in (SEQ, DELETED))
        is_repetition = (sequence < stored_sequence) | (
            (sequence == stored_sequence) & has_same_values & ~qualified(S, DELETED)
        )
        return without_matches(rows, table, self._spec.keys, is_repetition)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table. All matching rows of the table satisfy ``within``."""
        sequence, stored_sequence, is_delete = qualified(S, SEQ), qualified(T, self.sequence), qualified(S, DELETED)
        is_newer = stored_sequence.isNull() | (sequence > stored_sequence)
        fields = [field for field in source.schema if field.name not in (SEQ, DELETED)]
        has_same_values = all_of(comparable(field, S).eqNullSafe(comparable(field, T)) for field in fields)
        message = with_keys("a change has the sequence of the table's row and differs from it: ", self._spec.keys, S)
        values = {quoted(name): qualified(S, name) for name in self._columns}
        if self.sequence == SEQUENCE:
            values[SEQUENCE] = sequence
        if self._has_sequences:
            values[COLUMN_SEQUENCES] = qualified(S, SEQUENCES) if self._has_stored_values else F.lit(None)
        merge = writer.merge(source.alias(S), match_on(self._spec.keys, within), alias=T)
        if self._has_stored_values:
            return (
                merge.whenMatchedDelete(is_delete)
                .whenMatchedUpdate(~is_delete, values)
                .whenNotMatchedInsert(~is_delete, values)
                .with_repeatable_source()
            )
        updated_values = values
        if self._has_sequences:
            updated_values = values | {COLUMN_SEQUENCES: other_sequences(self._columns)}
        merge = (
            merge.whenMatchedUpdate(
                (sequence == stored_sequence) & (is_delete | ~has_same_values),
                {quoted(self.sequence): F.raise_error(message).cast(source.schema[SEQ].dataType)},
            )
            .whenMatchedDelete(is_delete & is_newer)
            .whenMatchedUpdate(~is_delete & is_newer, updated_values)
            .whenNotMatchedInsert(~is_delete, values)
        )
        # Delta copies a compared source. Otherwise each pass of the merge would repeat the comparison.
        return merge if self._is_compared else merge.with_repeatable_source()

    def _read_table(self, read: Callable[[], _T]) -> _T:
        """Return the result of a function that reads the table or its tombstones.

        Raises:
            ChangesError: ``raise_error`` refused a row.
            WriteFailedError: Files cannot be read.

        """
        try:
            return read()
        except (*JVM_ERRORS, PySparkException) as error:
            if has_condition(error, RAISED):
                raise self._spec.misfit(error_reason(error)) from error
            reason = f"the rows of the table or of its tombstones cannot be read: {error_reason(error)}"
            raise WriteFailedError(table=self._spec.table, reason=reason) from error

    def _without_stale(self, rows: DataFrame, tombstones: DataFrame) -> DataFrame:
        """Drop changes older than the tombstone of their key; fail on a change with its sequence. Deletes are kept."""
        keys = list(self._spec.keys)
        newest_tombstones = tombstones.groupBy(*map(quoted, keys)).agg(F.max(SEQ).alias(_TOMBSTONE))
        joined_rows = rows.join(newest_tombstones, keys, "left")
        is_tie = ~F.col(DELETED) & (F.col(SEQ) == F.col(_TOMBSTONE))
        current_rows = joined_rows.where(
            F.col(DELETED) | F.col(_TOMBSTONE).isNull() | (F.col(SEQ) >= F.col(_TOMBSTONE))
        )
        message = "a change has the sequence of a delete of its key, so the newest is not known: "
        rows_with_deletes = with_deleted_at(current_rows, F.col(_TOMBSTONE))
        return fail_where(is_tie, rows_with_deletes, message, keys).drop(_TOMBSTONE)
