"""Debezium's messages in Avro, with their schemas in a schema registry."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import Json, event, message, reasons, rows, types, utc
from tests.support.avro_messages import Registry, running_registry
from tests.support.events_table import Message, frame
from writer_jobs import LockedDeltaWriter
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.schema_registry import CREDENTIALS, SchemaRegistry

pytestmark = pytest.mark.spark


def optional(schema: Any) -> Any:
    return {"type": ["null", schema], "default": None}


def named(avro_type: str, name: str, **properties: Any) -> Json:
    return {"type": avro_type, "connect.version": 1, "connect.name": name, **properties}


DECIMAL = named(
    "bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=64, logicalType="decimal",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
)  # fmt: skip
POINT = {
    "type": "record", "name": "Point", "namespace": "io.debezium.data.geometry",
    "fields": [{"name": "x", "type": "double"}], "connect.name": "io.debezium.data.geometry.Point",
}  # fmt: skip
MICROS, MOMENT = 1_529_507_596_945_104, utc(2018, 6, 20, 15, 13, 16, 945_104)
#: Avro schema, Avro value, column type and column value.
VALUES: dict[str, tuple[Any, Any, str, Any]] = {
    "text": ("string", 'grün "x"\n', "string", 'grün "x"\n'),
    "flag": ("boolean", True, "boolean", True),
    "small": ({"type": "int", "connect.type": "int16"}, -300, "smallint", -300),
    "number": ("long", 2**53 + 1, "bigint", 2**53 + 1),
    "half": ("double", 0.5, "double", 0.5),
    "not_a_number": ("float", float("nan"), "float", "nan"),
    "octets": ("bytes", b"\xde\xad\x00", "binary", b"\xde\xad\x00"),
    "price": (DECIMAL, (-12_345).to_bytes(2, "big", signed=True), "decimal(10,2)", Decimal("-123.45")),
    "day": (named("int", "io.debezium.time.Date"), 17_702, "date", date(2018, 6, 20)),
    "at": (
        named("long", "io.debezium.time.MicroTimestamp"),
        MICROS,
        "timestamp",
        utc(2018, 6, 20, 15, 13, 16, 945_104),
    ),
    "other_at": ({"type": "long", "logicalType": "timestamp-millis"}, 1000, "timestamp", utc(1970, 1, 1, 0, 0, 1)),
    "size": ({"type": "enum", "name": "Size", "symbols": ["S", "L"]}, "L", "string", "L"),
    "tags": ({"type": "array", "items": ["null", "string"]}, ["a", None], "array<string>", ["a", None]),
    "sizes": ({"type": "map", "values": "int"}, {"a": 1}, "map<string,int>", {"a": 1}),
    "point": (POINT, {"x": 1.5}, "struct<x:double>", {"x": 1.5}),
    # A type that was defined before, by its full name.
    "other_point": ("io.debezium.data.geometry.Point", {"x": 2.5}, "struct<x:double>", {"x": 2.5}),
}
KEY = {"type": "record", "name": "Key", "namespace": "shop.orders", "fields": [{"name": "id", "type": "int"}]}
SOURCE = {
    "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": name, "type": ["null", kind]} for name, kind in (
        ("connector", "string"), ("ts_ms", "long"), ("sequence", "string"), ("lsn", "long"), ("snapshot", "string"),
    )],
}  # fmt: skip


def row_schema(columns: dict[str, Any], name: str = "Value") -> Json:
    fields: list[Json] = [{"name": "id", "type": "int"}]
    fields += [{"name": column, **optional(schema)} for column, schema in columns.items()]
    return {"type": "record", "name": name, "namespace": "shop.orders", "fields": fields}


def envelope(columns: dict[str, Any]) -> Json:
    fields = [
        {"name": "before", **optional(row_schema(columns))}, {"name": "after", **optional("Value")},
        {"name": "source", "type": SOURCE}, {"name": "op", "type": "string"}, {"name": "ts_ms", **optional("long")},
    ]  # fmt: skip
    return {"type": "record", "name": "Envelope", "namespace": "shop.orders", "fields": fields}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as registry:
        yield registry


def in_avro(registry: Registry, columns: dict[str, Any], *values: Json) -> list[Message]:
    """Return the events as messages, with schemas of their own in the registry."""
    key_id, value_id = registry.add(KEY), registry.add(envelope(columns))
    return [
        message(
            registry.message(key_id, {"id": (value["after"] or value["before"])["id"]}),
            registry.message(value_id, value),
            f"t/0/{number}",
        )
        for number, value in enumerate(values)
    ]


@pytest.mark.full
def test_each_avro_type_becomes_its_column_type(spark: SparkSession, registry: Registry) -> None:
    columns = {name: schema for name, (schema, *_) in VALUES.items()}
    full = {"id": 1, **{name: value for name, (_, value, *_) in VALUES.items()}}
    messages = in_avro(registry, columns, event("c", 1, after=full), event("u", 2, after={"id": 2}))
    with decode(frame(spark, messages), table=None, schema_registry=SchemaRegistry(registry.url)) as batch:
        assert reasons(batch) == {}
        column_types = {name: data_type for name, (_, _, data_type, _) in VALUES.items()}
        assert {name: types(batch)[name] for name in VALUES} == column_types
        first, second = sorted(rows(batch), key=lambda row: row["id"])
    expected = {name: value for name, (*_, value) in VALUES.items()}
    assert {name: str(first[name]) if expected[name] == "nan" else first[name] for name in VALUES} == expected
    assert {second[name] for name in VALUES} == {None}
    assert sorted(registry.requests) == [1000, 1001]


@pytest.mark.full
def test_messages_with_several_schemas_are_applied(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, registry: Registry
) -> None:
    registry.credentials = "reader:s3cret"
    client = SchemaRegistry(registry.url, registry.credentials)
    assert "s3cret" not in repr(client)
    inserts = [event("c", key, after={"id": key, "n": key}) for key in (1, 2)]
    first = in_avro(registry, {"n": "int"}, *inserts)
    second = in_avro(registry, {"n": "long", "name": "string"}, event("u", 3, after={"id": 1, "n": 2**40, "name": "x"}))
    deletes = [(second[0][0], None, "t/0/9"), *in_avro(registry, {}, event("d", 4, before={"id": 2}))]
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))
    for messages in ([*first, *second], [message({"id": 3}, event("c", 5, after={"id": 3, "n": 5})), *deletes]):
        result = apply_events(writer, frame(spark, messages), schema_registry=client)
        assert result.dead_letters == 0
    stored = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert {(row["id"], row["n"], row["name"]) for row in stored} == {(1, 2**40, "x"), (3, 5, None)}


@pytest.mark.full
def test_flattened_rows_may_be_avro(spark: SparkSession, registry: Registry) -> None:
    columns = {"n": "int", "__op": "string", "__source_connector": "string", "__source_lsn": "long"}
    number = registry.add(row_schema(columns))
    row = {"id": 1, "n": 7, "__op": "u", "__source_connector": "postgresql", "__source_lsn": 5}
    messages = frame(spark, [message({"id": 1}, registry.message(number, row))])
    with decode(messages, table=None, flattened=True, schema_registry=SchemaRegistry(registry.url)) as batch:
        assert (reasons(batch), types(batch)["n"], rows(batch)[0]["n"]) == ({}, "int", 7)


@pytest.mark.full
def test_bytes_that_are_no_avro_are_dead_letters(spark: SparkSession, registry: Registry) -> None:
    (good,) = in_avro(registry, {"n": "int"}, event("c", 1, after={"id": 1, "n": 1}))
    protobuf = registry.add({}, schemaType="PROTOBUF")
    union = registry.add({"type": "record", "name": "U", "fields": [{"name": "u", "type": ["int", "string"]}]})
    broken = {
        "cut": good[1][:-1], "longer": good[1] + b"\0", "unknown id": b"\0\0\0\0\7" + good[1][5:],
        "protobuf": b"\0" + protobuf.to_bytes(4, "big") + b"x", "union": b"\0" + union.to_bytes(4, "big") + b"\0\2",
        "header alone": b"\0\0\0\3\xe9", "other": b"\0x",
    }  # fmt: skip
    messages = [good, *((good[0], octets, name) for name, octets in broken.items())]
    with decode(frame(spark, messages), table=None, schema_registry=SchemaRegistry(registry.url)) as batch:
        assert set(reasons(batch)) == set(broken)
        assert all("Confluent's header of a schema id, and was not decoded" in text for text in reasons(batch).values())
        letters = {row["origin"]: bytes(row["value"]) for row in batch.dead_letters.collect()}
    assert letters == broken


@pytest.mark.full
def test_a_dead_letter_of_avro_is_json_that_can_be_loaded_again(spark: SparkSession, registry: Registry) -> None:
    infinite = event("c", 1, after={"id": 1, "day": -2_147_472_692})
    (letter,) = in_avro(registry, {"day": named("int", "io.debezium.time.Date")}, infinite)
    client = SchemaRegistry(registry.url)
    with decode(frame(spark, [letter]), table=None, schema_registry=client) as batch:
        (row,) = batch.dead_letters.collect()
    messages = [(bytes(row["key"]), bytes(row["value"]), "again")]
    with decode(frame(spark, messages), table=None, schema_registry=client, infinity="null") as batch:
        assert (reasons(batch), [row["day"] for row in rows(batch)]) == ({}, [None])


@pytest.mark.full
def test_a_registry_that_does_not_answer_refuses_the_batch(spark: SparkSession, registry: Registry) -> None:
    messages = frame(spark, in_avro(registry, {}, event("c", 1, after={"id": 1})))
    registry.failures = 2
    with decode(messages, table=None, schema_registry=SchemaRegistry(registry.url)) as batch:
        assert batch.count == 1
    registry.credentials = "reader:secret"
    with pytest.raises(FeedError, match=r"the schema 100[01] cannot be read from the schema registry http.*: 401"):
        decode(messages, table=None, schema_registry=SchemaRegistry(registry.url, "reader:wrong"))
    with pytest.raises(FeedError, match="refused"):
        decode(messages, table=None, schema_registry=SchemaRegistry("http://127.0.0.1:1"))
    registry.credentials = None
    number = registry.add(KEY, references=[{"name": "x", "subject": "x", "version": 1}])
    with pytest.raises(FeedError, match="refers to other schemas"):
        decode(
            frame(spark, [message(registry.message(number, {"id": 1}), b"{}")]),
            table=None,
            schema_registry=SchemaRegistry(registry.url),
        )


def test_the_cdc_job_reads_avro(
    run_job: Callable[..., Any],
    spark: SparkSession,
    tmp_path: Path,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = in_avro(registry, {"n": "int"}, event("c", 1, after={"id": 1, "n": 1}))
    topic = [(key, value, "t", 0, 0) for key, value, _ in messages]
    schema = "key binary, value binary, topic string, partition int, offset bigint"
    spark.createDataFrame(topic, schema).write.parquet(str(tmp_path / "topic"))
    job = ("cdc", "--table", tmp_path / "table", "--source", tmp_path / "topic", "--format", "parquet", "--decoder")
    outcome = run_job(*job, "debezium")
    assert (outcome.code, "use --schema-registry if it is Avro" in outcome.error) == (8, True)
    registry.credentials = "reader:s3cret"
    outcome = run_job(*job, "debezium", "--schema-registry", registry.url)
    assert (outcome.code, "401" in outcome.error) == (5, True), outcome.error
    monkeypatch.setenv(CREDENTIALS, registry.credentials)
    outcome = run_job(*job, "debezium", "--schema-registry", registry.url)
    assert (outcome.code, outcome.lines[-1]["inserted"]) == (0, 1), outcome.error
    outcome = run_job(*job, "debezium", "--schema-registry", "ftp://host")
    assert (outcome.code, "expected https://HOST:PORT" in outcome.error) == (2, True)


@pytest.mark.full
def test_bytes_in_json_are_base64(spark: SparkSession, registry: Registry) -> None:
    value = {"id": 1, "octets": bytes(range(256))}
    (only,) = in_avro(registry, {"octets": "bytes"}, event("c", 1, after=value))
    with decode(frame(spark, [only]), table=None, schema_registry=SchemaRegistry(registry.url)) as batch:
        assert base64.b64encode(rows(batch)[0]["octets"]) == base64.b64encode(bytes(range(256)))
