"""Count the S3 requests of a write, in total and while the lock is held, compared with a plain Delta write.

The S3 server of this process counts the requests by operation. The figures are medians over the rounds. No round writes
a checkpoint.

    python benchmarks/s3_requests.py [--rounds 6]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench_session import bench_session
from counted_s3 import CountedS3, Request
from figures import print_table
from pyspark.sql import SparkSession
from turns import unguarded

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from writer_jobs import CommitResult, LockedDeltaWriter
from writer_jobs.commit.options import LockDuring

TABLE = "s3a://lake/counted"
#: A checkpoint is due at each tenth version.
INTERVAL = 10
#: The first round writes a version that ends in this digit or a later one.
FIRST_DIGIT = 2
OPERATIONS = ("LIST", "HEAD", "GET", "PUT", "DELETE")


def count_operations(requests: list[Request], begin: float, end: float) -> Counter[str]:
    return Counter(request.operation for request in requests if begin <= request.at <= end)


def measure(spark: SparkSession, manager: ZookeeperLockManager, s3: CountedS3, rounds: int) -> list[dict[str, Any]]:
    writer = LockedDeltaWriter(spark, manager, TABLE)

    def plain() -> None:
        with unguarded(spark):
            spark.range(3).coalesce(1).write.format("delta").mode("append").save(TABLE)

    def locked(lock_during: LockDuring) -> CommitResult:
        return writer.append(spark.range(3).coalesce(1), lock_during=lock_during)

    appends: dict[str, Callable[[], CommitResult | None]] = {
        "Delta alone, no lock": plain,
        "lock over the write": lambda: locked("write"),
        "lock for the commit": lambda: locked("commit"),
    }
    rows = []
    for name, write in appends.items():
        total_counts: list[Counter[str]] = []
        held_counts: list[Counter[str]] = []
        seconds: list[float] = []
        move_past_checkpoint(spark, writer, rounds)
        for _ in range(rounds):
            s3.counting.requests.clear()
            result = write()
            requests = list(s3.counting.requests)
            total_counts.append(count_operations(requests, 0, time.time()))
            if result is not None:
                held_counts.append(count_operations(requests, result.acquired_at, result.released_at))
                seconds.append(result.held_seconds)
        rows.append(row(name, total_counts, None))
        if held_counts:
            rows.append(row(f"{name}: while it is held", held_counts, statistics.median(seconds)))
    return rows


def row(name: str, counts: list[Counter[str]], seconds: float | None) -> dict[str, Any]:
    medians = {operation: int(statistics.median(counter[operation] for counter in counts)) for operation in OPERATIONS}
    return {"an append": name, **medians, "seconds held": "" if seconds is None else seconds}


def move_past_checkpoint(spark: SparkSession, writer: LockedDeltaWriter, rounds: int) -> None:
    """Append until a checkpoint exists and none is due in the next ``rounds`` versions, if these are at most eight."""
    last_first_digit = max(FIRST_DIGIT, INTERVAL - rounds)
    while True:
        version = writer.log.head().version + 1
        if version > INTERVAL and FIRST_DIGIT <= version % INTERVAL <= last_first_digit:
            return
        writer.append(spark.range(3).coalesce(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with ExitStack() as stack:
        s3 = stack.enter_context(CountedS3())
        s3.create_bucket("lake")
        os.environ.update(s3.environment)
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = bench_session("s3 requests", s3.spark_conf)
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts, 60))
        print_table(measure(spark, manager, s3, options.rounds))


if __name__ == "__main__":
    main()
