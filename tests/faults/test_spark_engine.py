"""``python -m soak`` with whole Spark drivers, from the command line.

In CI one driver, and no fault: that the engine works at all. With ``-m soak``: seed 1; 2 writers; one fault. Negative
controls: test_spark_drivers.py, with such drivers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
CLASSES = ("pause-both",)
MOST_SECONDS = 420


def soak(output: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a soak that finds nothing wrong; return its verdict, and what was acknowledged."""
    command = [
        sys.executable, "-m", "soak", "--engine", "spark", "--seed", "1", *arguments,
        "--output", str(output), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["engine"] == "spark"
    assert found["violations"] == 0
    history = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    return found, [event for event in history if event["event"] == "acknowledged"]


def test_the_engine_runs_and_its_verdict_is_clean(tmp_path: Path) -> None:
    found, acknowledged = soak(tmp_path, "--writers", "1", "--commits", "1", "--faults", "none")
    assert found["acknowledged"] == len(acknowledged) >= 1


@pytest.mark.soak
def test_spark_drivers_keep_every_promise_through_a_pause(tmp_path: Path) -> None:
    found, acknowledged = soak(
        tmp_path, "--writers", "2", "--commits", "3", "--faults", ",".join(CLASSES), "--gap", "1"
    )
    assert found["acknowledged"] >= 3
    assert set(CLASSES) <= found["faults"].keys()
    assert {event["worker"] for event in acknowledged} == {"writer-1", "writer-2"}
