"""How a value in a message becomes a value of Spark's: by Kafka Connect's schema, by a column's type, or by its looks.

A value that does not fit its type becomes null, and never another value; see
:mod:`writer_jobs.feeds.debezium.json_values`.

Sources: Kafka Connect's ``JsonConverter``; the semantic types of "Data type mappings" in the pages of Debezium's
connectors, https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

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

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, MOST_DIGITS
from writer_jobs.delta.type_differences import DIGITS, holds, wider_of
from writer_jobs.feeds.debezium.json_values import Decoder

_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."


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
        return _struct(*((field["field"], of_connect(field)) for field in schema["fields"]))
    if kind == "array":
        return _array(of_connect(schema["items"]))
    if kind == "map" and schema["keys"]["type"] == "string":
        return _map(of_connect(schema["values"]))
    return _PRIMITIVE.get(kind, Decoder(StringType()))


def of_column(kind: DataType, values: DataType | None = None, *, is_fixed: bool = False) -> Decoder:
    """Return the decoder of values without a schema, for a column of this type.

    Fields that the column lacks are added, and numbers get the digits that the values have. Numbers are no
    timestamps: only a schema has their unit.

    Args:
        kind: Type of the column.
        values: Type that Spark has inferred for the values.
        is_fixed: Whether the type must stay as it is.

    """
    if isinstance(kind, StructType):
        return _of_struct_column(kind, values if isinstance(values, StructType) else StructType())
    if isinstance(kind, ArrayType):
        return _array(of_column(kind.elementType, values.elementType if isinstance(values, ArrayType) else None))
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _map(of_column(kind.valueType))
    if not is_fixed and (wider := _with_digits(kind, values)) is not None:
        return Decoder(wider)
    return Decoder(kind, _WITHOUT_SCHEMA.get(type(kind), "plain"))


def _of_struct_column(kind: StructType, values: StructType) -> Decoder:
    same = [field for field in values if field.name in kind.names]
    inferred = {field.name.lower(): field for field in (*values, *same)}
    names = {field.name.lower() for field in kind}
    types = ((field, inferred.get(field.name.lower(), field)) for field in kind)
    parts = [(json.name, field.name, of_column(field.dataType, json.dataType)) for field, json in types]
    new = ((field.name, of_inferred(field.dataType)) for field in values if field.name.lower() not in names)
    parts += [(name, name, part) for name, part in new if part is not None]
    fields = [StructField(name, part.type) for _, name, part in parts]
    return Decoder(StructType(fields), "struct", parts=tuple((name, part) for name, _, part in parts))


def _with_digits(kind: DataType, values: DataType | None) -> DataType | None:
    """Return the decimal type that has the digits of a column and of values; None: the column's type has them."""
    if not isinstance(values, DecimalType) or not isinstance(kind, (DecimalType, *DIGITS)):
        return None
    scale = kind.scale if isinstance(kind, DecimalType) else 0
    digits = kind.precision - kind.scale if isinstance(kind, DecimalType) else DIGITS[type(kind)]
    # Spark takes every JSON number without a point for one of 20 digits.
    more = values.precision - values.scale > max(digits, DIGITS[LongType])
    wider = DecimalType(
        min(MOST_DIGITS, (values.precision - values.scale if more else digits) + max(scale, values.scale)),
        max(scale, values.scale),
    )
    fits = wider.precision - wider.scale >= digits and (more or wider.scale > scale)
    return wider if fits else None


def of_inferred(kind: DataType) -> Decoder | None:
    """Return the decoder of values of which Spark has inferred a type; None if all are null."""
    if isinstance(kind, NullType):
        return None
    if isinstance(kind, DecimalType) and kind.precision <= DOUBLE_DIGITS:
        # What was written with a point, as doubles are.
        return Decoder(DoubleType())
    if isinstance(kind, StructType):
        parts = ((field.name, of_inferred(field.dataType)) for field in kind)
        fields = [(name, part) for name, part in parts if part is not None]
        # Delta has no structs without fields.
        return _struct(*fields) if fields else Decoder(StringType())
    if isinstance(kind, ArrayType):
        return _array(of_inferred(kind.elementType) or Decoder(StringType()))
    # Of several types: their text.
    return Decoder(StringType()) if isinstance(kind, VariantType) else Decoder(kind)


def common_type(kinds: list[DataType], column: DataType | None) -> DataType | None:
    """Return the type that holds values of all types, for a table's column (None: new); None if there is none."""
    if isinstance(column, StringType):
        return column if is_held_by_text(kinds) else None

    def wider(one: DataType | None, two: DataType) -> DataType | None:
        return None if one is None else wider_of(one, two)

    return reduce(wider, kinds[1:], kinds[0])


def is_held_by_text(kinds: Iterable[DataType]) -> bool:
    """Return whether a string column holds the values of all types, in every time zone."""
    return all(holds(StringType(), kind) for kind in kinds)


def _struct(*parts: tuple[str, Decoder]) -> Decoder:
    return Decoder(StructType([StructField(name, part.type) for name, part in parts]), "struct", parts=parts)


def _array(element: Decoder) -> Decoder:
    return Decoder(ArrayType(element.type), "array", parts=(("element", element),))


def _map(value: Decoder) -> Decoder:
    return Decoder(MapType(StringType(), value.type), "map", parts=(("value", value),))


def _decimal(parameters: Mapping[str, str]) -> Decoder:
    scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", MOST_DIGITS))
    fits = 0 <= scale <= precision <= MOST_DIGITS
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


def struct_ddl(inferred: str) -> str:
    """Return what ``schema_of_variant_agg`` says as Spark's SQL writes it."""
    parts = re.split(r"(`(?:[^`]|``)*`)", inferred)
    return "".join(part if part.startswith("`") else part.replace("OBJECT<", "STRUCT<") for part in parts)
