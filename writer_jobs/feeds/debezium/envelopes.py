"""Debezium's messages, parsed: what each is, and where its parts are.

Source: "Data change events" in the pages of Debezium's connectors,
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.debezium.decoders import is_object, member, path
from writer_jobs.feeds.wire import listed, only_one

#: Operations that change a row.
ROW_OPS = ("c", "r", "u", "d")
_TRUNCATE, _MESSAGE = "t", "m"
#: What a message is.
ROW, SKIPPED, TRUNCATE, DEAD = "row", "skipped", "truncate", "dead"


def parsed(messages: DataFrame) -> DataFrame:
    """Parse messages, each once.

    Args:
        messages: ``key`` and ``value`` (binary), ``origin``.

    Returns:
        These three; ``payload`` and ``key_payload`` (variant), without their schemas; ``schema`` and ``key_schema``
        (JSON), null where there is none; ``op``; ``kind``, and for what is dead the ``reason``.

    """
    text, key_text = F.col("value").cast("string"), F.col("key").cast("string")
    read = messages.select(
        *("key", "value", "origin"),
        listed(text).alias("all"),
        listed(key_text).alias("keys"),
    )
    whole = only_one(F.col("all"))
    read = read.select(
        *("key", "value", "origin"),
        F.when(is_object(whole), whole).alias("whole"),
        F.try_variant_get("keys", "$[0]", "variant").alias("whole_key"),
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
    reason = _reason(F.col("value").cast("string"))
    return (
        read.withColumn("reason", F.when(~_is_skipped(), reason))
        .withColumn(
            "kind",
            F.when(_is_skipped(), SKIPPED)
            .when(F.col("reason").isNotNull(), DEAD)
            .when(F.col("op") == _TRUNCATE, TRUNCATE)
            .otherwise(ROW),
        )
        .drop("whole", "body")
    )


def _is_skipped() -> Column:
    """Tell what says nothing of a row: a tombstone, a message of the log's, a heartbeat."""
    tombstone = F.col("value").isNull() | (F.col("whole").isNotNull() & F.col("payload").isNull())
    payload, op = F.col("payload"), F.col("op")
    heartbeat = op.isNull() & _has(payload, "ts_ms") & _has(F.col("key_payload"), "serverName")
    return F.coalesce(tombstone | (op == _MESSAGE) | heartbeat, F.expr("false"))


def _reason(text: Column) -> Column:
    op, is_row = F.col("op"), F.coalesce(is_object(member(F.col("payload"), "after")), F.expr("false"))
    return (
        F.when(~F.is_valid_utf8(text), "the value is not UTF-8")
        .when(F.col("whole").isNull(), "the value is not one JSON object, or names a field twice")
        .when(op.isNull(), "the value is no change event: it has no op")
        .when(~op.isin(*ROW_OPS, _TRUNCATE), F.concat(F.lit("the operation is not known: "), op))
        .when(op.isin("c", "r", "u") & ~is_row, "the row is missing: after is no object")
    )


def _has(value: Column, name: str) -> Column:
    return F.coalesce(F.try_variant_get(value, path(name), "variant").isNotNull(), F.expr("false"))
