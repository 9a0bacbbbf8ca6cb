"""Fold a batch of changes: drop repetitions and keep the newest change of each key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.column_sequences import with_newest_values
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.merge_sql import content_hash

#: Whether a group has several newest changes that are not equal; see :func:`fold`.
AMBIGUOUS = "__sluice_ambiguous"
_RANK, _HASH = "__sluice_rank", "__sluice_hash"
_COUNTS = ("changes", "null_keys", "unordered", "folded", "deletes", "ambiguous")
_MAX_SAMPLES = 5


class ChangeBatch:
    """The folded changes of a batch: the newest of each key, or one of each key and sequence.

    Deletes are ordered by the sequence like all changes. Two changes with the same key and sequence are a repetition if
    all columns are equal, or if both are deletes. Otherwise their order is not known, and the batch is refused if the
    result depends on it. A column that the newest change of a key does not contain has the value of the newest change
    that contains it; ``SEQUENCES`` has the sequence of this change, and ``DELETED_AT`` that of the key's newest delete.

    The changes are read once, and the folded rows are kept in a local checkpoint. They are never recomputed from a
    source that may have changed, and the merge knows how the keys are distributed over tasks.

    Args:
        prepared: Changes as :meth:`ChangeSpec.prepare` returns them.
        group_columns: Columns whose values identify a group: the keys, or the keys and ``SEQ``. The newest change
            of each group is kept.
        tie_breaker: Column whose largest value wins if changes of a group have the same sequence; None: such changes
            must be equal.
        range_column: Key column that differs most between the table's files, such as the event time; None: not known.

    Attributes:
        rows: The folded changes, with the columns of ``prepared``; ``SEQUENCES`` and ``DELETED_AT`` replace
            ``UNCHANGED``.
        change_count: Number of changes.
        folded_count: Number of folded changes.
        delete_count: Number of folded changes that are deletes.
        newest: Largest sequence; None for an empty batch.
        sequences: Bounds of :data:`SEQ`.

    Raises:
        ChangesError: A key or a sequence is null, or the order of two changes is not known.

    """

    def __init__(
        self,
        prepared: DataFrame,
        spec: ChangeSpec,
        group_columns: Sequence[str],
        tie_breaker: str | None = None,
        range_column: str | None = None,
    ) -> None:
        self._spec = spec
        self._has_one_per_key = tuple(group_columns) == tuple(spec.keys)
        self._is_unordered = _is_incomplete(prepared.schema, SEQ)
        self._prepared = prepared
        change_metrics, folded_metrics = Observation(), Observation()
        observed_changes = prepared.observe(
            change_metrics,
            F.count("*").alias("changes"),
            F.count_if(has_null_key(spec)).alias("null_keys"),
            F.count_if(self._is_unordered).alias("unordered"),
        )
        unchanged_columns = spec.names_of_unchanged(prepared.columns)
        folded = fold(observed_changes, group_columns, tie_breaker, unchanged_columns)
        self._bounds = KeyBounds(folded.schema, spec.keys)
        self.sequences = KeyBounds(folded.schema, [SEQ])
        observed_folded = folded.observe(
            folded_metrics,
            F.count("*").alias("folded"),
            F.count_if(F.col(DELETED)).alias("deletes"),
            F.count_if(F.col(AMBIGUOUS)).alias("ambiguous"),
            F.max(SEQ).alias("newest"),
            *self._bounds.aggregates(),
            *self.sequences.aggregates(),
        )
        self._materialized = MaterializedRows.of(spec.table, observed_folded, "changes")
        metrics: dict[str, Any] = {**dict.fromkeys(_COUNTS, 0), "newest": None}
        # Spark reports no metrics if it knows from the plan that there are no rows.
        if not self._materialized.rows.isEmpty():
            metrics |= {**change_metrics.get, **folded_metrics.get}
        try:
            self._check(metrics)
        except BaseException:
            self.close()
            raise
        self.change_count = int(metrics["changes"])
        self.folded_count = int(metrics["folded"])
        self.delete_count = int(metrics["deletes"])
        self.newest: Any = metrics["newest"]
        self._bounds.load(metrics)
        self.sequences.load(metrics)
        self.rows = self._materialized.rows.drop(AMBIGUOUS)
        if range_column is not None:
            self._bounds.refine(self.rows, range_column)

    def bounds(self, alias: str | None = None) -> Column:
        """Return the condition that the keys of a table, which may have an alias, are within the batch's bounds."""
        return self._bounds.condition(alias)

    def count_keys(self) -> int:
        """Return the number of different keys."""
        if self._has_one_per_key:
            return self.folded_count
        return int(self.rows.select(*map(quoted, self._spec.keys)).distinct().count())

    def close(self) -> None:
        """Release the local checkpoint."""
        self._materialized.close()

    def _check(self, metrics: dict[str, Any]) -> None:
        refuse_null_keys(self._spec, self._prepared, metrics["null_keys"])
        if metrics["unordered"]:
            sample = _sample_keys(self._spec, self._prepared, self._is_unordered)
            raise self._spec.misfit(f"{metrics['unordered']} changes have no sequence (null or NaN); keys: {sample}")
        if metrics["ambiguous"]:
            sample = _sample_keys(self._spec, self._materialized.rows, F.col(AMBIGUOUS))
            raise self._spec.misfit(
                f"different changes of a key have the same sequence ({metrics['ambiguous']} times), so the newest is "
                f"not known; extend sequence_by so that it orders them; keys: {sample}"
            )


def has_null_key(spec: ChangeSpec) -> Column:
    """Return the condition that a key column of a row is null."""
    return reduce(or_, (F.col(quoted(name)).isNull() for name in spec.keys))


def refuse_null_keys(spec: ChangeSpec, rows: DataFrame, count: int) -> None:
    """Refuse rows if the number of those with a null in a key is not 0.

    Raises:
        ChangesError: There is such a row; the message has the keys of some.

    """
    if count:
        raise spec.misfit(f"{count} rows have a null in a key column: {_sample_keys(spec, rows, has_null_key(spec))}")


def _sample_keys(spec: ChangeSpec, rows: DataFrame, condition: Column) -> str:
    """Return the keys of some of the rows that match a condition, as text."""
    sample = rows.where(condition).select(*map(quoted, spec.keys)).limit(_MAX_SAMPLES + 1).collect()
    texts = [", ".join(f"{name}={row[name]}" for name in spec.keys) for row in sample]
    return "; ".join(texts[:_MAX_SAMPLES]) + ("; …" if len(texts) > _MAX_SAMPLES else "")


def fold(
    changes: DataFrame,
    group_columns: Sequence[str],
    tie_breaker: str | None,
    unchanged_columns: Sequence[str] = (),
) -> DataFrame:
    """Return the newest change of each group. Its ``AMBIGUOUS`` is true if a different change of the group is as new.

    Of changes of a group with the same sequence, the one with the largest value of ``tie_breaker`` is the newest.
    ``unchanged_columns`` are those that some changes do not contain; see
    :func:`~writer_jobs.merge.column_sequences.with_newest_values`.

    A window needs one shuffle and one sort. Aggregates of whole rows would sort before the shuffle, too.
    """
    content = [name for name in changes.columns if name not in (*group_columns, SEQ, DELETED, tie_breaker)]
    order = [F.col(SEQ).desc()] if tie_breaker is None else [F.col(SEQ).desc(), F.col(tie_breaker).desc()]
    group = Window.partitionBy(*(quoted(name) for name in group_columns)).orderBy(*order)
    equally_new = group.rangeBetween(Window.currentRow, Window.currentRow)
    ranked_changes = (
        changes.withColumn(_HASH, content_hash(changes, content))
        .withColumn(_RANK, F.row_number().over(group))
        .withColumn(AMBIGUOUS, F.min(_HASH).over(equally_new) != F.max(_HASH).over(equally_new))
    )
    if unchanged_columns:
        ranked_changes = with_newest_values(ranked_changes, group, unchanged_columns, AMBIGUOUS)
    return ranked_changes.where(F.col(_RANK) == 1).drop(_RANK, _HASH)


def _is_incomplete(schema: StructType, name: str) -> Column:
    """Return the condition that a column, or a field of its struct, is null or NaN."""
    column_type = schema[name].dataType
    fields = column_type if isinstance(column_type, StructType) else ()
    conditions = (_is_null_or_nan(F.col(f"{name}.{quoted(field.name)}"), field.dataType) for field in fields)
    return reduce(or_, conditions, _is_null_or_nan(F.col(name), column_type))


def _is_null_or_nan(value: Column, value_type: DataType) -> Column:
    # Spark orders NaN after all numbers: it would always be the newest sequence.
    return value.isNull() | F.isnan(value) if isinstance(value_type, FloatType | DoubleType) else value.isNull()
