"""Long soaks, only with ``-m soak``.

1. Three ZooKeeper containers, or embedded servers without Docker: seed 1, 4 writers, 300 commits, all faults.
2. Spark drivers, through the gate and with the lock over the write: seed 4, 4 writers, 100 commits, all faults.
3. All jobs at once, for five minutes.
4. Every process fault at every point, one after the other: seed 1, 2 writers, 42 faults.

The negative controls are in test_controls.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soak.fault_context import OFFERS
from soak.faults import CLASSES
from soak.pairs import GROUP
from soak.run import Soak
from soak.verdict import judge

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 3600
PROCESS_FAULTS = [f"{action}-{process}" for action in ("pause", "kill") for process in ("python", "jvm", "both")]


def soak(output: Path, *arguments: str) -> dict[str, Any]:
    """Run a soak of four writers with all faults from the command line; return its verdict."""
    command = [
        sys.executable, "-m", "soak", "--writers", "4", "--faults", "all", *arguments,
        "--output", str(output), "--json",
    ]  # fmt: skip
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=False)
    sys.stdout.write(process.stdout)
    assert process.returncode == 0
    verdict: dict[str, Any] = json.loads(process.stdout)
    assert verdict["violations"] == 0
    return verdict


def test_a_soak_has_no_violation(zookeeper: Any, tmp_path: Path) -> None:
    containers = ("--zookeeper-image", zookeeper.image) if zookeeper.image else ()
    verdict = soak(tmp_path, *containers, "--commits", "300", "--seed", "1")
    assert verdict["acknowledged"] >= 300
    assert len(verdict["faults"]) >= 20


@pytest.mark.parametrize("hold", ["commit", "write"])
def test_a_soak_of_spark_drivers_has_no_violation(hold: str, tmp_path: Path) -> None:
    verdict = soak(tmp_path, "--engine", "spark", "--hold", hold, "--commits", "100", "--seed", "4")
    assert verdict["engine"] == "spark"
    assert verdict["acknowledged"] >= 100
    assert len(verdict["faults"]) >= 10
    assert [effects for effects in verdict["pairs_by_effect"] if effects.startswith("unfinished intent, ")]
    groups = verdict["groups"]
    if hold == "write":
        assert groups is None
        return
    assert groups["members"] >= groups["versions"] >= 5
    assert groups["light"] >= groups["versions"]
    assert [pair for pair in verdict["pair_shares"] if pair["meeting"] == GROUP and pair["times"]]
    assert sum(times["named"] for times in groups["faults"].values()) > 0


def test_all_jobs_at_once_fail_only_without_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soak", "--jobs", "mixed", "--minutes", "5", "--output", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, timeout=TIMEOUT_SECONDS, check=False)
    assert process.returncode == 0
    locked, stock = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8")).values()
    assert (locked["missing"], locked["surplus"], locked["failed"], locked["all_applied"]) == (0, 0, 0, True)
    assert locked["killed"] > 2
    assert locked["retention_errors"] == {"pinned": 0, "read": 0, "orphans": 0}
    assert min(locked["vacuumed"], locked["kept_for_pins"], locked["kept_for_streams"]) > 0
    # Partitions are compacted although writers change them continuously.
    assert locked["compactions"] > 0
    # The control: jobs fail because of conflicts.
    assert stock["failed"] > 5


def points(name: str) -> list[str]:
    """Return the points of a class without that of group commits, which these writers do not make."""
    return [point for point in CLASSES[name].points if point != OFFERS]


def test_every_process_fault_at_every_point_breaks_no_promise(make_soak: Callable[..., Soak]) -> None:
    soak = make_soak()
    for name in PROCESS_FAULTS:
        for point in points(name):
            soak.run_fault(CLASSES[name].strike(soak.context, "writer-1", point), TIMEOUT_SECONDS)
    assert soak.progress.faults == {name: len(points(name)) for name in PROCESS_FAULTS}
    soak.finish()
    assert [str(violation) for violation in judge(soak.evidence())] == []
