"""Choose the decoder of a column: by Kafka Connect's schema, by the table's column, or by the type that Spark infers.

A value that does not fit its type becomes null and never a different value; see
:mod:`writer_jobs.feeds.debezium.json_values`.

Sources: Kafka Connect's ``JsonConverter``; the semantic types of "Data type mappings" in the pages of Debezium's
connectors, https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, MOST_DIGITS
from writer_jobs.delta.type_differences import DIGITS, holds, wider_of
from writer_jobs.feeds.debezium.connect_schema import CONNECT, DEBEZIUM
from writer_jobs.feeds.debezium.json_values import Decoder


def connect_decoder(schema: Mapping[str, Any]) -> Decoder:
    """Return the decoder of a Connect schema, which ``JsonConverter`` writes with the payload.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: The schema is not a Connect schema.

    """
    name, connect_type = schema.get("name") or "", schema["type"]
    if name == f"{CONNECT}Decimal":
        return _decimal(schema["parameters"])
    if name in _SEMANTIC:
        return _SEMANTIC[name]
    if connect_type == "struct":
        return _struct(*((field["field"], connect_decoder(field)) for field in schema["fields"]))
    if connect_type == "array":
        return _array(connect_decoder(schema["items"]))
    if connect_type == "map" and schema["keys"]["type"] == "string":
        return _map(connect_decoder(schema["values"]))
    return _PRIMITIVE.get(connect_type, Decoder(T.StringType()))


def column_decoder(
    data_type: T.DataType, inferred_type: T.DataType | None = None, *, is_fixed: bool = False
) -> Decoder:
    """Return the decoder of values without a schema for a column of the table.

    ``inferred_type`` is the type that Spark infers from the values. The decoder's type has the fields of the column
    and, except in maps, of the values. Its decimals have the digits of both, unless the type of the column is fixed.
    Objects with the fields of ``VariableScaleDecimal`` become numbers or their text. Numbers do not become timestamps,
    because only a schema states their unit.
    """
    if isinstance(data_type, T.StructType):
        return _struct_column_decoder(
            data_type, inferred_type if isinstance(inferred_type, T.StructType) else T.StructType()
        )
    if isinstance(data_type, T.ArrayType):
        return _array(
            column_decoder(
                data_type.elementType, inferred_type.elementType if isinstance(inferred_type, T.ArrayType) else None
            )
        )
    if isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        return _map(column_decoder(data_type.valueType))
    if not is_fixed and (wider := _wider_decimal(data_type, inferred_type)) is not None:
        return Decoder(wider)
    return Decoder(data_type, _encoding_without_schema(data_type, inferred_type))


def _encoding_without_schema(data_type: T.DataType, inferred_type: T.DataType | None) -> str:
    if isinstance(data_type, (T.StringType, T.DecimalType, *DIGITS)):
        if inferred_type == _VARIABLE_DECIMAL:
            return "variable"
        if isinstance(inferred_type, T.VariantType):
            return "mixed"
    return _WITHOUT_SCHEMA.get(type(data_type), "plain")


def _struct_column_decoder(data_type: T.StructType, inferred_type: T.StructType) -> Decoder:
    # A field whose name has the same case comes last, so it replaces a field whose name differs by case.
    same_case = [field for field in inferred_type if field.name in data_type.names]
    inferred_fields = {field.name.lower(): field for field in (*inferred_type, *same_case)}
    names = {field.name.lower() for field in data_type}
    pairs = ((field, inferred_fields.get(field.name.lower(), field)) for field in data_type)
    parts = [(json.name, field.name, column_decoder(field.dataType, json.dataType)) for field, json in pairs]
    new_parts = (
        (field.name, inferred_decoder(field.dataType)) for field in inferred_type if field.name.lower() not in names
    )
    parts += [(name, name, part) for name, part in new_parts if part is not None]
    fields = [T.StructField(name, part.type) for _, name, part in parts]
    return Decoder(T.StructType(fields), "struct", parts=tuple((name, part) for name, _, part in parts))


def _wider_decimal(data_type: T.DataType, inferred_type: T.DataType | None) -> T.DataType | None:
    """Return the decimal type with the digits of a column and of values; None if the column keeps its type."""
    if not isinstance(inferred_type, T.DecimalType) or not isinstance(data_type, (T.DecimalType, *DIGITS)):
        return None
    scale = data_type.scale if isinstance(data_type, T.DecimalType) else 0
    digits = data_type.precision - data_type.scale if isinstance(data_type, T.DecimalType) else DIGITS[type(data_type)]
    # Among decimals, Spark infers 20 digits for each long integer.
    is_longer = inferred_type.precision - inferred_type.scale > max(digits, DIGITS[T.LongType])
    wider = T.DecimalType(
        min(
            MOST_DIGITS,
            (inferred_type.precision - inferred_type.scale if is_longer else digits) + max(scale, inferred_type.scale),
        ),
        max(scale, inferred_type.scale),
    )
    fits = wider.precision - wider.scale >= digits and (is_longer or wider.scale > scale)
    return wider if fits else None


def inferred_decoder(data_type: T.DataType) -> Decoder | None:
    """Return the decoder of values by the type that Spark infers from them; None if all values are null."""
    if isinstance(data_type, T.NullType):
        return None
    if isinstance(data_type, T.DecimalType) and data_type.precision <= DOUBLE_DIGITS:
        # JSON writes doubles with a point, and Spark infers a decimal for them.
        return Decoder(T.DoubleType())
    if data_type == _VARIABLE_DECIMAL:
        # No other struct that Debezium writes has these fields.
        return Decoder(T.StringType(), "variable")
    if isinstance(data_type, T.StructType):
        parts = ((field.name, inferred_decoder(field.dataType)) for field in data_type)
        fields = [(name, part) for name, part in parts if part is not None]
        # Delta has no structs without fields.
        return _struct(*fields) if fields else Decoder(T.StringType())
    if isinstance(data_type, T.ArrayType):
        return _array(inferred_decoder(data_type.elementType) or Decoder(T.StringType()))
    # Values of several types become their text.
    return Decoder(T.StringType(), "mixed") if isinstance(data_type, T.VariantType) else Decoder(data_type)


def common_type(data_types: list[T.DataType], column: T.DataType | None) -> T.DataType | None:
    """Return the type that holds the values of all types; None if no type does.

    ``column`` is the type of the table's column; None for a new column.
    """
    if isinstance(column, T.StringType):
        return column if is_held_by_string(data_types) else None

    def wider(common: T.DataType | None, data_type: T.DataType) -> T.DataType | None:
        return None if common is None else wider_of(common, data_type)

    return reduce(wider, data_types[1:], data_types[0])


def is_held_by_string(data_types: Iterable[T.DataType]) -> bool:
    """Return whether a string column holds the values of all types, in every time zone."""
    return all(holds(T.StringType(), data_type) for data_type in data_types)


def _struct(*parts: tuple[str, Decoder]) -> Decoder:
    return Decoder(T.StructType([T.StructField(name, part.type) for name, part in parts]), "struct", parts=parts)


def _array(element: Decoder) -> Decoder:
    return Decoder(T.ArrayType(element.type), "array", parts=(("element", element),))


def _map(value: Decoder) -> Decoder:
    return Decoder(T.MapType(T.StringType(), value.type), "map", parts=(("value", value),))


def _decimal(parameters: Mapping[str, str]) -> Decoder:
    scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", MOST_DIGITS))
    fits = 0 <= scale <= precision <= MOST_DIGITS
    return Decoder(T.DecimalType(precision, scale) if fits else T.StringType(), "unscaled", scale)


_PRIMITIVE: Mapping[str, Decoder] = {
    "boolean": Decoder(T.BooleanType()),
    "int8": Decoder(T.ByteType()),
    "int16": Decoder(T.ShortType()),
    "int32": Decoder(T.IntegerType()),
    "int64": Decoder(T.LongType()),
    "float": Decoder(T.FloatType()),
    "float32": Decoder(T.FloatType()),
    "double": Decoder(T.DoubleType()),
    "float64": Decoder(T.DoubleType()),
    "bytes": Decoder(T.BinaryType(), "base64"),
}
#: Decoders by the name of Debezium's or Connect's semantic type. Times of day and durations stay numbers, because Delta
#: has no type for them. A semantic type that is not listed is decoded by its primitive type: Json, Uuid, Enum, Xml and
#: IsoTime as strings, Bits as bytes, geometries as structs.
_SEMANTIC: Mapping[str, Decoder] = {
    f"{DEBEZIUM}Date": Decoder(T.DateType(), "days"),
    f"{CONNECT}Date": Decoder(T.DateType(), "days"),
    f"{DEBEZIUM}IsoDate": Decoder(T.DateType(), "date"),
    f"{DEBEZIUM}Timestamp": Decoder(T.TimestampType(), "millis"),
    f"{CONNECT}Timestamp": Decoder(T.TimestampType(), "millis"),
    f"{DEBEZIUM}MicroTimestamp": Decoder(T.TimestampType(), "micros"),
    f"{DEBEZIUM}NanoTimestamp": Decoder(T.TimestampType(), "nanos"),
    f"{DEBEZIUM}ZonedTimestamp": Decoder(T.TimestampType(), "zoned"),
    f"{DEBEZIUM}IsoTimestamp": Decoder(T.TimestampType(), "local"),
    f"{DEBEZIUM}Time": Decoder(T.LongType()),
    f"{CONNECT}Time": Decoder(T.LongType()),
    "io.debezium.data.VariableScaleDecimal": Decoder(T.StringType(), "variable"),
}

#: Type that Spark infers for Debezium's ``VariableScaleDecimal`` without a schema.
_VARIABLE_DECIMAL = T.StructType([T.StructField("scale", T.LongType()), T.StructField("value", T.StringType())])

#: Encodings of values without a schema, by the type of the column; other simple types are encoded as ``plain``.
_WITHOUT_SCHEMA: Mapping[type[T.DataType], str] = {
    T.BinaryType: "base64",
    T.DateType: "date",
    T.TimestampType: "zoned",
    T.TimestampNTZType: "zoned",
    T.VariantType: "variant",
}


def struct_ddl(inferred_ddl: str) -> str:
    """Return a type from ``schema_of_variant_agg`` as Spark's SQL."""
    parts = re.split(r"(`(?:[^`]|``)*`)", inferred_ddl)
    return "".join(part if part.startswith("`") else part.replace("OBJECT<", "STRUCT<") for part in parts)
