"""A table of many small files: how long it takes to see, and to mend, and how long a waiting appender is kept back.

Two tables of the same files. One is compacted by maintenance, partition by partition; the other by plain ``OPTIMIZE``
with the same sizes, in a session without the guard. Meanwhile another driver appends a row as often as it can: to
the first table under the lock, beside maintenance; beside maintenance while a third driver changes one partition all
the time, which then loses its races and is compacted with its lock held; and beside
``optimize(lock_during="write")``, which is what one would do without a gate. The health of the table is measured, and
the same figures are looked up with stock tools: deltalake's list of files and a walk through the folder.

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
from figures import percentile, print_table
from pyspark.sql import SparkSession

from lock_manager import LockInspector, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER
from writer_jobs import LockedDeltaWriter, build_session
from writer_jobs.delta.session import GUARD_MODE, session_with
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
BESIDE = ("maintain", "hot", "optimize")
APPENDER = Path(__file__).with_name("maintenance_appender.py")


def make_table(spark: SparkSession, writer: LockedDeltaWriter, files: int, partitions: int) -> None:
    """Write one commit of so many files, of 50 rows each."""
    tasks = files // partitions
    rows = spark.range(0, files * 50, 1, tasks).selectExpr("id", f"id % {partitions} AS part", "uuid() AS value")
    writer.append(rows, partition_by=["part"])


@contextmanager
def another(what: str, hosts: str, table: str, folder: Path) -> Iterator[Callable[[], list[dict[str, float]]]]:
    """Have another driver append or update, from when it is warm; it ends, and says what it waited, when asked."""
    output = folder / f"{what}.json"
    stop = output.with_suffix(".stop")
    stop.unlink(missing_ok=True)
    ready = output.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    arguments = [what, hosts, table, str(output), str(ready), str(stop)]
    with subprocess.Popen([sys.executable, str(APPENDER), *arguments]) as process:

        def ended() -> list[dict[str, float]]:
            stop.touch()
            process.wait(120)
            found: list[dict[str, float]] = json.loads(output.read_text())
            return found

        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit(f"the appender ended with code {process.returncode}")
                time.sleep(0.1)
            yield ended
        finally:
            process.kill()


def stock_figures(table: str) -> float:
    """Find out with stock tools which files there are, how small, and which belong to no version; return how long."""
    began = time.perf_counter()
    known = set(DeltaTable(table).file_uris())
    sizes = {}
    for folder, _, names in os.walk(table):
        if "_delta_log" not in folder:
            sizes.update({f"{folder}/{name}": (Path(folder) / name).stat().st_size for name in names})
    assert known
    assert sizes
    return time.perf_counter() - began


def waits(appends: list[dict[str, float]], began: float, ended: float) -> tuple[list[float], list[float]]:
    """Return the waits of the appends that ended before a compaction, and of those that ran during a part of it."""
    runs = [(append["asked_at"], append["asked_at"] + append["took_s"], append["waited_s"]) for append in appends]
    earlier = [waited for _, done_at, waited in runs if done_at < began]
    during = [waited for asked_at, done_at, waited in runs if asked_at <= ended and done_at >= began]
    return earlier, during


def wait_figures(seconds: list[float]) -> dict[str, Any]:
    return {
        "appends": len(seconds),
        "wait p50, s": percentile(seconds, 0.5),
        "wait p99, s": percentile(seconds, 0.99),
        "longest, s": max(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="in each table (20000)")
    parser.add_argument("--partitions", type=int, default=20, help="of each table (20)")
    parser.add_argument(
        "--runs", nargs="+", default=[*ALONE, *BESIDE], choices=[*ALONE, *BESIDE], metavar="RUN",
        help=f"compactions without an appender: {', '.join(ALONE)}; and with one: {', '.join(BESIDE)} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--quiet", type=float, default=10, metavar="SECONDS", help="of appends before a compaction with one (10)"
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
        ours, plain, whole = (str(folder / name) for name in ("ours", "plain", "whole"))
        make_table(spark, LockedDeltaWriter(spark, manager, ours), options.files, options.partitions)
        for other in (plain, whole):
            shutil.copytree(ours, other)
        print_figures(spark, manager, inspector, (ours, plain, whole), zookeeper.hosts, folder, options)


def print_figures(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    inspector: LockInspector,
    tables: tuple[str, str, str],
    hosts: str,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    ours, plain, whole = tables
    seen = [
        {"sluice, s": measure(spark, ours).health.measuring_seconds, "stock, s": stock_figures(ours)} for _ in range(3)
    ]
    print_table([{"look": number, **each} for number, each in enumerate(seen, start=1)])
    rates, kept_back, held = [], [], []

    def compacted(name: str, work: Callable[[], float | None]) -> tuple[float, float]:
        began = time.time()
        working = work()
        ended = time.time()
        rate = options.files / (working or ended - began)
        rates.append({"compaction": name, "seconds": ended - began, "of it work": working, "files/s of work": rate})
        return began, ended

    def plainly() -> None:
        conf = spark.sparkContext._jsc.sc().conf()
        conf.set(GUARD_MODE, "off")
        session_with(spark, SIZES).sql(f"OPTIMIZE delta.`{plain}`").collect()
        conf.set(GUARD_MODE, "required")

    def care(table: str, **how: Any) -> Callable[[], float]:
        """Compact; return for how long, from when the table was measured to the last commit."""

        def run() -> float:
            times: list[float] = []
            worker = UnitExecutor(spark, manager, inspector, table)
            made = TableMaintainer(worker, on_result=lambda _: times.append(time.time()), **how)
            report = made.run([Action.COMPACT], on_measured=lambda _: times.append(time.time()))
            assert report.done
            assert all(each.problem is None for each in report.done), report.done
            held.append(max(each.held_seconds for each in report.done))
            return times[-1] - times[0]

        return run

    def wholly() -> None:
        LockedDeltaWriter(spark, manager, whole).optimize(target_size=TARGET, lock_during="write")

    alone, one, few, hot = (f"{ours}-{name}" for name in ("alone", "one", "few", "hot"))
    for copy in (alone, one, few, hot):
        shutil.copytree(ours, copy)
    alone_runs = {
        "plain": ("plain OPTIMIZE, alone", plainly),
        "alone": ("maintain.py --compact, alone", care(alone)),
        "one": ("maintain.py --compact --parallel 1, alone", care(one, parallel=1)),
        "few": ("maintain.py --compact --partitions-per-commit 16, alone", care(few, partitions_per_commit=16)),
    }
    for name, work in filter(None, map(alone_runs.get, options.runs)):
        compacted(name, work)
    appender_runs = {
        "maintain": ("maintain.py --compact", ours, care(ours)),
        "hot": ("maintain.py --compact, a partition changes all the time", hot, care(hot)),
        "optimize": ('optimize(lock_during="write")', whole, wholly),
    }
    for name, table, work in filter(None, map(appender_runs.get, options.runs)):
        with ExitStack() as stack:
            if table == hot:
                stack.enter_context(another("update", hosts, table, folder))
            stop = stack.enter_context(another("append", hosts, table, folder))
            time.sleep(options.quiet)
            began, ended = compacted(f"{name}, beside an appender", work)
            earlier, during = waits(stop(), began, ended)
        kept_back.append({"beside": f"nothing, before {name}", **wait_figures(earlier)})
        kept_back.append({"beside": name, **wait_figures(during)})
    write_figures(options.output, {"seen": seen, "rates": rates, "kept_back": kept_back, "held": held})


def write_figures(output: Path, figures: dict[str, list[Any]]) -> None:
    """Print the tables of the compactions, and store all figures."""
    for rows in filter(None, (figures["rates"], figures["kept_back"])):
        print_table(rows)
    seconds_held = [round(seconds, 3) for seconds in figures["held"]]
    print_table([{"maintenance held a lock at most, by run, s": seconds_held}])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
