"""``sluice health``: the figures of a table and what is found, as text, as JSON and as a page."""

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
from writer_jobs import LockedDeltaWriter

pytestmark = pytest.mark.spark


@pytest.fixture
def sick(spark: SparkSession, writer: LockedDeltaWriter, table: Path) -> Path:
    """A table of five small files in one partition; a file of another one was lost."""
    rows = spark.range(0, 12, 1, 6).selectExpr("id", "IF(id < 10, 'a', 'b') AS place")
    writer.append(rows, partition_by=["place"])
    writer.delete("place = 'b'")
    return table


@pytest.fixture
def driver_of_the_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command measure with it, for one of its own costs 10 s to start."""
    monkeypatch.setattr("sluice.health.start_spark", lambda _name, _conf: nullcontext(spark))


@pytest.fixture
def health(driver_of_the_tests: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in this process: ``health(table, "--json")``."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["health", *map(str, arguments)])


def figures_in(text: str) -> dict[str, str]:
    """Return the figures of a report: a name and a figure to a line."""
    return dict(re.findall(r"^ *(\S.*?) {2,}(\S.*?) *$", text, re.MULTILINE))


@pytest.mark.full
def test_the_command_starts_its_own_spark_prints_figures_and_findings_and_writes_a_page(
    sick: Path, jars: list[Path], tmp_path: Path, versions: Callable[[Path], list[str]]
) -> None:
    (pages := tmp_path / "pages").mkdir()
    command = [sys.executable, "-m", "sluice", "health", sick.name, "--page", str(pages / "health.html")]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=sick.parent
    )
    # Neither Spark nor its JVM has anything to say.
    assert (done.returncode, done.stderr) == (0, "")
    # A long name may take several lines.
    assert "".join(done.stdout.split()).startswith(canonical_table_uri(str(sick)))
    figures = figures_in(done.stdout)
    assert (figures["version"], figures["rows"]) == ("1", "10")
    assert figures["data files"].startswith("5 files, ")
    assert figures["removed, kept for 7.0 days"].startswith("1 files, ")
    assert figures["removed, expired (for VACUUM)"] == figures["kept for pins"] == "0 files, 0 B"
    assert re.search(r"^ *place=a +5 ", done.stdout, re.MULTILINE)
    assert "small-files: 5 files of " in done.stdout
    assert "(maintain.py --compact)" in done.stdout
    assert [page.name for page in pages.iterdir()] == ["health.html"]
    page = (pages / "health.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "small-files" in page
    # It measures, and changes nothing.
    assert len(versions(sick)) == 2


def test_a_spark_that_does_not_start_says_why(sick: Path, jars: list[Path]) -> None:
    command = [sys.executable, "-m", "sluice", "health", str(sick), "--conf", "spark.driver.memory=nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    *before, sentence = done.stderr.splitlines()
    assert "Invalid maximum heap size: -Xmxnonsense" in before
    assert sentence.startswith("sluice: Spark does not start: ")


@pytest.mark.full
@pytest.mark.parametrize("moment", ["its JVM starts", "it measures"])
def test_ctrl_c_ends_all_that_was_started_and_is_one_sentence(
    moment: str, sick: Path, jars: list[Path], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    command = [sys.executable, "-m", "sluice", "health", str(sick)]
    said = tmp_path / "said"
    with said.open("w") as stderr, subprocess.Popen(command, stderr=stderr, start_new_session=True) as running:
        group = running.pid
        threads = "java" if moment == "its JVM starts" else "Executor task l"
        eventually(lambda: running.poll() is not None or threads in threads_of(group), 120)
        os.killpg(group, signal.SIGINT)
        assert running.wait(120) == 130
    assert said.read_text() == "sluice: stopped by SIGINT; everything that was started has been ended\n"
    # The JVM ends itself when its driver has.
    eventually(lambda: not threads_of(group), 120)


def threads_of(group: int) -> set[str]:
    """Return the names of all threads of a process group, as the kernel has them: 15 characters."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                names |= {task.read_text().strip() for task in process.glob("task/*/comm")}
    return names


@pytest.mark.full
def test_json_has_the_figures_of_each_table(
    health: Callable[..., Result], sick: Path, copy_of: Callable[..., Path]
) -> None:
    sound = copy_of(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableExpiredLogCleanup' = 'false') AS SELECT 1 AS id",
        to="sound",
    )
    done = health(sick, sound, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    one, other = json.loads(done.stdout)
    assert [each["table"] for each in (one, other)] == [canonical_table_uri(str(each)) for each in (sick, sound)]
    before = one["before"]
    assert (before["version"], before["total"]["total"]["files"], before["total"]["rows"]) == (1, 5, 10)
    assert (before["folder"]["removed"]["files"], before["folder"]["expired"]["files"]) == (1, 0)
    assert [(each["name"], each["total"]["files"]) for each in before["partitions"]] == [("place=a", 5)]
    assert [(each["code"], each["action"]) for each in one["findings"]] == [
        ("small-files", "compact"),
        ("writers-clean-log", None),
    ]
    assert (one["done"], one["after"], other["findings"]) == ([], None, [])
    assert "no maintenance is needed" in health(sound).stdout


@pytest.mark.full
@pytest.mark.usefixtures("driver_of_the_tests")
def test_a_table_that_became_smaller_has_a_negative_growth(sick: Path) -> None:
    (report,), _ = examine([str(sick)], {})

    def growth(per_day: float | None) -> str:
        said = Console(file=StringIO(), width=200)
        print_report(replace(report, before=replace(report.before, growth_per_day=per_day)), said)
        return figures_in(said.file.getvalue())["growth per day"]  # type: ignore[attr-defined]

    assert [growth(size) for size in (2048.0, -2048.0, 0.0, None)] == ["2.0 KiB", "-2.0 KiB", "0 B", "unknown"]


@pytest.mark.full
def test_a_table_that_is_not_there_keeps_no_other_back(
    health: Callable[..., Result], sick: Path, tmp_path: Path
) -> None:
    page = tmp_path / "health.html"
    done = health(tmp_path / "one", sick, tmp_path / "other", "--page", page)
    assert (done.exit_code, figures_in(done.stdout)["version"]) == (2, "1")
    assert [re.sub("file:.*/", "", line) for line in done.stderr.splitlines()] == [
        "sluice: there is no Delta table at other",
        "sluice: there is no Delta table at one",
    ]
    assert "there is no Delta table at" in page.read_text(encoding="utf-8")


def test_what_is_no_table_and_a_page_that_cannot_be_written_are_one_sentence(
    health: Callable[..., Result], sick: Path, tmp_path: Path
) -> None:
    nothing, page = tmp_path / "nothing", tmp_path / "no folder" / "health.html"
    done = health(nothing, "--page", tmp_path / "health.html")
    assert (done.exit_code, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"sluice: there is no Delta table at {canonical_table_uri(str(nothing))}")
    assert not nothing.exists()
    assert not (tmp_path / "health.html").exists()
    done = health(sick, "--page", page)
    assert (done.exit_code, figures_in(done.stdout)["version"]) == (1, "1")
    assert done.stderr == f"sluice: {page} cannot be written: No such file or directory; choose another --page\n"
