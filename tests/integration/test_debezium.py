"""Debezium's messages: the table equals the source's, and what cannot be decoded is set aside with its reason."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import AWKWARD_TEXTS, CLOCK_CHANGES, HISTORIES, delivered
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import ChangesError, FeedError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DELETES, ORDER, DecodedBatch
from writer_jobs.feeds.debezium.positions import _POSITIONS, _digits, _field
from writer_jobs.merge.apply import ChangesResult, apply_changes

pytestmark = pytest.mark.spark

Json = dict[str, Any]
Message = tuple[bytes | None, bytes | None, str]
INT, TEXT = {"type": "int64", "optional": True}, {"type": "string", "optional": True}
PLACEHOLDER = "__debezium_unavailable_value"


def octets(value: Any) -> bytes | None:
    return None if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()


def message(key: Any, value: Any, origin: str = "t/0/0") -> Message:
    return octets(key), octets(value), origin


def struct(**fields: Json) -> Json:
    return {"type": "struct", "optional": True, "fields": [{"field": name, **kind} for name, kind in fields.items()]}


def with_schema(payload: Any, schema: Json | None) -> Any:
    return payload if schema is None else {"schema": schema, "payload": payload}


def envelope_schema(row: Json) -> Json:
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, {"field": "op", "type": "string"}]
    return {"type": "struct", "name": "t.Envelope", "fields": fields}


def source(lsn: int, commit: int | None = None, **more: Any) -> Json:
    sequence = json.dumps([None if commit is None else str(commit), str(lsn)])
    told = {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + lsn, "snapshot": "false", "lsn": lsn}
    return {**told, "sequence": sequence, **more}


def event(op: str, lsn: int, *, before: Json | None = None, after: Any = None, **more: Any) -> Json:
    return {"before": before, "after": after, "op": op, "source": source(lsn, **more), "ts_ms": 1_700_000_100_000}


def frame(spark: SparkSession, messages: Iterable[Message]) -> DataFrame:
    return spark.createDataFrame(list(messages), "key binary, value binary, origin string")


def state(schema: str, *partition_columns: str) -> TableState:
    return TableState(3, StructType.fromDDL(schema), partition_columns, frozenset(), forgets_transactions=False)


Decode = Callable[..., DecodedBatch]


@pytest.fixture
def decoded(spark: SparkSession) -> Iterator[Decode]:
    made: list[DecodedBatch] = []

    def of(messages: Iterable[Message], **how: Any) -> DecodedBatch:
        made.append(decode(frame(spark, messages), **{"table": None, **how}))
        return made[-1]

    yield of
    for each in made:
        each.close()


def rows(changes: DecodedBatch) -> list[Json]:
    return [row.asDict(recursive=True) for row in changes.changes.collect()]


def reasons(changes: DecodedBatch) -> dict[str, str]:
    found = {row["origin"]: row["reason"] for row in changes.dead.collect()}
    assert len(found) == changes.dead_count
    return found


# -- a database, and what Debezium tells of it -------------------------------------------------------------------------

ZONED = {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp"}
V1 = struct(id=INT, name=TEXT, o=struct(x=INT, y=TEXT), at=ZONED)
V2 = struct(id=INT, name=TEXT, o=struct(x=INT, y=TEXT), at=ZONED, size={"type": "int32", "optional": True})
#: Values that their columns cannot have, as JSON.
UNFIT = (("at", '"15:13:16Z"'), ("o", '{"x": "1"}'), ("o", '{"x": 1, "z": [2]}'), ("name", "1" * 40), ("o", "7"))
BAD = "bad/0/"


@dataclass
class Source:
    """A table of PostgreSQL's and its topic: by default with schemas, every key is told, and tombstones follow."""

    chance: random.Random
    lsn: int = 0
    rows: dict[int, Json] = field(default_factory=dict)
    topic: list[Message] = field(default_factory=list)
    schema: Json = field(default_factory=lambda: V1)

    def tell(self, op: str, key: int, before: Json | None, after: Json | None, *, schemas: bool) -> None:
        self.lsn += self.chance.randint(1, 9)
        told = event(op, self.lsn, before=before, after=after)
        key_of = with_schema({"id": key}, struct(id=INT) if schemas else None)
        value = with_schema(told, envelope_schema(self.schema) if schemas else None)
        self.topic.append(message(key_of, value, f"t/0/{len(self.topic)}"))

    def put(self, key: int, row: Json) -> None:
        old = self.rows.get(key)
        self.rows[key] = row
        self.tell("u" if old else self.chance.choice("cr"), key, None, row, schemas=key % 2 == 0)

    def delete(self, key: int) -> None:
        old = self.rows.pop(key)
        before = self.chance.choice([None, {"id": key}, old])
        self.tell("d", key, before, None, schemas=key % 2 == 0)
        if self.chance.random() < 0.7:
            self.topic.append(message({"id": key}, None))

    def change(self, key: int) -> None:
        if key in self.rows and self.chance.random() < 0.35:
            self.delete(key)
            return
        if self.chance.random() < 0.02:
            self.tell_unfit(key)
        inner = {"x": self.lsn, "y": self.chance.choice(AWKWARD_TEXTS)}
        row: Json = {
            "id": key,
            "name": self.chance.choice((*AWKWARD_TEXTS, f"{key}@{self.lsn}", None)),
            "o": self.chance.choice((None, inner)),
            "at": self.chance.choice((*CLOCK_CHANGES, None)),
        }
        self.put(key, row if self.schema is V1 else {**row, "size": self.chance.randint(-5, 5)})

    def tell_unfit(self, key: int) -> None:
        column, text = self.chance.choice(UNFIT)
        self.lsn += 1
        value = json.dumps(event("u", self.lsn, after={"id": key, column: "?"})).replace('"?"', text)
        self.topic.append(message({"id": key}, value.encode(), f"{BAD}{len(self.topic)}"))


class Feed:
    """Applies messages to one table, and keeps the origins of dead letters."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))
        self.dead: set[str] = set()

    def apply(self, messages: Iterable[Message], *, keys: list[str] | None = None, **how: Any) -> ChangesResult:
        with decode(frame(self.spark, messages), table=self.writer.log.state(), keys=keys) as found:
            dead = {row["origin"]: row["reason"] for row in found.dead.collect()}
            assert {origin: reason for origin, reason in dead.items() if not origin.startswith(BAD)} == {}
            self.dead |= dead.keys()
            return apply_changes(self.writer, found.changes, **found.apply_options, schema_evolution=True, **how)

    def rows(self) -> dict[int, Json]:
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        assert len({row["id"] for row in found}) == len(found), "a key has two rows"
        return {row["id"]: {name: row[name] for name in row if name != "__SEQUENCE"} for row in found}


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


SEED = 7


@HISTORIES
def test_histories_with_and_without_schemas_in_any_order_equal_the_source(feed: Feed, number: int) -> None:
    chance = random.Random(SEED)
    database = Source(chance)
    for _ in range(3 * number):
        database.change(chance.randrange(number))
    database.schema = V2  # a column is added, and old messages are still on their way
    for _ in range(number):
        database.change(chance.randrange(number))
    for batch in delivered(SEED, database.topic, 2):
        feed.apply(batch)
    expected = {
        key: {"size": None, **row, "at": row["at"] and dt.datetime.fromisoformat(row["at"])}
        for key, row in database.rows.items()
    }
    assert feed.dead == {origin for *_, origin in database.topic if origin.startswith(BAD)} != set()
    assert len(expected) > number / 3
    assert len(database.topic) > 4 * number
    assert feed.rows() == expected


# -- bugs that others had ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, zookeeper: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Json]:
    """The rows of a table, partitioned by a column that is no key, after two batches with what others stumbled over."""
    old, new = struct(id=INT, region=TEXT, n=INT), struct(id=INT, region=TEXT, n=INT, added=TEXT)

    def of(op: str, lsn: int, row: Json, schema: Json = old, *, before: Json | None = None) -> Message:
        after = None if op == "d" else row
        value = with_schema(event(op, lsn, before=before, after=after), envelope_schema(schema))
        return message(with_schema({"id": row["id"]}, struct(id=INT)), value)

    def row(key: int, n: int, region: str = "eu", **more: Any) -> Json:
        return {"id": key, "region": region, "n": n, **more}

    first = [
        *(of("c", lsn, row(key, 0)) for lsn, key in enumerate((403, 318, 4360), 10)),
        # insert, delete, insert
        *(of("c", 30, row(661, 1)), of("d", 31, row(661, 1)), of("c", 32, row(661, 3))),
    ]
    second = [
        # an update with the row before it, which is no delete
        of("u", 500, row(403, 2), before=row(403, 0)),
        of("u", 501, row(403, 3, region="us"), before=row(403, 2)),
        # a delete with nothing but the key: it does not tell the partition
        of("d", 510, {"id": 318}, before={"id": 318}),
        # the schema changes in the middle of a batch
        *(of("u", 520 + n, row(4360, n)) for n in (1, 2)),
        *(of("u", 520 + n, row(4360, n, added=f"v{n}"), new) for n in (3, 4)),
        of("c", 530, row(4361, 1, added="new"), new),
    ]
    with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=60) as manager:
        feed = Feed(spark, manager, tmp_path_factory.mktemp("replayed") / "table")
        feed.apply(reversed(first), partition_by=["region"])
        feed.apply([*reversed(second), *second, *first])
        return feed.rows()


@pytest.mark.full
def test_debezium_server_iceberg_661_the_last_of_insert_delete_insert_in_a_batch_stays(replayed: Any) -> None:
    assert replayed[661]["n"] == 3


def test_debezium_server_iceberg_403_an_update_deletes_nothing(replayed: Any) -> None:
    assert replayed[403] == {"id": 403, "region": "us", "n": 3, "added": None}


def test_iceberg_kafka_connect_318_a_delete_with_nothing_but_the_key_finds_the_row_s_partition(replayed: Any) -> None:
    assert 318 not in replayed


def test_flink_cdc_4360_a_schema_change_in_a_batch_leaves_one_row_a_key(replayed: Any) -> None:
    assert replayed[4360] == {"id": 4360, "region": "eu", "n": 4, "added": "v4"}
    assert replayed[4361] == {"id": 4361, "region": "eu", "n": 1, "added": "new"}
    assert len(replayed) == 4


# -- types -------------------------------------------------------------------------------------------------------------

DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."


def base64_of(number: int, size: int | None = None) -> str:
    size = size or number.bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def decimal(scale: int, precision: int | None = None) -> Json:
    parameters = {"scale": str(scale)} | ({} if precision is None else {"connect.decimal.precision": str(precision)})
    return {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": parameters}


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC).astimezone().replace(tzinfo=None)


MOMENT = 1_529_507_596_945
VALUES: dict[str, tuple[Json, Any, str, Any]] = {
    "boolean": ({"type": "boolean"}, True, "boolean", True),
    "int8": ({"type": "int8"}, -7, "tinyint", -7),
    "int16": ({"type": "int16"}, 300, "smallint", 300),
    "int32": ({"type": "int32"}, 70_000, "int", 70_000),
    "int64": ({"type": "int64"}, 2**53 + 1, "bigint", 2**53 + 1),
    "float": ({"type": "float"}, 0.5, "float", 0.5),
    "double": ({"type": "double"}, "NaN", "double", "nan"),
    "bytes": ({"type": "bytes"}, "3q2+7w==", "binary", b"\xde\xad\xbe\xef"),
    "date": ({"type": "int32", "name": f"{DEBEZIUM}Date"}, 17_702, "date", dt.date(2018, 6, 20)),
    "connect_date": ({"type": "int32", "name": f"{CONNECT}Date"}, -1, "date", dt.date(1969, 12, 31)),
    "iso_date": ({"type": "string", "name": f"{DEBEZIUM}IsoDate"}, "2018-06-20Z", "date", dt.date(2018, 6, 20)),
    "millis": (
        {"type": "int64", "name": f"{DEBEZIUM}Timestamp"},
        MOMENT,
        "timestamp",
        utc(2018, 6, 20, 15, 13, 16, 945_000),
    ),
    "connect_timestamp": (
        {"type": "int64", "name": f"{CONNECT}Timestamp"},
        MOMENT,
        "timestamp",
        utc(2018, 6, 20, 15, 13, 16, 945_000),
    ),
    "micros": (
        {"type": "int64", "name": f"{DEBEZIUM}MicroTimestamp"},
        MOMENT * 1000 + 104,
        "timestamp",
        utc(2018, 6, 20, 15, 13, 16, 945_104),
    ),
    "nanos": (
        {"type": "int64", "name": f"{DEBEZIUM}NanoTimestamp"},
        -1000,
        "timestamp",
        utc(1969, 12, 31, 23, 59, 59, 999_999),
    ),
    "zoned": (
        {"type": "string", "name": f"{DEBEZIUM}ZonedTimestamp"},
        "2018-06-20T15:13:16.945104+02:00",
        "timestamp",
        utc(2018, 6, 20, 13, 13, 16, 945_104),
    ),
    "time": ({"type": "int32", "name": f"{DEBEZIUM}Time"}, 86_399_999, "bigint", 86_399_999),
    "micro_time": ({"type": "int64", "name": f"{DEBEZIUM}MicroTime"}, 86_399_999_999, "bigint", 86_399_999_999),
    "zoned_time": ({"type": "string", "name": f"{DEBEZIUM}ZonedTime"}, "15:13:16+02:00", "string", "15:13:16+02:00"),
    "json": ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": [1.50]}', "string", '{"a": [1.50]}'),
    "uuid": ({"type": "string", "name": "io.debezium.data.Uuid"}, "00-ff", "string", "00-ff"),
    "enum": ({"type": "string", "name": "io.debezium.data.Enum"}, "small", "string", "small"),
    "decimal": (decimal(2, 10), base64_of(-12_345), "decimal(10,2)", Decimal("-123.45")),
    "small_decimal": (decimal(5, 10), base64_of(7), "decimal(10,5)", Decimal("0.00007")),
    "long_decimal": (decimal(10), base64_of(10**38 - 1), "decimal(38,10)", Decimal("9" * 28 + "." + "9" * 10)),
    "lowest_decimal": (decimal(0), base64_of(-(10**37)), "decimal(38,0)", Decimal(-(10**37))),
    "largest_short": (decimal(0, 18), base64_of(10**18 - 1), "decimal(18,0)", Decimal(10**18 - 1)),
    "lowest_short": (decimal(18, 18), base64_of(-(10**18) + 1), "decimal(18,18)", Decimal("-0." + "9" * 18)),
    "every_digit": (decimal(18, 18), base64_of(123456789012345678), "decimal(18,18)", Decimal("0.123456789012345678")),
    "zero": (decimal(2, 4), base64_of(0), "decimal(4,2)", Decimal("0.00")),
    "variable": (
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []},
        {"scale": 3, "value": base64_of(-1_005)},
        "string",
        "-1.005",
    ),
    "variable_large": (
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []},
        {"scale": -2, "value": base64_of(15)},
        "string",
        "1500",
    ),
    "array": (
        {"type": "array", "items": {"type": "int32", "name": f"{DEBEZIUM}Date"}},
        [0, None, 1],
        "array<date>",
        [dt.date(1970, 1, 1), None, dt.date(1970, 1, 2)],
    ),
    "map": (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
        {"a": "x", "b": None},
        "map<string,string>",
        {"a": "x", "b": None},
    ),
    "point": (
        {"type": "struct", "name": "io.debezium.data.geometry.Point", **struct(x={"type": "double"}, y=INT)},
        {"x": 1.5, "y": None},
        "struct<x:double,y:bigint>",
        {"x": 1.5, "y": None},
    ),
}


@pytest.mark.full
def test_each_type_of_a_schema_has_a_type_and_its_value(decoded: Decode) -> None:
    schema = struct(id=INT, **{name: kind for name, (kind, *_) in VALUES.items()})
    full = {"id": 1, **{name: value for name, (_, value, *_) in VALUES.items()}}
    events = [event("c", 1, after=full), event("c", 2, after={**dict.fromkeys(full), "id": 2})]
    found = decoded(
        [message({"id": each["after"]["id"]}, with_schema(each, envelope_schema(schema))) for each in events]
    )
    assert reasons(found) == {}
    kinds = {each.name: each.dataType.simpleString() for each in found.changes.schema}
    assert {name: kinds[name] for name in VALUES} == {name: kind for name, (_, _, kind, _) in VALUES.items()}
    one, two = sorted(rows(found), key=lambda row: row["id"])
    one["double"] = str(one["double"])
    assert {name: one[name] for name in VALUES} == {name: value for name, (_, _, _, value) in VALUES.items()}
    assert {two[name] for name in VALUES} == {None}


@pytest.mark.full
def test_where_several_types_would_do_the_table_s_is_taken_and_no_digit_is_lost(decoded: Decode) -> None:
    variable = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}
    schema = struct(
        id=INT,
        number=variable,
        local={"type": "int64", "name": f"{DEBEZIUM}MicroTimestamp"},
        nanos={"type": "int64", "name": f"{DEBEZIUM}NanoTimestamp"},
        text={"type": "int32", "name": f"{DEBEZIUM}Date"},
        exact=decimal(9, 38),
    )

    def of(key: int, value: int) -> Message:
        after = {"id": key, "number": {"scale": 3, "value": base64_of(value)}, "local": 1, "nanos": 7, "text": 0}
        told = json.dumps(with_schema(event("c", key, after={**after, "exact": "?"}), envelope_schema(schema)))
        return message({"id": key}, told.replace('"?"', "12345678901234567890.123456789").encode(), f"t/0/{key}")

    table = state("id bigint, number decimal(10,2), local timestamp_ntz, nanos bigint, text string")
    found = decoded([of(1, -5_000), of(2, 5_001)], table=table)
    assert rows(found)[0] | {ORDER: None} == {
        "id": 1,
        "number": Decimal("-5.00"),
        "local": utc(1970, 1, 1, 0, 0, 0, 1),
        "nanos": 7,
        "text": "1970-01-01",
        "exact": Decimal("12345678901234567890.123456789"),
        ORDER: None,
        DELETES: False,
    }
    assert reasons(found) == {"t/0/2": "the value of the column number does not fit decimal(10,2)"}


@pytest.mark.full
def test_without_schemas_types_are_the_table_s_and_else_those_of_the_values(decoded: Decode) -> None:
    after = {
        "id": 1,
        "day": 1,
        "iso": "2018-06-20",
        "at": "2018-06-20T15:13:16Z",
        "price": 1.5,
        "blob": "3q0=",
        "new": 7,
        "real": 1.0,
        "flag": True,
        "mixed": 1,
        "nothing": None,
        "inner": {"a b": [1, 2]},
        "Flight No.": "LH 1",
        "big": 2**70,
    }
    table = state("id int, day date, iso date, at timestamp, price decimal(5,2), blob binary, gone string")
    told = [after, {**after, "id": 2, "real": 2, "mixed": "x"}]
    events = [message({"id": row["id"]}, event("c", row["id"], after=row)) for row in told]
    found = decoded(events, table=table)
    assert reasons(found) == {}
    first, second = sorted(rows(found), key=lambda row: row["id"])
    assert first | {ORDER: None, DELETES: None} == {
        "id": 1,
        "day": dt.date(1970, 1, 2),
        "iso": dt.date(2018, 6, 20),
        "at": utc(2018, 6, 20, 15, 13, 16),
        "price": Decimal("1.50"),
        "blob": b"\xde\xad",
        "new": 7,
        "real": 1.0,
        "flag": True,
        "mixed": "1",
        "inner": {"a b": [1, 2]},
        "Flight No.": "LH 1",
        "big": Decimal(2**70),
        ORDER: None,
        DELETES: None,
    }
    assert (second["mixed"], second["real"]) == ("x", 2.0)


DEAD = "dead"
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


def test_without_a_schema_the_json_type_counts(decoded: Decode) -> None:
    def of(at: int, column: str, text: str) -> Message:
        value = json.dumps(event("c", at, after={"id": at, column: "?"})).replace('"?"', text)
        return message({"id": at}, value.encode(), str(at))

    cases = list(enumerate(JSON_VALUES))
    stored: dict[int, Json] = {}
    dead: dict[str, str] = {}
    for is_bad in (False, True):
        batch = [of(at, column, text) for at, (column, text, value) in cases if (value == DEAD) == is_bad]
        changes = decoded(batch, table=state(JSON_TABLE))
        stored |= {row["id"]: row for row in rows(changes)}
        dead |= reasons(changes)
    wrong = {
        (column, text): stored[at][column] if at in stored else dead[str(at)]
        for at, (column, text, value) in cases
        if (value == DEAD) != (str(at) in dead) or (value != DEAD and stored[at][column] != value)
    }
    assert wrong == {}


MICROS = {"type": "int64", "name": f"{DEBEZIUM}MicroTimestamp"}


def test_types_of_several_schemas_widen(decoded: Decode) -> None:
    def of(key: int, **kinds: Json) -> Message:
        row = {"id": key, **dict.fromkeys(kinds, key)}
        return message({"id": key}, with_schema(event("c", key, after=row), envelope_schema(struct(id=INT, **kinds))))

    millis = {"type": "int64", "name": f"{DEBEZIUM}Timestamp"}
    changes = decoded([of(1, n={"type": "int16"}, at=millis), of(2, n={"type": "int32"}, at=MICROS), of(3)])
    kinds = {column.name: column.dataType.simpleString() for column in changes.changes.schema}
    assert (kinds["n"], kinds["at"]) == ("int", "timestamp")
    assert {row["id"]: (row["n"], row["at"]) for row in rows(changes)} == {
        1: (1, utc(1970, 1, 1, 0, 0, 0, 1000)),
        2: (2, utc(1970, 1, 1, 0, 0, 0, 2)),
        3: (None, None),
    }


@pytest.mark.full
def test_a_nested_field_that_a_schema_lacks_is_null(decoded: Decode) -> None:
    def of(key: int, value: Json, kind: Json) -> Message:
        schema = envelope_schema(struct(id=INT, o=kind, list={"type": "array", "items": kind}))
        return message(
            {"id": key}, with_schema(event("c", key, after={"id": key, "o": value, "list": [value]}), schema)
        )

    table = state("id bigint, o struct<x:bigint,y:string>, list array<struct<y:string,x:bigint>>")
    messages = [of(1, {"x": 1}, struct(x=INT)), of(2, {"x": 2, "z": "new"}, struct(x=INT, z=TEXT))]
    changes = decoded([*messages, message({"id": 3}, event("c", 3, after={"id": 3, "o": {"X": 3}}))], table=table)
    assert reasons(changes) == {}
    values = [{"x": 1, "y": None, "z": None}, {"x": 2, "y": None, "z": "new"}]
    assert {row["id"]: (row["o"], row["list"]) for row in rows(changes)} == {
        **{number: (value, [value]) for number, value in enumerate(values, 1)},
        3: ({"x": 3, "y": None, "z": None}, None),
    }


# -- operations, keys, order -------------------------------------------------------------------------------------------


def test_operations_and_what_says_nothing_of_a_row(decoded: Decode) -> None:
    messages = [
        message({"id": 1}, event("r", 5, after={"id": 1, "v": "read"}, snapshot="last")),
        message({"id": 2}, event("d", 6, before=None)),
        message(None, event("d", 7, before={"id": 3, "v": "old"})),
        # An update of a key comes as two.
        message({"id": 4}, event("d", 8, before={"id": 4, "v": "x"})),
        message({"id": 4}, None),
        message({"id": 5}, event("c", 8, after={"id": 5, "v": "x"})),
        # Lines of a file.
        message(None, {"key": {"id": 6}, "value": event("d", 9)}),
        message(None, {"key": with_schema({"id": 7}, struct(id=INT)), "value": event("c", 9, after={"id": 7})}),
        message(None, {"key": {"id": 7}, "value": None}),
        message(None, {"schema": None, "payload": None}),
        message({"prefix": "p"}, {"op": "m", "source": source(10), "message": {"prefix": "p", "content": "eA=="}}),
        message({"serverName": "t"}, {"ts_ms": 1_700_000_000_000}),
    ]
    found = decoded(messages)
    assert reasons(found) == {}
    assert {row["id"]: (row["v"], row[DELETES]) for row in rows(found)} == {
        1: ("read", False),
        2: (None, True),
        3: (None, True),
        4: (None, True),
        5: ("x", False),
        6: (None, True),
        7: (None, False),
    }
    assert (found.keys, found.count, found.skipped) == (("id",), 7, 5)
    assert found.newest_source_time == 1_700_000_000.009


def test_what_cannot_be_decoded_is_set_aside_with_its_reason(decoded: Decode) -> None:
    schema = envelope_schema(
        struct(
            id=INT,
            n={"type": "int32"},
            blob={"type": "bytes"},
            price=decimal(2, 4),
            dates={"type": "array", "items": {"type": "int32", "name": f"{DEBEZIUM}Date"}},
            region=TEXT,
        )
    )

    def row(lsn: int = 1, **values: Any) -> Json:
        after = {"id": 1, "n": 1, "blob": None, "dates": None, **values}
        return with_schema(event("u", lsn, after=after), schema)

    unavailable = "was not given"
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
        ({"id": 1}, {"schema": {"type": "struct"}, "payload": event("c", 1, after={"id": 1})}, "none of Connect's"),
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
        ({"id": 1}, row(dates=[1, "x"]), "column dates does not fit array<date>"),
        ({"id": 1}, row(dates=7), "column dates does not fit array<date>"),
        ({"id": 1}, row(blob=base64.b64encode(PLACEHOLDER.encode()).decode()), unavailable),
        ({"id": 1}, row(dates=list(PLACEHOLDER.encode())), unavailable),
        ({"id": 1}, event("u", 1, after={"id": 1, "v": PLACEHOLDER}), unavailable),
        ({"id": 1}, event("u", 1, after={"id": 1, "v": {PLACEHOLDER: PLACEHOLDER}}), unavailable),
        ({"id": 1}, event("u", 1, after={"id": 1, "v": [PLACEHOLDER]}), unavailable),
        ({"id": 1}, {**event("u", 1, after={"id": 1}), "source": {"connector": "postgresql"}}, "place in the order"),
        ({"id": 1}, row(region=""), "partition column region has the value ''"),
        ({"id": 1}, row(region="__HIVE_DEFAULT_PARTITION__"), "partition column region has the value '__HIVE"),
        ({"id": 1}, row(extra=1, other=2), "its schema does not name the fields extra, other"),
    ]
    good = [({"id": 2}, row(2, id=2)), ({"id": 3}, event("d", 3, before={"id": 3, "n": PLACEHOLDER}))]
    messages = [message(key, value, str(at)) for at, (key, value, _) in enumerate(cases)]
    changes = decoded([*messages, *(message(key, value) for key, value in good)], partition_by=["Region"])
    reason_of = reasons(changes)
    assert [
        (at, says, reason_of.get(str(at)))
        for at, (*_, says) in enumerate(cases)
        if not all(part in reason_of.get(str(at), "") for part in says.split("…"))
    ] == []
    assert {row["id"] for row in rows(changes)} == {2, 3}
    letters = {row["origin"]: (row["key"], row["value"]) for row in changes.dead.collect()}
    assert {origin: (key and bytes(key), value and bytes(value)) for origin, (key, value) in letters.items()} == {
        origin: (key, value) for key, value, origin in messages
    }


REFUSED: list[tuple[list[Message], Json, str]] = [
    (
        [message({"id": 1}, event("c", 1, after={"id": 1}, db="shop", table=name)) for name in ("orders", "customers")],
        {},
        "several tables, shop.customers, shop.orders.*--source-table",
    ),
    (
        [
            message({"id": 1}, event("c", 1, after={"id": 1}, db="shop", schema=name, table="orders"))
            for name in ("public", "archive")
        ],
        {"source_tables": ["orders"]},
        "orders means several source tables, shop.archive.orders, shop.public.orders",
    ),
    ([message(None, event("t", 1), "t/0/77")], {}, "truncated .t/0/77."),
    ([message({"id": 1}, event("c", 1, after={"id": 1}, connector="vitess"))], {}, "connector vitess is not known"),
    ([message({"id": 1}, {"op": "d"})], {}, "source.connector is missing"),
    ([message(None, event("c", 1, after={"id": 1}))], {}, "no keys"),
    ([message({key: 1}, event("d", 1)) for key in ("id", "no")], {}, r"several sorts, \(id\) and \(no\)"),
    ([message({"id": 1}, event("d", 1))], {"sequence_by": "source.lsn +"}, "sequence_by cannot be used"),
    ([message({"id": 1}, event("d", 1))], {"sequence_by": "source.scn"}, "the sequence source.scn is text"),
    ([message({"id": 1}, event("c", 1, after={"id": 1, "ID": 1}))], {}, "differ by case alone: ID, id"),
    (
        [
            message({"id": 1}, with_schema(event("c", 1, after={"id": 1}), envelope_schema(struct(id=INT, v=kind))))
            for kind in (INT, TEXT)
        ],
        {},
        "column v has changed at the source, and no type holds both bigint and string.*the table's column a string",
    ),
    (
        [
            message({"id": 1}, with_schema(event("c", 1, after={"id": 1}), envelope_schema(struct(id=INT, v=MICROS)))),
            message({"id": 1}, with_schema(event("c", 1, after={"id": 1}), envelope_schema(struct(id=INT, v=INT)))),
        ],
        {},
        "column v has changed at the source, and no type holds both bigint and timestamp: apply.*or feed a new table$",
    ),
    (
        [message({"id": 1}, with_schema(event("c", 1, after={"id": 1}), envelope_schema(struct(id=INT, v=MICROS))))],
        {"table": "id bigint, v string"},
        "column v is a string, which does not hold timestamp in every time zone: feed a new table$",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("messages", "how", "says"), REFUSED)
def test_what_concerns_the_whole_feed_is_refused_in_a_sentence(
    decoded: Decode, messages: list[Message], how: Json, says: str
) -> None:
    table = state(how["table"]) if "table" in how else None
    with pytest.raises(FeedError, match=says):
        decoded(messages, **{**how, "table": table})


def of_connector(connector: str, **told: Any) -> Json:
    return {"connector": connector, "ts_ms": 1, "snapshot": None, **told}


def binlog(file: str, pos: int, row: int = 0, **more: Any) -> Json:
    return of_connector("mysql", file=file, pos=pos, row=row, **more)


def cdc(commit: str, change: str | None, serial: int | None, **more: Any) -> Json:
    return of_connector("sqlserver", commit_lsn=commit, change_lsn=change, event_serial_no=serial, **more)


#: Of each connector, in the order in which changes were made.
IN_ORDER: list[list[Json]] = [
    [
        source(90, snapshot="true"),
        source(90, snapshot="last") | {"ts_ms": 2},
        source(90),
        source(91),
        # The log's order is not that of commits: 95 was written before 101 was committed, and read behind it.
        source(98, 93),
        source(100, 93) | {"lsn": None, "snapshot": "incremental"},
        source(95, 101),
        source(1000, 102),
        of_connector("postgresql", lsn=20_000),
    ],
    [
        binlog("b.000009", 500, snapshot="true"),
        binlog("b.000009", 500, 0),
        binlog("b.000009", 500, 1),
        binlog("b.000009", 500, 10),
        binlog("b.000009", 4000, snapshot="incremental"),
        binlog("b.000010", 4),
        binlog("b.1000000", 4),
    ],
    [
        cdc("00000025:00000d98:00a2", None, None, snapshot="true"),
        cdc("00000027:00000758:0005", "00000027:00000758:0003", 1),
        cdc("00000027:00000758:0005", "00000027:00000758:0003", 2),
        cdc("00000027:00000758:0005", "00000027:00000758:0004", 1),
        cdc("0000002a:00000001:0001", "00000027:00000758:0001", 1),
    ],
    [
        of_connector("oracle", scn="900", snapshot="true"),
        of_connector("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0002", ssn=0),
        of_connector("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0002", ssn=1),
        of_connector("oracle", scn="800", commit_scn="950", rs_id=" 0x01.0003", ssn=0),
        of_connector("oracle", scn="2000", commit_scn="2001", txSeq=2),
        of_connector("oracle", scn="2000", commit_scn="2001", txSeq=10),
    ],
]


def test_positions_of_each_connector_are_in_the_order_of_its_changes(decoded: Decode) -> None:
    messages = [
        message(
            {"id": f"{number}/{at:02}"},
            {"op": "r" if told["snapshot"] in ("true", "last") else "u", "source": told, "after": {}},
        )
        for number, changes in enumerate(IN_ORDER)
        for at, told in enumerate(changes)
    ]
    found = decoded(messages)
    assert reasons(found) == {}
    order = {row["id"]: row[ORDER] for row in rows(found)}
    assert len(order) == len(messages)
    for number in range(len(IN_ORDER)):
        positions = [order[name] for name in sorted(order) if name.startswith(f"{number}/")]
        if number == 0:
            assert positions[0] == positions[1]  # of a snapshot, which has each row once
        assert positions == sorted(positions)
        assert len(set(positions)) == len(positions) - (number == 0)


def test_a_given_order_and_given_keys_win(decoded: Decode) -> None:
    messages = [
        message({"id": 1}, event("c", 1, after={"id": 1, "code": "a"}, connector="vitess", vgtid="17")),
        # The row of the old code has to go.
        message({"id": 1}, event("u", 2, before={"id": 1, "code": "a"}, after={"id": 1, "code": "b"}, vgtid="18")),
        message({"id": 1}, event("u", 2, before={"id": 1, "code": "b"}, after={"id": 1, "code": "b"}, vgtid="19")),
        # The table cannot have the row of the old code.
        message({"id": 2}, event("u", 2, before={"id": 2, "code": ""}, after={"id": 2, "code": "c"}, vgtid="20")),
        message({"id": 1}, event("d", 3, before={"id": 1, "code": "b"}, vgtid="x"), "unordered"),
    ]
    how = "struct(try_cast(source.vgtid AS bigint) AS a, transaction.id IS NULL AS b)"
    changes = decoded(messages, keys=["code"], sequence_by=how, partition_by=["code"])
    order = sorted((row[ORDER]["a"], row["code"], row["id"], row[DELETES]) for row in rows(changes))
    assert order == [
        *((17, "a", 1, False), (18, "a", None, True), (18, "b", 1, False), (19, "b", 1, False), (20, "c", 2, False)),
    ]
    assert (changes.count, changes.event_count) == (5, 4)
    assert set(reasons(changes)) == {"unordered"}


@pytest.mark.full
def test_events_of_other_source_tables_are_left_out_and_counted(decoded: Decode) -> None:
    def of(table: str, op: str = "c", schema: str = "public") -> Message:
        after = None if op in "dt" else {"id": 1, "of": table}
        return message({"id": 1}, event(op, 1, after=after, db="shop", schema=schema, table=table), table)

    messages = [of("orders_1"), of("orders_2", "d"), of("customers", "d"), of("orders_1", schema="old"), of("x", "t")]
    long = event("c", 1, after={"id": 1, "of": 10**40}, db="shop", schema="public", table="customers")
    messages += [of("customers", "?"), message({"id": 1}, long)]
    bad = message({"id": 1}, b"{", "bad")
    changes = decoded([*messages, bad], source_tables=["public.orders_1", "orders_2", "orders_3"])
    assert [(row["of"], row[DELETES]) for row in rows(changes)] == [("orders_1", False), (None, True)]
    assert (changes.filtered, list(reasons(changes))) == (5, ["bad"])
    assert changes.source_tables == ("orders_3", "shop.public.orders_1", "shop.public.orders_2")
    assert decoded(messages[:1]).source_tables == ("shop.public.orders_1",)
    assert decoded([message({"id": 1}, event("c", 1, after={"id": 1}))]).source_tables is None


@pytest.mark.full
def test_events_of_another_table_are_refused_in_a_later_batch(feed: Feed) -> None:
    def of(table: str, op: str, lsn: int) -> Message:
        after = None if op == "d" else {"id": 1}
        return message({"id": 1}, event(op, lsn, after=after, db="shop", schema="public", table=table))

    feed.apply([of("orders", "c", 1)])
    with pytest.raises(ChangesError, match=r"source tables: shop.public.orders in the table, shop.public.customers"):
        feed.apply([of("customers", "d", 2)])
    assert set(feed.rows()) == {1}


@pytest.mark.full
def test_a_dropped_column_and_a_wider_number_do_not_depend_on_batches(feed: Feed) -> None:
    def of(key: int, lsn: int, **row: Any) -> Message:
        return message({"id": key}, event("u", lsn, after={"id": key, **row}))

    # Without schemas: numbers are whole at first, and the column "size" is dropped at the source.
    first = {"price": 10, "size": 7, "o": {"x": 1}}
    feed.apply([of(1, 1, **first), of(2, 2, **first), of(3, 3, **{**first, "price": 1})])
    with locked(feed.spark, str(feed.table), manager=feed.writer.manager):
        feed.spark.sql(f"ALTER TABLE delta.`{feed.table}` ADD COLUMNS (note string)")
    feed.writer.update({"note": "'mine'"})
    feed.apply([of(1, 4, price=19.99)])
    # A new nested field, by the function that users call.
    last = [of(2, 5, price=0.125, o={"x": 1, "y": "new"}), of(4, 6, price=2.5, size=8)]
    apply_events(feed.writer, frame(feed.spark, last))
    expected = {1: ("19.99", None), 2: ("0.125", None), 3: ("1", 7), 4: ("2.5", 8)}
    # Not every reader knows tables whose types were widened.
    read = feed.spark.read.format("delta").load(str(feed.table)).collect()
    assert {row["id"]: (row["price"], row["size"]) for row in read} == {
        key: (Decimal(price), size) for key, (price, size) in expected.items()
    }
    assert {row["id"]: row["o"] and row["o"].asDict() for row in read} == {
        1: None, 2: {"x": 1, "y": "new"}, 3: {"x": 1, "y": None}, 4: None,
    }  # fmt: skip
    # No event has had this column.
    assert {row["id"] for row in read if row["note"] == "mine"} == {1, 2, 3}


def test_keys_may_be_spelled_as_the_table_does(decoded: Decode) -> None:
    found = decoded([message({"id": 1}, event("d", 1))], keys=["ID"], table=state("ID int"))
    assert (found.keys, rows(found)[0]["id"], reasons(found)) == (("id",), 1, {})


def test_negative_control_by_the_log_s_order_alone_a_late_row_of_a_snapshot_wins(
    decoded: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction writes at 95, an incremental snapshot reads the old row at 100, then the transaction commits."""
    read = event("r", 100, commit=93, after={"id": 1, "v": "old"}, snapshot="incremental")
    written = event("u", 95, commit=101, after={"id": 1, "v": "new"})

    def newest() -> str:
        found = rows(decoded([message({"id": 1}, each) for each in (read, written)]))
        return str(max(found, key=lambda row: row[ORDER])["v"])

    assert newest() == "new"
    monkeypatch.setitem(_POSITIONS, ("postgresql",), lambda: _digits(_field("lsn"), 20))
    assert newest() == "old"


def test_a_batch_without_changes_has_nothing_to_apply(decoded: Decode) -> None:
    found = decoded([message({"id": 1}, None), message({"id": 1}, b"{", "bad")])
    assert (found.count, found.dead_count, found.skipped, found.newest_source_time) == (0, 1, 1, None)
    assert decoded([]).count == 0
