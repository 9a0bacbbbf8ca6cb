"""SCD type 1: the table has the newest row of each key."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, MapType, StringType, StructField

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import WriteFailedError
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES, DELETED, SEQ, SEQUENCE, ChangeSpec
from writer_jobs.merge.column_sequences import SEQUENCES, lacks_value, with_stored_values, without_values_before
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

_TOMBSTONE, _STORED = "__sluice_tombstone", "__sluice_stored"


class NewestRows(ScdRows):
    """The newest row of each key."""

    sequence: str

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        self.sequence = spec.sequence_column(columns)
        # How the source of the merge was computed from the table.
        self._is_compared = self._has_stored_values = False
        self._sequences_type: DataType | None = None

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs in addition to those of the changes."""
        fields = [StructField(SEQUENCE, sequence)] if self.sequence == SEQUENCE else []
        if self._spec.unchanged_columns:
            fields.append(StructField(COLUMN_SEQUENCES, MapType(StringType(), sequence)))
        return fields

    def source(self, rows: DataFrame, read_table: Callable[[], DataFrame], side_rows: DataFrame | None) -> DataFrame:
        """Return the changes to merge. Repetitions are dropped if the merge would rewrite files for them.

        If rows of the batch or of the table lack columns, see
        :func:`~writer_jobs.merge.column_sequences.with_stored_values`.
        """
        source = rows if side_rows is None else self._without_stale(rows, side_rows)
        table = read_table()
        has_sequences = COLUMN_SEQUENCES in table.columns
        self._sequences_type = table.schema[COLUMN_SEQUENCES].dataType if has_sequences else None
        self._has_stored_values = SEQUENCES in rows.columns
        self._is_compared = self._has_stored_values or self.needs_comparison(rows, table)
        if not self._is_compared:
            return source
        if not has_sequences:
            return self.without_repetitions(source, table)
        self._has_stored_values = True
        source = with_stored_values(source, table, self._spec.keys, self._columns, self.sequence)
        if SEQUENCES in rows.columns:
            self.incomplete_count = self._count(source.where(lacks_value(self._columns)))
        return source

    def needs_comparison(self, rows: DataFrame, table: DataFrame) -> bool:
        """Return whether a row of the batch is not newer than the table's row with its key.

        Delta rewrites each file with a match, so the merge would rewrite a file for a row that changes nothing. Only
        keys and sequences of the table are read.

        Raises:
            WriteFailedError: The table's files cannot be read.

        """
        if self.sequence.lower() not in {name.lower() for name in table.columns}:
            return False
        keys = list(map(quoted, self._spec.keys))
        stored_sequences = table.select(*keys, F.col(quoted(self.sequence)).alias(_STORED))
        matches = stored_sequences.join(rows.select(*keys, SEQ), list(self._spec.keys))
        return self._count(matches.where(F.col(SEQ) <= F.col(_STORED)).limit(1)) > 0

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
        if self._sequences_type is not None:
            values[COLUMN_SEQUENCES] = (
                qualified(S, SEQUENCES) if self._has_stored_values else F.lit(None).cast(self._sequences_type)
            )
        merge = writer.merge(source.alias(S), match_on(self._spec.keys, within), alias=T)
        if self._has_stored_values:
            return (
                merge.whenMatchedDelete(is_delete)
                .whenMatchedUpdate(~is_delete, values)
                .whenNotMatchedInsert(~is_delete, values)
            )
        merge = (
            merge.whenMatchedUpdate(
                (sequence == stored_sequence) & (is_delete | ~has_same_values),
                {quoted(self.sequence): F.raise_error(message).cast(source.schema[SEQ].dataType)},
            )
            .whenMatchedDelete(is_delete & is_newer)
            .whenMatchedUpdate(~is_delete & is_newer, values)
            .whenNotMatchedInsert(~is_delete, values)
        )
        # Delta copies a compared source. Otherwise each pass of the merge would repeat the comparison.
        return merge if self._is_compared else merge.with_repeatable_source()

    def _count(self, rows: DataFrame) -> int:
        """Count rows that are computed from the table.

        Raises:
            WriteFailedError: The table's files cannot be read.

        """
        try:
            return int(rows.count())
        except (*JVM_ERRORS, PySparkException) as error:
            reason = f"the rows of the table cannot be read: {error_reason(error)}"
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
        if SEQUENCES in rows.columns:
            columns = self._spec.names_of_unchanged(self._columns)
            current_rows = without_values_before(current_rows, columns, F.col(_TOMBSTONE))
        message = "a change has the sequence of a delete of its key, so the newest is not known: "
        return fail_where(is_tie, current_rows, message, keys).drop(_TOMBSTONE)
