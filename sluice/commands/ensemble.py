"""Commands on the ensemble's servers: ``ensemble status``, ``ensemble ready``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from sluice.commands.options import Commands, JsonOption, ZooKeeperOption, zookeeper_settings
from sluice.console import FAILED, make_table, plain_console, table_console
from sluice.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.ensemble.members import Server
    from sluice.ensemble.ready import Readiness

# Headings of the table, and the fields of the JSON object.
_COLUMNS = {
    "server": "address", "mode": "mode", "version": "version", "zxid": "zxid", "epoch": "epoch",
    "synced": "synced_followers", "sessions": "sessions", "conns": "connections", "queued": "outstanding",
}  # fmt: skip
_TEXT_COLUMNS = ("server", "mode", "version")

ensemble = Commands(name="ensemble", no_args_is_help=True, help="Check the ZooKeeper servers.")


@ensemble.command()
def status(*, zookeeper: ZooKeeperOption = None, as_json: JsonOption = False) -> None:
    """Show the state of each server in the connection string.

    Sends the four-letter words srvr and mntr to all servers in parallel, with a
    timeout of 2 s each. Uses TLS and the client certificate if SLUICE_ZK_TLS_*
    configure them. Needs no quorum and no session. Ignores a chroot.

    [bold]sluice ensemble status --zookeeper zk1:2281,zk2:2281,zk3:2281[/]
    [bold]sluice ensemble status --json[/]

    Exit codes: 0 shown, 1 no server serves, 2 bad arguments, 130 Ctrl-C.
    """
    from sluice.ensemble.members import ask_servers  # noqa: PLC0415

    with interruptible():
        servers = ask_servers(zookeeper_settings(zookeeper))
    if as_json:
        print(json.dumps({"servers": [server.to_json() for server in servers]}, indent=2))
    else:
        _print_servers(servers, table_console(plain_console()))
    if all(server.mode is None for server in servers):
        sys.stderr.write("sluice: no server serves; see the problem of each server above\n")
        raise typer.Exit(FAILED)


@ensemble.command()
def ready(
    *,
    zookeeper: ZooKeeperOption = None,
    expect: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of servers.  [dim]default: the number in --zookeeper[/]"),
    ] = None,
    wait: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="How long to wait until it is ready.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Succeed only if all servers, not only a majority, serve one quorum in sync.

    Requires one leader, with all others as its followers, in sync and at its
    epoch. Writes a scratch node below the lock root through one server, reads it
    through each server, and deletes it. A standalone server is ready only
    with --expect 1. Run this command before the next server is replaced:

    [bold]sluice ensemble ready --wait 300 && pulumi up[/]
    [bold]sluice ensemble ready --zookeeper zk1:2281,zk2:2281,zk3:2281 --expect 3[/]

    Exit codes: 0 ready, 1 not ready (one sentence for each problem), 2 bad
    arguments, 130 Ctrl-C.
    """
    from sluice.ensemble.ready import wait_until_ready  # noqa: PLC0415

    last_problems: tuple[str, ...] = ()

    def report(readiness: Readiness, seconds_left: float) -> None:
        nonlocal last_problems
        if readiness.problems != last_problems:
            last_problems = readiness.problems
            problems = "; ".join(readiness.problems)
            sys.stderr.write(f"sluice: not ready yet, {seconds_left:.0f} s are left: {problems}\n")
            sys.stderr.flush()

    with interruptible():
        readiness = wait_until_ready(zookeeper_settings(zookeeper), expect, wait, report)
    if as_json:
        print(json.dumps(readiness.to_json(), indent=2))
    elif readiness.is_ready:
        (leader,) = [server for server in readiness.servers if server.mode in ("leader", "standalone")]
        count = readiness.expected
        print(f"ready: {count} of {count} serve, {leader.mode} {leader.address}, epoch {leader.epoch}")
    for problem in readiness.problems:
        sys.stderr.write(f"sluice: not ready: {problem}\n")
    if not readiness.is_ready:
        raise typer.Exit(FAILED)


def _print_servers(servers: Sequence[Server], console: Console) -> None:
    from sluice.ensemble.members import NO_ANSWER_TO_SRVR  # noqa: PLC0415
    from sluice.locks.status import printable  # noqa: PLC0415

    table = make_table(_COLUMNS, right=set(_COLUMNS).difference(_TEXT_COLUMNS), no_wrap=_TEXT_COLUMNS)
    for server in servers:
        fields = server.to_json()
        cells = [fields[name] for name in _COLUMNS.values()]
        style = "red" if server.mode is None else "bold" if server.mode == "leader" else None
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells), style=style)
    console.print(table)
    for server in servers:
        if server.mode is None:
            problem = f"{server.address} {printable(server.problem or NO_ANSWER_TO_SRVR)}"
            console.print(Text(problem, style="red"), soft_wrap=True)
