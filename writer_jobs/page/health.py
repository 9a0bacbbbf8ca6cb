"""The health of tables as a page: one HTML file with charts that needs no server and loads no other resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from writer_jobs.maintenance.findings import Finding, size_text
from writer_jobs.maintenance.health import DAY_SECONDS, FileTotals, TableHealth, partition_name, share
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.page.charts import bars, histogram
from writer_jobs.page.elements import Html, document, element, figures, join, table

_HOUR = 3600
_SHOWN_BARS = 20
_SHOWN_PARTITIONS = 100


def page(reports: Sequence[MaintenanceReport], errors: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the health page of some tables as one HTML file without scripts and external resources.

    ``errors`` has the error message of each table whose maintenance failed, by the table's name.
    """
    title = "Storage health" if len(reports) != 1 else f"Storage health of {reports[0].before.table}"
    sections = (
        element("section", element("h2", newest_health(report).table, id=f"table-{index}"), *health_parts(report))
        for index, report in enumerate(reports)
    )
    return document(title, element("h1", title), _overview(reports), _errors(errors), *sections)


def _overview(reports: Sequence[MaintenanceReport]) -> Html | None:
    if len(reports) == 1:
        return None
    if not reports:
        return element("p", "No table was measured.")
    rows = []
    for index, report in enumerate(reports):
        health = newest_health(report)
        rows.append(
            [
                element("a", health.table, href=f"#table-{index}"),
                f"{health.version:,}",
                f"{health.total.total.files:,}",
                size_text(health.total.total.size),
                f"{health.small_share:.0%}",
                f"{health.total.deleted_share:.1%}",
                f"{health.folder.orphans.files:,}",
                f"{len(newest_findings(report)):,}",
                _saved(report),
            ]
        )
    titles = ("table", "version", "files", "size", "small", "deleted rows", "orphans", "findings", "saved")
    return table("overview", titles, rows)


def newest_health(report: MaintenanceReport) -> TableHealth:
    """Return the health after the work, or before it if the table was not measured again."""
    return report.after or report.before


def newest_findings(report: MaintenanceReport) -> Sequence[Finding]:
    """Return the findings of :func:`newest_health`."""
    return report.findings_after if report.after else report.findings


def _errors(errors: Mapping[str, str]) -> Html | None:
    if not errors:
        return None
    entries = (element("li", element("code", name), ": ", error) for name, error in errors.items())
    return join(element("h3", "Failed"), element("ul", *entries, class_="findings failed"))


def health_parts(report: MaintenanceReport) -> list[Html]:
    """Return the parts of a table's health below its heading."""
    health = newest_health(report)
    sizes = element("div", element("h3", "Sizes of data files"), _histograms(report))
    states = element("div", element("h3", "Storage by file state"), _states(health))
    parts = (
        _measured_at(report, health),
        _figures(health),
        element("h3", "Findings"),
        _findings(newest_findings(report)),
        _results(report),
        element("div", sizes, states, class_="two"),
        _partitions(health),
    )
    return [part for part in parts if part is not None]


def _measured_at(report: MaintenanceReport, health: TableHealth) -> Html:
    after_work = ", after maintenance" if report.after else ""
    return element(
        "p",
        f"Version {health.version:,} of {_moment(health.committed_at)}, measured on "
        f"{_moment(health.measured_at)} in {health.measuring_seconds:.1f} s{after_work}.",
    )


def _figures(health: TableHealth) -> Html:
    log, folder, total = health.log, health.folder, health.total
    checkpoint = "none"
    if log.checkpoint_version is not None and log.checkpointed_at is not None:
        age = (health.measured_at - log.checkpointed_at).total_seconds()
        checkpoint = f"version {log.checkpoint_version:,}, {_span(age)} old"
    unknown = "unknown"
    values = {
        "data files": f"{total.total.files:,}, {size_text(total.total.size)}",
        f"small files (below {size_text(health.target_file_size // 2)})": f"{total.small.files:,}, "
        f"{health.small_share:.0%}",
        "rows": unknown if total.rows is None else f"{total.rows:,}",
        "deleted rows in files": f"{total.deleted_rows:,}, {total.deleted_share:.1%}",
        "orphans": _totals(folder.orphans),
        "partitions": f"{len(health.partitions):,}" if health.partition_columns else "not partitioned",
        "growth per day": unknown if health.growth_per_day is None else size_text(health.growth_per_day),
        "versions per day": unknown if health.commits_per_day is None else f"{health.commits_per_day:,.1f}",
        "log": f"{log.versions:,} versions, {size_text(log.total.size)}",
        "newest checkpoint": f"{checkpoint}; {log.since_checkpoint:,} versions since",
        "versions to clean up": f"{log.expired_versions:,}, older than {log.retention_seconds / DAY_SECONDS:.1f} days",
        "transactions": f"{log.transactions:,}, {log.recent_transactions:,} of the last week",
        "retention of removed files": f"{folder.retention_seconds / DAY_SECONDS:.1f} days",
        "pins": ", ".join(health.pins) or "none",
    }
    if health.zorder_by:
        values["not in Z-order"] = _totals(total.unordered)
    if health.clustering_columns:
        values["not clustered"] = _totals(total.unclustered)
    return figures(values.items())


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return element("p", "No findings.")
    entries = []
    for finding in findings:
        command = None
        if finding.action is not None:
            command = join(" (", element("code", f"maintain.py --{finding.action}"), ")")
        advice = element("span", finding.advice, command, class_="quiet")
        entries.append(element("li", element("code", finding.code), f" {finding.message}.", element("br"), advice))
    return element("ul", *entries, class_="findings")


def _results(report: MaintenanceReport) -> Html | None:
    if not report.done:
        return None
    rows = [
        [
            result.action,
            ", ".join(map(partition_name, result.partitions)) or "the table",
            "" if result.version is None else f"{result.version:,}",
            f"{result.seconds:.1f} s",
            f"{result.held_seconds:.2f} s",
            _totals(result.removed),
            _totals(result.added),
            result.problem or "done",
        ]
        for result in report.done
    ]
    titles = ("action", "partitions", "version", "took", "held the lock", "removed", "added", "outcome")
    left_note = f" {report.left:,} units of work were left for the next run." if report.left else ""
    return join(
        element("h3", "Actions"), element("p", f"Saved: {_saved(report)}.{left_note}"), table("done", titles, rows)
    )


def _histograms(report: MaintenanceReport) -> Html:
    before, after = report.before.total.histogram, report.after
    if after is None:
        return histogram("Number of files by size", before)
    return histogram("Number of files by size, before and after", before, after.total.histogram)


def _states(health: TableHealth) -> Html:
    folder = health.folder
    states = {
        "newest version": health.total.total,
        "removed, still kept": folder.removed,
        "removed, no longer kept": folder.expired,
        "kept for pins": folder.kept_for_pins,
        "kept for streams": folder.kept_for_streams,
        "not committed, young": folder.uncommitted,
        "orphans": folder.orphans,
        "log": health.log.total,
    }
    return bars(
        "Bytes below the table's location",
        [(name, total.size, f"{size_text(total.size)} in {total.files:,} files") for name, total in states.items()],
    )


def _partitions(health: TableHealth) -> Html | None:
    if not health.partition_columns:
        return None
    sorted_parts = sorted(health.partitions, key=lambda part: (-part.small.files, -part.total.files, part.name))
    chart = bars(
        "Small files by partition",
        [(part.name, part.small.files, f"{part.small.files:,}") for part in sorted_parts[:_SHOWN_BARS]],
    )
    rows = [
        [
            part.name,
            f"{part.total.files:,}",
            size_text(part.total.size),
            f"{share(part.small.files, part.total.files):.0%}",
            f"{part.deleted_share:.1%}",
            f"{share(part.unordered.size, part.total.size):.0%}" if health.zorder_by else "",
        ]
        for part in sorted_parts[:_SHOWN_PARTITIONS]
    ]
    titles = ("partition", "files", "size", "small", "deleted rows", "not in Z-order" if health.zorder_by else "")
    hidden_count = len(sorted_parts) - _SHOWN_PARTITIONS
    note = element("p", f"{hidden_count:,} more partitions are in the JSON report.") if hidden_count > 0 else None
    return join(element("h3", "Partitions with the most small files"), chart, table("partitions", titles, rows), note)


def _saved(report: MaintenanceReport) -> str:
    if not report.done:
        return "nothing"
    return f"{report.saved.files:,} files, {size_text(report.saved.size)}"


def _totals(total: FileTotals) -> str:
    return f"{total.files:,}, {size_text(total.size)}" if total.files else "none"


def _span(seconds: float) -> str:
    return f"{seconds / DAY_SECONDS:.1f} days" if seconds >= DAY_SECONDS else f"{max(0.0, seconds) / _HOUR:.1f} hours"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
