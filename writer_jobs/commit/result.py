"""The result of one write."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lock_manager import Hold
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.execution import Execution
from writer_jobs.delta.table_log import Commit


@dataclass(frozen=True)
class CommitResult:
    """The result of one write.

    Attributes:
        table: Canonical URI under which the table was locked.
        version: Version of the table that this write made; None if nothing changed, or if the result is
            ``already_committed``.
        rows: Number of rows written; None if Delta does not count them, or the rows were written before.
        metrics: ``operationMetrics`` of the commit, as Delta records them: ``numDeletedRows`` and so on.
        already_committed: Whether the table had this transaction already, so that nothing was written now.
        commit_id: Id of the commit in the log; None if there is no commit.
        hold_id: Id of the hold under which the write was committed; None if no lock was acquired, because the table had
            this transaction already, nothing changed, or another writer committed the rows together with its own.
        token: Fencing token of that hold.
        requested_at: Time when the lock was requested, in seconds since the epoch.
        acquired_at: Time when the lock was acquired, or another writer committed the rows, in seconds since the epoch.
        released_at: Time just before the lock was released, in seconds since the epoch.

    """

    table: str
    version: int | None
    rows: int | None
    already_committed: bool
    commit_id: str | None
    hold_id: str | None
    token: int | None
    requested_at: float
    acquired_at: float
    released_at: float
    metrics: Mapping[str, str] = field(default_factory=dict)

    @property
    def waited_seconds(self) -> float:
        """Seconds between the request of the lock and its acquisition."""
        return self.acquired_at - self.requested_at

    @property
    def held_seconds(self) -> float:
        """Seconds between the acquisition of the lock and its release."""
        return self.released_at - self.acquired_at

    @classmethod
    def of(cls, execution: Execution, hold: Hold | None, commit: Commit | None) -> CommitResult:
        """Return the result of a write that has ended.

        Args:
            hold: Its hold, held or released; None if no lock was acquired.
            commit: Its commit, with ``NO_VERSION`` if nothing changed; None if the table had this transaction already.

        """
        version = None if commit is None or commit.version == NO_VERSION else commit.version
        now = time.time()
        return cls(
            table=execution.context.table,
            version=version,
            rows=commit.rows if commit is not None else None,
            already_committed=commit is None,
            commit_id=execution.write_id if version is not None else None,
            hold_id=hold.hold_id if hold is not None else None,
            token=hold.token if hold is not None else None,
            requested_at=hold.requested_at if hold is not None else now,
            acquired_at=hold.acquired_at if hold is not None else now,
            released_at=(hold.released_at or now) if hold is not None else now,
            metrics=commit.metrics if commit is not None else {},
        )

    @classmethod
    def of_member(
        cls, execution: Execution, commit: Commit | None, requested_at: float, waited_seconds: float
    ) -> CommitResult:
        """Return the result of a write that another holder has committed ``waited_seconds`` after the request."""
        committed_at = requested_at + waited_seconds
        result = cls.of(execution, None, commit)
        return replace(result, requested_at=requested_at, acquired_at=committed_at, released_at=committed_at)
