"""The commands of ``sluice``, as typer wants them. Each imports what it needs when it runs: ``--help`` is quick."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import sluice
from sluice.commands import operate
from sluice.commands.config import config
from sluice.commands.ensemble import ensemble
from sluice.commands.parts import FAILED, ZOOKEEPER_HINT, StorageOption, Verbose, in_a_sentence, key_and_value
from sluice.interrupts import interruptible

if TYPE_CHECKING:
    from sluice.audit.verify import Verification

app = typer.Typer(
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
    [bold]sluice soak[/]                          writers, faults, and whether the promises hold
    [bold]sluice zookeeper[/]                     a ZooKeeper to try things with

    Exit codes: 0 done, 1 a check or the work itself failed, 2 bad arguments, 130 stopped by Ctrl-C.
    """


class Storage(StrEnum):
    """Where the demo's tables go."""

    S3 = "s3"
    LOCAL = "local"


@app.command()
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
    logs in the output folder. Fails if a row is missing or there twice, if two
    writers ever held the lock at once, or if an acknowledged commit is lost.

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


@app.command()
@in_a_sentence
def verify(
    table: Annotated[str, typer.Argument(help="s3://…, s3a://…, file:… or a path.")],
    *,
    key: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns of which no combination may be there twice.")
    ] = "",
    storage_option: StorageOption = None,
    clock_skew: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="Forgive holds that seem to overlap by this much: clocks of several hosts differ, and fencing tokens "
            "prove the order anyway. 0 for writers on one host, as in the demo.",
        ),
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Check a Delta table on S3 or on disk, with the deltalake package and not with Spark.

    Versions are contiguous and none was overwritten; the rows are those that
    the log counts; no key is there twice; fencing tokens rise, recorded holds
    do not overlap, and all are of the table's own ZooKeeper ensemble and under
    its own name (sluice adopt). Commits without the lock are no failure: they
    are listed, by engine and version.

    [bold]sluice verify s3a://lake/flights --key time_hour,carrier,flight[/]
    [bold]sluice verify ./flights --json[/]
    [bold]sluice verify s3://lake/flights --storage-option AWS_ENDPOINT_URL=http://127.0.0.1:9000[/]

    Exit codes: 0 sound, 1 a check failed, 2 there is no such table or column.
    """
    from sluice.audit.verify import verify_table  # noqa: PLC0415

    options = dict(key_and_value(option) for option in storage_option or ())
    columns = [name.strip() for name in key.split(",") if name.strip()]
    found = verify_table(table, key=columns, storage_options=options, clock_skew_seconds=clock_skew)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print_verification(found, Console(highlight=False))
    if not found.ok:
        raise typer.Exit(FAILED)


@app.command()
@in_a_sentence
def log(
    table: Annotated[str, typer.Argument(help="s3://…, s3a://…, file:… or a path.")],
    *,
    limit: Annotated[int, typer.Option(min=0, help="Only that many, the newest; 0 for all.")] = 20,
    storage_option: StorageOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Tell who committed what to a table, when and under which hold, the newest first.

    Read from the log alone, without Spark and without ZooKeeper. Commits that
    were made without the lock are marked.

    [bold]sluice log s3a://lake/flights[/]
    [bold]sluice log ./flights --limit 0 --json[/]
    """
    from sluice.audit.table_log import log_to_json, print_log, read_table_log  # noqa: PLC0415

    options = dict(key_and_value(option) for option in storage_option or ())
    location, commits = read_table_log(table, limit=limit or None, storage_options=options)
    if as_json:
        print(json.dumps(log_to_json(location, commits), indent=2))
    else:
        print_log(location, commits, Console(highlight=False))


@app.command()
@in_a_sentence
def adopt(
    table: Annotated[str, typer.Argument(help="s3a://…, file:… or a path, as Spark writes it.")],
    *,
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="host:port,…  [dim]default: $SLUICE_ZK_HOSTS[/]")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Also if the table is pinned to another ensemble or name.")
    ] = False,
    from_hosts: Annotated[
        str | None,
        typer.Option("--from", metavar="HOSTS", help="The ensemble to move from: hold its lock meanwhile, too."),
    ] = None,
    lock_timeout: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="To wait for the lock.  [dim]default: 300[/]")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of Spark, such as an S3A endpoint; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Pin a table to this ZooKeeper ensemble and this name: no other lock counts.

    Commits the ensemble's id and the table's name as the table properties
    sluice.ensemble and sluice.table, under the table's lock, with a small Spark
    of its own. A writer with another --zookeeper, or with an ensemble that was
    wiped and built again, or that reaches the table by another name, is then
    refused before it writes. A table that is pinned elsewhere is left as it is,
    unless --move says otherwise: for one that was moved to another ensemble
    (stop its writers first, or give --from), copied, or renamed.

    [bold]sluice adopt s3a://lake/flights --zookeeper zk1:2181,zk2:2181,zk3:2181[/]
    [bold]sluice adopt s3a://lake/flights --zookeeper new:2181 --move --from old:2181[/]
    """
    from lock_manager import LockSettings  # noqa: PLC0415
    from sluice.adopt import adopt_table, describe, start_spark  # noqa: PLC0415

    given: dict[str, Any] = {"zk_hosts": zookeeper, "timeout_seconds": lock_timeout}
    given = {name: value for name, value in given.items() if value is not None}
    settings = LockSettings.from_env(hosts_hint=ZOOKEEPER_HINT, **given)
    options = dict(key_and_value(option, "--conf") for option in conf or ())
    with interruptible(), start_spark(options) as spark:
        done = adopt_table(spark, table, settings, move=move, old_hosts=from_hosts)
    if as_json:
        print(json.dumps(asdict(done), indent=2))
    else:
        print(describe(done))


@app.command()
@in_a_sentence
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


@app.command()
@in_a_sentence
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


operate.register(app)
app.add_typer(ensemble)
app.add_typer(config)


class Engine(StrEnum):
    """What a soak's writers are."""

    STORE = "store"
    SPARK = "spark"


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


@app.command()
@in_a_sentence
def soak(
    *,
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

    Exit codes: 0 all invariants hold, 1 one does not, or a class of faults that
    --faults names never struck, 2 bad arguments, 130 Ctrl-C.
    """
    from dataclasses import replace  # noqa: PLC0415

    from sluice.soak.command import choose_faults, run_soak  # noqa: PLC0415
    from sluice.soak.faults import CLASSES  # noqa: PLC0415
    from sluice.soak.options import SoakOptions  # noqa: PLC0415
    from sluice.soak.steps import STEPS  # noqa: PLC0415

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


class GuardMode(StrEnum):
    """What the commit guard does with a commit that does not hold the lock."""

    REQUIRED = "required"
    OBSERVE = "observe"
    OFF = "off"


@app.command("submit-args")
@in_a_sentence
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


@app.command()
@in_a_sentence
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
    serves. All of its servers share this machine: not for production.

    [bold]sluice zookeeper --port 2181[/]
    [bold]sluice zookeeper --servers 3 --data ./zk[/]
    """
    from lock_manager.testing.embedded import EmbeddedZooKeeper  # noqa: PLC0415

    if servers not in (1, 3):
        raise typer.BadParameter("an ensemble has 1 server or 3", param_hint="--servers")
    with interruptible(), EmbeddedZooKeeper(servers, port=port, data_dir=data) as running:
        print(running.hosts, flush=True)
        sys.stderr.write("ZooKeeper serves; Ctrl-C stops it\n")
        while True:
            signal.pause()


def _print_verification(found: Verification, console: Console) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from sluice.audit.checks import version_ranges  # noqa: PLC0415

    def say(value: int | None, missing: str) -> str:
        return missing if value is None else f"{value:,}"

    writers, observed = found.unlocked_writers.items(), found.observed.items()
    rows: list[tuple[str, Any]] = [
        ("versions", f"{found.first_version:,} to {found.version:,}"),
        ("commits in the log", f"{found.commits:,}"),
        ("under the lock", f"{found.locked_commits:,}"),
        *(
            [("  by the writer's own word, not fenced", f"{found.unfenced_commits:,}")]
            if found.unfenced_commits
            else ()
        ),
        ("without it", f"{found.unlocked_commits:,}"),
        *((f"  by {engine}: {version_ranges(made)}", f"{len(made):,}") for engine, made in writers),
        *((f"  only observed, {error}: {version_ranges(made)}", f"{len(made):,}") for error, made in observed),
        ("without it, that lost a race for a version", f"{found.conflicts:,}"),
        ("holds that overlap", f"{found.overlapping_holds:,}"),
        ("rows in the data files", say(found.rows_found, "not readable")),
        ("rows by the log's statistics", say(found.rows_in_log, "not known")),
    ]
    if found.ensemble is not None:
        rows.append(("pinned to ensemble", found.ensemble))
    if found.pinned_name is not None and found.is_pinned_elsewhere:
        rows.append(("locked by another name than this", found.pinned_name))
    if found.key:
        rows.append((f"duplicate rows by {', '.join(found.key)}", say(found.duplicate_rows, "not readable")))
    table = Table(box=box.SIMPLE_HEAD, show_header=False, title=found.table, title_justify="left", pad_edge=False)
    table.add_column("what")
    table.add_column("how many", justify="right")
    for what, value in rows:
        table.add_row(what, value)
    console.print(table)
    for problem in found.problems:
        console.print(Text.assemble(("problem: ", "bold red"), problem), soft_wrap=True)
    verdict = Text("sound", style="bold green") if found.ok else Text("NOT SOUND", style="bold red")
    console.print(verdict)
