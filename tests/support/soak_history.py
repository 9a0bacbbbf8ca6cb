"""The evidence of a soak without violations. Tests change it."""

from __future__ import annotations

from typing import Any

from lock_manager.table_records.commit_stamp import CommitStamp
from sluice.audit.log_files import LogCommit
from soak.evidence import Evidence, TableState
from soak.s3_faults import Put

TABLE = "s3a://lake/soak-0"


def event(name: str, at: float, /, **fields: Any) -> dict[str, Any]:
    """Return an event of the history, ``at`` seconds after the start."""
    return {"event": name, "monotonic": at, "wall": at, "table": TABLE, **fields}


def transaction(version: int, token: int, at: float, worker: str) -> list[dict[str, Any]]:
    """Return the events of one commit."""
    writer: dict[str, Any] = {"worker": worker, "incarnation": int(worker[-1])}
    holder = {**writer, "token": token}
    write = {**holder, "version": version, "txn": f"t{version}", "ids": [10 * version, 10 * version + 1]}
    return [
        event("waiting", at, **writer),
        event("holding", at + 0.1, **holder),
        event("read", at + 0.2, **{**holder, "version": version - 1}),
        event("attempting", at + 0.3, **write),
        event("stored", at + 0.4, **write),
        event("released", at + 0.5, **holder),
        event("acknowledged", at + 0.5, **write),
    ]


def commit(version: int, token: int, txn: str | None = None) -> LogCommit:
    stamp = CommitStamp(f"c{version}", f"hold-{token}", "one", {"t": token}, {}, 0.0)
    return LogCommit(version=version, engine="sluice-soak", txn_id=txn or f"t{version}", stamp=stamp)


def put(version: int, digest: str, txn: str) -> Put:
    return Put(f"lake/soak-0/_delta_log/{version:020}.json", version, "writer-1", txn, 200, digest)


def sound_evidence() -> Evidence:
    history = [
        *transaction(0, 5, 0.0, "writer-1"),
        *transaction(1, 7, 1.0, "writer-2"),
        *transaction(2, 9, 2.0, "writer-1"),
        event("queue", 59.0, left=[]),
        event("finished", 59.9, worker="writer-1", incarnation=1),
        event("ended", 60.0, worker="writer-1", incarnation=1),
    ]
    state = TableState(
        commits=[commit(0, 5), commit(1, 7), commit(2, 9)],
        versions=[0, 1, 2],
        row_ids=[0, 1, 10, 11, 20, 21],
        history_versions=[0, 1, 2],
    )
    puts = [put(version, f"d{version}", f"t{version}") for version in range(3)]
    return Evidence(history=history, tables={TABLE: state}, puts=puts, session_seconds=3.0, tick_seconds=0.5)
