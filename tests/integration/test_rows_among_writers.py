"""``apply_rows`` beside other writers: what they commit while a batch is computed, or waits for its lock."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import ChangesError, LockedDeltaWriter, SchemaMismatchError, apply_rows
from writer_jobs.commit import merge as merge_module

pytestmark = pytest.mark.spark

# Bound to no feed: the commit that binds it would be one more in the race.
UNBOUND = "TBLPROPERTIES ('sluice.feed' = 'off')"
MADE = f"CREATE TABLE {{t}} (key LONG, at TIMESTAMP, version INT, value STRING) USING delta {UNBOUND}"
# Three files.
FILLED = (
    "INSERT INTO {t} SELECT id, timestamp'2013-01-01 00:00:00Z' + make_dt_interval(id), 1, 'first' "
    "FROM range(0, 9, 1, 3)"
)
WEAKER = {"delta.isolationLevel": "WriteSerializable"}
LATEST: dict[str, Any] = {"keys": ["key"], "event_time": "at", "sequence_by": "version"}
FIRST: dict[str, Any] = {"keys": ["key"], "event_time": "at"}
AGAIN = "writing again: "


@pytest.fixture
def gate(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    copy_of: Callable[..., Path],
    eventually: Callable[..., None],
) -> TableAtTheGate:
    path = copy_of(MADE, FILLED)
    return TableAtTheGate(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager, eventually)


def rows(spark: SparkSession, *of: tuple[int, int, str]) -> DataFrame:
    timed = [(key, datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=key), *more) for key, *more in of]
    return spark.createDataFrame(timed, "key long, at timestamp, version int, value string")


def values(table: TableAtTheGate) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for each in table.spark.read.format("delta").load(str(table.path)).collect():
        found.setdefault(each["key"], []).append(each["value"])
    return found


def data_files(table: TableAtTheGate) -> set[str]:
    return set(table.spark.read.format("delta").load(str(table.path)).inputFiles())


@pytest.mark.full
def test_repetitions_rewrite_no_file_and_a_tie_that_says_something_else_is_refused(
    gate: TableAtTheGate, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(*of: tuple[int, int, str]) -> tuple[int | None, int, int, int]:
        done = apply_rows(gate.writer, rows(spark, *of), **LATEST)
        return done.version, done.inserted, done.updated, done.repeated

    before = data_files(gate)
    repeated = [(0, 1, "first"), (4, 0, "older")]
    assert apply(*repeated) == (None, 0, 0, 2)
    assert data_files(gate) == before
    assert apply(*repeated, (0, 1, "first"), (8, 2, "second"), (9, 1, "new")) == (2, 1, 1, 3)
    assert len(before - data_files(gate)) == 1
    with pytest.raises(ChangesError, match="differs from it: key=4"):
        apply((4, 1, "other"), (0, 1, "first"))
    with monkeypatch.context() as patch:
        patch.setattr("writer_jobs.late_rows.row_models.LatestRows.needs_comparison", lambda *_: False)
        assert apply(*repeated) == (3, 0, 0, 2)
    assert len(before - data_files(gate)) == 3


def test_what_others_commit_meanwhile_is_compared_again(
    gate: TableAtTheGate, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    batch = rows(spark, (0, 2, "second"), (4, 1, "first"), (8, 5, "fifth"))
    with gate.behind(lambda: apply_rows(gate.writer, batch, **LATEST)) as running:
        apply_rows(gate.writer, rows(spark, (0, 3, "third"), (8, 4, "fourth")), **LATEST)
    done = running.result()
    assert caplog.text.count(AGAIN) == 1
    assert (done.updated, done.repeated) == (1, 2)
    assert {key: found for key, found in values(gate).items() if found != ["first"]} == {0: ["third"], 8: ["fifth"]}


@pytest.mark.full
@pytest.mark.parametrize("property_", ["delta.isolationLevel", "delta.other"], ids=["as it is", "control: not seen"])
def test_where_appends_are_no_conflict_the_lock_is_held_over_all_of_it(
    gate: TableAtTheGate, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, property_: str
) -> None:
    log = gate.path / "_delta_log"
    first = log / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] |= WEAKER
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for each in log.glob("*.crc"):
        each.unlink()
    monkeypatch.setattr("writer_jobs.delta.snapshot._ISOLATION", property_)
    is_seen = property_ == "delta.isolationLevel"
    new = rows(spark, (10, 1, "new"))
    before = gate.files()
    with gate.behind(lambda: apply_rows(gate.writer, new, **FIRST)) as running:
        assert (gate.files() == before) == is_seen
        gate.writer.append(new)
    assert running.result().inserted == (not is_seen)
    assert values(gate)[10] == ["new"] * (1 if is_seen else 2)


@pytest.mark.parametrize("known", ["DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "NONE"], ids=["as it is", "control: unknown"])
def test_columns_that_another_writer_adds_between_analysis_and_merge_have_it_done_again(
    gate: TableAtTheGate,
    spark: SparkSession,
    sql_elsewhere: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    known: str,
) -> None:
    caplog.set_level(logging.INFO)
    there, altered = merge_module.delta_table, []

    def analysed(session: SparkSession, location: str) -> Any:
        found = there(session, location)
        if not altered:
            altered.append(sql_elsewhere(f"ALTER TABLE delta.`{gate.path}` ADD COLUMNS (gate STRING)"))
        return found

    monkeypatch.setattr(merge_module, "delta_table", analysed)
    monkeypatch.setattr("writer_jobs.delta.jvm_errors._CHANGED_SINCE", known)
    if known == "NONE":
        with pytest.raises(SchemaMismatchError, match="schema of your Delta table has changed"):
            apply_rows(gate.writer, rows(spark, (10, 1, "new")), **FIRST)
        return
    assert apply_rows(gate.writer, rows(spark, (10, 1, "new")), **FIRST).inserted == 1
    assert (caplog.text.count(AGAIN), values(gate)[10]) == (1, ["new"])
