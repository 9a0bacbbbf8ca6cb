"""Parse Debezium's messages: the kind of each message, and its payload, key, schemas and source table.

Source: "Data change events" in the pages of Debezium's connectors,
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.flattened import has_metadata, is_unflattened, nested
from writer_jobs.feeds.debezium.positions import TIMES
from writer_jobs.feeds.message_values import (
    compute_once,
    has_inexact_number,
    is_object,
    member,
    object_fields,
    parse_single_value,
    variant_path,
)
from writer_jobs.merge.table_feed import has_name

#: Operations that change a row.
ROW_OPS = ("c", "r", "u", "d")
_TRUNCATE, _MESSAGE = "t", "m"
_TABLE_FIELDS = ("db", "schema", "table")
#: Kinds of messages.
ROW, SKIPPED, TRUNCATE, DEAD, FILTERED = "row", "skipped", "truncate", "dead", "filtered"
#: Fields of the events that mark the begin and the end of a transaction (``provide.transaction.metadata``).
_MARKER_FIELDS = ("status", "id", "ts_ms", "event_count", "data_collections")


def parse_envelopes(messages: DataFrame, source_tables: Collection[str] = (), *, flattened: bool = False) -> DataFrame:
    """Parse each message once. The arguments are those of :func:`decode`.

    Returns:
        The columns of ``messages``; ``payload`` and ``key_payload`` (variant) without their schemas; ``schema`` and
        ``key_schema`` (JSON), null for messages without schemas; ``op``; ``source_table``; ``kind``; ``reason`` of a
        dead letter.

    """
    text, key_text = F.col("value").cast("string"), F.col("key").cast("string")
    envelopes = messages.select(
        *("key", "value", "origin"),
        compute_once(parse_single_value(text), lambda value: F.when(is_object(value), value)).alias("json_value"),
        parse_single_value(key_text).alias("json_key"),
    )
    json_value = F.col("json_value")
    # A line of a file can have the key and the value of a message.
    if flattened:
        # All other names may be columns of the row.
        is_pair = F.col("key").isNull() & _has_exactly(json_value, "key", "value")
    else:
        is_pair = (
            F.col("key").isNull()
            & ~_has_field(json_value, "op")
            & ~_has_field(json_value, "payload")
            & _has_field(json_value, "value")
        )
    envelopes = envelopes.withColumn("is_pair", F.coalesce(is_pair, F.expr("false")))
    envelopes = envelopes.select(
        *("key", "value", "origin", "json_value"),
        F.when(F.col("is_pair"), member(json_value, "value")).otherwise(json_value).alias("body"),
        F.when(F.col("is_pair"), member(json_value, "key")).otherwise(F.col("json_key")).alias("key_body"),
        F.when(F.col("is_pair"), F.get_json_object(text, "$.value.schema"))
        .otherwise(F.get_json_object(text, "$.schema"))
        .alias("schema"),
        F.when(F.col("is_pair"), F.get_json_object(text, "$.key.schema"))
        .otherwise(F.get_json_object(key_text, "$.schema"))
        .alias("schema_of_key"),
    )
    body, key_body = F.col("body"), F.col("key_body")
    # Without a schema, these may be names of the key's columns.
    has_schema = _has_field(key_body, "payload") & _has_field(key_body, "schema") & _may_have_schema(key_body)
    if flattened:
        has_payload = _has_exactly(body, "payload", "schema") & _may_have_schema(body)
    else:
        has_payload = _has_field(body, "payload")
    envelopes = envelopes.select(
        *("key", "value", "origin", "json_value", "body"),
        (F.when(has_payload, F.col("schema")) if flattened else F.col("schema")).alias("schema"),
        F.when(has_payload, member(body, "payload")).otherwise(body).alias("payload"),
        F.when(has_schema, member(key_body, "payload")).otherwise(key_body).alias("key_payload"),
        F.when(has_schema, F.col("schema_of_key")).alias("key_schema"),
    ).withColumn("op", F.try_variant_get("payload", "$.op", "string"))
    reason = _dead_letter_reason(F.col("value").cast("string"))
    if flattened:
        reason = _flattened_reason(reason)
        flags = {
            "is_skipped": _is_skipped_in_flattened_topic(),
            "is_null": _is_tombstone(),
            "is_unflattened": is_unflattened(F.col("payload")),
        }
        envelopes = nested(envelopes.withColumns(flags))
        envelopes = envelopes.withColumn("op", F.try_variant_get("payload", "$.op", "string"))
    else:
        envelopes = envelopes.withColumn("is_skipped", _is_tombstone() | _is_skipped())
    envelopes = envelopes.withColumn("source_table", _source_table(F.col("payload")))
    is_filtered = ~_has_any_name(F.col("source_table"), source_tables)
    is_skipped = F.col("is_skipped")
    return (
        envelopes.withColumn("reason", F.when(~is_skipped, reason))
        .withColumn(
            "kind",
            F.when(is_skipped, SKIPPED)
            # An event of another table is filtered even if it cannot be decoded.
            .when(is_filtered & (F.col("source_table") != ""), FILTERED)
            .when(F.col("reason").isNotNull(), DEAD)
            .when(is_filtered, FILTERED)
            .when(F.col("op") == _TRUNCATE, TRUNCATE)
            .otherwise(ROW),
        )
        .drop("json_value", "body", "is_skipped", "is_null", "is_unflattened")
    )


def resolve_source_tables(names: Collection[str], tables: Collection[str]) -> tuple[str, ...] | None:
    """Return the source tables of a feed: the tables that the caller names, or the only table of the events.

    The result has the full name of each table, and the caller's name where no event is of that table. It is None if the
    events do not name their table. ``tables`` are the tables of the events, as ``db.schema.table``, with an empty name
    for events that do not name a table.

    Raises:
        FeedError: The events are of several tables and the caller names none, or a name matches several tables.

    """
    if names:
        return tuple(sorted({_full_name(name, tables) for name in names}))
    if len(tables) > 1:
        table_names = ", ".join(sorted(name or "(source.table is missing)" for name in tables))
        raise FeedError(
            f"the events are of several tables, {table_names}, whose rows would overwrite each other: pass "
            "--source-table NAME (source_tables) for the table to apply, or for each of its leaf partitions"
        )
    return tuple(name for name in tables if name) or None


def _full_name(name: str, tables: Collection[str]) -> str:
    full_names = sorted(table for table in tables if has_name(table, name))
    if len(full_names) > 1:
        raise FeedError(
            f"the name {name} matches several source tables, {', '.join(full_names)}, whose rows would overwrite each "
            "other: pass --source-table (source_tables) with the full name"
        )
    return full_names[0] if full_names else name


def _source_table(payload: Column) -> Column:
    """Return the table of an event as ``db.schema.table``; empty if the event does not name it."""
    db, schema, table = (F.try_variant_get(payload, variant_path("source", name), "string") for name in _TABLE_FIELDS)
    return F.when(table.isNull(), "").otherwise(F.concat_ws(".", db, schema, table))


def _has_any_name(table: Column, names: Collection[str]) -> Column:
    """Return whether a table has one of the names, with or without its database and schema; true without names."""
    if not names:
        return F.expr("true")
    return reduce(or_, ((table == name) | table.endswith(f".{name}") for name in names))


def _is_tombstone() -> Column:
    is_null = F.col("value").isNull() | (F.col("json_value").isNotNull() & F.col("payload").isNull())
    return F.coalesce(is_null, F.expr("false"))


def _is_skipped() -> Column:
    """Return whether a message changes no row, and is no tombstone.

    These are logical decoding messages, heartbeats, markers of transactions, and changes of the schema.
    """
    payload, op = F.col("payload"), F.col("op")
    is_heartbeat = _has_field(payload, "ts_ms") & _has_field(F.col("key_payload"), "serverName")
    is_other = op.isNull() & (is_heartbeat | _is_marker() | _is_schema_change())
    return F.coalesce((op == _MESSAGE) | is_other, F.expr("false"))


def _is_skipped_in_flattened_topic() -> Column:
    """Return whether a message changes no row, as :func:`_is_skipped`, where each name may be a column of a row."""
    payload, key = F.col("payload"), F.col("key_payload")
    is_message = (
        (F.col("op") == _MESSAGE) & is_object(member(payload, "source")) & is_object(member(payload, "message"))
    )
    is_heartbeat = _has_field(payload, "ts_ms") & _has_only(payload, TIMES) & _has_exactly(key, "serverName")
    is_skipped = is_message | is_heartbeat | _is_marker() | _is_schema_change()
    return F.coalesce(is_skipped & ~has_metadata(payload), F.expr("false"))


def _is_marker() -> Column:
    """Return whether a message marks the begin or the end of a transaction."""
    payload, key = F.col("payload"), F.col("key_payload")
    status, transaction, key_id = (
        F.try_variant_get(value, variant_path(name), "string")
        for value, name in ((payload, "status"), (payload, "id"), (key, "id"))
    )
    is_marker = status.isin("BEGIN", "END") & _has_field(payload, "event_count") & _has_only(payload, _MARKER_FIELDS)
    return F.coalesce(is_marker & (transaction == key_id), F.expr("false"))


def _is_schema_change() -> Column:
    """Return whether a message describes a change of the schema."""
    payload = F.col("payload")
    fields = (_has_field(payload, name) for name in ("databaseName", "ddl", "tableChanges"))
    is_change = reduce(and_, fields, is_object(member(payload, "source")))
    return F.coalesce(is_change & _has_exactly(F.col("key_payload"), "databaseName"), F.expr("false"))


def _flattened_reason(reason: Column) -> Column:
    """Return the reason of a dead letter in a topic of flattened events; ``reason`` is that of other topics."""
    return (
        F.when(
            F.col("is_null"),
            "a null value is a delete of a flattened event, and has no position: set "
            "delete.tombstone.handling.mode=rewrite in the transform ExtractNewRecordState",
        )
        .when(F.col("is_unflattened"), "the event is not flattened: use --decoder debezium")
        .when(F.col("op").isNull() & F.col("json_value").isNotNull(), "the value is not a row: it is not a JSON object")
        .otherwise(reason)
    )


def _dead_letter_reason(text: Column) -> Column:
    """Return the reason of a dead letter that is known before its row is decoded; null for other messages."""
    op, is_row = F.col("op"), F.coalesce(is_object(member(F.col("payload"), "after")), F.expr("false"))
    return (
        F.when(
            F.hex(F.substring("value", 1, 1)) == "00",
            "the value begins with a zero byte, Confluent's header of a schema id, and was not decoded: use "
            "--schema-registry if it is Avro; then the schema is not in the registry, or does not fit the value. For "
            "Protobuf and JSON Schema configure the connector to write plain JSON "
            "(org.apache.kafka.connect.json.JsonConverter)",
        )
        .when(~F.is_valid_utf8(text), "the value is not UTF-8")
        .when(F.col("json_value").isNull(), "the value is not one JSON object, or names a field twice")
        .when(
            op.isNull(),
            "the value is not a change event, because it has no op: if the connector has the transform "
            "ExtractNewRecordState, use --decoder debezium-flat",
        )
        .when(~op.isin(*ROW_OPS, _TRUNCATE), F.concat(F.lit("the operation is not known: "), op))
        .when(op.isin("c", "r", "u") & ~is_row, "the row is missing: after is not an object")
        .when(
            has_inexact_number(text) | has_inexact_number(F.col("key").cast("string")),
            "a number in the message has more digits than can be stored",
        )
    )


def _may_have_schema(value: Column) -> Column:
    """Return whether the field ``schema`` of a value is missing, null or an object, as in a schema of Kafka Connect."""
    return F.coalesce(is_object(member(value, "schema")), F.expr("true"))


def _has_exactly(value: Column, *names: str) -> Column:
    """Return whether a value is an object with these fields, and no others."""
    return reduce(and_, (_has_field(value, name) for name in names), _has_only(value, names))


def _has_only(value: Column, names: Collection[str]) -> Column:
    """Return whether a value is an object whose fields all have these names."""
    fields = F.map_keys(object_fields(value))
    return F.coalesce(F.size(F.array_except(fields, F.array(*map(F.lit, names)))) == 0, F.expr("false"))


def _has_field(value: Column, name: str) -> Column:
    return F.coalesce(F.try_variant_get(value, variant_path(name), "variant").isNotNull(), F.expr("false"))
