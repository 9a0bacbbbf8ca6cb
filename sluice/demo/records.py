"""The state of each writer of a demo, from the JSON lines that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sluice.audit.checks import Interval


@dataclass(frozen=True, kw_only=True)
class AcknowledgedCommit:
    """A commit that a writer reported as committed. Times are seconds since the epoch, by the writer's clock.

    Attributes:
        writer: Number of the writer, from 1.
        commit_id: Id of the commit. It is also in the commit in the log.
        rows: Number of rows that the commit appended.
        version: The table's version; None if the writer did not report it.
        requested_at: Time of the request for the lock, or without the lock the start of the write.
        acquired_at: Time at which the lock was acquired; None without the lock.
        released_at: Time at which the lock was released, or without the lock the end of the write.
        retries: Number of times that the write was repeated after a conflict.
        token: Fencing token; None without the lock.

    """

    writer: int
    commit_id: str
    rows: int
    requested_at: float
    released_at: float
    version: int | None = None
    acquired_at: float | None = None
    retries: int = 0
    token: int | None = None

    @property
    def hold(self) -> Interval | None:
        """The time of its hold; None without the lock."""
        if self.acquired_at is None:
            return None
        return Interval(self.acquired_at, self.released_at, f"writer {self.writer}, commit {self.commit_id}")


class Phase(StrEnum):
    """The state of a writer."""

    STARTING = "starting"  # before the first commit
    BEGUN = "begun"  # a commit has begun, and its lock is not held yet
    HOLDING = "holding"  # the lock is held
    WRITING = "writing"  # a write without the lock has begun
    BETWEEN = "between"  # after a commit, before the next one
    DONE = "done"
    FAILED = "failed"


@dataclass
class Writer:
    """The state of a writer, from the lines that it printed.

    Attributes:
        number: Number of the writer, from 1.
        started_at: Time at which its process was started.
        phase: Its current state.
        since: Time at which that state began.
        commits: The commits that it reported, in order.
        retried_at: Times at which it repeated a write after a conflict.
        ended_at: Time at which its process ended; None while it runs.
        exit_code: Exit code of its process; None while it runs.

    """

    number: int
    started_at: float
    phase: Phase = Phase.STARTING
    since: float = field(init=False)
    commits: list[AcknowledgedCommit] = field(default_factory=list)
    retried_at: list[float] = field(default_factory=list)
    ended_at: float | None = None
    exit_code: int | None = None

    def __post_init__(self) -> None:
        self.since = self.started_at

    @property
    def rows(self) -> int:
        """Number of rows in its acknowledged commits."""
        return sum(commit.rows for commit in self.commits)

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.exit_code is None

    def apply(self, event: Mapping[str, Any], now: float) -> None:
        """Update the state by a line that the writer printed. Ignore an unknown event.

        Raises:
            KeyError: The line lacks a field of its event.

        """
        match event.get("event"):
            case "begun":
                self._enter(Phase.BEGUN, event["begun_at"])
            case "holding":
                self._enter(Phase.HOLDING, event["acquired_at"])
            case "writing":
                self._enter(Phase.WRITING, event["requested_at"])
            case "retry":
                self.retried_at.append(event["at"])
            case "commit":
                self._enter(Phase.BETWEEN, now)
                commit = AcknowledgedCommit(
                    writer=self.number,
                    commit_id=event["commit_id"],
                    rows=event.get("rows") or 0,
                    version=event.get("version"),
                    requested_at=event["requested_at"],
                    acquired_at=event.get("acquired_at"),
                    released_at=event["released_at"],
                    retries=event.get("retries", 0),
                    token=event.get("token"),
                )
                self.commits.append(commit)

    def end(self, exit_code: int, now: float) -> None:
        """Record the end of its process."""
        self.exit_code, self.ended_at = exit_code, now
        self._enter(Phase.DONE if exit_code == 0 else Phase.FAILED, now)

    def _enter(self, phase: Phase, since: float) -> None:
        self.phase, self.since = phase, since
