"""Columns and conditions of the MERGE statements that apply changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructField, StructType, VariantType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import holds, type_differences
from writer_jobs.merge.change_spec import DELETED, SEQ

#: Options of JSON that keep each value. Spark's default formats cut timestamps to milliseconds.
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
#: Aliases of the source and of the table in a merge.
S, T = "__sluice_s", "__sluice_t"


def qualified(alias: str, name: str) -> Column:
    """Return a column of the source or of the table, by its alias."""
    return F.col(f"{alias}.{quoted(name)}")


def all_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that all conditions hold."""
    return reduce(and_, conditions, F.expr("true"))


def any_of(conditions: Iterable[Column]) -> Column:
    """Return the condition that at least one condition holds; null counts as false."""
    # A chain of many operators would be too deep for Spark.
    return F.coalesce(F.array_contains(F.array(*conditions), True), F.expr("false"))  # noqa: FBT003 (the value)


def match_on(names: Iterable[str], within: Column) -> Column:
    """Return a merge condition: the columns are equal in source and table, and ``within`` is true."""
    return all_of([within, *(qualified(T, name) == qualified(S, name) for name in names)])


def without_matches(rows: DataFrame, table: DataFrame, keys: Sequence[str], condition: Column) -> DataFrame:
    """Drop each row if the table has a row with the same keys, and a condition on ``S`` and ``T`` holds for the two.

    Several rows may have the same keys. ``table`` has at least all rows of the table that may have these keys, and the
    key columns of both have the same types.
    """
    candidates = table.join(rows.select(*map(quoted, keys)), list(keys), "left_semi")
    return rows.alias(S).join(candidates.alias(T), match_on(keys, condition), "left_anti")


def as_stored(rows: DataFrame, table: StructType) -> DataFrame:
    """Cast rows to the types of a table. Fields are matched by name, at every depth.

    Nested values are compared as JSON, so the order of their fields and the scale of their numbers count. A column
    keeps its type if the table lacks it, if a cast could change a value, or if its type is wider.
    """
    table_types = {field.name.lower(): _nullable(field.dataType) for field in table}
    fields = []
    for field in rows.schema:
        row_type = _nullable(field.dataType)
        table_type = table_types.get(field.name.lower(), row_type)
        is_wider = any(difference.is_wider for difference in type_differences(table_type, row_type))
        is_cast = not is_wider and holds(table_type, row_type)
        fields.append(StructField(field.name, table_type if is_cast else row_type))
    if all(field.dataType == _nullable(rows.schema[field.name].dataType) for field in fields):
        return rows
    # Spark casts as for an INSERT: a number that is too large fails.
    return rows.to(StructType(fields))


def _nullable(data_type: DataType) -> DataType:
    """Return a type whose nested fields are nullable and have no metadata."""
    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in data_type])
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
    return data_type


def comparable(field: StructField, alias: str | None = None) -> Column:
    """Return a column whose values can be compared and hashed; see :func:`comparable_value`."""
    return comparable_value(field, F.col(quoted(field.name)) if alias is None else qualified(alias, field.name))


def comparable_value(field: StructField, column: Column) -> Column:
    """Return a value of a field that can be compared and hashed: a nested value or a variant as JSON."""
    if _is_comparable(field.dataType):
        return column
    if isinstance(field.dataType, MapType) and _is_comparable(field.dataType.valueType):
        # The order of entries does not count.
        column = F.array_sort(F.map_entries(column))
    return F.to_json(F.struct(column), JSON_OPTIONS)


def _is_comparable(data_type: DataType) -> bool:
    return isinstance(data_type, AtomicType) and not isinstance(data_type, VariantType)


def content_hash(changes: DataFrame, columns: Sequence[str]) -> Column:
    """Return a hash of a change's content: whether it is a delete, and if not, its values in these columns."""
    schema: StructType = changes.schema
    values = [comparable(schema[name]) for name in columns]
    # xxhash64 skips nulls: without the flags, (1, null) and (null, 1) would have one hash.
    flagged_values = [
        part for value in values for part in (F.when(~F.col(DELETED), value), ~F.col(DELETED) & value.isNull())
    ]
    return F.xxhash64(F.col(DELETED), *flagged_values)


def with_keys(message: str, keys: Sequence[str], alias: str | None = None) -> Column:
    """Return a message followed by the row's keys, such as ``message: id=1, region=null``."""
    parts: list[Column] = [F.lit(message)]
    for number, name in enumerate(keys):
        column = F.col(quoted(name)) if alias is None else qualified(alias, name)
        parts += [F.lit(f"{', ' if number else ''}{name}="), F.coalesce(column.cast("string"), F.lit("null"))]
    return F.concat(*parts)


def fail_where(condition: Column, rows: DataFrame, message: str, keys: Sequence[str]) -> DataFrame:
    """Make ``SEQ`` of the rows that match a condition fail when it is read, with a message and the row's keys."""
    error = F.raise_error(with_keys(message, keys)).cast(rows.schema[SEQ].dataType)
    return rows.withColumn(SEQ, F.when(condition, error).otherwise(F.col(SEQ)))
