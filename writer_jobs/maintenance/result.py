"""What maintenance did to a table, and what it saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lock_manager import SluiceError
from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.health import FileTotals, TableHealth
from writer_jobs.maintenance.policy import Action, Policy

_NOTHING = FileTotals()


@dataclass(frozen=True, kw_only=True)
class Done:
    """One thing that was done, or tried.

    Attributes:
        action: what.
        partitions: values of those that it was done to, in one commit; empty: to the table.
        version: that it committed; None: it committed nothing.
        seconds: how long it took, waiting for other writers included.
        gave_way_seconds: how long of that it waited before it began, because other writers did.
        waited_seconds: how long of it it waited for the lock.
        held_seconds: how long of it the lock was held.
        removed: files that the newest version, the folder or the log has no more.
        added: files that it has instead.
        kept_for_pins: files that VACUUM would have removed, were it not for pins.
        kept_for_streams: likewise for streams that read the table.
        problem: why it was left for the next time; None: it is done.
        failure: what the problem is, if it is more than a lost race, of which there is nothing to mend.

    """

    action: Action
    partitions: tuple[Mapping[str, str | None], ...] = ()
    version: int | None = None
    seconds: float = 0.0
    gave_way_seconds: float = 0.0
    waited_seconds: float = 0.0
    held_seconds: float = 0.0
    removed: FileTotals = _NOTHING
    added: FileTotals = _NOTHING
    kept_for_pins: int = 0
    kept_for_streams: int = 0
    problem: str | None = None
    failure: SluiceError | None = None

    @property
    def work_seconds(self) -> float:
        """How long it worked, without any waiting."""
        return max(0.0, self.seconds - self.gave_way_seconds - self.waited_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "action": self.action.value,
            "partitions": [dict(values) for values in self.partitions],
            "version": self.version,
            "seconds": round(self.seconds, 3),
            "gave_way_seconds": round(self.gave_way_seconds, 3),
            "waited_seconds": round(self.waited_seconds, 3),
            "held_seconds": round(self.held_seconds, 3),
            "files_removed": self.removed.files,
            "bytes_removed": self.removed.size,
            "files_added": self.added.files,
            "bytes_added": self.added.size,
            "kept_for_pins": self.kept_for_pins,
            "kept_for_streams": self.kept_for_streams,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True)
class CareReport:
    """A table before and after it was looked after.

    Attributes:
        before: its health when it was begun.
        findings: of that, what is worth most first.
        done: in the order in which it was done.
        left: how many partitions, or actions on the table, the budget did not suffice for.
        after: its health at the end; None: nothing was done.
        findings_after: of that.

    """

    before: TableHealth
    findings: tuple[Finding, ...]
    done: tuple[Done, ...] = ()
    left: int = 0
    after: TableHealth | None = None
    findings_after: tuple[Finding, ...] = ()

    @classmethod
    def found(cls, health: TableHealth, policy: Policy) -> CareReport:
        """Make that of a table to which nothing was done yet.

        Args:
            health: of the table.
            policy: of the table.

        """
        return cls(before=health, findings=tuple(find(health, policy)))

    @property
    def saved(self) -> FileTotals:
        """How many files and bytes fewer there are: of the newest version, the folder and the log."""
        return FileTotals(
            sum(each.removed.files - each.added.files for each in self.done),
            sum(each.removed.size - each.added.size for each in self.done),
        )

    @property
    def failure(self) -> SluiceError | None:
        """The first thing that failed; None: nothing did."""
        return next((each.failure for each in self.done if each.failure is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; docs/maintenance.md describes them."""
        return {
            "table": self.before.table,
            "before": self.before.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "done": [each.to_json() for each in self.done],
            "left": self.left,
            "saved": {"files": self.saved.files, "bytes": self.saved.size},
            "after": None if self.after is None else self.after.to_json(),
            "findings_after": [finding.to_json() for finding in self.findings_after],
        }
