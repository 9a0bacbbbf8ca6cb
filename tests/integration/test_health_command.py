"""``sluice health`` reports figures and findings of tables, as text, as JSON and as a page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from lock_manager import canonical_table_uri
from sluice.commands.app import app
from sluice.health import examine, print_report

pytestmark = pytest.mark.spark


COMMAND = [sys.executable, "-m", "sluice", "health"]


@pytest.fixture
def small_files(copy_of: Callable[..., Path]) -> Path:
    """A table of five small files in one partition. A DELETE has removed the file of another partition."""
    rows = "SELECT id, IF(id < 10, 'a', 'b') AS place FROM range(0, 12, 1, 6)"
    return copy_of(
        f"CREATE TABLE {{t}} USING delta PARTITIONED BY (place) AS {rows}", "DELETE FROM {t} WHERE place = 'b'"
    )


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the tests' Spark: a new one takes 10 s to start."""
    monkeypatch.setattr("sluice.health.start_spark", lambda _name, _conf: nullcontext(spark))


@pytest.fixture
def health(shared_spark: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in this process: ``health(table, "--json")``."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["health", *map(str, arguments)])


def figures_in(text: str) -> dict[str, str]:
    """Return the figures of a report by name. Each line of the report has a name and a figure."""
    return dict(re.findall(r"^ *(\S.*?) {2,}(\S.*?) *$", text, re.MULTILINE))


@pytest.mark.full
def test_the_command_starts_spark_and_writes_a_report_and_page(
    small_files: Path, jars: list[Path], tmp_path: Path, versions: Callable[[Path], list[str]]
) -> None:
    (pages := tmp_path / "pages").mkdir()
    command = [*COMMAND, small_files.name, "--page", str(pages / "health.html")]
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=small_files.parent
    )
    # Spark and its JVM must print no warning.
    assert (process.returncode, process.stderr) == (0, "")
    # The name of the table may take several lines.
    assert "".join(process.stdout.split()).startswith(canonical_table_uri(str(small_files)))
    figures = figures_in(process.stdout)
    assert (figures["version"], figures["rows"]) == ("1", "10")
    assert figures["data files"].startswith("5 files, ")
    assert figures["removed, kept for 7.0 days"].startswith("1 files, ")
    assert figures["removed, expired (for VACUUM)"] == figures["kept for pins"] == "0 files, 0 B"
    assert re.search(r"^ *place=a +5 ", process.stdout, re.MULTILINE)
    assert "small-files: 5 files of " in process.stdout
    assert "(maintain.py --compact)" in process.stdout
    assert [page.name for page in pages.iterdir()] == ["health.html"]
    page = (pages / "health.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "small-files" in page
    assert len(versions(small_files)) == 2, "the command has committed a version"


def test_a_failed_start_of_spark_is_reported(table: Path, jars: list[Path]) -> None:
    command = [*COMMAND, str(table), "--conf", "spark.driver.memory=nonsense"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (process.returncode, process.stdout) == (1, "")
    *jvm_lines, error = process.stderr.splitlines()
    assert "Invalid maximum heap size: -Xmxnonsense" in jvm_lines
    assert error.startswith("sluice: Spark does not start: ")


@pytest.mark.full
@pytest.mark.parametrize("thread", ["java", "Executor task l"], ids=["start of the JVM", "measurement"])
def test_ctrl_c_ends_spark_and_prints_one_line(
    thread: str, small_files: Path, jars: list[Path], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    output = tmp_path / "stderr"
    with (
        output.open("w") as stderr,
        subprocess.Popen([*COMMAND, str(small_files)], stderr=stderr, start_new_session=True) as process,
    ):
        group = process.pid
        eventually(lambda: process.poll() is not None or thread in threads_of(group), 120)
        os.killpg(group, signal.SIGINT)
        assert process.wait(120) == 130
    assert output.read_text() == "sluice: stopped by SIGINT; everything that was started has been ended\n"
    # The JVM ends on its own after the Python driver has ended.
    eventually(lambda: not threads_of(group), 120)


def threads_of(group: int) -> set[str]:
    """Return the names of all threads of a process group. The kernel stores 15 characters of each."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                names |= {task.read_text().strip() for task in process.glob("task/*/comm")}
    return names


@pytest.mark.full
def test_json_output_has_the_figures_of_each_table(
    health: Callable[..., Result], small_files: Path, copy_of: Callable[..., Path]
) -> None:
    healthy_table = copy_of(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableExpiredLogCleanup' = 'false') AS SELECT 1 AS id",
        to="healthy",
    )
    result = health(small_files, healthy_table, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    report, healthy_report = json.loads(result.stdout)
    assert report["table"] == canonical_table_uri(str(small_files))
    assert healthy_report["table"] == canonical_table_uri(str(healthy_table))
    figures = report["before"]
    assert (figures["version"], figures["total"]["total"]["files"], figures["total"]["rows"]) == (1, 5, 10)
    assert (figures["folder"]["removed"]["files"], figures["folder"]["expired"]["files"]) == (1, 0)
    assert [(partition["name"], partition["total"]["files"]) for partition in figures["partitions"]] == [("place=a", 5)]
    assert [(finding["code"], finding["action"]) for finding in report["findings"]] == [
        ("small-files", "compact"),
        ("writers-clean-log", None),
    ]
    assert (report["done"], report["after"], healthy_report["findings"]) == ([], None, [])
    assert "no maintenance is needed" in health(healthy_table).stdout


@pytest.mark.full
@pytest.mark.usefixtures("shared_spark")
def test_a_shrinking_table_has_negative_growth(small_files: Path) -> None:
    (report,), _ = examine([str(small_files)], {})

    def growth(per_day: float | None) -> str:
        output = StringIO()
        health = replace(report.before, growth_per_day=per_day)
        print_report(replace(report, before=health), Console(file=output, width=200))
        return figures_in(output.getvalue())["growth per day"]

    assert [growth(size) for size in (2048.0, -2048.0, 0.0, None)] == ["2.0 KiB", "-2.0 KiB", "0 B", "unknown"]


@pytest.mark.full
def test_a_missing_table_does_not_stop_the_report_of_others(
    health: Callable[..., Result], small_files: Path, tmp_path: Path
) -> None:
    page = tmp_path / "health.html"
    result = health(tmp_path / "missing-1", small_files, tmp_path / "missing-2", "--page", page)
    assert (result.exit_code, figures_in(result.stdout)["version"]) == (2, "1")
    assert [re.sub("file:.*/", "", line) for line in result.stderr.splitlines()] == [
        "sluice: there is no Delta table at missing-2",
        "sluice: there is no Delta table at missing-1",
    ]
    assert "there is no Delta table at" in page.read_text(encoding="utf-8")


def test_missing_tables_and_unwritable_pages_are_reported(
    health: Callable[..., Result], small_files: Path, tmp_path: Path
) -> None:
    missing_table, page = tmp_path / "missing", tmp_path / "no folder" / "health.html"
    result = health(missing_table, "--page", tmp_path / "health.html")
    assert (result.exit_code, result.stdout) == (2, "")
    (error,) = result.stderr.splitlines()
    assert error.startswith(f"sluice: there is no Delta table at {canonical_table_uri(str(missing_table))}")
    assert not missing_table.exists()
    assert not (tmp_path / "health.html").exists()
    result = health(small_files, "--page", page)
    assert (result.exit_code, figures_in(result.stdout)["version"]) == (1, "1")
    assert result.stderr == f"sluice: {page} cannot be written: No such file or directory; choose another --page\n"
