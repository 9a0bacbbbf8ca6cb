"""`sluice demo`, small: the whole way on S3, writers that fail, and being stopped in the middle."""

from __future__ import annotations

import json
import os
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

ROOT = Path(__file__).parents[2]
_MARK = "SLUICE_TEST_RUN"


@pytest.fixture(autouse=True)
def heed_ctrl_c() -> Iterator[None]:
    """Let children heed it even if these tests run in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("compare", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["alone", "compared"])
def test_a_small_demo_on_s3_is_sound_under_the_lock(tmp_path: Path, *, compare: bool) -> None:
    output = tmp_path / "build" / "demo"
    more = ["--compare"] if compare else []
    with demo(output, *more, "--commits", "4", "--rows", "1000", "--keep") as process:
        said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, said + errors
    assert "\x1b[" not in said  # no terminal, no colours
    assert "4 of 4 commits, 1,000 of 1,000 rows; done: 1, 2" in said
    report = json.loads((output / "report.json").read_text())
    wanted = {
        "ok": True, "writers": 2, "rows_expected": 1000, "rows_found": 1000, "missing_rows": 0, "duplicate_rows": 0,
        "unexpected_rows": 0, "checksum_mismatches": [], "commits_acknowledged": 4, "commits_in_log": 4,
        "lost_commits": 0, "missing_versions": 0, "overlapping_holds": 0, "problems": [],
        "storage": "s3",
    }  # fmt: skip
    assert {name: report[name] for name in wanted} == wanted
    assert report["wall_seconds"] > report["loading_seconds"] > 0
    assert sorted(commit["version"] for commit in report["commits"]) == list(range(4))
    assert (output / "timeline.png").read_bytes().startswith(b"\x89PNG")
    # The table that was kept is the one that was on S3, and sound.
    kept = verify_table(output / "tables" / "flights", key=["time_hour", "carrier", "flight"])
    assert kept.ok
    assert (kept.rows_found, kept.locked_commits, kept.unlocked_commits) == (1000, 4, 0)
    assert ("the same load" in said) is compare
    if compare:
        # How the other load ends is open: two that make a table at once may get into each other's way.
        without = report["without_lock"]
        assert (without["locked"], without["writers"], without["rows_expected"]) == (False, 2, 1000)
        assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_writers_that_fail_are_shown_with_their_last_words_and_fail_the_demo(tmp_path: Path) -> None:
    broken = {"SPARK_SUBMIT_OPTS": "-Xss1k"}
    with demo(tmp_path / "demo", "--commits", "2", "--rows", "100", "--storage", "local", **broken) as process:
        said, errors = process.communicate(timeout=180)
    assert process.returncode == 1, said + errors
    assert "writer 2 ended with exit code 1; its last lines:" in said
    assert "Could not create the Java Virtual Machine" in said
    assert "problem: writer 1 failed" in said
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["ok"], report["failed_writers"], report["rows_found"]) == (False, [1, 2], 0)


def processes_of(run: str) -> dict[int, str]:
    """Return the command lines of the processes that inherited ``run`` in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={run}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def driver_runs(run: str) -> bool:
    """Tell whether the Python driver runs; it has a JVM above it, and that one a supervisor."""
    return any(
        "append.py" in line and "java" not in line and "_supervise" not in line for line in processes_of(run).values()
    )


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_stopped_in_the_middle_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    run = uuid.uuid4().hex
    with demo(tmp_path / "demo", "--commits", "2", "--rows", "100", writers=1, **{_MARK: run}) as process:
        deadline = time.monotonic() + 90
        while not driver_runs(run):
            assert process.poll() is None
            assert time.monotonic() < deadline, processes_of(run)
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines() == ["sluice: stopped by SIGINT; everything that was started has been ended"]
    deadline = time.monotonic() + 20
    while left := processes_of(run):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
