"""Commands that look at the ensemble: ``ensemble status``, ``ensemble ready``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.commands.options import Commands, Verbose, ZooKeeperOption, lock_settings
from sluice.console import FAILED, errors_as_sentences, table_console
from sluice.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.ensemble.members import Server
    from sluice.ensemble.ready import Readiness

_COLUMNS = ("server", "mode", "version", "zxid", "epoch", "synced", "sessions", "conns", "queued")
_TEXTS = ("server", "mode", "version")

ensemble = Commands(name="ensemble", no_args_is_help=True, help="Look at the ZooKeeper servers themselves.")


@ensemble.command()
@errors_as_sentences
def status(
    *,
    zookeeper: ZooKeeperOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Ask every server of the connection string what it is and how it is.

    By the four-letter words srvr and mntr, all servers at once and for 2 s
    each, over TLS and with the client certificate if SLUICE_ZK_* say so. Needs
    no quorum and no session. What is behind the hosts (a chroot) does not count.

    [bold]sluice ensemble status --zookeeper zk1:2281,zk2:2281,zk3:2281[/]
    [bold]sluice ensemble status --json[/]

    Exit codes: 0 told, 1 no server serves, 2 bad arguments, 130 Ctrl-C.
    """
    from sluice.ensemble.members import ask_servers  # noqa: PLC0415

    with interruptible():
        servers = ask_servers(lock_settings(zookeeper))
    if as_json:
        print(json.dumps({"servers": [server.to_json() for server in servers]}, indent=2))
    else:
        _print(servers, table_console(Console(highlight=False)))
    if all(server.mode is None for server in servers):
        sys.stderr.write("sluice: no server serves: look at what each of them says\n")
        raise typer.Exit(FAILED)


@ensemble.command()
@errors_as_sentences
def ready(
    *,
    zookeeper: ZooKeeperOption = None,
    expect: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many servers there are.  [dim]default: as many as are named[/]"),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Look again until it is ready, for so long.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Succeed only if all servers, and not merely a majority, serve one quorum in step.

    One leader, all others its followers, in sync and at its epoch; what is
    written through one server is read through each of the others, below the
    lock root, with a scratch node that goes again. One server that runs alone
    is ready only with --expect 1. The gate before the next server is replaced:

    [bold]sluice ensemble ready --wait 300 && pulumi up[/]
    [bold]sluice ensemble ready --zookeeper zk1:2281,zk2:2281,zk3:2281 --expect 3[/]

    Exit codes: 0 ready, 1 not ready (a sentence for each thing that is wrong),
    2 bad arguments, 130 Ctrl-C.
    """
    from sluice.ensemble.ready import wait_until_ready  # noqa: PLC0415

    said: list[str] = []

    def tell(found: Readiness, left: float) -> None:
        news = "; ".join(found.wrong)
        if [news] != said:
            said[:] = [news]
            sys.stderr.write(f"sluice: not ready yet, {left:.0f} s are left: {news}\n")
            sys.stderr.flush()

    with interruptible():
        found = wait_until_ready(lock_settings(zookeeper), expect, wait, tell)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    elif found.ready:
        print(_praise(found))
    for sentence in found.wrong:
        sys.stderr.write(f"sluice: not ready: {sentence}\n")
    if not found.ready:
        raise typer.Exit(FAILED)


def _praise(found: Readiness) -> str:
    (first,) = [server for server in found.servers if server.mode in ("leader", "standalone")]
    return f"ready: {found.expected} of {found.expected} serve, {first.mode} {first.address}, epoch {first.epoch}"


def _print(servers: Sequence[Server], console: Console) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from sluice.ensemble.members import SAYS_NOTHING  # noqa: PLC0415
    from sluice.locks.status import printable  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        text = name in _TEXTS
        table.add_column(name, justify="left" if text else "right", no_wrap=text, overflow="fold")
    for server in servers:
        told = server.to_json()
        cells = (
            server.address, told["mode"], told["version"], told["zxid"], told["epoch"],
            told["synced_followers"], told["sessions"], told["connections"], told["outstanding"],
        )  # fmt: skip
        style = "red" if server.mode is None else "bold" if server.mode == "leader" else None
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells), style=style)
    console.print(table)
    for server in servers:
        if server.mode is None:
            said = f"{server.address} {printable(server.problem or SAYS_NOTHING)}"
            console.print(Text(said, style="red"), soft_wrap=True)
