"""``sluice health``: how healthy a table's storage is, and what would mend it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lock_manager import SluiceError
from sluice.errors import PageError
from sluice.interrupts import interruptible
from sluice.local.spark import start_spark

if TYPE_CHECKING:
    from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
    from writer_jobs.maintenance.result import MaintenanceReport

_NAME = "sluice health"
# There may be many files.
_MASTER = {"spark.master": "local[*]"}
_DAY = 86_400
_WORST = 10
_BAR = 30


def examine(tables: list[str], conf: Mapping[str, str]) -> tuple[list[MaintenanceReport], dict[str, SluiceError]]:
    """Measure tables with a small Spark of this machine's own. Nothing is changed, and no lock is taken.

    Args:
        tables: locations.
        conf: Spark's settings.

    Returns:
        The reports, and by table what was wrong with those that cannot be measured.

    Raises:
        SluiceError: no jars, no Spark.

    """
    reports, failed = [], {}
    with interruptible(), start_spark(_NAME, {**_MASTER, **conf}) as spark:
        from writer_jobs.maintenance.measure import measure  # noqa: PLC0415 (needs PySpark)
        from writer_jobs.maintenance.result import MaintenanceReport  # noqa: PLC0415

        for table in tables:
            try:
                found = measure(spark, table)
            except SluiceError as error:
                failed[table] = error
            else:
                reports.append(MaintenanceReport.of(found.health, found.policy))
    return reports, failed


def write_page(reports: list[MaintenanceReport], failed: Mapping[str, SluiceError], file: Path) -> None:
    """Write the health of tables as one HTML file.

    Raises:
        PageError: it cannot be written.

    """
    from writer_jobs.maintenance.page import page  # noqa: PLC0415

    try:
        file.write_text(page(reports, {table: str(error) for table, error in failed.items()}), encoding="utf-8")
    except OSError as error:
        raise PageError(f"{file} cannot be written: {error.strerror}") from error


def print_json(reports: list[MaintenanceReport]) -> None:
    """Print what :meth:`MaintenanceReport.to_json` gives of each table, as one list."""
    print(json.dumps([report.to_json() for report in reports], indent=2))


def print_report(report: MaintenanceReport, console: Console) -> None:
    """Print the figures of a table, its sizes, its worst partitions, and what was found."""
    health = report.before
    console.print(_figures(health))
    console.print(_histogram(health))
    if health.partition_columns:
        console.print(_partitions(health))
    for finding in report.findings:
        mends = "" if finding.action is None else f" (maintain.py --{finding.action})"
        console.print(Text.assemble((finding.code, "bold yellow"), f": {finding.message}"), soft_wrap=True)
        console.print(Text(f"    {finding.advice}{mends}"), soft_wrap=True)
    if not report.findings:
        console.print(Text("nothing to mend", style="bold green"))


def _figures(health: TableHealth) -> Table:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415

    def said(total: FileTotals) -> str:
        return f"{total.files:,} files, {size_text(total.size)}"

    total, log, folder = health.total, health.log, health.folder
    checkpoint = "none" if log.checkpoint_version is None else f"{log.checkpoint_version:,}"
    rows = [
        ("version", f"{health.version:,}"),
        ("data files", said(total.total)),
        (f"  smaller than {size_text(health.target_file_size // 2)}", f"{said(total.small)}, {health.small_share:.0%}"),
        ("rows", "not known" if total.rows is None else f"{total.rows:,}"),
        ("  deleted, and still in the files", f"{total.deleted_rows:,}, {total.deleted_share:.1%}"),
        (f"lost, and kept for {folder.retention_seconds / _DAY:.1f} days", said(folder.removed)),
        ("lost, and not needed: VACUUM removes them", said(folder.expired)),
        ("kept for pins", said(folder.kept_for_pins)),
        ("kept for streams", said(folder.kept_for_streams)),
        ("of no version, and young", said(folder.uncommitted)),
        ("of no version, and old (orphans)", said(folder.orphans)),
        ("log", f"{log.versions:,} versions from {log.first_version:,}; {said(log.total)}"),
        ("newest checkpoint", f"{checkpoint}; {log.since_checkpoint:,} versions since"),
        ("growth, each day", "not known" if health.growth_per_day is None else size_text(health.growth_per_day)),
        ("versions each day", "not known" if health.commits_per_day is None else f"{health.commits_per_day:,.1f}"),
    ]
    table = Table(
        box=box.SIMPLE_HEAD, show_header=False, title=Text(health.table), title_justify="left", pad_edge=False
    )
    table.add_column("what")
    table.add_column("how much", justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _histogram(health: TableHealth) -> Table:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415
    from writer_jobs.maintenance.health import SIZE_BOUNDS  # noqa: PLC0415

    names = [f"below {size_text(bound)}" for bound in SIZE_BOUNDS] + [f"{size_text(SIZE_BOUNDS[-1])} and more"]
    most = max(*health.total.histogram, 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, justify in (("size of a file", "left"), ("files", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, number in zip(names, health.total.histogram, strict=True):
        if number:
            table.add_row(name, f"{number:,}", "█" * max(1, round(_BAR * number / most)))
    return table


def _partitions(health: TableHealth) -> Table:
    from writer_jobs.maintenance.findings import size_text  # noqa: PLC0415

    def worst(part: PartitionHealth) -> tuple[int, int]:
        return (-part.files_saved(health.target_file_size), -part.total.files)

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("partition", "files", "size", "small", "deleted rows"):
        table.add_column(column, justify="left" if column == "partition" else "right", overflow="fold")
    for part in sorted(health.partitions, key=worst)[:_WORST]:
        table.add_row(
            Text(part.name),
            f"{part.total.files:,}",
            size_text(part.total.size),
            f"{part.small.files:,}",
            f"{part.deleted_rows:,}",
        )
    if (more := len(health.partitions) - _WORST) > 0:
        table.add_row(f"and {more:,} more", "", "", "", "")
    return table
