"""Decode the values of Debezium's JSON as Spark's values.

A value is a ``VARIANT`` (parsed JSON), so its JSON type counts: a JSON string is not a number or a boolean, and a JSON
number is not a boolean. A value that is not exactly a value of the target type becomes null. The caller writes its
message to the dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, exact_cast, has_exact_cast
from writer_jobs.delta.type_differences import DIGITS
from writer_jobs.feeds.debezium.infinity import TIME_ENCODINGS, Infinity, infinity_sign, largest_value
from writer_jobs.feeds.message_values import (
    compute_once,
    is_object,
    member,
    object_fields,
    significant_digits,
    variant_path,
    variant_text,
)
from writer_jobs.feeds.unscaled_decimals import LONG_DIGITS, cast_decimal, decimal_text, long_decimal

_EPOCH = "1970-01-01"
_ZONED = r"[T ]\d.*(Z|[+-]\d{2}(:?\d{2}){0,2})\z"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
# Type of a VariableScaleDecimal in JSON, as Spark writes it.
_VARIABLE_DECIMAL = "OBJECT<scale: BIGINT, value: STRING>"
# PostgreSQL's largest scale. Oracle's scales are -84 to 127.
_LARGEST_SCALE = 16_383


@dataclass(frozen=True)
class Decoder:
    """The decoder of one column's values.

    Attributes:
        type: Spark's type of the decoded values.
        encoding: Encoding of the values in JSON; a key of ``_DECODERS``.
        scale: The scale of an unscaled decimal.
        parts: Decoders of nested fields by their names in JSON, in the order of the type's fields; or the decoder of
            an array's elements or a map's values.
        infinity: Rule for infinite dates and times: ``largest``; otherwise they decode to null.

    """

    type: T.DataType
    encoding: str = "plain"
    scale: int = 0
    parts: tuple[tuple[str, Decoder], ...] = ()
    infinity: Infinity = "dead-letter"

    def decode(self, value: Column) -> Column:
        """Decode a parsed value; null if the value is missing or does not fit the type."""
        finite_value = _DECODERS[self.encoding](self, value)
        if self.encoding not in TIME_ENCODINGS:
            return finite_value
        sign = self._infinity_sign(value)
        if self.infinity != "largest":
            return F.when(sign.isNull(), finite_value)
        return F.when(sign.isNotNull(), largest_value(sign, self.type)).otherwise(finite_value)

    def is_infinite(self, text: Column) -> Column:
        """Return whether a text of :meth:`extract` is an infinite date or time."""
        if self.encoding not in TIME_ENCODINGS:
            return F.expr("false")
        return compute_once(F.try_parse_json(text), lambda value: self._infinity_sign(value).isNotNull())

    def _infinity_sign(self, value: Column) -> Column:
        return infinity_sign(self.encoding, exact_cast(_number_text(value), T.LongType()), _string_text(value))

    def with_infinity(self, infinity: Infinity) -> Decoder:
        """Return this decoder with another rule for infinite dates and times, at every depth."""
        parts = tuple((name, part.with_infinity(infinity)) for name, part in self.parts)
        return replace(self, parts=parts, infinity=infinity)

    def extract(self, payload: Column, *names: str) -> Column:
        """Return a nested field of a payload as text; null if the field is missing.

        A text is smaller than a variant, which has the names of all fields of its message.
        """
        if self._is_text:
            return F.try_variant_get(payload, variant_path(*names), "string")
        return F.to_json(member(payload, *names))

    def decode_text(self, text: Column) -> Column:
        """Decode a text of :meth:`extract`; null if the text is null or does not fit the type."""
        return text if self._is_text else compute_once(F.try_parse_json(text), self.decode)

    @property
    def _is_text(self) -> bool:
        return self.encoding == "plain" and isinstance(self.type, T.StringType)

    def with_local_times(self) -> Decoder:
        """Return this decoder with ``timestamp_ntz`` for times without a time zone, at every depth."""
        if self._is_local_time:
            return replace(self, type=T.TimestampNTZType())
        return self._with_parts([(name, part.with_local_times()) for name, part in self.parts])

    def for_column(self, data_type: T.DataType | None) -> Decoder:
        """Return a decoder for a table's column if its type holds this decoder's values in another form, else self."""
        if isinstance(data_type, T.LongType) and self.encoding == "nanos":
            return Decoder(data_type)
        if isinstance(data_type, T.StringType) and self.encoding in ("zoned", "local"):
            return Decoder(data_type)
        if isinstance(data_type, T.DecimalType) and self.encoding in ("unscaled", "variable"):
            return replace(self, type=data_type)
        if isinstance(data_type, tuple(DIGITS)) and self.encoding == "variable":
            return replace(self, type=data_type)
        return self.with_times_of(data_type)

    def with_times_of(self, data_type: T.DataType | None) -> Decoder:
        """Return this decoder with a table's types of times without a time zone, at every depth."""
        if self._is_local_time and isinstance(data_type, T.TimestampType | T.TimestampNTZType):
            return replace(self, type=data_type)
        types: dict[str, T.DataType] = {}
        if isinstance(data_type, T.StructType) and isinstance(self.type, T.StructType):
            types = {field.name.lower(): field.dataType for field in data_type}
        elif isinstance(data_type, T.ArrayType) and isinstance(self.type, T.ArrayType):
            types = {"element": data_type.elementType}
        elif isinstance(data_type, T.MapType) and isinstance(self.type, T.MapType):
            types = {"value": data_type.valueType}
        if not types:
            return self
        return self._with_parts([(name, part.with_times_of(types.get(name.lower()))) for name, part in self.parts])

    @property
    def _is_local_time(self) -> bool:
        return isinstance(self.type, T.TimestampType | T.TimestampNTZType) and self.encoding in (*_UNITS, "local")

    def _with_parts(self, parts: Sequence[tuple[str, Decoder]]) -> Decoder:
        """Return this decoder with other decoders of nested values."""
        types = [part.type for _, part in parts]
        data_type = self.type
        if isinstance(data_type, T.StructType):
            fields = zip(data_type.names, types, strict=True)
            data_type = T.StructType([T.StructField(name, field_type) for name, field_type in fields])
        elif isinstance(data_type, T.ArrayType):
            data_type = T.ArrayType(types[0])
        elif isinstance(data_type, T.MapType):
            data_type = T.MapType(T.StringType(), types[0])
        return replace(self, type=data_type, parts=tuple(parts))

    def with_fields(self, data_type: T.DataType | None) -> Decoder:
        """Return this decoder, extended by the nested fields of ``data_type`` that it lacks. They decode to null.

        ``data_type`` is the type of the table's column, or of the column in another schema.
        """
        if isinstance(data_type, T.StructType) and isinstance(self.type, T.StructType):
            fields_of_type = {field.name.lower(): field for field in data_type}
            fields = {
                key: (field, field.name, Decoder(field.dataType, "absent")) for key, field in fields_of_type.items()
            }
            for field, (name, part) in zip(self.type, self.parts, strict=True):
                key = field.name.lower()
                fields[key] = (
                    field,
                    name,
                    part.with_fields(fields_of_type[key].dataType if key in fields_of_type else None),
                )
            columns = [T.StructField(field.name, part.type) for field, _, part in fields.values()]
            parts = tuple((name, part) for _, name, part in fields.values())
            return replace(self, type=T.StructType(columns), parts=parts)
        if isinstance(data_type, T.ArrayType) and isinstance(self.type, T.ArrayType):
            element = self.parts[0][1].with_fields(data_type.elementType)
            return replace(self, type=T.ArrayType(element.type), parts=(("element", element),))
        if isinstance(data_type, T.MapType) and isinstance(self.type, T.MapType):
            value = self.parts[0][1].with_fields(data_type.valueType)
            return replace(self, type=T.MapType(T.StringType(), value.type), parts=(("value", value),))
        return self


# -- JSON types --------------------------------------------------------------------------------------------------------


def _string_text(value: Column) -> Column:
    """Return the text of a JSON string; null for any other JSON type."""
    return F.when(F.schema_of_variant(value) == "STRING", variant_text(value))


def _number_text(value: Column) -> Column:
    """Return the text of a JSON number; null for any other JSON type."""
    text = variant_text(value)
    is_number = F.schema_of_variant(value).rlike("^(BIGINT|DECIMAL|DOUBLE)")
    return F.when(is_number & ~text.isin(*_NOT_FINITE), text)


# -- encodings ---------------------------------------------------------------------------------------------------------


def _plain(decoder: Decoder, value: Column) -> Column:
    data_type = decoder.type
    if isinstance(data_type, T.StringType):
        return variant_text(value)
    if isinstance(data_type, T.BooleanType):
        return exact_cast(F.when(F.schema_of_variant(value) == "BOOLEAN", variant_text(value)), data_type)
    if isinstance(data_type, T.DecimalType):
        return exact_cast(F.coalesce(_number_text(value), _decimal_string(value)), data_type)
    if isinstance(data_type, T.FloatType | T.DoubleType):
        number, text = _number_text(value), _string_text(value)
        exact_number = F.when(significant_digits(number) <= DOUBLE_DIGITS, number)
        return exact_cast(F.coalesce(exact_number, F.when(text.isin(*_NOT_FINITE), text)), data_type)
    return exact_cast(_number_text(value), data_type) if has_exact_cast(data_type) else F.lit(None).cast(data_type)


def _decimal_string(value: Column) -> Column:
    """Return the text of a decimal in a JSON string (``decimal.handling.mode=string``).

    The text must have a decimal point: without one it can be the base64 of ``decimal.handling.mode=precise``. The text
    ``1999`` is the base64 of the number -2629763.
    """
    text = _string_text(value)
    return F.when(text.contains("."), text)


def _base64(_: Decoder, value: Column) -> Column:
    return F.try_to_binary(_string_text(value), F.lit("base64"))


def _days(_: Decoder, value: Column) -> Column:
    return F.date_add(F.lit(_EPOCH).cast("date"), exact_cast(_number_text(value), T.IntegerType()))


def _date(decoder: Decoder, value: Column) -> Column:
    text = F.regexp_replace(_string_text(value), r"Z\z", "")
    return F.coalesce(_days(decoder, value), exact_cast(text, T.DateType()))


_UNITS: Mapping[str, Callable[[Column], Column]] = {
    "millis": lambda number: F.try_multiply(number, F.lit(1000)),
    "micros": lambda number: number,
    # Spark's timestamps have microseconds.
    "nanos": lambda number: F.when(number % 1000 == 0, F.floor(number / F.lit(1000).cast("decimal(4,0)"))).cast("long"),
}


def _time(decoder: Decoder, value: Column) -> Column:
    micros = _UNITS[decoder.encoding](exact_cast(_number_text(value), T.LongType()))
    if isinstance(decoder.type, T.TimestampNTZType):
        return F.timestamp_add("MICROSECOND", micros, F.lit(_EPOCH).cast(decoder.type))
    return F.timestamp_micros(micros)


def _zoned(decoder: Decoder, value: Column) -> Column:
    text, data_type = _string_text(value), decoder.type
    is_local = isinstance(data_type, T.TimestampNTZType)
    return exact_cast(text if is_local else F.when(text.rlike(_ZONED), text), data_type)


def _local(decoder: Decoder, value: Column) -> Column:
    """Decode a time without a zone in ISO 8601, which Debezium writes with a ``Z``."""
    text = _string_text(value)
    if isinstance(decoder.type, T.TimestampNTZType):
        return exact_cast(F.regexp_replace(text, r"Z\z", ""), decoder.type)
    return _zoned(decoder, value)


def _unscaled(decoder: Decoder, value: Column) -> Column:
    # A JSON string is base64, the default. With decimal.format=NUMERIC the value is a JSON number.
    unscaled_value = F.try_to_binary(_string_text(value), F.lit("base64"))
    data_type = decoder.type
    if isinstance(data_type, T.DecimalType) and data_type.precision <= LONG_DIGITS:
        number = compute_once(unscaled_value, lambda octets: long_decimal(octets, decoder.scale))
        return F.coalesce(
            compute_once(number, lambda decimal: cast_decimal(decimal, data_type)),
            exact_cast(_number_text(value), data_type),
        )
    return exact_cast(F.coalesce(decimal_text(unscaled_value, F.lit(decoder.scale)), _number_text(value)), data_type)


def _variable(decoder: Decoder, value: Column) -> Column:
    unscaled_value = F.try_to_binary(F.try_variant_get(value, variant_path("value"), "string"), F.lit("base64"))
    scale = F.try_variant_get(value, variant_path("scale"), "int")
    fits = _is_variable_decimal(value) & scale.between(-_LARGEST_SCALE, _LARGEST_SCALE)
    text = F.when(fits, decimal_text(unscaled_value, scale))
    return compute_once(text, lambda number: exact_cast(number, decoder.type))


def _mixed(decoder: Decoder, value: Column) -> Column:
    """Decode a value of a column without a schema whose values have several JSON types."""
    return F.when(_is_variable_decimal(value), _variable(decoder, value)).otherwise(_plain(decoder, value))


def _is_variable_decimal(value: Column) -> Column:
    """Return whether a value is an object with the fields of a ``VariableScaleDecimal``, and no others."""
    return F.schema_of_variant(value) == _VARIABLE_DECIMAL


def _struct(decoder: Decoder, value: Column) -> Column:
    assert isinstance(decoder.type, T.StructType)  # noqa: S101 (by the decoder's encoding)
    parts = [(member(value, name), part) for name, part in decoder.parts]
    names = [name for name, _ in decoder.parts]
    unknown_fields = F.map_filter(
        object_fields(value),
        lambda name, nested_value: ~(_is_null(nested_value) | (name.isin(*names) if names else F.expr("false"))),
    )
    fits = is_object(value) & (F.size(unknown_fields) == 0)
    for nested_value, part in parts:
        fits = fits & (nested_value.isNull() | part.decode(nested_value).isNotNull())
    fields = [
        part.decode(nested_value).alias(name)
        for name, (nested_value, part) in zip(decoder.type.names, parts, strict=True)
    ]
    return F.when(fits, F.struct(*fields))


def _array(decoder: Decoder, value: Column) -> Column:
    element_decoder = decoder.parts[0][1]
    elements = F.try_variant_get(value, "$", "array<variant>")
    return F.when(
        F.forall(elements, lambda element: _is_null(element) | element_decoder.decode(element).isNotNull()),
        F.transform(elements, element_decoder.decode),
    )


def _map(decoder: Decoder, value: Column) -> Column:
    value_decoder = decoder.parts[0][1]
    entries = object_fields(value)
    return F.when(
        F.forall(F.map_values(entries), lambda entry: _is_null(entry) | value_decoder.decode(entry).isNotNull()),
        F.transform_values(entries, lambda _, entry: value_decoder.decode(entry)),
    )


def _is_null(value: Column) -> Column:
    return value.isNull() | F.is_variant_null(value)


_DECODERS: Mapping[str, Callable[[Decoder, Column], Column]] = {
    "plain": _plain,
    "base64": _base64,
    "days": _days,
    "date": _date,
    **dict.fromkeys(_UNITS, _time),
    "zoned": _zoned,
    "local": _local,
    "unscaled": _unscaled,
    "variable": _variable,
    "mixed": _mixed,
    "variant": lambda _, value: value,
    "absent": lambda decoder, _: F.lit(None).cast(decoder.type),
    "struct": _struct,
    "array": _array,
    "map": _map,
}
