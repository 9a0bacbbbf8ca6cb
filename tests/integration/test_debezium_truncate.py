"""Truncates of the source table are applied in the order of the changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.integration.test_debezium import PLACEHOLDER, Json, event, message
from tests.support.deliveries import HISTORIES, Killed, kill_process, shuffled_batches
from tests.support.events_table import EventsTable, Message
from writer_jobs import ChangesError, locked
from writer_jobs.delta.sql_names import property_list
from writer_jobs.merge.result import ChangesResult

pytestmark = pytest.mark.spark


class Target(EventsTable):
    """A table that events are applied to. Truncates delete its rows."""

    def apply(self, *messages: Message, **options: Any) -> ChangesResult:
        return super().apply(*messages, **{"on_truncate": "delete", **options})

    def set_feed(self, text: str) -> None:
        with locked(self.spark, self.location, manager=self.writer.manager):
            properties = property_list({"sluice.feed": text})
            self.spark.sql(f"ALTER TABLE delta.`{self.location}` SET TBLPROPERTIES ({properties})")

    def rows(self, column: str = "n") -> dict[int, Any]:
        return {row["id"]: row[column] for row in self.stored_rows()}


@pytest.fixture
def target(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Target:
    return Target(spark, manager, tmp_path / "table")


def put(lsn: int, key: int, **fields: Any) -> Message:
    return message({"id": key}, event("u", lsn, after={"id": key, "n": lsn}, **fields), f"t/0/{lsn}")


def truncate(lsn: int, **fields: Any) -> Message:
    return message(None, event("t", lsn, **fields), f"t/1/{lsn}")


def test_a_truncate_deletes_older_rows_and_stops_late_changes(target: Target) -> None:
    target.apply(put(1, 1), put(2, 2))
    result = target.apply(put(3, 3), truncate(5), put(6, 2), truncate(4))
    assert (result.changes, result.deleted) == (4, 2)
    assert target.rows() == {2: 6}
    # Late changes, repetitions of truncates, and a change of after.
    assert target.apply(put(4, 4), put(3, 2), truncate(4), truncate(5), put(7, 5)).deleted == 0
    assert target.rows() == {2: 6, 5: 7}
    result = target.apply(truncate(9))
    assert (result.changes, result.deleted, target.rows()) == (1, 2, {})


@pytest.mark.full
def test_a_new_table_begins_with_a_truncate(target: Target) -> None:
    with pytest.raises(ChangesError, match="truncated before the table has a change: use --on-truncate ignore"):
        target.apply(truncate(1))
    target.apply(put(1, 1), truncate(2), put(3, 3))
    assert target.rows() == {3: 3}


@pytest.mark.full
def test_a_sequence_of_several_fields_orders_truncates(target: Target) -> None:
    sequence = {"sequence_by": "struct(timestamp_millis(source.ts_ms) AS at, concat('it''s ', op) AS `the-op`)"}
    target.apply(put(1, 1, ts_ms=1), put(2, 2, ts_ms=3), **sequence)
    target.apply(truncate(3, ts_ms=2), **sequence)
    assert target.rows() == {2: 2}
    target.apply(put(4, 4, ts_ms=1), put(5, 5, ts_ms=4), **sequence)
    assert target.rows() == {2: 2, 5: 5}


@pytest.mark.full
def test_a_truncate_may_be_ignored(target: Target) -> None:
    result = target.apply(put(1, 1), truncate(2), on_truncate="ignore")
    assert (target.rows(), result.skipped) == ({1: 1}, 1)
    assert target.apply(truncate(3), on_truncate="ignore").changes == 0


def test_a_truncate_that_may_delete_other_rows_is_refused(target: Target) -> None:
    tables = {"source_tables": ["public.a", "public.b"]}
    names = {"db": "shop", "schema": "public"}
    with pytest.raises(ChangesError, match=r"those of several source tables, public\.b, shop\.public\.a: use"):
        target.apply(put(1, 1, **names, table="a"), truncate(2, **names, table="a"), **tables)
    with pytest.raises(ChangesError, match="a history does not have an end of all rows"):
        target.apply(put(1, 1), truncate(2), stored_as_scd_type=2)
    target.apply(put(1, 1))
    with pytest.raises(ChangesError, match="bound to another feed: sequence"):
        target.apply(truncate(2), sequence_by="source.lsn")
    target.set_feed("off")
    with pytest.raises(ChangesError, match="bound to no feed"):
        target.apply(truncate(2))
    assert target.rows() == {1: 1}


def test_a_run_killed_between_its_commits_is_repeated(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target.apply(put(1, 1), put(2, 2))
    events = [put(3, 3), truncate(4), put(5, 1)]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(target.writer, "delete", kill_process)
        target.apply(*events, txn=("run", 1))
    # The truncate is known, and its rows are still there.
    target.apply(put(3, 6))
    assert target.rows() == {1: 1, 2: 2}
    for _ in range(2):
        target.apply(*events, txn=("run", 1))
        assert target.rows() == {1: 5}


def kept(lsn: int, key: int) -> Message:
    """Return an update that does not contain the note of its row."""
    return message({"id": key}, event("u", lsn, after={"id": key, "n": lsn, "note": PLACEHOLDER}), f"t/0/{lsn}")


def noted(lsn: int, key: int) -> Message:
    return message({"id": key}, event("c", lsn, after={"id": key, "n": lsn, "note": f"note {lsn}"}), f"t/0/{lsn}")


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "batches",
    [
        [[1, 3], [2]],
        [[2, 1, 3]],
        *(pytest.param(batches, marks=FULL) for batches in ([[1], [2], [3]], [[1], [3], [2]], [[1], [3, 2]])),
    ],
    ids=lambda batches: "-".join(map(str, batches)),
)
def test_a_value_from_before_a_truncate_is_not_kept(target: Target, batches: list[list[int]]) -> None:
    changes = {1: noted(1, 1), 2: truncate(2), 3: kept(3, 1)}
    for batch in batches:
        target.apply(*(changes[lsn] for lsn in batch))
    assert (target.rows(), target.rows("note")) == ({1: 3}, {1: None})
    # The note of 0 is older than the truncate.
    target.apply(noted(0, 1))
    assert target.rows("note") == {1: None}


def test_a_stream_goes_on_with_truncates(run_job: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    stream = ("--source", folder, "--format", "json", "--trigger", "available-now", "--checkpoint", tmp_path / "state")
    job = ("cdc", "--decoder", "debezium", "--table", tmp_path / "table", *stream)
    lines = [json.dumps({"key": key, "value": value}) for key, value in (
        ({"id": 1}, event("c", 1, after={"id": 1})), (None, event("t", 2)), ({"id": 3}, event("c", 3, after={"id": 3})),
    )]  # fmt: skip
    (folder / "1.json").write_text("\n".join(lines), encoding="utf-8")
    outcome = run_job(*job)
    assert (outcome.code, "use --on-truncate delete" in outcome.error) == (5, True)
    outcome = run_job(*job, "--on-truncate", "delete")
    assert (outcome.code, outcome.lines[-1]["deleted"]) == (0, 1), outcome.error


@pytest.mark.full
def test_a_sequence_with_a_null_truncates_nothing(target: Target) -> None:
    target.apply(put(1, 1), sequence_by="struct(coalesce(row.n, 0) AS n, source.lsn AS lsn)")
    with pytest.raises(ChangesError, match=r"the position of the truncate t/1/2 is unknown"):
        target.apply(truncate(2), sequence_by="struct(row.n AS n, source.lsn AS lsn)")


@HISTORIES
def test_truncates_in_any_order_give_the_source_table(target: Target, number: int) -> None:
    chance = random.Random(number)
    table: dict[int, int] = {}
    topic: list[Message] = []
    for lsn in range(1, number + 1):
        key = chance.randint(1, 25)
        if chance.random() < 0.02:
            table.clear()
            topic.append(truncate(lsn))
        elif key in table and chance.random() < 0.3:
            del table[key]
            topic.append(message({"id": key}, event("d", lsn, before={"id": key}), f"t/0/{lsn}"))
        else:
            table[key] = lsn
            topic.append(put(lsn, key))
    for batch in shuffled_batches(number, topic, 3):
        target.apply(*batch)
    assert target.rows() == table


def test_negative_control_without_the_watermark_old_rows_return(target: Target) -> None:
    target.apply(put(1, 1), truncate(3), put(4, 4))
    feed = json.loads(str(target.writer.log.known_snapshot().property_of("sluice.feed")))
    del feed["truncated_at"]
    target.set_feed(json.dumps(feed).replace("'", r"\u0027"))
    target.apply(put(2, 2))
    assert target.rows() == {2: 2, 4: 4}


def test_the_cdc_job_applies_a_truncate(run_job: Callable[..., Any], tmp_path: Path) -> None:
    def line(key: Json | None, value: Json) -> str:
        return json.dumps({"key": key, "value": value}) + "\n"

    source_file = tmp_path / "events.json"
    events = [line({"id": lsn}, event("c", lsn, after={"id": lsn})) for lsn in (1, 3)]
    source_file.write_text("".join([*events, line(None, event("t", 2))]), encoding="utf-8")
    job = ("cdc", "--decoder", "debezium", "--table", tmp_path / "table", "--source", source_file, "--format", "json")
    outcome = run_job(*job)
    assert (outcome.code, "use --on-truncate delete" in outcome.error) == (5, True)
    outcome = run_job(*job, "--on-truncate", "delete")
    assert (outcome.code, outcome.lines[-1]["changes"], outcome.lines[-1]["deleted"]) == (0, 3, 1), outcome.error
