"""Compute rows from cells as HBase reads them: the newest value of each column that no delete hides.

The cells alone determine the visible values. The order of the writes does not matter, for an HBase table that keeps
enough versions and runs no major compactions:

- A DeleteColumn of a Put's column and a DeleteFamily of its family hide the Put if their timestamp is the same or
  later. A Delete of its column and a DeleteFamilyVersion of its family hide it if their timestamp is the same.
- A reader sees the visible Put of a column with the largest timestamp, so a delete of one version uncovers the version
  before it.
- In a family with one version (``VERSIONS => 1``), only the newest Put of a column counts, also if a delete hides it.
  So a delete uncovers no older version.
- A row exists if a reader sees one of its values.

Source: HBase's reference guide, "Versions", and ``ScanDeleteTracker``: at one timestamp a delete hides a Put, even one
that was written later. HBase does not count a hidden Put as a version, so with ``VERSIONS => 1`` a delete uncovers an
older Put that no flush or compaction has removed yet (HBASE-21596). The result depends on the time of the flush. The
rule above gives the result for a flush before each delete; ``NewVersionBehaviorTracker`` counts hidden Puts, too.

So a side table stores all cells. The rows that a batch touches are computed from all of their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

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
    WRITE_ORDER,
)
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.maintenance.policy import SINGLE_VERSION_FAMILIES
from writer_jobs.merge.batch import AMBIGUOUS, ChangeBatch, fold
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.merge_sql import S, T, all_of, comparable, match_on, qualified, with_keys
from writer_jobs.merge.side_table import SideTableLayout
from writer_jobs.merge.table_model import TableModel
from writer_jobs.writer import LockedDeltaWriter

_MAX_COLUMNS = 2000
_DELETED_ROW, _VALUES, _VISIBLE, _COLUMN = "__sluice_gone", "__sluice_values", "__sluice_seen", "__sluice_column"
_OLD, _NEWEST, _NEWEST_PUT = "__sluice_old", "__sluice_newest", "__sluice_newest_put"
_HIDDEN, _STILL_HIDDEN = "__sluice_hidden", "__sluice_still_hidden"
_DELETED, _COLUMN_UP_TO = "__sluice_deleted_version", "__sluice_deleted_column_up_to"
_FAMILY_UP_TO, _FAMILY_AT = "__sluice_deleted_family_up_to", "__sluice_deleted_family_at"
#: The side table with all cells of a table.
CELLS = SideTableLayout(
    CELLS_SUFFIX,
    (
        StructField(FAMILY, StringType()),
        StructField(QUALIFIER, StringType()),
        StructField(TYPE, StringType()),
        StructField(VALUE, BinaryType()),
        StructField(WRITE_ORDER, LongType()),
    ),
    holds_all_rows=True,
)


class CellRows(TableModel):
    """The table model of cells. The keys of ``spec`` are the row key's columns."""

    tie_breaker = WRITE_ORDER
    side_table = CELLS

    def __init__(self, spec: ChangeSpec, mapping: HBaseMapping) -> None:
        self._spec = spec
        self._mapping = mapping
        self._keys = [quoted(name) for name in spec.keys]
        families = mapping.single_version_families
        self.side_properties = {SINGLE_VERSION_FAMILIES: ",".join(families) or None}
        #: Columns that identify a cell. HBase stores one cell for each.
        self.group_columns = (*spec.keys, FAMILY, QUALIFIER, SEQ, TYPE)

    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns of the table for a batch: those of the mapping, and those of new qualifiers.

        Raises:
            ChangesError: Two columns of HBase have one column in the table, or the batch has too many columns.

        """
        puts = batch.rows.where(F.col(TYPE) == PUT).select(FAMILY, QUALIFIER).distinct()
        column = self._mapping.column_of(F.col(FAMILY), F.col(QUALIFIER)).alias(_COLUMN)
        qualifiers = puts.select(FAMILY, QUALIFIER, column).limit(_MAX_COLUMNS + 1).collect()
        if len(qualifiers) > _MAX_COLUMNS:
            raise self._spec.misfit(
                f"the batch has more than {_MAX_COLUMNS} HBase columns: a qualifier must be a name, not data"
            )
        fields = {name.lower(): batch.rows.schema[name] for name in self._spec.keys}
        for target in self._mapping.targets:
            fields[target.column.lower()] = StructField(target.column, target.type.spark_type)
        hbase_columns: dict[str, str] = {}
        for row in sorted(row for row in qualifiers if row[_COLUMN] is not None):
            name, hbase_column = row[_COLUMN], f"{row[FAMILY]}:{row[QUALIFIER]}"
            key, is_mapped = name.lower(), hbase_column in self._mapping.columns
            if hbase_columns.setdefault(key, hbase_column) != hbase_column or (key in fields and not is_mapped):
                raise self._duplicate_column(hbase_column, name)
            fields[key] = StructField(name, self._mapping.type_of(name).spark_type, metadata={"comment": hbase_column})
        return StructType(list(fields.values()))

    def _duplicate_column(self, hbase_column: str, column: str) -> ChangesError:
        return self._spec.misfit(
            f"{hbase_column} would be the column {column}, which has other values: map {hbase_column} to another column"
        )

    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Make sure that no column of the table has the values of two columns of HBase.

        The comment of a table's column names its column of HBase.
        """
        comments = {field.name.lower(): field.metadata.get("comment") for field in table}
        for field in row:
            hbase_column, stored_column = field.metadata.get("comment"), comments.get(field.name.lower())
            if hbase_column is not None and stored_column is not None and stored_column != hbase_column:
                raise self._duplicate_column(hbase_column, field.name)

    def side_rows(self, batch: ChangeBatch) -> DataFrame | None:
        """Return all rows of the batch for the side table."""
        return batch.rows

    def source(
        self,
        rows: DataFrame,
        read_table: Callable[[], DataFrame],
        side_rows: DataFrame | None,
        sequences: KeyBounds,  # noqa: ARG002 (as NewestRows)
        are_newest: Callable[[], bool],  # noqa: ARG002
    ) -> DataFrame:
        """Return the rows that the batch touches, with their new values and whether they are deleted."""
        touched_keys = rows.select(*self._keys).distinct()
        cells = rows.drop(DELETED)
        if side_rows is not None:
            cells = cells.unionByName(side_rows.join(touched_keys, list(self._spec.keys), "left_semi"))
        cells = self._fold_repetitions(cells)
        cells = _with_visibility(cells, self._keys, self._mapping.single_version_families)
        column = F.lower(self._mapping.column_of(F.col(FAMILY), F.col(QUALIFIER)))
        newest = (
            cells.groupBy(*self._keys, FAMILY, QUALIFIER)
            .agg(F.max_by(F.when(F.col(_VISIBLE), F.col(VALUE)), F.when(F.col(_VISIBLE), F.col(SEQ))).alias(VALUE))
            .withColumn(_COLUMN, F.when(F.col(VALUE).isNotNull(), column))
        )
        entry = F.when(F.col(_COLUMN).isNotNull(), F.struct(_COLUMN, VALUE))
        row = newest.groupBy(*self._keys).agg(
            (~F.bool_or(F.col(VALUE).isNotNull())).alias(_DELETED_ROW),
            F.map_from_entries(F.collect_list(entry)).alias(_VALUES),
        )
        keys = {key.lower() for key in self._spec.keys}
        values = [self._decoded_value(name).alias(name) for name in read_table().columns if name.lower() not in keys]
        return row.select(*self._keys, *values, _DELETED_ROW)

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the MERGE of :meth:`source` into the table's rows that match ``within``."""
        is_deleted = qualified(S, _DELETED_ROW)
        fields = [field for field in source.schema if field.name != _DELETED_ROW]
        is_same = all_of(comparable(field, S).eqNullSafe(comparable(field, T)) for field in fields)
        values = {quoted(field.name): qualified(S, field.name) for field in fields}
        return (
            writer.merge(source.alias(S), match_on(self._spec.keys, within), alias=T)
            .whenMatchedDelete(is_deleted)
            .whenMatchedUpdate(~is_deleted & ~is_same, values)
            .whenNotMatchedInsert(~is_deleted, values)
        )

    def _fold_repetitions(self, cells: DataFrame) -> DataFrame:
        """Fold repetitions of a cell into one cell. The query fails if repetitions have different values and no order.

        The cells of a row come into one task, in the order that :func:`_with_visibility` needs. So one shuffle and one
        sort are enough.
        """
        cells = cells.withColumn(DELETED, F.expr("false")).repartition(*self._keys)
        message = with_keys("two cells have one timestamp and different values: ", self._spec.keys)
        checked_type = F.when(F.col(AMBIGUOUS), F.raise_error(message).cast("string")).otherwise(F.col(TYPE))
        return fold(cells, self.group_columns, self.tie_breaker).withColumn(TYPE, checked_type).drop(AMBIGUOUS, DELETED)

    def _decoded_value(self, name: str) -> Column:
        """Return the value of a column of the table, decoded from its cell.

        The value could be decoded when its cell arrived. If decoding fails now, the mapping has changed since then.
        """
        value = F.col(_VALUES)[name.lower()]
        value_type = self._mapping.type_of(name)
        decoded_value = value_type.decode(value)
        message = with_keys(f"a stored value of {name} does not fit the mapping's type: ", self._spec.keys)
        failure = F.raise_error(message).cast(value_type.spark_type)
        return F.when(value.isNotNull() & decoded_value.isNull(), failure).otherwise(decoded_value)


def without_expired(
    cells: DataFrame, keys: Sequence[str], is_old: Column, single_version_families: Sequence[str]
) -> DataFrame:
    """Drop the cells that no reader can see again.

    A hidden Put is dropped at once; the delete that hides it is dropped later. Two kinds of cells are dropped when they
    are old (``is_old``): an older version, which a delete of the newer version could uncover, and a delete, which could
    hide a late Put. ``cells`` has each cell once, with ``SEQ``.

    In a family with one version an older version is dropped at once. The newest Put is kept as long as a delete that
    hides it, because it replaces an older Put that arrives late.
    """
    names = list(map(quoted, keys))
    cells = _with_visibility(cells.withColumn(_OLD, is_old), names, single_version_families)
    newest = F.max(F.when(F.col(_VISIBLE), F.col(SEQ))).over(Window.partitionBy(*names, FAMILY, QUALIFIER))
    is_put = F.col(TYPE) == PUT
    is_needed_put = F.col(_VISIBLE) & (~F.col(_OLD) | (F.col(SEQ) == F.col(_NEWEST)))
    if single_version_families:
        cells = _with_hidden(cells, names, _STILL_HIDDEN, ~F.col(_OLD))
        is_newest_put = F.col(FAMILY).isin(*single_version_families) & (F.col(SEQ) == F.col(_NEWEST_PUT))
        is_needed_put = is_needed_put | (is_newest_put & F.col(_STILL_HIDDEN))
    return cells.withColumn(_NEWEST, newest).where(F.when(is_put, is_needed_put).otherwise(~F.col(_OLD)))


def _with_visibility(cells: DataFrame, keys: Sequence[str], single_version_families: Sequence[str]) -> DataFrame:
    """Add ``_VISIBLE``: whether a cell is a Put that a reader sees, or would see without newer Puts of its column.

    ``keys`` are quoted. In the families with one version, only the newest Put of a column is visible. ``_NEWEST_PUT``
    is then the timestamp of this Put.
    """
    cells = _with_hidden(cells, keys, _HIDDEN, F.expr("true"))
    is_visible = (F.col(TYPE) == PUT) & ~F.col(_HIDDEN)
    if single_version_families:
        newest_put = F.max(F.when(F.col(TYPE) == PUT, F.col(SEQ))).over(Window.partitionBy(*keys, FAMILY, QUALIFIER))
        cells = cells.withColumn(_NEWEST_PUT, newest_put)
        is_visible &= ~F.col(FAMILY).isin(*single_version_families) | (F.col(SEQ) == F.col(_NEWEST_PUT))
    return cells.withColumn(_VISIBLE, is_visible)


def _with_hidden(cells: DataFrame, keys: Sequence[str], name: str, is_counted: Column) -> DataFrame:
    """Add the column ``name``: whether a delete that ``is_counted`` hides Puts of the cell's column and timestamp."""

    def timestamp_of(cell_type: str) -> Column:
        return F.when((F.col(TYPE) == cell_type) & is_counted, F.col(SEQ))

    # From the narrowest window to the widest. Each is a prefix of the previous one, so Spark sorts once.
    version_window = Window.partitionBy(*keys, FAMILY, QUALIFIER, SEQ)
    column_window = Window.partitionBy(*keys, FAMILY, QUALIFIER)
    family_window = Window.partitionBy(*keys, FAMILY)
    is_hidden = (
        F.col(_DELETED)
        | F.coalesce(F.col(SEQ) <= F.col(_COLUMN_UP_TO), F.expr("false"))
        | F.coalesce(F.col(SEQ) <= F.col(_FAMILY_UP_TO), F.expr("false"))
        | F.array_contains(_FAMILY_AT, F.col(SEQ))
    )
    return (
        cells.withColumn(_DELETED, F.bool_or((F.col(TYPE) == DELETE) & is_counted).over(version_window))
        .withColumn(_COLUMN_UP_TO, F.max(timestamp_of(DELETE_COLUMN)).over(column_window))
        .withColumn(_FAMILY_UP_TO, F.max(timestamp_of(DELETE_FAMILY)).over(family_window))
        .withColumn(_FAMILY_AT, F.collect_set(timestamp_of(DELETE_FAMILY_VERSION)).over(family_window))
        .withColumn(name, is_hidden)
        .drop(_DELETED, _COLUMN_UP_TO, _FAMILY_UP_TO, _FAMILY_AT)
    )
