"""``apply_rows`` among other writers, which commit while a batch is computed or waits for its lock."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import ChangesError, LockedDeltaWriter, SchemaMismatchError, apply_rows
from writer_jobs.commit import merge as merge_module

pytestmark = pytest.mark.spark

#: A table of three files. It is bound to no feed, because the commit that binds it would take part in the race.
COLUMNS = "key LONG, at TIMESTAMP, version INT, value STRING"
VALUES = "id, timestamp'2013-01-01 00:00:00Z' + make_dt_interval(id), 1, 'first'"
TABLE = (
    f"CREATE TABLE {{t}} ({COLUMNS}) USING delta TBLPROPERTIES ('sluice.feed' = 'off')",
    f"INSERT INTO {{t}} SELECT {VALUES} FROM range(0, 9, 1, 3)",
)
FIRST_OPTIONS: dict[str, Any] = {"keys": ["key"], "event_time": "at"}
LATEST_OPTIONS: dict[str, Any] = {**FIRST_OPTIONS, "sequence_by": "version"}
RETRY_MESSAGE = "writing again: "
RETRY_UNDER_LOCK_MESSAGE = "meanwhile: writing again"


@pytest.fixture
def gate(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], eventually: Callable[..., None]
) -> TableAtTheGate:
    path = copy_of(*TABLE)
    return TableAtTheGate(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager, eventually)


def frame(spark: SparkSession, *rows: tuple[int, int, str]) -> DataFrame:
    """Return rows of a key, a version and a value. The event time is ``key`` days after 2013-01-01."""
    begin = datetime(2013, 1, 1, tzinfo=UTC)
    timestamped_rows = [(key, begin + timedelta(days=key), version, value) for key, version, value in rows]
    return spark.createDataFrame(timestamped_rows, COLUMNS)


def values_by_key(table: TableAtTheGate) -> dict[int, list[str]]:
    values: dict[int, list[str]] = {}
    for row in DeltaTable(table.path).to_pyarrow_table().to_pylist():
        values.setdefault(row["key"], []).append(row["value"])
    return values


def table_files(table: TableAtTheGate) -> set[str]:
    """Return the files of the newest version."""
    return set(DeltaTable(table.path).file_uris())


@pytest.mark.full
def test_repetitions_rewrite_no_file_and_ties_are_refused(
    gate: TableAtTheGate, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(*rows: tuple[int, int, str]) -> tuple[int | None, int, int, int]:
        result = apply_rows(gate.writer, frame(spark, *rows), **LATEST_OPTIONS)
        return result.version, result.inserted, result.updated, result.repeated

    files = table_files(gate)
    repeated_rows = [(0, 1, "first"), (4, 0, "older")]
    assert apply(*repeated_rows) == (None, 0, 0, 2)
    assert table_files(gate) == files
    assert apply(*repeated_rows, (0, 1, "first"), (8, 2, "second"), (9, 1, "new")) == (2, 1, 1, 3)
    assert len(files - table_files(gate)) == 1
    # A tie: the table has this version with another value.
    with pytest.raises(ChangesError, match="differs from it: key=4"):
        apply((4, 1, "other"), (0, 1, "first"))
    # The control: without the comparison, Delta rewrites each file that has a match.
    with monkeypatch.context() as patch:
        patch.setattr("writer_jobs.late_rows.row_models.LatestRows.needs_comparison", lambda *_: False)
        assert apply(*repeated_rows) == (3, 0, 0, 2)
    assert len(files - table_files(gate)) == 3


@pytest.mark.full
def test_rows_are_compared_again_with_commits_of_other_writers(
    gate: TableAtTheGate, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    batch = frame(spark, (0, 2, "second"), (4, 1, "first"), (8, 5, "fifth"))
    with gate.waiting_write(lambda: apply_rows(gate.writer, batch, **LATEST_OPTIONS)) as running_write:
        apply_rows(gate.writer, frame(spark, (0, 3, "third"), (8, 4, "fourth")), **LATEST_OPTIONS)
    result = running_write.result()
    assert caplog.text.count(RETRY_MESSAGE) == 1
    assert (result.updated, result.repeated) == (1, 2)
    changed_values = {key: values for key, values in values_by_key(gate).items() if values != ["first"]}
    assert changed_values == {0: ["third"], 8: ["fifth"]}


@pytest.mark.full
@pytest.mark.parametrize("level_is_read", [True, False], ids=["isolation level is read", "negative control"])
def test_with_weaker_isolation_the_lock_covers_the_whole_write(
    gate: TableAtTheGate, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, level_is_read: bool
) -> None:
    log = gate.path / "_delta_log"
    version_file = log / f"{0:020}.json"
    actions = [json.loads(line) for line in version_file.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.isolationLevel"] = "WriteSerializable"
    version_file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    if not level_is_read:
        monkeypatch.setattr("writer_jobs.delta.snapshot._ISOLATION", "delta.other")
    batch = frame(spark, (10, 1, "new"))
    files = gate.files()
    with gate.waiting_write(lambda: apply_rows(gate.writer, batch, **FIRST_OPTIONS)) as running_write:
        assert (gate.files() == files) == level_is_read
        gate.writer.append(batch)
    assert running_write.result().inserted == (not level_is_read)
    assert values_by_key(gate)[10] == ["new"] * (1 if level_is_read else 2)


@pytest.mark.full
@pytest.mark.parametrize("error_is_known", [True, False], ids=["error class is known", "negative control"])
def test_a_column_added_after_the_analysis_repeats_the_merge(
    gate: TableAtTheGate,
    spark: SparkSession,
    unguarded_sql: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    error_is_known: bool,
) -> None:
    caplog.set_level(logging.INFO)
    delta_table, columns_to_add = merge_module.delta_table, ["gate STRING"]

    def delta_table_before_a_change(session: SparkSession, location: str) -> Any:
        analyzed_table = delta_table(session, location)
        # The gate refuses the first ALTER, which runs in the thread of the merge. The merge under the lock repeats it.
        if columns_to_add:
            unguarded_sql(f"ALTER TABLE delta.`{gate.path}` ADD COLUMNS ({columns_to_add[0]})")
            columns_to_add.clear()
        return analyzed_table

    monkeypatch.setattr(merge_module, "delta_table", delta_table_before_a_change)
    batch = frame(spark, (10, 1, "new"))
    if not error_is_known:
        monkeypatch.setattr("writer_jobs.delta.jvm_errors._SCHEMA_CHANGED", "NONE")
        with pytest.raises(SchemaMismatchError, match="schema of your Delta table has changed"):
            apply_rows(gate.writer, batch, **FIRST_OPTIONS)
        return
    assert apply_rows(gate.writer, batch, **FIRST_OPTIONS).inserted == 1
    # The merge under the lock found the added column and was repeated once.
    assert caplog.text.count(RETRY_UNDER_LOCK_MESSAGE) == 1
    assert values_by_key(gate)[10] == ["new"]
