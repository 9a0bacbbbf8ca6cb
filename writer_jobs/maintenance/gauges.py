"""Prometheus metrics of the health of tables, by ``table``; docs/operate.md lists their names and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from writer_jobs.maintenance.findings import RULES, Finding
from writer_jobs.maintenance.health import FileTotals, TableHealth
from writer_jobs.maintenance.result import MaintenanceReport

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


# Name after ``sluice_table_``, description and value of the gauges without further labels; None: unknown.
_FIGURES: Mapping[str, tuple[str, Callable[[TableHealth], float | None]]] = {
    "small_files": ("Data files below half of the target size.", lambda health: health.total.small.files),
    "rows": ("Rows, by the statistics of the files.", lambda health: health.total.rows),
    "deleted_rows": ("Deleted rows that are still stored in data files.", lambda health: health.total.deleted_rows),
    "partitions": ("Partitions that have data files.", lambda health: len(health.partitions)),
    "log_versions": ("Versions in the log.", lambda health: health.log.versions),
    "log_bytes": ("Bytes of the log.", lambda health: health.log.total.size),
    "versions_since_checkpoint": ("Versions since the newest checkpoint.", lambda health: health.log.since_checkpoint),
    "growth_bytes_per_day": (
        "Bytes by which the table grew per day, mean of the last week.",
        lambda health: health.growth_per_day,
    ),
    "commits_per_day": ("Versions committed per day, mean of the last week.", lambda health: health.commits_per_day),
    "measured_timestamp_seconds": ("Time of the measurement.", lambda health: health.measured_at.timestamp()),
}
# Value of the label ``state``, and the files in that state.
_STATES: Mapping[str, Callable[[TableHealth], FileTotals]] = {
    "live": lambda health: health.total.total,
    "removed": lambda health: health.folder.removed,
    "expired": lambda health: health.folder.expired,
    "kept_for_pins": lambda health: health.folder.kept_for_pins,
    "kept_for_streams": lambda health: health.folder.kept_for_streams,
    "uncommitted": lambda health: health.folder.uncommitted,
    "orphan": lambda health: health.folder.orphans,
}


class HealthGauges:
    """The metrics of tables' health; needs ``prometheus-client``, as :mod:`lock_manager.metrics` does.

    Args:
        registry: Registry of the metrics.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge  # noqa: PLC0415 (an optional extra)

        def register(metric_class: Any, name: str, description: str, *labels: str) -> Any:
            return metric_class(name, description, ("table", *labels), registry=registry)

        self._files = register(Gauge, "sluice_table_files", "Files below the table's location.", "state")
        self._bytes = register(Gauge, "sluice_table_bytes", "Bytes below the table's location.", "state")
        self._figures = {
            name: register(Gauge, f"sluice_table_{name}", description) for name, (description, _) in _FIGURES.items()
        }
        self._findings = register(
            Gauge,
            "sluice_table_finding_worth",
            "Estimated savings of the repair, in files.",
            "code",
        )
        self._actions = register(
            Counter, "sluice_maintenance_actions", "Maintenance actions, by outcome.", "action", "outcome"
        )
        self._seconds = register(Counter, "sluice_maintenance_seconds", "Seconds of maintenance actions.", "action")
        self._saved = register(
            Counter, "sluice_maintenance_saved_files", "Files removed by maintenance, minus files added.", "action"
        )

    def update(self, health: TableHealth, findings: Sequence[Finding]) -> None:
        """Set the gauges of a table to its health and findings."""
        for state, totals_of in _STATES.items():
            totals = totals_of(health)
            self._files.labels(health.table, state).set(totals.files)
            self._bytes.labels(health.table, state).set(totals.size)
        for name, (_, figure_of) in _FIGURES.items():
            figure = figure_of(health)
            # An unknown figure becomes NaN, because the gauge would otherwise keep an earlier figure.
            self._figures[name].labels(health.table).set(float("nan") if figure is None else figure)
        worth = {finding.code: finding.worth for finding in findings}
        for code in RULES:
            # A finding without an action has worth 0. Its gauge must still differ from "no such finding".
            self._findings.labels(health.table, code).set(max(worth[code], 1.0) if code in worth else 0.0)

    def count(self, report: MaintenanceReport) -> None:
        """Count the results of maintenance of a table."""
        for result in report.done:
            action, table = result.action.value, report.before.table
            self._actions.labels(table, action, "done" if result.problem is None else "given_up").inc()
            self._seconds.labels(table, action).inc(result.seconds)
            self._saved.labels(table, action).inc(max(0, result.removed.files - result.added.files))
