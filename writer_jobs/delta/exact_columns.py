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


def as_text(target: T.DataType, text_types: tuple[type[T.DataType], ...]) -> T.DataType:
    """Return the type with ``string`` in place of ``text_types``, at every depth except in map keys."""
    if isinstance(target, T.StructType):
        fields = ((field, as_text(field.dataType, text_types)) for field in target)
        return T.StructType(
            [T.StructField(field.name, new_type, field.nullable, field.metadata) for field, new_type in fields]
        )
    if isinstance(target, T.ArrayType):
        return T.ArrayType(as_text(target.elementType, text_types), target.containsNull)
    if isinstance(target, T.MapType):
        return T.MapType(target.keyType, as_text(target.valueType, text_types), target.valueContainsNull)
    return T.StringType() if isinstance(target, text_types) else target


def from_text(
    value: Column, target: T.DataType, text_types: tuple[type[T.DataType], ...], cast: TextCast, path: str
) -> Column:
    """Return a column of the target type; ``value`` has the type that :func:`as_text` returns for it."""
    if not contains_type(target, text_types):
        return value
    if isinstance(target, T.StructType):
        fields = [
            from_text(value.getField(field.name), field.dataType, text_types, cast, f"{path}.{field.name}").alias(
                field.name
            )
            for field in target
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(target, T.ArrayType):
        element_type = target.elementType
        return F.transform(value, lambda element: from_text(element, element_type, text_types, cast, f"{path}[]"))
    if isinstance(target, T.MapType):
        value_type = target.valueType
        return F.transform_values(value, lambda _, entry: from_text(entry, value_type, text_types, cast, f"{path}[]"))
    return cast(value, target, path)


def misfit_sentence(text: Column, target: T.DataType, path: str) -> Column:
    """Return an error message for a text that is not exactly a value of its column's type."""
    return F.concat(
        F.lit(f"column {path}: the value '"),
        F.left(text, F.lit(_LONGEST_VALUE)),
        F.lit(f"' is not exactly a value of type {target.simpleString()}"),
    )


def contains_type(target: T.DataType, types: tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is, or contains (map keys excepted), one of some types."""
    if isinstance(target, T.StructType):
        return any(contains_type(field.dataType, types) for field in target)
    if isinstance(target, T.ArrayType):
        return contains_type(target.elementType, types)
    if isinstance(target, T.MapType):
        return contains_type(target.valueType, types)
    return isinstance(target, types)
