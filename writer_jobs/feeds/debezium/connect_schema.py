"""Convert an Avro schema that Confluent's ``AvroConverter`` wrote to the Connect schema that ``JsonConverter`` writes.

The converter stores what Avro lacks in the properties ``connect.name``, ``connect.type`` and ``connect.parameters``.

Sources: Confluent's ``AvroData.java``; the Avro specification, "Logical Types".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Prefix of the names of Kafka Connect's semantic types.
CONNECT = "org.apache.kafka.connect.data."
#: Prefix of the names of Debezium's semantic types of dates and times.
DEBEZIUM = "io.debezium.time."
_PRIMITIVE = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "fixed": "bytes",
    "string": "string",
    "enum": "string",
}
#: Semantic types of logical types of programs other than Kafka Connect.
_LOGICAL = {
    "date": f"{CONNECT}Date",
    "time-millis": f"{CONNECT}Time",
    "timestamp-millis": f"{CONNECT}Timestamp",
    "timestamp-micros": f"{DEBEZIUM}MicroTimestamp",
    "local-timestamp-millis": f"{DEBEZIUM}Timestamp",
    "local-timestamp-micros": f"{DEBEZIUM}MicroTimestamp",
}


def connect_schema(avro_schema: str) -> str:
    """Return the Connect schema, as JSON, of an Avro schema.

    Raises:
        ValueError: The text is not an Avro schema, or a type contains itself, or is a union of several types.

    """
    try:
        return json.dumps(_Converter().convert(json.loads(avro_schema), ""), separators=(",", ":"))
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not an Avro schema of Kafka Connect: {error!r}") from error


class _Converter:
    def __init__(self) -> None:
        self._named_types: dict[str, dict[str, Any]] = {}

    def convert(self, schema: Any, namespace: str) -> dict[str, Any]:
        """Return the Connect schema of an Avro schema inside a namespace."""
        if isinstance(schema, str):
            return {"type": _PRIMITIVE[schema]} if schema in _PRIMITIVE else self._named_type(schema, namespace)
        if isinstance(schema, list):
            types = [member for member in schema if member != "null"]
            if len(types) != 1:
                raise ValueError(f"a union of {len(types)} types")
            return {**self.convert(types[0], namespace), "optional": len(types) < len(schema)}
        if isinstance(schema["type"], (dict, list)):
            return self.convert(schema["type"], namespace)
        return {**self._type(schema, namespace), **_semantic_type(schema)}

    def _type(self, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        avro_type = schema["type"]
        if avro_type == "array":
            return {"type": "array", "items": self.convert(schema["items"], namespace)}
        if avro_type == "map":
            return {"type": "map", "keys": {"type": "string"}, "values": self.convert(schema["values"], namespace)}
        if avro_type not in ("record", "enum", "fixed"):
            primitive = schema.get("connect.type", _PRIMITIVE.get(avro_type))
            return self._named_type(avro_type, namespace) if primitive is None else {"type": primitive}
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        if avro_type == "record":
            inner_namespace = name.rpartition(".")[0]
            fields = [
                {**self.convert(field["type"], inner_namespace), "field": field["name"]} for field in schema["fields"]
            ]
            converted: dict[str, Any] = {"type": "struct", "fields": fields}
        else:
            converted = {"type": _PRIMITIVE[avro_type]}
        self._named_types[name] = {**converted, **_semantic_type(schema)}
        return converted

    def _named_type(self, name: str, namespace: str) -> dict[str, Any]:
        return self._named_types[_full_name(name, namespace)]


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _semantic_type(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and the parameters of a semantic type; empty for other types."""
    logical_type = schema.get("logicalType")
    name = schema.get("connect.name") or _LOGICAL.get(logical_type or "")
    parameters = schema.get("connect.parameters")
    if logical_type == "decimal":
        name = f"{CONNECT}Decimal"
        parameters = {
            "scale": str(schema.get("scale", 0)),
            "connect.decimal.precision": str(schema["precision"]),
            **(parameters or {}),
        }
    return ({} if name is None else {"name": name}) | ({} if parameters is None else {"parameters": parameters})
