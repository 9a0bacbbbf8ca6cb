"""A long soak against the ZooKeeper of the tests, a container where Docker answers; only with ``-m soak``.

Seed 1; 4 writers; 300 commits; all faults that need no ensemble of the soak's own. Negative controls: test_controls.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 3600


def test_a_soak_finds_no_violation(zookeeper: Any, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "sluice", "soak", "--zookeeper", zookeeper.hosts, "--writers", "4", "--commits", "300",
        "--faults", "all", "--seed", "1", "--output", str(tmp_path), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["violations"] == 0
    assert found["acknowledged"] >= 300
    assert len(found["faults"]) >= 8
