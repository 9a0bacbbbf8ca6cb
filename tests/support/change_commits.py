"""Read the commits of a table with changes from its log, without Delta."""

from __future__ import annotations

import json
from pathlib import Path


def batches_in(table: Path) -> list[int | None]:
    """Return the batch number of each commit of changes, oldest first."""
    batches: list[int | None] = []
    for file in sorted(table.glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        if any("changes" in action.get("commitInfo", {}).get("sluice", {}) for action in actions):
            batches.append(next((action["txn"]["version"] for action in actions if "txn" in action), None))
    return batches
