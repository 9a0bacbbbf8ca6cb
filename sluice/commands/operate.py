"""Operator commands: ``status``, ``break``, ``doctor``."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import Annotated

import typer

from lock_manager.coordinator import Inspector
from sluice.commands.options import (
    JsonOption,
    LockRootOption,
    LockUrlOption,
    StorageOption,
    ZooKeeperOption,
    is_coordinator_given,
    lock_settings,
    parse_pairs,
)
from sluice.console import FAILED, plain_console
from sluice.interrupts import Interrupted, interruptible


def status(
    table: Annotated[
        str | None, typer.Argument(help="s3a://…, file:… or a path.  [dim]default: all below the lock root[/]")
    ] = None,
    *,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    lock_root: LockRootOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two requests.")] = 2.0,
    fail_if_waiting: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="SECONDS", help="Exit with code 3 if a writer has waited for longer."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line with --watch.")] = False,
) -> None:
    """List the holders and the waiters of locks, in the order of the queue.

    Shows start time, host, process, Spark application, job and fencing token.
    Except for the token, these are values that the writers report. Reads only
    ZooKeeper or the objects of locks on S3, and changes nothing.

    [bold]sluice status --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice status s3a://lake/flights --watch[/]
    [bold]sluice status --fail-if-waiting 1800[/]         for cron: report long waits

    With --watch, --fail-if-waiting ends the watch at the first long wait.

    Exit codes: 0 listed, 1 no answer or refused, 2 bad arguments,
    3 a writer has waited for longer than --fail-if-waiting, 130 Ctrl-C.
    """
    from lock_manager.resources import TableResource  # noqa: PLC0415
    from sluice.locks.status import Status, describe, display, format_duration, print_status, read_status  # noqa: PLC0415

    resource = None if table is None else TableResource.of(table)
    console = plain_console()

    def print_snapshot(snapshot: Status) -> None:
        if as_json:
            print(json.dumps(snapshot.to_json(), indent=None if watch else 2), flush=True)
        else:
            print_status(snapshot, console)

    display_of_watch = display(console) if watch and not as_json else nullcontext(print_snapshot)
    with interruptible(), _make_inspector(zookeeper, lock_root, lock_url) as inspector, display_of_watch as show:
        while True:
            snapshot = read_status(inspector, resource)
            overdue_waiters = [] if fail_if_waiting is None else snapshot.waiting_longer_than(fail_if_waiting)
            show(snapshot)
            if overdue_waiters or not watch:
                break
            time.sleep(interval)
    for locks, waiter in overdue_waiters:
        wait_duration = format_duration(snapshot.seconds(waiter))
        sys.stderr.write(f"sluice: {locks.name}: {describe(waiter)}: has waited for {wait_duration}\n")
    if overdue_waiters:
        raise typer.Exit(3)


def break_lock(
    table: Annotated[str, typer.Argument(help="s3a://…, file:… or a path.")],
    *,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only the holders of this partition or of partitions within it: year=2013/month=1, exactly as "
            "[bold]status[/] shows it (not month=01).",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Only the holder with this fencing token, as [bold]status[/] and [bold]log[/] show it, or 0x….",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    lock_root: LockRootOption = None,
) -> None:
    """Show the holders of a table's lock, and remove them after confirmation.

    Use it for a holder that hangs; the next waiter gets the lock at once. A dead
    holder loses its lock after its session timeout without this command. The
    guard refuses later commits of the removed holder (LockLostError). A program
    that writes without the guard, such as deltalake, is NOT stopped: end it first.
    Nor is a writer with fallback=optimistic, which does not rely on the lock.

    Removes only the holders that it showed, by their fencing tokens. A writer
    that acquires the lock in the meantime keeps it. If there are several holders,
    of partitions for example, all are removed unless an option selects some.

    [bold]sluice break s3a://lake/flights[/]
    [bold]sluice break s3a://lake/flights --partition year=2013/month=1[/]
    [bold]sluice break s3a://lake/flights --token 133143986242 --yes[/]    in a script

    Exit codes: 0 the holders are removed, or there was none; 1 not confirmed, no
    holder matches, or ZooKeeper refuses; 2 bad arguments; 130 Ctrl-C.
    """
    from lock_manager.resources import TableResource  # noqa: PLC0415
    from sluice.locks.breaking import parse_partition, parse_token, select_holders  # noqa: PLC0415
    from sluice.locks.status import describe, format_duration, read_status  # noqa: PLC0415

    resource = TableResource.of(table)
    partition = None if partition is None else parse_partition(partition)
    token_number = None if token is None else parse_token(token)
    with interruptible(), _make_inspector(zookeeper, lock_root, lock_url) as inspector:
        snapshot = read_status(inspector, resource)
        (locks,) = snapshot.tables
        holders = select_holders(locks, partition, token_number)
        if not holders:
            print(f"{locks.name}: no holders")
            return
        for holder in holders:
            duration = format_duration(snapshot.seconds(holder))
            print(f"{locks.name}: held for {duration} by {describe(holder)}", flush=True)
        if not yes and not _user_confirms(
            "Remove these holders? The guard refuses their further commits; a writer without it goes on."
        ):
            sys.stderr.write("sluice: nothing was removed\n")
            raise typer.Exit(FAILED)
        for holder in holders:
            is_removed = inspector.remove(locks, holder)
            print(f"removed: {describe(holder)}" if is_removed else f"released in the meantime: {describe(holder)}")


def _make_inspector(zookeeper: str | None, lock_root: str | None, lock_url: str | None) -> Inspector:
    from lock_manager.managers import inspector_of  # noqa: PLC0415

    return inspector_of(lock_settings(zookeeper, lock_root, lock_url=lock_url))


def _user_confirms(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort as abort:
        if isinstance(abort.__context__, Interrupted):
            raise abort.__context__ from None
        # Standard input has ended.
        sys.stderr.write("\nsluice: no confirmation; pass --yes to skip the question\n")
        return False


def doctor(
    *,
    zookeeper: ZooKeeperOption = None,
    lock_url: LockUrlOption = None,
    lock_root: LockRootOption = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Also check that its store refuses to overwrite, and that this coordinator adopted the table.",
        ),
    ] = None,
    bucket: Annotated[str | None, typer.Option(metavar="NAME", help="Check the store of an S3 bucket.")] = None,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the requirements of a locked write. A check that fails names the next step.

    The ensemble: every server answers, there is one leader and a quorum that
    accepts writes; versions, latency, clocks, and permissions below the lock
    root. Or the bucket of locks on S3: the store keeps the conditions of PUTs,
    also if several clients try at once; permissions, latency, and rules that may
    delete locks. It writes the object doctor.json below the prefix. This machine:
    Python packages, pinned jars, the guarded log store. With --table or --bucket:
    the store refuses to overwrite, also if several writers try at once; scratch
    objects are removed. With --table: this coordinator has adopted the table.
    Without a coordinator the other checks still run, and it is reported as
    missing.

    [bold]sluice doctor --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice doctor --lock-url s3-lease://lake-locks/locks[/]
    [bold]sluice doctor --table s3a://lake/flights[/]

    Exit codes: 0 no check failed (a note is not a failure), 1 a check failed,
    2 bad arguments, 130 Ctrl-C.
    """
    from sluice.doctor.examination import examine, print_findings  # noqa: PLC0415

    if table is not None and bucket is not None:
        raise typer.BadParameter("cannot be combined with --table", param_hint="--bucket")
    options = parse_pairs(storage_option)
    is_given = is_coordinator_given(zookeeper, lock_url)
    settings = lock_settings(zookeeper, lock_root, lock_url=lock_url) if is_given else None
    store = f"s3://{bucket}" if bucket is not None else table
    with interruptible():
        findings = examine(settings, store, options, table=table)
    if as_json:
        print(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        print_findings(findings, plain_console())
    if any(finding.failed for finding in findings):
        raise typer.Exit(FAILED)
