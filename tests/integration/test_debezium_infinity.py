"""PostgreSQL's infinity in dates and times: a dead letter, the largest time, or null."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import (
    DATE,
    INT,
    ISO_DATE,
    MICROS,
    MILLIS,
    NANOS,
    ZONED,
    Json,
    envelope_schema,
    event,
    logical,
    message,
    reasons,
    state,
    struct,
    with_schema,
)
from tests.support.events_table import frame
from writer_jobs import LockedDeltaWriter
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DecodedBatch

pytestmark = pytest.mark.spark

_EPOCH_DAY = 719_528
_DAYS_OF_400_YEARS = 146_097


def overflowed(text: str) -> int:
    """Return the days from 1970 to a date as Java's ``(int) LocalDate.parse(text).toEpochDay()``."""
    year, month, day = (int(part) for part in text.rsplit("-", 2))
    # Python has the years 1 to 9999.
    days = date(2000 + year % 400, month, day).toordinal() - date(2000, 1, 1).toordinal()
    days += year // 400 * _DAYS_OF_400_YEARS - _EPOCH_DAY
    return (days + 2**31) % 2**32 - 2**31


ISO_TIME = logical("string", "io.debezium.time.IsoTimestamp")
#: Schema, the values that mean infinity and minus infinity, and values that do not.
FORMS: dict[str, tuple[Json, list[tuple[Any, Any]], list[Any]]] = {
    "micros": (
        MICROS,
        [(9_223_372_036_825_200_000, -9_223_372_036_832_400_000), (2**63 - 1, -(2**63))],
        [9_223_372_036_825_199_999, -9_223_372_036_832_399_999, 0, -62_167_219_200_000_001],
    ),
    "millis": (
        MILLIS,
        [(9_223_372_036_825_200, -9_223_372_036_832_400), ((2**63 - 1) // 1000, -(2**63) // 1000)],
        [253_402_300_800_000, 0],
    ),
    "nanos": (NANOS, [(2**63 - 1, -(2**63))], [(2**63 // 1000 - 1) * 1000, 0]),
    "zoned": (ZONED, [("infinity", "-infinity")], ["2024-02-29T00:00:00Z", "+10000-01-01T00:00:00Z"]),
    "iso_time": (
        ISO_TIME,
        [("+294247-01-10T04:00:25.2Z", "-290308-12-21T19:59:27.6Z")],
        ["+294247-01-10T04:00:25.1Z"],
    ),
    "day": (
        DATE,
        [
            (overflowed("-5877611-06-21"), overflowed("-5877611-06-22")),
            (overflowed("+292278994-08-17"), overflowed("+292269055-12-03")),
            (overflowed("+292278994-08-16"), overflowed("+292269055-12-02")),
            (overflowed("+5877611-06-21"), overflowed("-5877611-06-22")),
        ],
        # The first and the last date of PostgreSQL are in the years 4714 before Christ and 5874897.
        [overflowed("-4713-11-24"), overflowed("+5874897-12-31"), 0],
    ),
    "iso_day": (
        ISO_DATE,
        [
            ("infinity", "-infinity"),
            ("-5877611-06-21Z", "-5877611-06-22Z"),
            ("+292278994-08-17Z", "+292269055-12-02Z"),
            ("+292278994-08-16Z", "+292269055-12-03Z"),
        ],
        ["2024-02-29", "-4713-11-24Z"],
    ),
}
DATES = {"day", "iso_day"}
INFINITE, MINUS_INFINITE, FINITE = "infinite", "minus infinite", "finite"


def messages(spark: SparkSession, *, with_schemas: bool = True) -> DataFrame:
    """Return a message for each value; its origin has the number, the column and the kind of the value."""
    rows = []
    for name, (schema, pairs, finite_values) in FORMS.items():
        kinds = [
            *((INFINITE, positive) for positive, _ in pairs),
            *((MINUS_INFINITE, negative) for _, negative in pairs),
            *((FINITE, value) for value in finite_values),
        ]
        rows += [(name, schema, kind, value) for kind, value in kinds]
    return frame(
        spark,
        [
            message(
                {"id": number},
                with_schema(
                    event("c", 1, after={"id": number, name: value}),
                    envelope_schema(struct(id=INT, **{name: schema})) if with_schemas else None,
                ),
                f"{number}/{name}/{kind}",
            )
            for number, (name, schema, kind, value) in enumerate(rows)
            if with_schemas or name in DATES or isinstance(value, str)
        ],
    )


def decoded_values(batch: DecodedBatch) -> dict[int, Json]:
    values = [col(name).cast("string").alias(name) for name in batch.columns if name != "id"]
    return {row["id"]: row.asDict() for row in batch.changes.select("id", *values).collect()}


@pytest.mark.parametrize("with_schemas", [True, False])
def test_an_infinite_time_is_a_dead_letter(spark: SparkSession, *, with_schemas: bool) -> None:
    table = state("id bigint, zoned timestamp, iso_time timestamp, day date, iso_day date")
    events = messages(spark, with_schemas=with_schemas)
    origins = [row["origin"] for row in events.collect()]
    with decode(events, table=None if with_schemas else table) as batch:
        expected = {origin for origin in origins if not origin.endswith("/finite")}
        assert reasons(batch) == {
            origin: f"the value of the column {origin.split('/')[1]} is infinity, which Delta does not have: use "
            "--infinity largest, or null"
            for origin in expected
        }


@pytest.mark.parametrize("infinity", ["largest", "null"])
def test_an_infinite_time_becomes_the_largest_time_or_null(spark: SparkSession, infinity: Any) -> None:
    events = messages(spark)
    with decode(events, table=None, infinity=infinity) as batch:
        assert reasons(batch) == {}
        rows = decoded_values(batch)
    for origin in (row["origin"] for row in events.collect()):
        number, name, kind = origin.split("/")
        value = rows[int(number)][name]
        times = ("9999-12-31 09:59:59.999999", "0001-01-02 12:00:00")
        last, first = ("9999-12-31", "0001-01-01") if name in DATES else times
        if kind == FINITE:
            assert value not in (None, last, first)
        elif infinity == "null":
            assert value is None
        else:
            assert value == (last if kind == INFINITE else first)


@pytest.mark.full
def test_every_reader_can_collect_the_largest_times(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    nested = {"type": "array", "items": ZONED}
    schema = envelope_schema(struct(id=INT, at=MICROS, local=MICROS, day=DATE, times=nested))
    row = {"at": 2**63 - 1, "local": -(2**63), "day": -2_147_472_692, "times": ["-infinity", None]}
    location = str(tmp_path / "table")
    writer = LockedDeltaWriter(spark, manager, location)
    writer.append(spark.createDataFrame([], "id bigint, local timestamp_ntz"))
    value = with_schema(event("c", 1, after={"id": 1, **row}), schema)
    events = frame(spark, [message({"id": 1}, value)])
    # A text is no date of an array: there is no null for it either.
    assert apply_events(writer, events, infinity="null").dead_letters == 1
    apply_events(writer, events, infinity="largest")
    stored = spark.read.format("delta").load(location).collect()[0]
    assert (stored["local"], stored["day"]) == (datetime(1, 1, 1), date(9999, 12, 31))  # noqa: DTZ001 (without a zone)
    assert (stored["at"].year, stored["times"][0].year, stored["times"][1]) == (9999, 1, None)


@pytest.mark.full
def test_the_value_before_a_change_may_be_infinite(spark: SparkSession) -> None:
    schema = envelope_schema(struct(id=INT, until=DATE))
    images = {"before": {"id": 1, "until": -2_147_472_692}, "after": {"id": 1, "until": 0}}
    update = message({"id": 1}, with_schema(event("u", 1, **images), schema))
    with decode(frame(spark, [update]), table=None, keys=["until"], infinity="largest") as batch:
        rows = {row["until"]: row["__sluice_deletes"] for row in batch.changes.collect()}
    assert rows == {date(1970, 1, 1): False, date(9999, 12, 31): True}
