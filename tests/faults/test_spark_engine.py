"""``sluice soak`` with whole Spark drivers, from the command line.

Seed 1; 2 writers; one fault. Negative controls: test_spark_drivers.py, with the same drivers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
CLASSES = ("pause-both",)
MOST_SECONDS = 420


def test_spark_drivers_keep_every_promise_through_a_pause(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "sluice", "soak", "--engine", "spark", "--writers", "2", "--commits", "3",
        "--faults", ",".join(CLASSES), "--gap", "1", "--seed", "1", "--output", str(tmp_path), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["engine"] == "spark"
    assert found["violations"] == 0
    assert found["acknowledged"] >= 3
    assert set(CLASSES) <= found["faults"].keys()
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert {event["worker"] for event in history if event["event"] == "acknowledged"} == {"writer-1", "writer-2"}
