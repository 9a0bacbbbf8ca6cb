"""`sluice demo` at its smallest size: on S3, with writers that fail, and stopped by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.audit.verify import verify_table
from sluice.demo.processes import spark_submit
from tests.support.hdfs import NEEDS_HADOOP, client_settings, hdfs_cluster
from tests.support.hdfs import ROOT as ROOT_OF_HDFS

ROOT = Path(__file__).parents[2]
_RUN_VARIABLE = "SLUICE_TEST_RUN"

pytestmark = pytest.mark.usefixtures("heed_ctrl_c")


@contextmanager
def demo(output: Path, *arguments: str, writers: int = 2, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "sluice", "demo", "--output", str(output), "--writers", str(writers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write_settings(folder: Path, settings: dict[str, str]) -> Path:
    """Write Hadoop's settings to a new folder for ``HADOOP_CONF_DIR``; return the folder."""
    folder.mkdir()
    properties = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    (folder / "core-site.xml").write_text("<configuration/>")
    (folder / "hdfs-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
    return folder


def hadoop(*arguments: str, settings: Path) -> str:
    """Run Hadoop's shell of files with the settings in a folder; return its output."""
    command = [str(spark_submit()), "--class", "org.apache.hadoop.fs.FsShell", "spark-internal", *arguments]
    environment = {**os.environ, "HADOOP_CONF_DIR": str(settings)}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("compare", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["alone", "compared"])
def test_a_small_demo_on_s3_loses_no_commit(tmp_path: Path, *, compare: bool) -> None:
    output = tmp_path / "build" / "demo"
    options = ["--compare"] if compare else []
    with demo(output, *options, "--commits", "4", "--rows", "1000", "--keep") as process:
        text, errors = process.communicate(timeout=300)
    assert process.returncode == 0, text + errors
    assert "\x1b[" not in text  # no colours without a terminal
    assert "4 of 4 commits, 1,000 of 1,000 rows; done: 1, 2" in text
    report = json.loads((output / "report.json").read_text())
    expected = {
        "ok": True, "writers": 2, "rows_expected": 1000, "rows_found": 1000, "missing_rows": 0, "duplicate_rows": 0,
        "unexpected_rows": 0, "checksum_mismatches": [], "commits_acknowledged": 4, "commits_in_log": 4,
        "lost_commits": 0, "missing_versions": 0, "overlapping_holds": 0, "problems": [],
        "storage": "s3",
    }  # fmt: skip
    assert {name: report[name] for name in expected} == expected
    assert report["wall_seconds"] > report["loading_seconds"] > 0
    assert sorted(commit["version"] for commit in report["commits"]) == list(range(4))
    assert (output / "timeline.png").read_bytes().startswith(b"\x89PNG")
    # --keep copies the table from S3.
    verification = verify_table(output / "tables" / "flights", key=["time_hour", "carrier", "flight"])
    assert verification.ok
    commits = verification.locked_commits, verification.unlocked_commits
    assert (verification.rows_found, commits) == (1000, (4, 0))
    assert ("the same load" in text) is compare
    if compare:
        # The result of the load without a lock is open: two writers may conflict when they create the table.
        unlocked = report["without_lock"]
        assert (unlocked["locked"], unlocked["writers"], unlocked["rows_expected"]) == (False, 2, 1000)
        assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.spark
def test_a_small_demo_with_locks_on_s3_loses_no_commit(tmp_path: Path) -> None:
    options = ["--coordinator", "s3-lease", "--commits", "4", "--rows", "1000", "--keep"]
    with demo(tmp_path / "demo", *options) as process:
        text, errors = process.communicate(timeout=300)
    assert process.returncode == 0, text + errors
    assert "Locks go to s3-lease://lake/locks, tables go to s3a://lake" in text
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["ok"], report["coordinator"], report["overlapping_holds"]) == (True, "s3-lease", 0)
    assert [path.name for path in (tmp_path / "demo" / "tables").iterdir()] == ["flights"]
    assert verify_table(tmp_path / "demo" / "tables" / "flights").locked_commits == 4


@pytest.mark.full
@pytest.mark.spark
@NEEDS_HADOOP
def test_a_small_demo_on_hdfs_loses_no_commit(tmp_path: Path) -> None:
    options = ["--hdfs", f"{ROOT_OF_HDFS}/scratch", "--commits", "4", "--rows", "1000", "--keep"]
    with hdfs_cluster(tmp_path) as cluster:
        settings = write_settings(tmp_path / "conf", client_settings(cluster.addresses))
        with demo(tmp_path / "demo", *options, HADOOP_CONF_DIR=str(settings)) as process:
            text, errors = process.communicate(timeout=300)
        listing = hadoop("-ls", "-C", f"{ROOT_OF_HDFS}/scratch", settings=settings)
    assert process.returncode == 0, text + errors
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["ok"], report["storage"], report["rows_found"]) == (True, "hdfs", 1000)
    assert report["table"].startswith(f"{ROOT_OF_HDFS}/scratch/sluice-")
    assert verify_table(tmp_path / "demo" / "tables" / "flights").locked_commits == 4
    assert listing == ""


@pytest.mark.full
def test_a_demo_on_an_unknown_hdfs_is_refused(tmp_path: Path) -> None:
    settings = write_settings(tmp_path / "conf", {})
    with demo(tmp_path / "demo", "--hdfs", "hdfs://nowhere/scratch", HADOOP_CONF_DIR=str(settings)) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    expected = (
        r"sluice: -mkdir of hdfs://nowhere/scratch/sluice-\w+ failed on HDFS \(.*nowhere.*\); .*HADOOP_CONF_DIR\n"
    )
    assert re.fullmatch(expected, errors), errors


def test_failed_writers_fail_the_demo_with_their_last_lines(tmp_path: Path) -> None:
    broken = {"SPARK_SUBMIT_OPTS": "-Xss1k"}
    with demo(tmp_path / "demo", "--commits", "2", "--rows", "100", "--storage", "local", **broken) as process:
        text, errors = process.communicate(timeout=180)
    assert process.returncode == 1, text + errors
    assert "writer 2 ended with exit code 1; its last lines:" in text
    assert "Could not create the Java Virtual Machine" in text
    assert "problem: writer 1 failed" in text
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["ok"], report["failed_writers"], report["rows_found"]) == (False, [1, 2], 0)


def processes_of(run: str) -> dict[int, str]:
    """Return the command lines of the processes of a run, which have its id in their environment."""
    command_lines = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_RUN_VARIABLE}={run}".encode() in (folder / "environ").read_bytes():
                command_lines[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return command_lines


def driver_is_running(run: str) -> bool:
    """Return whether a Python driver is running. Its parent is a JVM, whose parent is a supervisor."""
    return any(
        "append.py" in line and "java" not in line and "_supervise" not in line for line in processes_of(run).values()
    )


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_stopped_demo_leaves_no_process(tmp_path: Path, stop_signal: signal.Signals) -> None:
    run = uuid.uuid4().hex
    with demo(tmp_path / "demo", "--commits", "2", "--rows", "100", writers=1, **{_RUN_VARIABLE: run}) as process:
        deadline = time.monotonic() + 90
        while not driver_is_running(run):
            assert process.poll() is None
            assert time.monotonic() < deadline, processes_of(run)
            time.sleep(0.05)
        process.send_signal(stop_signal)
        _, errors = process.communicate(timeout=30)
    if stop_signal == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines() == ["sluice: stopped by SIGINT; everything that was started has been ended"]
    deadline = time.monotonic() + 20
    while remaining := processes_of(run):
        assert time.monotonic() < deadline, remaining
        time.sleep(0.05)
