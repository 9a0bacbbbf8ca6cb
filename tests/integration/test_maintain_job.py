"""``maintain.py`` in this process: a table, a fleet, what it says and writes down."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager, canonical_table_uri
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.maintenance.exclusive_run import exclusive_run

pytestmark = pytest.mark.spark


@pytest.fixture
def maintain(run_job: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: run_job("maintain", *arguments)


@pytest.fixture
def lake(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Callable[..., Path]:
    """Make a table of so many files: ``lake("flights", 5)``."""

    def made(name: str, files: int) -> Path:
        table = tmp_path / "lake" / name
        writer = LockedDeltaWriter(spark, manager, str(table))
        writer.append(spark.range(0, files, 1, files))
        return table

    return made


def files_of(spark: SparkSession, table: Path) -> int:
    return int(spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()[0]["numFiles"])


def events(done: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in done.lines if line["event"] == event]


def test_a_table_is_measured_and_nothing_is_changed(
    spark: SparkSession, lake: Callable[..., Path], maintain: Callable[..., Any], tmp_path: Path
) -> None:
    table, report, page = lake("flights", 6), tmp_path / "report.json", tmp_path / "page.html"
    done = maintain("--table", table, "--report", report, "--page", page)
    assert (done.code, done.error) == (0, "")
    measured = events(done, "measured")[0]
    assert (measured["files"], measured["small_files"], measured["orphans"]) == (6, 6, 0)
    assert [line["code"] for line in events(done, "finding")] == ["small-files", "writers-clean-log"]
    assert events(done, "done") == []
    written = json.loads(report.read_text())
    assert written["exit_code"] == 0
    assert written["tables"][0]["before"]["total"]["total"] == {"files": 6, "size": measured["bytes"]}
    assert written["tables"][0]["after"] is None
    assert "small-files" in page.read_text()
    assert files_of(spark, table) == 6


@pytest.mark.full
def test_a_fleet_is_looked_after_and_one_bad_table_keeps_no_other_back(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    lake: Callable[..., Path],
    maintain: Callable[..., Any],
    tmp_path: Path,
) -> None:
    one, two, busy = lake("one", 6), lake("two", 7), lake("busy", 5)
    listed, report = tmp_path / "tables.txt", tmp_path / "report.json"
    listed.write_text(f"# the lake\n{one}\n{tmp_path}/nothing/here  # gone\n\n{two}\n{busy}\n")
    with exclusive_run(manager, canonical_table_uri(str(busy)), 30):
        done = maintain("--tables-in", listed, "--auto", "--report", report, "--lock-timeout", "0")
    assert done.code == 2
    assert "no Delta table" in done.error
    assert [files_of(spark, each) for each in (one, two, busy)] == [1, 1, 5]
    failed = events(done, "failed")
    assert [(line["table"], line["exit_code"]) for line in failed] == [(f"{tmp_path}/nothing/here", 2), (str(busy), 3)]
    cared_for = {line["table"]: line for line in events(done, "table")}
    assert cared_for[canonical_table_uri(str(one))]["files_saved"] == 5
    written = json.loads(report.read_text())
    assert written["exit_code"] == 2
    assert [("error" in each) for each in written["tables"]] == [False, True, False, True]
    assert written["tables"][0]["saved"]["files"] == 5
    assert written["tables"][0]["done"][0]["action"] == "compact"
    # Nothing is left to be done.
    again = maintain("--tables-in", listed, "--auto")
    assert [line["action"] for line in events(again, "done")] == ["compact"]


@pytest.mark.full
def test_within_a_budget_the_table_where_most_is_to_be_gained_comes_first(
    spark: SparkSession, lake: Callable[..., Path], maintain: Callable[..., Any], tmp_path: Path
) -> None:
    few, many, none = lake("few", 5), lake("many", 12), lake("none", 1)
    tables = [argument for table in (few, none, many) for argument in ("--table", table)]
    done = maintain(*tables, "--auto", "--budget", "600")
    assert done.code == 0
    uris = [canonical_table_uri(str(table)) for table in (many, few, none)]
    assert [line["table"] for line in events(done, "table")] == uris
    assert [files_of(spark, each) for each in (few, many)] == [1, 1]


def test_when_the_budget_is_over_no_table_is_begun(
    spark: SparkSession, lake: Callable[..., Path], maintain: Callable[..., Any], tmp_path: Path
) -> None:
    one, two, report = lake("one", 5), lake("two", 6), tmp_path / "report.json"
    done = maintain("--table", one, "--table", two, "--auto", "--budget", "0", "--report", report)
    assert done.code == 0
    assert [line["event"] for line in done.lines] == ["skipped", "skipped"]
    written = json.loads(report.read_text())["tables"]
    assert [each["skipped"] for each in written] == ["the budget was over"] * 2
    assert [files_of(spark, each) for each in (one, two)] == [5, 6]


@pytest.mark.full
def test_what_was_done_is_in_the_report_also_if_the_store_fails_then(
    spark: SparkSession,
    lake: Callable[..., Path],
    maintain: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from writer_jobs.errors import StorageError
    from writer_jobs.maintenance import maintainer as care_module

    table, report, page = lake("flights", 6), tmp_path / "report.json", tmp_path / "page.html"
    looks = [care_module.measure]

    def measure(*where: Any) -> Any:
        if not looks:
            raise StorageError("the store says: slow down")
        return looks.pop()(*where)

    monkeypatch.setattr(care_module, "measure", measure)
    done = maintain("--table", table, "--auto", "--report", report, "--page", page)
    assert (done.code, "slow down" in done.error) == (5, True)
    (written,) = json.loads(report.read_text())["tables"]
    assert (written["exit_code"], written["saved"]["files"], written["after"]) == (5, 5, None)
    assert [each["action"] for each in written["done"]] == ["compact"]
    assert "slow down" in page.read_text()
    assert "<h3>Actions</h3>" in page.read_text()


@pytest.mark.full
def test_an_error_that_nobody_expects_keeps_no_other_table_back(
    spark: SparkSession, lake: Callable[..., Path], maintain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from writer_jobs.job.maintain import run as job

    bad, good = lake("bad", 6), lake("good", 6)
    real = job.UnitExecutor

    def worker(*where: Any, **how: Any) -> Any:
        if str(bad) in where:
            raise RuntimeError("a defect")
        return real(*where, **how)

    monkeypatch.setattr(job, "UnitExecutor", worker)
    done = maintain("--table", bad, "--table", good, "--auto")
    assert (done.code, "unexpected RuntimeError: a defect" in done.error) == (1, True)
    assert [files_of(spark, each) for each in (bad, good)] == [6, 1]


def test_a_list_may_begin_with_a_mark_and_name_a_table_twice(
    lake: Callable[..., Path], maintain: Callable[..., Any], tmp_path: Path
) -> None:
    table, listed = lake("flights", 1), tmp_path / "tables.txt"
    listed.write_text(f"\ufeff{table}\n{table}/../flights\nfile:{table}\n", encoding="utf-8")
    done = maintain("--tables-in", listed)
    assert (done.code, done.error) == (0, "")
    assert [line["table"] for line in events(done, "table")] == [canonical_table_uri(str(table))]


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\xfe", "is not text in UTF-8"), (b"# nothing\n\n", "lists no table")]
)
def test_a_list_of_no_tables_is_one_sentence(
    content: bytes, says: str, maintain: Callable[..., Any], tmp_path: Path
) -> None:
    (listed := tmp_path / "tables.txt").write_bytes(content)
    done = maintain("--tables-in", listed)
    assert (done.code, done.lines, len(done.error.splitlines())) == (2, [], 1)
    assert f"{listed} {says}" in done.error


@pytest.mark.full
def test_all_delta_tables_of_a_database_are_found(
    spark: SparkSession, manager: ZookeeperLockManager, lake: Callable[..., Path], maintain: Callable[..., Any]
) -> None:
    table = lake("flights", 3)
    spark.sql("CREATE DATABASE IF NOT EXISTS fleet")
    try:
        spark.sql(f"CREATE TABLE fleet.flights USING delta LOCATION '{table}'")
        spark.sql("CREATE TABLE fleet.other (id LONG) USING parquet")
        spark.sql("CREATE VIEW fleet.seen AS SELECT * FROM fleet.flights")
        done = maintain("--catalog", "fleet", "--compact")
        assert (done.code, done.error) == (0, "")
        assert [line["table"] for line in events(done, "table")] == [canonical_table_uri(str(table))]
        assert files_of(spark, table) == 1
        assert maintain("--catalog", "nowhere", "--compact").code == 2
        spark.sql("DROP TABLE fleet.flights")
        none = maintain("--catalog", "fleet", "--compact")
        assert (none.code, "fleet has no Delta tables" in none.error) == (2, True)
    finally:
        spark.sql("DROP DATABASE fleet CASCADE")


@pytest.mark.full
def test_every_action_by_its_name(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    lake: Callable[..., Path],
    maintain: Callable[..., Any],
) -> None:
    table = lake("flights", 4)
    with locked(spark, str(table), manager=manager):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    LockedDeltaWriter(spark, manager, str(table)).append(spark.range(100, 200).coalesce(1))
    LockedDeltaWriter(spark, manager, str(table)).delete("id = 150")
    orphan = table / "part-orphan.parquet"
    orphan.write_bytes(b"x" * 10)
    os.utime(orphan, (time.time() - 30 * 86_400,) * 2)
    done = maintain("--table", table, "--purge", "--zorder", "id", "--vacuum", "--checkpoint", "--clean-log")
    assert (done.code, done.error) == (0, "")
    made = {line["action"]: line for line in events(done, "done")}
    assert set(made) == {"zorder", "vacuum", "checkpoint", "clean-log"}
    assert (made["zorder"]["files_removed"], made["zorder"]["files_added"]) == (5, 1)
    assert (made["vacuum"]["files_removed"], made["vacuum"]["bytes_removed"]) == (1, 10)
    assert {line["table"] for line in made.values()} == {canonical_table_uri(str(table))}
    # These two hold the lock on the checkpoint.
    assert made["checkpoint"]["held_seconds"] > 0 < made["clean-log"]["held_seconds"]
    assert not orphan.exists()
    assert (table / "_delta_log" / "_last_checkpoint").exists()
    assert spark.read.format("delta").load(str(table)).count() == 103
    for nothing in ("--purge", "--cluster", "--compact"):
        again = maintain("--table", table, nothing)
        assert (again.code, events(again, "done")) == (0, [])
    wrong = maintain("--table", table, "--zorder", "nowhere")
    assert (wrong.code, "Z-order by nowhere: nowhere is not a column of" in wrong.error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name the tables"),
        (("--table", "./x", "--auto", "--compact"), "not both"),
        (("--table", "./x", "--budget", "5"), "--budget is for"),
        (("--table", "./x", "--auto", "--budget", "soon"), "not a number of seconds"),
        (("--table", "./x", "--zorder", "a,,b"), "not a list of distinct column names"),
        (("--tables-in", "./missing.txt"), "no such list"),
        (("--table", "./x", "--compact", "--partitions-per-commit", "65"), "give 64 at most"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: tuple[str, ...], says: str, maintain: Callable[..., Any]) -> None:
    done = maintain(*arguments)
    assert done.code == 2
    assert says in done.error
    assert done.lines == []
