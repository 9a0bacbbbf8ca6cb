"""Commands that prepare a cluster or a first try, and ``run``, which runs an unchanged program."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sluice.commands.options import ZooKeeperOption
from sluice.console import plain_console
from sluice.interrupts import interruptible


def jars(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the jars.  [dim]default: $SLUICE_JARS, or share/sluice/jars of this Python[/]"),
    ] = None,
    class_path: Annotated[
        bool, typer.Option("--class-path", help="Download nothing; print the jars as a Java class path.")
    ] = False,
) -> None:
    """Download the jars that Delta on S3 needs in addition to PySpark (27 MB).

    Checks each jar against its SHA-256. A complete folder is not changed.
    """
    from sluice.local.jars import jar_paths, resolve_jars  # noqa: PLC0415

    if class_path:
        print(os.pathsep.join(map(str, jar_paths(folder))))
        return
    console = plain_console()
    with console.status("Resolving the jars …"):
        paths = resolve_jars(folder)
    console.print(f"{len(paths)} jars in {paths[0].parent}", soft_wrap=True)


def dist(*, output: Annotated[Path, typer.Option(help="The zip to write.")] = Path("build/sluice-py.zip")) -> None:
    """Build the zip for --py-files: lock_manager, writer_jobs, kazoo, pure-sasl and Delta's Python module.

    [bold]sluice dist --output sluice.zip[/]
    [bold]spark-submit $(sluice submit-args --zip sluice.zip) …/append.py --zookeeper …[/]
    """
    from sluice.submit.distribution import build_zip  # noqa: PLC0415

    print(build_zip(output))


class GuardMode(StrEnum):
    """How the commit guard treats a commit that does not hold the lock."""

    REQUIRED = "required"
    OBSERVE = "observe"
    OFF = "off"


class LockMode(StrEnum):
    """When an unchanged program gets its lock."""

    COMMIT = "commit"
    WRITE = "write"


class Job(StrEnum):
    """The jobs of ``writer_jobs``."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    UPSERT = "upsert"
    CDC = "cdc"
    STREAM = "stream"
    SNAPSHOT = "snapshot"
    MAINTAIN = "maintain"


def submit_args(
    job: Annotated[
        Job | None, typer.Argument(help="Print the path of this job's script at the end, too.", show_default=False)
    ] = None,
    *,
    archive: Annotated[
        Path | None,
        typer.Option("--zip", help="The zip of [bold]sluice dist[/].  [dim]default: a new one[/]"),
    ] = None,
    guard: Annotated[
        GuardMode | None,
        typer.Option(help="How to treat a commit that does not hold the lock.  [dim]default: required[/]"),
    ] = None,
    lock: Annotated[
        LockMode | None,
        typer.Option(
            help="Let an unchanged program wait for the lock at each commit, or when each transaction begins.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the --jars, --py-files and --conf part of a spark-submit line.

    [bold]spark-submit --master spark://… $(sluice submit-args append) --zookeeper …[/]
    [bold]spark-submit --master spark://… $(sluice submit-args) your_job.py[/]
    [bold]spark-sql $(sluice submit-args --lock commit) --conf spark.sluice.zookeeper=…[/]
    """
    from shlex import join  # noqa: PLC0415

    from sluice.submit.distribution import job_script, submit_arguments  # noqa: PLC0415

    arguments = submit_arguments(archive, guard=guard, lock=lock)
    if job is not None:
        arguments.append(str(job_script(job)))
    print(join(arguments))


def run(
    program: Annotated[str, typer.Argument(metavar="SCRIPT|MODULE", help="The program.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS…", help="Its arguments.", show_default=False)
    ] = None,
    *,
    is_module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    zookeeper: ZooKeeperOption = None,
    lock_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Instead of --zookeeper: s3-lease://BUCKET/PREFIX.  [dim]default: $SLUICE_LOCK_URL[/]",
        ),
    ] = None,
    guard: Annotated[
        GuardMode | None,
        typer.Option(help="How to treat a commit that gets no lock.  [dim]default: required[/]"),
    ] = None,
    lock: Annotated[
        LockMode, typer.Option(help="Wait for the lock at each commit, or when each transaction begins.")
    ] = LockMode.COMMIT,
) -> None:
    """Run a Spark program unchanged: each of its commits waits for the lock on its table.

    [bold]sluice run --zookeeper zk1:2281,zk2:2281 job.py --date 2013-01-01[/]
    [bold]sluice run -m company.jobs.nightly[/]

    This covers SQL, DataFrames, DeltaTable and streams (docs/how-to/unchanged.md).
    Options of sluice run come before the program. The exit code is the program's.
    """
    from lock_manager import LockSettings, SettingsError  # noqa: PLC0415
    from sluice.submit.program import run_program  # noqa: PLC0415

    if lock_url is not None and LockSettings.from_url(lock_url).is_optimistic:
        raise SettingsError(
            f"{lock_url}: an unchanged program needs locks; give --zookeeper or s3-lease://BUCKET/PREFIX"
        )
    settings = {
        "spark.sluice.zookeeper": zookeeper,
        "spark.sluice.lockUrl": lock_url,
        "spark.sluice.guard": guard,
        "spark.sluice.lock": lock,
    }
    chosen = {name: str(value) for name, value in settings.items() if value}
    run_program(program, arguments or [], is_module=is_module, settings=chosen)


def sample(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Target folder; created if it does not exist.")],
) -> None:
    """Write three CSV files with 90 real flights in all, to try a job with.

    [bold]sluice sample landing[/]
    [bold]spark-submit $(sluice submit-args) writer_jobs/append.py --source landing/*.csv …[/]
    """
    from sluice.sample import write_sample  # noqa: PLC0415

    for path in write_sample(folder):
        print(path)


def zookeeper(
    *,
    servers: Annotated[int, typer.Option(metavar="1|3", help="A single server, or an ensemble of three.")] = 1,
    port: Annotated[
        int | None, typer.Option(min=1, max=65533, help="Port of the first server.  [dim]default: free ports[/]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data folder.  [dim]default: a temporary folder, deleted at the end[/]")
    ] = None,
) -> None:
    """Run a ZooKeeper on 127.0.0.1 until Ctrl-C, for first tries.

    Uses the ZooKeeper that PySpark ships. Prints the connection string as soon
    as it serves. All servers run on this machine, so it is not for production.
    Refuses a port that another program uses.

    [bold]sluice zookeeper --port 2181[/]
    [bold]sluice zookeeper --servers 3 --data ./zk[/]

    Exit codes: 1 a port is taken, or too few servers run to form a quorum;
    2 bad arguments; 130 Ctrl-C.
    """
    from lock_manager.errors import LocalServerError  # noqa: PLC0415
    from lock_manager.testing.embedded import EmbeddedZooKeeper  # noqa: PLC0415

    if servers not in (1, 3):
        raise typer.BadParameter("must be 1 or 3", param_hint="--servers")
    with interruptible(), EmbeddedZooKeeper(servers, port=port, data_dir=data) as ensemble:
        print(ensemble.hosts, flush=True)
        sys.stderr.write(f"ZooKeeper is running; Ctrl-C or kill {os.getpid()} stops it\n")
        while True:
            server = ensemble.wait_for_end()
            sentence = f"server {server.server_id} ({server.address}) has ended: {server.likely_cause()}"
            if 2 * sum(not server.has_ended() for server in ensemble.servers) <= servers:
                raise LocalServerError(f"{sentence}; no quorum is left; start ZooKeeper again")
            sys.stderr.write(f"sluice: {sentence}; the other servers keep running\n")
