"""Measure five Spark writers that append to one table, on each platform.

Each writer is an ``append.py`` under ``spark-submit``. It divides its file into commits of about 20 rows, and takes the
lock for each commit. The platforms:

    standalone   local drivers, one ZooKeeper server, table on a disk
    HDFS         the table is on HDFS: two name nodes, one data node
    Kerberos     the ZooKeeper server accepts only clients with a Kerberos ticket (GSSAPI)
    YARN         drivers in cluster mode, each with an executor, with the arguments that ``sluice submit-args`` prints

The benchmark holds the table's lock until all writers wait for it, so that they begin at the same time. Platforms take
turns. Commits are measured while all writers make commits: after the ``--warm-up`` commits of each writer, until the
first writer has made its last one. The columns:

    start_s               seconds from the first spark-submit until all writers wait for the lock
    commits               measured commits of all rounds
    commits_per_s         their number for each second; slowest and fastest round
    p50_s, p95_s          seconds from a writer's previous commit to the end of the commit: work, queue, and the lock
    lock_held_p50_s, …    seconds with the lock
    rows                  acknowledged rows
    lost, repeated        of these, rows that a reader (Spark on HDFS, else deltalake) does not find, or finds again

Everything runs on this machine. A platform that cannot run here is left out.

    python benchmarks/platforms.py [--writers 5] [--commits 30] [--rounds 2] [--platforms standalone HDFS]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

from deltalake import DeltaTable
from figures import percentile, print_table, save

from lock_manager import LockSettings, Security, TableResource, ZookeeperLockManager
from lock_manager.managers import inspector_of
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.demo.processes import Events, WriterProcess, end_processes, submit_command
from sluice.local.spark import FEW_ROWS, start_spark
from sluice.submit.distribution import build_zip, conf_arguments, job_script, submit_arguments
from tests.support.hdfs import ROOT as HDFS_ROOT
from tests.support.hdfs import client_settings, hdfs_cluster, hdfs_conf
from tests.support.java_program import SPARK_HOME
from tests.support.kdc import Kdc, missing_requirement
from tests.support.releases import SPARK
from tests.support.yarn import Application, Yarn, yarn_cluster

ROWS_PER_COMMIT = 20
LOCK_SECONDS = 600
#: Limit for all writers to start, and for all of them to end.
WAIT_SECONDS = 900
POLL_SECONDS = 0.05
#: Memory of a driver, as ``submit_command`` sets it.
DRIVER_MEMORY = {"spark.driver.memory": "1g"}


class Writer(Protocol):
    """A running ``append.py``."""

    def exit_code(self) -> int | None:
        """Return its exit code; None while it runs."""

    def end(self) -> None:
        """End it if it runs."""


class LocalWriter:
    """A writer with a driver on this machine. See :class:`WriterProcess` for the arguments."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._events = Events()
        self._code: int | None = None
        self._process = WriterProcess(number, command, environment, folder, self._events)

    def exit_code(self) -> int | None:
        with suppress(Empty):
            while self._code is None:
                _, event = self._events.get_nowait()
                self._code = event["code"] if event["event"] == "exit" else None
        return self._code

    def end(self) -> None:
        end_processes([self._process])


@dataclass(frozen=True)
class YarnWriter:
    """A writer in YARN's cluster mode."""

    yarn: Yarn
    application: Application

    def exit_code(self) -> int | None:
        return self.application.process.poll()

    def end(self) -> None:
        if self.application.process.poll() is None:
            if self.application.id is not None:
                self.yarn.kill(self.application.id)
            self.application.process.kill()
            self.application.process.wait()


def ids_on_disk(tables: Sequence[str]) -> list[list[int]]:
    """Return the ids of each table on a disk, read with deltalake."""
    return [DeltaTable(table.removeprefix("file:")).to_pyarrow_table()["id"].to_pylist() for table in tables]


def ids_in_spark(conf: Mapping[str, str], tables: Sequence[str]) -> list[list[int]]:
    """Return the ids of each table, read with Spark."""
    with start_spark("reader", conf) as spark:
        return [[row.id for row in spark.read.format("delta").load(table).collect()] for table in tables]


@dataclass(frozen=True)
class Platform:
    """A platform that is ready for writers.

    Attributes:
        settings: The ensemble, and how to log in to it.
        root: URI of the folder of the tables.
        start: Starts a writer with its number, the arguments of ``append.py`` and the folder of its log.
        read_ids: Returns the ids of each table.

    """

    settings: LockSettings
    root: str
    start: Callable[[int, Sequence[str], Path], Writer]
    read_ids: Callable[[Sequence[str]], list[list[int]]] = ids_on_disk


def start_locally(
    number: int,
    arguments: Sequence[str],
    folder: Path,
    *,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LocalWriter:
    command = submit_command(job_script("append"), arguments, conf={**FEW_ROWS, **(conf or {})})
    return LocalWriter(number, command, environment or {}, folder)


def standalone(_: ExitStack, folder: Path, settings: LockSettings) -> Platform:
    return Platform(settings, f"file:{folder}", start_locally)


def hdfs(stack: ExitStack, folder: Path, settings: LockSettings) -> Platform:
    cluster = stack.enter_context(hdfs_cluster(folder))
    conf = hdfs_conf(client_settings(cluster.addresses))
    return Platform(settings, HDFS_ROOT, partial(start_locally, conf=conf), partial(ids_in_spark, conf))


def kerberos(stack: ExitStack, folder: Path, _: LockSettings) -> Platform:
    kdc = stack.enter_context(Kdc(folder))
    # This process holds the lock until the writers have started, so it needs a ticket, too.
    os.environ.update(kdc.environment)
    server = stack.enter_context(EmbeddedZooKeeper(security=kdc.server_requirements()))
    keytab = kdc.add("etl")
    settings = LockSettings(
        # The name in the server's principal.
        zk_hosts=server.hosts.replace("127.0.0.1", "localhost"),
        security=Security(auth="kerberos", kerberos_principal="etl", kerberos_keytab=str(keytab)),
    )
    environment = {
        "SLUICE_ZK_AUTH": "kerberos",
        "SLUICE_ZK_KERBEROS_PRINCIPAL": "etl",
        "SLUICE_ZK_KERBEROS_KEYTAB": str(keytab),
    }
    return Platform(settings, f"file:{folder}", partial(start_locally, environment=environment))


def yarn(stack: ExitStack, folder: Path, settings: LockSettings) -> Platform:
    cluster = stack.enter_context(yarn_cluster(folder))
    python = Path(sys.base_prefix) / "bin" / "python3"
    words = [*submit_arguments(build_zip(folder / "sluice.zip")), *conf_arguments(DRIVER_MEMORY)]

    def start(number: int, arguments: Sequence[str], logs: Path) -> YarnWriter:
        command = [*words, str(job_script("append")), *arguments]
        return YarnWriter(cluster, cluster.submit(SPARK_HOME, python, command, logs / f"writer-{number}.out"))

    return Platform(settings, f"file:{folder}", start)


PLATFORMS: Mapping[str, Callable[[ExitStack, Path, LockSettings], Platform]] = {
    "standalone": standalone,
    "HDFS": hdfs,
    "Kerberos": kerberos,
    "YARN": yarn,
}


def missing_for(platform: str) -> str | None:
    """Return a requirement of a platform that is not installed."""
    if platform == "Kerberos":
        return missing_requirement()
    return "Spark 4.2, whose Hadoop is 3.5.0" if platform in ("HDFS", "YARN") and SPARK < (4, 2) else None


@dataclass
class Run:
    """The writers of one platform in one round.

    Attributes:
        table: URI of the table.
        ids: Ids of the acknowledged rows.
        start_seconds: Seconds from the first ``spark-submit`` until all writers waited for the lock.
        seconds: Length of the measured time.
        durations: Seconds of each measured commit.
        hold_durations: Seconds with the lock of each measured commit.

    """

    table: str
    ids: set[int]
    start_seconds: float
    seconds: float
    durations: list[float] = field(default_factory=list)
    hold_durations: list[float] = field(default_factory=list)

    @property
    def commits_per_second(self) -> float:
        return len(self.durations) / self.seconds


def run_writers(platform: Platform, folder: Path, options: argparse.Namespace) -> Run:
    """Let writers append to a new table; return their figures. The folder, which exists, is for their files."""
    table = f"{platform.root}/table-{folder.name}"
    resource = TableResource.of(table)
    commits = options.warm_up + options.commits
    ids = {
        number: range(number * 1_000_000, number * 1_000_000 + commits * ROWS_PER_COMMIT)
        for number in range(options.writers)
    }
    with ExitStack() as stack:
        manager = stack.enter_context(ZookeeperLockManager(platform.settings))
        inspector = stack.enter_context(inspector_of(platform.settings))
        hold = manager.acquire(table)
        submitted = time.monotonic()
        writers = []
        for number, row_ids in ids.items():
            source = folder / f"{number}.csv"
            source.write_text("id\n" + "".join(f"{row_id}\n" for row_id in row_ids))
            arguments = [
                "--zookeeper", platform.settings.zk_hosts, "--table", table, "--source", f"file:{source}",
                "--commits", str(commits), "--report", f"file:{report_of(folder, number)}",
                "--lock-timeout", str(LOCK_SECONDS),
            ]  # fmt: skip
            writers.append(platform.start(number, arguments, folder))
            stack.callback(writers[-1].end)
        # The benchmark itself is the first in the queue.
        wait_until(lambda: len(inspector.table(resource).entries) > len(writers), writers, folder)
        start_seconds = time.monotonic() - submitted
        released = time.time()
        hold.release()
        wait_until(lambda: all(writer.exit_code() is not None for writer in writers), writers, folder)
    reports = [json.loads(report_of(folder, number).read_text())["commits"] for number in ids]
    acknowledged = {row_id for row_ids in ids.values() for row_id in row_ids}
    return measured(Run(table, acknowledged, start_seconds, 0.0), reports, released, options.warm_up)


def report_of(folder: Path, number: int) -> Path:
    return folder / f"report-{number}.json"


def wait_until(condition: Callable[[], bool], writers: Sequence[Writer], folder: Path) -> None:
    """Wait until a condition is true. A writer that fails meanwhile, or a timeout, ends the benchmark."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        is_true = condition()
        codes = [writer.exit_code() for writer in writers]
        if any(codes) or time.monotonic() > deadline:
            raise SystemExit(f"exit codes of the writers: {codes}\n{last_lines(folder)}")
        if is_true:
            return
        time.sleep(POLL_SECONDS)


def last_lines(folder: Path) -> str:
    """Return the last lines that each writer printed."""
    logs = sorted([*folder.glob("writer-*.out"), *folder.glob("writer-*.err")])
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1000:]}" for log in logs)


def measured(run: Run, reports: Sequence[Sequence[Mapping[str, Any]]], released: float, warm_up: int) -> Run:
    """Add the figures of the commits that were made while all writers made commits.

    Args:
        run: The run.
        reports: The commits of each writer's report.
        released: When the writers could begin.
        warm_up: Number of first commits of each writer that are not measured.

    """
    ends = [[released, *(commit["released_at"] for commit in commits)] for commits in reports]
    begin = max(times[warm_up] for times in ends)
    end = min(times[-1] for times in ends)
    if end <= begin:
        raise SystemExit("a writer ended before the others had warmed up: give more --commits or less --warm-up")
    run.seconds = end - begin
    for commits, times in zip(reports, ends, strict=True):
        for previous, commit in zip(times, commits, strict=False):
            if begin < commit["released_at"] <= end:
                run.durations.append(commit["released_at"] - previous)
                run.hold_durations.append(commit["held_s"])
    return run


def summary(name: str, writers: int, runs: Sequence[Run], lost: int, repeated: int) -> dict[str, Any]:
    """Return the row of a platform: medians and percentiles of all its rounds."""
    durations = [seconds for run in runs for seconds in run.durations]
    hold_durations = [seconds for run in runs for seconds in run.hold_durations]
    rates = [run.commits_per_second for run in runs]
    return {
        "platform": name,
        "writers": writers,
        "start_s": statistics.median(run.start_seconds for run in runs),
        "commits": len(durations),
        "commits_per_s": len(durations) / sum(run.seconds for run in runs),
        "slowest": min(rates),
        "fastest": max(rates),
        "p50_s": statistics.median(durations),
        "p95_s": percentile(durations, 0.95),
        "lock_held_p50_s": statistics.median(hold_durations),
        "lock_held_p95_s": percentile(hold_durations, 0.95),
        "rows": sum(len(run.ids) for run in runs),
        "lost": lost,
        "repeated": repeated,
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=5)
    parser.add_argument("--commits", type=int, default=30, help="measured commits of each writer, at most (30)")
    parser.add_argument("--warm-up", type=int, default=5, help="first commits of each writer, not measured (5)")
    parser.add_argument("--rounds", type=int, default=2)
    names = list(PLATFORMS)
    parser.add_argument("--platforms", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", type=Path, default=Path("build/bench/platforms.json"))
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    runs: dict[str, list[Run]] = {}
    rounds = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-platforms-")))
        settings = LockSettings(zk_hosts=stack.enter_context(EmbeddedZooKeeper()).hosts)
        platforms: dict[str, Platform] = {}
        for name in options.platforms:
            missing = missing_for(name)
            if missing:
                print(f"{name} is left out: it needs {missing}", file=sys.stderr, flush=True)
                continue
            (folder / name).mkdir()
            platforms[name] = PLATFORMS[name](stack, folder / name, settings)
        if not platforms:
            raise SystemExit("no platform is left")
        for turn in range(options.rounds):
            for name in list(platforms)[:: -1 if turn % 2 else 1]:
                files = folder / f"{name}-{turn}"
                files.mkdir()
                run = run_writers(platforms[name], files, options)
                runs.setdefault(name, []).append(run)
                rounds.append({"platform": name, "start_s": run.start_seconds, "commits_per_s": run.commits_per_second})
                print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
        rows = []
        for name, platform in platforms.items():
            table_ids = platform.read_ids([run.table for run in runs[name]])
            lost = sum(len(run.ids - set(ids)) for run, ids in zip(runs[name], table_ids, strict=True))
            repeated = sum(len(ids) - len(set(ids)) for ids in table_ids)
            rows.append(summary(name, options.writers, runs[name], lost, repeated))
    print_table(rows)
    about = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[1]}
    save(options.output, {"about": about, "platforms": rows, "rounds": rounds})
    if any(row["lost"] or row["repeated"] for row in rows):
        raise SystemExit("rows were lost or repeated")


if __name__ == "__main__":
    main()
