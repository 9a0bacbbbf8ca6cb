"""Values that the connector did not receive, such as PostgreSQL's unchanged TOAST values, keep the table's values."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import (
    INT,
    PLACEHOLDER,
    TEXT,
    Json,
    envelope_schema,
    event,
    message,
    reasons,
    struct,
    with_schema,
)
from tests.integration.test_debezium_flat import flat
from tests.support.deliveries import HISTORIES, shuffled_batches
from tests.support.events_table import EventsTable, Message, frame
from writer_jobs import ChangesError, apply_changes
from writer_jobs.feeds.debezium.decode import decode
from writer_jobs.merge.result import ChangesResult

pytestmark = pytest.mark.spark

BLOB = {"type": "bytes", "optional": True}
NUMBERS = {"type": "array", "optional": True, "items": {"type": "int32"}}
SCHEMA = envelope_schema(struct(id=INT, name=TEXT, note=TEXT, blob=BLOB, numbers=NUMBERS))
#: Columns that PostgreSQL may store out of line, with the placeholder of their type.
PLACEHOLDERS: dict[str, Any] = {
    "note": PLACEHOLDER,
    "blob": base64.b64encode(PLACEHOLDER.encode()).decode(),
    "numbers": list(PLACEHOLDER.encode()),
}


class Target(EventsTable):
    """A table with its rows, and with the columns whose values have sequences of their own."""

    def rows(self) -> dict[int, Json]:
        rows = self.spark.read.format("delta").load(self.location).drop("__SEQUENCE", "__COLUMN_SEQUENCES").collect()
        return {row["id"]: row.asDict(recursive=True) for row in rows}

    def sequences(self) -> dict[int, Any]:
        return {row["id"]: row["__COLUMN_SEQUENCES"] and set(row["__COLUMN_SEQUENCES"]) for row in self.stored_rows()}


@pytest.fixture
def target(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Target:
    return Target(spark, manager, tmp_path / "table")


def change(lsn: int, op: str, key: int = 1, **row: Any) -> Message:
    """Return an event about a row, without a schema."""
    images = {"before": {"id": key}} if op == "d" else {"after": {"id": key, **row}}
    return message({"id": key}, event(op, lsn, **images), f"t/0/{lsn}")


def test_an_unavailable_value_keeps_the_value_of_the_table(target: Target) -> None:
    target.apply(change(1, "c", name="a", note="long"))
    result = target.apply(change(2, "u", name="b", note=PLACEHOLDER))
    assert (result.updated, result.dead_letters, result.incomplete) == (1, 0, 0)
    assert target.rows() == {1: {"id": 1, "name": "b", "note": "long"}}
    assert target.sequences() == {1: {"note"}}
    # An earlier release does not know this field, and refuses the table.
    assert '"column_sequences": "__COLUMN_SEQUENCES"' in str(target.writer.log.state())
    assert target.apply(change(2, "u", name="b", note=PLACEHOLDER)).unchanged == 1
    target.apply(change(3, "u", name="c", note="new"))
    assert (target.rows()[1]["note"], target.sequences()) == ("new", {1: None})


def test_a_late_value_fills_the_newer_row(target: Target) -> None:
    target.apply(change(1, "c", name="a", note="first"))
    target.apply(change(9, "u", name="z", note=PLACEHOLDER))
    target.apply(change(5, "u", name="m", note="late"))
    assert target.rows() == {1: {"id": 1, "name": "z", "note": "late"}}
    # An older value does not replace it, and an update without the value neither.
    target.apply(change(3, "u", name="n", note="older"), change(7, "u", name="o", note=PLACEHOLDER))
    assert target.rows() == {1: {"id": 1, "name": "z", "note": "late"}}


def test_negative_control_without_sequences_a_late_value_is_lost(spark: SparkSession, target: Target) -> None:
    target.apply(change(1, "c", name="a", note="first"))
    target.apply(change(9, "u", name="z", note=PLACEHOLDER))
    target.writer.update({"__COLUMN_SEQUENCES": "NULL"})
    target.apply(change(5, "u", name="m", note="late"))
    assert target.rows() == {1: {"id": 1, "name": "z", "note": "first"}}


def test_a_value_from_before_a_delete_is_not_kept(target: Target) -> None:
    # Each row gets a delete and an update in another order: two batches, and one batch.
    deletes = {key: change(2, "d", key=key) for key in range(1, 5)}
    updates = {key: change(4, "u", key=key, name="d", note=PLACEHOLDER) for key in range(1, 5)}
    target.apply(*(change(1, "c", key=key, name="a", note="first") for key in range(1, 5)))
    target.apply(deletes[1], updates[2], deletes[3], updates[3])
    result = target.apply(updates[1], deletes[2], deletes[4], updates[4])
    expected = {key: {"id": key, "name": "d", "note": None} for key in range(1, 5)}
    assert (target.rows(), result.incomplete) == (expected, 3)
    # Nor does an older change return, although the delete has a newer change of its key in its batch.
    target.apply(
        change(1, "c", key=4, name="a", note="first"), *(change(3, "c", key=key, note="second") for key in (1, 2, 3))
    )
    assert {key: row["note"] for key, row in target.rows().items()} == {1: "second", 2: "second", 3: "second", 4: None}


@pytest.mark.full
def test_a_value_from_before_an_earlier_delete_is_not_used(target: Target) -> None:
    target.apply(change(1, "c", name="a", note="first"))
    target.apply(change(6, "d"))
    result = target.apply(change(4, "u", name="c", note="old"), change(8, "u", name="h", note=PLACEHOLDER))
    assert (target.rows(), result.incomplete) == ({1: {"id": 1, "name": "h", "note": None}}, 1)


@pytest.mark.full
def test_two_values_of_one_sequence_are_refused(target: Target) -> None:
    rivals = [change(1, "u", name="a", note=note) for note in ("x", "y")]
    with pytest.raises(ChangesError, match="different changes of a key have the same sequence"):
        target.apply(*rivals, change(2, "u", name="b", note=PLACEHOLDER))
    target.apply(rivals[0], change(2, "u", name="b", note=PLACEHOLDER))
    with pytest.raises(ChangesError, match=r"has the sequence of the table's row and differs from it: id=1"):
        target.apply(rivals[1])


def test_an_update_that_may_be_of_another_row_is_a_dead_letter(spark: SparkSession) -> None:
    row = {"id": 1, "code": "a", "note": PLACEHOLDER}
    row_images: dict[str, tuple[Any, Any, Any]] = {
        "same key": (row, {"code": "a"}, {"id": 1}),
        "key of the message": (row, None, {"code": "a"}),
        "other key": (row, {"code": "b"}, {"id": 1}),
        "unknown key": (row, None, {"id": 1}),
    }
    messages = [
        message(key, event("u", number, after=row_after, before=row_before), name)
        for number, (name, (row_after, row_before, key)) in enumerate(row_images.items(), 1)
    ]
    with decode(frame(spark, messages), table=None, keys=["code"]) as batch:
        assert set(reasons(batch)) == {"other key", "unknown key"}
    update = message({"id": 1}, event("u", 1, after={"id": 1, "note": PLACEHOLDER}))
    with decode(frame(spark, [update]), table=None, sequence_by="struct(source.lsn, row.note)") as batch:
        assert batch.dead_count == 1
    with decode(frame(spark, [update]), table=None, keeps_history=True) as batch:
        assert batch.dead_count == 1
    # Without __op an update looks like an insert.
    flat_update = flat(1, {"id": 1, "note": PLACEHOLDER})
    for value, dead_count in ((flat_update, 0), ({**flat_update, "__op": "c"}, 1), ({**flat_update, "__op": None}, 1)):
        with decode(frame(spark, [message({"id": 1}, value)]), table=None, flattened=True) as batch:
            assert batch.dead_count == dead_count


@pytest.mark.full
def test_a_history_makes_unavailable_values_dead_letters(target: Target) -> None:
    messages = [change(1, "c", note="a"), change(2, "u", note=PLACEHOLDER)]
    assert target.apply(*messages, stored_as_scd_type=2).dead_letters == 1


@pytest.mark.full
def test_sequences_may_be_structs_and_partitions_locked(target: Target) -> None:
    options = {"sequence_by": "struct(timestamp_millis(source.ts_ms) AS at, source.lsn AS lsn)", "partition_by": ["id"]}
    target.apply(change(1, "c", name="a", note="first"), **options)
    target.apply(change(9, "u", name="z", note=PLACEHOLDER), **options)
    target.apply(change(5, "u", name="m", note="late"), change(3, "d"), **options)
    assert target.rows() == {1: {"id": 1, "name": "z", "note": "late"}}
    target.apply(change(7, "d"), **options)
    assert target.rows() == {1: {"id": 1, "name": "z", "note": None}}


@pytest.mark.full
def test_a_row_without_a_sequence_is_older_than_a_delete(target: Target) -> None:
    target.writer.append(target.spark.createDataFrame([(1, "own", "own")], "id bigint, name string, note string"))
    target.apply(change(1, "d"), change(2, "u", name="b", note=PLACEHOLDER))
    assert target.rows() == {1: {"id": 1, "name": "b", "note": None}}


CHANGES = "id int, seq int, note string, has_note boolean, is_delete boolean"


def apply(target: Target, *rows: tuple[Any, ...], **options: Any) -> ChangesResult:
    return apply_changes(
        target.writer,
        target.spark.createDataFrame(list(rows), CHANGES),
        keys=["id"],
        sequence_by="seq",
        apply_as_deletes="is_delete",
        except_column_list=["has_note", "is_delete"],
        **{"unchanged_columns": {"NOTE": "NOT has_note"}, **options},
    )


def test_changes_may_lack_columns(target: Target) -> None:
    with pytest.raises(ValueError, match="each change must contain id"):
        apply(target, (1, 1, "a", True, False), unchanged_columns={"id": "true"})
    with pytest.raises(ChangesError, match="the changes have no column other"):
        apply(target, (1, 1, "a", True, False), unchanged_columns={"other": "true"})
    # The values of a delete do not count.
    apply(target, (1, 1, "a", True, False), (1, 2, None, False, False))
    apply(target, (2, 1, "x", True, True), (2, 3, None, False, False))
    assert target.rows() == {1: {"id": 1, "seq": 2, "note": "a"}, 2: {"id": 2, "seq": 3, "note": None}}
    for rival in [(1, 2, "b", True, True), (1, 1, "c", True, False)]:
        with pytest.raises(ChangesError, match="has the sequence of the table's row and differs from it: id="):
            apply(target, rival)
    # A batch without the column does not change whose value is newest.
    newer = target.spark.createDataFrame([(2, 9)], "id int, seq int")
    apply_changes(target.writer, newer, keys=["id"], sequence_by="seq")
    apply(target, (2, 2, "late", True, False))
    assert target.rows()[2] == {"id": 2, "seq": 9, "note": "late"}


def toast_history(number: int) -> tuple[list[dict[int, Json]], list[Message]]:
    """Return a source table after each change, and its topic. Updates have only the large values that they change."""
    chance = random.Random(number)
    tables: list[dict[int, Json]] = [{}]
    topic: list[Message] = []
    for lsn in range(1, number + 1):
        key, table = chance.randint(1, 25), dict(tables[-1])
        previous = table.pop(key, None)
        if previous is not None and chance.random() < 0.2:
            value = event("d", lsn, before={"id": key, "note": PLACEHOLDER})
        else:
            row: Json = {"id": key, "name": chance.choice([None, "x", str(lsn)])}
            new_values = {
                "note": chance.choice([None, "", f"note {lsn}"]),
                "blob": chance.choice([None, base64.b64encode(str(lsn).encode()).decode()]),
                "numbers": chance.choice([None, [], [lsn, None]]),
            }
            unchanged = {name for name in new_values if previous is not None and chance.random() < 0.6}
            kept_values = {name: previous[name] for name in unchanged} if previous is not None else {}
            table[key] = row | new_values | kept_values
            sent_values = new_values | {name: PLACEHOLDERS[name] for name in unchanged}
            value = event("c" if previous is None else "u", lsn, after=row | sent_values)
        tables.append(table)
        topic.append(message({"id": key}, with_schema(value, SCHEMA if key % 2 else None), f"t/0/{lsn}"))
    return tables, topic


def decoded(rows: dict[int, Json]) -> dict[int, Json]:
    return {key: {**row, "blob": row["blob"] and base64.b64decode(row["blob"])} for key, row in rows.items()}


@pytest.fixture
def empty_target(target: Target) -> Target:
    columns = "id int, name string, note string, blob binary, numbers array<int>"
    target.writer.append(target.spark.createDataFrame([], columns))
    return target


@HISTORIES
def test_kept_values_in_any_order_give_the_source_table(empty_target: Target, number: int) -> None:
    tables, topic = toast_history(number)
    for batch in shuffled_batches(number, topic, 3):
        assert empty_target.apply(*batch).dead_letters == 0
    assert empty_target.rows() == decoded(tables[-1])
    assert not [key for key, names in empty_target.sequences().items() if names and names - PLACEHOLDERS.keys()]


@pytest.mark.full
def test_kept_values_are_right_after_each_batch_in_order(empty_target: Target) -> None:
    tables, topic = toast_history(80)
    for end in range(40, len(tables), 40):
        result = empty_target.apply(*topic[end - 40 : end])
        assert (empty_target.rows(), result.incomplete) == (decoded(tables[end]), 0)
