"""Times without a time zone: ``timestamp_ntz`` in new columns, and the table's type in others."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import (
    CONNECT_MILLIS,
    INT,
    MICROS,
    MILLIS,
    NANOS,
    ZONED,
    Json,
    envelope_schema,
    event,
    message,
    state,
    struct,
    types,
    with_schema,
)
from tests.integration.test_debezium_infinity import ISO_TIME
from tests.support.deliveries import session_time_zone
from tests.support.events_table import Message, frame
from writer_jobs import LockedDeltaWriter
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode

pytestmark = pytest.mark.spark

LOCAL = datetime(2018, 6, 20, 15, 13, 16, 945_000)  # noqa: DTZ001 (without a zone)
MOMENT = 1_529_507_596_945
COLUMNS: dict[str, tuple[Json, Any]] = {
    "millis": (MILLIS, MOMENT),
    "connect": (CONNECT_MILLIS, MOMENT),
    "micros": (MICROS, MOMENT * 1000),
    "nanos": (NANOS, MOMENT * 1_000_000),
    "iso": (ISO_TIME, "2018-06-20T15:13:16.945Z"),
}
NESTED = {"type": "array", "items": struct(at=MICROS)}


def times(lsn: int, columns: dict[str, tuple[Json, Any]]) -> Message:
    """Return an event of the row 1 with these columns."""
    schema = envelope_schema(struct(id=INT, **{name: schema for name, (schema, _) in columns.items()}))
    row = {"id": 1, **{name: value for name, (_, value) in columns.items()}}
    return message({"id": 1}, with_schema(event("u", lsn, after=row), schema), f"t/0/{lsn}")


def test_times_without_a_zone_become_local_times(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    writer = LockedDeltaWriter(spark, manager, location)
    first = {"micros": COLUMNS["micros"], "zoned": (ZONED, "2018-06-20T15:13:16Z")}
    apply_events(writer, frame(spark, [times(1, first)]))
    with session_time_zone(spark):
        nested = {"nested": (NESTED, [{"at": MOMENT * 1000}])}
        apply_events(writer, frame(spark, [times(2, {**COLUMNS, **nested, **first})]), local_times=True)
        row = spark.read.format("delta").load(location).collect()[0]
    column_types = {field.name: field.dataType.simpleString() for field in writer.log.state().schema}
    # A column of the table keeps its type.
    assert (column_types["micros"], column_types["zoned"]) == ("timestamp", "timestamp")
    assert {name: column_types[name] for name in COLUMNS if name != "micros"} == dict.fromkeys(
        ("millis", "connect", "nanos", "iso"), "timestamp_ntz"
    )
    assert column_types["nested"] == "array<struct<at:timestamp_ntz>>"
    assert [row[name] for name in ("millis", "connect", "nanos", "iso")] == [LOCAL] * 4
    assert row["nested"][0]["at"] == LOCAL
    # The next batch follows the table, without the option, too.
    apply_events(writer, frame(spark, [times(3, {**COLUMNS, **nested, **first})]))
    assert [field.dataType.simpleString() for field in writer.log.state().schema if field.name == "nested"] == [
        "array<struct<at:timestamp_ntz>>"
    ]


def test_types_of_times_follow_the_option_and_the_table(spark: SparkSession) -> None:
    events = frame(spark, [times(1, COLUMNS)])
    table = state("id bigint, millis timestamp, connect timestamp_ntz, iso string")
    with decode(events, table=table, local_times=True) as batch:
        assert {name: types(batch)[name] for name in COLUMNS} == {
            "millis": "timestamp", "connect": "timestamp_ntz", "micros": "timestamp_ntz", "nanos": "timestamp_ntz",
            "iso": "string",
        }  # fmt: skip
    with decode(events, table=None) as batch:
        assert {types(batch)[name] for name in COLUMNS} == {"timestamp"}
