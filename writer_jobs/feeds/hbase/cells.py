"""Rows as HBase reads them: of each column the newest value that no delete hides.

What a reader sees follows from the cells alone, in whatever order they were written (HBase without major compactions,
and with versions enough):

- A Put is hidden by a DeleteColumn of its column, or a DeleteFamily of its family, with its timestamp or a later one,
  and by a Delete of its column, or a DeleteFamilyVersion of its family, with its very timestamp.
- Of the Puts of a column that are not hidden the one with the largest timestamp is seen, so that a delete of one
  version brings back the one before.
- A row is there if a value of it is seen.

Source: HBase's reference guide, "Versions", and ``ScanDeleteTracker``: at one timestamp deletes come before Puts,
whichever was written first.

So all cells are remembered, in a table beside; the rows that a batch touches are made anew from theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.side_locations import CELLS_SUFFIX
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import ChangesError
from writer_jobs.feeds.hbase.decode import (
    DELETE,
    DELETE_COLUMN,
    DELETE_FAMILY,
    DELETE_FAMILY_VERSION,
    FAMILY,
    PUT,
    QUALIFIER,
    TYPE,
    VALUE,
    WRITTEN,
)
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.merge.batch import AMBIGUOUS, ChangeBatch, fold
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.merge_sql import S, T, all_of, comparable, match_on, qualified, with_keys
from writer_jobs.merge.side_table import SideTableLayout
from writer_jobs.writer import LockedDeltaWriter

_MOST_COLUMNS = 2000
_GONE, _VALUES, _SEEN, _COLUMN = "__sluice_gone", "__sluice_values", "__sluice_seen", "__sluice_column"
_OLD, _NEWEST = "__sluice_old", "__sluice_newest"
_DELETED, _COLUMN_UP_TO = "__sluice_deleted_version", "__sluice_deleted_column_up_to"
_FAMILY_UP_TO, _FAMILY_AT = "__sluice_deleted_family_up_to", "__sluice_deleted_family_at"
#: The cells of a table, as they came.
CELLS = SideTableLayout(
    CELLS_SUFFIX,
    (
        StructField(FAMILY, StringType()),
        StructField(QUALIFIER, StringType()),
        StructField(TYPE, StringType()),
        StructField(VALUE, BinaryType()),
        StructField(WRITTEN, LongType()),
    ),
    holds_all_rows=True,
)


class CellRows:
    """How cells become rows.

    Args:
        spec: of the row key's columns.
        mapping: of the other columns.

    """

    sequence: str | None = None
    tie_breaker = WRITTEN
    side_table = CELLS

    def __init__(self, spec: ChangeSpec, mapping: HBaseMapping) -> None:
        self._spec = spec
        self._mapping = mapping
        self._keys = [quoted(name) for name in spec.keys]
        #: Cells of which one is left: HBase has one of each.
        self.group_columns = (*spec.keys, FAMILY, QUALIFIER, SEQ, TYPE)

    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns that the table gets of a batch: those of the mapping, and of new qualifiers.

        Raises:
            ChangesError: two columns of HBase would be one, or they are too many for a table.

        """
        puts = batch.rows.where(F.col(TYPE) == PUT).select(FAMILY, QUALIFIER).distinct()
        column = self._mapping.column_of(F.col(FAMILY), F.col(QUALIFIER)).alias(_COLUMN)
        found = puts.select(FAMILY, QUALIFIER, column).limit(_MOST_COLUMNS + 1).collect()
        if len(found) > _MOST_COLUMNS:
            raise self._spec.misfit(f"the batch has more than {_MOST_COLUMNS} columns: qualifiers seem to be data")
        fields = {name.lower(): batch.rows.schema[name] for name in self._spec.keys}
        for each in self._mapping.targets:
            fields[each.column.lower()] = StructField(each.column, each.type.spark)
        source: dict[str, str] = {}
        for row in sorted(row for row in found if row[_COLUMN] is not None):
            name, cell = row[_COLUMN], f"{row[FAMILY]}:{row[QUALIFIER]}"
            key = name.lower()
            if source.setdefault(key, cell) != cell or (key in fields and cell not in self._mapping.columns):
                raise self._one_of_two(cell, name)
            fields[key] = StructField(name, self._mapping.type_of(name).spark, metadata={"comment": cell})
        return StructType(list(fields.values()))

    def _one_of_two(self, cell: str, column: str) -> ChangesError:
        return self._spec.misfit(f"{cell} would be the column {column}, which is another one: name it in the mapping")

    def fields(self, sequence: DataType) -> list[StructField]:  # noqa: ARG002 (as others')
        """Return nothing: rows of cells have no sequence."""
        return []

    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Make sure that each column of the table is of one column of HBase, which is in the column's comment."""
        known = {field.name.lower(): field.metadata.get("comment") for field in table}
        for field in row:
            cell, before = field.metadata.get("comment"), known.get(field.name.lower())
            if cell is not None and before is not None and before != cell:
                raise self._one_of_two(cell, field.name)

    def side_rows(self, batch: ChangeBatch) -> DataFrame | None:
        """Return all of it."""
        return batch.rows

    def source(self, rows: DataFrame, read_table: Callable[[], DataFrame], remembered: DataFrame | None) -> DataFrame:
        """Return the rows that the batch touches as they are now, and which of them are gone."""
        touched = rows.select(*self._keys).distinct()
        cells = rows.drop(DELETED)
        if remembered is not None:
            cells = cells.unionByName(remembered.join(touched, list(self._spec.keys), "left_semi"))
        seen = _seen(self._one_each(cells), self._keys)
        column = F.lower(self._mapping.column_of(F.col(FAMILY), F.col(QUALIFIER)))
        newest = (
            seen.groupBy(*self._keys, FAMILY, QUALIFIER)
            .agg(F.max_by(F.when(F.col(_SEEN), F.col(VALUE)), F.when(F.col(_SEEN), F.col(SEQ))).alias(VALUE))
            .withColumn(_COLUMN, F.when(F.col(VALUE).isNotNull(), column))
        )
        entry = F.when(F.col(_COLUMN).isNotNull(), F.struct(_COLUMN, VALUE))
        row = newest.groupBy(*self._keys).agg(
            (~F.bool_or(F.col(VALUE).isNotNull())).alias(_GONE),
            F.map_from_entries(F.collect_list(entry)).alias(_VALUES),
        )
        others = [name for name in read_table().columns if name.lower() not in {key.lower() for key in self._spec.keys}]
        return row.select(*self._keys, *(self._value(name).alias(name) for name in others), _GONE)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table, whose rows that matter are ``within``."""
        gone = qualified(S, _GONE)
        fields = [field for field in source.schema if field.name != _GONE]
        same = all_of(comparable(field, S).eqNullSafe(comparable(field, T)) for field in fields)
        values = {quoted(field.name): qualified(S, field.name) for field in fields}
        return (
            writer.merge(source.alias(S), match_on(self._spec.keys, within), alias=T)
            .whenMatchedDelete(gone)
            .whenMatchedUpdate(~gone & ~same, values)
            .whenNotMatchedInsert(~gone, values)
        )

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:  # noqa: ARG002 (as RowHistory's)
        """Return how many of the rows that a batch touches are as they were."""
        return max(0, keys - changed)

    def _one_each(self, cells: DataFrame) -> DataFrame:
        """Fold repetitions of a cell into one, and fail if they are not that.

        A row's cells are in one task from here on, in the order that :func:`_seen` needs: one shuffle, one
        sort.
        """
        cells = cells.withColumn(DELETED, F.expr("false")).repartition(*self._keys)
        message = with_keys("two cells have one timestamp and different values: ", self._spec.keys)
        once = F.when(F.col(AMBIGUOUS), F.raise_error(message).cast("string")).otherwise(F.col(TYPE))
        return fold(cells, self.group_columns, self.tie_breaker).withColumn(TYPE, once).drop(AMBIGUOUS, DELETED)

    def _value(self, name: str) -> Column:
        """Return the value of a column of the table.

        It was decoded when it came. If it cannot be now, the mapping says something else than it did then.
        """
        value = F.col(_VALUES)[name.lower()]
        kind = self._mapping.type_of(name)
        found = kind.decoded(value)
        message = with_keys(f"a value of {name} that came before does not fit the mapping's type: ", self._spec.keys)
        return F.when(value.isNotNull() & found.isNull(), F.raise_error(message).cast(kind.spark)).otherwise(found)


def without_expired(cells: DataFrame, keys: Sequence[str], old: Column) -> DataFrame:
    """Return cells without those that no reader can see again.

    Hidden cells are dropped; the delete that hides them is dropped no sooner. Older versions, which a delete of the
    newer one could bring back, and deletes, which could hide a late Put, are dropped when they are old.

    Args:
        cells: Each cell once, with ``SEQ``.
        keys: Columns of the row key.
        old: Condition that a cell is old.

    """
    names = list(map(quoted, keys))
    cells = _seen(cells.withColumn(_OLD, old), names)
    newest = F.max(F.when(F.col(_SEEN), F.col(SEQ))).over(Window.partitionBy(*names, FAMILY, QUALIFIER))
    is_put = F.col(TYPE) == PUT
    is_kept_put = F.col(_SEEN) & (~F.col(_OLD) | (F.col(SEQ) == F.col(_NEWEST)))
    return cells.withColumn(_NEWEST, newest).where(F.when(is_put, is_kept_put).otherwise(~F.col(_OLD)))


def _seen(cells: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add ``_SEEN``: whether a cell is a Put that nothing hides. ``keys`` are quoted."""

    def at(kind: str) -> Column:
        return F.when(F.col(TYPE) == kind, F.col(SEQ))

    # From the narrowest to the widest, each a prefix of the one before: sorted once.
    of_version = Window.partitionBy(*keys, FAMILY, QUALIFIER, SEQ)
    of_column = Window.partitionBy(*keys, FAMILY, QUALIFIER)
    of_family = Window.partitionBy(*keys, FAMILY)
    hidden = (
        F.col(_DELETED)
        | F.coalesce(F.col(SEQ) <= F.col(_COLUMN_UP_TO), F.expr("false"))
        | F.coalesce(F.col(SEQ) <= F.col(_FAMILY_UP_TO), F.expr("false"))
        | F.array_contains(_FAMILY_AT, F.col(SEQ))
    )
    return (
        cells.withColumn(_DELETED, F.bool_or(F.col(TYPE) == DELETE).over(of_version))
        .withColumn(_COLUMN_UP_TO, F.max(at(DELETE_COLUMN)).over(of_column))
        .withColumn(_FAMILY_UP_TO, F.max(at(DELETE_FAMILY)).over(of_family))
        .withColumn(_FAMILY_AT, F.collect_set(at(DELETE_FAMILY_VERSION)).over(of_family))
        .withColumn(_SEEN, (F.col(TYPE) == PUT) & ~hidden)
        .drop(_DELETED, _COLUMN_UP_TO, _FAMILY_UP_TO, _FAMILY_AT)
    )
