"""The health of tables as metrics for Prometheus, by ``table``.

==========================================  ========  ==============================================================
name                                        kind      labels beside ``table``
==========================================  ========  ==============================================================
``sluice_table_files``                      gauge     ``state``: ``live``, ``removed``, ``expired``, ``kept_for_pins``,
                                                      ``kept_for_streams``, ``uncommitted``, ``orphan``
``sluice_table_bytes``                      gauge     ``state``: likewise
``sluice_table_small_files``                gauge
``sluice_table_rows``                       gauge
``sluice_table_deleted_rows``               gauge
``sluice_table_partitions``                 gauge
``sluice_table_log_versions``               gauge
``sluice_table_log_bytes``                  gauge
``sluice_table_versions_since_checkpoint``  gauge
``sluice_table_growth_bytes_per_day``       gauge
``sluice_table_commits_per_day``            gauge
``sluice_table_finding_worth``              gauge     ``code``: see docs/maintenance.md; 0: it is mended
``sluice_table_measured_timestamp_seconds`` gauge
``sluice_maintenance_actions_total``        counter   ``action``; ``outcome``: ``done``, ``given_up``
``sluice_maintenance_seconds_total``        counter   ``action``
``sluice_maintenance_saved_files_total``    counter   ``action``
==========================================  ========  ==============================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from writer_jobs.maintenance.findings import RULES, Finding
from writer_jobs.maintenance.health import TableHealth
from writer_jobs.maintenance.result import CareReport

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class HealthGauges:
    """The metrics of tables' health; needs ``prometheus-client``, as :mod:`lock_manager.metrics` does.

    Args:
        registry: to keep them in.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge  # noqa: PLC0415 (an optional extra)

        def made(kind: Any, name: str, says: str, *labels: str) -> Any:
            return kind(name, says, ("table", *labels), registry=registry)

        self._files = made(Gauge, "sluice_table_files", "Files below the table's location.", "state")
        self._bytes = made(Gauge, "sluice_table_bytes", "Bytes below the table's location.", "state")
        self._figures = {
            name: made(Gauge, f"sluice_table_{name}", says)
            for name, says in {
                "small_files": "Data files below half of the target size.",
                "rows": "Rows, as far as statistics tell.",
                "deleted_rows": "Deleted rows that are still in data files.",
                "partitions": "Partitions that have data files.",
                "log_versions": "Versions in the log.",
                "log_bytes": "Bytes of the log.",
                "versions_since_checkpoint": "Versions since the newest checkpoint.",
                "growth_bytes_per_day": "Bytes by which the table grew, by day.",
                "commits_per_day": "Versions that the table got, by day.",
                "measured_timestamp_seconds": "When the table was looked at.",
            }.items()
        }
        self._findings = made(Gauge, "sluice_table_finding_worth", "Files that mending it saves.", "code")
        self._actions = made(
            Counter, "sluice_maintenance_actions", "What maintenance did, or gave up.", "action", "outcome"
        )
        self._seconds = made(Counter, "sluice_maintenance_seconds", "Seconds that maintenance took.", "action")
        self._saved = made(Counter, "sluice_maintenance_saved_files", "Files that maintenance saved.", "action")

    def show(self, health: TableHealth, findings: Sequence[Finding]) -> None:
        """Set the gauges of a table to how it was found."""
        folder, total = health.folder, health.total
        states = {
            "live": total.total,
            "removed": folder.removed,
            "expired": folder.expired,
            "kept_for_pins": folder.kept_for_pins,
            "kept_for_streams": folder.kept_for_streams,
            "uncommitted": folder.uncommitted,
            "orphan": folder.orphans,
        }
        for state, each in states.items():
            self._files.labels(health.table, state).set(each.files)
            self._bytes.labels(health.table, state).set(each.size)
        figures = {
            "small_files": total.small.files,
            "rows": total.rows,
            "deleted_rows": total.deleted_rows,
            "partitions": len(health.partitions),
            "log_versions": health.log.versions,
            "log_bytes": health.log.total.size,
            "versions_since_checkpoint": health.log.since_checkpoint,
            "growth_bytes_per_day": health.growth_per_day,
            "commits_per_day": health.commits_per_day,
            "measured_timestamp_seconds": health.measured_at.timestamp(),
        }
        for name, value in figures.items():
            # What is not known is NaN, for a gauge that was set once would keep its value.
            self._figures[name].labels(health.table).set(float("nan") if value is None else value)
        found = {finding.code: finding.worth for finding in findings}
        for code in RULES:
            # A finding that no job can mend is worth nothing by its own measure, and still there.
            self._findings.labels(health.table, code).set(max(found[code], 1.0) if code in found else 0.0)

    def count(self, report: CareReport) -> None:
        """Count what was done to a table."""
        for each in report.done:
            action, table = each.action.value, report.before.table
            self._actions.labels(table, action, "done" if each.problem is None else "given_up").inc()
            self._seconds.labels(table, action).inc(each.seconds)
            self._saved.labels(table, action).inc(max(0, each.removed.files - each.added.files))
