"""Commands on tables: ``verify``, ``log``, ``adopt``, ``pins``, ``health``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sluice.commands.options import (
    JsonOption,
    LockTimeoutOption,
    LockUrlOption,
    SparkConfOption,
    SparkTable,
    SparkTables,
    StorageOption,
    ZooKeeperOption,
    lock_settings,
    parse_pairs,
)
from sluice.console import FAILED, plain_console, print_figures, print_problems
from sluice.interrupts import interruptible

if TYPE_CHECKING:
    from sluice.audit.verify import Verification

_Table = Annotated[str, typer.Argument(help="s3://…, s3a://…, file:… or a path.")]


def verify(
    table: _Table,
    *,
    key: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS",
            help="Comma-separated columns that identify a row: a duplicate is a fault. `a,b` in backticks is one name.",
        ),
    ] = "",
    storage_option: StorageOption = None,
    clock_skew: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Ignore overlaps of holds up to this length: clocks of hosts differ, and fencing tokens prove the "
            "order anyway. 0 for writers on one host, as in the demo.",
        ),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Check a Delta table on S3 or on disk, with the deltalake package instead of Spark.

    Checks that versions are contiguous and not overwritten, that the rows are as
    many as the log counts, and that no key is duplicated. Checks that fencing
    tokens rise, that recorded holds do not overlap, and that they are of the
    table's own ensemble and name (sluice adopt). Checks that pinned versions can
    be read with all their data files. A commit without the lock is not a failure:
    it is listed by engine and version.

    [bold]sluice verify s3a://lake/flights --key time_hour,carrier,flight[/]
    [bold]sluice verify ./flights --json[/]
    [bold]sluice verify s3://lake/flights --storage-option AWS_ENDPOINT_URL=http://127.0.0.1:9000[/]

    Exit codes: 0 sound, 1 a check failed, 2 there is no such table or column,
    the store cannot be read, or deltalake would read another folder (%20 and
    the like in its path).
    """
    from lock_manager.column_names import split_column_names  # noqa: PLC0415
    from sluice.audit.verify import verify_table  # noqa: PLC0415

    options = parse_pairs(storage_option)
    try:
        columns = [name for name in split_column_names(key) if name]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--key") from error
    verification = verify_table(table, key=columns, storage_options=options, clock_skew_seconds=clock_skew)
    if as_json:
        print(json.dumps(verification.to_json(), indent=2))
    else:
        _print_verification(verification, plain_console())
    if not verification.ok:
        raise typer.Exit(FAILED)


def log(
    table: _Table,
    *,
    limit: Annotated[int, typer.Option(min=0, help="Number of commits, the newest ones; 0 for all.")] = 20,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a table's commits with their times, jobs and holds, the newest first.

    Reads only the log, without Spark and without ZooKeeper. Marks commits
    without the lock. "rows" is the number of rows that a write wrote, or that
    MERGE, UPDATE or DELETE changed. A version with the appends of several
    writers also has a line for each writer.

    [bold]sluice log s3a://lake/flights[/]
    [bold]sluice log ./flights --limit 0 --json[/]
    """
    from sluice.audit.commit_list import log_to_json, print_log, read_commit_list  # noqa: PLC0415

    location, commits = read_commit_list(table, limit=limit or None, storage_options=parse_pairs(storage_option))
    if as_json:
        print(json.dumps(log_to_json(location, commits), indent=2))
    else:
        print_log(location, commits, plain_console())


def adopt(
    table: SparkTable,
    *,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    move: Annotated[
        bool, typer.Option("--move", help="Also adopt a table of another ensemble or another name.")
    ] = False,
    from_hosts: Annotated[
        str | None,
        typer.Option("--from", metavar="HOSTS|URL", help="The previous coordinator. Its lock is held, too."),
    ] = None,
    lock_timeout: LockTimeoutOption = None,
    conf: SparkConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bind a table to this ZooKeeper ensemble and this name, so that no other lock is accepted.

    Starts a small Spark and commits, under the table's lock, the table
    properties sluice.ensemble (the ensemble's id) and sluice.table (the table's
    name). From then on a writer is refused before it writes if it uses another
    ensemble, a rebuilt ensemble, or another name of the table. Locks on S3
    (--lock-url) have an id like an ensemble. A table that is
    adopted elsewhere is not changed without --move. Use --move for a table that
    was copied, renamed, or moved to another ensemble. To move it, stop its
    writers first, or give --from.

    [bold]sluice adopt s3a://lake/flights --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice adopt s3a://lake/flights --zookeeper new:2181 --move --from old:2181[/]
    [bold]sluice adopt s3a://lake/flights --lock-url s3-lease://lake/locks --move --from old:2181[/]
    """
    from sluice.adopt import adopt_table, describe  # noqa: PLC0415
    from sluice.local.spark import start_spark  # noqa: PLC0415

    settings = lock_settings(zookeeper, timeout_seconds=lock_timeout, lock_url=lock_url)
    with interruptible(), start_spark("sluice adopt", parse_pairs(conf, "--conf")) as spark:
        result = adopt_table(spark, table, settings, move=move, old_hosts=from_hosts)
    print(json.dumps(asdict(result), indent=2) if as_json else describe(result))


def pins(
    table: SparkTable,
    *,
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Pin the newest version under this name; needs --expires.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help='When the pin expires: 2013-02-01, or "30 days" from now.')
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Remove this pin, from each table that it pins.")
    ] = None,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    lock_timeout: LockTimeoutOption = None,
    conf: SparkConfOption = None,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a table's pins and check that they can be read; add a pin, or remove one.

    A pin keeps a version until it expires: Sluice's vacuum keeps its files, and
    the pin raises the table's retention if necessary. The list needs neither
    Spark nor ZooKeeper. Adding or removing a pin starts a small Spark and takes
    the table's lock. snapshot.py pins several tables at one moment of their
    event time.

    [bold]sluice pins s3a://lake/flights[/]
    [bold]sluice pins s3a://lake/flights --add audit --expires "90 days"[/]
    [bold]sluice pins s3a://lake/flights --remove audit[/]

    Exit codes: 0 done, and all pins can be read; 1 a pin cannot be read, or the
    change failed; 2 bad arguments, or there is no such table or pin.
    """
    from sluice.audit.log_folder import open_log  # noqa: PLC0415
    from sluice.pins import change_pins, print_pins  # noqa: PLC0415

    if (add is None) != (expires is None):
        raise typer.BadParameter("--add and --expires belong together: give both, or none")
    options = parse_pairs(storage_option)
    # Fail before the change if the pins at this kind of location cannot be listed afterwards.
    open_log(table, options)
    if add is not None or remove is not None:
        settings = lock_settings(zookeeper, timeout_seconds=lock_timeout, lock_url=lock_url)
        change_pins(table, settings, parse_pairs(conf, "--conf"), add=add, expires=expires, remove=remove)
    if not print_pins(table, options, as_json=as_json):
        raise typer.Exit(FAILED)


def health(
    tables: SparkTables,
    *,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML file with charts.")] = None,
    conf: SparkConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how tables are stored: small files, deleted rows, orphans, log.

    Measures with a small Spark, takes no lock and changes nothing. Each finding
    has a code and names the action of maintain.py that fixes it. maintain.py
    also measures many tables on a cluster.

    [bold]sluice health s3a://lake/flights[/]
    [bold]sluice health ./flights ./airports --page health.html[/]
    [bold]sluice health ./flights --json | jq '.[0].findings[].code'[/]

    Exit codes: 0 measured, with or without findings; 1 the page cannot be
    written, a store does not answer, or Spark does not start; 2 no such table,
    or an invalid policy (the other tables are still measured); 130 Ctrl-C.
    """
    from sluice.health import examine, print_report, write_page  # noqa: PLC0415

    reports, errors = examine(tables, parse_pairs(conf, "--conf"))
    if reports and as_json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    elif reports:
        console = plain_console()
        for report in reports:
            print_report(report, console)
    if reports and page is not None:
        write_page(reports, errors, page)
    if errors:
        first_error, *more_errors = errors.values()
        for error in more_errors:
            print(f"sluice: {error}", file=sys.stderr)
        raise first_error


def _print_verification(verification: Verification, console: Console) -> None:
    from sluice.audit.checks import version_ranges  # noqa: PLC0415

    def count(number: int | None, none_text: str = "not readable") -> str:
        return none_text if number is None else f"{number:,}"

    def by_versions(label: str, versions: tuple[int, ...]) -> tuple[str, str]:
        return f"  {label}: {version_ranges(versions)}", count(len(versions))

    figures = [
        ("versions", f"{verification.first_version:,} to {verification.version:,}"),
        ("commits in the log", count(verification.commits)),
    ]
    if verification.writes > verification.commits:
        figures.append(("  writes in these commits", count(verification.writes)))
    figures.append(("with the lock", count(verification.locked_commits)))
    if verification.optimistic_commits:
        figures.append(("by writers without locks (optimistic://)", count(verification.optimistic_commits)))
    if verification.unfenced_commits:
        figures.append(("  stamped by the writer, not fenced by the guard", count(verification.unfenced_commits)))
    figures += [
        ("without the lock", count(verification.unlocked_commits)),
        *(by_versions(f"by {engine}", versions) for engine, versions in verification.unlocked_writers.items()),
        *(by_versions(f"only observed, {error}", versions) for error, versions in verification.observed.items()),
        ("without the lock, after a lost race for a version", count(verification.conflicts)),
        ("overlapping holds", count(verification.overlapping_holds)),
        ("rows in the data files", count(verification.rows_found)),
        ("rows by the log's statistics", count(verification.rows_in_log, "unknown")),
    ]
    if verification.pins:
        figures.append(("pins", count(verification.pins)))
    if verification.ensemble is not None:
        figures.append(("adopted by ensemble", verification.ensemble))
    if verification.adopted_name is not None and verification.is_adopted_elsewhere:
        figures.append(("adopted under another name", verification.adopted_name))
    if verification.key:
        figures.append((f"duplicate rows by {', '.join(verification.key)}", count(verification.duplicate_rows)))
    print_figures(verification.table, figures, console)
    print_problems(verification.problems, console)
    console.print(Text("sound", style="bold green") if verification.ok else Text("NOT SOUND", style="bold red"))
