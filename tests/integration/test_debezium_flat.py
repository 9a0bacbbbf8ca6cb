"""Events that ``ExtractNewRecordState`` has flattened, and messages of a topic that change no row."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import (
    INT,
    TEXT,
    Json,
    event,
    message,
    reasons,
    rows_by_id,
    source,
    struct,
    types,
    with_schema,
)
from tests.support.deliveries import HISTORIES, shuffled_batches
from tests.support.events_table import Message, frame
from writer_jobs import LockedDeltaWriter
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.feeds.debezium.decoded_batch import DELETES, DecodedBatch

pytestmark = pytest.mark.spark

Decode = Callable[..., DecodedBatch]
ROW = struct(id=INT, name=TEXT, size={"type": "int32", "optional": True}, __op=TEXT, __deleted=TEXT, __source_lsn=INT)


def flat(lsn: int, row: Json, *, deleted: bool = False, prefix: str = "__source_", schema: Json | None = None) -> Any:
    """Return a flattened event of PostgreSQL: a row, and fields of ``source`` with a prefix."""
    fields = {f"{prefix}{name}": value for name, value in source(lsn).items()}
    payload = {**row, **fields, "__deleted": str(deleted).lower(), "__op": "d" if deleted else "u"}
    return with_schema(payload, schema)


@pytest.fixture
def decode_flat(spark: SparkSession) -> Iterator[Decode]:
    """Decode flattened messages. All batches are closed after the test."""
    with ExitStack() as batches:
        yield lambda messages, **options: batches.enter_context(
            decode(frame(spark, messages), **{"table": None, "flattened": True, **options})
        )


@pytest.mark.parametrize("prefix", ["__", "__source_"])
def test_a_flattened_row_has_no_metadata_columns(decode_flat: Decode, prefix: str) -> None:
    batch = decode_flat([
        message({"id": 1}, flat(1, {"id": 1, "name": "Ada", "_x": 1}, prefix=prefix)),
        message({"id": 2}, flat(2, {"id": 2, "name": "Bo", "_x": None}, deleted=True, prefix=prefix)),
    ])  # fmt: skip
    assert reasons(batch) == {}
    assert sorted(set(types(batch)) - {"__sluice_order", DELETES}) == ["_x", "id", "name"]
    stored_rows = rows_by_id(batch)
    assert (stored_rows[1]["name"], stored_rows[1][DELETES]) == ("Ada", False)
    assert (stored_rows[2]["name"], stored_rows[2][DELETES]) == (None, True)
    # __ts_ms is the time at which the connector processed the event.
    assert batch.newest_source_time == (1_700_000_000.002 if prefix == "__source_" else None)


@pytest.mark.full
def test_the_schema_of_a_flattened_row_gives_the_types(decode_flat: Decode) -> None:
    rows = {1: {"id": 1, "name": "7", "size": 3}, 2: {"id": 2, "name": None, "size": "3"}}
    batch = decode_flat([message({"id": key}, flat(key, row, schema=ROW), f"t/0/{key}") for key, row in rows.items()])
    assert types(batch)["size"] == "int"
    assert not [name for name in types(batch) if name.startswith("__source")]
    assert rows_by_id(batch)[1]["name"] == "7"
    assert reasons(batch) == {"t/0/2": "the value of the column size does not fit int"}


@pytest.mark.full
def test_a_row_without_a_position_needs_sequence_by(decode_flat: Decode) -> None:
    messages = [
        message({"id": 1}, {"id": 1, "updated_at": 5, "__deleted": "false"}, "t/0/1"),
        message({"id": 1}, {"id": 1, "updated_at": 7, "__deleted": "true"}, "t/0/2"),
        message({"id": 2}, {"id": 2, "updated_at": None, "__deleted": "false"}, "t/0/3"),
    ]
    with pytest.raises(FeedError, match=r"source\.connector is missing"):
        decode_flat(messages)
    # A delete has the row's values before it, such as the time of the last update: they are no order.
    unknown = "its position is unknown: a field of the sequence is missing or null"
    batch = decode_flat(messages, sequence_by="row.updated_at")
    assert {row["__sluice_order"]: row[DELETES] for row in batch.changes.collect()} == {5: False}
    assert reasons(batch) == {"t/0/2": unknown, "t/0/3": unknown}
    for subset in (messages, messages[1:2], [message({"serverName": "t"}, {"ts_ms": 1})]):
        batch = decode_flat(subset, sequence_by="row.missing")
        assert (batch.count, batch.dead_count + batch.skipped_count) == (0, len(subset))


@pytest.mark.full
def test_sequence_by_reads_columns_of_unflattened_rows_too(spark: SparkSession) -> None:
    events = [
        message({"id": 1}, event("c", 1, after={"id": 1, "updated_at": 5})),
        message({"id": 1}, event("d", 2, before={"id": 1, "updated_at": 5})),
    ]
    with decode(frame(spark, events), table=None, sequence_by="coalesce(row.updated_at, source.lsn + 10)") as batch:
        assert {row["__sluice_order"]: row[DELETES] for row in batch.changes.collect()} == {5: False, 12: True}


@pytest.mark.full
def test_a_tombstone_may_be_a_delete(decode_flat: Decode) -> None:
    # delete.tombstone.handling.mode=tombstone, the default: nothing else shows the delete.
    for value in (None, with_schema(None, ROW)):
        batch = decode_flat([message({"id": 1}, flat(1, {"id": 1})), message({"id": 2}, value, "t/0/9")])
        assert (batch.count, batch.skipped_count) == (1, 0)
        assert "delete.tombstone.handling.mode=rewrite" in reasons(batch)["t/0/9"]


@pytest.mark.full
@pytest.mark.parametrize(
    "row",
    [
        {"payload": None, "op": "m"},
        {"payload": {"a": 1}, "value": None, "schema": "s"},
        {"key": {"a": 1}, "value": {"a": 1}, "before": 1},
        {"__v": 7, "source": {"a": 1}, "databaseName": "d", "ddl": "x", "tableChanges": "t"},
        {"status": "BEGIN", "event_count": 1},
        {"ts_ms": 1, "serverName": "s"},
    ],
    ids="-".join,
)
def test_each_name_may_be_a_column(decode_flat: Decode, row: Json) -> None:
    for key in ({"id": 1}, None):
        batch = decode_flat([message(key, flat(1, {"id": 1, **row}))], keys=["id"])
        assert (reasons(batch), batch.count, batch.skipped_count) == ({}, 1, 0)
        assert set(types(batch)) - {"__sluice_order", DELETES} == {
            name for name, value in row.items() if value is not None
        } | {"id"}


def test_an_event_that_is_not_flattened_is_a_dead_letter(decode_flat: Decode) -> None:
    values = (event("c", 1, after={"id": 1}), b"[]")
    batch = decode_flat([message({"id": 1}, value, f"t/0/{number}") for number, value in enumerate(values, 1)])
    assert reasons(batch) == {
        "t/0/1": "the event is not flattened: use --decoder debezium",
        "t/0/2": "the value is not one JSON object, or names a field twice",
    }


@pytest.mark.full
def test_events_of_other_tables_are_filtered(decode_flat: Decode) -> None:
    events = [
        message({"id": number}, {**flat(number, {"id": number}), "__table": table})
        for number, table in enumerate(("orders", "customers"), 1)
    ]
    batch = decode_flat(events, source_tables=["orders"])
    assert (set(rows_by_id(batch)), batch.filtered_count) == ({1}, 1)
    with pytest.raises(FeedError, match="several tables"):
        decode_flat(events)
    # The events may be of this table.
    with pytest.raises(FeedError, match=r"name their table orders, which may be public\.orders: add source\.db"):
        decode_flat(events, source_tables=["public.orders"])
    with pytest.raises(FeedError, match=r"name their table \(not at all\), which may be orders"):
        decode_flat([message({"id": 1}, flat(1, {"id": 1}))], source_tables=["orders"])


MARKERS: list[Message] = [
    message({"id": "571"}, {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None, "ts_ms": 1}),
    message({"id": "571"}, {"status": "END", "id": "571", "event_count": 2, "data_collections": [{"event_count": 2}]}),
    message(
        {"databaseName": "shop"},
        {"source": source(1), "ts_ms": 1, "databaseName": "shop", "ddl": "ALTER TABLE t", "tableChanges": []},
    ),
    message({"serverName": "shop"}, {"ts_ms": 1}),
]


@pytest.mark.full
@pytest.mark.parametrize("flattened", [False, True])
def test_messages_that_change_no_row_are_skipped(spark: SparkSession, *, flattened: bool) -> None:
    row = flat(1, {"id": 1}) if flattened else event("c", 1, after={"id": 1})
    with decode(frame(spark, [*MARKERS, message({"id": 1}, row)]), table=None, flattened=flattened) as batch:
        assert (batch.count, batch.skipped_count, batch.dead_count) == (1, len(MARKERS), 0)


@pytest.mark.full
@HISTORIES
def test_flattened_events_in_any_order_give_the_source_table(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, number: int
) -> None:
    chance = random.Random(number)
    table: dict[int, Json] = {}
    topic: list[Message] = []
    for lsn in range(1, number + 1):
        key = chance.randint(1, 25)
        if key in table and chance.random() < 0.3:
            value = flat(lsn, table.pop(key), deleted=True)
        else:
            table[key] = {"id": key, "name": chance.choice([None, "x", str(lsn)]), "size": lsn}
            value = flat(lsn, table[key])
        topic.append(message({"id": key}, value, f"t/0/{lsn}"))
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))
    for batch in shuffled_batches(number, topic, 3):
        apply_events(writer, frame(spark, batch), flattened=True)
    stored = spark.read.format("delta").load(str(tmp_path / "table")).select("id", "name", "size").collect()
    stored_rows = {row["id"]: row.asDict() for row in stored}
    assert stored_rows == table


def test_the_cdc_job_reads_flattened_events(run_job: Callable[..., Any], tmp_path: Path) -> None:
    lines = [
        {"key": {"id": 1}, "value": flat(1, {"id": 1, "name": "Ada"})},
        {"key": {"id": 2}, "value": flat(2, {"id": 2, "name": "Bo"})},
        {"key": {"id": 2}, "value": flat(3, {"id": 2, "name": "Bo"}, deleted=True)},
    ]
    source_file = tmp_path / "flat.json"
    source_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    arguments = ("--table", tmp_path / "table", "--source", source_file, "--format", "json")
    outcome = run_job("cdc", "--decoder", "debezium-flat", *arguments)
    assert outcome.code == 0, outcome.error
    counts = {"changes": 3, "keys": 2, "inserted": 1, "dead_letters": 0, "skipped": 0}
    assert {name: outcome.lines[-1][name] for name in counts} == counts
