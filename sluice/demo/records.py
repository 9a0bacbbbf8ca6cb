"""Reads what the writers print, one JSON object per line, and adds it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sluice.audit.checks import Interval


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """A commit of which a writer was told that it succeeded. Times are seconds since the epoch, by its clock.

    Attributes:
        writer: number of the writer, from 1.
        commit_id: also in the commit's ``userMetadata``.
        rows: how many rows it appended.
        version: the table's version that it became, if the writer knows.
        requested_at: when the writer asked for the lock, or without one when it began.
        acquired_at: when it had the lock; None without one.
        released_at: when it gave the lock back, or without one when it was done.
        retries: how often it had to begin anew because others were faster.
        token: fencing token; None without the lock.

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
        """The hold under which it was made."""
        if self.acquired_at is None:
            return None
        return Interval(self.acquired_at, self.released_at, f"writer {self.writer}, commit {self.commit_id}")


class Phase(StrEnum):
    """What a writer is doing."""

    STARTING = "starting"
    BEGUN = "begun"
    HOLDING = "holding"
    WRITING = "writing"  # without a lock
    BETWEEN = "between"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Writer:
    """A writer, as far as its lines have told.

    Attributes:
        number: from 1.
        started_at: when its process was started.
        phase: what it does.
        since: since when.
        commits: what was acknowledged to it, in order.
        retried_at: when it had to begin anew, those of the commit under way included.
        ended_at: when its process ended; None while it runs.
        exit_code: of its process; None while it runs.

    """

    number: int
    started_at: float
    phase: Phase = Phase.STARTING
    since: float = field(init=False)
    commits: list[Acknowledged] = field(default_factory=list)
    retried_at: list[float] = field(default_factory=list)
    ended_at: float | None = None
    exit_code: int | None = None

    def __post_init__(self) -> None:
        self.since = self.started_at

    @property
    def rows(self) -> int:
        """Rows in its acknowledged commits."""
        return sum(commit.rows for commit in self.commits)

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.exit_code is None

    def apply(self, event: Mapping[str, Any], now: float) -> None:
        """Take in one line of the writer; lines of unknown kinds are left alone.

        Raises:
            KeyError: a line of a known kind without what belongs to it.

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
                self.commits.append(
                    Acknowledged(
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
                )

    def end(self, exit_code: int, now: float) -> None:
        """Note that its process ended."""
        self.exit_code, self.ended_at = exit_code, now
        self._enter(Phase.DONE if exit_code == 0 else Phase.FAILED, now)

    def _enter(self, phase: Phase, since: float) -> None:
        self.phase, self.since = phase, since
