"""``snapshot.py`` in this process: tables are pinned at one moment, read again, and copied."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, apply_rows, list_pins

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Callable[..., Path]:
    """Bring a batch of a stream into a table: ``lake("departures", 0, 5)``: keys 0 to 4, an hour each."""

    def bring(name: str, first: int, end: int) -> Path:
        table = tmp_path / "lake" / name
        rows = spark.range(first, end).selectExpr("id", "timestamp_seconds(id * 3600) as at", "'x' as kind").coalesce(1)
        writer = LockedDeltaWriter(spark, manager, str(table))
        apply_rows(writer, rows, keys=["id"], event_time="at", partition_by=["kind"], txn=(f"stream of {name}", first))
        return table

    return bring


@pytest.fixture
def snapshot(run_job: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: run_job("snapshot", *arguments)


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().column("id").to_pylist())


@pytest.mark.full
def test_two_tables_at_one_moment_are_pinned_and_read_again_with_what_came_since(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    lake: Callable[..., Path],
    snapshot: Callable[..., Any],
    tmp_path: Path,
) -> None:
    one, two = lake("one", 0, 10), lake("two", 0, 20)
    place = ("--table", one, "--table", two, "--pin", "five")
    report = tmp_path / "report.json"
    made = snapshot(
        *place, "--event-time", "at", "--at", "1970-01-01T05:00:00Z", "--expires", "10 days", "--report", report
    )
    assert (made.code, made.error) == (0, "")
    assert [(line["event"], line["made"], line["rows_new"]) for line in made.lines] == [("pinned", True, 0)] * 2
    assert json.loads(report.read_text())["pinned"]["name"] == "five"
    lake("one", 10, 12)
    late = spark.sql("select 100l as id, timestamp_seconds(7200) as at, 'x' as kind")
    LockedDeltaWriter(spark, manager, str(two)).append(late)

    again = snapshot(*place, "--at", "1970-01-01T06:00:00+01:00", "--copy-to", tmp_path / "copies")
    assert again.code == 0
    pinned = [line for line in again.lines if line["event"] == "pinned"]
    assert [(line["made"], line["rows_new"], line["rows_gone"]) for line in pinned] == [(False, 0, 0), (False, 1, 0)]
    assert [line["rows"] for line in again.lines if line["event"] == "copied"] == [6, 6]
    for name in ("one", "two"):
        copy = tmp_path / "copies" / name
        assert ids(copy) == list(range(6))
        assert DeltaTable(str(copy)).metadata().partition_columns == ["kind"]

    # Once more: the copies are there.
    assert snapshot(*place, "--copy-to", tmp_path / "copies").code == 0
    assert ids(tmp_path / "copies" / "two") == list(range(6))


@pytest.mark.full
def test_a_moment_that_is_older_than_the_retention_is_copied_and_not_counted(
    lake: Callable[..., Path], snapshot: Callable[..., Any], tmp_path: Path
) -> None:
    table = lake("old", 0, 10)
    long_ago = time.time() - 10 * 86_400
    for path in (table / "_delta_log").glob("*.json"):
        os.utime(path, (long_ago, long_ago))
    lake("old", 10, 12)
    place = ("--table", table, "--pin", "five", "--copy-to", tmp_path / "copies")
    for more in (("--event-time", "at", "--at", "1970-01-01T05:00:00Z", "--expires", "1 day"), ()):
        job = snapshot(*place, *more)
        assert (job.code, [line["event"] for line in job.lines]) == (0, ["copied", "pinned"]), job.error
        assert (job.lines[-1]["rows_new"], job.lines[-1]["rows_new_before"]) == (0, None)
    assert ids(tmp_path / "copies" / "old") == list(range(6))


@pytest.mark.full
def test_views_show_what_is_pinned(
    spark: SparkSession, lake: Callable[..., Path], snapshot: Callable[..., Any]
) -> None:
    table = lake("departures", 0, 10)
    spark.sql("create database if not exists january")
    done = snapshot(
        *("--table", table, "--event-time", "at", "--at", "1970-01-01T03:00:00", "--pin", "x", "--expires", "1 day"),
        *("--views", "january"),
    )
    assert (done.code, [line["view"] for line in done.lines if "view" in line]) == (0, ["january.departures"])
    lake("departures", 10, 12)
    assert sorted(row["id"] for row in spark.table("january.departures").collect()) == [0, 1, 2, 3]
    spark.sql("drop database january cascade")


def test_a_moment_that_is_not_over_is_refused_and_nothing_is_pinned(
    spark: SparkSession, lake: Callable[..., Path], snapshot: Callable[..., Any]
) -> None:
    table = lake("departures", 0, 10)
    done = snapshot(
        *("--table", table, "--event-time", "at", "--at", "1970-01-01T09:00:00Z", "--pin", "x", "--expires", "1 day")
    )
    assert done.code == 2
    assert "stream stream of departures has its watermark at 1970-01-01T09:00:00+00:00" in done.error
    assert list_pins(spark, str(table)) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pin", "x"), "has no pin x: give --expires to make one"),
        (("--pin", "x", "--expires", "soon"), '"30 days" or 2013-02-01'),
        (("--pin", "x", "--expires", "1 day", "--at", "2013-01-01"), "belong together"),
        (("--pin", "a/b", "--expires", "1 day"), "cannot be called 'a/b'"),
        (("--pin", "x", "--expires", "1 day"), "there is no Delta table at"),
        (("--pin", "x", "--expires", "2013-01-01"), "would have expired already"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    table: Path, snapshot: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    done = snapshot("--table", table, *arguments)
    assert (done.code, done.lines) == (2, [])
    assert words in done.error
    assert len(done.error.splitlines()) == 1


@pytest.mark.full
def test_a_copy_replaces_no_table_of_others(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    lake: Callable[..., Path],
    snapshot: Callable[..., Any],
    tmp_path: Path,
) -> None:
    table = lake("one", 0, 3)
    LockedDeltaWriter(spark, manager, str(tmp_path / "copies" / "one")).append(spark.range(3))
    place = ("--table", table, "--pin", "x", "--expires", "1 day")
    for folder, words in ((tmp_path / "copies", "is not a copy of pin x"), (table, "would be in file:")):
        done = snapshot(*place, "--copy-to", folder)
        assert done.code == 2
        assert words in done.error
    other = lake("two", 0, 3)
    assert snapshot("--table", table, "--table", other, "--pin", "x").code == 2
    assert "is of" in snapshot("--table", table, "--table", other, "--pin", "x").error
