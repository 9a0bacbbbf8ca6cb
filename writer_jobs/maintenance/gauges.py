"""The metrics of the health of tables, and of their maintenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lock_manager.measurements import BYTES, SECONDS, Kind, Metric, record
from writer_jobs.maintenance.findings import RULES, Finding
from writer_jobs.maintenance.health import FileTotals, TableHealth
from writer_jobs.maintenance.result import MaintenanceReport


def _gauge(name: str, description: str, *more_labels: str, unit: str = "") -> Metric:
    return Metric(Kind.GAUGE, f"sluice_table_{name}", description, more_labels, unit)


_FILES = _gauge("files", "Files below the table's location.", "state")
_BYTES = _gauge("bytes", "Bytes below the table's location.", "state", unit=BYTES)
# The value of each gauge without further labels; None: unknown.
_FIGURES: Mapping[Metric, Callable[[TableHealth], float | None]] = {
    _gauge("small_files", "Data files below half of the target size."): lambda health: health.total.small.files,
    _gauge("rows", "Rows, by the statistics of the files."): lambda health: health.total.rows,
    _gauge("deleted_rows", "Deleted rows that are still stored in data files."): lambda health: (
        health.total.deleted_rows
    ),
    _gauge("partitions", "Partitions that have data files."): lambda health: len(health.partitions),
    _gauge("log_versions", "Versions in the log."): lambda health: health.log.versions,
    _gauge("log_bytes", "Bytes of the log.", unit=BYTES): lambda health: health.log.total.size,
    _gauge("versions_since_checkpoint", "Versions since the newest checkpoint."): lambda health: (
        health.log.since_checkpoint
    ),
    _gauge(
        "growth_bytes_per_day", "Bytes by which the table grew per day, mean of the last week.", unit=f"{BYTES}/d"
    ): lambda health: health.growth_per_day,
    _gauge("commits_per_day", "Versions committed per day, mean of the last week."): lambda health: (
        health.commits_per_day
    ),
    _gauge("measured_timestamp_seconds", "Time of the measurement.", unit=SECONDS): lambda health: (
        health.measured_at.timestamp()
    ),
    _gauge("next_pin_expiry_timestamp_seconds", "Time at which the next pin expires.", unit=SECONDS): lambda health: (
        None if health.next_pin_expiry is None else health.next_pin_expiry.timestamp()
    ),
}
_FINDING_WORTH = _gauge("finding_worth", "Estimated savings of the repair, in files.", "code")
_ACTIONS = Metric(
    Kind.COUNTER, "sluice_maintenance_actions_total", "Maintenance actions, by outcome.", ("action", "outcome")
)
_ACTION_SECONDS = Metric(
    Kind.COUNTER, "sluice_maintenance_seconds_total", "Seconds of maintenance actions.", ("action",), SECONDS
)
_SAVED_FILES = Metric(
    Kind.COUNTER,
    "sluice_maintenance_saved_files_total",
    "Files removed by maintenance, minus files added.",
    ("action",),
)

#: Every metric of this module.
HEALTH_METRICS = (_FILES, _BYTES, *_FIGURES, _FINDING_WORTH, _ACTIONS, _ACTION_SECONDS, _SAVED_FILES)

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


def record_health(health: TableHealth, findings: Sequence[Finding]) -> None:
    """Record the health and the findings of a table."""
    for state, totals_of in _STATES.items():
        totals = totals_of(health)
        record(_FILES, totals.files, health.table, state)
        record(_BYTES, totals.size, health.table, state)
    for metric, figure_of in _FIGURES.items():
        figure = figure_of(health)
        # An unknown figure becomes NaN, because the gauge would otherwise keep an earlier figure.
        record(metric, math.nan if figure is None else figure, health.table)
    worth = {finding.code: finding.worth for finding in findings}
    for code in RULES:
        # A finding without an action has worth 0. Its gauge must still differ from "no such finding".
        record(_FINDING_WORTH, max(worth[code], 1.0) if code in worth else 0.0, health.table, code)


def record_maintenance(report: MaintenanceReport) -> None:
    """Count the results of maintenance of a table."""
    for result in report.done:
        action, table = result.action.value, report.before.table
        record(_ACTIONS, 1, table, action, "done" if result.problem is None else "given_up")
        record(_ACTION_SECONDS, result.seconds, table, action)
        record(_SAVED_FILES, max(0, result.removed.files - result.added.files), table, action)
