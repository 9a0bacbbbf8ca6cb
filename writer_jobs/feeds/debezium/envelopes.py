"""Debezium's messages, parsed: what each is, and where its parts are.

Source: "Data change events" in the pages of Debezium's connectors,
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.wire import has_long_number, is_object, member, once, only_value, path

#: Operations that change a row.
ROW_OPS = ("c", "r", "u", "d")
_TRUNCATE, _MESSAGE = "t", "m"
_TABLE = ("db", "schema", "table")
#: What a message is.
ROW, SKIPPED, TRUNCATE, DEAD, FILTERED = "row", "skipped", "truncate", "dead", "filtered"


def parsed(messages: DataFrame, source_tables: Collection[str] = ()) -> DataFrame:
    """Parse messages, each once.

    Args:
        messages: ``key`` and ``value`` (binary), ``origin``.
        source_tables: Tables whose events count, as :func:`decode` takes them; empty: all.

    Returns:
        These three; ``payload`` and ``key_payload`` (variant), without their schemas; ``schema`` and ``key_schema``
        (JSON), null where there is none; ``op``; ``source_table``; ``kind``; ``reason`` of a dead letter.

    """
    text, key_text = F.col("value").cast("string"), F.col("key").cast("string")
    read = messages.select(
        *("key", "value", "origin"),
        once(only_value(text), lambda whole: F.when(is_object(whole), whole)).alias("whole"),
        only_value(key_text).alias("whole_key"),
    )
    whole = F.col("whole")
    # A line of a file that has both parts of a message.
    is_line = F.col("key").isNull() & ~_has(whole, "op") & ~_has(whole, "payload") & _has(whole, "value")
    read = read.withColumn("is_line", F.coalesce(is_line, F.expr("false")))
    line = F.col("is_line")
    read = read.select(
        *("key", "value", "origin", "whole"),
        F.when(line, member(whole, "value")).otherwise(whole).alias("body"),
        F.when(line, member(whole, "key")).otherwise(F.col("whole_key")).alias("key_body"),
        F.when(line, F.get_json_object(text, "$.value.schema"))
        .otherwise(F.get_json_object(text, "$.schema"))
        .alias("schema"),
        F.when(line, F.get_json_object(text, "$.key.schema"))
        .otherwise(F.get_json_object(key_text, "$.schema"))
        .alias("key_schema"),
    )
    body, key_body = F.col("body"), F.col("key_body")
    read = read.select(
        *("key", "value", "origin", "whole", "body", "schema", "key_schema"),
        F.when(_has(body, "payload"), member(body, "payload")).otherwise(body).alias("payload"),
        F.when(_has(key_body, "payload"), member(key_body, "payload")).otherwise(key_body).alias("key_payload"),
    ).withColumn("op", F.try_variant_get("payload", "$.op", "string"))
    read = read.withColumn("source_table", _source_table(F.col("payload")))
    reason = _reason(F.col("value").cast("string"))
    is_other = ~_is_of(F.col("source_table"), source_tables)
    return (
        read.withColumn("reason", F.when(~_is_skipped(), reason))
        .withColumn(
            "kind",
            F.when(_is_skipped(), SKIPPED)
            # An event of another table is filtered even if it cannot be decoded.
            .when(is_other & (F.col("source_table") != ""), FILTERED)
            .when(F.col("reason").isNotNull(), DEAD)
            .when(is_other, FILTERED)
            .when(F.col("op") == _TRUNCATE, TRUNCATE)
            .otherwise(ROW),
        )
        .drop("whole", "body")
    )


def _source_table(payload: Column) -> Column:
    """Return the table that an event is of, as ``db.schema.table``; empty if the event does not name it."""
    db, schema, table = (F.try_variant_get(payload, path("source", name), "string") for name in _TABLE)
    return F.when(table.isNull(), "").otherwise(F.concat_ws(".", db, schema, table))


def _is_of(table: Column, names: Collection[str]) -> Column:
    """Return whether a table is one of those named, each with its database and schema or without."""
    if not names:
        return F.expr("true")
    return reduce(or_, ((table == name) | table.endswith(f".{name}") for name in names))


def _is_skipped() -> Column:
    """Tell what says nothing of a row: a tombstone, a message of the log's, a heartbeat."""
    tombstone = F.col("value").isNull() | (F.col("whole").isNotNull() & F.col("payload").isNull())
    payload, op = F.col("payload"), F.col("op")
    heartbeat = op.isNull() & _has(payload, "ts_ms") & _has(F.col("key_payload"), "serverName")
    return F.coalesce(tombstone | (op == _MESSAGE) | heartbeat, F.expr("false"))


def _reason(text: Column) -> Column:
    op, is_row = F.col("op"), F.coalesce(is_object(member(F.col("payload"), "after")), F.expr("false"))
    return (
        F.when(
            F.hex(F.substring("value", 1, 1)) == "00",
            "the value begins with a zero byte, as Confluent's header of a schema id does (Avro, Protobuf, JSON "
            "Schema): let the connector write plain JSON (org.apache.kafka.connect.json.JsonConverter)",
        )
        .when(~F.is_valid_utf8(text), "the value is not UTF-8")
        .when(F.col("whole").isNull(), "the value is not one JSON object, or names a field twice")
        .when(
            op.isNull(),
            "the value is no change event: it has no op, as flattened events have none: if the connector has the "
            "transform ExtractNewRecordState, remove it",
        )
        .when(~op.isin(*ROW_OPS, _TRUNCATE), F.concat(F.lit("the operation is not known: "), op))
        .when(op.isin("c", "r", "u") & ~is_row, "the row is missing: after is no object")
        .when(
            has_long_number(text) | has_long_number(F.col("key").cast("string")),
            "the message has a number of more digits than can be stored",
        )
    )


def _has(value: Column, name: str) -> Column:
    return F.coalesce(F.try_variant_get(value, path(name), "variant").isNotNull(), F.expr("false"))
