"""Operator commands: ``status``, ``break``, ``doctor``."""

from __future__ import annotations

import functools
import json
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.commands.options import (
    LockRootOption,
    StorageOption,
    Verbose,
    ZooKeeperOption,
    is_ensemble_given,
    key_and_value,
    lock_settings,
)
from sluice.console import FAILED, errors_as_sentences
from sluice.interrupts import Interrupted, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

    from lock_manager.coordinator import Inspector

_WAITING_TOO_LONG = 3


def register(app: typer.Typer) -> None:
    """Add the commands to ``sluice``."""
    app.command()(status)
    app.command("break")(break_lock)
    app.command()(doctor)


@errors_as_sentences
def status(
    table: Annotated[
        str | None, typer.Argument(help="s3a://…, file:… or a path.  [dim]default: all below the lock root[/]")
    ] = None,
    *,
    zookeeper: ZooKeeperOption = None,
    lock_root: LockRootOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")] = 2.0,
    fail_if_waiting: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SECONDS", help="Exit code 3 if somebody waits for longer."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line with --watch.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Tell who holds which lock, and who waits, in order.

    Since when, host, process, Spark application, job and fencing token: what
    the writers say of themselves. Reads only ZooKeeper, and changes nothing.

    [bold]sluice status --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice status s3a://lake/flights --watch[/]
    [bold]sluice status --fail-if-waiting 1800[/]         for cron: is anybody stuck?

    With --watch, --fail-if-waiting ends the watch as soon as it is true.

    Exit codes: 0 told, 1 ZooKeeper does not answer or refuses, 2 bad arguments,
    3 somebody waits for longer than --fail-if-waiting, 130 Ctrl-C.
    """
    from lock_manager.resources import TableResource  # noqa: PLC0415
    from sluice.locks import status as telling  # noqa: PLC0415

    resource = None if table is None else TableResource.of(table)
    console = Console(highlight=False)

    def show_json(seen: telling.Status) -> None:
        print(json.dumps(seen.to_json(), indent=None if watch else 2), flush=True)

    with ExitStack() as stack:
        stack.enter_context(interruptible())
        inspector = stack.enter_context(_make_inspector(zookeeper, lock_root))
        if as_json:
            show: Callable[[telling.Status], None] = show_json
        elif watch:
            show = stack.enter_context(telling.display(console))
        else:
            show = functools.partial(telling.print_status, console=console)
        while True:
            seen = telling.look(inspector, resource)
            overdue = [] if fail_if_waiting is None else seen.waiting_longer_than(fail_if_waiting)
            show(seen)
            if overdue or not watch:
                break
            time.sleep(interval)
    for locks, entry in overdue:
        waited = telling.duration(seen.seconds(entry))
        sys.stderr.write(f"sluice: {locks.name}: {telling.describe(entry)}: waits for {waited}\n")
    if overdue:
        raise typer.Exit(_WAITING_TOO_LONG)


@errors_as_sentences
def break_lock(
    table: Annotated[str, typer.Argument(help="s3a://…, file:… or a path.")],
    *,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only who holds this partition, or partitions within it: year=2013/month=1, letter by letter as "
            "[bold]status[/] shows it (month=01 is no name of it).",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Only the holder with this fencing token, as [bold]status[/] and [bold]log[/] show it; or 0x….",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    zookeeper: ZooKeeperOption = None,
    lock_root: LockRootOption = None,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Take a lock away from who holds it, after showing who that is.

    For a holder that hangs. A dead one needs none of this: its lock is free
    after its session time-out. The next in the queue gets the lock at once; a
    commit of the one that lost it is refused by the guard (LockLostError). What
    writes without the guard, such as deltalake, is NOT stopped: end it first.

    Only the very holder that was shown is removed, by its fencing token: who
    has got the lock in the meantime keeps it. Where several hold, partitions
    for example, all are shown and removed, unless an option says which.

    [bold]sluice break s3a://lake/flights[/]
    [bold]sluice break s3a://lake/flights --partition year=2013/month=1[/]
    [bold]sluice break s3a://lake/flights --token 133143986242 --yes[/]    in a script

    Exit codes: 0 that holder holds no more, or nobody held it; 1 you said no,
    somebody else holds it, or ZooKeeper refuses; 2 bad arguments; 130 Ctrl-C.
    """
    from lock_manager.resources import TableResource  # noqa: PLC0415
    from sluice.locks.breaking import check_partition, holders_of, parse_token  # noqa: PLC0415
    from sluice.locks.status import describe, duration, look  # noqa: PLC0415

    resource = TableResource.of(table)
    within = None if partition is None else check_partition(partition)
    wanted = None if token is None else parse_token(token)
    with interruptible(), _make_inspector(zookeeper, lock_root) as inspector:
        seen = look(inspector, resource)
        (locks,) = seen.tables
        holders = holders_of(locks, within, wanted)
        if not holders:
            print(f"{locks.name}: nobody holds it")
            return
        for holder in holders:
            print(f"{locks.name}: held for {duration(seen.seconds(holder))} by {describe(holder)}", flush=True)
        if not yes and not _confirmed("Take the lock away? Its commits will be refused."):
            sys.stderr.write("sluice: nothing was removed\n")
            raise typer.Exit(FAILED)
        for holder in holders:
            removed = inspector.remove(locks, holder)
            print(f"removed: {describe(holder)}" if removed else f"it had gone by itself: {describe(holder)}")


def _make_inspector(zookeeper: str | None, lock_root: str | None) -> Inspector:
    """Make an inspector: the only place where ``status`` and ``break`` name ZooKeeper's."""
    from lock_manager.zookeeper.inspector import LockInspector  # noqa: PLC0415

    return LockInspector(lock_settings(zookeeper, lock_root))


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort as abort:
        if isinstance(abort.__context__, Interrupted):
            raise abort.__context__ from None
        # There is nobody to ask: standard input has ended.
        sys.stderr.write("\nsluice: no answer; --yes does not ask\n")
        return False


@errors_as_sentences
def doctor(
    *,
    zookeeper: ZooKeeperOption = None,
    lock_root: LockRootOption = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Also try whether its store refuses to overwrite, and whether its lock is of this ensemble.",
        ),
    ] = None,
    bucket: Annotated[str | None, typer.Option(metavar="NAME", help="Try the store of a bucket of S3.")] = None,
    storage_option: StorageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Check what a locked write needs; each line is ok, or says what to do.

    The ensemble: every server answers, one leader, a quorum that takes writes,
    versions, latency, clocks, what this client may do below the lock root. This
    machine: Python packages, jars as pinned, the guarded log store. With
    --table or --bucket: whether the store really refuses to overwrite, tried
    by rivals, too, with scratch objects that are removed again. With --table:
    whether this ensemble has adopted the table. Creates nothing that stays.
    Without an ensemble it checks the rest, and reports the ensemble as missing.

    [bold]sluice doctor --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice doctor --table s3a://lake/flights[/]

    Exit codes: 0 nothing is wrong (notes are no faults), 1 something is, 2 bad
    arguments, 130 Ctrl-C.
    """
    from sluice.doctor.examination import examine, print_findings  # noqa: PLC0415

    if table is not None and bucket is not None:
        raise typer.BadParameter("give either --table or --bucket", param_hint="--bucket")
    options = dict(key_and_value(option) for option in storage_option or ())
    settings = lock_settings(zookeeper, lock_root) if is_ensemble_given(zookeeper) else None
    store = f"s3://{bucket}" if bucket is not None else table
    with interruptible():
        findings = examine(settings, store, options, table=table)
    if as_json:
        print(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        print_findings(findings, Console(highlight=False))
    if any(finding.failed for finding in findings):
        raise typer.Exit(FAILED)
