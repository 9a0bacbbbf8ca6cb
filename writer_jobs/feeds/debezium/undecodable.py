"""Reasons why the row of a change event cannot be applied; its message becomes a dead letter."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructType

from writer_jobs.feeds.debezium.decoded_batch import ORDER, UNAVAILABLE_COLUMNS
from writer_jobs.feeds.debezium.row_columns import RowColumns, SchemaGroup
from writer_jobs.feeds.message_values import variant_path

#: The default of ``unavailable.value.placeholder``, which Debezium writes for a value that it did not receive.
UNAVAILABLE = "__debezium_unavailable_value"
_AMBIGUOUS_NUMBER = (
    ": a text without a decimal point can be a number in base64 (decimal.handling.mode=precise), and is not read; use "
    "schemas.enable=true in the connector's JSON converter, or decimal.handling.mode=double"
)


def unnamed_fields_reason(groups: Iterable[SchemaGroup]) -> Column:
    """Return why a row with fields that its schema does not name cannot be applied; null for other rows."""
    fields = F.map_keys(F.try_variant_get("payload", variant_path("after"), "map<string,variant>"))
    reason = F.lit(None).cast("string")
    for number, group in enumerate(groups):
        if group.schema is None or group.is_invalid:
            continue
        unnamed_fields = F.array_except(fields, F.array(*map(F.lit, group.columns)).cast("array<string>"))
        has_unnamed_fields = (F.col("group") == number) & (F.size(unnamed_fields) > 0)
        reason = F.when(
            has_unnamed_fields,
            F.concat(F.lit("its schema does not name the fields "), F.array_join(unnamed_fields, ", ")),
        ).otherwise(reason)
    return reason


def unavailable_columns(texts: Mapping[str, Column], unavailable: str) -> Column:
    """Return the names of the columns whose value the connector did not receive, as an array; empty for a delete.

    ``texts`` are the columns' texts in the message, by name; ``unavailable`` is the connector's
    ``unavailable.value.placeholder``.
    """
    placeholders = F.array(*map(F.lit, _placeholders(unavailable)))
    is_write = F.col("op") != "d"
    names = [F.when(is_write & F.array_contains(placeholders, text), F.lit(name)) for name, text in texts.items()]
    return F.array_compact(F.array(*names)).cast("array<string>")


def undecodable_reason(
    columns: RowColumns, texts: Mapping[str, Column], order_type: DataType, needed_columns: Column
) -> Column:
    """Return the first reason why a row cannot be applied; null if it can.

    ``texts`` are the columns' texts in the message, by name, and null for the columns in the column
    :data:`UNAVAILABLE_COLUMNS`; ``order_type`` is the type of the column :data:`ORDER`; ``needed_columns`` are the
    names of columns without which the change cannot be applied.
    """
    row = F.col("row")
    invalid_groups = [number for number, group in enumerate(columns.groups) if group.is_invalid]
    reason = F.when(F.col("group").isin(*invalid_groups), "its schema is not a Kafka Connect schema of a change event")
    missing_columns = F.array_intersect(UNAVAILABLE_COLUMNS, needed_columns)
    reason = reason.when(
        F.size(missing_columns) > 0,
        F.concat(
            F.lit("the connector did not receive the value of column "),
            F.array_join(missing_columns, ", "),
            F.lit(
                " (unavailable.value.placeholder), and the table's value cannot be kept in this change; for PostgreSQL "
                "set REPLICA IDENTITY FULL"
            ),
        ),
    )
    for name in columns.keys:
        has_key = texts[name].isNotNull() if name in texts else F.expr("false")
        reason = reason.when(~has_key, f"the key column {name} is missing")
    for name, text in texts.items():
        is_misfit = text.isNotNull() & row.getField(name).isNull()
        reason = reason.when(
            is_misfit & columns.is_refused_infinity(name, text),
            f"the value of the column {name} is infinity, which Delta does not have: use --infinity largest, or null",
        )
        misfit = f"the value of the column {name} does not fit {columns.types[name].simpleString()}"
        reason = reason.when(is_misfit & columns.is_ambiguous_number(name, text), f"{misfit}{_AMBIGUOUS_NUMBER}")
        reason = reason.when(is_misfit, misfit)
    return reason.when(is_unordered(order_type), "its position is unknown: a field of the sequence is missing or null")


def is_unordered(order_type: DataType) -> Column:
    """Return the condition that the column :data:`ORDER`, which has this type, or one of its fields is null."""
    fields = order_type.names if isinstance(order_type, StructType) else ()
    return reduce(or_, (F.col(ORDER).getField(name).isNull() for name in fields), F.col(ORDER).isNull())


def _placeholders(unavailable: str) -> list[str]:
    """Return the texts that the connector writes in place of a missing value, one for each type.

    Source: Debezium's ``UnchangedToastedPlaceholder.java``.
    """
    octets = unavailable.encode()
    binary = base64.b64encode(octets).decode()
    values = [
        unavailable,
        binary,
        [unavailable],
        [binary],
        list(octets),
        [str(uuid.UUID(bytes=hashlib.md5(octets, usedforsecurity=False).digest(), version=3))],
        {unavailable: unavailable},
    ]
    return [unavailable, *(json.dumps(value, separators=(",", ":")) for value in values)]
