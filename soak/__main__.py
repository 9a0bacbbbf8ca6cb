"""``python -m soak``: run many writers, inject faults, and check every promise."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sluice.console import FAILED, errors_as_sentences
from sluice.interrupts import interruptible
from soak.command import choose_faults, run_soak
from soak.controls import Protection
from soak.faults import CLASSES
from soak.mixed.command import MixedOptions, run_mixed
from soak.options import SoakOptions
from soak.steps import STEPS

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Engine(StrEnum):
    """Value of ``--engine``."""

    STORE = "store"
    SPARK = "spark"


class Jobs(StrEnum):
    """Value of ``--jobs``."""

    APPENDS = "appends"
    MIXED = "mixed"


class Coordinator(StrEnum):
    """Value of ``--coordinator``."""

    ZOOKEEPER = "zookeeper"
    S3_LEASE = "s3-lease"


class Hold(StrEnum):
    """Value of ``--hold``."""

    COMMIT = "commit"
    WRITE = "write"


_MIXED_PARAMETERS = {"jobs", "minutes", "seed", "zookeeper", "output", "as_json", "verbose"}


@app.command()
@errors_as_sentences
def soak(
    context: typer.Context,
    *,
    jobs: Annotated[
        Jobs, typer.Option(help="Appends with faults, or all jobs at once on one table, killed and restarted.")
    ] = Jobs.APPENDS,
    writers: Annotated[int, typer.Option(min=1, max=64, help="Number of writer processes.")] = 4,
    commits: Annotated[
        int | None,
        typer.Option(min=1, help="Acknowledged commits after which the run ends.  [dim]default: 300[/]"),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Minutes after which the run ends, instead of --commits.")
    ] = None,
    faults: Annotated[
        str,
        typer.Option(metavar="none|all|LIST", help="Comma-separated classes of faults; see [bold]--list-faults[/]."),
    ] = "all",
    list_faults: Annotated[bool, typer.Option("--list-faults", help="List faults and steps, and exit.")] = False,
    seed: Annotated[int, typer.Option(help="Seed that chooses fault, writer and point; timing varies.")] = 1,
    engine: Annotated[
        Engine, typer.Option(help="Writers use the log store in a JVM without Spark, or are Spark drivers.")
    ] = Engine.STORE,
    hold: Annotated[
        Hold, typer.Option(help="With [bold]--engine spark[/]: lock the commit alone, or the whole write.")
    ] = Hold.COMMIT,
    group_commits: Annotated[
        bool,
        typer.Option(help="With [bold]--engine spark[/] at the gate: a holder commits appends that wait behind it."),
    ] = True,
    without: Annotated[
        Protection | None, typer.Option(help="Leave one protection out. Then the soak must fail.")
    ] = None,
    coordinator: Annotated[
        Coordinator, typer.Option(help="Coordinator of the locks: ZooKeeper, or objects on S3 beside the tables.")
    ] = Coordinator.ZOOKEEPER,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="Existing ensemble.  [dim]default: an embedded one[/]")
    ] = None,
    zookeeper_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Image of ZooKeeper: the ensemble runs in containers.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="URI", help="s3a://BUCKET/PREFIX, with AWS_* variables.  [dim]default: an embedded S3[/]"),
    ] = None,
    session: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="ZooKeeper session timeout, or lease on S3.")
    ] = 3.0,
    gap: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="COMMITS", help="Commits between two faults.  [dim]default: --commits / 100, at least 5[/]"
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for history, verdict and picture.")] = Path("build/soak"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the stack trace of an error.")] = False,  # noqa: ARG001
) -> None:
    """Run many writers, inject faults, and check every promise.

    Writers are processes that commit to Delta tables through the guarded log
    store, under the lock. Faults strike them at points of their work: they are
    paused, killed, cut off from their lock, or get errors from S3. Then deltalake
    reads the tables, and every promise is checked: no acknowledged row is lost
    or duplicated, no version changed, and no writer without the lock committed.

    [bold]python -m soak --commits 100 --seed 7[/]
    [bold]python -m soak --faults pause-both,s3-lost-reply --minutes 5[/]
    [bold]python -m soak --faults pause-both --without guard[/]      must fail
    [bold]python -m soak --coordinator s3-lease[/]                  locks on S3

    With --jobs mixed, append.py, upsert.py, cdc.py, stream.py and maintain.py
    --auto work on one table with real flights, and are killed and restarted.
    In the end the table must contain exactly the expected rows, and no job
    may fail by itself. Files are removed a minute after they were replaced. The
    files of a pinned version and of a slow reader must remain, and planted
    orphans must be removed. Then stock Delta without a lock does the same, for
    comparison. Only --minutes (10), --seed, --zookeeper, --output, --json and
    --verbose apply.

    [bold]python -m soak --jobs mixed --minutes 10[/]

    Exit codes: 0 all invariants hold; 1 an invariant is violated, or a class of
    faults in the list of --faults never struck; 2 bad arguments; 130 Ctrl-C.
    """
    if jobs is Jobs.MIXED:
        _refuse_other_options(context, _MIXED_PARAMETERS)
        mixed = MixedOptions(minutes=minutes or 10.0, seed=seed, zookeeper=zookeeper, output=output)
        with interruptible():
            if not run_mixed(mixed, as_json=as_json):
                raise typer.Exit(FAILED)
        return
    if list_faults:
        descriptions = {name: fault.description for name, fault in CLASSES.items()}
        descriptions |= {name: step.description for name, step in STEPS.items()}
        for name, description in descriptions.items():
            print(f"{name:<26} {description}")
        return
    if commits is not None and minutes is not None:
        raise typer.BadParameter("give either --commits or --minutes", param_hint="--minutes")
    options = SoakOptions(
        engine=engine.value, writers=writers, commits=None if minutes else commits or 300, minutes=minutes, seed=seed,
        lock_during=hold.value, group_commits=group_commits, without=without.value if without else None,
        coordinator=coordinator.value, zookeeper=zookeeper, zookeeper_image=zookeeper_image, table=table,
        session_seconds=session, gap=gap, output=output,
    )  # fmt: skip
    options = replace(options, faults=choose_faults(faults, options))
    with interruptible():
        if not run_soak(options, as_json=as_json, must_strike=faults not in ("none", "all")):
            raise typer.Exit(FAILED)


def _refuse_other_options(context: typer.Context, allowed: Collection[str]) -> None:
    """Raise if the command line has an option outside of ``allowed``, which would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("has no effect with --jobs mixed; leave it out", param_hint=parameter.opts[0])


if __name__ == "__main__":
    app(prog_name="python -m soak")
