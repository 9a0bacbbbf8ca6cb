"""``python -m soak``: many writers, faults, and a check of every promise."""

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
    """What a soak's writers are."""

    STORE = "store"
    SPARK = "spark"


class Jobs(StrEnum):
    """What a soak's processes do."""

    APPENDS = "appends"
    MIXED = "mixed"


class Hold(StrEnum):
    """What the lock is held over."""

    COMMIT = "commit"
    WRITE = "write"


class Without(StrEnum):
    """The protection that a soak leaves out."""

    GUARD = "guard"
    CONDITION = "condition"
    BINDING = "binding"
    INTENT = "intent"
    REGISTRY = "registry"
    ATTEMPTS = "attempts"
    VERSION = "version"
    IDENTITY = "identity"
    BLOCK = "block"


_OF_MIXED = {"jobs", "minutes", "seed", "zookeeper", "output", "as_json", "verbose"}


@app.command()
@errors_as_sentences
def soak(
    context: typer.Context,
    *,
    jobs: Annotated[
        Jobs, typer.Option(help="Appends with faults, or all jobs at once on one table, killed and started again.")
    ] = Jobs.APPENDS,
    writers: Annotated[int, typer.Option(min=1, max=64, help="How many processes.")] = 4,
    commits: Annotated[
        int | None, typer.Option(min=1, help="Until so many are acknowledged.  [dim]default: 300[/]")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="For so long instead.")] = None,
    faults: Annotated[
        str, typer.Option(metavar="none|all|LIST", help="Classes of faults, with commas; [bold]--list-faults[/].")
    ] = "all",
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Say what they are, and stop.")] = False,
    seed: Annotated[int, typer.Option(help="Of which fault strikes which writer where; not of their timing.")] = 1,
    engine: Annotated[
        Engine, typer.Option(help="The log store in a JVM without Spark, or whole Spark jobs.")
    ] = Engine.STORE,
    hold: Annotated[
        Hold, typer.Option(help="With [bold]--engine spark[/]: the lock for the commit alone, or over the whole write.")
    ] = Hold.COMMIT,
    without: Annotated[
        Without | None,
        typer.Option(help="Leave one protection out, to see what it is good for: the soak must fail then."),
    ] = None,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="An ensemble.  [dim]default: an embedded one[/]")
    ] = None,
    zookeeper_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Run the soak's own ensemble in containers of this image.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="URI", help="s3a://BUCKET/PREFIX, with AWS_* variables.  [dim]default: an embedded S3[/]"),
    ] = None,
    session: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="ZooKeeper session time-out.")] = 3.0,
    gap: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="COMMITS", help="Between two faults; if not given, a hundredth of all, at least 5."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for history, verdict and picture.")] = Path("build/soak"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the stack trace of an error.")] = False,  # noqa: ARG001
) -> None:
    """Many writers, faults, and a check of every promise.

    Writers are processes that commit to Delta tables through the guarded log
    store, under the lock. Faults strike them at points of their work: paused,
    killed, cut off from ZooKeeper, lied to by S3. Then a reader that is not
    ours reads the table, and every promise is checked: nothing that was
    acknowledged is lost or there twice, no version changed, no zombie wrote.

    [bold]python -m soak --commits 100 --seed 7[/]
    [bold]python -m soak --faults pause-both,s3-lost-reply --minutes 5[/]
    [bold]python -m soak --faults pause-both --without guard[/]      must fail

    With --jobs mixed: append.py, upsert.py, cdc.py, stream.py and maintain.py
    --auto work on one table with real flights, and are killed and started
    again. The table must have, row by row, what was fed, and no job may fail.
    Files are removed a minute after they were replaced; a pinned version and
    what a slow reader has not read must stay, and planted orphans must go.
    Then the same with stock Delta and no lock, to compare. It takes --minutes
    (10), --seed, --zookeeper, --output and --json; no other option.

    [bold]python -m soak --jobs mixed --minutes 10[/]

    Exit codes: 0 all invariants hold, 1 one does not, or a class of faults that
    --faults names never struck, 2 bad arguments, 130 Ctrl-C.
    """
    if jobs is Jobs.MIXED:
        _refuse_others(context, _OF_MIXED)
        mixed = MixedOptions(minutes=minutes or 10.0, seed=seed, zookeeper=zookeeper, output=output)
        with interruptible():
            if not run_mixed(mixed, as_json=as_json):
                raise typer.Exit(FAILED)
        return
    if list_faults:
        about = {name: each.what for name, each in CLASSES.items()} | {name: each.what for name, each in STEPS.items()}
        for name, what in about.items():
            print(f"{name:<26} {what}")
        return
    if commits is not None and minutes is not None:
        raise typer.BadParameter("give either --commits or --minutes", param_hint="--minutes")
    options = SoakOptions(
        engine=engine.value, writers=writers, commits=None if minutes else commits or 300, minutes=minutes, seed=seed,
        hold=hold.value, without=without.value if without else None, zookeeper=zookeeper,
        zookeeper_image=zookeeper_image, table=table,
        session_seconds=session, gap=gap, output=output,
    )  # fmt: skip
    options = replace(options, faults=choose_faults(faults, options))
    with interruptible():
        if not run_soak(options, as_json=as_json, must_strike=faults not in ("none", "all")):
            raise typer.Exit(FAILED)


def _refuse_others(context: typer.Context, taken: Collection[str]) -> None:
    """Refuse an option that was given, and that would have no effect."""
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name not in taken and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("has no effect with --jobs mixed: leave it out", param_hint=each.opts[0])


if __name__ == "__main__":
    app(prog_name="python -m soak")
