"""The progress of a write: in a terminal, in a notebook, and not in logs."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import nbclient
import nbformat
import pytest

from lock_manager import SettingsError, ZookeeperLockManager, waits
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from tests.support.at_the_gate import TableAtTheGate
from tests.support.spark_settings import spark_settings
from tests.support.submitted_job import SubmittedJob
from tests.support.terminal import open_terminal
from writer_jobs import append as append_module
from writer_jobs import locked, progress

pytestmark = pytest.mark.spark

HOLDER = rf"1 ahead; first in the queue is {re.escape(socket.gethostname())} pid \d+, job nightly"
NOTEBOOK = """
import json
from sluice.local.jars import resolve_jars
from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, build_session
spark = build_session("notebook", jars=resolve_jars(), launch_conf=json.loads({settings!r}), log_level="FATAL")
writer = LockedDeltaWriter(spark, ZookeeperLockManager({hosts!r}), {table!r})
"""


@pytest.fixture
def table(request: pytest.FixtureRequest) -> TableAtTheGate:
    return TableAtTheGate.create(request, "create table {t} using delta as select 0L as id")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show the progress of writes that take a tenth of a second."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(waits, "OBSERVED_SECONDS", 0.1)


@pytest.fixture
def wait_behind(
    table: TableAtTheGate,
    make_rival: Callable[..., ZookeeperLockManager],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> Callable[..., list[str]]:
    """Run a write behind another holder of the lock; return the waits.

    The holder releases when a condition is true, by default after five waits.
    """

    def run(write: Callable[[], object], until: Callable[[], object] | None = None) -> list[str]:
        reports: list[str] = []
        hold = make_rival(job="nightly").acquire(str(table.path))
        report = waits.WaitReports.report

        def record(self: waits.WaitReports, ahead: int | None, holder: Any) -> None:
            report(self, ahead, holder)
            if ahead is not None:
                reports.append(f"{ahead} {holder}")

        def release() -> None:
            try:
                eventually(until or (lambda: len(reports) >= 5), within=120, label="the wait of the write")
            finally:
                hold.release()

        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
            patch.setattr(waits.WaitReports, "report", record)
            releasing = pool.submit(release)
            write()
            releasing.result()
        return reports

    return run


@contextmanager
def standard_error(stream: TextIO) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("lock_during", ["commit", "write"])
def test_a_terminal_shows_the_wait_with_its_holder(
    table: TableAtTheGate, wait_behind: Callable[..., list[str]], eventually: Callable[..., None], lock_during: str
) -> None:
    rows = table.spark.sql("select 1L as id")
    files = ", 1 file written" if lock_during == "commit" else ""
    with open_terminal() as terminal:
        with standard_error(terminal.stream):
            wait_behind(
                lambda: table.writer.append(rows, lock_during=lock_during),
                until=lambda: re.search(HOLDER, terminal.text),
            )
        # In the end nothing of it is left on the screen.
        eventually(lambda: re.search(r"\r +\r$", terminal.text), label="the end of the progress")
    assert re.search(rf"\r\d+ s: waiting for the lock, {HOLDER}{files}: file:{table.path} *\r", terminal.text)
    assert table.ids() == [0, 1]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("output", ["a file", "switched off"])
def test_logs_show_no_progress(
    table: TableAtTheGate,
    wait_behind: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    output: str,
) -> None:
    rows, log = table.spark.sql("select 1L as id"), tmp_path / "log"
    setting = {progress.PROGRESS: "off" if output == "switched off" else "auto"}
    monkeypatch.setattr(waits, "LOG_SECONDS", 0.1)
    with open_terminal() as terminal, log.open("w") as file, spark_settings(table.spark.conf, setting):
        with standard_error(file if output == "a file" else terminal.stream):
            reports = wait_behind(lambda: table.writer.append(rows))
    assert len(reports) >= 5
    assert (log.read_text(), terminal.text) == ("", "")


@pytest.mark.usefixtures("often")
def test_a_stopped_terminal_stops_no_write(table: TableAtTheGate, wait_behind: Callable[..., list[str]]) -> None:
    rows = table.spark.sql("select 1L as id")

    def print_event(_: object) -> None:
        # As a job that prints that it holds the lock.
        progress.clear_line()

    with open_terminal() as terminal, standard_error(terminal.stream):
        terminal.stop()
        # A program that waits for the terminal would not go on.
        assert select.select([], [terminal.stream], [], 0)[1] == []
        wait_behind(lambda: table.writer.append(rows, before_write=print_event))
    assert table.ids() == [0, 1]


@pytest.mark.usefixtures("often")
def test_a_block_shows_its_wait_only(
    table: TableAtTheGate, wait_behind: Callable[..., list[str]], eventually: Callable[..., None]
) -> None:
    def write() -> None:
        with locked(table.spark, str(table.path), manager=table.manager):
            terminal.stream.write("the block's own output\n")
            terminal.stream.flush()

    with open_terminal() as terminal:
        with standard_error(terminal.stream):
            wait_behind(write, until=lambda: re.search(HOLDER, terminal.text))
        eventually(lambda: re.search(r"\r +\rthe block's own output\r\n$", terminal.text), label="the block's output")
    assert re.search(rf"waiting for the lock, {HOLDER}", terminal.text)


def test_only_the_own_waits_of_a_thread_are_reported() -> None:
    """A wait of another thread for the same table is not that of the write."""
    observers = []
    with waits.observed_by(print):
        observers.append(waits.current_observer())
        thread = threading.Thread(target=lambda: observers.append(waits.current_observer()))
        thread.start()
        thread.join()
    assert [*observers, waits.current_observer()] == [print, None, None]


def test_the_line_has_no_control_characters_and_ends_with_the_outcome() -> None:
    line = progress.Progress("s3://lake/t")
    line.observe(waits.Wait("s3://lake/t", 1.0, 2, {"host": "h\x1b[2J", "pid": 1, "job": "a\nb"}))
    assert line.text(cast("Any", None)) == (
        "0 s: waiting for the lock, 2 ahead; first in the queue is h?[2J pid 1, job a?b: s3://lake/t"
    )
    assert line.last_text() == "0 s: ended with an error: s3://lake/t"
    # An interrupt after the commit.
    line.finishes()
    assert "ahead" not in line.text(cast("Any", None))
    assert line.last_text() == "0 s: committed: s3://lake/t"


def test_an_unknown_setting_writes_nothing(table: TableAtTheGate) -> None:
    with (
        spark_settings(table.spark.conf, {progress.PROGRESS: "loud"}),
        pytest.raises(SettingsError, match=r"spark\.sluice\.progress is 'loud': set auto or off"),
    ):
        table.writer.append(table.spark.sql("select 1L as id"))
    assert table.ids() == [0]


@pytest.mark.full
def test_a_job_shows_its_progress_in_the_terminal_of_spark_submit(
    submit: Callable[..., SubmittedJob], source: Path, tmp_path: Path, make_rival: Any, eventually: Callable[..., None]
) -> None:
    table = tmp_path / "table"
    with open_terminal() as terminal:
        with make_rival(job="nightly").acquire(str(table)):
            job = submit(Path(append_module.__file__), "--table", table, "--source", source, errors=terminal.path)
            line = rf"\d+ s: waiting for the lock, {HOLDER}, 1 file written: file:{table}"
            eventually(lambda: re.search(line, terminal.text), within=240, label="the progress")
        assert job.wait() == 0
    assert [event["event"] for event in job.events] == ["begun", "holding", "commit"]


@pytest.mark.full
def test_a_notebook_shows_the_progress_below_the_cell(
    zookeeper: Any,
    tmp_path: Path,
    make_rival: Any,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    table = tmp_path / "table"
    settings = {
        "spark.master": "local[1]", "spark.driver.extraJavaOptions": QUICK_JVM, **LOCAL_DRIVER, **FEW_ROWS
    }  # fmt: skip
    start = NOTEBOOK.format(settings=json.dumps(settings), hosts=zookeeper.hosts, table=str(table))
    cells = [start, "result = writer.append(spark.range(1).coalesce(1))"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")

    def shown() -> str:
        return "\n".join(output.get("data", {}).get("text/plain", "") for output in notebook.cells[1].outputs)

    hold = make_rival(job="nightly").acquire(str(table))
    thread = threading.Thread(target=lambda: asyncio.run(client.async_execute()))
    thread.start()
    try:
        line = rf"\d+ s: waiting for the lock, {HOLDER}, 1 file written: file:{table}"
        eventually(lambda: re.fullmatch(line, shown()) or not thread.is_alive(), within=240, label="the progress")
        assert thread.is_alive(), "the notebook has failed"
    finally:
        hold.release()
        thread.join()
    assert re.fullmatch(rf"\d+ s: version 0 is committed: file:{table}", shown())
    assert not notebook.cells[0].outputs
