"""How a value in a message becomes a value of Spark's: by Kafka Connect's schema, by a column's type, or by its looks.

A value is a ``VARIANT`` (parsed JSON). What does not fit its type becomes null, and never another value: a number is
not rounded, a text is not cut.

Sources: Kafka Connect's ``JsonConverter``; the semantic types of "Data type mappings" in the pages of Debezium's
connectors, https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ArrayType,
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
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from writer_jobs.delta.type_differences import is_wider
from writer_jobs.feeds.wire import sign_extended, whole_number

_MOST_DIGITS = 38
_LONG_DIGITS = 18
_MOST_BYTES = 16
_WORD = 8
"""Hexadecimal digits of 32 bits."""
_SHIFT = 1 << 32
_WHOLE = DecimalType(_MOST_DIGITS, 0)
_EPOCH = "1970-01-01"
_ZONED = r"(Z|[+-]\d{2}(:?\d{2}){0,2})$"
_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."


@dataclass(frozen=True)
class Decoder:
    """How values of one column are written, and of what type they are.

    Attributes:
        type: Spark's.
        wire: how they are written; a key of ``_TEXTS`` or of ``_PARSED``.
        scale: of decimals.
        parts: decoders of fields, or of elements.

    """

    type: DataType
    wire: str = "plain"
    scale: int = 0
    parts: tuple[tuple[str, Decoder], ...] = ()

    def decode(self, value: Column) -> Column:
        """Return a parsed value as Spark's; null if there is none, or if it does not fit."""
        return _PARSED[self.wire](self, value) if self.wire in _PARSED else _TEXTS[self.wire](self, text_of(value))

    def raw(self, payload: Column, *names: str) -> Column:
        """Return a part of a payload as :meth:`of_raw` takes it; null if there is none.

        As text: each parsed value carries the names of all fields of its message.
        """
        if self.wire in _PARSED:
            return F.to_json(member(payload, *names))
        return F.try_variant_get(payload, path(*names), "string")

    def of_raw(self, raw: Column) -> Column:
        """Return what :meth:`raw` has found as Spark's; null if there is none, or if it does not fit."""
        if self.wire in _PARSED:
            return once(F.try_parse_json(raw), self.decode)
        return _TEXTS[self.wire](self, raw)

    def for_column(self, kind: DataType | None) -> Decoder:
        """Return this, fitted to the type that the table's column has where Spark has several for one value."""
        if isinstance(kind, TimestampNTZType) and isinstance(self.type, TimestampType) and self.wire in _UNITS:
            return replace(self, type=kind)
        if isinstance(kind, LongType) and self.wire == "nanos":
            return Decoder(kind)
        if isinstance(kind, DecimalType) and self.wire in ("unscaled", "variable"):
            return replace(self, type=kind)
        return self


def member(value: Column, *names: str) -> Column:
    """Return a part of a parsed value; null if there is none, or if it is JSON's null."""
    found = F.try_variant_get(value, path(*names), "variant")
    return F.when(~F.is_variant_null(found), found)


def path(*names: str) -> str:
    """Return the path to a part of a parsed value."""
    quote = "'" if any('"' in name for name in names) else '"'
    return "$" + "".join(f"[{quote}{name}{quote}]" for name in names)


def is_object(value: Column) -> Column:
    """Tell whether a parsed value is an object."""
    return F.try_variant_get(value, "$", "struct<_: variant>").isNotNull()


def once(value: Column, then: Callable[[Column], Column]) -> Column:
    """Compute a value once for an expression that needs it several times."""
    return F.transform(F.array(value), then)[0]


def text_of(value: Column) -> Column:
    """Return a scalar's text, or the JSON of anything else."""
    return F.try_variant_get(value, "$", "string")


# -- which decoder -----------------------------------------------------------------------------------------------------


def of_connect(schema: Mapping[str, Any]) -> Decoder:
    """Return the decoder of a Connect schema, as ``JsonConverter`` writes it beside the payload.

    Raises:
        KeyError, TypeError, ValueError: it is none.

    """
    name, kind = schema.get("name") or "", schema["type"]
    if name == f"{_CONNECT}Decimal":
        return _decimal(schema["parameters"])
    if name in _SEMANTIC:
        return _SEMANTIC[name]
    if kind == "struct":
        parts = tuple((field["field"], of_connect(field)) for field in schema["fields"])
        return _struct(parts)
    if kind == "array":
        return _array(of_connect(schema["items"]))
    if kind == "map" and schema["keys"]["type"] == "string":
        return _map(of_connect(schema["values"]))
    return _PRIMITIVE.get(kind, Decoder(StringType()))


def of_column(kind: DataType) -> Decoder:
    """Return the decoder of values without a schema, for a column of this type.

    Numbers are no timestamps: whether they are milli-, micro- or nanoseconds only a schema tells.
    """
    if isinstance(kind, StructType):
        return _struct(tuple((field.name, of_column(field.dataType)) for field in kind))
    if isinstance(kind, ArrayType):
        return _array(of_column(kind.elementType))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _map(of_column(kind.valueType))
    return Decoder(kind, _WITHOUT_SCHEMA.get(type(kind), "plain"))


def of_inferred(kind: DataType) -> Decoder | None:
    """Return the decoder of values of which Spark has inferred a type; None if all are null."""
    if isinstance(kind, NullType):
        return None
    if isinstance(kind, DecimalType) and (kind.scale or kind.precision <= _LONG_DIGITS):
        # What was written with a point, as doubles are.
        return Decoder(DoubleType())
    if isinstance(kind, DecimalType):
        return Decoder(DecimalType(_MOST_DIGITS, 0))
    if isinstance(kind, StructType):
        parts = tuple((field.name, of_inferred(field.dataType)) for field in kind)
        return _struct(tuple((name, part) for name, part in parts if part is not None))
    if isinstance(kind, ArrayType):
        element = of_inferred(kind.elementType)
        return None if element is None else _array(element)
    # Of several types: their text.
    return Decoder(StringType()) if isinstance(kind, VariantType) else Decoder(kind)


def common_type(kinds: list[DataType], column: DataType | None) -> DataType | None:
    """Return the type that holds values of all types, for a table's column (None: new); None if there is none."""
    plain = not any(isinstance(kind, StructType | ArrayType | MapType | BinaryType) for kind in kinds)
    if isinstance(column, StringType) and plain:
        return column
    return reduce(_wider, kinds[1:], kinds[0])


def _wider(one: DataType | None, other: DataType) -> DataType | None:
    if one is None or one == other or is_wider(one, other):
        return one
    return other if is_wider(other, one) else None


def _struct(parts: tuple[tuple[str, Decoder], ...]) -> Decoder:
    return Decoder(StructType([StructField(name, part.type) for name, part in parts]), "struct", parts=parts)


def _array(element: Decoder) -> Decoder:
    return Decoder(ArrayType(element.type), "array", parts=(("element", element),))


def _map(value: Decoder) -> Decoder:
    return Decoder(MapType(StringType(), value.type), "map", parts=(("value", value),))


def _decimal(parameters: Mapping[str, str]) -> Decoder:
    scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", _MOST_DIGITS))
    fits = 0 <= scale <= precision <= _MOST_DIGITS
    return Decoder(DecimalType(precision, scale) if fits else StringType(), "unscaled", scale)


_PRIMITIVE: Mapping[str, Decoder] = {
    "boolean": Decoder(BooleanType()),
    "int8": Decoder(ByteType()),
    "int16": Decoder(ShortType()),
    "int32": Decoder(IntegerType()),
    "int64": Decoder(LongType()),
    "float": Decoder(FloatType()),
    "float32": Decoder(FloatType()),
    "double": Decoder(DoubleType()),
    "float64": Decoder(DoubleType()),
    "bytes": Decoder(BinaryType(), "base64"),
}
#: Times of day stay numbers, as durations do, for Delta has no type for them. What is not here is what it is without
#: its name: Json, Uuid, Enum, Xml and IsoTime are texts, Bits are bytes, geometries are structs.
_SEMANTIC: Mapping[str, Decoder] = {
    f"{_DEBEZIUM}Date": Decoder(DateType(), "days"),
    f"{_CONNECT}Date": Decoder(DateType(), "days"),
    f"{_DEBEZIUM}IsoDate": Decoder(DateType(), "date"),
    f"{_DEBEZIUM}Timestamp": Decoder(TimestampType(), "millis"),
    f"{_CONNECT}Timestamp": Decoder(TimestampType(), "millis"),
    f"{_DEBEZIUM}MicroTimestamp": Decoder(TimestampType(), "micros"),
    f"{_DEBEZIUM}NanoTimestamp": Decoder(TimestampType(), "nanos"),
    f"{_DEBEZIUM}ZonedTimestamp": Decoder(TimestampType(), "zoned"),
    f"{_DEBEZIUM}IsoTimestamp": Decoder(TimestampType(), "zoned"),
    f"{_DEBEZIUM}Time": Decoder(LongType()),
    f"{_CONNECT}Time": Decoder(LongType()),
    "io.debezium.data.VariableScaleDecimal": Decoder(StringType(), "variable"),
}

_WITHOUT_SCHEMA: Mapping[type[DataType], str] = {
    BinaryType: "base64",
    DateType: "date",
    TimestampType: "zoned",
    TimestampNTZType: "zoned",
    VariantType: "variant",
}

# -- how values are written --------------------------------------------------------------------------------------------


def _plain(decoder: Decoder, text: Column) -> Column:
    return _exactly(text, decoder.type) if isinstance(decoder.type, DecimalType) else text.try_cast(decoder.type)


def _exactly(text: Column, kind: DecimalType) -> Column:
    """Cast a number's text; null if digits would be lost."""
    behind = F.length(F.regexp_extract(text, r"\.(\d*?)0*$", 1))
    return F.when(behind <= kind.scale, text.try_cast(kind))


def _base64(_: Decoder, text: Column) -> Column:
    return F.try_to_binary(text, F.lit("base64"))


def _days(_: Decoder, text: Column) -> Column:
    return F.date_add(F.lit(_EPOCH).cast("date"), text.try_cast("int"))


def _date(decoder: Decoder, text: Column) -> Column:
    number = text.rlike(r"^-?\d+$")
    return F.when(number, _days(decoder, text)).otherwise(F.regexp_replace(text, "Z$", "").try_cast("date"))


_UNITS: Mapping[str, Callable[[Column], Column]] = {
    "millis": lambda number: F.try_multiply(number, F.lit(1000)),
    "micros": lambda number: number,
    "nanos": lambda number: F.floor(number / F.lit(1000).cast("decimal(4,0)")).cast("bigint"),
}


def _time(decoder: Decoder, text: Column) -> Column:
    micros = _UNITS[decoder.wire](text.try_cast("bigint"))
    if isinstance(decoder.type, TimestampNTZType):
        return F.timestamp_add("MICROSECOND", micros, F.lit(_EPOCH).cast(decoder.type))
    return F.timestamp_micros(micros)


def _zoned(decoder: Decoder, text: Column) -> Column:
    moment = text.try_cast(decoder.type)
    return F.when(text.rlike(_ZONED), moment) if isinstance(decoder.type, TimestampType) else moment


def _unscaled(decoder: Decoder, value: Column) -> Column:
    # A text is base64 by default, a number if decimal.format is NUMERIC.
    text, is_text = text_of(value), F.schema_of_variant(value) == "STRING"
    unscaled = F.try_to_binary(text, F.lit("base64"))
    if isinstance(decoder.type, DecimalType) and decoder.type.precision <= _LONG_DIGITS:
        return F.when(
            is_text, once(unscaled, lambda octets: _short(octets, decoder.scale)).try_cast(decoder.type)
        ).otherwise(_exactly(text, decoder.type))
    return _as_number(decoder.type, F.when(is_text, _decimal_text(unscaled, F.lit(decoder.scale))).otherwise(text))


def _short(unscaled: Column, scale: int) -> Column:
    """Return the decimal of a two's complement of at most 64 bits, as most are."""
    unit = F.lit(Decimal(1).scaleb(-scale)).cast(DecimalType(scale + 1, scale))
    fits = F.length(unscaled).between(1, _WORD)
    # With more digits Spark would round the product: it has 38 in all.
    return F.when(fits, whole_number(unscaled).try_cast(DecimalType(_LONG_DIGITS, 0)) * unit)


def _variable(decoder: Decoder, value: Column) -> Column:
    unscaled = F.try_to_binary(F.try_variant_get(value, path("value"), "string"), F.lit("base64"))
    return _as_number(decoder.type, _decimal_text(unscaled, F.try_variant_get(value, path("scale"), "int")))


def _as_number(kind: DataType, text: Column) -> Column:
    return _exactly(text, kind) if isinstance(kind, DecimalType) else text


def _decimal_text(unscaled: Column, scale: Column) -> Column:
    """Return the number of a two's complement, most significant byte first, as Java's ``BigDecimal`` writes it.

    By words of 32 bits, for no number of Spark's has more than 38 digits; null for more.
    """
    fits = (F.length(unscaled) > 0) & (F.length(unscaled) <= _MOST_BYTES)
    number = once(F.hex(unscaled), _number)
    return F.when(
        fits, once(number, lambda whole: once(_digits(whole, scale), lambda text: _point(whole, text, scale)))
    )


def _number(hexed: Column) -> Column:
    """Return the whole number of a two's complement of at most 32 hexadecimal digits; null if it has too many."""
    negative = F.substring(hexed, 1, 1) >= "8"
    padded = sign_extended(hexed, _MOST_BYTES)
    words = [F.conv(F.substring(padded, 1 + _WORD * at, _WORD), 16, 10).cast(_WHOLE) for at in range(4)]
    high = words[0] - F.when(negative, F.lit(_SHIFT)).otherwise(0).cast(_WHOLE)
    return reduce(
        lambda total, word: F.try_add(F.try_multiply(total, F.lit(_SHIFT).cast("decimal(11,0)")).cast(_WHOLE), word),
        words[1:],
        high,
    )


def _digits(number: Column, scale: Column) -> Column:
    """Return the digits of a number with a scale, at least one of them before the point."""
    digits = F.concat(F.abs(number).cast("string"), F.repeat(F.lit("0"), -scale))
    return F.lpad(digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))


def _point(number: Column, digits: Column, scale: Column) -> Column:
    sign = F.when(number < 0, "-").otherwise("")
    before = F.substring(digits, F.lit(1), F.length(digits) - F.greatest(scale, F.lit(0)))
    return F.concat(sign, before, F.when(scale > 0, F.concat(F.lit("."), F.right(digits, scale))).otherwise(""))


def _of_struct(decoder: Decoder, value: Column) -> Column:
    inner = [(member(value, name), part, name) for name, part in decoder.parts]
    fits = is_object(value)
    for found, part, _ in inner:
        fits = fits & (found.isNull() | part.decode(found).isNotNull())
    return F.when(fits, F.struct(*(part.decode(found).alias(name) for found, part, name in inner)))


def _of_array(decoder: Decoder, value: Column) -> Column:
    element = decoder.parts[0][1]
    found = F.try_variant_get(value, "$", "array<variant>")
    return F.when(
        F.forall(found, lambda each: _nothing(each) | element.decode(each).isNotNull()),
        F.transform(found, element.decode),
    )


def _of_map(decoder: Decoder, value: Column) -> Column:
    of_value = decoder.parts[0][1]
    found = F.try_variant_get(value, "$", "map<string,variant>")
    return F.when(
        F.forall(F.map_values(found), lambda each: _nothing(each) | of_value.decode(each).isNotNull()),
        F.transform_values(found, lambda _, each: of_value.decode(each)),
    )


def _nothing(value: Column) -> Column:
    return value.isNull() | F.is_variant_null(value)


_TEXTS: Mapping[str, Callable[[Decoder, Column], Column]] = {
    "plain": _plain,
    "base64": _base64,
    "days": _days,
    "date": _date,
    **dict.fromkeys(_UNITS, _time),
    "zoned": _zoned,
}
_PARSED: Mapping[str, Callable[[Decoder, Column], Column]] = {
    "unscaled": _unscaled,
    "variable": _variable,
    "variant": lambda _, value: value,
    "struct": _of_struct,
    "array": _of_array,
    "map": _of_map,
}


def struct_ddl(inferred: str) -> str:
    """Return what ``schema_of_variant_agg`` says as Spark's SQL writes it."""
    parts = re.split(r"(`(?:[^`]|``)*`)", inferred)
    return "".join(part if part.startswith("`") else part.replace("OBJECT<", "STRUCT<") for part in parts)
