"""The columns of a batch of change events: the schemas of the messages, and the types and decoders of the columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, NumericType, StringType, StructField, StructType

from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.decoders import (
    column_decoder,
    common_type,
    connect_decoder,
    inferred_decoder,
    is_held_by_string,
    struct_ddl,
)
from writer_jobs.feeds.debezium.envelopes import FILTERED, ROW, SKIPPED, TRUNCATE
from writer_jobs.feeds.debezium.flattened import is_metadata
from writer_jobs.feeds.debezium.infinity import Infinity
from writer_jobs.feeds.debezium.json_values import Decoder
from writer_jobs.feeds.message_values import member, object_fields, variant_path

# A JSON string that is base64, or a number without a decimal point.
_BASE64_OR_NUMBER = r'^"[-A-Za-z0-9+/=]+"\z'

#: The decoders of one column, each with the numbers of the groups that use it.
ColumnDecoders = dict[Decoder, list[int]]


class SchemaGroup:
    """The messages of one row of :func:`summarize_schemas`: messages with the same schema, or without a schema.

    Without a schema, the types of known columns, by lower-case name, and the names of the keys affect the decoders.

    Attributes:
        schema: Schema of the values as JSON; None for messages without a schema.
        key_schema: Schema of the keys as JSON; None for keys without a schema.
        columns: Decoders of the row's columns.
        keys: Decoders of the key's columns; for messages without a schema also of the columns in ``before``.
        is_invalid: Whether the schema is not Connect's schema of a change event.

    """

    def __init__(self, summary: Row, types: Mapping[str, DataType], key_names: Collection[str]) -> None:
        schema, key_schema = summary["schema"], summary["key_schema"]
        columns = keys = None
        with suppress(AttributeError, KeyError, TypeError, ValueError, StopIteration):
            columns = (
                _inferred_decoders(summary["shape"], types, key_names) if schema is None else _row_decoders(schema)
            )
            keys = (
                _inferred_decoders(summary["key_shape"], types, key_names)
                if key_schema is None
                else _field_decoders(json.loads(key_schema))
            )
        # A delete uses only the key of `before`, so the types in it do not affect the row's columns.
        keys_before = _inferred_decoders(summary["old_shape"], types, key_names) if schema is None else {}
        self.schema: str | None = schema
        self.key_schema: str | None = key_schema
        self.columns: Mapping[str, Decoder] = columns or {}
        self.keys: Mapping[str, Decoder] = {**keys_before, **(keys or {})}
        self.is_invalid = columns is None or keys is None


def summarize_schemas(envelopes: DataFrame) -> list[Row]:
    """Return one row for each schema: the counts, connectors, tables and inferred types of its messages."""
    is_row, payload, key = F.col("kind") == ROW, F.col("payload"), F.col("key_payload")
    has_no_schema = is_row & F.col("schema").isNull()
    connector = F.coalesce(F.try_variant_get(payload, variant_path("source", "connector"), "string"), F.lit(""))
    names = F.map_keys(object_fields(key))
    summaries = envelopes.groupBy("schema", "key_schema").agg(
        F.count_if(F.col("kind") == SKIPPED).alias("skipped"),
        F.count_if(F.col("kind") == FILTERED).alias("filtered"),
        F.collect_set(F.when(F.col("kind").isin(ROW, TRUNCATE), F.col("source_table"))).alias("tables"),
        F.count_if(is_row).alias("rows"),
        F.collect_set(F.when(F.col("kind") == FILTERED, F.col("source_table"))).alias("filtered_tables"),
        F.count_if(F.col("kind") == TRUNCATE).alias("truncates"),
        F.min(F.when(F.col("kind") == TRUNCATE, F.col("origin"))).alias("truncate"),
        F.collect_set(F.when(F.col("kind").isin(ROW, TRUNCATE), connector)).alias("connectors"),
        F.collect_set(F.when(is_row, names)).alias("names"),
        F.schema_of_variant_agg(F.when(has_no_schema, member(payload, "after"))).alias("shape"),
        F.schema_of_variant_agg(F.when(has_no_schema, member(payload, "before"))).alias("old_shape"),
        F.schema_of_variant_agg(F.when(is_row & F.col("key_schema").isNull(), key)).alias("key_shape"),
    )
    return list(summaries.collect())


def message_keys(summaries: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns of the messages' keys.

    Raises:
        FeedError: The messages have no keys, or keys with different columns.

    """
    keys = sorted({tuple(sorted(names)) for summary in summaries for names in summary["names"] if names})
    if summaries and not keys:
        raise FeedError("the messages have no keys: name the columns that together identify a row (keys)")
    if len(keys) > 1:
        key_lists = " and ".join(f"({', '.join(names)})" for names in keys)
        raise FeedError(f"the messages have keys with different columns, {key_lists}: name the key columns (keys)")
    return keys[0] if keys else ()


def _row_decoders(schema: str) -> dict[str, Decoder]:
    """Return the decoders of the row's columns by the schema of a change event."""
    return _field_decoders(next(field for field in json.loads(schema)["fields"] if field["field"] == "after"))


def _field_decoders(schema: Mapping[str, Any]) -> dict[str, Decoder]:
    # The schema of a flattened event names the metadata, too; see the module ``flattened``.
    is_flattened = bool(schema.get("flattened"))
    fields = (field for field in schema.get("fields", ()) if not (is_flattened and is_metadata(field["field"])))
    return {field["field"]: connect_decoder(field) for field in fields}


def _inferred_decoders(shape: str, types: Mapping[str, DataType], key_names: Collection[str]) -> dict[str, Decoder]:
    """Return the decoders of columns without a schema, by their known types or else by the inferred types."""
    data_type, fixed_names = DataType.fromDDL(struct_ddl(shape)), {name.lower() for name in key_names}
    decoders: dict[str, Decoder | None] = {}
    for column in data_type if isinstance(data_type, StructType) else ():
        name, inferred_type = column.name.lower(), column.dataType
        decoders[column.name] = (
            column_decoder(types[name], inferred_type, is_fixed=name in fixed_names)
            if name in types
            else inferred_decoder(inferred_type)
        )
    return {name: decoder for name, decoder in decoders.items() if decoder is not None}


class RowColumns:
    """The columns of a batch's rows: those of all schemas, with types that hold the values of all messages.

    Args:
        summaries: Rows of :func:`summarize_schemas` with changes of rows.
        keys: Key columns; None for the fields of the messages' keys.
        infinity: What infinite dates and times become.
        local_times: Whether new columns with times without a zone are ``timestamp_ntz``.

    Attributes:
        groups: The groups of messages by schema.
        keys: Key columns in the messages' spelling.
        types: Types of the columns by name; :attr:`schema` has the same columns and types.

    Raises:
        FeedError: The messages have no keys, or keys with different columns; column names differ by case only; no type
            holds all values of a column.

    """

    def __init__(
        self,
        summaries: Sequence[Row],
        table: TableState | None,
        keys: Sequence[str] | None,
        infinity: Infinity,
        *,
        local_times: bool,
    ) -> None:
        self._infinity, self._local_times = infinity, local_times
        self._table_types = {} if table is None else {field.name.lower(): field.dataType for field in table.schema}
        # Messages with schemas come first: their types apply to messages without schemas.
        summaries = sorted(summaries, key=lambda summary: (summary["schema"] is None, summary["key_schema"] is None))
        self.keys = message_keys(summaries) if keys is None else tuple(keys)
        self.groups: list[SchemaGroup] = []
        self.types: dict[str, DataType] = {}
        self._decoders: dict[str, ColumnDecoders] = {}
        for summary in summaries:
            known_types = {name.lower(): data_type for name, data_type in self.types.items()} | self._table_types
            self.groups.append(SchemaGroup(summary, known_types, self.keys))
            self._merge_groups()
        spelling = {name.lower(): name for group in self.groups for name in (*group.keys, *group.columns)}
        self.keys = tuple(spelling.get(name.lower(), name) for name in self.keys)
        self._merge_groups()
        self.schema = StructType([StructField(name, data_type) for name, data_type in self.types.items()])

    def group_number(self) -> Column:
        """Return the number of a message's group, from its columns ``schema`` and ``key_schema``."""
        group_number = F.lit(None).cast("int")
        for number, group in enumerate(self.groups):
            is_same = F.col("schema").eqNullSafe(group.schema) & F.col("key_schema").eqNullSafe(group.key_schema)
            group_number = F.when(is_same, number).otherwise(group_number)
        return group_number

    def text(self, name: str) -> Column:
        """Return a column's value in a message as text: for a delete the key, else the row after the change."""
        is_delete, payload = F.col("op") == "d", F.col("payload")

        def extract(decoder: Decoder) -> Column:
            return self._without_infinity(decoder, extract_text(decoder))

        def extract_text(decoder: Decoder) -> Column:
            after = decoder.extract(payload, "after", name)
            if name not in self.keys:
                return F.when(~is_delete, after)
            key = decoder.extract(F.col("key_payload"), name)
            text_before = decoder.extract(payload, "before", name)
            return F.when(is_delete, F.coalesce(key, text_before)).otherwise(F.coalesce(after, key))

        return self._for_group(name, extract)

    def text_before(self, name: str) -> Column:
        """Return a column's value before the change as text."""
        return self._for_group(
            name, lambda decoder: self._without_infinity(decoder, decoder.extract(F.col("payload"), "before", name))
        )

    def _without_infinity(self, decoder: Decoder, text: Column) -> Column:
        """Return a column's text; null for an infinite date or time if infinity becomes null."""
        return F.when(~decoder.is_infinite(text), text) if self._infinity == "null" else text

    def is_refused_infinity(self, name: str, text: Column) -> Column:
        """Return whether a column's text is an infinite date or time, and such messages become dead letters."""
        if self._infinity != "dead-letter":
            return F.expr("false")
        return self._for_group(name, lambda decoder: decoder.is_infinite(text))

    def is_ambiguous_number(self, name: str, text: Column) -> Column:
        """Return whether a text without a schema, for a column of numbers, is base64 or a number without a point."""
        groups = [number for number, group in enumerate(self.groups) if group.schema is None]
        if not groups or not isinstance(self.types[name], NumericType):
            return F.expr("false")
        return F.col("group").isin(*groups) & text.rlike(_BASE64_OR_NUMBER)

    def decode(self, name: str, text: Column) -> Column:
        """Decode a column's text; null if it does not fit the column's type."""
        return self._for_group(name, lambda decoder: decoder.decode_text(text).cast(self.types[name]))

    def _for_group(self, name: str, expression: Callable[[Decoder], Column]) -> Column:
        """Return an expression for the decoder that a message's group uses for a column."""
        decoders = self._decoders[name]
        if len(decoders) == 1:
            return expression(next(iter(decoders)))
        cases = [(F.col("group").isin(*groups), expression(decoder)) for decoder, groups in decoders.items()]
        return reduce(lambda when_chain, case: when_chain.when(*case), cases[1:], F.when(*cases[0]))

    def _merge_groups(self) -> None:
        """Compute the columns of all groups, their decoders and their types."""
        columns: dict[str, ColumnDecoders] = {}
        for number, group in enumerate(self.groups):
            row = {**{name: group.keys[name] for name in self.keys if name in group.keys}, **group.columns}
            for name, decoder in row.items():
                typed_decoder = decoder.with_local_times() if self._local_times else decoder
                decoder_for_column = typed_decoder.for_column(self._table_types.get(name.lower()))
                decoder_for_column = decoder_for_column.with_infinity(self._infinity)
                columns.setdefault(name, {}).setdefault(decoder_for_column, []).append(number)
        lower_names = [name.lower() for name in columns]
        if duplicate_names := sorted({name for name in columns if lower_names.count(name.lower()) > 1}):
            raise FeedError(f"the rows have columns whose names differ by case alone: {', '.join(duplicate_names)}")
        self._decoders = {name: self._with_all_fields(name, decoders) for name, decoders in columns.items()}
        self.types = {name: self._common_type(name, list(decoders)) for name, decoders in self._decoders.items()}

    def _with_all_fields(self, name: str, decoders: ColumnDecoders) -> ColumnDecoders:
        """Add to each decoder of a column the nested fields of the others and of the table's column."""
        data_type = self._table_types.get(name.lower())
        for decoder in decoders:
            data_type = decoder.with_fields(data_type).type
        complete_decoders: ColumnDecoders = {}
        for decoder, groups in decoders.items():
            complete_decoders.setdefault(decoder.with_fields(data_type), []).extend(groups)
        return complete_decoders

    def _common_type(self, name: str, decoders: list[Decoder]) -> DataType:
        data_types = [decoder.type for decoder in decoders]
        column = self._table_types.get(name.lower())
        if (common := common_type(data_types, column)) is not None:
            return common
        type_names = " and ".join(sorted({data_type.simpleString() for data_type in data_types}))
        if isinstance(column, StringType):
            raise FeedError(
                f"the table's column {name} is a string, which does not hold {type_names} in every time zone: feed a "
                "new table"
            )
        advice = "make the table's column a string" if is_held_by_string(data_types) else "feed a new table"
        raise FeedError(
            f"the type of the column {name} has changed at the source, and no type holds both {type_names}: apply only "
            f"the events before the change, or {advice}"
        )
