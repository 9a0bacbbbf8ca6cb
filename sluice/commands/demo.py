"""The command ``demo``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sluice.console import FAILED, plain_console
from sluice.interrupts import interruptible


class Storage(StrEnum):
    """The store of the demo's tables."""

    S3 = "s3"
    LOCAL = "local"


class Coordinator(StrEnum):
    """The coordinator of the demo's locks."""

    ZOOKEEPER = "zookeeper"
    S3_LEASE = "s3-lease"


def demo(
    *,
    storage: Annotated[Storage, typer.Option(help="An embedded S3, or the disk.")] = Storage.S3,
    coordinator: Annotated[
        Coordinator, typer.Option(help="Locks in an embedded ZooKeeper, or in objects beside the tables on S3.")
    ] = Coordinator.ZOOKEEPER,
    writers: Annotated[int, typer.Option(min=1, help="Number of spark-submit processes.")] = 5,
    commits: Annotated[int, typer.Option(min=1, help="Number of commits of all writers together.")] = 40,
    compare: Annotated[bool, typer.Option("--compare", help="Load again without the lock, and compare.")] = False,
    output: Annotated[Path, typer.Option(help="Folder for the report, the picture and the logs.")] = Path("build/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep tables and source files in the output folder.")] = False,
    rows: Annotated[int | None, typer.Option(min=1, help="Load only this many flights.  [dim]default: all[/]")] = None,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Another S3; credentials from AWS_* variables.  [dim]default: an embedded S3[/]"
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="An existing bucket; the demo uses a prefix.  [dim]default: a new bucket[/]"),
    ] = None,
    hdfs: Annotated[
        str | None,
        typer.Option(metavar="URI", help="A folder on HDFS; settings from HADOOP_CONF_DIR.  [dim]default: S3[/]"),
    ] = None,
) -> None:
    """Load 336,776 flights into one table with five Spark writers, and check that nothing is lost.

    Starts its own S3, its own ZooKeeper unless the locks are on S3, and one
    spark-submit per writer.
    Writes report.json, timeline.png and the writers' logs to the output folder,
    with --compare also comparison.png. These files replace those of an earlier
    demo. Without --compare an earlier comparison.png stays, and the last line of
    output names it. Fails if a row is missing or duplicated, if two writers held
    the lock at the same time, or if an acknowledged commit is lost.

    [bold]sluice demo[/]
    [bold]sluice demo --compare[/]                            compare with a load without the lock
    [bold]sluice demo --coordinator s3-lease[/]               locks on S3, without ZooKeeper
    [bold]sluice demo --storage local --writers 2 --commits 6 --rows 50000[/]
    [bold]sluice demo --s3-endpoint https://s3.example.com[/]  creates and removes a bucket
    [bold]sluice demo --bucket scratch[/]                     AWS itself, below a prefix
    [bold]sluice demo --hdfs hdfs://lake/scratch[/]           HDFS, in a folder below this one

    With --bucket, AWS_ENDPOINT_URL has the effect of --s3-endpoint.
    Another S3 takes credentials and region from AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION. The bucket is part of
    the path, or of the host name with AWS_VIRTUAL_HOSTED_STYLE_REQUEST=true. The
    demo removes its objects at the end, and its folder on HDFS.
    """
    from sluice.demo.run import DemoOptions, run_demo  # noqa: PLC0415

    options = DemoOptions(
        storage=storage.value, coordinator=coordinator.value, writers=writers, commits=commits, compare=compare,
        output=output, keep=keep, rows=rows, s3_endpoint=s3_endpoint, bucket=bucket, hdfs=hdfs,
    )  # fmt: skip
    with interruptible():
        if not run_demo(options, plain_console()):
            raise typer.Exit(FAILED)
