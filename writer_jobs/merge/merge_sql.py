"""Columns and conditions of which merges of changes are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructField, StructType, VariantType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import holds, type_differences
from writer_jobs.merge.change_spec import DELETED

# By default they would lose what is less than a millisecond.
_WHOLE_MOMENTS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
#: Aliases of the source and of the table in a merge.
S, T = "__sluice_s", "__sluice_t"


def of(alias: str, name: str) -> Column:
    """Return a column of the source or of the table."""
    return F.col(f"{alias}.{quoted(name)}")


def all_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that all of these hold."""
    return reduce(and_, conditions, F.expr("true"))


def matched(names: Iterable[str], within: Column) -> Column:
    """Return the condition of a merge that these columns are equal, for the table's rows ``within``."""
    return all_of([within, *(of(T, name) == of(S, name) for name in names)])


def without_known(rows: DataFrame, table: DataFrame, keys: Sequence[str], is_known: Column) -> DataFrame:
    """Leave out rows of which a table has one with their keys, if a condition holds of both.

    Args:
        rows: some may have the same keys.
        table: all of its rows that may have these keys.
        keys: columns of both, with the same types.
        is_known: of the source and of the table.

    """
    near = table.join(rows.select(*map(quoted, keys)), list(keys), "left_semi")
    return rows.alias(S).join(near.alias(T), matched(keys, is_known), "left_anti")


def as_stored(rows: DataFrame, table: StructType) -> DataFrame:
    """Cast rows to the types of a table, fields by name, at every depth.

    Two values are compared as JSON, so the order of fields and the scale of numbers count.

    Args:
        rows: Some columns may not be in the table.
        table: Schema of the table.

    Returns:
        The columns of the rows. A column stays as it is if a cast could change a value, or if its type is wider.

    """
    stored = {field.name.lower(): _plain(field.dataType) for field in table}
    fields = []
    for field in rows.schema:
        row_type = _plain(field.dataType)
        kind = stored.get(field.name.lower(), row_type)
        is_wider = any(difference.is_wider for difference in type_differences(kind, row_type))
        fields.append(StructField(field.name, row_type if is_wider or not holds(kind, row_type) else kind))
    if all(field.dataType == _plain(rows.schema[field.name].dataType) for field in fields):
        return rows
    # Spark casts as an INSERT does: a number that is too large fails.
    return rows.to(StructType(fields))


def _plain(kind: DataType) -> DataType:
    """Return a type whose parts are nullable and have no metadata."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _plain(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType))
    return kind


def comparable(field: StructField, alias: str | None = None) -> Column:
    """Return a column of which two values can be compared and hashed; what has parts as JSON."""
    column = F.col(quoted(field.name)) if alias is None else of(alias, field.name)
    kind = field.dataType
    has_parts = not isinstance(kind, AtomicType) or isinstance(kind, VariantType)
    if (
        isinstance(kind, MapType)
        and isinstance(kind.valueType, AtomicType)
        and not isinstance(kind.valueType, VariantType)
    ):
        # Whatever the order of its entries.
        column = F.array_sort(F.map_entries(column))
    return F.to_json(F.struct(column), _WHOLE_MOMENTS) if has_parts else column


def content_hash(changes: DataFrame, columns: Sequence[str]) -> Column:
    """Return a hash of what a change says: that it deletes, or the values of these columns."""
    schema: StructType = changes.schema
    parts = [
        part
        for name in columns
        for value in (comparable(schema[name]),)
        # A hash passes over nulls, so that (1, null) and (null, 1) would have one.
        for part in (F.when(~F.col(DELETED), value), ~F.col(DELETED) & value.isNull())
    ]
    return F.xxhash64(F.col(DELETED), *parts)


def named(message: str, keys: Sequence[str], alias: str | None = None) -> Column:
    """Return a message that ends with a row's key."""
    parts: list[Column] = [F.lit(message)]
    for number, name in enumerate(keys):
        column = F.col(quoted(name)) if alias is None else of(alias, name)
        parts += [F.lit(f"{', ' if number else ''}{name}="), F.coalesce(column.cast("string"), F.lit("null"))]
    return F.concat(*parts)
