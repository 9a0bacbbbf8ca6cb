"""Run contestants in turns, each on a copy of the same table."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from sluice.local.spark import LOCAL_DRIVER
from writer_jobs.delta.session import GUARD_MODE

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    **LOCAL_DRIVER,
}


@contextmanager
def unguarded(spark: SparkSession) -> Iterator[None]:
    """Allow this driver to commit without a lock, as stock Delta does."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(GUARD_MODE, "off")
    try:
        yield
    finally:
        conf.set(GUARD_MODE, "required")


def metrics_of(spark: SparkSession, table: str) -> dict[str, str]:
    """Return the metrics that Delta recorded for the last operation."""
    (row,) = DeltaTable.forPath(spark, table).history(1).select("operationMetrics").collect()
    return dict(row[0])


def peak_mib(pid: int, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Run a function. Return its result, its duration in seconds, and the peak resident size of a process in MiB."""
    # Reset the peak size (proc(5), clear_refs).
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    began = time.monotonic()
    result = work()
    seconds = time.monotonic() - began
    (size,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return result, seconds, int(size.split()[1]) / 1024


def copy_table(table: str, target: str) -> None:
    """Copy a table with its side tables."""
    for suffix in ("", "_tombstones", "_cells"):
        shutil.rmtree(target + suffix, ignore_errors=True)
        if Path(table + suffix).exists():
            shutil.copytree(table + suffix, target + suffix)


def run_in_turns(
    spark: SparkSession, folder: Path, base: str, options: Any, contestants: dict[str, Callable[[str], dict[str, str]]]
) -> dict[str, list[tuple[float, float, dict[str, str]]]]:
    """Run contestants in turns, each on its own copy of a table.

    Args:
        spark: The session.
        folder: Folder for the copy.
        base: Table to copy before each run.
        options: ``warm_up`` and ``rounds``, numbers of rounds.
        contestants: Functions by name. Each writes to the table at a path and returns Delta's metrics.

    Returns:
        For each contestant, a tuple (seconds, peak MiB, Delta's metrics) of each measured round.

    """
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    runs: dict[str, list[tuple[float, float, dict[str, str]]]] = {name: [] for name in contestants}
    table = str(folder / "copy")
    for number in range(-options.warm_up, options.rounds):
        for name, work in contestants.items():
            copy_table(base, table)
            metrics, seconds, memory = peak_mib(pid, partial(work, table))
            if number >= 0:
                runs[name].append((seconds, memory, metrics))
    return runs


def figures_of(name: str, runs: list[tuple[float, float, dict[str, str]]], changes: int) -> dict[str, Any]:
    seconds = statistics.median(run[0] for run in runs)
    metrics = runs[-1][2]
    return {
        "": name,
        "seconds": seconds,
        "from": min(run[0] for run in runs),
        "to": max(run[0] for run in runs),
        "changes per second": int(changes / seconds),
        "peak MiB": int(max(run[1] for run in runs)),
        "files removed": metrics.get("numTargetFilesRemoved"),
        "files added": metrics.get("numTargetFilesAdded"),
        "updated": metrics.get("numTargetRowsUpdated"),
        "inserted": metrics.get("numTargetRowsInserted"),
        "deleted": metrics.get("numTargetRowsDeleted"),
    }
