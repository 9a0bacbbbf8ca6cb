"""Bytes of HBase as values of a table's columns: what ``Bytes.toBytes`` writes, and numbers written as text.

Source: ``org.apache.hadoop.hbase.util.Bytes``: whole numbers are big-endian, in two's complement; floats are their IEEE
754 bits; a boolean is one byte, 0 for false; a decimal is its scale in four bytes and its unscaled value.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.delta.exact_cast import MOST_DIGITS, exact_cast
from writer_jobs.errors import MappingError
from writer_jobs.feeds.wire import whole_number

_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_SCALE_BYTES = 4
_MOST_UNSCALED_BYTES = 8
_TEXT = "text:"
#: What a mapping can call the type of a value; ``decimal(p,s)`` beside these.
TYPES = (
    "string", "binary", "boolean", "byte", "short", "int", "long", "float", "double", "timestamp-millis",
    "text:boolean", "text:int", "text:long", "text:double", "text:date", "text:timestamp", "text:decimal(p,s)",
)  # fmt: skip
_OF_TEXT: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}
_WHOLE: dict[str, tuple[DataType, int]] = {
    "byte": (ByteType(), 1),
    "short": (ShortType(), 2),
    "int": (IntegerType(), 4),
    "long": (LongType(), 8),
}


#: Types of a row key's parts: no two different texts of bytes are one value of these.
KEY_TYPES = (
    "string",
    "binary",
    "byte",
    "short",
    "int",
    "long",
    "timestamp-millis",
    "text:int",
    "text:long",
    "text:date",
)


class ValueType:
    """How bytes become a value.

    Args:
        name: as a mapping has it, one of :data:`TYPES`.

    Attributes:
        spark: type of the column.

    Raises:
        MappingError: no such type.

    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.spark, self._decode = _type_of(name)

    def decoded_key(self, value: Column) -> Column:
        """Return the value of a part of a row key; null, too, if other bytes would have the same value."""
        found = self._decode(value)
        if not self.name.startswith(_TEXT):
            return found
        return F.when(found.cast("string").cast("binary") == value, found)

    def decoded(self, value: Column) -> Column:
        """Return the value of some bytes; null if they are not of this type, or null."""
        return self._decode(value)


def _type_of(name: str) -> tuple[DataType, Callable[[Column], Column]]:
    if name.startswith(_TEXT):
        kind = _OF_TEXT.get(name.removeprefix(_TEXT)) or _decimal(name.removeprefix(_TEXT))
        if isinstance(kind, TimestampType):
            return kind, lambda value: _moment(_text(value))
        if kind is not None:
            return kind, lambda value: exact_cast(_text(value), kind)
    if (decimal := _decimal(name)) is not None:
        return decimal, lambda value: _decimal_of(value, decimal)
    if name in _WHOLE:
        kind, size = _WHOLE[name]
        return kind, lambda value: _whole(value, size).cast(kind)
    simple: dict[str, tuple[DataType, Callable[[Column], Column]]] = {
        "string": (StringType(), _text),
        "binary": (BinaryType(), lambda value: value),
        "boolean": (BooleanType(), lambda value: F.when(F.length(value) == 1, F.hex(value) != "00")),
        "float": (FloatType(), lambda value: _of_bits(value, 4, "java.lang.Float", "intBitsToFloat", "int", "float")),
        "double": (
            DoubleType(),
            lambda value: _of_bits(value, 8, "java.lang.Double", "longBitsToDouble", "long", "double"),
        ),
        "timestamp-millis": (
            TimestampType(),
            lambda value: F.timestamp_micros(F.try_multiply(_whole(value, 8), F.lit(1000))),
        ),
    }
    if name not in simple:
        raise MappingError(f"there is no type {name!r}; the types are {', '.join(TYPES)} and decimal(p,s)")
    return simple[name]


def _decimal(name: str) -> DecimalType | None:
    found = _DECIMAL.fullmatch(name)
    if found is None:
        return None
    precision, scale = map(int, found.groups())
    if not 1 <= precision <= MOST_DIGITS or scale > precision:
        raise MappingError(f"{name}: a decimal has 1 to {MOST_DIGITS} digits, and its scale is not larger")
    return DecimalType(precision, scale)


def _text(value: Column) -> Column:
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text)


def _moment(text: Column) -> Column:
    """Return the moment of a text; without a time zone it is in UTC, so that no session has another one."""
    local = exact_cast(text, TimestampNTZType()).cast("string")
    return exact_cast(F.coalesce(F.concat(local, F.lit("Z")), text), TimestampType())


def _whole(value: Column, size: int) -> Column:
    return F.when(F.length(value) == size, whole_number(value).cast("long"))


def _of_bits(value: Column, size: int, of: str, method: str, bits: str, kind: str) -> Column:
    # A method cannot be given null.
    number = F.coalesce(_whole(value, size), F.lit(0)).cast(bits)
    return F.when(F.length(value) == size, F.java_method(F.lit(of), F.lit(method), number).cast(kind))


def _decimal_of(value: Column, kind: DecimalType) -> Column:
    scale = _whole(F.substring(value, 1, _SCALE_BYTES), _SCALE_BYTES)
    size = F.length(value) - _SCALE_BYTES
    unscaled = F.substring(value, _SCALE_BYTES + 1, _MOST_UNSCALED_BYTES)
    fits = size.between(1, _MOST_UNSCALED_BYTES) & scale.between(0, kind.scale)
    return F.when(fits, F.concat(whole_number(unscaled), F.lit("E-"), scale.cast("string")).try_cast(kind))
