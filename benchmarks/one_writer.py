"""Measure the cost of the gate for a single writer: rounds of three appends to one table on S3.

The append of a writer goes through the gate. The automatic append is ``df.write`` with an automatic ticket, as in a
program that requests no lock. The plain append is ``df.write`` through the same log store with the guard off. The order
alternates. The processor time is that of the driver's Python and JVM. Ratios are to the plain append: those of the time
are of medians, those of the processor time of sums, because it is counted in steps of 10 ms. Their intervals come from
2,000 resamples of the rounds (bootstrap, 95 %). The first table splits the time of an append of the writer into phases,
from the times of requests to the guard; only its means add up. Everything runs on this machine: S3 is moto, ZooKeeper
one embedded server.

    python benchmarks/one_writer.py [--rounds 60]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_session import bench_session
from figures import cpu_seconds, named, percentile, print_table, ratio, save
from pyspark.sql import SparkSession
from turns import unguarded

import writer_jobs.commit.driver_guard
from lock_manager import ZookeeperLockManager
from lock_manager.base_hold import BaseHold
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.s3 import LocalS3
from writer_jobs import CommitResult, LockedDeltaWriter, attach

TABLE = "s3a://bench/alone"
PHASES = {
    "work": "compute rows, write the data file, Delta's checks, up to the gate",
    "queue": "from the request for the lock until it is acquired",
    "look": "check the version that was read, and that the next version is free",
    "guard": "confirm the hold, store the intent",
    "put": "put the version file",
    "give back": "report the outcome, release the lock",
    "after": "Delta's new snapshot, checksum and hooks",
}


class TimedGuard(CommitGuard):
    """A guard that records the times of the first request of each kind and of its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, float] = {}

    def check(self, request: str) -> str:
        kind = json.loads(request)["kind"]
        self.at.setdefault(kind, time.time())
        answer = super().check(request)
        self.at.setdefault(f"{kind} answered", time.time())
        return answer


def phase_seconds(
    began: float, guard: TimedGuard, result: CommitResult, released: float, ended: float
) -> dict[str, float]:
    at = guard.at
    marks = [
        began, at["turn"], result.acquired_at, at["commit"], at["commit answered"], at["outcome"], released, ended,
    ]  # fmt: skip
    return dict(zip(PHASES, (end - start for start, end in itertools.pairwise(marks)), strict=True))


def measure(spark: SparkSession, manager: ZookeeperLockManager, guard: TimedGuard, options: Any) -> dict[str, Any]:
    rounds, warm_up = options.rounds, options.warm_up
    writer = LockedDeltaWriter(spark, manager, TABLE)
    released: list[float] = []
    release = BaseHold.release

    def timed_release(self: BaseHold[Any]) -> None:
        release(self)
        if self.resource == writer.table:
            released.append(time.time())

    BaseHold.release = timed_release  # type: ignore[method-assign]
    append_phases: list[dict[str, float]] = []

    def gate() -> None:
        guard.at.clear()
        rows = spark.range(3).coalesce(1)
        began = time.time()
        result = writer.append(rows, lock_during="commit")
        if "turn" in guard.at:
            append_phases.append(phase_seconds(began, guard, result, released[-1], time.time()))

    def automatic() -> None:
        spark.range(3).coalesce(1).write.format("delta").mode("append").save(TABLE)

    def plain() -> None:
        with unguarded(spark):
            automatic()

    appends: dict[str, Callable[[], None]] = {"gate": gate, "automatic": automatic, "plain": plain}
    durations: dict[str, list[float]] = {name: [] for name in appends}
    processor: dict[str, list[float]] = {name: [] for name in appends}
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    for number in range(warm_up + rounds):
        for name in (tuple(appends), tuple(appends)[::-1])[number % 2]:
            cpu_start, began = cpu_seconds(jvm), time.time()
            appends[name]()
            durations[name].append(time.time() - began)
            processor[name].append(cpu_seconds(jvm) - cpu_start)
    BaseHold.release = release  # type: ignore[method-assign]
    measured = {name: values[warm_up:] for name, values in durations.items()}
    used = {name: values[warm_up:] for name, values in processor.items()}
    measured_phases = append_phases[-rounds:]
    return {
        "rounds": rounds,
        "appends": {
            name: {
                "p50_s": statistics.median(measured[name]),
                "p95_s": percentile(measured[name], 0.95),
                "cpu_s": statistics.mean(used[name]),
                **named("time", ratio(measured[name], measured["plain"], statistics.median)),
                **named("cpu", ratio(used[name], used["plain"], sum)),
            }
            for name in appends
        },
        "phases_ms": {name: 1000 * statistics.mean(phases[name] for phases in measured_phases) for name in PHASES},
        "phases_p50_ms": {
            name: 1000 * statistics.median(phases[name] for phases in measured_phases) for name in PHASES
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="measured rounds of three appends (60)")
    parser.add_argument("--warm-up", type=int, default=12, metavar="ROUNDS", help="first rounds, not measured (12)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/one_writer.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        s3 = stack.enter_context(LocalS3())
        s3.create_bucket("bench")
        os.environ.update(s3.environment)
        guard = TimedGuard()
        writer_jobs.commit.driver_guard.GUARD = guard
        spark = bench_session("one writer", s3.spark_conf)
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        attach(spark, manager=manager, lock="commit")
        result = measure(spark, manager, guard, options)
    means, medians = result["phases_ms"], result["phases_p50_ms"]
    rows = [
        {"phase": name, "mean_ms": means[name], "p50_ms": medians[name], "content": PHASES[name]} for name in PHASES
    ]
    totals = {"mean_ms": sum(means.values()), "p50_ms": 1000 * result["appends"]["gate"]["p50_s"]}
    rows.append({"phase": "all", **totals, "content": "an append"})
    print_table(rows)
    print_table([{"append": name, **values} for name, values in result["appends"].items()])
    save(options.output, {"one_writer": result})


if __name__ == "__main__":
    main()
