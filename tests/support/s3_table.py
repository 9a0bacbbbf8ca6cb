"""A table on an S3 with faults, as it is in the end: what a reader that is not Spark's finds, and what was put."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from sluice.soak.s3_faults import FaultyS3
from tests.support.driver_process import ROOT, WAIT

_READER = ROOT / "tests" / "support" / "read_table.py"


def read(table: str) -> dict[str, Any]:
    """Read the table in another process: ids, and what ``sluice verify`` finds."""
    command = [sys.executable, str(_READER), table]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=WAIT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(table: str) -> list[int]:
    """Read the table, and make sure that nothing is wrong with it."""
    found = read(table)
    assert found["problems"] == []
    ids: list[int] = found["ids"]
    return ids


def stored(s3: FaultyS3, table: str) -> dict[int, int]:
    """Count the stored PUTs of each version."""
    folder = table.removeprefix("s3a://") + "/"
    counts: dict[int, int] = {}
    for put in s3.gate.puts:
        if put.key.startswith(folder) and put.status == 200:
            counts[put.version] = counts.get(put.version, 0) + 1
    return counts
