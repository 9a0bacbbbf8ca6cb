"""One writer of ``benchmarks/contention.py``: a Spark driver that appends as it is told, line by line of JSON.

Each line on standard input is a cell to run (``table``, ``mode``, ``work_s``, ``number``), then how long (``until``, or
``commits``), or ``{"end": 1}``; each line on standard output the answer: what every append took, and the processor time
of this driver with its JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench_session import bench_session
from figures import cpu_seconds
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter
from writer_jobs.failures import JVM_ERRORS, is_conflict
from writer_jobs.session import GUARD_MODE, LOG_STORE, LOG_STORE_SETTING

STOCK = "io.delta.storage.S3SingleDriverLogStore"
MOST_TRIES = 20
CPU = -1


class Writer:
    """The driver, and how it appends in each mode."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, flights: str) -> None:
        self.spark = spark
        self.manager = manager
        self.jvm_pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        self.flights = spark.read.option("header", True).csv(flights).cache()
        self.flights.count()
        self.conf = spark.sparkContext._jsc.sc().conf()

    def run(self, cell: dict[str, Any]) -> dict[str, Any]:
        with self.stores(cell["mode"]):
            append = self.appender(cell)
            say({"ready": cell["number"]})
            how_long = json.loads(sys.stdin.readline())
            commits: list[dict[str, Any]] = []
            tries, began, cpu = 0, time.time(), cpu_seconds(self.jvm_pid)
            while len(commits) < how_long.get("commits", 0) or time.time() < how_long.get("until", 0):
                started = time.time()
                done, tried = self.again(append, self.rows(cell, len(commits)))
                commits.append({"took_s": time.time() - started, "ended": time.time(), **done})
                tries += tried
            return {"commits": commits, "conflicts": tries, "began": began, "cpu_s": cpu_seconds(self.jvm_pid) - cpu}

    def again(self, append: Callable[[DataFrame], dict[str, Any]], rows: DataFrame) -> tuple[dict[str, Any], int]:
        """Append until it is in, as a job would be started again; count the conflicts."""
        for tried in range(MOST_TRIES):
            try:
                return append(rows), tried
            except JVM_ERRORS as error:
                if not is_conflict(error):
                    raise
        raise SystemExit(f"an append failed {MOST_TRIES} times")

    def rows(self, cell: dict[str, Any], number: int) -> DataFrame:
        """Return rows that take so long to compute, each with an id that no other append has."""
        first = cell["number"] * 1_000_000 + number
        if cell["work_s"] == CPU:
            # Real rows, added up and sorted. All of it is looked at, or Spark would leave the sums out.
            part = self.flights.groupBy("carrier", "origin", "dest", "hour").agg(
                {"arr_delay": "avg", "distance": "sum"}
            )
            many = len(part.orderBy("sum(distance)").toArrow())
            return self.spark.range(first, first + 1).selectExpr("id", f"{many}L AS work").coalesce(1)
        wait = round(1000 * cell["work_s"])
        slept = f"reflect('java.lang.Thread', 'sleep', {wait}L)" if wait else "''"
        return self.spark.range(first, first + 1, numPartitions=1).selectExpr("id", f"length({slept}) + 0L AS work")

    def appender(self, cell: dict[str, Any]) -> Callable[[DataFrame], dict[str, Any]]:
        table, mode = cell["table"], cell["mode"]
        if mode in ("gate", "whole write"):
            writer = LockedDeltaWriter(self.spark, self.manager, table)
            hold = "commit" if mode == "gate" else "write"

            def locked(rows: DataFrame) -> dict[str, Any]:
                done = writer.append(rows, hold=hold)  # type: ignore[arg-type]
                return {"held_s": done.held_seconds, "waited_s": done.waited_seconds, "version": done.version}

            return locked
        if mode == "limit":
            return self.ready_made(table)

        def plain(rows: DataFrame) -> dict[str, Any]:
            rows.write.format("delta").mode("append").save(table)
            return {}

        return plain

    def ready_made(self, table: str) -> Callable[[DataFrame], dict[str, Any]]:
        """Commit an action that is there already: no data file is written."""
        jvm: Any = self.spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        nothing = jvm.scala.Option.empty()
        log = delta.DeltaLog.forTable(self.spark._jsparkSession, table)
        # Of a manual update Delta does not derive the checksum; of any write it does.
        mode = jvm.org.apache.spark.sql.SaveMode.Append
        write = getattr(delta, "DeltaOperations$Write")
        operation = write(mode, *[nothing] * 8)
        action = delta.actions.Action.fromJson(json.dumps({"txn": {"appId": "limit", "version": 1, "lastUpdated": 0}}))
        actions = jvm.org.apache.spark.api.python.PythonUtils.toSeq([action])

        def commit(_: DataFrame) -> dict[str, Any]:
            return {"version": log.startTransaction(nothing, nothing).commit(actions, operation)}

        return commit

    @contextmanager
    def stores(self, mode: str) -> Iterator[None]:
        """Have tables that are new to this driver written in the way of a mode."""
        changes = {}
        if mode in ("optimistic", "stock", "limit"):
            changes[GUARD_MODE] = "off"
        if mode == "stock":
            changes[LOG_STORE_SETTING] = STOCK
        before = {GUARD_MODE: "required", LOG_STORE_SETTING: LOG_STORE}
        for name, value in changes.items():
            self.conf.set(name, value)
        try:
            yield
        finally:
            for name in changes:
                self.conf.set(name, before[name])


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    zookeeper, flights = sys.argv[1:]
    spark = bench_session("contention", json.loads(os.environ["CONTENTION_CONF"]))
    with ZookeeperLockManager(zookeeper, timeout_seconds=600) as manager:
        writer = Writer(spark, manager, flights)
        say({"started": os.getpid()})
        for line in sys.stdin:
            cell = json.loads(line)
            if "end" in cell:
                break
            say(writer.run(cell))
    spark.stop()


if __name__ == "__main__":
    main()
