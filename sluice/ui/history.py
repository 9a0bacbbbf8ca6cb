"""The last hour of a table: its operations, from the queue entries that were seen and from the commits in its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.times import time_of
from sluice.audit.log_files import LogCommit

HISTORY_SECONDS = 3600.0
"""Length of the history."""

_MAX_OPERATIONS = 2000


@dataclass
class Operation:
    """A hold, a request that became none, or a commit in another writer's version.

    All times are seconds since the epoch, by the clock of the writer or of the coordinator.

    Attributes:
        key: Id of the hold or request; for a commit in another writer's version its commit id.
        job, host, pid: As the writer reports them; None if it does not.
        begun_at: When the write began; None if it is not known.
        requested_at: When the lock was requested.
        acquired_at: When the lock was acquired; None if it was not.
        ended_at: When the entry left the queue, or the time of the last commit; None while it is in the queue.
        versions: Versions that it committed.

    """

    key: str
    job: str | None = None
    host: str | None = None
    pid: int | None = None
    begun_at: float | None = None
    requested_at: float | None = None
    acquired_at: float | None = None
    ended_at: float | None = None
    versions: list[int] = field(default_factory=list)

    @property
    def writer(self) -> str:
        """Name of the writer for people."""
        return writer_name(self.job, self.host, self.pid)

    @property
    def started_at(self) -> float:
        """The earliest known time."""
        times = (self.begun_at, self.requested_at, self.acquired_at, self.ended_at)
        return min((time for time in times if time is not None), default=0.0)


def writer_name(job: str | None, host: str | None, pid: int | None) -> str:
    """Return the name of a writer for people: its job and its process, as far as they are known."""
    process = " ".join(filter(None, [host, None if pid is None else f"pid {pid}"]))
    return ", ".join(filter(None, [job, process])) or "unknown writer"


def writer_of(entry: QueueEntry) -> str:
    """Return the name of the writer of a queue entry."""
    return writer_name(_text(entry.data, "job"), _text(entry.data, "host"), _number(entry.data, "pid"))


class TableHistory:
    """The operations of one table."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._open: set[str] = set()

    def operations(self, now: float) -> list[Operation]:
        """Return copies of the operations of the last hour, by their start."""
        return [replace(operation, versions=list(operation.versions)) for operation in self._recent(now)]

    def acquired_at(self, key: str) -> float | None:
        """Return when a hold began; None if it is not known."""
        operation = self._operations.get(key)
        return None if operation is None else operation.acquired_at

    def _recent(self, now: float) -> list[Operation]:
        operations = (
            operation for operation in self._operations.values()
            if operation.ended_at is None or operation.ended_at >= now - HISTORY_SECONDS
        )  # fmt: skip
        return sorted(operations, key=lambda operation: operation.started_at)

    def observe(self, locks: TableLocks, now: float) -> None:
        """Add the current queue of the table."""
        keys = {entry.hold_id for entry in locks.entries}
        for key in self._open - keys:
            operation = self._operations.get(key)
            if operation is not None and operation.ended_at is None:
                operation.ended_at = now
        for entry in locks.entries:
            self._observe_entry(entry, now)
        self._open = keys
        self._forget(now)

    def _observe_entry(self, entry: QueueEntry, now: float) -> None:
        operation = self._operations.setdefault(entry.hold_id, Operation(entry.hold_id))
        data = entry.data
        operation.job, operation.host = _text(data, "job"), _text(data, "host")
        operation.pid = _number(data, "pid")
        operation.requested_at = time_of(data.get("requested_at")) or time_of(entry.created_at)
        if entry.holds:
            # A hold stores its time after its first second.
            operation.acquired_at = time_of(data.get("acquired_at")) or operation.acquired_at or now

    def add_commits(self, commits: Iterable[LogCommit], now: float) -> None:
        """Add commits of the log."""
        for commit in commits:
            committed_at = time_of(commit.timestamp)
            if committed_at is None or committed_at < now - HISTORY_SECONDS:
                continue
            for operation in _operations_of(commit, committed_at):
                stored = self._operations.setdefault(operation.key, operation)
                stored.job = stored.job or operation.job
                stored.begun_at = operation.begun_at or stored.begun_at
                stored.requested_at = operation.requested_at or stored.requested_at
                stored.acquired_at = operation.acquired_at or stored.acquired_at
                if commit.version not in stored.versions:
                    stored.versions.append(commit.version)
                if stored.key not in self._open:
                    stored.ended_at = max(committed_at, stored.ended_at or 0.0)
        self._forget(now)

    def _forget(self, now: float) -> None:
        self._operations = {operation.key: operation for operation in self._recent(now)[-_MAX_OPERATIONS:]}


def _operations_of(commit: LogCommit, committed_at: float) -> Iterator[Operation]:
    """Yield the hold of a commit, and the writers of a group commit that did not hold the lock."""
    for index, write in enumerate(commit.writes):
        operation = Operation(
            f"version {commit.version}",
            begun_at=time_of(write.begun_at),
            ended_at=committed_at,
            versions=[commit.version],
        )
        if (stamp := write.stamp) is not None:
            operation.key, operation.job = stamp.commit_id, stamp.job if isinstance(stamp.job, str) else None
            if not index:
                operation.key = stamp.hold
                operation.requested_at, operation.acquired_at = time_of(stamp.requested_at), time_of(stamp.acquired_at)
        yield operation


def _text(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    return value if isinstance(value, str) and value else None


def _number(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
