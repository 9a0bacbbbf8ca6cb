"""``python -m soak --engine store`` from the command line, and its negative control.

2 writers, 8 commits, faults of two classes, seed 1. The control has no guard; with seed 27 its first pair of faults
strikes at the PUT and after the data file is written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLASSES = ("break-lock", "s3-lost-reply")
TIMEOUT_SECONDS = 240


def soak(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soak", "--engine", "store", *arguments, "--output", str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


@pytest.mark.full
def test_a_short_soak_has_no_violation_and_writes_its_verdict(tmp_path: Path) -> None:
    process = soak(
        tmp_path, "--writers", "2", "--commits", "8", "--faults", ",".join(CLASSES), "--gap", "2", "--seed", "1",
        "--json",
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    verdict = json.loads(process.stdout)
    assert (verdict["engine"], verdict["seed"], verdict["writers"]) == ("store", 1, 2)
    assert verdict["violations"] == 0
    assert verdict["acknowledged"] >= 8
    assert set(verdict["faults"]) == set(CLASSES)
    assert verdict["did_not_strike"] == []
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict
    assert (tmp_path / "timeline.png").stat().st_size > 0


def test_negative_control_without_the_guard_prints_a_violation(tmp_path: Path) -> None:
    process = soak(
        tmp_path, "--writers", "2", "--commits", "8", "--faults", "pause-both", "--gap", "2", "--seed", "27",
        "--without", "guard",
    )  # fmt: skip
    assert process.returncode == 1, process.stdout + process.stderr
    assert (
        "I5: no hold commits a version after a later holder has read the table without that version. Violations:"
        in process.stdout
    )
    # The history of the hold that committed too late, and of the later holder that had read before.
    for event in ("holding", "read", "attempting", "stored"):
        assert f"\n    {event:<12} " in process.stdout
    assert "VIOLATIONS" in process.stdout
