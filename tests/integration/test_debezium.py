"""Messages of Debezium: the table equals the source table, and undecodable messages become dead letters."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import AWKWARD_TEXTS, CLOCK_CHANGES, HISTORIES, shuffled_batches
from tests.support.events_table import Message, frame
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import ChangesError, FeedError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DELETES, ORDER, DecodedBatch
from writer_jobs.feeds.debezium.positions import _POSITIONS, _field, _zero_padded
from writer_jobs.merge.apply import ChangesResult, apply_changes

pytestmark = pytest.mark.spark

Json = dict[str, Any]
INT, TEXT = {"type": "int64", "optional": True}, {"type": "string", "optional": True}
PLACEHOLDER = "__debezium_unavailable_value"


def encode(value: Any) -> bytes | None:
    return None if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()


def message(key: Any, value: Any, origin: str = "t/0/0") -> Message:
    return encode(key), encode(value), origin


def struct(**fields: Json) -> Json:
    return {"type": "struct", "optional": True, "fields": [{"field": name, **type_} for name, type_ in fields.items()]}


def with_schema(payload: Any, schema: Json | None) -> Any:
    return payload if schema is None else {"schema": schema, "payload": payload}


def envelope_schema(row: Json) -> Json:
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, {"field": "op", "type": "string"}]
    return {"type": "struct", "name": "t.Envelope", "fields": fields}


def source(lsn: int, commit: int | None = None, **fields: Any) -> Json:
    """Return the ``source`` of an event of PostgreSQL."""
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)])
    position = {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + lsn, "snapshot": "false", "lsn": lsn}
    return {**position, "sequence": sequence, **fields}


def event(op: str, lsn: int, *, before: Json | None = None, after: Any = None, **fields: Any) -> Json:
    return {"before": before, "after": after, "op": op, "source": source(lsn, **fields), "ts_ms": 1_700_000_100_000}


def row_message(row: Json, schema: Json) -> Message:
    """Return the message of a created row, with its schema."""
    value = with_schema(event("c", row["id"], after=row), envelope_schema(schema))
    return message({"id": row["id"]}, value, f"t/0/{row['id']}")


def state(schema: str) -> TableState:
    return TableState(3, StructType.fromDDL(schema), (), frozenset())


Decode = Callable[..., DecodedBatch]


@pytest.fixture
def decode_batch(spark: SparkSession) -> Iterator[Decode]:
    """Decode messages: ``decode_batch(messages, table=…)``. All batches are closed after the test."""
    with ExitStack() as batches:
        yield lambda messages, **options: batches.enter_context(
            decode(frame(spark, messages), **{"table": None, **options})
        )


def rows(batch: DecodedBatch) -> list[Json]:
    return [row.asDict(recursive=True) for row in batch.changes.collect()]


def rows_by_id(batch: DecodedBatch) -> dict[Any, Json]:
    return {row["id"]: row for row in rows(batch)}


def types(batch: DecodedBatch) -> dict[str, str]:
    return {column.name: column.dataType.simpleString() for column in batch.changes.schema}


def reasons(batch: DecodedBatch) -> dict[str, str]:
    """Return the reason of each dead letter, by origin."""
    letters = {row["origin"]: row["reason"] for row in batch.dead_letters.collect()}
    assert len(letters) == batch.dead_count
    return letters


# -- a source table, and its topic -------------------------------------------------------------------------------------

ZONED = {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp"}
V1 = struct(id=INT, name=TEXT, o=struct(x=INT, y=TEXT), at=ZONED)
V2 = struct(id=INT, name=TEXT, o=struct(x=INT, y=TEXT), at=ZONED, size={"type": "int32", "optional": True})
#: Columns, and JSON values that do not fit them.
UNFIT = (("at", '"15:13:16Z"'), ("o", '{"x": "1"}'), ("o", '{"x": 1, "z": [2]}'), ("name", "1" * 40), ("o", "7"))
BAD = "bad/0/"


@dataclass
class Source:
    """A table of PostgreSQL and its topic. Messages of even keys have schemas."""

    chance: random.Random
    lsn: int = 0
    rows: dict[int, Json] = field(default_factory=dict)
    topic: list[Message] = field(default_factory=list)
    schema: Json = field(default_factory=lambda: V1)

    def publish(self, op: str, key: int, before: Json | None, after: Json | None) -> None:
        self.lsn += self.chance.randint(1, 9)
        has_schema = key % 2 == 0
        value = event(op, self.lsn, before=before, after=after)
        self.topic.append(
            message(
                with_schema({"id": key}, struct(id=INT) if has_schema else None),
                with_schema(value, envelope_schema(self.schema) if has_schema else None),
                f"t/0/{len(self.topic)}",
            )
        )

    def put(self, key: int, row: Json) -> None:
        op = "u" if key in self.rows else self.chance.choice("cr")
        self.rows[key] = row
        self.publish(op, key, None, row)

    def delete(self, key: int) -> None:
        row = self.rows.pop(key)
        self.publish("d", key, self.chance.choice([None, {"id": key}, row]), None)
        if self.chance.random() < 0.7:
            self.topic.append(message({"id": key}, None))

    def change(self, key: int) -> None:
        if key in self.rows and self.chance.random() < 0.35:
            self.delete(key)
            return
        if self.chance.random() < 0.02:
            self.publish_unfit(key)
        inner = {"x": self.lsn, "y": self.chance.choice(AWKWARD_TEXTS)}
        row: Json = {
            "id": key,
            "name": self.chance.choice((*AWKWARD_TEXTS, f"{key}@{self.lsn}", None)),
            "o": self.chance.choice((None, inner)),
            "at": self.chance.choice((*CLOCK_CHANGES, None)),
        }
        self.put(key, row if self.schema is V1 else {**row, "size": self.chance.randint(-5, 5)})

    def publish_unfit(self, key: int) -> None:
        column, text = self.chance.choice(UNFIT)
        self.lsn += 1
        value = json.dumps(event("u", self.lsn, after={"id": key, column: "?"})).replace('"?"', text)
        self.topic.append(message({"id": key}, value.encode(), f"{BAD}{len(self.topic)}"))


class Feed:
    """Applies messages to one table, and collects the origins of dead letters."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))
        self.dead_origins: set[str] = set()

    def apply(self, messages: Iterable[Message], **options: Any) -> ChangesResult:
        with decode(frame(self.spark, messages), table=self.writer.log.state()) as batch:
            dead = {row["origin"]: row["reason"] for row in batch.dead_letters.collect()}
            assert {origin: reason for origin, reason in dead.items() if not origin.startswith(BAD)} == {}
            self.dead_origins |= dead.keys()
            return apply_changes(self.writer, batch.changes, **batch.apply_options, schema_evolution=True, **options)

    def rows(self) -> dict[int, Json]:
        rows = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
        return {row["id"]: {name: row[name] for name in row if name != "__SEQUENCE"} for row in rows}


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


SEED = 7


@HISTORIES
def test_histories_of_messages_in_any_order_equal_the_source(feed: Feed, number: int) -> None:
    chance = random.Random(SEED)
    database = Source(chance)
    for _ in range(3 * number):
        database.change(chance.randrange(number))
    # A column is added while messages without it are in transit.
    database.schema = V2
    for _ in range(number):
        database.change(chance.randrange(number))
    for batch in shuffled_batches(SEED, database.topic, 2):
        feed.apply(batch)
    expected = {
        key: {"size": None, **row, "at": row["at"] and dt.datetime.fromisoformat(row["at"])}
        for key, row in database.rows.items()
    }
    assert feed.dead_origins == {origin for *_, origin in database.topic if origin.startswith(BAD)} != set()
    assert len(expected) > number / 3
    assert len(database.topic) > 4 * number
    assert feed.rows() == expected


@pytest.mark.full
def test_messages_that_broke_other_sinks_are_applied(feed: Feed) -> None:
    """Replay messages from issues of other sinks. The partition column is no key. Keys are the numbers of the issues.

    debezium-server-iceberg 661 and 403, iceberg-kafka-connect 318, flink-cdc 4360.
    """
    old, new = struct(id=INT, region=TEXT, n=INT), struct(id=INT, region=TEXT, n=INT, added=TEXT)

    def change(op: str, lsn: int, row: Json, schema: Json = old, *, before: Json | None = None) -> Message:
        after = None if op == "d" else row
        value = with_schema(event(op, lsn, before=before, after=after), envelope_schema(schema))
        return message(with_schema({"id": row["id"]}, struct(id=INT)), value)

    def row(key: int, n: int, region: str = "eu", **columns: Any) -> Json:
        return {"id": key, "region": region, "n": n, **columns}

    first_batch = [
        *(change("c", lsn, row(key, 0)) for lsn, key in enumerate((403, 318, 4360), 10)),
        # Insert, delete, insert.
        *(change("c", 30, row(661, 1)), change("d", 31, row(661, 1)), change("c", 32, row(661, 3))),
    ]
    second_batch = [
        # Updates that contain the previous row, which they do not delete.
        change("u", 500, row(403, 2), before=row(403, 0)),
        change("u", 501, row(403, 3, region="us"), before=row(403, 2)),
        # A delete that contains only the key, not the partition column.
        change("d", 510, {"id": 318}, before={"id": 318}),
        # The schema changes within the batch.
        *(change("u", 520 + n, row(4360, n)) for n in (1, 2)),
        *(change("u", 520 + n, row(4360, n, added=f"v{n}"), new) for n in (3, 4)),
        change("c", 530, row(4361, 1, added="new"), new),
    ]
    feed.apply(reversed(first_batch), partition_by=["region"])
    feed.apply([*reversed(second_batch), *second_batch, *first_batch])
    assert feed.rows() == {
        403: row(403, 3, region="us", added=None),
        661: row(661, 3, added=None),
        4360: row(4360, 4, added="v4"),
        4361: row(4361, 1, added="new"),
    }


# -- types -------------------------------------------------------------------------------------------------------------

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."


def base64_of(number: int, size: int | None = None) -> str:
    size = size or number.bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def decimal(scale: int, precision: int | None = None) -> Json:
    parameters = {"scale": str(scale)} | ({} if precision is None else {"connect.decimal.precision": str(precision)})
    return {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": parameters}


def utc(*parts: int) -> dt.datetime:
    """Return a moment in UTC as ``collect`` returns it: in local time, without a zone."""
    return dt.datetime(*parts, tzinfo=dt.UTC).astimezone().replace(tzinfo=None)


def logical(type_: str, name: str) -> Json:
    return {"type": type_, "name": name}


DATE, ISO_DATE = logical("int32", f"{DEBEZIUM}Date"), logical("string", f"{DEBEZIUM}IsoDate")
MILLIS, MICROS, NANOS = (logical("int64", f"{DEBEZIUM}{name}Timestamp") for name in ("", "Micro", "Nano"))
CONNECT_MILLIS = logical("int64", f"{CONNECT}Timestamp")
DATES = {"type": "array", "items": DATE}
VARIABLE = {**logical("struct", "io.debezium.data.VariableScaleDecimal"), "fields": []}


@pytest.mark.full
def test_the_type_of_the_table_wins_and_no_digit_is_lost(decode_batch: Decode) -> None:
    numbers = {"number": VARIABLE, "integer": VARIABLE, "exact": decimal(9, 38)}
    schema = struct(id=INT, local=MICROS, nanos=NANOS, text=DATE, **numbers)

    def message_of(key: int, value: int, integer_value: int = 70) -> Message:
        number, integer = {"scale": 3, "value": base64_of(value)}, {"scale": 1, "value": base64_of(integer_value)}
        row = {"id": key, "number": number, "integer": integer, "local": 1, "nanos": 7, "text": 0, "exact": "?"}
        message_key, text, origin = row_message(row, schema)
        assert text is not None
        return message_key, text.replace(b'"?"', b"12345678901234567890.123456789"), origin

    table = state("id bigint, number decimal(10,2), integer int, local timestamp_ntz, nanos bigint, text string")
    batch = decode_batch([message_of(1, -5_000), message_of(2, 5_001), message_of(3, 0, 71)], table=table)
    assert rows(batch)[0] | {ORDER: None} == {
        "id": 1, "number": Decimal("-5.00"), "integer": 7, "local": utc(1970, 1, 1, 0, 0, 0, 1), "nanos": 7,
        "text": "1970-01-01", "exact": Decimal("12345678901234567890.123456789"), ORDER: None, DELETES: False,
    }  # fmt: skip
    assert reasons(batch) == {
        "t/0/2": "the value of the column number does not fit decimal(10,2)",
        "t/0/3": "the value of the column integer does not fit int",
    }


@pytest.mark.full
def test_without_a_schema_types_come_from_the_table_or_values(decode_batch: Decode) -> None:
    row = {
        "id": 1, "day": 1, "iso": "2018-06-20", "at": "2018-06-20T15:13:16Z", "price": 1.5, "blob": "3q0=", "new": 7,
        "real": 1.0, "flag": True, "mixed": 1, "nothing": None, "inner": {"a b": [1, 2]}, "Flight No.": "LH 1",
        "big": 2**70,
    }  # fmt: skip
    table = state("id int, day date, iso date, at timestamp, price decimal(5,2), blob binary, gone string")
    rows_without_schema = (row, {**row, "id": 2, "real": 2, "mixed": "x"})
    messages = [message({"id": after["id"]}, event("c", after["id"], after=after)) for after in rows_without_schema]
    batch = decode_batch(messages, table=table)
    assert reasons(batch) == {}
    stored = rows_by_id(batch)
    assert stored[1] | {ORDER: None, DELETES: None} == {
        "id": 1, "day": dt.date(1970, 1, 2), "iso": dt.date(2018, 6, 20), "at": utc(2018, 6, 20, 15, 13, 16),
        "price": Decimal("1.50"), "blob": b"\xde\xad", "new": 7, "real": 1.0, "flag": True, "mixed": "1",
        "inner": {"a b": [1, 2]}, "Flight No.": "LH 1", "big": Decimal(2**70), ORDER: None, DELETES: None,
    }  # fmt: skip
    assert (stored[2]["mixed"], stored[2]["real"]) == ("x", 2.0)


DEAD = "dead"
#: Column, JSON text, and the decoded value, or ``DEAD`` for a dead letter.
JSON_VALUES: list[tuple[str, str, Any]] = [
    ("flag", "true", True), *((("flag", text, DEAD)) for text in ('"yes"', '"y"', '"1"', '"true"', "1")),
    ("n", "7", 7), ("n", "7.0", 7), *(("n", text, DEAD) for text in ('"1"', '" 12 "', "true", "[1]", "2147483648")),
    ("price", "19.99", Decimal("19.99")), ("price", '"-19.99"', Decimal("-19.99")),
    *(("price", text, DEAD) for text in ('"1999"', '" 1.5"', '"1.555"', "true", "123456789", '""')),
    ("real", "0.1", 0.1), ("real", '"-Infinity"', float("-inf")), ("real", "1e3", 1000.0),
    *(("real", text, DEAD) for text in ('"0.5"', "1e400", "1e-400", "0.1234567890123456789", "9007199254740993", "[]")),
    *(("wide", text, DEAD) for text in ("1" * 39, "0." + "1" * 39, "1234567890123456789e-10")),
    ("day", '"2026-01-02"', dt.date(2026, 1, 2)), ("day", "1", dt.date(1970, 1, 2)),
    *(("day", text, DEAD) for text in ('"2026-01-02T23:59:00Z"', '"17702"', "1.5", '"today"', '""')),
    ("at", '"2026-10-25T00:30:00Z"', utc(2026, 10, 25, 0, 30)),
    ("at", '"2026-10-25T02:30:00+01:00"', utc(2026, 10, 25, 1, 30)),
    *(("at", text, DEAD) for text in ('"2026-01-02"', '"15:13:16Z"', '"2026-01-02T00:00:00.1234567Z"', "1700000000")),
    ("local", '"2026-10-25T02:30:00"', utc(2026, 10, 25, 2, 30)), ("local", '"2026-10-25T02:30:00Z"', DEAD),
    ("blob", '"3q0="', b"\xde\xad"), ("blob", "1234", DEAD),
    ("text", '""', ""), ("text", '"1"', "1"), ("text", "1.5", "1.5"), ("text", '"a\\n\\"b\'\\\\"', "a\n\"b'\\"),
    ("text", '": 1234567890123456789012345678901234567890123"', ": 1234567890123456789012345678901234567890123"),
    ("o", '{"x": 1}', {"x": 1, "y": None}), ("o", '{"x": 2, "y": 3}', {"x": 2, "y": 3}),
    ("o", '{"x": 1.5}', DEAD), ("o", '{"x": "1"}', DEAD), ("o", "7", DEAD),
    ("list", '[{"x": 1, "y": "b"}]', [{"x": 1, "y": "b"}]),
    ("map", '{"a": {"x": 1, "y": null}}', {"a": {"x": 1}}), ("map", '{"a": {"x": 1, "y": 2}}', DEAD),
]  # fmt: skip
JSON_TABLE = (
    "id bigint, flag boolean, n int, price decimal(10,2), real double, wide decimal(38,10), day date, at timestamp, "
    "local timestamp_ntz, blob binary, text string, o struct<x:int>, list array<struct<x:int>>, "
    "map map<string,struct<x:int>>"
)


def test_without_a_schema_the_json_type_has_to_fit(decode_batch: Decode) -> None:
    def message_of(number: int, column: str, text: str) -> Message:
        value = json.dumps(event("c", number, after={"id": number, column: "?"})).replace('"?"', text)
        return message({"id": number}, value.encode(), str(number))

    cases = list(enumerate(JSON_VALUES))
    stored: dict[int, Json] = {}
    dead: dict[str, str] = {}
    for is_bad in (False, True):
        messages = [
            message_of(number, column, text) for number, (column, text, value) in cases if (value == DEAD) == is_bad
        ]
        batch = decode_batch(messages, table=state(JSON_TABLE))
        stored |= rows_by_id(batch)
        dead |= reasons(batch)
    wrong = {
        (column, text): stored[number][column] if number in stored else dead[str(number)]
        for number, (column, text, value) in cases
        if (value == DEAD) != (str(number) in dead) or (value != DEAD and stored[number][column] != value)
    }
    assert wrong == {}


def test_types_of_several_schemas_widen(decode_batch: Decode) -> None:
    def message_of(key: int, **schema_types: Json) -> Message:
        return row_message({"id": key, **dict.fromkeys(schema_types, key)}, struct(id=INT, **schema_types))

    small, large = {"type": "int16"}, {"type": "int32"}
    batch = decode_batch([message_of(1, n=small, at=MILLIS), message_of(2, n=large, at=MICROS), message_of(3)])
    column_types = types(batch)
    assert (column_types["n"], column_types["at"]) == ("int", "timestamp")
    assert {row["id"]: (row["n"], row["at"]) for row in rows(batch)} == {
        1: (1, utc(1970, 1, 1, 0, 0, 0, 1000)),
        2: (2, utc(1970, 1, 1, 0, 0, 0, 2)),
        3: (None, None),
    }


@pytest.mark.full
def test_a_nested_field_that_a_schema_lacks_is_null(decode_batch: Decode) -> None:
    def message_of(key: int, value: Json, schema: Json) -> Message:
        row = {"id": key, "o": value, "list": [value]}
        return row_message(row, struct(id=INT, o=schema, list={"type": "array", "items": schema}))

    table = state("id bigint, o struct<x:bigint,y:string>, list array<struct<y:string,x:bigint>>")
    messages = [message_of(1, {"x": 1}, struct(x=INT)), message_of(2, {"x": 2, "z": "new"}, struct(x=INT, z=TEXT))]
    batch = decode_batch([*messages, message({"id": 3}, event("c", 3, after={"id": 3, "o": {"X": 3}}))], table=table)
    assert reasons(batch) == {}
    values = [{"x": 1, "y": None, "z": None}, {"x": 2, "y": None, "z": "new"}]
    assert {row["id"]: (row["o"], row["list"]) for row in rows(batch)} == {
        **{number: (value, [value]) for number, value in enumerate(values, 1)},
        3: ({"x": 3, "y": None, "z": None}, None),
    }


# -- operations, keys, order -------------------------------------------------------------------------------------------


def test_operations_are_decoded_and_other_messages_skipped(decode_batch: Decode) -> None:
    messages = [
        message({"id": 1}, event("r", 5, after={"id": 1, "v": "read"}, snapshot="last")),
        message({"id": 2}, event("d", 6, before=None)),
        message(None, event("d", 7, before={"id": 3, "v": "old"})),
        # An update of a key is a delete and a create.
        message({"id": 4}, event("d", 8, before={"id": 4, "v": "x"})),
        message({"id": 4}, None),
        message({"id": 5}, event("c", 8, after={"id": 5, "v": "x"})),
        # Lines of a file contain key and value.
        message(None, {"key": {"id": 6}, "value": event("d", 9)}),
        message(None, {"key": with_schema({"id": 7}, struct(id=INT)), "value": event("c", 9, after={"id": 7})}),
        message(None, {"key": {"id": 7}, "value": None}),
        message(None, {"schema": None, "payload": None}),
        message({"prefix": "p"}, {"op": "m", "source": source(10), "message": {"prefix": "p", "content": "eA=="}}),
        message({"serverName": "t"}, {"ts_ms": 1_700_000_000_000}),
    ]
    batch = decode_batch(messages)
    assert reasons(batch) == {}
    assert {row["id"]: (row["v"], row[DELETES]) for row in rows(batch)} == {
        1: ("read", False), 2: (None, True), 3: (None, True), 4: (None, True), 5: ("x", False), 6: (None, True),
        7: (None, False),
    }  # fmt: skip
    assert (batch.keys, batch.count, batch.skipped_count) == (("id",), 7, 5)
    assert batch.newest_source_time == 1_700_000_000.009


def test_undecodable_messages_become_dead_letters(decode_batch: Decode) -> None:
    int32, blob = {"type": "int32"}, {"type": "bytes"}
    columns = {"n": int32, "blob": blob, "price": decimal(2, 4), "long": decimal(0, 65), "dates": DATES, "region": TEXT}
    schema = envelope_schema(struct(id=INT, **columns))

    def row(lsn: int = 1, op: str = "u", **values: Any) -> Json:
        after = {"id": 1, "n": 1, "blob": None, "dates": None, **values}
        return with_schema(event(op, lsn, after=after), schema)

    unavailable, no_array = "did not receive", {"type": "array", "items": "string"}
    cases: list[tuple[Any, Any, str]] = [
        ({"id": 1}, b"\xff{}", "UTF-8"),
        ({"id": 1}, b'{"op":', "not one JSON object"),
        ({"id": 1}, b"", "not one JSON object"),
        ({"id": 1}, b"[]", "not one JSON object"),
        ({"id": 1}, json.dumps(event("c", 1, after={"id": 1})).encode() * 2, "not one JSON object"),
        ({"id": 1}, b'{"op":"c","op":"d"}', "names a field twice"),
        ({"id": 1}, {"id": 1, "name": "unwrapped"}, "no op…ExtractNewRecordState"),
        ({"id": 1}, b"\0\0\0\0\x07\x02\x06Ada", "Confluent's header"),
        ({"id": 1}, event("x", 1), "not known: x"),
        ({"id": 1}, event("u", 1), "after is not an object"),
        ({"id": 1}, event("c", 1, after='{"_id": 1}'), "after is not an object"),
        ({"id": 1}, {"schema": {"type": "struct"}, "payload": event("c", 1, after={"id": 1})}, "not a Kafka Connect"),
        ({"id": 1}, with_schema(event("c", 1, after={"id": 1}), envelope_schema(struct(id=no_array))), "not a Kafka"),
        (with_schema({"id": 1}, struct(id=no_array)), row(), "not a Kafka Connect"),
        (None, event("c", 1, after={"v": 1}), "key column id"),
        (None, event("d", 1), "key column id"),
        ({"id": None}, event("d", 1), "key column id"),
        (b"\xff", event("d", 1), "key column id"),
        (b'{"id": 1},{"id": 2}', event("d", 1), "key column id"),
        ({"id": 1}, row(n=2**31), "column n does not fit int"),
        ({"id": 1}, row(n=1.5), "column n does not fit int"),
        ({"id": 1}, row(n="x"), "column n does not fit int"),
        ({"id": 1}, row(blob="no base64!"), "column blob does not fit binary"),
        ({"id": 1}, row(price=base64_of(10**18)), "column price does not fit decimal(4,2)"),
        ({"id": 1}, row(price=base64_of(10_000)), "column price does not fit decimal(4,2)"),
        ({"id": 1}, row(price=base64_of(1, 9)), "column price does not fit decimal(4,2)"),
        ({"id": 1}, row(price=1.005), "column price does not fit decimal(4,2)"),
        ({"id": 1}, row(long=base64_of(10**38)), "column long does not fit string"),
        ({"id": 1}, row(dates=[1, "x"]), "column dates does not fit array<date>"),
        ({"id": 1}, row(dates=7), "column dates does not fit array<date>"),
        ({"id": 1}, row(op="c", blob=base64.b64encode(PLACEHOLDER.encode()).decode()), unavailable),
        ({"id": 1}, row(op="r", dates=list(PLACEHOLDER.encode())), unavailable),
        ({"id": 1}, event("c", 1, after={"id": 1, "v": PLACEHOLDER}), unavailable),
        ({"id": 1}, event("c", 1, after={"id": 1, "v": {PLACEHOLDER: PLACEHOLDER}}), unavailable),
        ({"id": 1}, event("c", 1, after={"id": 1, "v": [PLACEHOLDER]}), unavailable),
        ({"id": PLACEHOLDER}, event("u", 1, after={"id": PLACEHOLDER}), f"{unavailable}…column id "),
        ({"id": 1}, {**event("u", 1, after={"id": 1}), "source": {"connector": "postgresql"}}, "position is unknown"),
        ({"id": 1}, row(region=""), "partition column region has the value ''"),
        ({"id": 1}, row(region="__HIVE_DEFAULT_PARTITION__"), "partition column region has the value '__HIVE"),
        ({"id": 1}, row(extra=1, other=2), "its schema does not name the fields extra, other"),
    ]
    good = [({"id": 2}, row(2, id=2)), ({"id": 3}, event("d", 3, before={"id": 3, "n": PLACEHOLDER}))]
    messages = [message(key, value, str(number)) for number, (key, value, _) in enumerate(cases)]
    batch = decode_batch([*messages, *(message(key, value) for key, value in good)], partition_by=["Region"])
    reason_of = reasons(batch)
    assert [
        (number, expected, reason_of.get(str(number)))
        for number, (*_, expected) in enumerate(cases)
        if not all(part in reason_of.get(str(number), "") for part in expected.split("…"))
    ] == []
    assert {row["id"] for row in rows(batch)} == {2, 3}
    letters = {row["origin"]: (row["key"], row["value"]) for row in batch.dead_letters.collect()}
    assert {origin: (key and bytes(key), value and bytes(value)) for origin, (key, value) in letters.items()} == {
        origin: (key, value) for key, value, origin in messages
    }


@pytest.mark.full
def test_the_placeholder_of_the_connector_is_never_a_value(decode_batch: Decode) -> None:
    messages = [message({"id": 1}, event("c", 1, after={"id": 1, "v": value}), value) for value in ("absent", "b")]
    batch = decode_batch(messages, unavailable_value="absent")
    assert "did not receive" in reasons(batch)["absent"]
    assert rows(batch)[0]["v"] == "b"


def table_event(table: str, op: str = "c", lsn: int = 1, schema: str = "public") -> Message:
    """Return an event of a source table whose rows contain its name."""
    after = None if op in "dt" else {"id": 1, "of": table}
    return message({"id": 1}, event(op, lsn, after=after, db="shop", schema=schema, table=table), table)


REFUSED: list[tuple[list[Message], Json, str]] = [
    (
        [message({"id": 1}, event("c", 1, after={"id": 1}, db="shop", table=name)) for name in ("orders", "customers")],
        {},
        "several tables, shop.customers, shop.orders.*--source-table",
    ),
    (
        [table_event("orders", schema=schema) for schema in ("public", "archive")],
        {"source_tables": ["orders"]},
        "orders matches several source tables, shop.archive.orders, shop.public.orders",
    ),
    ([message(None, event("t", 1), "t/0/77")], {}, "truncated .t/0/77.: use --on-truncate delete"),
    (
        [message({"id": 1}, event("c", 1, after={"id": 1}, connector="vitess"))],
        {},
        "vitess cannot be derived",
    ),
    ([message({"id": 1}, {"op": "d"})], {}, "source.connector is missing"),
    ([message(None, event("c", 1, after={"id": 1}))], {}, "no keys"),
    ([message({key: 1}, event("d", 1)) for key in ("id", "no")], {}, r"with different columns, \(id\) and \(no\)"),
    ([message({"id": 1}, event("d", 1))], {"sequence_by": "source.lsn +"}, "sequence_by .* cannot be used"),
    ([message({"id": 1}, event("d", 1))], {"sequence_by": "source.scn"}, "the sequence source.scn is text"),
    ([message({"id": 1}, event("c", 1, after={"id": 1, "ID": 1}))], {}, "differ by case alone: ID, id"),
    (
        [row_message({"id": 1}, struct(id=INT, v=v)) for v in (INT, TEXT)],
        {},
        "column v has changed at the source, and no type holds both bigint and string.*the table's column a string",
    ),
    (
        [row_message({"id": 1}, struct(id=INT, v=v)) for v in (MICROS, INT)],
        {},
        "column v has changed at the source, and no type holds both bigint and timestamp: apply.*or feed a new table$",
    ),
    (
        [row_message({"id": 1}, struct(id=INT, v=MICROS))],
        {"table": "id bigint, v string"},
        "column v is a string, which does not hold timestamp in every time zone: feed a new table$",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("messages", "options", "error"), REFUSED)
def test_a_feed_that_cannot_be_applied_is_refused(
    decode_batch: Decode, messages: list[Message], options: Json, error: str
) -> None:
    table = state(options["table"]) if "table" in options else None
    with pytest.raises(FeedError, match=error):
        decode_batch(messages, **{**options, "table": table})


def connector_source(connector: str, **fields: Any) -> Json:
    return {"connector": connector, "ts_ms": 1, "snapshot": None, **fields}


def mysql_source(file: str, pos: int, row: int = 0, **fields: Any) -> Json:
    return connector_source("mysql", file=file, pos=pos, row=row, **fields)


def sqlserver_source(commit: str, change: str | None, serial: int | None, **fields: Any) -> Json:
    return connector_source("sqlserver", commit_lsn=commit, change_lsn=change, event_serial_no=serial, **fields)


#: Sources of each connector, in the order of the changes.
IN_ORDER: list[list[Json]] = [
    [
        source(90, snapshot="true"),
        source(90, snapshot="last") | {"ts_ms": 2},
        source(90),
        source(91),
        # The log is not in the order of commits: the change at 95 belongs to the commit at 101.
        source(98, 93),
        source(100, 93) | {"lsn": None, "snapshot": "incremental"},
        source(95, 101),
        source(1000, 102),
        connector_source("postgresql", lsn=20_000),
    ],
    [
        mysql_source("b.000009", 500, snapshot="true"),
        mysql_source("b.000009", 500, 0),
        mysql_source("b.000009", 500, 1),
        mysql_source("b.000009", 500, 10),
        mysql_source("b.000009", 4000, snapshot="incremental"),
        mysql_source("b.000010", 4),
        mysql_source("b.1000000", 4),
    ],
    [
        sqlserver_source("00000025:00000d98:00a2", None, None, snapshot="true"),
        sqlserver_source("00000027:00000758:0005", "00000027:00000758:0003", 1),
        sqlserver_source("00000027:00000758:0005", "00000027:00000758:0003", 2),
        sqlserver_source("00000027:00000758:0005", "00000027:00000758:0004", 1),
        sqlserver_source("0000002a:00000001:0001", "00000027:00000758:0001", 1),
    ],
    [
        connector_source("oracle", scn="900", snapshot="true"),
        connector_source("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0002", ssn=0),
        connector_source("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0002", ssn=1),
        connector_source("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0003", ssn=0),
        connector_source("oracle", scn="2000", commit_scn="2001", txSeq=2),
        connector_source("oracle", scn="2000", commit_scn="2001", txSeq=10),
    ],
]


def test_positions_follow_the_order_of_changes_per_connector(decode_batch: Decode) -> None:
    messages = [
        message(
            {"id": f"{number}/{index:02}"},
            {"op": "r" if fields["snapshot"] in ("true", "last") else "u", "source": fields, "after": {}},
        )
        for number, sources in enumerate(IN_ORDER)
        for index, fields in enumerate(sources)
    ]
    batch = decode_batch(messages)
    assert reasons(batch) == {}
    order = {row["id"]: row[ORDER] for row in rows(batch)}
    assert len(order) == len(messages)
    for number in range(len(IN_ORDER)):
        positions = [order[name] for name in sorted(order) if name.startswith(f"{number}/")]
        if number == 0:
            # All rows of a snapshot have the same position, because a snapshot has each row once.
            assert positions[0] == positions[1]
        assert positions == sorted(positions)
        assert len(set(positions)) == len(positions) - (number == 0)


def test_an_explicit_sequence_and_explicit_keys_win(decode_batch: Decode) -> None:
    messages = [
        message({"id": 1}, event("c", 1, after={"id": 1, "code": "a"}, connector="vitess", vgtid="17")),
        # This update deletes the row of the old code.
        message({"id": 1}, event("u", 2, before={"id": 1, "code": "a"}, after={"id": 1, "code": "b"}, vgtid="18")),
        message({"id": 1}, event("u", 2, before={"id": 1, "code": "b"}, after={"id": 1, "code": "b"}, vgtid="19")),
        # No partition can have the row of the old code.
        message({"id": 2}, event("u", 2, before={"id": 2, "code": ""}, after={"id": 2, "code": "c"}, vgtid="20")),
        message({"id": 1}, event("d", 3, before={"id": 1, "code": "b"}, vgtid="x"), "unordered"),
    ]
    sequence = "struct(try_cast(source.vgtid AS bigint) AS a, transaction.id IS NULL AS b)"
    batch = decode_batch(messages, keys=["code"], sequence_by=sequence, partition_by=["code"])
    order = sorted((row[ORDER]["a"], row["code"], row["id"], row[DELETES]) for row in rows(batch))
    assert order == [
        (17, "a", 1, False), (18, "a", None, True), (18, "b", 1, False), (19, "b", 1, False), (20, "c", 2, False),
    ]  # fmt: skip
    assert (batch.count, batch.event_count) == (5, 4)
    assert set(reasons(batch)) == {"unordered"}


@pytest.mark.full
def test_events_of_other_source_tables_are_filtered(decode_batch: Decode) -> None:
    orders = [table_event("orders_1"), table_event("orders_2", "d")]
    filtered = [table_event("customers", "d"), table_event("orders_1", schema="old"), table_event("x", "t")]
    large = event("c", 1, after={"id": 1, "of": 10**40}, db="shop", schema="public", table="customers")
    filtered += [table_event("customers", "?"), message({"id": 1}, large)]
    bad = message({"id": 1}, b"{", "bad")
    batch = decode_batch([*orders, *filtered, bad], source_tables=["public.orders_1", "orders_2", "orders_3"])
    assert [(row["of"], row[DELETES]) for row in rows(batch)] == [("orders_1", False), (None, True)]
    assert (batch.filtered_count, list(reasons(batch))) == (5, ["bad"])
    assert batch.source_tables == ("orders_3", "shop.public.orders_1", "shop.public.orders_2")
    assert decode_batch(orders[:1]).source_tables == ("shop.public.orders_1",)
    assert decode_batch([message({"id": 1}, event("c", 1, after={"id": 1}))]).source_tables is None


@pytest.mark.full
def test_a_later_batch_of_another_source_table_is_refused(feed: Feed) -> None:
    feed.apply([table_event("orders")])
    with pytest.raises(ChangesError, match=r"source tables: shop.public.orders in the table, shop.public.customers"):
        feed.apply([table_event("customers", "d", 2)])
    assert set(feed.rows()) == {1}


@pytest.mark.full
def test_dropped_columns_and_wider_numbers_fit_any_batch(feed: Feed) -> None:
    def message_of(key: int, lsn: int, **row: Any) -> Message:
        return message({"id": key}, event("u", lsn, after={"id": key, **row}))

    # Messages have no schemas. Numbers are whole at first, and the column "size" is dropped at the source.
    row = {"price": 10, "size": 7, "o": {"x": 1}}
    feed.apply([message_of(1, 1, **row), message_of(2, 2, **row), message_of(3, 3, **{**row, "price": 1})])
    with locked(feed.spark, str(feed.table), manager=feed.writer.manager):
        feed.spark.sql(f"ALTER TABLE delta.`{feed.table}` ADD COLUMNS (note string)")
    feed.writer.update({"note": "'mine'"})
    feed.apply([message_of(1, 4, price=19.99)])
    # ``apply_events`` adds a nested field.
    messages = [message_of(2, 5, price=0.125, o={"x": 1, "y": "new"}), message_of(4, 6, price=2.5, size=8)]
    apply_events(feed.writer, frame(feed.spark, messages))
    expected = {1: ("19.99", None), 2: ("0.125", None), 3: ("1", 7), 4: ("2.5", 8)}
    # delta-rs does not read a table with type widening.
    stored = feed.spark.read.format("delta").load(str(feed.table)).collect()
    assert {row["id"]: (row["price"], row["size"]) for row in stored} == {
        key: (Decimal(price), size) for key, (price, size) in expected.items()
    }
    assert {row["id"]: row["o"] and row["o"].asDict() for row in stored} == {
        1: None, 2: {"x": 1, "y": "new"}, 3: {"x": 1, "y": None}, 4: None,
    }  # fmt: skip
    # No event has the column "note".
    assert {row["id"] for row in stored if row["note"] == "mine"} == {1, 2, 3}


@pytest.mark.full
@pytest.mark.parametrize("key", [{"schema": 5, "payload": 7}, {"payload": 7}, {"schema": "public"}], ids=str)
def test_columns_of_a_key_may_be_named_schema_and_payload(decode_batch: Decode, key: Json) -> None:
    batch = decode_batch([message(key, event("d", 1))])
    assert reasons(batch) == {}
    assert [{name: row[name] for name in key} for row in rows(batch)] == [key]


def test_names_of_keys_match_regardless_of_case(decode_batch: Decode) -> None:
    batch = decode_batch([message({"id": 1}, event("d", 1))], keys=["ID"], table=state("ID int"))
    assert (batch.keys, rows(batch)[0]["id"], reasons(batch)) == (("id",), 1, {})


def test_negative_control_by_lsn_alone_an_old_snapshot_row_wins(
    decode_batch: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction writes at 95, an incremental snapshot reads the old row at 100, then the transaction commits."""
    snapshot_row = event("r", 100, commit=93, after={"id": 1, "v": "old"}, snapshot="incremental")
    update = event("u", 95, commit=101, after={"id": 1, "v": "new"})

    def newest_value() -> str:
        batch = decode_batch([message({"id": 1}, value) for value in (snapshot_row, update)])
        return str(max(rows(batch), key=lambda row: row[ORDER])["v"])

    assert newest_value() == "new"
    monkeypatch.setitem(_POSITIONS, ("postgresql",), lambda _: _zero_padded(_field("lsn"), 20))
    assert newest_value() == "old"


def test_a_batch_without_changes_is_empty(decode_batch: Decode) -> None:
    batch = decode_batch([message({"id": 1}, None), message({"id": 1}, b"{", "bad")])
    assert (batch.count, batch.dead_count, batch.skipped_count, batch.newest_source_time) == (0, 1, 1, None)
    assert decode_batch([]).count == 0
