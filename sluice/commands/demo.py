"""The command ``demo``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.commands.options import Verbose
from sluice.console import FAILED, errors_as_sentences
from sluice.interrupts import interruptible


def register(app: typer.Typer) -> None:
    """Add the command to ``sluice``."""
    app.command()(demo)


class Storage(StrEnum):
    """Where the demo's tables go."""

    S3 = "s3"
    LOCAL = "local"


@errors_as_sentences
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
