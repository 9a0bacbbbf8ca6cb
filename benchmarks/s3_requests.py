"""How many requests to S3 is one write, and how many of them while the lock is held? Beside a plain write of Delta's.

A server in this process counts, by the operation of S3's API. Medians over the rounds, which are between two
checkpoints.

    python benchmarks/s3_requests.py [--rounds 6]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bench_session import bench_session
from figures import print_table
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local._s3_server import WsgiApplication
from soak.s3_faults import FaultyS3
from writer_jobs import CommitResult, LockedDeltaWriter
from writer_jobs.commit.options import LockDuring
from writer_jobs.delta.session import GUARD_MODE

TABLE = "s3a://lake/counted"
#: A checkpoint is due at each tenth version.
INTERVAL = 10
#: The first round writes a version that ends in this digit or a later one.
FIRST_DIGIT = 2
OPERATIONS = ("LIST", "HEAD", "GET", "PUT", "DELETE")


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        at: seconds since the epoch, when it came.
        operation: of :data:`OPERATIONS`.

    """

    at: float
    operation: str


class Counting:
    """WSGI middleware that notes each request."""

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self.asked: list[Asked] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        operation = "LIST" if method == "GET" and re.search(r"(^|&)list-type=", query) else method
        self.asked.append(Asked(time.time(), "DELETE" if operation == "POST" and "delete" in query else operation))
        return self._application(environ, start_response)


class CountedS3(FaultyS3):
    """The S3 of the tests, without faults, that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = Counting(self.gate)
        self.gate = self.counting  # type: ignore[assignment]


def counted(asked: list[Asked], begin: float, end: float) -> Counter[str]:
    return Counter(each.operation for each in asked if begin <= each.at <= end)


def measure(spark: SparkSession, manager: ZookeeperLockManager, s3: CountedS3, rounds: int) -> list[dict[str, Any]]:
    writer = LockedDeltaWriter(spark, manager, TABLE)
    conf = spark.sparkContext._jsc.sc().conf()

    def plain() -> None:
        conf.set(GUARD_MODE, "off")
        try:
            spark.range(3).coalesce(1).write.format("delta").mode("append").save(TABLE)
        finally:
            conf.set(GUARD_MODE, "required")

    def locked(hold: LockDuring) -> CommitResult:
        return writer.append(spark.range(3).coalesce(1), lock_during=hold)

    ways: dict[str, Callable[[], CommitResult | None]] = {
        "Delta alone, no lock": plain,
        "lock over the write": lambda: locked("write"),
        "lock for the commit": lambda: locked("commit"),
    }
    rows = []
    for name, write in ways.items():
        all_of_it: list[Counter[str]] = []
        under: list[Counter[str]] = []
        seconds: list[float] = []
        past_a_checkpoint(spark, writer, rounds)
        for _ in range(rounds):
            s3.counting.asked.clear()
            result = write()
            every = list(s3.counting.asked)
            all_of_it.append(counted(every, 0, time.time()))
            if result is not None:
                under.append(counted(every, result.acquired_at, result.released_at))
                seconds.append(result.held_seconds)
        rows.append(row(name, all_of_it, None))
        if under:
            rows.append(row(f"{name}: while it is held", under, statistics.median(seconds)))
    return rows


def row(name: str, counts: list[Counter[str]], seconds: float | None) -> dict[str, Any]:
    medians = {each: int(statistics.median(count[each] for count in counts)) for each in OPERATIONS}
    return {"an append": name, **medians, "seconds held": "" if seconds is None else seconds}


def past_a_checkpoint(spark: SparkSession, writer: LockedDeltaWriter, rounds: int) -> None:
    """Append until a checkpoint exists, and the next versions, at most eight, end before the next one is due."""
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
