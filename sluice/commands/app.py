"""The commands of ``sluice``, put together. Each imports what it needs when it runs: ``--help`` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import sluice
from sluice.commands import cluster, demo, operate, tables
from sluice.commands.config import config
from sluice.commands.ensemble import ensemble
from sluice.commands.options import Commands

app = Commands(
    name="sluice",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(*, asked: bool) -> None:
    if asked:
        print(f"sluice {sluice.__version__}")
        raise typer.Exit


@app.callback()
def _sluice(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda asked: _show_version(asked=asked), is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Many Spark writers, one Delta Lake table, one commit at a time.

    [bold]sluice demo[/]                          five Spark writers load one table, and nothing is lost
    [bold]sluice verify s3a://lake/flights[/]     check a Delta table, on S3 or on disk
    [bold]sluice log s3a://lake/flights[/]        who committed what, when and under which hold
    [bold]sluice status[/]                        who holds which lock, and who waits
    [bold]sluice doctor[/]                        is everything there that a locked write needs?
    [bold]sluice ensemble ready[/]                do all ZooKeeper servers serve one quorum, in step?
    [bold]sluice config from-stack[/]             settings for jobs, from what pulumi made
    [bold]sluice sample landing[/]                a few flights, to try a job with
    [bold]sluice zookeeper[/]                     a ZooKeeper to try things with

    Exit codes: 0 done, 1 a check or the work itself failed, 2 bad arguments, 130 stopped by Ctrl-C.
    """


for subject in (demo, tables, operate, cluster):
    subject.register(app)
app.add_typer(ensemble)
app.add_typer(config)
