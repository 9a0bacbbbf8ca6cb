"""``sluice demo``: several Spark writers load one table with the lock, and ``deltalake`` checks the result."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Empty
from typing import Any, Literal

from rich.console import Console

from lock_manager import SettingsError
from lock_manager.settings import S3_LEASE
from lock_manager.testing.embedded import find_java
from sluice.audit.checks import count_text
from sluice.audit.log_files import LogCommit, read_commits, versions_in
from sluice.audit.log_folder import error_text, open_log
from sluice.audit.verify import verify_table
from sluice.console import print_problems
from sluice.demo.flights import KEY, PARTITION, Contents, deal_flights, read_contents
from sluice.demo.hdfs_folder import HdfsFolder, is_hdfs_folder
from sluice.demo.outcome import Outcome, judge
from sluice.demo.processes import Events, WriterProcess, end_processes, spark_submit, submit_command
from sluice.demo.progress import Board, show_board
from sluice.demo.records import Phase, Writer
from sluice.demo.report import print_comparison, print_outcome, print_stderr_tail, write_report
from sluice.demo.services import Store, clear_output, download_tables, open_services
from sluice.demo.timeline import Lanes, draw_timeline
from sluice.local.chosen_s3 import ChosenS3, is_endpoint
from sluice.local.jars import jar_paths
from sluice.submit.distribution import job_script

_COMPARISON = "comparison.png"
# Delta's default log stores of these schemes.
_STOCK_LOG_STORES = {
    "spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore",
    "spark.delta.logStore.file.impl": "io.delta.storage.HDFSLogStore",
    "spark.delta.logStore.hdfs.impl": "io.delta.storage.HDFSLogStore",
}


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of ``sluice demo``, whose ``--help`` describes them.

    Raises:
        SettingsError: There are no writers, fewer commits than writers, fewer rows than commits, a malformed endpoint
            or folder, or options or locks of S3 with another store.

    """

    storage: Literal["s3", "local"] = "s3"
    coordinator: Literal["zookeeper", "s3-lease"] = "zookeeper"
    writers: int = 5
    commits: int = 40
    compare: bool = False
    output: Path = Path("build/demo")
    keep: bool = False
    rows: int | None = None
    s3_endpoint: str | None = None
    bucket: str | None = None
    hdfs: str | None = None

    def __post_init__(self) -> None:
        if self.hdfs is not None:
            if self.storage == "local" or self.s3_endpoint or self.bucket or self.coordinator == S3_LEASE:
                raise SettingsError(
                    f"--hdfs {self.hdfs}: omit --storage local, --s3-endpoint, --bucket and --coordinator {S3_LEASE}"
                )
            if not is_hdfs_folder(self.hdfs):
                raise SettingsError(f"--hdfs {self.hdfs}: give hdfs://SERVICE/FOLDER or hdfs://HOST:PORT/FOLDER")
        if self.storage == "local" and (self.s3_endpoint or self.bucket):
            raise SettingsError("--s3-endpoint and --bucket are for --storage s3: omit them, or omit --storage local")
        if self.storage == "local" and self.coordinator == S3_LEASE:
            raise SettingsError(f"--coordinator {S3_LEASE} keeps the locks on S3: omit --storage local")
        if self.s3_endpoint is not None and not is_endpoint(self.s3_endpoint):
            raise SettingsError(f"--s3-endpoint {self.s3_endpoint}: give http://HOST:PORT or https://HOST")
        if self.writers < 1:
            raise SettingsError(f"--writers {self.writers}: must be at least 1")
        if self.commits < self.writers:
            raise SettingsError(f"--commits {self.commits}: must be at least --writers {self.writers}")
        if self.rows is not None and self.rows < self.commits:
            raise SettingsError(f"--rows {self.rows}: must be at least --commits {self.commits}")

    @property
    def store_name(self) -> str:
        """Name of the store: ``S3``, ``disk`` or ``HDFS``."""
        return "HDFS" if self.hdfs else "S3" if self.storage == "s3" else "disk"

    @property
    def commits_per_writer(self) -> list[int]:
        """Number of commits of each writer. They differ by 1 at most."""
        return [
            (number + 1) * self.commits // self.writers - number * self.commits // self.writers
            for number in range(self.writers)
        ]


@dataclass(frozen=True)
class Load:
    """A load, and the outcome of its checks."""

    table: str
    writers: list[Writer]
    outcome: Outcome


def run_demo(options: DemoOptions, console: Console) -> bool:
    """Run the demo, print its results, and write ``report.json`` and the pictures.

    Returns:
        Whether every check of the load with the lock passed. The load without the lock (``compare``) does not count.

    Raises:
        SluiceError: The demo could not be started: no Java, no jars, no data, an output folder with other files, and so
            on.

    """
    # Check the requirements before any process starts.
    find_java()
    spark_submit()
    jar_paths()
    folder = clear_output(options.output)
    (folder / "logs").mkdir()
    (folder / "source").mkdir()
    with console.status("Writing the flights of 2013 to a file per writer …"):
        files, source = deal_flights(folder / "source", options.writers, limit=options.rows)
    console.print(f"{source.rows:,} flights for {options.writers} writers: {options.commits} commits in total")
    user_store: ChosenS3 | HdfsFolder | None = HdfsFolder(options.hdfs) if options.hdfs else None
    if options.s3_endpoint or options.bucket:
        user_store = ChosenS3(options.s3_endpoint, options.bucket)
    locks_on_s3 = options.coordinator == S3_LEASE
    services = open_services(options.storage, folder, console, user_store, locks_on_s3=locks_on_s3)
    with services as (store, lock_arguments):
        demo = _Demo(options, console, folder, files, source, store)
        locked = demo.load("flights", lock_arguments)
        _report_load(demo, locked)
        if options.compare:
            rival = demo.load("flights-without-lock", None)
            _report_comparison(demo, locked, rival)
        if options.keep:
            download_tables(store, folder / "tables")
    if not options.keep:
        shutil.rmtree(folder / "source")
        shutil.rmtree(folder / "tables", ignore_errors=True)
    _print_files(folder, console, compare=options.compare)
    return locked.outcome.ok


@dataclass(frozen=True)
class _Demo:
    options: DemoOptions
    console: Console
    folder: Path
    files: Sequence[Path]
    source: Contents
    store: Store

    def load(self, name: str, lock_arguments: Sequence[str] | None) -> Load:
        """Load one table with all writers, and check it.

        Args:
            name: Name of the table.
            lock_arguments: Arguments of a job that name the coordinator; None to load without a lock.

        """
        table = self.store.table(name)
        logs = self.folder / "logs" / name
        logs.mkdir()
        events: Events = Events()
        writers: list[Writer] = []
        processes: list[WriterProcess] = []
        mode = "with the lock" if lock_arguments else "without the lock, on Delta's stock log store"
        board = Board(f"{table}, {mode}", writers, self.options.commits_per_writer, self.source.rows)
        try:
            for number, (file, commits) in enumerate(zip(self.files, self.options.commits_per_writer, strict=True), 1):
                command = _command(number, table, file, commits, lock_arguments, self.store)
                writers.append(Writer(number, time.time()))
                processes.append(WriterProcess(number, command, self.store.environment, logs, events))
            with show_board(board, self.console) as refresh:
                _follow(writers, events, refresh)
        finally:
            end_processes(processes)
        for writer, process in zip(writers, processes, strict=True):
            if writer.phase is Phase.FAILED:
                print_stderr_tail(writer, process.stderr_tail, self.console)
        with self.console.status("Reading the table back with deltalake …"):
            return self._judge(name, writers, locked=lock_arguments is not None)

    def _judge(self, name: str, writers: list[Writer], *, locked: bool) -> Load:
        options = self.store.environment
        commits: list[LogCommit] = []
        problems: tuple[str, ...] = ()
        contents = Contents()
        try:
            table = self.store.readable_table(name, self.folder / "tables")
            log = open_log(table, options)
            versions = versions_in(log.names())
            commits = [commit for commit in read_commits(log, versions) if isinstance(commit, LogCommit)]
            if versions:
                # The writers share one clock.
                verification = verify_table(table, key=KEY, storage_options=options, clock_skew_seconds=0)
                problems = verification.problems
                if verification.rows_found is not None:
                    contents = read_contents(log.uri, log.options)
            else:
                problems = ("there is no table",)
        except Exception as error:  # noqa: BLE001 (deltalake raises many types for a damaged log)
            problems = (*problems, f"the table cannot be read back: {error_text(error)}")
        ends = [writer.ended_at for writer in writers if writer.ended_at is not None]
        outcome = judge(
            writers,
            commits,
            self.source,
            contents,
            locked=locked,
            commits_planned=self.options.commits,
            wall_seconds=max(ends) - writers[0].started_at,
            table_problems=problems,
        )
        return Load(self.store.table(name), writers, outcome)


def _command(
    number: int, table: str, file: Path, commits: int, lock_arguments: Sequence[str] | None, store: Store
) -> list[str]:
    arguments = ["--table", table, "--source", str(file), "--format", "csv", "--partition-by", PARTITION]
    arguments += ["--commits", str(commits)]
    conf = {**store.spark_conf, "spark.app.name": f"writer {number}"}
    if lock_arguments is None:
        return submit_command(Path(__file__).with_name("rival_append.py"), arguments, conf=conf | _STOCK_LOG_STORES)
    arguments += [*lock_arguments, "--lock-timeout", "600"]
    return submit_command(job_script("append"), arguments, conf=conf)


def _follow(writers: Sequence[Writer], events: Events, refresh: Callable[[], None]) -> None:
    while any(writer.is_running for writer in writers):
        refresh()
        try:
            number, event = events.get(timeout=0.2)
        except Empty:
            continue
        if event.get("event") == "exit":
            writers[number - 1].end(event["code"], time.time())
        else:
            writers[number - 1].apply(event, time.time())


def _print_files(folder: Path, console: Console, *, compare: bool) -> None:
    """Print the names of the files of this demo. Also print whether the comparison is of an earlier demo."""
    names = {path.name for path in folder.glob("[!.]*")}
    earlier_files = set() if compare else names & {_COMPARISON}
    console.print(f"Files in {folder}: {', '.join(sorted(names - earlier_files))}", soft_wrap=True)
    if earlier_files:
        console.print(f"{_COMPARISON} is of an earlier demo", soft_wrap=True)


def _report_load(demo: _Demo, load: Load) -> None:
    """Print and write the outcome of the load with the lock."""
    outcome, options = load.outcome, demo.options
    print_outcome(outcome, demo.console)
    result = "one at a time" if outcome.ok else f"{len(outcome.problems)} problems"
    load_text = f"{outcome.writers} Spark writers, one Delta table on {options.store_name}"
    title = f"{load_text}: {outcome.commits_in_log} commits, {result}"
    draw_timeline(demo.folder / "timeline.png", [_lanes(title, load)])
    write_report(demo.folder / "report.json", _facts(demo, load), outcome, load.writers)


def _report_comparison(demo: _Demo, locked: Load, rival: Load) -> None:
    print_comparison(locked.outcome, rival.outcome, demo.console)
    print_problems(rival.outcome.problems, demo.console, label="without the lock")
    loads = {"With the lock": locked, "Without, on Delta's stock log store": rival}
    lanes = [_lanes(f"{name}: {_summary(load.outcome)}", load) for name, load in loads.items()]
    draw_timeline(demo.folder / _COMPARISON, lanes)
    facts = {**_facts(demo, locked), "without_lock": rival.outcome.to_json()}
    write_report(demo.folder / "report.json", facts, locked.outcome, locked.writers)


def _lanes(title: str, load: Load) -> Lanes:
    outcome = load.outcome
    return Lanes(title, load.writers, outcome.locked, outcome.lost, outcome.in_conflict)


def _summary(outcome: Outcome) -> str:
    commits = count_text(outcome.commits_acknowledged, "commit")
    parts = [f"{commits} acknowledged", f"{outcome.lost_commits} of them lost"]
    if not outcome.locked:
        parts.append(count_text(outcome.conflicts, "conflict"))
        # The picture has no mark for these, because no writer reported their times.
        if outcome.unacknowledged_conflicts:
            parts.append(f"{outcome.unacknowledged_conflicts} of them not acknowledged")
    return ", ".join(parts)


def _facts(demo: _Demo, load: Load) -> dict[str, Any]:
    packages = ("delta-sluice", "pyspark", "delta-spark", "deltalake", "kazoo")
    return {
        "storage": "hdfs" if demo.options.hdfs else demo.options.storage,
        "coordinator": demo.options.coordinator,
        "table": load.table,
        "commits_planned": demo.options.commits,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is not installed, or PySpark in $SPARK_HOME
        return None
