"""Changes that do not contain all columns of their row, such as PostgreSQL's unchanged TOAST values.

A column that a change does not contain keeps its value. Changes may arrive in any order, so the value is that of the
newest earlier change that contains the column. The table stores the sequence of this change in ``COLUMN_SEQUENCES``: an
older change that arrives later can still be the one that has the value.

A delete counts as a change that sets all columns to null. A change of a row after a delete does not get values from
before the delete.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES, DELETED, SEQ, UNCHANGED
from writer_jobs.merge.merge_sql import S, T, any_of, as_stored, comparable, fail_where, match_on, qualified

#: Column of folded changes, with the contents of ``COLUMN_SEQUENCES``.
SEQUENCES = "__sluice_column_sequences"
_NEWEST, _IS_CHANGED, _IS_AMBIGUOUS = "__sluice_newest_values", "__sluice_is_changed", "__sluice_is_ambiguous"


def with_newest_values(changes: DataFrame, group: WindowSpec, columns: Sequence[str], ambiguous: str) -> DataFrame:
    """Fill the columns that a change does not contain with the newest values of the changes of its group.

    ``UNCHANGED`` is replaced by ``SEQUENCES``. The result is right for the newest change of each group.

    Args:
        changes: Changes with ``UNCHANGED``.
        group: The changes of a group, in descending order of their sequences.
        columns: Columns that some changes do not contain.
        ambiguous: Name of the boolean column that is true if a different change has the same sequence. It becomes true
            if this holds for a change that gives a value.

    """
    whole_group = group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)

    def is_unchanged(name: str) -> Column:
        return ~F.col(DELETED) & F.array_contains(UNCHANGED, name.lower())

    def newest_value(name: str) -> Column:
        value = F.struct(
            F.col(SEQ).alias("sequence"), F.col(quoted(name)).alias("value"), F.col(ambiguous).alias("fails")
        )
        return F.first(F.when(~is_unchanged(name), value), ignorenulls=True).over(whole_group)

    newest_values = changes.withColumn(_NEWEST, F.struct(*(newest_value(name).alias(name) for name in columns)))
    newest = {name: F.col(_NEWEST).getField(name) for name in columns}
    entries = [
        F.when(is_unchanged(name), F.struct(F.lit(name.lower()), value.getField("sequence")))
        for name, value in newest.items()
    ]
    fails = (
        is_unchanged(name) & F.coalesce(value.getField("fails"), F.expr("false")) for name, value in newest.items()
    )
    return newest_values.select(
        *(F.col(quoted(name)) for name in changes.columns if name not in (*columns, UNCHANGED, ambiguous)),
        *(
            F.when(is_unchanged(name), value.getField("value")).otherwise(F.col(quoted(name))).alias(name)
            for name, value in newest.items()
        ),
        any_of([F.col(ambiguous), *fails]).alias(ambiguous),
        _as_map(entries).alias(SEQUENCES),
    )


def without_values_before(rows: DataFrame, columns: Sequence[str], tombstone: Column) -> DataFrame:
    """Reset the columns whose value is older than the tombstone of the row's key, to a null without a sequence.

    ``columns`` are those that some changes do not contain.
    """
    sequences = F.col(SEQUENCES)
    is_older = {name: F.coalesce(sequences[name.lower()] < tombstone, F.expr("false")) for name in columns}
    return rows.withColumns(
        {
            **{name: F.when(~is_older[name], F.col(quoted(name))) for name in columns},
            SEQUENCES: F.transform_values(
                sequences, lambda _, sequence: F.when(tombstone.isNull() | (sequence >= tombstone), sequence)
            ),
        }
    )


def with_stored_values(
    rows: DataFrame, table: DataFrame, keys: Sequence[str], columns: Sequence[str], sequence: str
) -> DataFrame:
    """Return the rows that a batch changes, each with the newest value of every column.

    A value is that of the batch or that of the table, whichever has the larger sequence. Rows that stay as they are in
    the table are dropped. The result has the columns of ``rows``, and ``SEQUENCES``. It fails when it is read if the
    batch and the table have different values of one column with the same sequence.

    Args:
        rows: Folded changes, at most one for each key.
        table: At least all rows of the table that may have these keys, with the column ``COLUMN_SEQUENCES``.
        keys: Columns that together identify a row.
        columns: Columns that the table gets.
        sequence: Table column with a row's sequence.

    """
    rows = as_stored(rows, table.schema)
    if SEQUENCES not in rows.columns:
        rows = rows.withColumn(SEQUENCES, F.lit(None).cast(table.schema[COLUMN_SEQUENCES].dataType))
    stored_rows = table.join(rows.select(*map(quoted, keys)), list(keys), "left_semi")
    joined_rows = rows.alias(S).join(stored_rows.alias(T), match_on(keys, F.expr("true")), "left")
    is_stored, is_delete = qualified(T, keys[0]).isNotNull(), qualified(S, DELETED)
    row_sequence, stored_row_sequence = qualified(S, SEQ), qualified(T, sequence)
    is_newer = ~is_stored | stored_row_sequence.isNull() | (row_sequence > stored_row_sequence)
    newest_sequence = F.when(is_newer, row_sequence).otherwise(stored_row_sequence)
    values, entries = [], []
    are_replaced, are_ambiguous = [is_newer], [is_delete & (row_sequence == stored_row_sequence)]
    for name in columns:
        if name in keys:
            continue
        value, stored_value = qualified(S, name), qualified(T, name)
        value_sequence = _sequence_of(name, qualified(S, SEQUENCES), row_sequence)
        stored_sequence = _sequence_of(name, qualified(T, COLUMN_SEQUENCES), stored_row_sequence)
        is_replaced = ~is_stored | F.coalesce(
            value_sequence.isNotNull() & (stored_sequence.isNull() | (value_sequence > stored_sequence)),
            F.expr("false"),
        )
        field = rows.schema[name]
        is_different = ~comparable(field, S).eqNullSafe(comparable(field, T))
        are_ambiguous.append(~is_delete & (value_sequence == stored_sequence) & is_different)
        are_replaced.append(~is_delete & is_replaced)
        values.append(F.when(is_replaced, value).otherwise(stored_value).alias(name))
        newest_value_sequence = F.when(is_replaced, value_sequence).otherwise(stored_sequence)
        entries.append(
            F.when(
                ~newest_value_sequence.eqNullSafe(newest_sequence),
                F.struct(F.lit(name.lower()), newest_value_sequence),
            )
        )
    merged_rows = joined_rows.select(
        *(qualified(S, name).alias(name) for name in keys),
        *values,
        newest_sequence.alias(SEQ),
        is_delete.alias(DELETED),
        F.when(~is_delete, _as_map(entries)).alias(SEQUENCES),
        any_of(are_replaced).alias(_IS_CHANGED),
        F.coalesce(any_of(are_ambiguous), F.expr("false")).alias(_IS_AMBIGUOUS),
    )
    message = "a change has the sequence of the table's row and differs from it: "
    checked_rows = fail_where(F.col(_IS_AMBIGUOUS), merged_rows, message, keys)
    return checked_rows.where(F.col(_IS_CHANGED) | F.col(_IS_AMBIGUOUS)).drop(_IS_CHANGED, _IS_AMBIGUOUS)


def lacks_value(columns: Sequence[str]) -> Column:
    """Return the condition that a row of :func:`with_stored_values` lacks a value that no change has contained."""
    sequences = F.col(SEQUENCES)
    return any_of(
        F.coalesce(F.map_contains_key(sequences, name.lower()), F.expr("false"))
        & sequences[name.lower()].isNull()
        & F.col(quoted(name)).isNull()
        for name in columns
    )


def _sequence_of(name: str, sequences: Column, row_sequence: Column) -> Column:
    """Return the sequence of a column's value."""
    key = name.lower()
    return F.when(F.map_contains_key(sequences, key), sequences[key]).otherwise(row_sequence)


def _as_map(entries: Sequence[Column]) -> Column:
    """Return a map of entries that are not null; null if all are."""
    present_entries = F.array_compact(F.array(*entries))
    return F.when(F.size(present_entries) > 0, F.map_from_entries(present_entries))
