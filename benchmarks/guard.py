"""Measure the cost of the guard in a commit: a log store with it and without it (``spark.sluice.guard=off``).

Two JVMs without Spark write version files of one table through ``GuardedLogStore``. They take turns, so that noise of
the machine affects both; the tenth percentiles show its quiet moments. Both create a version file only if it does not
exist. One asks Python before each put; Python lets the ensemble confirm the hold and store the intent. The other costs
of a Spark commit (0.2 s and more) are excluded. Everything runs on this machine: ZooKeeper from PySpark's jars, S3 from
moto.

    python benchmarks/guard.py [--commits 1000] [--servers 1] [--files 4]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from figures import percentile, print_table, save

from lock_manager import HeldLock, ZookeeperLockManager
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.s3 import LocalS3
from soak.jvm import StoreJvm

GOAL_MS = 3.0
MODES = ("off", "required")


def commit_lines(files: int) -> list[str]:
    """Return the lines that Delta writes for an append: 0.4 kB, and 0.3 kB for each file."""
    info = {
        "timestamp": 1795261760000, "operation": "WRITE", "operationParameters": {"mode": "Append"},
        "readVersion": 1, "isolationLevel": "Serializable", "isBlindAppend": True,
        "operationMetrics": {"numFiles": str(files), "numOutputRows": "8419", "numOutputBytes": "123456"},
        "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0", "txnId": str(uuid.uuid4()),
    }  # fmt: skip
    add = {
        "path": "part-00000-00000000-0000-0000-0000-000000000000-c000.snappy.parquet", "partitionValues": {},
        "size": 123456, "modificationTime": 1795261760000, "dataChange": True,
        "stats": '{"numRecords":8419,"minValues":{"id":1},"maxValues":{"id":8419},"nullCount":{"id":0}}',
    }  # fmt: skip
    lines = [{"commitInfo": info}, *({"add": add} for _ in range(files))]
    return [json.dumps(line, separators=(",", ":")) for line in lines]


def measure(table: str, jvms: dict[str, StoreJvm], guard: CommitGuard, hold: HeldLock, options: Any) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    checks: list[float] = []
    warm_up = options.warm_up
    guarded_block = GuardedBlock(hold, {"job": "bench"})
    guard.add(guarded_block)
    version = 0
    for number in range(warm_up + options.commits):
        durations = {}
        # Alternate the order.
        for mode in MODES if number % 2 else MODES[::-1]:
            lines = commit_lines(options.files)
            started = time.perf_counter()
            jvms[mode].write(table, version, lines, block=guarded_block.name)
            durations[mode] = time.perf_counter() - started
            version += 1
        started = time.perf_counter()
        hold.check()
        durations["check"] = time.perf_counter() - started
        if number >= warm_up:
            checks.append(durations["check"])
            for mode in MODES:
                seconds[mode].append(durations[mode])
    guard.remove(guarded_block)
    for jvm in jvms.values():
        guarded_block.settle(jvm.attempts(hold.hold_id))
    stamps = [
        json.loads(jvms["off"].read(table, number)[0])["commitInfo"]["sluice"] for number in (version - 2, version - 1)
    ]
    if len(guarded_block.allowed_puts) != warm_up + options.commits or sum("hold" in stamp for stamp in stamps) != 1:
        raise SystemExit("the figures are invalid: one store must ask the guard at every commit, and the other at none")
    unguarded_seconds, guarded_seconds = seconds["off"], seconds["required"]
    return {
        "store": table.partition(":")[0],
        "commits": options.commits,
        "without_p50_ms": 1e3 * statistics.median(unguarded_seconds),
        "guarded_p50_ms": 1e3 * statistics.median(guarded_seconds),
        "cost_p50_ms": 1e3 * (statistics.median(guarded_seconds) - statistics.median(unguarded_seconds)),
        "cost_p10_ms": 1e3 * (percentile(guarded_seconds, 0.1) - percentile(unguarded_seconds, 0.1)),
        "without_p99_ms": 1e3 * percentile(unguarded_seconds, 0.99),
        "guarded_p99_ms": 1e3 * percentile(guarded_seconds, 0.99),
        "quorum_check_p50_ms": 1e3 * statistics.median(checks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--commits", type=int, default=1000, help="commits with and without the guard, on each store (1000)"
    )
    parser.add_argument("--warm-up", type=int, default=200, metavar="COMMITS", help="first commits, not measured (200)")
    parser.add_argument("--files", type=int, default=4, help="data files in each commit (4)")
    parser.add_argument("--servers", type=int, default=1, choices=(1, 3), help="ZooKeeper servers (1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/guard.json"))
    options = parser.parse_args()
    guard = CommitGuard()
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper(options.servers))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        s3 = stack.enter_context(LocalS3())
        s3.create_bucket("bench")
        os.environ.update(s3.environment)
        hadoop = {name.removeprefix("spark.hadoop."): value for name, value in s3.spark_conf.items()}
        jvms = {}
        for mode in MODES:
            log = folder / f"{mode}.log"
            jvms[mode] = StoreJvm(hadoop=hadoop, guard=guard, mode=mode, conditional=True, stderr_path=log)
            stack.callback(jvms[mode].close)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        rows = []
        for table in (f"file:{folder}/table", "s3a://bench/table"):
            with manager.acquire(table) as hold:
                rows.append(measure(table, jvms, guard, hold, options))
    print_table(rows)
    worst = max(row["cost_p50_ms"] for row in rows)
    print(f"goal: at most {GOAL_MS:g} ms p50; {'reached' if worst <= GOAL_MS else 'MISSED'} ({worst:.2f} ms)")
    print(f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")
    about = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "zookeeper_servers": options.servers,
        "load_average_5_minutes": os.getloadavg()[1],
    }
    save(options.output, {"about": about, "guard": rows})


if __name__ == "__main__":
    main()
