"""The commands of ``sluice``. Each one imports the modules that it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

import sluice
from sluice.commands import cluster, demo, operate, tables
from sluice.commands.config import config
from sluice.commands.ensemble import ensemble
from sluice.commands.options import Commands
from sluice.commands.ui import ui

app = Commands(
    name="sluice",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(*, requested: bool) -> None:
    if requested:
        print(f"sluice {sluice.__version__}")
        raise typer.Exit


@app.callback()
def _sluice(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda requested: _show_version(requested=requested),
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Many Spark writers, one Delta Lake table, one commit at a time.

    [bold]sluice demo[/]                          load one table with five Spark writers
    [bold]sluice verify s3a://lake/flights[/]     check a Delta table, on S3 or on disk
    [bold]sluice log s3a://lake/flights[/]        list commits with their times and holds
    [bold]sluice status[/]                        list the holders and waiters of locks
    [bold]sluice ui[/]                            show all tables, their holders and waiters in the browser
    [bold]sluice doctor[/]                        check the requirements of a locked write
    [bold]sluice ensemble ready[/]                check that all ZooKeeper servers are in sync
    [bold]sluice config from-stack[/]             write settings from a stack's outputs
    [bold]sluice sample landing[/]                write a few flights to try a job with
    [bold]sluice zookeeper[/]                     run a ZooKeeper for first tries

    Exit codes: 0 done, 1 a check or the work itself failed, 2 bad arguments, 130 stopped by Ctrl-C.
    The help of a command lists others.
    """


for _name, _command in {
    "demo": demo.demo,
    "verify": tables.verify,
    "log": tables.log,
    "adopt": tables.adopt,
    "pins": tables.pins,
    "health": tables.health,
    "status": operate.status,
    "break": operate.break_lock,
    "doctor": operate.doctor,
    "ui": ui,
    "jars": cluster.jars,
    "dist": cluster.dist,
    "submit-args": cluster.submit_args,
    "sample": cluster.sample,
    "zookeeper": cluster.zookeeper,
}.items():
    app.command(_name)(_command)
# The options after the program are the program's.
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(cluster.run)
app.add_typer(ensemble)
app.add_typer(config)
