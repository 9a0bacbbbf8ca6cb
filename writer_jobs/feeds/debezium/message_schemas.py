"""Schemas of change events: group messages by schema, and choose the decoders of each group's columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructType

from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.decoders import column_decoder, connect_decoder, inferred_decoder, struct_ddl
from writer_jobs.feeds.debezium.envelopes import FILTERED, ROW, SKIPPED, TRUNCATE
from writer_jobs.feeds.debezium.json_values import Decoder
from writer_jobs.feeds.message_values import member, variant_path


@dataclass(frozen=True)
class SchemaGroup:
    """Messages with one schema, or without a schema.

    Attributes:
        schema: Schema of the values as JSON; None for messages without a schema.
        key_schema: Schema of the keys as JSON; None for keys without a schema.
        columns: Decoders of the row's columns.
        keys: Decoders of the key's columns; for messages without a schema also of the columns in ``before``.
        is_invalid: Whether the schema is not Connect's schema of a change event.

    """

    schema: str | None
    key_schema: str | None
    columns: Mapping[str, Decoder]
    keys: Mapping[str, Decoder]
    is_invalid: bool

    @classmethod
    def of(cls, summary: Row, types: Mapping[str, DataType], key_names: Collection[str]) -> SchemaGroup:
        """Choose the decoders of a group.

        Args:
            summary: A row of :func:`summarize_schemas`.
            types: Types of known columns by lower-case name.
            key_names: The key columns.

        """
        schema, key_schema = summary["schema"], summary["key_schema"]
        columns = keys = None
        with suppress(KeyError, TypeError, ValueError, StopIteration):
            columns = _inferred(summary["shape"], types, key_names) if schema is None else _row_fields(schema)
            keys = (
                _inferred(summary["key_shape"], types, key_names)
                if key_schema is None
                else _fields(json.loads(key_schema))
            )
        # A delete uses only the key of `before`, so the types in it do not affect the row's columns.
        keys_before = _inferred(summary["old_shape"], types, key_names) if schema is None else {}
        return cls(schema, key_schema, columns or {}, {**keys_before, **(keys or {})}, columns is None or keys is None)


def summarize_schemas(envelopes: DataFrame) -> list[Row]:
    """Return one row for each schema: the counts, connectors, tables and inferred types of its messages.

    Args:
        envelopes: Messages, as :func:`~writer_jobs.feeds.debezium.envelopes.parse_envelopes` returns them.

    """
    is_row, payload, key = F.col("kind") == ROW, F.col("payload"), F.col("key_payload")
    has_no_schema = is_row & F.col("schema").isNull()
    connector = F.coalesce(F.try_variant_get(payload, variant_path("source", "connector"), "string"), F.lit(""))
    names = F.map_keys(F.try_variant_get(key, "$", "map<string,variant>"))
    summaries = envelopes.groupBy("schema", "key_schema").agg(
        F.count_if(F.col("kind") == SKIPPED).alias("skipped"),
        F.count_if(F.col("kind") == FILTERED).alias("filtered"),
        F.collect_set(F.when(F.col("kind").isin(ROW, TRUNCATE), F.col("source_table"))).alias("tables"),
        F.count_if(is_row).alias("rows"),
        F.min(F.when(F.col("kind") == TRUNCATE, F.col("origin"))).alias("truncate"),
        F.collect_set(F.when(is_row, connector)).alias("connectors"),
        F.collect_set(F.when(is_row, names)).alias("names"),
        F.schema_of_variant_agg(F.when(has_no_schema, member(payload, "after"))).alias("shape"),
        F.schema_of_variant_agg(F.when(has_no_schema, member(payload, "before"))).alias("old_shape"),
        F.schema_of_variant_agg(F.when(is_row & F.col("key_schema").isNull(), key)).alias("key_shape"),
    )
    return list(summaries.collect())


def message_keys(summaries: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns of the messages' keys.

    Args:
        summaries: Rows of :func:`summarize_schemas`.

    Raises:
        FeedError: The messages have no keys, or keys with different columns.

    """
    keys = sorted({tuple(sorted(names)) for summary in summaries for names in summary["names"] if names})
    if summaries and not keys:
        raise FeedError("the messages have no keys: name the columns that together identify a row (keys)")
    if len(keys) > 1:
        several = " and ".join(f"({', '.join(names)})" for names in keys)
        raise FeedError(f"the messages have keys of several sorts, {several}: name the key columns (keys)")
    return keys[0] if keys else ()


def _row_fields(schema: str) -> dict[str, Decoder]:
    """Return the decoders of the row's columns by the schema of a change event."""
    return _fields(next(field for field in json.loads(schema)["fields"] if field["field"] == "after"))


def _fields(schema: Mapping[str, Any]) -> dict[str, Decoder]:
    return {field["field"]: connect_decoder(field) for field in schema.get("fields", ())}


def _inferred(shape: str, types: Mapping[str, DataType], key_names: Collection[str]) -> dict[str, Decoder]:
    """Return the decoders of columns without a schema, by their known types or else by the inferred types."""
    data_type, fixed_names = DataType.fromDDL(struct_ddl(shape)), {name.lower() for name in key_names}
    decoders: dict[str, Decoder | None] = {}
    for column in data_type if isinstance(data_type, StructType) else ():
        name, values = column.name.lower(), column.dataType
        decoders[column.name] = (
            column_decoder(types[name], values, is_fixed=name in fixed_names)
            if name in types
            else inferred_decoder(values)
        )
    return {name: decoder for name, decoder in decoders.items() if decoder is not None}
