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
    Message,
    event,
    frame,
    message,
    reasons,
    rows_by_id,
    source,
    struct,
    types,
    with_schema,
)
from tests.support.deliveries import HISTORIES, shuffled_batches
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
    found = rows_by_id(batch)
    assert (found[1]["name"], found[1][DELETES]) == ("Ada", False)
    assert (found[2]["name"], found[2][DELETES]) == (None, True)
    assert batch.newest_source_time == 1_700_000_000.002


def test_the_schema_of_a_flattened_row_gives_the_types(decode_flat: Decode) -> None:
    rows = {1: {"id": 1, "name": "7", "size": 3}, 2: {"id": 2, "name": None, "size": "3"}}
    batch = decode_flat([message({"id": key}, flat(key, row, schema=ROW), f"t/0/{key}") for key, row in rows.items()])
    assert types(batch)["size"] == "int"
    assert not [name for name in types(batch) if name.startswith("__source")]
    assert rows_by_id(batch)[1]["name"] == "7"
    assert reasons(batch) == {"t/0/2": "the value of the column size does not fit int"}


def test_a_row_without_a_position_needs_sequence_by(decode_flat: Decode) -> None:
    messages = [
        message({"id": 1}, {"id": 1, "updated_at": 5, "__deleted": "false"}, "t/0/1"),
        message({"id": 1}, {"id": 1, "updated_at": 7, "__deleted": "true"}, "t/0/2"),
        message({"id": 2}, {"id": 2, "updated_at": None, "__deleted": "false"}, "t/0/3"),
    ]
    with pytest.raises(FeedError, match=r"source\.connector is missing"):
        decode_flat(messages)
    batch = decode_flat(messages, sequence_by="row.updated_at")
    order = {row["__sluice_order"]: row[DELETES] for row in batch.changes.collect()}
    assert order == {5: False, 7: True}
    assert reasons(batch) == {"t/0/3": "its position is unknown: a field of the sequence is missing or null"}
    with pytest.raises(FeedError, match=r"row\.missing"):
        decode_flat(messages, sequence_by="row.missing")


def test_sequence_by_reads_columns_of_unflattened_rows_too(spark: SparkSession) -> None:
    events = [
        message({"id": 1}, event("c", 1, after={"id": 1, "updated_at": 5})),
        message({"id": 1}, event("d", 2, before={"id": 1, "updated_at": 6})),
    ]
    with decode(frame(spark, events), table=None, sequence_by="row.updated_at") as batch:
        assert {row["__sluice_order"]: row[DELETES] for row in batch.changes.collect()} == {5: False, 6: True}


def test_tombstones_are_skipped_only_if_deletes_are_events(decode_flat: Decode) -> None:
    tombstone = message({"id": 2}, None, "t/0/9")
    batch = decode_flat([message({"id": 1}, flat(1, {"id": 1})), tombstone])
    assert (batch.count, batch.skipped_count, batch.dead_count) == (1, 1, 0)
    # delete.tombstone.handling.mode=tombstone, the default: nothing else shows the delete.
    row = {name: value for name, value in flat(1, {"id": 1}).items() if name != "__deleted"}
    for messages in ([message({"id": 1}, row), tombstone], [tombstone]):
        batch = decode_flat(messages)
        assert batch.skipped_count == 0
        assert "delete.tombstone.handling.mode=rewrite" in reasons(batch)["t/0/9"]


def test_events_of_other_tables_are_filtered(decode_flat: Decode) -> None:
    events = [
        message({"id": number}, {**flat(number, {"id": number}), "__table": table})
        for number, table in enumerate(("orders", "customers"), 1)
    ]
    batch = decode_flat(events, source_tables=["orders"])
    assert (set(rows_by_id(batch)), batch.filtered_count) == ({1}, 1)
    with pytest.raises(FeedError, match="several tables"):
        decode_flat(events)


MARKERS: list[Message] = [
    message({"id": "571"}, {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None, "ts_ms": 1}),
    message({"id": "571"}, {"status": "END", "id": "571", "event_count": 2, "data_collections": [{"event_count": 2}]}),
    message(
        {"databaseName": "shop"},
        {"source": source(1), "ts_ms": 1, "databaseName": "shop", "ddl": "ALTER TABLE t", "tableChanges": []},
    ),
    message({"serverName": "shop"}, {"ts_ms": 1}),
]


@pytest.mark.parametrize("flattened", [False, True])
def test_messages_that_change_no_row_are_skipped(spark: SparkSession, *, flattened: bool) -> None:
    row = flat(1, {"id": 1}) if flattened else event("c", 1, after={"id": 1})
    with decode(frame(spark, [*MARKERS, message({"id": 1}, row)]), table=None, flattened=flattened) as batch:
        assert (batch.count, batch.skipped_count, batch.dead_count) == (1, len(MARKERS), 0)


def test_a_row_that_looks_like_a_marker_is_a_row(decode_flat: Decode) -> None:
    row = {"id": 1, "status": "BEGIN", "event_count": 1}
    batch = decode_flat([message({"id": 1}, flat(1, row))])
    assert (batch.count, batch.skipped_count) == (1, 0)


def compressed(number: int, total_order: int | None) -> Message:
    """Return an update of a transaction with a compressed binlog, whose events all have one position."""
    position = {"connector": "mysql", "file": "b.000001", "pos": 4, "row": 0, "ts_ms": 1, "snapshot": "false"}
    transaction = None if total_order is None else {"id": "t", "total_order": total_order, "data_collection_order": 1}
    value = {"op": "u", "after": {"id": 1, "n": number}, "source": position, "transaction": transaction}
    return message({"id": 1}, value, f"t/0/{number}")


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("batch_count", [1, 2])
@pytest.mark.parametrize("has_total_order", [True, False])
def test_changes_of_a_compressed_transaction_are_ordered(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    *,
    in_order: bool,
    batch_count: int,
    has_total_order: bool,
) -> None:
    # Offsets of 9 and 10 are numbers, and no texts.
    messages = [compressed(number, number if has_total_order else None) for number in (9, 10)]
    messages = messages if in_order else messages[::-1]
    writer = LockedDeltaWriter(spark, manager, str(tmp_path / "table"))
    for batch in [messages] if batch_count == 1 else [[change] for change in messages]:
        apply_events(writer, frame(spark, batch))
    assert [row["n"] for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()] == [10]


INFINITE: dict[str, tuple[Json, Any, Any]] = {
    "micros": (MICROS, 9_223_372_036_825_200_000, -9_223_372_036_832_400_000),
    "new_micros": (MICROS, 2**63 - 1, -(2**63)),
    "millis": (MILLIS, 9_223_372_036_825_200, -9_223_372_036_832_400),
    "zoned": (ZONED, "infinity", "-infinity"),
    "day": (DATE, -2_147_472_693, -2_147_472_692),
    "iso_day": (ISO_DATE, "infinity", "-infinity"),
}


def infinite_rows(spark: SparkSession, **options: Any) -> DecodedBatch:
    """Decode a row with infinite times, one with times that are minus infinity, and one with ordinary times."""
    schema = envelope_schema(struct(id=INT, **{name: type_ for name, (type_, _, _) in INFINITE.items()}))
    ordinary = {name: "2024-02-29T00:00:00Z" if name == "zoned" else 0 for name in INFINITE} | {"iso_day": "2024-02-29"}
    rows: list[Json] = [
        {name: positive for name, (_, positive, _) in INFINITE.items()},
        {name: negative for name, (_, _, negative) in INFINITE.items()},
        ordinary,
    ]
    events = [
        message({"id": number}, with_schema(event("c", number, after={"id": number, **row}), schema), f"t/0/{number}")
        for number, row in enumerate(rows)
    ]
    return decode(frame(spark, events), table=None, **options)


def test_an_infinite_time_is_a_dead_letter(spark: SparkSession) -> None:
    with infinite_rows(spark) as batch:
        assert set(rows_by_id(batch)) == {2}
        assert all("is infinity, which Delta does not have" in reason for reason in reasons(batch).values())
        assert batch.dead_count == 2


@pytest.mark.parametrize("infinity", ["largest", "null"])
def test_an_infinite_time_becomes_the_largest_time_or_null(spark: SparkSession, infinity: Any) -> None:
    with infinite_rows(spark, infinity=infinity) as batch:
        assert reasons(batch) == {}
        columns = [col(name).cast("string").alias(name) for name in INFINITE]
        found = {row["id"]: row.asDict() for row in batch.changes.select("id", *columns).collect()}
    days = {"day", "iso_day"}
    for name in INFINITE:
        last, first = (
            ("9999-12-31", "0001-01-01") if name in days else ("9999-12-31 23:59:59.999999", "0001-01-01 00:00:00")
        )
        last = last[:-3] if name == "millis" else last
        expected = (last, first) if infinity == "largest" else (None, None)
        assert (found[0][name], found[1][name]) == expected, name
        assert found[2][name] is not None


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
    found = {row["id"]: row.asDict() for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()}
    assert found == table


def test_the_cdc_job_reads_flattened_events(run_job: Callable[..., Any], tmp_path: Path) -> None:
    lines = [
        {"key": {"id": 1}, "value": flat(1, {"id": 1, "name": "Ada"})},
        {"key": {"id": 2}, "value": flat(2, {"id": 2, "name": "Bo"})},
        {"key": {"id": 2}, "value": flat(3, {"id": 2, "name": "Bo"}, deleted=True)},
        {"key": {"id": 2}, "value": None},
    ]
    source_file = tmp_path / "flat.json"
    source_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    arguments = ("--table", tmp_path / "table", "--source", source_file, "--format", "json")
    outcome = run_job("cdc", "--decoder", "debezium-flat", *arguments)
    assert outcome.code == 0, outcome.error
    counts = {"changes": 3, "keys": 2, "inserted": 1, "dead_letters": 0, "skipped": 1}
    assert {name: outcome.lines[-1][name] for name in counts} == counts
