"""The ``commitInfo`` of a version with the appends of several writers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HOLD = {
    "hold": "0123456789abcdef",
    "ensemble": "an-ensemble",
    "nodes": [{"key": "t", "mode": "exclusive", "token": 7}],
    "acquired_at": 1000.0,
    "attempt": "put",
}


def writer(commit_id: str, *, rows: int = 1, job: str | None = None, **note: Any) -> dict[str, Any]:
    """Return a writer's object in the stamp's ``group``; ``note`` are the records in its ``userMetadata``."""
    return {
        "sluice": {"commit_id": commit_id, **({} if job is None else {"job": job})},
        "operationMetrics": {"numFiles": "1", "numOutputRows": str(rows)},
        "operationParameters": {"mode": "Append"},
        "userMetadata": json.dumps({"sluice": {**note, "commit_id": commit_id}}) if note else None,
        "txnId": f"txn-{commit_id}",
        "timestamp": 1_005_000,
        "readVersion": 0,
    }


def group_info(*writers: Mapping[str, Any], hold: Mapping[str, Any] = HOLD) -> dict[str, Any]:
    """Return the ``commitInfo`` of a version with the appends of these writers, the holder first."""
    holder = writers[0]
    metrics = {
        name: str(sum(int(writer["operationMetrics"][name]) for writer in writers))
        for name in holder["operationMetrics"]
    }
    return {
        **holder,
        "operation": "WRITE",
        "operationMetrics": metrics,
        "isBlindAppend": True,
        "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        "sluice": {**hold, **holder["sluice"], "group": list(writers)},
    }
