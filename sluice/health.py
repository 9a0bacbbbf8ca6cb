"""``sluice health``: how well a table is stored, and which maintenance it needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lock_manager import SluiceError
from sluice.console import make_table, print_figures
from sluice.errors import CommandError
from sluice.interrupts import interruptible
from sluice.local.spark import start_spark

if TYPE_CHECKING:
    from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
    from writer_jobs.maintenance.result import MaintenanceReport

_DAY_SECONDS = 86_400
_PARTITIONS_SHOWN = 10
_BAR_WIDTH = 30


def examine(tables: list[str], conf: Mapping[str, str]) -> tuple[list[MaintenanceReport], dict[str, SluiceError]]:
    """Measure tables with a small Spark on this machine. Change nothing, and take no lock.

    Returns:
        The reports, and the error of each table that could not be measured, by location.

    Raises:
        SluiceError: The jars are missing, or Spark does not start.

    """
    reports, errors = [], {}
    # All cores are used, because a table may have many files.
    with interruptible(), start_spark("sluice health", {"spark.master": "local[*]", **conf}) as spark:
        from writer_jobs.maintenance.measure import measure  # noqa: PLC0415 (needs PySpark)
        from writer_jobs.maintenance.result import MaintenanceReport  # noqa: PLC0415

        for table in tables:
            try:
                measured = measure(spark, table)
            except SluiceError as error:
                errors[table] = error
            else:
                reports.append(MaintenanceReport.of(measured.health, measured.policy))
    return reports, errors


def write_page(reports: list[MaintenanceReport], errors: Mapping[str, SluiceError], file: Path) -> None:
    """Write the health of the tables to one HTML file.

    Raises:
        CommandError: The file cannot be written.

    """
    from writer_jobs.page.health import page  # noqa: PLC0415

    try:
        file.write_text(page(reports, {table: str(error) for table, error in errors.items()}), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}; choose another --page") from error


def print_report(report: MaintenanceReport, console: Console) -> None:
    """Print a table's figures, its file sizes, its worst partitions, and the findings."""
    health = report.before
    print_figures(health.table, _figures(health), console)
    console.print(_histogram(health))
    if health.partition_columns:
        console.print(_partitions(health))
    for finding in report.findings:
        option = "" if finding.action is None else f" (maintain.py --{finding.action})"
        console.print(Text.assemble((finding.code, "bold yellow"), f": {finding.message}"), soft_wrap=True)
        console.print(Text(f"    {finding.advice}{option}"), soft_wrap=True)
    if not report.findings:
        console.print(Text("no maintenance is needed", style="bold green"))


def _figures(health: TableHealth) -> list[tuple[str, str]]:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415

    def totals_text(totals: FileTotals) -> str:
        return f"{totals.files:,} files, {size_text(totals.size)}"

    total, log, folder = health.total, health.log, health.folder
    checkpoint = "none" if log.checkpoint_version is None else f"{log.checkpoint_version:,}"
    return [
        ("version", f"{health.version:,}"),
        ("data files", totals_text(total.total)),
        (
            f"  smaller than {size_text(health.target_file_size // 2)}",
            f"{totals_text(total.small)}, {health.small_share:.0%}",
        ),
        ("rows", "unknown" if total.rows is None else f"{total.rows:,}"),
        ("  deleted, still in the files", f"{total.deleted_rows:,}, {total.deleted_share:.1%}"),
        (f"removed, kept for {folder.retention_seconds / _DAY_SECONDS:.1f} days", totals_text(folder.removed)),
        ("removed, expired (for VACUUM)", totals_text(folder.expired)),
        ("kept for pins", totals_text(folder.kept_for_pins)),
        ("kept for streams", totals_text(folder.kept_for_streams)),
        ("in no version, recent", totals_text(folder.uncommitted)),
        ("in no version, old (orphans)", totals_text(folder.orphans)),
        ("log", f"{log.versions:,} versions from {log.first_version:,}; {totals_text(log.total)}"),
        ("newest checkpoint", f"{checkpoint}; {log.since_checkpoint:,} versions since"),
        ("transactions", f"{log.transactions:,}, {log.recent_transactions:,} of the last week"),
        ("growth per day", "unknown" if health.growth_per_day is None else size_text(health.growth_per_day)),
        ("versions per day", "unknown" if health.commits_per_day is None else f"{health.commits_per_day:,.1f}"),
    ]


def _histogram(health: TableHealth) -> Table:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415
    from writer_jobs.maintenance.health import SIZE_BOUNDS  # noqa: PLC0415

    labels = [f"below {size_text(bound)}" for bound in SIZE_BOUNDS] + [f"{size_text(SIZE_BOUNDS[-1])} and more"]
    max_files = max(*health.total.histogram, 1)
    table = make_table(("file size", "files", ""), right=("files",))
    for label, files in zip(labels, health.total.histogram, strict=True):
        if files:
            table.add_row(label, f"{files:,}", "█" * max(1, round(_BAR_WIDTH * files / max_files)))
    return table


def _partitions(health: TableHealth) -> Table:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415

    def sort_key(partition: PartitionHealth) -> tuple[int, int]:
        return (-partition.files_saved(health.target_file_size), -partition.total.files)

    figures = ("files", "size", "small", "deleted rows")
    table = make_table(("partition", *figures), right=figures)
    for partition in sorted(health.partitions, key=sort_key)[:_PARTITIONS_SHOWN]:
        table.add_row(
            Text(partition.name),
            f"{partition.total.files:,}",
            size_text(partition.total.size),
            f"{partition.small.files:,}",
            f"{partition.deleted_rows:,}",
        )
    if (more := len(health.partitions) - _PARTITIONS_SHOWN) > 0:
        table.add_row(f"and {more:,} more", "", "", "", "")
    return table
