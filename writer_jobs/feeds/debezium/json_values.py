"""Values of Debezium's JSON as Spark's values, by how they are written.

A value is a ``VARIANT`` (parsed JSON), so that its JSON type counts: a JSON text is no number and no boolean, a JSON
number is no boolean. A value that is not exactly one of the target type is null; the caller sets its message aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, MOST_DIGITS, exact_cast, has_exact_cast
from writer_jobs.feeds.wire import (
    is_object,
    member,
    once,
    path,
    sign_extended,
    significant_digits,
    text_of,
    whole_number,
)

_LONG_DIGITS = 18
_MOST_BYTES = 16
_WORD = 8
"""Hexadecimal digits of 32 bits."""
_SHIFT = 1 << 32
_WHOLE = DecimalType(MOST_DIGITS, 0)
_EPOCH = "1970-01-01"
_ZONED = r"[T ]\d.*(Z|[+-]\d{2}(:?\d{2}){0,2})\z"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class Decoder:
    """How the values of one column are written, and their type.

    Attributes:
        type: Spark's.
        wire: How they are written; a key of ``_DECODED``.
        scale: Of decimals.
        parts: Decoders of fields by their names in JSON, in the order of the type's fields; or of elements.

    """

    type: DataType
    wire: str = "plain"
    scale: int = 0
    parts: tuple[tuple[str, Decoder], ...] = ()

    def decode(self, value: Column) -> Column:
        """Return a parsed value as Spark's; null if there is none, or if it does not fit."""
        return _DECODED[self.wire](self, value)

    def raw(self, payload: Column, *names: str) -> Column:
        """Return a part of a payload as :meth:`of_raw` takes it; null if there is none.

        As text: each parsed value carries the names of all fields of its message.
        """
        if self._is_text:
            return F.try_variant_get(payload, path(*names), "string")
        return F.to_json(member(payload, *names))

    def of_raw(self, raw: Column) -> Column:
        """Return what :meth:`raw` has found as Spark's; null if there is none, or if it does not fit."""
        return raw if self._is_text else once(F.try_parse_json(raw), self.decode)

    @property
    def _is_text(self) -> bool:
        return self.wire == "plain" and isinstance(self.type, StringType)

    def for_column(self, kind: DataType | None) -> Decoder:
        """Return this, fitted to the type that the table's column has where Spark has several for one value."""
        if isinstance(kind, TimestampNTZType) and isinstance(self.type, TimestampType) and self.wire in _UNITS:
            return replace(self, type=kind)
        if isinstance(kind, LongType) and self.wire == "nanos":
            return Decoder(kind)
        if isinstance(kind, StringType) and self.wire == "zoned":
            return Decoder(kind)
        if isinstance(kind, DecimalType) and self.wire in ("unscaled", "variable"):
            return replace(self, type=kind)
        return self

    def with_fields(self, kind: DataType | None) -> Decoder:
        """Return this with the nested fields that a type has beside its own; they are null.

        Args:
            kind: Type of the table's column, or of the same column by another schema; None: there is none.

        """
        if isinstance(kind, StructType) and isinstance(self.type, StructType):
            nested = {field.name.lower(): field for field in kind}
            fields = {key: (field, field.name, Decoder(field.dataType, "absent")) for key, field in nested.items()}
            for field, (name, part) in zip(self.type, self.parts, strict=True):
                key = field.name.lower()
                fields[key] = (field, name, part.with_fields(nested[key].dataType if key in nested else None))
            columns = [StructField(field.name, part.type) for field, _, part in fields.values()]
            parts = tuple((name, part) for _, name, part in fields.values())
            return replace(self, type=StructType(columns), parts=parts)
        if isinstance(kind, ArrayType) and isinstance(self.type, ArrayType):
            element = self.parts[0][1].with_fields(kind.elementType)
            return replace(self, type=ArrayType(element.type), parts=(("element", element),))
        if isinstance(kind, MapType) and isinstance(self.type, MapType):
            value = self.parts[0][1].with_fields(kind.valueType)
            return replace(self, type=MapType(StringType(), value.type), parts=(("value", value),))
        return self


# -- JSON types --------------------------------------------------------------------------------------------------------


def _string(value: Column) -> Column:
    """Return the text of a JSON string; null for any other JSON type."""
    return F.when(F.schema_of_variant(value) == "STRING", text_of(value))


def _number(value: Column) -> Column:
    """Return the text of a JSON number; null for any other JSON type."""
    text = text_of(value)
    is_number = F.schema_of_variant(value).rlike("^(BIGINT|DECIMAL|DOUBLE)")
    return F.when(is_number & ~text.isin(*_NOT_FINITE), text)


# -- how values are written --------------------------------------------------------------------------------------------


def _plain(decoder: Decoder, value: Column) -> Column:
    kind = decoder.type
    if isinstance(kind, StringType):
        return text_of(value)
    if isinstance(kind, BooleanType):
        return exact_cast(F.when(F.schema_of_variant(value) == "BOOLEAN", text_of(value)), kind)
    if isinstance(kind, DecimalType):
        return exact_cast(F.coalesce(_number(value), _decimal_string(value)), kind)
    if isinstance(kind, FloatType | DoubleType):
        number, name = _number(value), _string(value)
        fits = F.when(significant_digits(number) <= DOUBLE_DIGITS, number)
        return exact_cast(F.coalesce(fits, F.when(name.isin(*_NOT_FINITE), name)), kind)
    return exact_cast(_number(value), kind) if has_exact_cast(kind) else F.lit(None).cast(kind)


def _decimal_string(value: Column) -> Column:
    """Return the text of a decimal that is written as text (``decimal.handling.mode=string``).

    Only with a decimal point: without one it may be the base64 of ``decimal.handling.mode=precise``.
    """
    text = _string(value)
    return F.when(text.contains("."), text)


def _base64(_: Decoder, value: Column) -> Column:
    return F.try_to_binary(_string(value), F.lit("base64"))


def _days(_: Decoder, value: Column) -> Column:
    return F.date_add(F.lit(_EPOCH).cast("date"), exact_cast(_number(value), IntegerType()))


def _date(decoder: Decoder, value: Column) -> Column:
    text = F.regexp_replace(_string(value), r"Z\z", "")
    return F.coalesce(_days(decoder, value), exact_cast(text, DateType()))


_UNITS: Mapping[str, Callable[[Column], Column]] = {
    "millis": lambda number: F.try_multiply(number, F.lit(1000)),
    "micros": lambda number: number,
    # Spark's timestamps have microseconds.
    "nanos": lambda number: F.when(number % 1000 == 0, F.floor(number / F.lit(1000).cast("decimal(4,0)"))).cast("long"),
}


def _time(decoder: Decoder, value: Column) -> Column:
    micros = _UNITS[decoder.wire](exact_cast(_number(value), LongType()))
    if isinstance(decoder.type, TimestampNTZType):
        return F.timestamp_add("MICROSECOND", micros, F.lit(_EPOCH).cast(decoder.type))
    return F.timestamp_micros(micros)


def _zoned(decoder: Decoder, value: Column) -> Column:
    text, kind = _string(value), decoder.type
    return exact_cast(text if isinstance(kind, TimestampNTZType) else F.when(text.rlike(_ZONED), text), kind)


def _unscaled(decoder: Decoder, value: Column) -> Column:
    # A text is base64 by default, a number if decimal.format is NUMERIC.
    unscaled = F.try_to_binary(_string(value), F.lit("base64"))
    kind = decoder.type
    if isinstance(kind, DecimalType) and kind.precision <= _LONG_DIGITS:
        short = once(unscaled, lambda octets: _short(octets, decoder.scale))
        return F.coalesce(once(short, lambda number: _same(number, kind)), exact_cast(_number(value), kind))
    return _as_number(kind, F.coalesce(_decimal_text(unscaled, F.lit(decoder.scale)), _number(value)))


def _short(unscaled: Column, scale: int) -> Column:
    """Return the decimal of a two's complement of at most 64 bits, as most are."""
    unit = F.lit(Decimal(1).scaleb(-scale)).cast(DecimalType(scale + 1, scale))
    fits = F.length(unscaled).between(1, _WORD)
    # With more digits Spark would round the product: it has 38 in all.
    return F.when(fits, whole_number(unscaled).try_cast(DecimalType(_LONG_DIGITS, 0)) * unit)


def _same(number: Column, kind: DataType) -> Column:
    """Cast a decimal; null if digits would be lost."""
    return F.when(number.try_cast(kind) == number, number.try_cast(kind))


def _variable(decoder: Decoder, value: Column) -> Column:
    unscaled = F.try_to_binary(F.try_variant_get(value, path("value"), "string"), F.lit("base64"))
    return _as_number(decoder.type, _decimal_text(unscaled, F.try_variant_get(value, path("scale"), "int")))


def _as_number(kind: DataType, text: Column) -> Column:
    return exact_cast(text, kind) if isinstance(kind, DecimalType) else text


def _decimal_text(unscaled: Column, scale: Column) -> Column:
    """Return the number of a two's complement, most significant byte first, as Java's ``BigDecimal`` writes it.

    By words of 32 bits, for no number of Spark's has more than 38 digits; null for more.
    """
    fits = (F.length(unscaled) > 0) & (F.length(unscaled) <= _MOST_BYTES)
    number = once(F.hex(unscaled), _whole_of)
    return F.when(
        fits, once(number, lambda whole: once(_digits(whole, scale), lambda text: _point(whole, text, scale)))
    )


def _whole_of(hexed: Column) -> Column:
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
    whole_part = F.substring(digits, F.lit(1), F.length(digits) - F.greatest(scale, F.lit(0)))
    return F.concat(sign, whole_part, F.when(scale > 0, F.concat(F.lit("."), F.right(digits, scale))).otherwise(""))


def _of_struct(decoder: Decoder, value: Column) -> Column:
    assert isinstance(decoder.type, StructType)  # noqa: S101 (of this wire)
    parts = [(member(value, name), part) for name, part in decoder.parts]
    names = [name for name, _ in decoder.parts]
    others = F.map_filter(
        F.try_variant_get(value, "$", "map<string,variant>"),
        lambda name, other: ~(_nothing(other) | (name.isin(*names) if names else F.expr("false"))),
    )
    fits = is_object(value) & (F.size(others) == 0)
    for raw, part in parts:
        fits = fits & (raw.isNull() | part.decode(raw).isNotNull())
    fields = [part.decode(raw).alias(name) for name, (raw, part) in zip(decoder.type.names, parts, strict=True)]
    return F.when(fits, F.struct(*fields))


def _of_array(decoder: Decoder, value: Column) -> Column:
    element = decoder.parts[0][1]
    elements = F.try_variant_get(value, "$", "array<variant>")
    return F.when(
        F.forall(elements, lambda one: _nothing(one) | element.decode(one).isNotNull()),
        F.transform(elements, element.decode),
    )


def _of_map(decoder: Decoder, value: Column) -> Column:
    of_value = decoder.parts[0][1]
    entries = F.try_variant_get(value, "$", "map<string,variant>")
    return F.when(
        F.forall(F.map_values(entries), lambda one: _nothing(one) | of_value.decode(one).isNotNull()),
        F.transform_values(entries, lambda _, one: of_value.decode(one)),
    )


def _nothing(value: Column) -> Column:
    return value.isNull() | F.is_variant_null(value)


_DECODED: Mapping[str, Callable[[Decoder, Column], Column]] = {
    "plain": _plain,
    "base64": _base64,
    "days": _days,
    "date": _date,
    **dict.fromkeys(_UNITS, _time),
    "zoned": _zoned,
    "unscaled": _unscaled,
    "variable": _variable,
    "variant": lambda _, value: value,
    "absent": lambda decoder, _: F.lit(None).cast(decoder.type),
    "struct": _of_struct,
    "array": _of_array,
    "map": _of_map,
}
