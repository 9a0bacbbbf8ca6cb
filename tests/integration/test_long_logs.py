"""The driver gets as many rows from a long log as from a short one, and finds the same in it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.classic.dataframe import DataFrame

from tests.support.maintained_table import MaintainedTable
from writer_jobs import PinError
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.maintenance.policy import Action
from writer_jobs.pins.watermarks import Watermarks

pytestmark = pytest.mark.spark

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
#: Versions of a long log, and the rows that the driver may collect from it at once.
VERSIONS, MAX_ROWS = 40, 10


@pytest.fixture
def table(request: pytest.FixtureRequest) -> MaintainedTable:
    """A table of one file; the newest version is 0."""
    table = MaintainedTable.of(request)
    table.create({"a": 1})
    return table


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each ``collect``."""
    numbers: list[int] = []
    collect = DataFrame.collect

    def count(frame: DataFrame) -> list[Any]:
        rows = collect(frame)
        numbers.append(len(rows))
        return rows

    monkeypatch.setattr(DataFrame, "collect", count)
    return numbers


def commit(table: MaintainedTable, **info: Any) -> int:
    """Add a version with this ``commitInfo`` and no file, and return its number."""
    version = table.version() + 1
    line = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE", **info}}
    table.version_file(version).write_text(json.dumps(line, separators=(",", ":")) + "\n")
    return version


def commit_batch(table: MaintainedTable, stream: str, day: float) -> int:
    watermark = {"at": (BEGIN + timedelta(days=day)).isoformat(), "stream": stream}
    return commit(table, sluice={"watermark": watermark})


def watermarks(table: MaintainedTable, day: float) -> Watermarks:
    log = DeltaTableLog(table.spark, f"file:{table.path}")
    return Watermarks(table.spark, log, BEGIN + timedelta(days=day))


def passed_version(table: MaintainedTable, day: float) -> int | None:
    return watermarks(table, day).passed_version("t", left_out=(), accept_none=True)


@pytest.mark.full
def test_maintenance_collects_no_row_per_version(table: MaintainedTable, collected: list[int]) -> None:
    table.set_properties_without_spark(sluice__maintenance__zorderBy="key")
    for _ in range(VERSIONS):
        note = {"action": "zorder", "columns": ["key"], "partitions": [{"place": "a"}]}
        commit(table, sluice={"maintenance": note})
    collected.clear()
    report = table.maintain(Action.CLEAN_LOG)
    assert [result.problem for result in report.done] == [None]
    assert report.before.log.versions == table.version() + 1
    assert max(collected) <= MAX_ROWS


def test_a_moment_is_compared_without_a_row_per_batch(table: MaintainedTable, collected: list[int]) -> None:
    versions = [commit_batch(table, "flights", day) for day in range(VERSIONS)]
    assert passed_version(table, 20) == versions[21]
    assert max(collected) <= MAX_ROWS


@pytest.mark.full
def test_a_restored_table_has_the_watermarks_of_its_version(table: MaintainedTable) -> None:
    first = commit_batch(table, "flights", 5)
    commit_batch(table, "flights", 10)
    read_before = watermarks(table, 3)
    commit(table, operation="RESTORE", operationParameters={"version": str(first), "timestamp": None})
    for progress in (watermarks(table, 7), watermarks(table, 3)):
        assert progress._streams["flights"].newest == BEGIN + timedelta(days=5)
    assert read_before.passed_version("t", left_out=(), accept_none=False) == first
    assert read_before._streams["flights"].newest == BEGIN + timedelta(days=5)
    with pytest.raises(PinError, match="stream flights has its watermark at 2013-01-06T00:00:00"):
        passed_version(table, 7)
    newest = commit_batch(table, "flights", 8)
    assert passed_version(table, 7) == newest
    commit(table, operation="RESTORE", operationParameters={"version": None, "timestamp": "2013-01-01"})
    assert passed_version(table, 3) is None


@pytest.mark.full
def test_the_search_for_a_batch_ends_at_its_commit(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    read_versions = []
    log = DeltaTableLog(table.spark, f"file:{table.path}")
    first_line = DeltaTableLog._first_line
    monkeypatch.setattr(
        DeltaTableLog, "_first_line", lambda self, version: read_versions.append(version) or first_line(self, version)
    )
    commit(table, sluice={"changes": "batch 1"})
    newest = [commit(table) for _ in range(5)][-1]
    assert log.has_batch("batch 1", after=0)
    assert read_versions == [1]
    assert not log.has_batch("batch 2", after=0)
    assert newest == DeltaTable(str(table.path)).version()
