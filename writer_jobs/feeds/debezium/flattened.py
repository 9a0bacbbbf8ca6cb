"""Events that the transform ``ExtractNewRecordState`` has flattened: the row itself, with metadata in ``__`` fields.

:func:`nested` gives them the form of other events, so that the same code decodes them.

Source: https://debezium.io/documentation/reference/stable/transformations/event-flattening.html (``add.fields``,
``delete.tombstone.handling.mode``)
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.debezium.positions import FIELDS
from writer_jobs.feeds.message_values import is_object, member, variant_path

PREFIX = "__"
"""Prefix of the names of fields that are not columns of the row (``add.fields.prefix``)."""

_DELETED = f"{PREFIX}deleted"
_TIMES = ("ts_ms", "ts_us", "ts_ns")


def has_deleted_field(payload: Column) -> Column:
    """Return whether an event shows deletes by a field, as with ``delete.tombstone.handling.mode=rewrite``."""
    return F.coalesce(F.try_variant_get(payload, variant_path(_DELETED), "string").isNotNull(), F.expr("false"))


def nested(envelopes: DataFrame) -> DataFrame:
    """Give flattened events the form of other events.

    The columns ``payload`` and ``schema`` become those of an event with ``op``, ``source``, ``before`` and ``after``.
    A payload that is not an object stays.
    """
    payload, schema = F.col("payload"), F.col("schema")
    fields = F.try_variant_get(payload, "$", "map<string,variant>")
    row = F.to_variant_object(F.map_filter(fields, lambda name, _: ~name.startswith(PREFIX)))
    is_delete = F.coalesce(F.try_variant_get(payload, variant_path(_DELETED), "string") == "true", F.expr("false"))
    op = F.when(is_delete, "d").otherwise(F.coalesce(_text(payload, "op"), F.lit("u")))
    is_delete_op = op == "d"
    source = {
        name: member(payload, f"{PREFIX}source_{name}")
        if name in _TIMES
        else F.coalesce(member(payload, f"{PREFIX}source_{name}"), member(payload, PREFIX + name))
        for name in FIELDS
    }
    event = F.struct(
        op.alias("op"),
        F.when(is_delete_op, row).alias("before"),
        F.when(~is_delete_op, row).alias("after"),
        F.to_variant_object(F.struct(*(value.alias(name) for name, value in source.items()))).alias("source"),
        *(member(payload, PREFIX + name).alias(name) for name in _TIMES),
    )
    schema_fields = F.get_json_object(schema, "$.fields")
    return envelopes.withColumns(
        {
            "payload": F.when(is_object(payload), F.to_variant_object(event)).otherwise(payload),
            "schema": F.concat(
                F.lit(f'{{"fields":[{{"field":"after","type":"struct","metadata_prefix":"{PREFIX}","fields":'),
                F.coalesce(schema_fields, F.lit("null")),
                F.lit("}]}"),
            ),
        }
    )


def _text(payload: Column, name: str) -> Column:
    return F.try_variant_get(payload, variant_path(PREFIX + name), "string")
