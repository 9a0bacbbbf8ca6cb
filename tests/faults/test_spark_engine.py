"""``python -m soak`` with Spark drivers, from the command line.

In CI one driver without faults, to test the engine. With ``-m soak`` 2 writers and one class of faults. Seed 1.
The negative controls with Spark drivers are in test_fault_pairs.py and test_spark_drivers.py.
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
TIMEOUT_SECONDS = 420


def soak(output: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a soak without violations; return its verdict and its ``acknowledged`` events."""
    command = [
        sys.executable, "-m", "soak", "--engine", "spark", "--seed", "1", *arguments,
        "--output", str(output), "--json",
    ]  # fmt: skip
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    verdict = json.loads(process.stdout)
    assert verdict["engine"] == "spark"
    assert verdict["violations"] == 0
    history = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    return verdict, [event for event in history if event["event"] == "acknowledged"]


@pytest.mark.full
def test_the_spark_engine_runs_without_violations(tmp_path: Path) -> None:
    verdict, acknowledged = soak(tmp_path, "--writers", "1", "--commits", "1", "--faults", "none")
    assert verdict["acknowledged"] == len(acknowledged) >= 1


@pytest.mark.soak
def test_paused_spark_drivers_keep_every_promise(tmp_path: Path) -> None:
    verdict, acknowledged = soak(
        tmp_path, "--writers", "2", "--commits", "3", "--faults", ",".join(CLASSES), "--gap", "1"
    )
    assert verdict["acknowledged"] >= 3
    assert set(CLASSES) <= verdict["faults"].keys()
    assert {event["worker"] for event in acknowledged} == {"writer-1", "writer-2"}
