"""Cast columns that were read as text exactly, nested fields, too.

Spark's readers of CSV and JSON round decimals, cut a time from a date, take numbers for seconds since 1970, large
numbers for the nearest that a type has, and 200 for a byte of -56. So these types are read as text, and cast by
:func:`exact_cast`.
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

#: Types that Spark's readers of CSV and JSON may change in silence.
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

#: Returns a value for a text; given the text, its type and its path.
Leaf = Callable[[Column, DataType, str], Column]


def as_text(target: DataType, texts: tuple[type[DataType], ...]) -> DataType:
    """Return a type with string in place of some types, nested ones too.

    Args:
        target: the type.
        texts: the types to replace.

    """
    if isinstance(target, StructType):
        fields = ((field, as_text(field.dataType, texts)) for field in target)
        return StructType([StructField(field.name, kind, field.nullable, field.metadata) for field, kind in fields])
    if isinstance(target, ArrayType):
        return ArrayType(as_text(target.elementType, texts), target.containsNull)
    if isinstance(target, MapType):
        return MapType(target.keyType, as_text(target.valueType, texts), target.valueContainsNull)
    return StringType() if isinstance(target, texts) else target


def from_text(value: Column, target: DataType, texts: tuple[type[DataType], ...], cast: Leaf, path: str) -> Column:
    """Return a column with the types of a target.

    Args:
        value: a column of the type that :func:`as_text` returns.
        target: the type.
        texts: the types that are text in ``value``.
        cast: returns the value of a text.
        path: name of the column, for ``cast``.

    """
    if not has_any(target, texts):
        return value
    if isinstance(target, StructType):
        fields = [
            from_text(value.getField(field.name), field.dataType, texts, cast, f"{path}.{field.name}").alias(field.name)
            for field in target
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(target, ArrayType):
        element = target.elementType
        return F.transform(value, lambda item: from_text(item, element, texts, cast, f"{path}[]"))
    if isinstance(target, MapType):
        kind = target.valueType
        return F.transform_values(value, lambda _, item: from_text(item, kind, texts, cast, f"{path}[]"))
    return cast(value, target, path)


def misfit_sentence(text: Column, target: DataType, path: str) -> Column:
    """Return a sentence that names a value, its column and its type."""
    return F.concat(
        F.lit(f"column {path}: the value '"),
        F.left(text, F.lit(_LONGEST_VALUE)),
        F.lit(f"' is not exactly a value of type {target.simpleString()}"),
    )


def has_any(target: DataType, types: tuple[type[DataType], ...]) -> bool:
    """Return whether a type is one of some types, or has one in it."""
    if isinstance(target, StructType):
        return any(has_any(field.dataType, types) for field in target)
    if isinstance(target, ArrayType):
        return has_any(target.elementType, types)
    if isinstance(target, MapType):
        return has_any(target.valueType, types)
    return isinstance(target, types)
