"""Read columns and nested fields as text, and cast the text to their types without changing a value.

Spark's readers of CSV and JSON round decimals, cut a time from a date, read numbers as seconds since 1970, replace a
large number by the nearest that the type has, and read 200 as the byte -56. So these types are read as text, and
:func:`exact_cast` casts them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

#: Types whose values Spark's readers of CSV and JSON may change without an error.
INEXACT_TYPES: tuple[type[T.DataType], ...] = (
    T.ByteType,
    T.DecimalType,
    T.FloatType,
    T.DoubleType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
)
_LONGEST_VALUE = 80

#: Function of a text, its type and its path that returns the value of the text.
TextCast = Callable[[Column, T.DataType, str], Column]


def as_text(target: T.DataType, texts: tuple[type[T.DataType], ...]) -> T.DataType:
    """Return a type in which ``string`` replaces some types, at every depth."""
    if isinstance(target, T.StructType):
        types = ((field, as_text(field.dataType, texts)) for field in target)
        return T.StructType([T.StructField(field.name, kind, field.nullable, field.metadata) for field, kind in types])
    if isinstance(target, T.ArrayType):
        return T.ArrayType(as_text(target.elementType, texts), target.containsNull)
    if isinstance(target, T.MapType):
        return T.MapType(target.keyType, as_text(target.valueType, texts), target.valueContainsNull)
    return T.StringType() if isinstance(target, texts) else target


def from_text(
    value: Column, target: T.DataType, texts: tuple[type[T.DataType], ...], cast: TextCast, path: str
) -> Column:
    """Return a column of the target type; ``value`` has the type that :func:`as_text` returns for ``texts``."""
    if not contains_type(target, texts):
        return value
    if isinstance(target, T.StructType):
        fields = [
            from_text(value.getField(field.name), field.dataType, texts, cast, f"{path}.{field.name}").alias(field.name)
            for field in target
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(target, T.ArrayType):
        element_type = target.elementType
        return F.transform(value, lambda item: from_text(item, element_type, texts, cast, f"{path}[]"))
    if isinstance(target, T.MapType):
        value_type = target.valueType
        return F.transform_values(value, lambda _, item: from_text(item, value_type, texts, cast, f"{path}[]"))
    return cast(value, target, path)


def misfit_sentence(text: Column, target: T.DataType, path: str) -> Column:
    """Return an error message for a text that is not exactly a value of its column's type."""
    return F.concat(
        F.lit(f"column {path}: the value '"),
        F.left(text, F.lit(_LONGEST_VALUE)),
        F.lit(f"' is not exactly a value of type {target.simpleString()}"),
    )


def contains_type(target: T.DataType, types: tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is, or contains, one of some types."""
    if isinstance(target, T.StructType):
        return any(contains_type(field.dataType, types) for field in target)
    if isinstance(target, T.ArrayType):
        return contains_type(target.elementType, types)
    if isinstance(target, T.MapType):
        return contains_type(target.valueType, types)
    return isinstance(target, types)
