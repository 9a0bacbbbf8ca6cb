"""One writer of ``contention.py`` and ``operations.py``: a Spark driver that writes as it is told.

Each line of JSON on standard input is a cell to run (``table``, ``mode``, ``work_s``, ``number``, and ``operation``
with ``part`` for another one than append), then how long (``until``, or ``commits``), or ``{"end": 1}``; each line on
standard output the answer: what every write took, and the processor time of this driver with its JVM.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench_session import bench_session
from delta.tables import DeltaTable
from figures import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from lock_manager import ZookeeperLockManager
from writer_jobs import CommitResult, LockedDeltaWriter
from writer_jobs.commit.options import LockDuring
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.session import GUARD_MODE, LOG_STORE, LOG_STORE_SETTING

#: In each part of a table for ``operations.py`` there are rows with these ids, and a number ``n`` that is counted up.
KEYS = 10
RAISED = {"n": "t.n + s.n"}
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
        self.again_under_the_lock = _Counter()

    def run(self, cell: dict[str, Any]) -> dict[str, Any]:
        with self.stores(cell["mode"]):
            write = self.writer(cell)
            say({"ready": cell["number"]})
            how_long = json.loads(sys.stdin.readline())
            commits: list[dict[str, Any]] = []
            tries, began, cpu = 0, time.time(), cpu_seconds(self.jvm_pid)
            while len(commits) < how_long.get("commits", 0) or time.time() < how_long.get("until", 0):
                started = time.time()
                done, tried = self.again(write, self.rows(cell, len(commits)))
                commits.append({"took_s": time.time() - started, "ended": time.time(), **done})
                tries += tried
            return {"commits": commits, "conflicts": tries, "began": began, "cpu_s": cpu_seconds(self.jvm_pid) - cpu}

    def again(self, write: Callable[[DataFrame], dict[str, Any]], rows: DataFrame) -> tuple[dict[str, Any], int]:
        """Write until it is in, as a job would be started again; count the conflicts."""
        self.again_under_the_lock.times = 0
        for tried in range(MOST_TRIES):
            try:
                return write(rows), tried + self.again_under_the_lock.times
            except JVM_ERRORS as error:
                if not is_conflict(error):
                    raise
        raise SystemExit(f"a write failed {MOST_TRIES} times")

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
        rows = self.spark.range(first, first + 1, numPartitions=1).selectExpr("id", f"length({slept}) + 0L AS work")
        if "part" not in cell:
            return rows
        return rows.selectExpr(f"id % {KEYS} AS id", "work * 0L + 1L AS n", f"{cell['part']}L AS part")

    def writer(self, cell: dict[str, Any]) -> Callable[[DataFrame], dict[str, Any]]:
        table, mode = cell["table"], cell["mode"]
        if mode == "limit":
            return self.ready_made(table)
        if mode not in ("gate", "whole write"):
            return lambda rows: self.plain(cell, rows)
        writer = LockedDeltaWriter(self.spark, self.manager, table)
        hold: LockDuring = "commit" if mode == "gate" else "write"

        def locked(rows: DataFrame) -> dict[str, Any]:
            done = self.locked(cell, writer, rows, hold)
            return {"held_s": done.held_seconds, "waited_s": done.waited_seconds, "version": done.version}

        return locked

    def locked(
        self, cell: dict[str, Any], writer: LockedDeltaWriter, rows: DataFrame, hold: LockDuring
    ) -> CommitResult:
        operation, part = cell.get("operation", "append"), f"part = {cell.get('part')}"
        if operation == "append":
            return writer.append(rows, lock_during=hold)
        if operation == "overwrite":
            return writer.overwrite(rows, replace_where=part, lock_during=hold)
        if operation == "update":
            return writer.update({"n": "n + 1"}, f"{part} AND id = 0", lock_during=hold)
        if operation == "optimize":
            return writer.optimize(lock_during=hold)
        merge = writer.merge(rows.alias("s"), f"t.{part} AND t.id = s.id", alias="t")
        done: CommitResult = merge.whenMatchedUpdate(set=RAISED).whenNotMatchedInsertAll().execute(lock_during=hold)
        return done

    def plain(self, cell: dict[str, Any], rows: DataFrame) -> dict[str, Any]:
        operation, part, table = cell.get("operation", "append"), f"part = {cell.get('part')}", cell["table"]
        if operation == "append":
            rows.write.format("delta").mode("append").save(table)
        elif operation == "overwrite":
            rows.write.format("delta").mode("overwrite").option("replaceWhere", part).save(table)
        elif operation == "update":
            DeltaTable.forPath(self.spark, table).update(f"{part} AND id = 0", {"n": expr("n + 1")})
        elif operation == "optimize":
            DeltaTable.forPath(self.spark, table).optimize().executeCompaction()
        else:
            merge = DeltaTable.forPath(self.spark, table).alias("t").merge(rows.alias("s"), f"t.{part} AND t.id = s.id")
            merge.whenMatchedUpdate(set=RAISED).whenNotMatchedInsertAll().execute()
        return {}

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


class _Counter(logging.Handler):
    """How often a write was done again, with the lock from its beginning."""

    times = 0

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        logger = logging.getLogger("writer_jobs.writer")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.times += record.getMessage().startswith("writing again")


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
