"""Commands on tables: ``verify``, ``log``, ``adopt``, ``pins``, ``health``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sluice.commands.options import (
    LockTimeoutOption,
    SparkConfOption,
    SparkTable,
    SparkTables,
    StorageOption,
    Verbose,
    ZooKeeperOption,
    conf_of,
    key_and_value,
    lock_settings,
)
from sluice.console import FAILED, errors_as_sentences
from sluice.interrupts import interruptible

if TYPE_CHECKING:
    from sluice.audit.verify import Verification


def register(app: typer.Typer) -> None:
    """Add the commands to ``sluice``."""
    app.command()(verify)
    app.command()(log)
    app.command()(adopt)
    app.command()(pins)
    app.command()(health)


@errors_as_sentences
def verify(
    table: Annotated[str, typer.Argument(help="s3://…, s3a://…, file:… or a path.")],
    *,
    key: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Comma-separated columns that identify a row: repeats are faults. `a,b` in backticks is one name.",
        ),
    ] = "",
    storage_option: StorageOption = None,
    clock_skew: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Forgive holds that seem to overlap by this much: clocks of several hosts differ, and fencing tokens "
            "prove the order anyway. 0 for writers on one host, as in the demo.",
        ),
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Check a Delta table on S3 or on disk, with the deltalake package and not with Spark.

    Versions are contiguous and none was overwritten; the rows are those that
    the log counts; no key is there twice; fencing tokens rise, recorded holds
    do not overlap, and all are of the table's own ZooKeeper ensemble and under
    its own name (sluice adopt). The versions that pins keep can be read, with
    all their data files. Commits without the lock are no failure: they are
    listed, by engine and version.

    [bold]sluice verify s3a://lake/flights --key time_hour,carrier,flight[/]
    [bold]sluice verify ./flights --json[/]
    [bold]sluice verify s3://lake/flights --storage-option AWS_ENDPOINT_URL=http://127.0.0.1:9000[/]

    Exit codes: 0 sound, 1 a check failed, 2 there is no such table or column,
    or deltalake would read another folder (%20 and the like in its path).
    """
    from lock_manager.column_names import split_column_names  # noqa: PLC0415
    from sluice.audit.verify import verify_table  # noqa: PLC0415

    options = dict(key_and_value(option) for option in storage_option or ())
    try:
        columns = [name for name in split_column_names(key) if name]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key") from error
    found = verify_table(table, key=columns, storage_options=options, clock_skew_seconds=clock_skew)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print_verification(found, Console(highlight=False))
    if not found.ok:
        raise typer.Exit(FAILED)


@errors_as_sentences
def log(
    table: Annotated[str, typer.Argument(help="s3://…, s3a://…, file:… or a path.")],
    *,
    limit: Annotated[int, typer.Option(min=0, help="Only that many, the newest; 0 for all.")] = 20,
    storage_option: StorageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Tell who committed what to a table, when and under which hold, the newest first.

    Read from the log alone, without Spark and without ZooKeeper. Commits that
    were made without the lock are marked. "rows" counts the rows that a write
    wrote, or that MERGE, UPDATE or DELETE changed.

    [bold]sluice log s3a://lake/flights[/]
    [bold]sluice log ./flights --limit 0 --json[/]
    """
    from sluice.audit.commit_list import log_to_json, print_log, read_commit_list  # noqa: PLC0415

    options = dict(key_and_value(option) for option in storage_option or ())
    location, commits = read_commit_list(table, limit=limit or None, storage_options=options)
    if as_json:
        print(json.dumps(log_to_json(location, commits), indent=2))
    else:
        print_log(location, commits, Console(highlight=False))


@errors_as_sentences
def adopt(
    table: SparkTable,
    *,
    zookeeper: ZooKeeperOption = None,
    move: Annotated[
        bool, typer.Option("--move", help="Also if the table is adopted by another ensemble or under another name.")
    ] = False,
    from_hosts: Annotated[
        str | None,
        typer.Option("--from", metavar="HOSTS", help="The ensemble to move from: hold its lock meanwhile, too."),
    ] = None,
    lock_timeout: LockTimeoutOption = None,
    conf: SparkConfOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Have this ZooKeeper ensemble adopt a table under this name: no other lock counts.

    Commits the ensemble's id and the table's name as the table properties
    sluice.ensemble and sluice.table, under the table's lock, with a small Spark
    of its own. A writer with another --zookeeper, or with an ensemble that was
    wiped and built again, or that reaches the table by another name, is then
    refused before it writes. A table that is adopted elsewhere stays as it is,
    unless --move says otherwise: for one that was moved to another ensemble
    (stop its writers first, or give --from), copied, or renamed.

    [bold]sluice adopt s3a://lake/flights --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice adopt s3a://lake/flights --zookeeper new:2181 --move --from old:2181[/]
    """
    from sluice.adopt import adopt_table, describe  # noqa: PLC0415
    from sluice.local.spark import start_spark  # noqa: PLC0415

    settings = lock_settings(zookeeper, timeout_seconds=lock_timeout)
    with interruptible(), start_spark("sluice adopt", conf_of(conf)) as spark:
        done = adopt_table(spark, table, settings, move=move, old_hosts=from_hosts)
    if as_json:
        print(json.dumps(asdict(done), indent=2))
    else:
        print(describe(done))


@errors_as_sentences
def pins(
    table: SparkTable,
    *,
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Pin the newest version under this name; needs --expires.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help='Until when it is kept: 2013-02-01, or "30 days" from now.')
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove this pin, from all tables that it is of.")
    ] = None,
    zookeeper: ZooKeeperOption = None,
    lock_timeout: LockTimeoutOption = None,
    conf: SparkConfOption = None,
    storage_option: StorageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """List the pins of a table and whether they hold; add one, or remove one.

    A pin keeps a version until it expires: our vacuum spares its files, and the
    table's retention is as long as it needs. Pins are listed without Spark and
    without ZooKeeper. To add or remove one takes the table's lock, with a small
    Spark of its own. snapshot.py pins several tables at one moment of their
    event time.

    [bold]sluice pins s3a://lake/flights[/]
    [bold]sluice pins s3a://lake/flights --add audit --expires "90 days"[/]
    [bold]sluice pins s3a://lake/flights --remove audit[/]

    Exit codes: 0 done, and all pins hold; 1 one does not hold; 2 wrong
    arguments, no such table or pin.
    """
    from sluice.audit.log_folder import open_log  # noqa: PLC0415
    from sluice.pins import change_pins, print_pins  # noqa: PLC0415

    if (add is None) != (expires is None):
        raise typer.BadParameter("--add and --expires belong together")
    options = dict(key_and_value(option) for option in storage_option or ())
    # Before anything is changed: whether it can be listed.
    open_log(table, options)
    if add is not None or remove is not None:
        settings = lock_settings(zookeeper, timeout_seconds=lock_timeout)
        change_pins(table, settings, conf_of(conf), add=add, expires=expires, remove=remove)
    if not print_pins(table, options, as_json=as_json):
        raise typer.Exit(FAILED)


@errors_as_sentences
def health(
    tables: SparkTables,
    *,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it as an HTML file with pictures.")
    ] = None,
    conf: SparkConfOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Show how healthy tables are: small files, deleted rows, orphans, log.

    Measures with a small Spark of its own, takes no lock and changes nothing.
    Each finding has a code, and names the action that mends it;
    maintain.py does it, and measures a whole fleet on a cluster.

    [bold]sluice health s3a://lake/flights[/]
    [bold]sluice health ./flights ./airports --page health.html[/]
    [bold]sluice health ./flights --json | jq '.[0].findings[].code'[/]

    Exit codes: 0 measured, whatever was found; 1 the page cannot be written, a
    store does not answer, or Spark does not start; 2 no such table, or a policy
    that makes no sense (the other tables are measured all the same); 130 Ctrl-C.
    """
    from sluice.health import examine, print_json, print_report, write_page  # noqa: PLC0415

    reports, failed = examine(tables, conf_of(conf))
    if reports and as_json:
        print_json(reports)
    elif reports:
        console = Console(highlight=False)
        for report in reports:
            print_report(report, console)
    if reports and page is not None:
        write_page(reports, failed, page)
    if failed:
        first, *others = failed.values()
        for error in others:
            print(f"sluice: {error}", file=sys.stderr)
        raise first


def _print_verification(found: Verification, console: Console) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from sluice.audit.checks import version_ranges  # noqa: PLC0415

    def say(value: int | None, missing: str) -> str:
        return missing if value is None else f"{value:,}"

    writers, observed = found.unlocked_writers.items(), found.observed.items()
    rows: list[tuple[str, Any]] = [
        ("versions", f"{found.first_version:,} to {found.version:,}"),
        ("commits in the log", f"{found.commits:,}"),
        ("under the lock", f"{found.locked_commits:,}"),
        *(
            [("  by the writer's own word, not fenced", f"{found.unfenced_commits:,}")]
            if found.unfenced_commits
            else ()
        ),
        ("without it", f"{found.unlocked_commits:,}"),
        *((f"  by {engine}: {version_ranges(made)}", f"{len(made):,}") for engine, made in writers),
        *((f"  only observed, {error}: {version_ranges(made)}", f"{len(made):,}") for error, made in observed),
        ("without it, that lost a race for a version", f"{found.conflicts:,}"),
        ("holds that overlap", f"{found.overlapping_holds:,}"),
        ("rows in the data files", say(found.rows_found, "not readable")),
        ("rows by the log's statistics", say(found.rows_in_log, "not known")),
    ]
    if found.pins:
        rows.append(("pins", f"{found.pins:,}"))
    if found.ensemble is not None:
        rows.append(("adopted by ensemble", found.ensemble))
    if found.adopted_name is not None and found.is_adopted_elsewhere:
        rows.append(("locked by another name than this", found.adopted_name))
    if found.key:
        rows.append((f"duplicate rows by {', '.join(found.key)}", say(found.duplicate_rows, "not readable")))
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=found.table, title_justify="left", pad_edge=False)
    table.add_column("what")
    table.add_column("how many", justify="right")
    for what, value in rows:
        table.add_row(what, value)
    console.print(table)
    for problem in found.problems:
        console.print(Text.assemble(("problem: ", "bold red"), problem), soft_wrap=True)
    verdict = Text("sound", style="bold green") if found.ok else Text("NOT SOUND", style="bold red")
    console.print(verdict)
