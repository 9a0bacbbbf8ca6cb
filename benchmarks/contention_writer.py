"""A writer of ``contention.py`` and ``operations.py``: a Spark driver that runs the cells it receives.

Standard input has lines of JSON. A cell has two lines: first ``table``, ``mode``, ``work_s``, ``number``, and from
``operations.py`` also ``operation`` and ``part``; then ``until`` (Unix time) and ``commits``; the cell ends when
both are reached. ``{"end": 1}`` ends the writer. The answers on standard output are ``started``, and for
each cell ``ready`` and its figures: the duration of each write, and the processor time of this driver, its JVM and its
agent.
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

from lock_manager import LockManager, ZookeeperLockManager, connect
from writer_jobs import CommitResult, LockedDeltaWriter, attach
from writer_jobs.commit.options import LockDuring
from writer_jobs.delta.jvm_errors import JVM_ERRORS, is_conflict
from writer_jobs.delta.session import GUARD_MODE, LOG_STORE, LOG_STORE_SETTING

#: Number of rows in each part of a new table of ``operations.py``. MERGE and UPDATE increase their column ``n``.
KEYS = 10
INCREMENT = {"n": "t.n + s.n"}
STOCK = "io.delta.storage.S3SingleDriverLogStore"
MAX_TRIES = 20
#: Value of ``work_s`` for sums over the flights instead of a wait.
CPU = -1


class Writer:
    """The driver, with a write function for each mode."""

    def __init__(self, spark: SparkSession, manager: LockManager, lease_manager: LockManager, flights: str) -> None:
        self.spark = spark
        self.manager = manager
        self.lease_manager = lease_manager
        self.jvm_pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        self.flights = spark.read.option("header", True).csv(flights).cache()
        self.flights.count()
        self.conf = spark.sparkContext._jsc.sc().conf()
        self.locked_retries = _RetryCounter()

    def run(self, cell: dict[str, Any]) -> dict[str, Any]:
        with self.configured_store(cell["mode"]):
            write = self.write_function(cell)
            send({"ready": cell["number"]})
            limits = json.loads(sys.stdin.readline())
            commits: list[dict[str, Any]] = []
            conflicts, began, cpu_start = 0, time.time(), cpu_seconds(self.jvm_pid)
            while len(commits) < limits.get("commits", 0) or time.time() < limits.get("until", 0):
                started = time.time()
                commit, commit_conflicts = self.retry(write, self.rows(cell, len(commits)))
                commits.append({"took_s": time.time() - started, "ended": time.time(), **commit})
                conflicts += commit_conflicts
            cpu_s = cpu_seconds(self.jvm_pid) - cpu_start
            return {"commits": commits, "conflicts": conflicts, "began": began, "cpu_s": cpu_s}

    def retry(self, write: Callable[[DataFrame], dict[str, Any]], rows: DataFrame) -> tuple[dict[str, Any], int]:
        """Repeat a write until it succeeds, as a restarted job would; return its figures and conflicts."""
        self.locked_retries.count = 0
        for failures in range(MAX_TRIES):
            try:
                return write(rows), failures + self.locked_retries.count
            except JVM_ERRORS as error:
                if not is_conflict(error):
                    raise
        raise SystemExit(f"a write failed {MAX_TRIES} times")

    def rows(self, cell: dict[str, Any], number: int) -> DataFrame:
        """Return a row whose computation takes the cell's work. Without ``part``, its id is unique in the table."""
        row_id = cell["number"] * 1_000_000 + number
        if cell["work_s"] == CPU:
            # Sums of real rows. Collecting all of them keeps Spark from optimizing the sums away.
            sums = self.flights.groupBy("carrier", "origin", "dest", "hour").agg(
                {"arr_delay": "avg", "distance": "sum"}
            )
            count = len(sums.orderBy("sum(distance)").toArrow())
            return self.spark.range(row_id, row_id + 1).selectExpr("id", f"{count}L AS work").coalesce(1)
        wait = round(1000 * cell["work_s"])
        sleep = f"reflect('java.lang.Thread', 'sleep', {wait}L)" if wait else "''"
        rows = self.spark.range(row_id, row_id + 1, numPartitions=1).selectExpr("id", f"length({sleep}) + 0L AS work")
        if "part" not in cell:
            return rows
        return rows.selectExpr(f"id % {KEYS} AS id", "work * 0L + 1L AS n", f"{cell['part']}L AS part")

    def write_function(self, cell: dict[str, Any]) -> Callable[[DataFrame], dict[str, Any]]:
        table, mode = cell["table"], cell["mode"]
        if mode == "limit":
            return self.ready_made_commit(table)
        if mode not in ("gate", "whole write", "s3-lease"):
            return lambda rows: self.write_plain(cell, rows)
        manager = self.lease_manager if mode == "s3-lease" else self.manager
        writer = LockedDeltaWriter(self.spark, manager, table)
        lock_during: LockDuring = "write" if mode == "whole write" else "commit"

        def write(rows: DataFrame) -> dict[str, Any]:
            result = self.write_locked(cell, writer, rows, lock_during)
            return {"held_s": result.held_seconds, "waited_s": result.waited_seconds, "version": result.version}

        return write

    def write_locked(
        self, cell: dict[str, Any], writer: LockedDeltaWriter, rows: DataFrame, lock_during: LockDuring
    ) -> CommitResult:
        operation, part = cell.get("operation", "append"), f"part = {cell.get('part')}"
        if operation == "append":
            return writer.append(rows, lock_during=lock_during)
        if operation == "overwrite":
            return writer.overwrite(rows, replace_where=part, lock_during=lock_during)
        if operation == "update":
            return writer.update({"n": "n + 1"}, f"{part} AND id = 0", lock_during=lock_during)
        if operation == "optimize":
            return writer.optimize(lock_during=lock_during)
        merge = writer.merge(rows.alias("s"), f"t.{part} AND t.id = s.id", alias="t")
        result: CommitResult = (
            merge.whenMatchedUpdate(set=INCREMENT).whenNotMatchedInsertAll().execute(lock_during=lock_during)
        )
        return result

    def write_plain(self, cell: dict[str, Any], rows: DataFrame) -> dict[str, Any]:
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
            merge.whenMatchedUpdate(set=INCREMENT).whenNotMatchedInsertAll().execute()
        return {}

    def ready_made_commit(self, table: str) -> Callable[[DataFrame], dict[str, Any]]:
        """Return a function that commits a ready-made action without writing a data file."""
        jvm: Any = self.spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        none = jvm.scala.Option.empty()
        log = delta.DeltaLog.forTable(self.spark._jsparkSession, table)
        # Delta computes the version's checksum for a write, but not for a manual update.
        mode = jvm.org.apache.spark.sql.SaveMode.Append
        write = getattr(delta, "DeltaOperations$Write")
        operation = write(mode, *[none] * 8)
        action = delta.actions.Action.fromJson(json.dumps({"txn": {"appId": "limit", "version": 1, "lastUpdated": 0}}))
        actions = jvm.org.apache.spark.api.python.PythonUtils.toSeq([action])

        def commit(_: DataFrame) -> dict[str, Any]:
            return {"version": log.startTransaction(none, none).commit(actions, operation)}

        return commit

    @contextmanager
    def configured_store(self, mode: str) -> Iterator[None]:
        """Set the guard mode, the log store and the lock of unchanged programs of a mode.

        The log store applies to tables that this driver opens later.
        """
        changes = {}
        if mode in ("optimistic", "stock", "limit"):
            changes[GUARD_MODE] = "off"
        if mode == "stock":
            changes[LOG_STORE_SETTING] = STOCK
        defaults = {GUARD_MODE: "required", LOG_STORE_SETTING: LOG_STORE}
        for name, value in changes.items():
            self.conf.set(name, value)
        if mode == "automatic":
            attach(self.spark, manager=self.manager, lock="commit")
        try:
            yield
        finally:
            if mode == "automatic":
                attach(self.spark, lock="none")
            for name in changes:
                self.conf.set(name, defaults[name])


class _RetryCounter(logging.Handler):
    """Counts the log messages about writes that are repeated with the lock."""

    count = 0

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        logger = logging.getLogger("writer_jobs.commit")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("writing again")


def send(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    zookeeper, lock_url, flights = sys.argv[1:]
    spark = bench_session("contention", json.loads(os.environ["CONTENTION_CONF"]))
    with (
        ZookeeperLockManager(zookeeper, timeout_seconds=600) as manager,
        connect(lock_url, timeout_seconds=600) as lease_manager,
    ):
        writer = Writer(spark, manager, lease_manager, flights)
        send({"started": os.getpid()})
        for line in sys.stdin:
            cell = json.loads(line)
            if "end" in cell:
                break
            send(writer.run(cell))
    spark.stop()


if __name__ == "__main__":
    main()
