"""Commands that prepare a cluster or a first try: ``jars``, ``dist``, ``submit-args``, ``sample``, ``zookeeper``."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.commands.options import Verbose
from sluice.console import errors_as_sentences
from sluice.interrupts import interruptible


def register(app: typer.Typer) -> None:
    """Add the commands to ``sluice``."""
    app.command()(jars)
    app.command()(dist)
    app.command("submit-args")(submit_args)
    app.command()(sample)
    app.command()(zookeeper)


@errors_as_sentences
def jars(
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Where to.  [dim]default: $SLUICE_JARS, or share/sluice/jars of this Python[/]")
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Bring the jars that Delta on S3 needs beside PySpark (27 MB), once.

    Each one is checked against its SHA-256. A folder that is complete is left as it is.
    """
    from sluice.local.jars import resolve_jars  # noqa: PLC0415

    console = Console(highlight=False)
    with console.status("Resolving the jars …"):
        paths = resolve_jars(folder)
    console.print(f"{len(paths)} jars in {paths[0].parent}", soft_wrap=True)


@errors_as_sentences
def dist(
    *,
    output: Annotated[Path, typer.Option(help="Where to write it.")] = Path("build/sluice-py.zip"),
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Build the zip for spark-submit's --py-files: lock_manager, writer_jobs, kazoo and pure-sasl.

    [bold]sluice dist --output sluice.zip[/]
    [bold]spark-submit $(sluice submit-args --zip sluice.zip) …/append.py --zookeeper …[/]
    """
    from sluice.submit.distribution import build_zip  # noqa: PLC0415

    print(build_zip(output))


class GuardMode(StrEnum):
    """What the commit guard does with a commit that does not hold the lock."""

    REQUIRED = "required"
    OBSERVE = "observe"
    OFF = "off"


@errors_as_sentences
def submit_args(
    *,
    archive: Annotated[
        Path | None,
        typer.Option("--zip", help="The zip that [bold]sluice dist[/] built.  [dim]default: one is built[/]"),
    ] = None,
    guard: Annotated[
        GuardMode | None,
        typer.Option(help="What to do with a commit that does not hold the lock.  [dim]default: required[/]"),
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Print the --jars, --py-files and --conf part of a spark-submit line.

    [bold]spark-submit --master spark://… $(sluice submit-args) writer_jobs/append.py --zookeeper …[/]
    """
    from shlex import join  # noqa: PLC0415

    from sluice.submit.distribution import submit_arguments  # noqa: PLC0415

    print(join(submit_arguments(archive, guard=guard)))


@errors_as_sentences
def sample(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; created if it does not exist.")],
    *,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Write three CSV files with 90 real flights to try a job with.

    [bold]sluice sample landing[/]
    [bold]spark-submit $(sluice submit-args) writer_jobs/append.py --source landing/*.csv …[/]
    """
    from sluice.sample import write_sample  # noqa: PLC0415

    for path in write_sample(folder):
        print(path)


@errors_as_sentences
def zookeeper(
    *,
    servers: Annotated[int, typer.Option(metavar="1|3", help="One server, or an ensemble of three.")] = 1,
    port: Annotated[
        int | None, typer.Option(min=1, max=65533, help="Of the first server.  [dim]default: free ports[/]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where data is kept.  [dim]default: a temporary folder, deleted at the end[/]")
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Run a ZooKeeper on 127.0.0.1 until Ctrl-C, to try things with.

    It comes with PySpark. Its connection string is printed as soon as it
    serves. All of its servers share this machine: not for production. A port
    that another program has is refused.

    [bold]sluice zookeeper --port 2181[/]
    [bold]sluice zookeeper --servers 3 --data ./zk[/]

    Exit codes: 1 a port is taken, or so many servers have ended that no quorum
    is left; 2 bad arguments; 130 Ctrl-C.
    """
    from lock_manager.errors import LocalServerError  # noqa: PLC0415
    from lock_manager.testing.embedded import EmbeddedZooKeeper  # noqa: PLC0415

    if servers not in (1, 3):
        raise typer.BadParameter("an ensemble has 1 server or 3", param_hint="--servers")
    with interruptible(), EmbeddedZooKeeper(servers, port=port, data_dir=data) as running:
        print(running.hosts, flush=True)
        sys.stderr.write(f"ZooKeeper serves; Ctrl-C or kill {os.getpid()} stops it\n")
        while True:
            ended = running.wait_for_end()
            sentence = f"server {ended.server_id} ({ended.address}) has ended: {ended.last_words()}"
            if 2 * sum(not server.has_ended() for server in running.servers) <= servers:
                raise LocalServerError(f"{sentence}; no quorum is left: start it again")
            sys.stderr.write(f"sluice: {sentence}; the others serve on\n")
