"""The result of maintenance of a table: units of work, health before and after, and savings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lock_manager import SluiceError
from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.health import FileTotals, TableHealth
from writer_jobs.maintenance.policy import Action, Policy

_NO_FILES = FileTotals()


@dataclass(frozen=True, kw_only=True)
class UnitResult:
    """The result of one unit of work.

    Attributes:
        partitions: Values of the partitions that the commit rewrote; empty: the unit was about the table.
        version: Version of the unit's commit or checkpoint; None: it wrote neither.
        seconds: Seconds that the unit took, including all waiting.
        gave_way_seconds: Seconds of waiting until no writer waited for the table, before the unit started.
        waited_seconds: Seconds of waiting for the lock.
        held_seconds: Seconds between the acquisition and the release of the lock.
        removed: Files removed from the newest version, the table's folder or the log.
        added: Files that replace them.
        kept_for_pins: Number of files that VACUUM kept because a pin needs them.
        kept_for_streams: Number of other files that VACUUM kept because a stream that reads the table needs them.
        problem: Reason why the unit is left for the next run; None: it succeeded.
        failure: Error behind the problem; None if the unit succeeded or only lost a race, which needs no repair.

    """

    action: Action
    partitions: tuple[Mapping[str, str | None], ...] = ()
    version: int | None = None
    seconds: float = 0.0
    gave_way_seconds: float = 0.0
    waited_seconds: float = 0.0
    held_seconds: float = 0.0
    removed: FileTotals = _NO_FILES
    added: FileTotals = _NO_FILES
    kept_for_pins: int = 0
    kept_for_streams: int = 0
    problem: str | None = None
    failure: SluiceError | None = None

    @property
    def work_seconds(self) -> float:
        """Seconds of work, without any waiting."""
        return max(0.0, self.seconds - self.gave_way_seconds - self.waited_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
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
class MaintenanceReport:
    """The report on one table: its health before and after, and the results of all units of work.

    Attributes:
        before: Health before the first unit.
        findings: Findings before the first unit, by descending worth.
        done: Results, by the time at which the units ended.
        left: Number of units that were not executed, because the budget was spent or the work ended early.
        after: Health after the last unit; None: the table was not measured again.
        findings_after: Findings after the last unit.

    """

    before: TableHealth
    findings: tuple[Finding, ...]
    done: tuple[UnitResult, ...] = ()
    left: int = 0
    after: TableHealth | None = None
    findings_after: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, health: TableHealth, policy: Policy) -> MaintenanceReport:
        """Return the report on a table before any work."""
        return cls(before=health, findings=tuple(find(health, policy)))

    @property
    def saved(self) -> FileTotals:
        """Files and bytes saved in the newest version, the table's folder and the log."""
        return FileTotals(
            sum(result.removed.files - result.added.files for result in self.done),
            sum(result.removed.size - result.added.size for result in self.done),
        )

    @property
    def failure(self) -> SluiceError | None:
        """First failure; None: nothing failed."""
        return next((result.failure for result in self.done if result.failure is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; docs/maintenance.md describes them."""
        return {
            "table": self.before.table,
            "before": self.before.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "done": [result.to_json() for result in self.done],
            "left": self.left,
            "saved": {"files": self.saved.files, "bytes": self.saved.size},
            "after": None if self.after is None else self.after.to_json(),
            "findings_after": [finding.to_json() for finding in self.findings_after],
        }
