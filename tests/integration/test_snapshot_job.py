"""``snapshot.py`` in this process: it pins tables at one moment, reads them again, and copies them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, apply_rows, list_pins

pytestmark = pytest.mark.spark


@dataclass
class Lake:
    """Tables in one folder, and the job that pins them."""

    spark: SparkSession
    manager: ZookeeperLockManager
    run_job: Callable[..., Any]
    folder: Path

    def apply_stream(self, name: str, start: int, end: int) -> Path:
        """Apply a batch of a stream to a table: a row for each hour of 1970 from ``start`` up to ``end``."""
        table = self.folder / "lake" / name
        rows = self.spark.range(start, end).selectExpr("id", "timestamp_seconds(id * 3600) as at", "'x' as kind")
        writer, txn = LockedDeltaWriter(self.spark, self.manager, str(table)), (f"stream of {name}", start)
        apply_rows(writer, rows.coalesce(1), keys=["id"], event_time="at", partition_by=["kind"], txn=txn)
        return table

    def snapshot(self, *arguments: str | Path) -> Any:
        return self.run_job("snapshot", *arguments)


@pytest.fixture
def lake(spark: SparkSession, manager: ZookeeperLockManager, run_job: Callable[..., Any], tmp_path: Path) -> Lake:
    return Lake(spark, manager, run_job, tmp_path)


def ids(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().column("id").to_pylist())


@pytest.mark.soak
def test_two_tables_are_pinned_at_one_moment_and_copied(lake: Lake, tmp_path: Path) -> None:
    first, second = lake.apply_stream("first", 0, 10), lake.apply_stream("second", 0, 20)
    pin_arguments, copies = ("--table", first, "--table", second, "--pin", "five"), tmp_path / "copies"
    moment_arguments = ("--event-time", "at", "--at", "1970-01-01T05:00:00Z", "--expires", "10 days")
    report = tmp_path / "report.json"
    job = lake.snapshot(*pin_arguments, *moment_arguments, "--report", report)
    assert (job.code, job.error) == (0, "")
    assert [(line["event"], line["made"], line["rows_new"]) for line in job.lines] == [("pinned", True, 0)] * 2
    assert json.loads(report.read_text())["pinned"]["name"] == "five"
    lake.apply_stream("first", 10, 12)
    late_row = lake.spark.sql("select 100l as id, timestamp_seconds(7200) as at, 'x' as kind")
    LockedDeltaWriter(lake.spark, lake.manager, str(second)).append(late_row)

    job = lake.snapshot(*pin_arguments, "--at", "1970-01-01T06:00:00+01:00", "--copy-to", copies)
    assert job.code == 0
    pinned_events = [line for line in job.lines if line["event"] == "pinned"]
    assert [(line["made"], line["rows_new"], line["rows_gone"]) for line in pinned_events] == [
        (False, 0, 0),
        (False, 1, 0),
    ]
    assert [line["rows"] for line in job.lines if line["event"] == "copied"] == [6, 6]
    for name in ("first", "second"):
        assert ids(copies / name) == list(range(6))
        assert DeltaTable(str(copies / name)).metadata().partition_columns == ["kind"]

    # A repeated run keeps the existing copies.
    assert lake.snapshot(*pin_arguments, "--copy-to", copies).code == 0
    assert ids(copies / "second") == list(range(6))


@pytest.mark.full
def test_changes_before_the_log_s_retention_are_not_counted(lake: Lake, tmp_path: Path) -> None:
    table = lake.apply_stream("old", 0, 10)
    ten_days_ago = time.time() - 10 * 86_400
    for path in (table / "_delta_log").glob("*.json"):
        os.utime(path, (ten_days_ago, ten_days_ago))
    lake.apply_stream("old", 10, 12)
    pin_arguments = ("--table", table, "--pin", "five", "--copy-to", tmp_path / "copies")
    for options in (("--event-time", "at", "--at", "1970-01-01T05:00:00Z", "--expires", "1 day"), ()):
        job = lake.snapshot(*pin_arguments, *options)
        assert (job.code, [line["event"] for line in job.lines]) == (0, ["copied", "pinned"]), job.error
        assert (job.lines[-1]["rows_new"], job.lines[-1]["rows_new_before"]) == (0, None)
    assert ids(tmp_path / "copies" / "old") == list(range(6))


@pytest.mark.full
def test_views_show_the_pinned_rows(lake: Lake) -> None:
    table = lake.apply_stream("departures", 0, 10)
    lake.spark.sql("create database if not exists january")
    job = lake.snapshot(
        *("--table", table, "--event-time", "at", "--at", "1970-01-01T03:00:00", "--pin", "x", "--expires", "1 day"),
        *("--views", "january"),
    )
    assert (job.code, [line["view"] for line in job.lines if "view" in line]) == (0, ["january.departures"])
    lake.apply_stream("departures", 10, 12)
    assert sorted(row["id"] for row in lake.spark.table("january.departures").collect()) == [0, 1, 2, 3]
    lake.spark.sql("drop database january cascade")


@pytest.mark.full
def test_a_moment_at_the_watermark_is_refused(lake: Lake) -> None:
    table = lake.apply_stream("departures", 0, 10)
    job = lake.snapshot(
        *("--table", table, "--event-time", "at", "--at", "1970-01-01T09:00:00Z", "--pin", "x", "--expires", "1 day")
    )
    assert job.code == 2
    assert "stream stream of departures has its watermark at 1970-01-01T09:00:00+00:00" in job.error
    assert list_pins(lake.spark, str(table)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pin", "x"), "has no pin x: give --expires to make one"),
        (("--pin", "x", "--expires", "soon"), '"30 days" or 2013-02-01'),
        (("--pin", "x", "--expires", "1 day", "--at", "2013-01-01"), "belong together"),
        (("--pin", "a/b", "--expires", "1 day"), "cannot be called 'a/b'"),
        (("--pin", "x", "--expires", "1 day"), "there is no Delta table at"),
        (("--pin", "x", "--expires", "2013-01-01"), "would have expired already"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    lake: Lake, table: Path, arguments: tuple[str, ...], message: str
) -> None:
    job = lake.snapshot("--table", table, *arguments)
    assert (job.code, job.lines) == (2, [])
    assert message in job.error
    assert len(job.error.splitlines()) == 1


@pytest.mark.full
def test_a_copy_does_not_replace_another_table(lake: Lake, tmp_path: Path) -> None:
    first, second, copies = (tmp_path / path for path in ("lake/first", "lake/second", "copies"))
    for table in (first, second, copies / "first"):
        write_deltalake(table, pa.table({"id": [0, 1, 2]}))
    pin_arguments = ("--table", first, "--pin", "x", "--expires", "1 day")
    for folder, message in ((copies, "is not a copy of pin x"), (first, "or contain it: name another folder")):
        job = lake.snapshot(*pin_arguments, "--copy-to", folder)
        assert job.code == 2
        assert message in job.error
    job = lake.snapshot("--table", first, "--table", second, "--pin", "x")
    assert job.code == 2
    assert "pin x keeps a version of" in job.error
