"""Decode bytes of HBase as values of a table's columns: the formats of ``Bytes.toBytes``, and values written as text.

Source: ``org.apache.hadoop.hbase.util.Bytes``: integers are big-endian two's complement; floats are their IEEE 754
bits; a boolean is one byte, 0 for false; a decimal is its scale in four bytes, then its unscaled value.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.exact_cast import MOST_DIGITS, exact_cast
from writer_jobs.errors import MappingError
from writer_jobs.feeds.message_values import integer_text
from writer_jobs.feeds.unscaled_decimals import decimal_text

_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_SCALE_BYTES = 4
_TEXT = "text:"
#: Types of values in a mapping; ``decimal(p,s)`` is also a type.
TYPES = (
    "string", "binary", "boolean", "byte", "short", "int", "long", "float", "double", "timestamp-millis",
    "text:boolean", "text:int", "text:long", "text:double", "text:date", "text:timestamp", "text:decimal(p,s)",
)  # fmt: skip
_TEXT_TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
}
# Spark's type and the number of bytes.
_INTEGER_TYPES: dict[str, tuple[T.DataType, int]] = {
    "byte": (T.ByteType(), 1),
    "short": (T.ShortType(), 2),
    "int": (T.IntegerType(), 4),
    "long": (T.LongType(), 8),
}
#: Types of a row key's parts. With these types different bytes decode to different values.
KEY_TYPES = (
    "string", "binary", "byte", "short", "int", "long", "timestamp-millis", "text:int", "text:long", "text:date",
)  # fmt: skip


class ValueType:
    """A value type of the mapping: its name, the Spark type of the column, and the decoder of HBase's bytes.

    Raises:
        MappingError: The name is not one of :data:`TYPES`.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.spark_type, self._decode = _type_of(name)

    def decode_key(self, value: Column) -> Column:
        """Decode a part of a row key; null for bytes that are not of this type, or not the usual text of their value.

        ``007`` is not the usual text of 7. If it were decoded, two row keys would have one value.
        """
        decoded_value = self._decode(value)
        if not self.name.startswith(_TEXT):
            return decoded_value
        return F.when(decoded_value.cast("string").cast("binary") == value, decoded_value)

    def decode(self, value: Column) -> Column:
        """Decode bytes; null if they are null or are not of this type."""
        return self._decode(value)


def _type_of(name: str) -> tuple[T.DataType, Callable[[Column], Column]]:
    if name.startswith(_TEXT):
        data_type = _TEXT_TYPES.get(name.removeprefix(_TEXT)) or _decimal_type(name.removeprefix(_TEXT))
        if isinstance(data_type, T.TimestampType):
            return data_type, lambda value: _timestamp(_text(value))
        if data_type is not None:
            return data_type, lambda value: exact_cast(_text(value), data_type)
    if (decimal := _decimal_type(name)) is not None:
        return decimal, lambda value: _decimal(value, decimal)
    if name in _INTEGER_TYPES:
        data_type, size = _INTEGER_TYPES[name]
        return data_type, lambda value: _integer(value, size).cast(data_type)
    other_types: dict[str, tuple[T.DataType, Callable[[Column], Column]]] = {
        "string": (T.StringType(), _text),
        "binary": (T.BinaryType(), lambda value: value),
        "boolean": (T.BooleanType(), lambda value: F.when(F.length(value) == 1, F.hex(value) != "00")),
        "float": (T.FloatType(), lambda value: _float(value, 4, "java.lang.Float", "intBitsToFloat", "int", "float")),
        "double": (
            T.DoubleType(),
            lambda value: _float(value, 8, "java.lang.Double", "longBitsToDouble", "long", "double"),
        ),
        "timestamp-millis": (
            T.TimestampType(),
            lambda value: F.timestamp_micros(F.try_multiply(_integer(value, 8), F.lit(1000))),
        ),
    }
    if name not in other_types:
        raise MappingError(f"there is no type {name!r}; the types are {', '.join(TYPES)} and decimal(p,s)")
    return other_types[name]


def _decimal_type(name: str) -> T.DecimalType | None:
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = map(int, match.groups())
    if not 1 <= precision <= MOST_DIGITS or scale > precision:
        raise MappingError(
            f"{name}: the precision of a decimal must be 1 to {MOST_DIGITS}, and its scale at most the precision"
        )
    return T.DecimalType(precision, scale)


def _text(value: Column) -> Column:
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text)


def _timestamp(text: Column) -> Column:
    """Parse a timestamp. A text without a time zone is in UTC, so the value does not depend on the session."""
    local_time = exact_cast(text, T.TimestampNTZType()).cast("string")
    return exact_cast(F.coalesce(F.concat(local_time, F.lit("Z")), text), T.TimestampType())


def _integer(value: Column, size: int) -> Column:
    return F.when(F.length(value) == size, integer_text(value).cast("long"))


def _float(value: Column, size: int, java_class: str, method: str, integer_type: str, data_type: str) -> Column:
    # The Java method does not accept null.
    number = F.coalesce(_integer(value, size), F.lit(0)).cast(integer_type)
    return F.when(F.length(value) == size, F.java_method(F.lit(java_class), F.lit(method), number).cast(data_type))


def _decimal(value: Column, data_type: T.DecimalType) -> Column:
    scale = _integer(F.substring(value, 1, _SCALE_BYTES), _SCALE_BYTES)
    unscaled_value = F.substring(value, F.lit(_SCALE_BYTES + 1), F.length(value))
    # With a larger scale the cast would round.
    return F.when(
        scale.between(0, data_type.scale), decimal_text(unscaled_value, scale.cast("int")).try_cast(data_type)
    )
