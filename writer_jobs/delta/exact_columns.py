"""Read columns and nested fields as text, and cast the text to their types without changing a value.

Spark's readers of CSV and JSON round decimals, cut a time from a date, read numbers as seconds since 1970, replace a
large number by the nearest that the type has, and read 200 as the byte -56. So these types are read as text, and
:func:`exact_cast` casts them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

#: Types whose values Spark's readers of CSV and JSON may change without an error.
INEXACT_TYPES: tuple[type[DataType], ...] = (
    ByteType,
    DecimalType,
    FloatType,
    DoubleType,
    DateType,
    TimestampType,
    TimestampNTZType,
)
_LONGEST_VALUE = 80

#: Function of a text, its type and its path that returns the value of the text.
TextCast = Callable[[Column, DataType, str], Column]


def as_text(target: DataType, texts: tuple[type[DataType], ...]) -> DataType:
    """Return a type in which ``string`` replaces some types, at every depth.

    Args:
        target: Type whose parts are replaced.
        texts: Types to replace.

    """
    if isinstance(target, StructType):
        types = ((field, as_text(field.dataType, texts)) for field in target)
        return StructType([StructField(field.name, kind, field.nullable, field.metadata) for field, kind in types])
    if isinstance(target, ArrayType):
        return ArrayType(as_text(target.elementType, texts), target.containsNull)
    if isinstance(target, MapType):
        return MapType(target.keyType, as_text(target.valueType, texts), target.valueContainsNull)
    return StringType() if isinstance(target, texts) else target


def from_text(value: Column, target: DataType, texts: tuple[type[DataType], ...], cast: TextCast, path: str) -> Column:
    """Return a column of the target type.

    Args:
        value: Column of the type that :func:`as_text` returns.
        target: Type of the returned column.
        texts: Types that are text in ``value``.
        cast: Returns the value of a text.
        path: Name of the column, which ``cast`` gets.

    """
    if not contains_type(target, texts):
        return value
    if isinstance(target, StructType):
        fields = [
            from_text(value.getField(field.name), field.dataType, texts, cast, f"{path}.{field.name}").alias(field.name)
            for field in target
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(target, ArrayType):
        element_type = target.elementType
        return F.transform(value, lambda item: from_text(item, element_type, texts, cast, f"{path}[]"))
    if isinstance(target, MapType):
        value_type = target.valueType
        return F.transform_values(value, lambda _, item: from_text(item, value_type, texts, cast, f"{path}[]"))
    return cast(value, target, path)


def misfit_sentence(text: Column, target: DataType, path: str) -> Column:
    """Return an error message for a text that is not exactly a value of its column's type."""
    return F.concat(
        F.lit(f"column {path}: the value '"),
        F.left(text, F.lit(_LONGEST_VALUE)),
        F.lit(f"' is not exactly a value of type {target.simpleString()}"),
    )


def contains_type(target: DataType, types: tuple[type[DataType], ...]) -> bool:
    """Return whether a type is, or contains, one of some types."""
    if isinstance(target, StructType):
        return any(contains_type(field.dataType, types) for field in target)
    if isinstance(target, ArrayType):
        return contains_type(target.elementType, types)
    if isinstance(target, MapType):
        return contains_type(target.valueType, types)
    return isinstance(target, types)
