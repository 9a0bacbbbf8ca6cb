"""What takes long, only with ``-m soak``: a soak against the ZooKeeper of the tests, and all that befalls a process.

The first is against three containers where Docker answers, else three embedded servers: seed 1; 4 writers; 300
commits; all faults. The second and third are of Spark drivers, through the gate and over the whole write: seed 4; 4
writers; 100 commits; all faults. The fourth is all jobs at once, for five minutes. The last is every process fault at
every point, one after the other: seed 1; 2 writers; 42 faults. Negative controls: test_controls.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soak.faults import CLASSES
from soak.run import Soak
from soak.verdict import judge

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 3600
PROCESS_FAULTS = [f"{what}-{which}" for what in ("pause", "kill") for which in ("python", "jvm", "both")]


def soak(output: Path, *arguments: str) -> dict[str, Any]:
    """Run a soak of four writers with all faults from the command line; return its verdict."""
    command = [
        sys.executable, "-m", "soak", "--writers", "4", "--faults", "all", *arguments,
        "--output", str(output), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=MOST_SECONDS, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["violations"] == 0
    return found


def test_a_soak_finds_no_violation(zookeeper: Any, tmp_path: Path) -> None:
    containers = ("--zookeeper-image", zookeeper.image) if zookeeper.image else ()
    found = soak(tmp_path, *containers, "--commits", "300", "--seed", "1")
    assert found["acknowledged"] >= 300
    assert len(found["faults"]) >= 20


@pytest.mark.parametrize("hold", ["commit", "write"])
def test_a_soak_of_spark_drivers_finds_no_violation(hold: str, tmp_path: Path) -> None:
    found = soak(tmp_path, "--engine", "spark", "--hold", hold, "--commits", "100", "--seed", "4")
    assert found["engine"] == "spark"
    assert found["acknowledged"] >= 100
    assert len(found["faults"]) >= 10
    assert [effects for effects in found["pairs_by_effect"] if effects.startswith("unfinished intent, ")]


def test_all_jobs_at_once_leave_what_they_were_fed_and_do_not_without_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soak", "--jobs", "mixed", "--minutes", "5", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0
    ours, stock = json.loads((tmp_path / "verdict.json").read_text(encoding="utf-8")).values()
    assert (ours["missing"], ours["surplus"], ours["failed"], ours["all_applied"]) == (0, 0, 0, True)
    assert ours["killed"] > 2
    assert ours["spared"] == {"pinned": 0, "read": 0, "orphans": 0}
    assert min(ours["vacuumed"], ours["kept_for_pins"], ours["kept_for_streams"]) > 0
    # Writers change every partition all the time, and it is compacted all the same.
    assert ours["compactions"] > 0
    # The control: rivals fail.
    assert stock["failed"] > 5


def test_every_process_fault_at_every_point_breaks_no_promise(make_soak: Callable[..., Soak]) -> None:
    soak = make_soak()
    for name in PROCESS_FAULTS:
        for point in CLASSES[name].points:
            soak.play(CLASSES[name].strike(soak.context, "writer-1", point), MOST_SECONDS)
    assert soak.progress.faults == {name: len(CLASSES[name].points) for name in PROCESS_FAULTS}
    soak.finish()
    assert [f"{each.invariant}: {each.sentence}" for each in judge(soak.evidence())] == []
