"""Commands that run many writers: ``demo``, ``soak``."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.commands.parts import FAILED, Verbose, in_a_sentence
from sluice.interrupts import interruptible


def register(app: typer.Typer) -> None:
    """Add the commands to ``sluice``."""
    app.command()(demo)
    app.command()(soak)


class Storage(StrEnum):
    """Where the demo's tables go."""

    S3 = "s3"
    LOCAL = "local"


@in_a_sentence
def demo(
    *,
    storage: Annotated[Storage, typer.Option(help="An embedded S3, or the disk.")] = Storage.S3,
    writers: Annotated[int, typer.Option(min=1, help="How many spark-submit processes.")] = 5,
    commits: Annotated[int, typer.Option(min=1, help="How many commits, in all.")] = 40,
    compare: Annotated[bool, typer.Option("--compare", help="Load again without the lock, and show both.")] = False,
    output: Annotated[Path, typer.Option(help="Folder for the report, the picture and the logs.")] = Path("build/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the table and the loaded files there too.")] = False,
    rows: Annotated[int | None, typer.Option(min=1, help="Load only the first flights.  [dim]default: all[/]")] = None,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Another S3, with AWS_* variables.  [dim]default: an embedded S3[/]"),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One that is there, to use a prefix of it.  [dim]default: one is made[/]"),
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Five Spark writers load 336,776 flights into one table at once; check that nothing is lost.

    Starts a ZooKeeper and an S3 of its own, and one spark-submit per writer;
    nothing else is needed. Leaves report.json, timeline.png and the writers'
    logs in the output folder, with --compare also comparison.png; each replaces
    the one of an earlier demo. Without --compare an earlier comparison.png stays,
    and the last line of output names it. Fails if a row is missing or there
    twice, if two writers ever held the lock at once, or if an acknowledged
    commit is lost.

    [bold]sluice demo[/]
    [bold]sluice demo --compare[/]                            what happens without the lock?
    [bold]sluice demo --storage local --writers 2 --commits 6 --rows 50000[/]
    [bold]sluice demo --s3-endpoint https://s3.example.com[/]  makes a bucket and removes it
    [bold]sluice demo --bucket scratch[/]                     AWS itself, below a prefix

    AWS_ENDPOINT_URL counts as --s3-endpoint beside --bucket.
    On another S3 credentials and region are those of AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION; buckets are part of
    the path, or with AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true of the host's name.
    What the demo writes there is removed in the end.
    """
    from sluice.demo.run import DemoOptions, run_demo  # noqa: PLC0415

    options = DemoOptions(
        storage=storage.value, writers=writers, commits=commits, compare=compare, output=output, keep=keep, rows=rows,
        s3_endpoint=s3_endpoint, bucket=bucket,
    )  # fmt: skip
    with interruptible():
        if not run_demo(options, Console(highlight=False)):
            raise typer.Exit(FAILED)


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


@in_a_sentence
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
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Many writers, faults, and a check of every promise.

    Writers are processes that commit to Delta tables through the guarded log
    store, under the lock. Faults strike them at points of their work: paused,
    killed, cut off from ZooKeeper, lied to by S3. Then a reader that is not
    ours reads the table, and every promise is checked: nothing that was
    acknowledged is lost or there twice, no version changed, no zombie wrote.

    [bold]sluice soak --commits 100 --seed 7[/]
    [bold]sluice soak --faults pause-both,s3-lost-reply --minutes 5[/]
    [bold]sluice soak --faults pause-both --without guard[/]      must fail

    With --jobs mixed: append.py, upsert.py, cdc.py, stream.py and maintain.py
    --auto work on one table with real flights, and are killed and started
    again. The table must have, row by row, what was fed, and no job may fail.
    Files are removed a minute after they were replaced; a pinned version and
    what a slow reader has not read must stay, and planted orphans must go.
    Then the same with stock Delta and no lock, to compare. It takes --minutes
    (10), --seed, --zookeeper, --output and --json; no other option.

    [bold]sluice soak --jobs mixed --minutes 10[/]

    Exit codes: 0 all invariants hold, 1 one does not, or a class of faults that
    --faults names never struck, 2 bad arguments, 130 Ctrl-C.
    """
    from dataclasses import replace  # noqa: PLC0415

    from sluice.soak.command import choose_faults, run_soak  # noqa: PLC0415
    from sluice.soak.faults import CLASSES  # noqa: PLC0415
    from sluice.soak.options import SoakOptions  # noqa: PLC0415
    from sluice.soak.steps import STEPS  # noqa: PLC0415

    if jobs is Jobs.MIXED:
        _refuse_others(context, _OF_MIXED)
        from sluice.soak.mixed.command import MixedOptions, run_mixed  # noqa: PLC0415

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
