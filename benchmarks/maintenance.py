"""Measure maintenance of a table with many small files: its health check, its compaction, and the waits of an appender.

Copies of one table are compacted: by maintenance, with a commit for each partition (in the run ``few`` for up to 16),
and by plain ``OPTIMIZE`` with the same sizes in a session without the guard. In further runs another driver appends
rows without a pause: during maintenance; during maintenance while a third driver keeps changing one partition, whose
compaction therefore conflicts until it holds the partition's lock; and during ``optimize(lock_during="write")``, the
alternative without a gate. The health check is compared with stock tools: deltalake's list of files and a walk through
the folder.

    python benchmarks/maintenance.py [--files 20000] [--partitions 20]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from figures import percentile, print_table, save
from pyspark.sql import SparkSession
from turns import unguarded

from lock_manager import LockInspector, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER
from writer_jobs import LockedDeltaWriter, build_session
from writer_jobs.delta.session import session_with
from writer_jobs.maintenance.executor import UnitExecutor
from writer_jobs.maintenance.maintainer import TableMaintainer
from writer_jobs.maintenance.measure import measure
from writer_jobs.maintenance.policy import Action, Policy

TARGET = Policy().target_file_size
SIZES = {
    "spark.databricks.delta.optimize.minFileSize": str(TARGET // 2),
    "spark.databricks.delta.optimize.maxFileSize": str(TARGET),
}
SETTINGS = {
    **LOCAL_DRIVER,
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "4",
}
ALONE = ("plain", "alone", "one", "few")
WITH_APPENDER = ("maintain", "hot", "optimize")
APPENDER = Path(__file__).with_name("maintenance_appender.py")


def make_table(spark: SparkSession, writer: LockedDeltaWriter, files: int, partitions: int) -> None:
    """Write a table in one commit, with 50 rows in each file."""
    tasks = files // partitions
    rows = spark.range(0, files * 50, 1, tasks).selectExpr("id", f"id % {partitions} AS part", "uuid() AS value")
    writer.append(rows, partition_by=["part"])


@contextmanager
def second_driver(
    operation: str, hosts: str, table: str, folder: Path
) -> Iterator[Callable[[], list[dict[str, float]]]]:
    """Start a driver that appends or updates. When it is warm, yield a function that ends it and returns its writes."""
    output = folder / f"{operation}.json"
    stop = output.with_suffix(".stop")
    stop.unlink(missing_ok=True)
    ready = output.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    arguments = [operation, hosts, table, str(output), str(ready), str(stop)]
    with subprocess.Popen([sys.executable, str(APPENDER), *arguments]) as process:

        def end() -> list[dict[str, float]]:
            stop.touch()
            process.wait(120)
            writes: list[dict[str, float]] = json.loads(output.read_text())
            return writes

        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit(f"the second driver ({operation}) ended with code {process.returncode}")
                time.sleep(0.1)
            yield end
        finally:
            process.kill()


def stock_seconds(table: str) -> float:
    """Return the seconds that stock tools need to list the table's files and the sizes of all files in its folder."""
    started = time.perf_counter()
    table_files = set(DeltaTable(table).file_uris())
    sizes = {}
    for folder, _, names in os.walk(table):
        if "_delta_log" not in folder:
            sizes.update({f"{folder}/{name}": (Path(folder) / name).stat().st_size for name in names})
    assert table_files
    assert sizes
    return time.perf_counter() - started


def waits(appends: list[dict[str, float]], began: float, ended: float) -> tuple[list[float], list[float]]:
    """Return the waits of the appends that ended before a compaction, and of those that overlapped it."""
    runs = [(append["asked_at"], append["asked_at"] + append["took_s"], append["waited_s"]) for append in appends]
    waits_before = [wait for _, done_at, wait in runs if done_at < began]
    waits_during = [wait for asked_at, done_at, wait in runs if asked_at <= ended and done_at >= began]
    return waits_before, waits_during


def wait_figures(seconds: list[float]) -> dict[str, Any]:
    return {
        "appends": len(seconds),
        "wait p50, s": percentile(seconds, 0.5),
        "wait p99, s": percentile(seconds, 0.99),
        "longest, s": max(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="files of each table (20000)")
    parser.add_argument("--partitions", type=int, default=20, help="partitions of each table (20)")
    parser.add_argument(
        "--runs", nargs="+", default=[*ALONE, *WITH_APPENDER], choices=[*ALONE, *WITH_APPENDER], metavar="RUN",
        help=f"compactions without an appender: {', '.join(ALONE)}; with an appender: {', '.join(WITH_APPENDER)} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", type=float, default=10, metavar="SECONDS", help="how long an appender runs before a compaction (10)"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/maintenance.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = build_session("maintenance", jars=jar_paths(), launch_conf=SETTINGS, log_level="OFF")
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        inspector = stack.enter_context(LockInspector(manager.settings))
        maintained, plain, locked = (str(folder / name) for name in ("ours", "plain", "locked"))
        make_table(spark, LockedDeltaWriter(spark, manager, maintained), options.files, options.partitions)
        for copy in (plain, locked):
            shutil.copytree(maintained, copy)
        measure_and_save(spark, manager, inspector, (maintained, plain, locked), zookeeper.hosts, folder, options)


def measure_and_save(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    tables: tuple[str, str, str],
    hosts: str,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    maintained, plain, locked = tables
    measurements = [
        {"sluice, s": measure(spark, maintained).health.measuring_seconds, "stock, s": stock_seconds(maintained)}
        for _ in range(3)
    ]
    print_table([{"measurement": number, **row} for number, row in enumerate(measurements, start=1)])
    rates, appender_waits, longest_holds = [], [], []

    def compact(name: str, work: Callable[[], float | None]) -> tuple[float, float]:
        began = time.time()
        work_seconds = work()
        ended = time.time()
        rate = options.files / (work_seconds or ended - began)
        rates.append(
            {"compaction": name, "seconds": ended - began, "seconds of work": work_seconds, "files/s of work": rate}
        )
        return began, ended

    def plain_optimize() -> None:
        with unguarded(spark):
            session_with(spark, SIZES).sql(f"OPTIMIZE delta.`{plain}`").collect()

    def maintenance(table: str, **limits: Any) -> Callable[[], float]:
        """Return a function that compacts a table and returns the seconds from its measurement to the last commit."""

        def run() -> float:
            times: list[float] = []
            executor = UnitExecutor(spark, manager, inspector, table)
            maintainer = TableMaintainer(executor, on_result=lambda _: times.append(time.time()), **limits)
            report = maintainer.run([Action.COMPACT], on_measured=lambda _: times.append(time.time()))
            assert report.done
            assert all(result.problem is None for result in report.done), report.done
            longest_holds.append(max(result.held_seconds for result in report.done))
            return times[-1] - times[0]

        return run

    def locked_optimize() -> None:
        LockedDeltaWriter(spark, manager, locked).optimize(target_size=TARGET, lock_during="write")

    alone, serial, few, hot = (f"{maintained}-{name}" for name in ("alone", "one", "few", "hot"))
    for copy in (alone, serial, few, hot):
        shutil.copytree(maintained, copy)
    alone_runs = {
        "plain": ("plain OPTIMIZE, alone", plain_optimize),
        "alone": ("maintain.py --compact, alone", maintenance(alone)),
        "one": ("maintain.py --compact --parallel 1, alone", maintenance(serial, parallel=1)),
        "few": ("maintain.py --compact --partitions-per-commit 16, alone", maintenance(few, partitions_per_commit=16)),
    }
    for name, work in filter(None, map(alone_runs.get, options.runs)):
        compact(name, work)
    appender_runs = {
        "maintain": ("maintain.py --compact", maintained, maintenance(maintained)),
        "hot": ("maintain.py --compact, a partition changes all the time", hot, maintenance(hot)),
        "optimize": ('optimize(lock_during="write")', locked, locked_optimize),
    }
    for name, table, work in filter(None, map(appender_runs.get, options.runs)):
        with ExitStack() as stack:
            if table == hot:
                stack.enter_context(second_driver("update", hosts, table, folder))
            end_appender = stack.enter_context(second_driver("append", hosts, table, folder))
            time.sleep(options.quiet)
            began, ended = compact(f"{name}, beside an appender", work)
            waits_before, waits_during = waits(end_appender(), began, ended)
        appender_waits.append({"when": f"before {name}", **wait_figures(waits_before)})
        appender_waits.append({"when": f"during {name}", **wait_figures(waits_during)})
    write_figures(
        options.output, {"measurements": measurements, "rates": rates, "waits": appender_waits, "held": longest_holds}
    )


def write_figures(output: Path, figures: dict[str, list[Any]]) -> None:
    """Print the tables of the compactions and store all figures."""
    for rows in filter(None, (figures["rates"], figures["waits"])):
        print_table(rows)
    seconds_held = [round(seconds, 3) for seconds in figures["held"]]
    print_table([{"maintenance held a lock at most, by run, s": seconds_held}])
    save(output, figures)


if __name__ == "__main__":
    main()
