"""Events that the transform ``ExtractNewRecordState`` has flattened: the row itself, with metadata in ``__`` fields.

:func:`nested` gives them the form of other events, so that the same code decodes them.

Source: https://debezium.io/documentation/reference/stable/transformations/event-flattening.html (``add.fields``,
``delete.tombstone.handling.mode``)
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.debezium.positions import FIELDS, TIMES
from writer_jobs.feeds.message_values import is_object, member, object_fields, variant_path

#: Field of the result of :func:`nested` that is true if the transform did not write the operation.
OP_IS_MISSING = "op_is_missing"
_DELETED, _OP = "__deleted", "__op"
_TRANSACTION = ("id", "total_order", "data_collection_order")
_PREFIXES = ("__source_", "__transaction_")
_NAMES = frozenset({_DELETED, _OP, *(f"__{name}" for name in (*TIMES, *FIELDS, *_TRANSACTION))})


def is_metadata(name: str) -> bool:
    """Return whether the transform can write a field of this name in addition to the row's columns."""
    return name in _NAMES or name.startswith(_PREFIXES)


def has_metadata(payload: Column) -> Column:
    """Return whether a payload has a field that the transform writes in addition to the row's columns."""
    return F.coalesce(F.exists(F.map_keys(object_fields(payload)), _is_metadata), F.expr("false"))


def is_unflattened(payload: Column) -> Column:
    """Return whether a payload is an event in Debezium's own form, without the transform."""
    has_row = member(payload, "before").isNotNull() | member(payload, "after").isNotNull()
    has_op = F.try_variant_get(payload, variant_path("op"), "string").isNotNull()
    is_event = has_op & has_row & is_object(member(payload, "source"))
    return F.coalesce(is_event & ~has_metadata(payload), F.expr("false"))


def nested(envelopes: DataFrame) -> DataFrame:
    """Give flattened events the form of other events.

    The columns ``payload`` and ``schema`` become those of an event with ``op``, ``source``, ``before`` and ``after``.
    A payload that is not a flattened row stays, and so does a missing schema. The column ``is_unflattened`` has the
    result of :func:`is_unflattened`.
    """
    payload, schema = F.col("payload"), F.col("schema")
    row = F.to_variant_object(F.map_filter(object_fields(payload), lambda name, _: ~_is_metadata(name)))
    op = F.when(_text(payload, _DELETED) == "true", "d").otherwise(F.coalesce(_text(payload, _OP), F.lit("u")))
    is_delete = op == "d"
    source = {
        name: member(payload, f"__source_{name}")
        if name in TIMES
        else F.coalesce(member(payload, f"__source_{name}"), member(payload, f"__{name}"))
        for name in FIELDS
    }
    transaction = {
        name: F.coalesce(member(payload, f"__transaction_{name}"), member(payload, f"__{name}"))
        for name in _TRANSACTION
    }
    event = F.struct(
        op.alias("op"),
        F.when(is_delete, row).alias("before"),
        F.when(~is_delete, row).alias("after"),
        *(
            F.to_variant_object(F.struct(*(value.alias(field) for field, value in fields.items()))).alias(name)
            for name, fields in (("source", source), ("transaction", transaction))
        ),
        *(member(payload, f"__{name}").alias(name) for name in TIMES),
        _text(payload, _OP).isNull().alias(OP_IS_MISSING),
    )
    is_row = is_object(payload) & ~F.col("is_unflattened")
    row_schema = F.concat(
        F.lit('{"fields":[{"field":"after","type":"struct","flattened":true,"fields":'),
        F.coalesce(F.get_json_object(schema, "$.fields"), F.lit("null")),
        F.lit("}]}"),
    )
    return envelopes.withColumns(
        {
            "payload": F.when(is_row, F.to_variant_object(event)).otherwise(payload),
            "schema": F.when(schema.isNotNull(), F.when(is_row, row_schema).otherwise(schema)),
        }
    )


def _is_metadata(name: Column) -> Column:
    is_known = name.isin(*sorted(_NAMES))
    for prefix in _PREFIXES:
        is_known = is_known | name.startswith(prefix)
    return is_known


def _text(payload: Column, name: str) -> Column:
    return F.try_variant_get(payload, variant_path(name), "string")
