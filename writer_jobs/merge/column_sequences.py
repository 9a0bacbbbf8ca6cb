"""Changes that do not contain all columns of their row, such as PostgreSQL's unchanged TOAST values.

A column that a change does not contain keeps its value. Changes may arrive in any order, so the value is that of the
newest earlier change that contains the column. The table stores the sequence of this change in ``COLUMN_SEQUENCES``: an
older change that arrives later can still be the one that has the value.

A row after a delete has no values from before the delete. So the delete of a key has a tombstone, also if the batch
has a newer change of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES, DELETED, SEQ, UNCHANGED
from writer_jobs.merge.merge_sql import S, T, any_of, as_stored, comparable_value, match_on, qualified, with_keys

#: Column of folded changes, with the contents of ``COLUMN_SEQUENCES``.
SEQUENCES = "__sluice_column_sequences"
#: Column of folded changes: the sequence of the newest delete of the group, or of a later truncate; null without one.
DELETED_AT = "__sluice_deleted_at"
_NEWEST = "__sluice_newest_values"


def with_newest_values(changes: DataFrame, group: WindowSpec, columns: Sequence[str], ambiguous: str) -> DataFrame:
    """Fill the columns that the newest change of each group does not contain with values of earlier changes.

    The values are those of the newest change that contains the column and is newer than each delete of the group.
    ``SEQUENCES`` and ``DELETED_AT`` replace ``UNCHANGED``. Other changes of a group do not have useful values.

    Args:
        changes: Changes with ``UNCHANGED``.
        group: The changes of a group, in descending order of their sequences.
        columns: Columns that some changes do not contain.
        ambiguous: Name of a boolean column: whether a different change of the group has the same sequence. It becomes
            true if this holds for a change whose value is used.

    """
    whole_group = group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    changes = changes.withColumn(DELETED_AT, F.max(F.when(F.col(DELETED), F.col(SEQ))).over(whole_group))
    is_current = F.col(DELETED_AT).isNull() | (F.col(SEQ) > F.col(DELETED_AT))

    def is_unchanged(name: str) -> Column:
        return ~F.col(DELETED) & F.array_contains(UNCHANGED, name.lower())

    def newest_value(name: str) -> Column:
        value = F.struct(
            F.col(SEQ).alias("sequence"), F.col(quoted(name)).alias("value"), F.col(ambiguous).alias("fails")
        )
        return F.first(F.when(is_current & ~is_unchanged(name), value), ignorenulls=True).over(whole_group)

    newest_values = changes.withColumn(_NEWEST, _by_name(columns, newest_value))
    newest = {name: F.col(_NEWEST).getField(name) for name in columns}
    entries = [F.when(is_unchanged(name), _entry(name, value.getField("sequence"))) for name, value in newest.items()]
    fails = (is_unchanged(name) & value.getField("fails") for name, value in newest.items())
    return newest_values.select(
        *(F.col(quoted(name)) for name in changes.columns if name not in (*columns, UNCHANGED, ambiguous)),
        *(
            F.when(is_unchanged(name), value.getField("value")).otherwise(F.col(quoted(name))).alias(name)
            for name, value in newest.items()
        ),
        any_of([F.col(ambiguous), *fails]).alias(ambiguous),
        _as_map(entries).alias(SEQUENCES),
    )


def with_deleted_at(rows: DataFrame, *sequences: Column) -> DataFrame:
    """Return folded changes with ``DELETED_AT``: the largest of the row's own value and of other sequences.

    The row's own value is that of the column, or the sequence of the row if it is a delete. Nulls do not count.
    """
    deleted_at = F.col(DELETED_AT) if DELETED_AT in rows.columns else F.when(F.col(DELETED), F.col(SEQ))
    return rows.withColumn(DELETED_AT, F.greatest(deleted_at, *sequences) if sequences else deleted_at)


def with_stored_values(
    rows: DataFrame, table: DataFrame, keys: Sequence[str], columns: Sequence[str], sequence: str
) -> DataFrame:
    """Return the rows that a batch changes, each with the newest value of every column.

    A value is that of the batch or that of the table, whichever has the larger sequence, if no delete of the key is
    newer; otherwise null, without a sequence. Rows that stay as they are in the table are dropped. The result has the
    keys, the columns, ``SEQ``, ``DELETED`` and ``SEQUENCES``. It fails when it is read if the batch and the table have
    different values of one column with the same sequence.

    Args:
        rows: Folded changes, at most one for each key, with ``DELETED_AT``: the sequence of the newest known delete or
            truncate.
        table: At least all rows of the table that may have these keys, with the column ``COLUMN_SEQUENCES``.
        keys: Columns that together identify a row.
        columns: Columns that the table gets.
        sequence: Table column with a row's sequence.

    """
    rows = as_stored(rows, table.schema)
    names = [name for name in columns if name not in keys]
    rows_of_keys = _with_stored_rows(rows, table, keys, names, sequence)
    row_sequence, stored_row_sequence = F.col("__sluice_row_sequence"), F.col("__sluice_stored_row_sequence")
    is_stored, is_delete = F.col("__sluice_is_stored"), F.col("__sluice_is_delete")
    is_newer = ~is_stored | stored_row_sequence.isNull() | (row_sequence > stored_row_sequence)

    def of_column(column: str, name: str) -> Column:
        return F.col(column).getField(name)

    def is_new_value(name: str) -> Column:
        value_sequence = of_column("__sluice_sequences", name)
        stored_sequence = of_column("__sluice_stored_sequences", name)
        is_later = value_sequence.isNotNull() & (stored_sequence.isNull() | (value_sequence > stored_sequence))
        return ~is_stored | (~is_delete & F.coalesce(is_later, F.expr("false")))

    def is_deleted_value(name: str) -> Column:
        # A row without a sequence is older than any change.
        is_older = F.coalesce(
            of_column("__sluice_stored_sequences", name) < F.col(DELETED_AT),
            of_column("__sluice_stored_values", name).isNotNull(),
        )
        return F.col(DELETED_AT).isNotNull() & is_older

    def is_rival(name: str) -> Column:
        field = rows.schema[name]
        value = comparable_value(field, of_column("__sluice_values", name))
        stored_value = comparable_value(field, of_column("__sluice_stored_values", name))
        has_same_sequence = of_column("__sluice_sequences", name) == of_column("__sluice_stored_sequences", name)
        return ~is_delete & has_same_sequence & ~value.eqNullSafe(stored_value)

    is_rival_delete = is_delete & (row_sequence == stored_row_sequence)
    choices = rows_of_keys.select(
        "*",
        is_newer.alias("__sluice_is_newer"),
        F.when(is_newer, row_sequence).otherwise(stored_row_sequence).alias("__sluice_newest_sequence"),
        _by_name(names, is_new_value).alias("__sluice_is_new"),
        _by_name(names, is_deleted_value).alias("__sluice_is_deleted"),
        any_of([is_rival_delete, *map(is_rival, names)]).alias("__sluice_is_ambiguous"),
    )

    def newest(name: str, column: str, stored_column: str) -> Column:
        stored_value = F.when(~of_column("__sluice_is_deleted", name), of_column(stored_column, name))
        return F.when(of_column("__sluice_is_new", name), of_column(column, name)).otherwise(stored_value)

    newest_rows = choices.withColumn(
        "__sluice_newest_sequences",
        _by_name(names, lambda name: newest(name, "__sluice_sequences", "__sluice_stored_sequences")),
    )
    entries = [
        F.when(
            ~of_column("__sluice_newest_sequences", name).eqNullSafe(F.col("__sluice_newest_sequence")),
            _entry(name, of_column("__sluice_newest_sequences", name)),
        )
        for name in names
    ]
    message = with_keys("a change has the sequence of the table's row and differs from it: ", keys)
    error = F.raise_error(message).cast("boolean")
    is_deleted_row = F.col("__sluice_is_delete") & F.col("__sluice_is_newer")
    is_changed = [of_column(column, name) for column in ("__sluice_is_new", "__sluice_is_deleted") for name in names]
    return newest_rows.where(any_of([F.col("__sluice_is_newer"), F.col("__sluice_is_ambiguous"), *is_changed])).select(
        *map(quoted, keys),
        *(newest(name, "__sluice_values", "__sluice_stored_values").alias(name) for name in names),
        F.col("__sluice_newest_sequence").alias(SEQ),
        # Each clause of the merge reads DELETED.
        F.when(F.col("__sluice_is_ambiguous"), error).otherwise(is_deleted_row).alias(DELETED),
        F.when(~is_deleted_row, _as_map(entries, F.col("__sluice_other_sequences"))).alias(SEQUENCES),
    )


def _with_stored_rows(
    rows: DataFrame, table: DataFrame, keys: Sequence[str], names: Sequence[str], sequence: str
) -> DataFrame:
    """Join rows with the table's rows; see :func:`with_stored_values`.

    Returns:
        The keys, ``DELETED_AT``, and these columns, each with the prefix ``__sluice_``: ``values`` and ``sequences`` of
        the columns ``names`` in the batch, without those that are older than a delete; ``stored_values`` and
        ``stored_sequences`` in the table; ``row_sequence`` and ``stored_row_sequence``; ``is_stored``; ``is_delete``;
        ``other_sequences``.

    """
    if SEQUENCES not in rows.columns:
        rows = rows.withColumn(SEQUENCES, F.lit(None).cast(table.schema[COLUMN_SEQUENCES].dataType))
    stored_rows = table.join(rows.select(*map(quoted, keys)), list(keys), "left_semi")
    joined_rows = rows.alias(S).join(stored_rows.alias(T), match_on(keys, F.expr("true")), "left")
    row_sequence, stored_row_sequence = qualified(S, SEQ), qualified(T, sequence)
    deleted_at = qualified(S, DELETED_AT)

    def sequence_in_batch(name: str) -> Column:
        value_sequence = _sequence_of(name, qualified(S, SEQUENCES), row_sequence)
        return F.when(~F.coalesce(value_sequence < deleted_at, F.expr("false")), value_sequence)

    def sequence_in_table(name: str) -> Column:
        return _sequence_of(name, qualified(T, COLUMN_SEQUENCES), stored_row_sequence)

    joined_rows = joined_rows.select(
        *(qualified(S, name).alias(name) for name in keys),
        _by_name(names, lambda name: qualified(S, name)).alias("__sluice_values"),
        _by_name(names, lambda name: qualified(T, name)).alias("__sluice_stored_values"),
        _by_name(names, sequence_in_batch).alias("__sluice_sequences"),
        _by_name(names, sequence_in_table).alias("__sluice_stored_sequences"),
        row_sequence.alias("__sluice_row_sequence"),
        stored_row_sequence.alias("__sluice_stored_row_sequence"),
        qualified(T, keys[0]).isNotNull().alias("__sluice_is_stored"),
        qualified(S, DELETED).alias("__sluice_is_delete"),
        deleted_at.alias(DELETED_AT),
        other_sequences([*keys, *names]).alias("__sluice_other_sequences"),
    )

    def known_value(name: str) -> Column:
        is_known = F.col("__sluice_sequences").getField(name).isNotNull()
        return F.when(is_known, F.col("__sluice_values").getField(name))

    return joined_rows.withColumn("__sluice_values", _by_name(names, known_value))


def other_sequences(columns: Sequence[str]) -> Column:
    """Return the stored sequences of columns that the batch does not have; null without one."""
    names = [name.lower() for name in columns]
    entries = F.map_filter(qualified(T, COLUMN_SEQUENCES), lambda name, _: ~name.isin(*names))
    return F.when(F.size(entries) > 0, entries)


def lacks_value(columns: Sequence[str]) -> Column:
    """Return the condition that a row of :func:`with_stored_values` lacks a value that no change has contained."""
    sequences = F.col(SEQUENCES)
    return any_of(
        F.map_contains_key(sequences, name.lower()) & sequences[name.lower()].isNull() & F.col(quoted(name)).isNull()
        for name in columns
    )


def _by_name(names: Sequence[str], expression: Callable[[str], Column]) -> Column:
    """Return a struct with an expression for each of the names."""
    return F.struct(*(expression(name).alias(name) for name in names))


def _sequence_of(name: str, sequences: Column, row_sequence: Column) -> Column:
    """Return the sequence of a column's value."""
    key = name.lower()
    return F.when(F.map_contains_key(sequences, key), sequences[key]).otherwise(row_sequence)


def _entry(name: str, sequence: Column) -> Column:
    return F.struct(F.lit(name.lower()).alias("key"), sequence.alias("value"))


def _as_map(entries: Sequence[Column], other_entries: Column | None = None) -> Column:
    """Return a map of the entries that are not null, and of those of another map; null without entries."""
    if not entries and other_entries is not None:
        return other_entries
    present_entries = F.array_compact(F.array(*entries))
    if other_entries is not None:
        stored_entries = F.map_entries(other_entries)
        present_entries = F.when(stored_entries.isNull(), present_entries).otherwise(
            F.concat(present_entries, stored_entries)
        )
    return F.when(F.size(present_entries) > 0, F.map_from_entries(present_entries))
