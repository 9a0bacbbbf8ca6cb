"""The health page: one HTML file with charts that needs no server and loads no other resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from types import MappingProxyType

from writer_jobs.maintenance.findings import Finding, size_text
from writer_jobs.maintenance.health import DAY_SECONDS, FileTotals, TableHealth, partition_name, share
from writer_jobs.maintenance.pictures import bars, histogram
from writer_jobs.maintenance.result import MaintenanceReport

_HOUR = 3600
_SHOWN_BARS = 20
_SHOWN_PARTITIONS = 100

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --quiet: #5c6670; --paper: #fff; --line: #d8dde2; --bar: #2f6fb2;
  --after: #2e8b57; --warn: #b25e00; --panel: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --quiet: #9aa4ae; --paper: #14181c; --line: #333b43;
  --bar: #6aa7e8; --after: #5fc48a; --warn: #f0a04b; --panel: #1c2228; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; border-top: 2px solid var(--line);
  padding-top: 1rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, .quiet { color: var(--quiet); } a { color: var(--bar); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: normal; } th:first-child, td:first-child, td.text { text-align: left; overflow-wrap: anywhere; }
th { color: var(--quiet); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .5rem; margin: .5rem 0; }
dl div { background: var(--panel); border-radius: .4rem; padding: .5rem .7rem; } dt { color: var(--quiet);
  font-size: .85rem; } dd { margin: 0; font-size: 1.05rem; font-weight: 600; }
.findings { list-style: none; padding: 0; } .findings li { border-left: 4px solid var(--warn); background: var(--panel);
  padding: .5rem .8rem; margin: .5rem 0; } .findings code { font-weight: 700; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
svg { width: 100%; max-width: 36rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .after { fill: var(--after); } svg .track { fill: var(--panel); }
svg .quiet { fill: var(--quiet); }
@media print { body { max-width: none; } h2 { break-before: auto; } svg, li, dl { break-inside: avoid; } }
"""


def page(reports: Sequence[MaintenanceReport], errors: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the health page of some tables as one HTML file without scripts and external resources.

    ``errors`` has the error message of each table whose maintenance failed, by the table's name.
    """
    title = "Storage health" if len(reports) != 1 else f"Storage health of {reports[0].before.table}"
    sections = "".join(_section(index, report) for index, report in enumerate(reports))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{_overview(reports)}{_errors(errors)}{sections}</body></html>\n"
    )


def _overview(reports: Sequence[MaintenanceReport]) -> str:
    if len(reports) == 1:
        return ""
    if not reports:
        return "<p>No table was measured.</p>"
    rows = []
    for index, report in enumerate(reports):
        health, findings = _newest(report)
        rows.append(
            [
                f'<a href="#table-{index}">{escape(health.table)}</a>',
                f"{health.version:,}",
                f"{health.total.total.files:,}",
                size_text(health.total.total.size),
                f"{health.small_share:.0%}",
                f"{health.total.deleted_share:.1%}",
                f"{health.folder.orphans.files:,}",
                f"{len(findings):,}",
                _saved(report),
            ]
        )
    titles = ("table", "version", "files", "size", "small", "deleted rows", "orphans", "findings", "saved")
    return _table("overview", titles, rows)


def _newest(report: MaintenanceReport) -> tuple[TableHealth, Sequence[Finding]]:
    """Return health and findings after the work, or before it if the table was not measured again."""
    return (report.after, report.findings_after) if report.after else (report.before, report.findings)


def _errors(errors: Mapping[str, str]) -> str:
    entries = (f"<li><code>{escape(table)}</code>: {escape(error)}</li>" for table, error in errors.items())
    return f'<h3>Failed</h3><ul class="findings failed">{"".join(entries)}</ul>' if errors else ""


def _section(index: int, report: MaintenanceReport) -> str:
    health, findings = _newest(report)
    elements = [
        f'<h2 id="table-{index}">{escape(health.table)}</h2>',
        _measured_at(report, health),
        _figures(health),
        "<h3>Findings</h3>",
        _findings(findings),
        _results(report),
        '<div class="two">',
        f"<div><h3>Sizes of data files</h3>{_histograms(report)}</div>",
        f"<div><h3>Storage by file state</h3>{_states(health)}</div>",
        "</div>",
        _partitions(health),
    ]
    return "<section>" + "".join(elements) + "</section>"


def _measured_at(report: MaintenanceReport, health: TableHealth) -> str:
    after_work = ", after maintenance" if report.after else ""
    return (
        f"<p>Version {health.version:,} of {_moment(health.committed_at)}, measured on "
        f"{_moment(health.measured_at)} in {health.measuring_seconds:.1f} s{after_work}.</p>"
    )


def _figures(health: TableHealth) -> str:
    log, folder, total = health.log, health.folder, health.total
    checkpoint = "none"
    if log.checkpoint_version is not None and log.checkpointed_at is not None:
        age = (health.measured_at - log.checkpointed_at).total_seconds()
        checkpoint = f"version {log.checkpoint_version:,}, {_span(age)} old"
    unknown = "unknown"
    figures = {
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
        figures["not in Z-order"] = _totals(total.unordered)
    if health.clustering_columns:
        figures["not clustered"] = _totals(total.unclustered)
    entries = (f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}</dd></div>" for name, figure in figures.items())
    return f"<dl>{''.join(entries)}</dl>"


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p>No findings.</p>"
    entries = []
    for finding in findings:
        command = "" if finding.action is None else f" (<code>maintain.py --{finding.action}</code>)"
        entries.append(
            f"<li><code>{escape(finding.code)}</code> {escape(finding.message)}."
            f'<br><span class="quiet">{escape(finding.advice)}{command}</span></li>'
        )
    return f'<ul class="findings">{"".join(entries)}</ul>'


def _results(report: MaintenanceReport) -> str:
    if not report.done:
        return ""
    rows = [
        [
            escape(result.action),
            escape(", ".join(map(partition_name, result.partitions))) or "the table",
            "" if result.version is None else f"{result.version:,}",
            f"{result.seconds:.1f} s",
            f"{result.held_seconds:.2f} s",
            _totals(result.removed),
            _totals(result.added),
            escape(result.problem or "done"),
        ]
        for result in report.done
    ]
    titles = ("action", "partitions", "version", "took", "held the lock", "removed", "added", "outcome")
    left_note = f" {report.left:,} units of work were left for the next run." if report.left else ""
    return f"<h3>Actions</h3><p>Saved: {_saved(report)}.{left_note}</p>{_table('done', titles, rows)}"


def _histograms(report: MaintenanceReport) -> str:
    before, after = report.before.total.histogram, report.after
    if after is None:
        return histogram("Number of files by size", before)
    return histogram("Number of files by size, before and after", before, after.total.histogram)


def _states(health: TableHealth) -> str:
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


def _partitions(health: TableHealth) -> str:
    if not health.partition_columns:
        return ""
    sorted_parts = sorted(health.partitions, key=lambda part: (-part.small.files, -part.total.files, part.name))
    chart = bars(
        "Small files by partition",
        [(part.name, part.small.files, f"{part.small.files:,}") for part in sorted_parts[:_SHOWN_BARS]],
    )
    rows = [
        [
            escape(part.name),
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
    note = f"<p>{hidden_count:,} more partitions are in the JSON report.</p>" if hidden_count > 0 else ""
    return f"<h3>Partitions with the most small files</h3>{chart}{_table('partitions', titles, rows)}{note}"


def _table(name: str, titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells of its rows are HTML."""
    header = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
    )


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
