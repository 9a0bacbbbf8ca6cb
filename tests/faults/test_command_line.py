"""``python -m soak --engine store`` from the command line, as anyone runs it, and its negative control.

2 writers, 8 commits, one fault of each of two classes, seed 1; then without the guard, with first faults that strike
where the data file is written or the log was read (seed 27).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLASSES = ("break-lock", "s3-lost-reply")
MOST_SECONDS = 240


def soak(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soak", "--engine", "store", *arguments, "--output", str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)


def test_a_short_soak_finds_no_violation_and_says_what_it_did(tmp_path: Path) -> None:
    done = soak(
        tmp_path, "--writers", "2", "--commits", "8", "--faults", ",".join(CLASSES), "--gap", "2", "--seed", "1",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["engine"], found["seed"], found["writers"]) == ("store", 1, 2)
    assert found["violations"] == 0
    assert found["acknowledged"] >= 8
    assert set(found["faults"]) == set(CLASSES)
    assert found["did_not_strike"] == []
    assert json.loads((tmp_path / "verdict.json").read_text()) == found
    assert (tmp_path / "timeline.png").stat().st_size > 0


def test_negative_control_without_the_guard_it_fails_and_prints_the_piece_of_history(tmp_path: Path) -> None:
    done = soak(
        tmp_path, "--writers", "2", "--commits", "8", "--faults", "pause-both", "--gap", "2", "--seed", "27",
        "--without", "guard",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "I5: a hold commits nothing that a later holder, who has read already, did not see. Violations:" in done.stdout
    )
    # The hold that was overtaken, and the one that had read before its commit.
    for word in ("holding", "read", "attempting", "stored"):
        assert f"\n    {word:<12} " in done.stdout
    assert "VIOLATIONS" in done.stdout
