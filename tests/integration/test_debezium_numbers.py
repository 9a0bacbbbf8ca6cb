"""Decimals of messages without schemas: objects with a scale, base64 and texts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_debezium import DEAD, Json, base64_of, event, message, reasons, rows, state, types
from tests.support.events_table import frame
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DELETES

pytestmark = pytest.mark.spark


def number(unscaled_value: int, scale: int = 0) -> Json:
    """Return an Oracle ``NUMBER`` in the mode ``precise``."""
    return {"scale": scale, "value": base64_of(unscaled_value)}


ADVICE = "a text without a decimal point can be a number in base64"
OTHER_OBJECT = {**number(7), "unit": "kg"}
OBJECTS = number(-7), number(70, 1), number(7, -2)
TEXTS = ["-7", "7.0", "700"]
MIXED = number(150, 2), 2.25, 3
AMBIGUOUS = [base64_of(1999), "1999", "7", "-7"]
#: The type in the table (None: the column is new), the decoded type, JSON values, and the decoded values or ``DEAD``.
COLUMNS: dict[str, tuple[str | None, str, tuple[Any, ...] | list[Any], list[Any]]] = {
    "new": (None, "string", OBJECTS, TEXTS),
    "text": ("string", "string", OBJECTS, TEXTS),
    "whole": ("bigint", "bigint", OBJECTS, [-7, 7, 700]),
    "price": ("decimal(10,2)", "decimal(10,2)", OBJECTS, [Decimal("-7.00"), Decimal("7.00"), Decimal("700.00")]),
    "small": (
        "int",
        "int",
        (number(7), number(71, 1), number(2**31), number(1, 40_000), {"scale": 0, "value": ""}),
        [7, *(DEAD,) * 4],
    ),
    "long": (
        None,
        "string",
        (number(10**38 - 1), number(1 - 10**38), number(10**38), number(-(10**38)), {"scale": 0, "value": "?"}),
        ["9" * 38, "-" + "9" * 38, DEAD, DEAD, DEAD],
    ),
    "list": (None, "array<string>", ([number(7), None, number(15, 1)],), [["7", None, "1.5"]]),
    # Modes of several connectors in one batch.
    "mixed_new": (None, "string", MIXED, ["1.50", "2.25", "3"]),
    "mixed_text": ("string", "string", (*MIXED, "text"), ["1.50", "2.25", "3", "text"]),
    "mixed_price": (
        "decimal(10,2)",
        "decimal(10,2)",
        (*MIXED, "4.5", number(1, 3)),
        [Decimal("1.50"), Decimal("2.25"), Decimal("3.00"), Decimal("4.50"), DEAD],
    ),
    "mixed_whole": ("int", "int", (number(7), 8, number(1, 1), 1.5), [7, 8, DEAD, DEAD]),
    # Other objects stay objects.
    "other": (None, "struct<scale:bigint,unit:string,value:string>", (OTHER_OBJECT,), [OTHER_OBJECT]),
    "other_price": ("decimal(10,2)", "decimal(10,2)", (OTHER_OBJECT,), [DEAD]),
    "partial": ("decimal(10,2)", "decimal(10,2)", ({"scale": 1},), [DEAD]),
    "text_scale": ("decimal(10,2)", "decimal(10,2)", ({"scale": "0", "value": "Bw=="},), [DEAD]),
    "stored": ("struct<scale:bigint,value:string>", "struct<scale:bigint,value:string>", (number(7),), [number(7)]),
    "base64_price": ("decimal(10,2)", "decimal(10,2)", AMBIGUOUS, [DEAD] * 4),
    "base64_whole": ("int", "int", AMBIGUOUS, [DEAD] * 4),
    "base64_text": (None, "string", AMBIGUOUS, AMBIGUOUS),
}  # fmt: skip


def test_numbers_without_schemas_are_read_or_set_aside(spark: SparkSession) -> None:
    cases = [
        (f"{name}/{number}", name, value, expected)
        for name, (_, _, values, results) in COLUMNS.items()
        for number, (value, expected) in enumerate(zip(values, results, strict=True))
    ]
    messages = [
        message({"id": key}, event("c", 1, after={"id": key, name: value}), key) for key, name, value, _ in cases
    ]
    table = ", ".join(f"{name} {column}" for name, (column, *_) in COLUMNS.items() if column is not None)
    with decode(frame(spark, messages), table=state(f"id string, {table}")) as batch:
        column_types, dead = types(batch), reasons(batch)
        stored = {row["id"]: row for row in rows(batch)}
    assert {name: column_types[name] for name in COLUMNS} == {
        name: data_type for name, (_, data_type, *_) in COLUMNS.items()
    }
    decoded = {key: stored[key][name] if key in stored else DEAD for key, name, *_ in cases}
    assert decoded == {key: expected for key, *_, expected in cases}
    # Digits can be base64, so they are not read as a number.
    assert base64_of(-2_629_763) == "1999"
    assert {key for key, reason in dead.items() if ADVICE in reason} == {
        key for key, name, *_ in cases if name in ("base64_price", "base64_whole")
    }
    assert dead["base64_whole/2"] == (
        f"the value of the column base64_whole does not fit int: {ADVICE} (decimal.handling.mode=precise), and is not "
        "read; use schemas.enable=true in the connector's JSON converter, or decimal.handling.mode=double"
    )


def test_numbers_with_a_scale_identify_rows(spark: SparkSession) -> None:
    keys = [{"a": number(n), "b": number(n, -1), "c": number(n, 1)} for n in (1, 2)]
    messages = [message(keys[0], event("c", 1, after={**keys[0], "v": "x"})), message(keys[1], event("d", 2))]
    with decode(frame(spark, messages), table=state("a bigint, b decimal(38,0), v string")) as batch:
        assert reasons(batch) == {}
        assert [
            (row["a"], row["b"], row["c"], row[DELETES]) for row in sorted(rows(batch), key=lambda row: row["a"])
        ] == [
            (1, Decimal(10), "0.1", False),
            (2, Decimal(20), "0.2", True),
        ]
