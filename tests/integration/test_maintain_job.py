"""``maintain.py`` in this process: one table, a list of tables, its events and its report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager, canonical_table_uri
from tests.support.metrics_text import values_of
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.maintenance.exclusive_run import exclusive_run

pytestmark = pytest.mark.spark


@dataclass
class Lake:
    """Tables and a report in one folder, and the job that maintains them."""

    run_job: Callable[..., Any]
    copy_of: Callable[..., Path]
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def page(self) -> Path:
        return self.folder / "page.html"

    def create(self, name: str, files: int) -> Path:
        """Copy a table of small files with one row each."""
        statement = f"CREATE TABLE {{t}} USING delta AS SELECT id FROM range(0, {files}, 1, {files})"
        return self.copy_of(statement, to=f"lake/{name}")

    def write_list(self, content: bytes | str) -> Path:
        path = self.folder / "tables.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def maintain(self, *arguments: str | Path) -> Any:
        return self.run_job("maintain", *arguments)

    def reported_tables(self) -> list[dict[str, Any]]:
        tables: list[dict[str, Any]] = json.loads(self.report.read_text())["tables"]
        return tables


@pytest.fixture
def lake(run_job: Callable[..., Any], copy_of: Callable[..., Path], tmp_path: Path) -> Lake:
    return Lake(run_job, copy_of, tmp_path)


def file_counts(*tables: Path) -> list[int]:
    """Return the number of data files of each table."""
    return [len(DeltaTable(str(table)).file_uris()) for table in tables]


def uris_of(*tables: Path) -> list[str]:
    return [canonical_table_uri(str(table)) for table in tables]


def events(job: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in job.lines if line["event"] == event]


def test_without_an_action_a_table_is_only_measured(lake: Lake) -> None:
    table = lake.create("flights", 6)
    metrics_file = lake.folder / "maintain.prom"
    job = lake.maintain("--table", table, "--report", lake.report, "--page", lake.page, "--metrics", metrics_file)
    assert (job.code, job.error) == (0, "")
    (uri,), metrics = uris_of(table), metrics_file.read_text()
    assert values_of(metrics, "sluice_table_files", table=uri, state="live") == [6]
    assert values_of(metrics, "sluice_table_finding_worth", table=uri, code="small-files") == [5]
    assert values_of(metrics, "sluice_maintenance_actions_total", table=uri) == []
    measured_event = events(job, "measured")[0]
    assert (measured_event["files"], measured_event["small_files"], measured_event["orphans"]) == (6, 6, 0)
    assert [line["code"] for line in events(job, "finding")] == ["small-files", "writers-clean-log"]
    assert events(job, "done") == []
    assert json.loads(lake.report.read_text())["exit_code"] == 0
    (reported_table,) = lake.reported_tables()
    assert reported_table["before"]["total"]["total"] == {"files": 6, "size": measured_event["bytes"]}
    assert reported_table["after"] is None
    assert "small-files" in lake.page.read_text()
    assert file_counts(table) == [6]


@pytest.mark.full
def test_a_table_that_fails_does_not_stop_the_other_tables(lake: Lake, manager: ZookeeperLockManager) -> None:
    first_table, second_table, busy_table = lake.create("first", 6), lake.create("second", 7), lake.create("busy", 5)
    missing_table = f"{lake.folder}/nothing/here"
    table_list = lake.write_list(
        f"# the lake\n{first_table}\n{missing_table}  # gone\n\n{second_table}\n{busy_table}\n"
    )
    with exclusive_run(manager, canonical_table_uri(str(busy_table)), 30):
        options = ("--report", lake.report, "--metrics", lake.folder / "maintain.prom", "--lock-timeout", "0")
        job = lake.maintain("--tables-in", table_list, "--auto", *options)
    assert job.code == 2
    uri, metrics = canonical_table_uri(str(first_table)), (lake.folder / "maintain.prom").read_text()
    assert values_of(metrics, "sluice_maintenance_actions_total", table=uri, action="compact", outcome="done") == [1]
    assert values_of(metrics, "sluice_table_files", table=uri, state="live") == [1]
    assert "no Delta table" in job.error
    assert file_counts(first_table, second_table, busy_table) == [1, 1, 5]
    failures = events(job, "failed")
    assert [(line["table"], line["exit_code"]) for line in failures] == [(missing_table, 2), (str(busy_table), 3)]
    table_events = {line["table"]: line for line in events(job, "table")}
    assert table_events[canonical_table_uri(str(first_table))]["files_saved"] == 5
    assert json.loads(lake.report.read_text())["exit_code"] == 2
    reported_tables = lake.reported_tables()
    assert [("error" in table) for table in reported_tables] == [False, True, False, True]
    assert reported_tables[0]["saved"]["files"] == 5
    assert reported_tables[0]["done"][0]["action"] == "compact"
    # The second run compacts only the table that was busy in the first run.
    repeated_job = lake.maintain("--tables-in", table_list, "--auto")
    assert [line["action"] for line in events(repeated_job, "done")] == ["compact"]


@pytest.mark.soak
def test_with_a_budget_the_table_with_the_largest_gain_is_first(lake: Lake) -> None:
    small_table, large_table, clean_table = lake.create("few", 5), lake.create("many", 12), lake.create("clean", 1)
    tables = [argument for table in (small_table, clean_table, large_table) for argument in ("--table", table)]
    job = lake.maintain(*tables, "--auto", "--budget", "600")
    assert job.code == 0
    assert [line["table"] for line in events(job, "table")] == uris_of(large_table, small_table, clean_table)
    assert file_counts(small_table, large_table) == [1, 1]


def test_after_the_budget_tables_are_skipped(lake: Lake) -> None:
    first_table, second_table = lake.create("first", 5), lake.create("second", 6)
    job = lake.maintain(
        "--table", first_table, "--table", second_table, "--auto", "--budget", "0", "--report", lake.report
    )
    assert job.code == 0
    assert [line["event"] for line in job.lines] == ["skipped", "skipped"]
    assert [table["skipped"] for table in lake.reported_tables()] == ["the time budget was used up"] * 2
    assert file_counts(first_table, second_table) == [5, 6]


@pytest.mark.full
def test_the_report_has_the_work_before_a_failure_of_the_store(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from writer_jobs.errors import StorageError
    from writer_jobs.maintenance import maintainer

    measure_functions = [maintainer.measure]

    def measure_once(*arguments: Any) -> Any:
        if not measure_functions:
            raise StorageError("the store says: slow down")
        return measure_functions.pop()(*arguments)

    monkeypatch.setattr(maintainer, "measure", measure_once)
    table = lake.create("flights", 6)
    job = lake.maintain("--table", table, "--auto", "--report", lake.report, "--page", lake.page)
    assert (job.code, "slow down" in job.error) == (5, True)
    (reported_table,) = lake.reported_tables()
    assert (reported_table["exit_code"], reported_table["saved"]["files"], reported_table["after"]) == (5, 5, None)
    assert [result["action"] for result in reported_table["done"]] == ["compact"]
    assert "slow down" in lake.page.read_text()
    assert "<h3>Actions</h3>" in lake.page.read_text()


@pytest.mark.full
def test_an_unexpected_error_does_not_stop_the_other_tables(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from writer_jobs.job.maintain import run

    bad_table, good_table = lake.create("bad", 6), lake.create("good", 6)
    executor_class = run.UnitExecutor

    def make_executor(*arguments: Any, **options: Any) -> Any:
        if str(bad_table) in arguments:
            raise RuntimeError("a defect")
        return executor_class(*arguments, **options)

    monkeypatch.setattr(run, "UnitExecutor", make_executor)
    job = lake.maintain("--table", bad_table, "--table", good_table, "--auto")
    assert (job.code, "unexpected RuntimeError: a defect" in job.error) == (1, True)
    assert file_counts(bad_table, good_table) == [6, 1]


@pytest.mark.full
def test_a_table_list_may_have_a_byte_order_mark_and_duplicates(lake: Lake) -> None:
    table = lake.create("flights", 1)
    job = lake.maintain("--tables-in", lake.write_list(f"\ufeff{table}\n{table}/../flights\nfile:{table}\n"))
    assert (job.code, job.error) == (0, "")
    assert [line["table"] for line in events(job, "table")] == uris_of(table)


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe", "is not text in UTF-8"), (b"# nothing\n\n", "lists no table")]
)
def test_an_unusable_table_list_is_reported_on_one_line(lake: Lake, content: bytes, message: str) -> None:
    table_list = lake.write_list(content)
    job = lake.maintain("--tables-in", table_list)
    assert (job.code, job.lines, len(job.error.splitlines())) == (2, [], 1)
    assert f"{table_list} {message}" in job.error


@pytest.mark.full
def test_all_delta_tables_of_a_database_are_maintained(lake: Lake, spark: SparkSession) -> None:
    table = lake.create("flights", 3)
    spark.sql("CREATE DATABASE IF NOT EXISTS fleet")
    try:
        spark.sql(f"CREATE TABLE fleet.flights USING delta LOCATION '{table}'")
        spark.sql("CREATE TABLE fleet.other (id LONG) USING parquet")
        spark.sql("CREATE VIEW fleet.seen AS SELECT * FROM fleet.flights")
        job = lake.maintain("--catalog", "fleet", "--compact")
        assert (job.code, job.error) == (0, "")
        assert [line["table"] for line in events(job, "table")] == uris_of(table)
        assert file_counts(table) == [1]
        assert lake.maintain("--catalog", "nowhere", "--compact").code == 2
        spark.sql("DROP TABLE fleet.flights")
        failed_job = lake.maintain("--catalog", "fleet", "--compact")
        assert (failed_job.code, "fleet has no Delta tables" in failed_job.error) == (2, True)
    finally:
        spark.sql("DROP DATABASE fleet CASCADE")


@pytest.mark.full
def test_a_run_executes_the_actions_that_its_options_name(
    lake: Lake, spark: SparkSession, manager: ZookeeperLockManager
) -> None:
    table = lake.create("flights", 4)
    with locked(spark, str(table), manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    writer = LockedDeltaWriter(spark, manager, str(table))
    writer.append(spark.range(100, 200).coalesce(1))
    writer.delete("id = 150")
    orphan = table / "part-orphan.parquet"
    orphan.write_bytes(b"x" * 10)
    os.utime(orphan, (time.time() - 30 * 86_400,) * 2)
    job = lake.maintain("--table", table, "--purge", "--zorder", "id", "--vacuum", "--checkpoint", "--clean-log")
    assert (job.code, job.error) == (0, "")
    actions = {line["action"]: line for line in events(job, "done")}
    # Z-ordering also removes deleted rows, so --purge has no work left.
    assert set(actions) == {"zorder", "vacuum", "checkpoint", "clean-log"}
    assert (actions["zorder"]["files_removed"], actions["zorder"]["files_added"]) == (5, 1)
    assert (actions["vacuum"]["files_removed"], actions["vacuum"]["bytes_removed"]) == (1, 10)
    assert {line["table"] for line in actions.values()} == set(uris_of(table))
    # These two actions hold the lock of the table's _last_checkpoint file.
    for action in ("checkpoint", "clean-log"):
        assert min(actions[action]["waited_seconds"], actions[action]["held_seconds"]) > 0
    assert not orphan.exists()
    assert (table / "_delta_log" / "_last_checkpoint").exists()
    assert spark.read.format("delta").load(str(table)).count() == 103
    for option in ("--purge", "--cluster", "--compact"):
        repeated_job = lake.maintain("--table", table, option)
        assert (repeated_job.code, events(repeated_job, "done")) == (0, [])
    failed_job = lake.maintain("--table", table, "--zorder", "nowhere")
    assert (failed_job.code, "Z-order by nowhere: nowhere is not a column of" in failed_job.error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the tables"),
        (("--table", "./x", "--auto", "--compact"), "not both"),
        (("--table", "./x", "--budget", "5"), "give --budget with --auto"),
        (("--table", "./x", "--auto", "--budget", "soon"), "not a number of seconds"),
        (("--table", "./x", "--zorder", "a,,b"), "not a list of distinct column names"),
        (("--tables-in", "./missing.txt"), "missing.txt does not exist"),
        (("--table", "./x", "--compact", "--partitions-per-commit", "65"), "give 64 at most"),
    ],
)
def test_a_wrong_argument_is_refused(lake: Lake, arguments: tuple[str, ...], message: str) -> None:
    job = lake.maintain(*arguments)
    assert job.code == 2
    assert message in job.error
    assert job.lines == []
