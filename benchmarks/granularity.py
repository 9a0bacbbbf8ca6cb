"""Measure the gain of finer locks: k writers on k partitions of one table, on k tables, and with one table lock.

Each writer is a thread with a JVM that has the guarded log store, without Spark. It takes its lock, waits 2 s as for a
slow source, and puts the next version, with a file of its partition, on S3 (moto). If another writer has taken that
version, it tries the following one. The three kinds of locks take turns for each k, in one run.

    python benchmarks/granularity.py [--writers 1,2,4,8] [--commits 3] [--work 2]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from figures import print_table, save

from lock_manager import (
    PartitionColumn,
    PartitionSchema,
    TableResource,
    TableScope,
    ZookeeperLockManager,
    guard_registry,
)
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.s3 import LocalS3
from soak.errors import VersionTakenError
from soak.jvm import StoreJvm

#: Share of perfect scaling that two writers with finer locks must reach.
GOAL = 0.8
KINDS = ("one table lock", "partitions", "tables")
SCHEMA = PartitionSchema((PartitionColumn("writer", "integer"),))


class Writer:
    """The lock manager, guard and JVM of a thread."""

    def __init__(self, number: int, hosts: str, hadoop: dict[str, str], folder: Path, stack: ExitStack) -> None:
        self.number = number
        self.guard = CommitGuard()
        self.manager = stack.enter_context(ZookeeperLockManager(hosts, 600))
        log = folder / f"{number}.log"
        self.jvm = StoreJvm(hadoop=hadoop, guard=self.guard, mode="required", conditional=True, stderr_path=log)
        stack.callback(self.jvm.close)

    def commit(self, table: str, scope: TableScope, work_seconds: float) -> int:
        """Do the work and commit under the lock. Return the number of versions that other writers put first."""
        with self.manager.acquire_all([scope]) as hold:
            guarded_block = GuardedBlock(hold, {"job": f"writer {self.number}"}, schema=SCHEMA)
            self.guard.add(guarded_block)
            try:
                time.sleep(work_seconds)
                version, conflicts = max(self.jvm.versions(table, 0), default=-1) + 1, 0
                while True:
                    try:
                        self.jvm.write(table, version, self._lines(), block=guarded_block.name)
                    except VersionTakenError:
                        version, conflicts = version + 1, conflicts + 1
                    else:
                        return conflicts
            finally:
                self.guard.remove(guarded_block)
                guarded_block.settle(self.jvm.attempts(hold.hold_id))

    def _lines(self) -> list[str]:
        info = {"timestamp": 1795261760000, "operation": "WRITE", "txnId": str(uuid.uuid4())}
        add = {"path": f"{uuid.uuid4()}.parquet", "partitionValues": {"writer": str(self.number)}, "size": 1,
               "modificationTime": 0, "dataChange": True}  # fmt: skip
        return [json.dumps({"commitInfo": info}), json.dumps({"add": add})]


def measure(kind: str, writers: list[Writer], options: Any) -> dict[str, Any]:
    """Let all writers commit ``options.commits`` times at the same time; return their row."""
    prefix = uuid.uuid4().hex

    def run(writer: Writer) -> int:
        table = f"s3a://bench/{prefix}" + (f"-{writer.number}" if kind == "tables" else "")
        parts = [SCHEMA.partition({"writer": writer.number})] if kind == "partitions" else None
        scope = TableScope.of(TableResource.of(table), parts)
        return sum(writer.commit(table, scope, options.work) for _ in range(options.commits))

    started = time.monotonic()
    with ThreadPoolExecutor(len(writers)) as pool:
        conflicts = sum(pool.map(run, writers))
    seconds = time.monotonic() - started
    return {"locks": kind, "writers": len(writers), "wall_s": seconds, "taken": conflicts,
            "commits_per_s": len(writers) * options.commits / seconds}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", default="1,2,4,8", help="numbers of writers (1,2,4,8)")
    parser.add_argument("--commits", type=int, default=3, help="commits of each writer (3)")
    parser.add_argument("--work", type=float, default=2.0, metavar="SECONDS", help="waiting under the lock (2)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/granularity.json"))
    options = parser.parse_args()
    numbers = [int(number) for number in options.writers.split(",")]
    # The log stores of the JVMs ask the guards of this process.
    guard_registry.declare_guard_installed(lambda _: SCHEMA)
    rows = []
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        s3 = stack.enter_context(LocalS3())
        s3.create_bucket("bench")
        os.environ.update(s3.environment)
        hadoop = {name.removeprefix("spark.hadoop."): value for name, value in s3.spark_conf.items()}
        writers = [Writer(number, zookeeper.hosts, hadoop, folder, stack) for number in range(max(numbers))]
        for writer in writers:
            # Warm-up: the first LIST and PUT load classes.
            table = f"s3a://bench/warm-{writer.number}"
            writer.commit(table, TableScope.of(TableResource.of(table)), 0)
        rate_of_one = {kind: measure(kind, writers[:1], options)["commits_per_s"] for kind in KINDS}
        for number in numbers:
            for kind in KINDS:
                row = measure(kind, writers[:number], options)
                rows.append({**row, "of_perfect": row["commits_per_s"] / (number * rate_of_one[kind])})
    print_table(rows)
    for row in (row for row in rows if row["writers"] == 2 and row["locks"] != KINDS[0]):
        verdict = "reached" if row["of_perfect"] >= GOAL else "MISSED"
        print(f"2 writers, {row['locks']}: {row['of_perfect']:.2f} of perfect; goal {GOAL}: {verdict}")
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "work_s": options.work, "rows": rows}
    save(options.output, facts)


if __name__ == "__main__":
    main()
