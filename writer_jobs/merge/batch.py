"""One batch of changes, folded: repetitions are one, and of several changes to one key the newest is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    StructType,
)

from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.materialized import Kept
from writer_jobs.merge.merge_sql import content_hash

#: Whether another change of a group, as new as the one that is left, says something else; see :func:`folded`.
UNLIKE = "__sluice_unlike"
_PLACE, _HASH = "__sluice_place", "__sluice_hash"
_COUNTS = ("changes", "keyless", "unordered", "folded", "deletes", "ambiguous")
_SHOWN = 5


class ChangeBatch:
    """The changes that count: the newest of each key, or one of each key and sequence.

    A delete counts in the order of the sequence, like any other change. Two changes of one key with one sequence are a
    repetition if all columns are equal, or if both delete. Else which is newer is not known, and the batch is refused.

    The changes are read once, and what is left of them is kept by a local checkpoint: it is never made again from a
    source that may have changed, and the keys' distribution over tasks is known to the merge.

    Args:
        prepared: changes as :meth:`ChangeSpec.prepared` returns them.
        spec: how they are applied.
        folded_by: columns of which equal values are folded into one: the keys, or the keys and ``SEQ``.
        preferred_by: of two changes with one sequence the one with the largest value of this column counts.
        ranged_by: the key column by which a table's files differ most, as those of an event time; None: none is known.

    Attributes:
        rows: the columns of ``prepared``, one row for each.
        changes: how many there were.
        folded: how many are left.
        deletes: how many of those that are left delete.
        newest: largest sequence; None of an empty batch.

    Raises:
        ChangesError: a key or a sequence is null, or it is not known which of two changes is newer.

    """

    def __init__(
        self,
        prepared: DataFrame,
        spec: ChangeSpec,
        folded_by: Sequence[str],
        preferred_by: str | None = None,
        ranged_by: str | None = None,
    ) -> None:
        self._spec = spec
        self._has_one_each = tuple(folded_by) == tuple(spec.keys)
        self._keyless = keyless(spec)
        self._unordered = _is_null(prepared.schema, SEQ)
        self._prepared = prepared
        came, left = Observation(), Observation()
        counted = prepared.observe(
            came,
            F.count("*").alias("changes"),
            F.count_if(self._keyless).alias("keyless"),
            F.count_if(self._unordered).alias("unordered"),
        )
        newest = folded(counted, folded_by, preferred_by)
        self._bounds = KeyBounds(newest.schema, spec.keys)
        observed = newest.observe(
            left,
            F.count("*").alias("folded"),
            F.count_if(F.col(DELETED)).alias("deletes"),
            F.count_if(F.col(UNLIKE)).alias("ambiguous"),
            F.max(SEQ).alias("newest"),
            *self._bounds.aggregates(),
        )
        self._kept = Kept.of(spec.table, observed, "changes")
        found: dict[str, Any] = {**dict.fromkeys(_COUNTS, 0), "newest": None}
        # Spark observes nothing where it knows beforehand that there is nothing.
        if not self._kept.rows.isEmpty():
            found |= {**came.get, **left.get}
        try:
            self._check(found)
        except BaseException:
            self.close()
            raise
        self.changes = int(found["changes"])
        self.folded = int(found["folded"])
        self.deletes = int(found["deletes"])
        self.newest: Any = found["newest"]
        self._bounds.found(found)
        self.rows = self._kept.rows.drop(UNLIKE)
        if ranged_by is not None:
            self._bounds.refine(self.rows, ranged_by)

    def bounds(self, alias: str | None = None) -> Column:
        """Return the condition on a table's keys that they are not outside those of the batch.

        Args:
            alias: of the table; None: it has none.

        """
        return self._bounds.condition(alias)

    def count_keys(self) -> int:
        """Return how many keys the changes have."""
        if self._has_one_each:
            return self.folded
        return int(self.rows.select(*map(quoted, self._spec.keys)).distinct().count())

    def close(self) -> None:
        """Give back what is kept."""
        self._kept.close()

    def _check(self, found: dict[str, Any]) -> None:
        refuse_keyless(self._spec, self._prepared, found["keyless"])
        if found["unordered"]:
            shown = _shown(self._spec, self._prepared, self._unordered)
            raise self._spec.misfit(
                f"{found['unordered']} changes have no sequence (null, or not a number): of {shown}"
            )
        if found["ambiguous"]:
            raise self._spec.misfit(
                f"{found['ambiguous']} keys have several changes with one sequence, so that the newest is not known: "
                f"{_shown(self._spec, self._kept.rows, F.col(UNLIKE))}"
            )


def keyless(spec: ChangeSpec) -> Column:
    """Return the condition that a key column of a row is null."""
    condition = F.expr("false")
    for name in spec.keys:
        condition = condition | F.col(quoted(name)).isNull()
    return condition


def refuse_keyless(spec: ChangeSpec, rows: DataFrame, number: int) -> None:
    """Refuse rows with a null in a key.

    Args:
        spec: The keys.
        rows: The rows, with the key columns.
        number: How many of them have a null in a key.

    Raises:
        ChangesError: There is such a row; the message has the keys of some.

    """
    if number:
        raise spec.misfit(f"{number} keys are null, or in part: {_shown(spec, rows, keyless(spec))}")


def _shown(spec: ChangeSpec, rows: DataFrame, condition: Column) -> str:
    """Return the keys of some of the rows that a condition chooses, as text."""
    chosen = rows.where(condition).select(*map(quoted, spec.keys)).limit(_SHOWN + 1).collect()
    texts = [", ".join(f"{name}={row[name]}" for name in spec.keys) for row in chosen]
    return "; ".join(texts[:_SHOWN]) + ("; …" if len(texts) > _SHOWN else "")


def folded(changes: DataFrame, folded_by: Sequence[str], preferred_by: str | None) -> DataFrame:
    """Leave the newest of each group, and say in ``UNLIKE`` whether others as new as it say something else.

    By a window: one shuffle and one sort, where aggregates of whole rows would sort before the shuffle, too.

    Args:
        changes: with ``SEQ`` and ``DELETED``.
        folded_by: columns of which equal values make a group.
        preferred_by: of two changes of a group with one sequence the one with more here is newer.

    """
    others = [name for name in changes.columns if name not in (*folded_by, SEQ, DELETED, preferred_by)]
    newest_first = [F.col(SEQ).desc()] if preferred_by is None else [F.col(SEQ).desc(), F.col(preferred_by).desc()]
    group = Window.partitionBy(*(quoted(name) for name in folded_by)).orderBy(*newest_first)
    same = group.rangeBetween(Window.currentRow, Window.currentRow)
    return (
        changes.withColumn(_HASH, content_hash(changes, others))
        .withColumn(_PLACE, F.row_number().over(group))
        .withColumn(UNLIKE, F.min(_HASH).over(same) != F.max(_HASH).over(same))
        .where(F.col(_PLACE) == 1)
        .drop(_PLACE, _HASH)
    )


def _is_null(schema: StructType, name: str) -> Column:
    """Tell whether a value is null, or not a number; of a struct also whether one of its fields is."""
    kind = schema[name].dataType
    condition = _is_nothing(F.col(name), kind)
    if isinstance(kind, StructType):
        for field in kind:
            condition = condition | _is_nothing(F.col(f"{name}.{quoted(field.name)}"), field.dataType)
    return condition


def _is_nothing(value: Column, kind: DataType) -> Column:
    # Spark takes NaN for larger than any number: it would win for ever.
    return value.isNull() | F.isnan(value) if isinstance(kind, FloatType | DoubleType) else value.isNull()
