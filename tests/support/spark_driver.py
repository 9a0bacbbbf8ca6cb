"""A Spark driver that does, line by line, what a test tells it; run as a program of its own.

Each line on standard input is a JSON object with ``do`` (name of a function below) and its arguments; each line on
standard output the answer: ``{"done": …}`` or ``{"error": class, "message": …, "version": …, "commits": …}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import threading
import time
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import writer_jobs.commit.guarded
from lock_manager import ZookeeperLockManager
from lock_manager.guard import commit_guard as guard
from sluice.local.jars import jar_paths
from tests.support.at_the_gate import contenders
from writer_jobs import CommitUnknownError, LockedDeltaWriter, build_session, locked
from writer_jobs.append import main as append_job
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.delta.table_log import DeltaTableLog

OUT = os.fdopen(os.dup(1), "w", buffering=1)


def say(answer: dict[str, Any]) -> None:
    OUT.write(json.dumps(answer) + "\n")


class Driver:
    """The session, the lock manager, and what they can be told to do."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager) -> None:
        self.spark = spark
        self.manager = manager
        self.undo = contextlib.ExitStack()
        self.taken_again = False

    def pids(self) -> list[int]:
        return [os.getpid(), int(self.spark._jvm.java.lang.ProcessHandle.current().pid())]

    def append(self, table: str, first: int, end: int, files: int = 1) -> None:
        with locked(self.spark, table, manager=self.manager):
            self.spark.range(first, end, numPartitions=files).write.format("delta").mode("append").save(table)

    def append_at_the_gate(self, table: str, first: int, end: int) -> None:
        LockedDeltaWriter(self.spark, self.manager, table).append(self.spark.range(first, end), lock_during="commit")

    def append_as(self, table: str, first: int, end: int, txn: list[Any] | None) -> dict[str, Any]:
        """Append with the writer, under the name of an application's transaction."""
        writer = LockedDeltaWriter(self.spark, self.manager, table)
        done = writer.append(self.spark.range(first, end), txn=(txn[0], txn[1]) if txn else None)
        return {"version": done.version, "already_committed": done.already_committed}

    def operate(self, table: str, operation: str, lock_during: str | None = None) -> dict[str, Any]:
        """Run one operation of the writer, or a statement in a block under the lock; return its version, if known."""
        if operation == "statement":
            with locked(self.spark, table, manager=self.manager) as hold:
                self.spark.sql(f"UPDATE delta.`{table}` SET id = id + 10 WHERE id = 1")
            return {"version": hold.commits}
        writer, rows = LockedDeltaWriter(self.spark, self.manager, table), self.spark.range(10, 12)
        options: dict[str, Any] = {} if lock_during is None else {"lock_during": lock_during}
        merge = writer.merge(rows.alias("s"), "t.id = s.id", alias="t").whenNotMatchedInsertAll()
        operations = {
            "append": lambda: writer.append(rows, **options),
            "append as a transaction": lambda: writer.append(rows, txn=("app", 1), **options),
            "overwrite": lambda: writer.overwrite(rows, **options),
            "overwrite where": lambda: writer.overwrite(rows, replace_where="id > 1", **options),
            "merge": lambda: merge.execute(**options),
            "merge as a transaction": lambda: merge.execute(txn=("app", 1), **options),
            "delete": lambda: writer.delete("id = 1", **options),
            "update": lambda: writer.update({"id": "id + 10"}, "id = 1", **options),
            "optimize": lambda: writer.optimize(**options),
        }
        return {"version": operations[operation]().version}

    def session(self) -> list[Any]:
        """Return id and password of the session with ZooKeeper: who has them can end it."""
        number, password = self.manager._session.client.client_id
        return [number, password.hex()]

    def job(self, arguments: list[str]) -> dict[str, Any]:
        """Run the append job in this session: its exit code, its lines and what it says on standard error."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = append_job(["--zookeeper", self.manager.settings.zk_hosts, *arguments])
        return {
            "code": code,
            "lines": [json.loads(line) for line in out.getvalue().splitlines()],
            "error": error.getvalue(),
        }

    def append_without_the_lock(self, table: str, first: int, end: int) -> None:
        self.spark.range(first, end).write.format("delta").mode("append").save(table)

    def append_when_told(self, table: str, first: int, end: int) -> None:
        with locked(self.spark, table, manager=self.manager):
            say({"done": "holding"})
            sys.stdin.readline()
            self.spark.range(first, end).write.format("delta").mode("append").save(table)

    def merge(self, table: str, first: int, end: int) -> None:
        with locked(self.spark, table, manager=self.manager):
            self._merge(table, first, end)

    def _merge(self, table: str, first: int, end: int) -> None:
        target = DeltaTable.forPath(self.spark, table).alias("t")
        source = self.spark.range(first, end).alias("s")
        target.merge(source, "t.id = s.id").whenNotMatchedInsertAll().execute()

    def make_hot(self, table: str, keys: int) -> None:
        with locked(self.spark, table, manager=self.manager):
            rows = self.spark.range(keys).selectExpr("id", "'' AS said").coalesce(1)
            rows.write.format("delta").mode("append").save(table)

    def merge_hot(self, table: str, name: str, until: float, *, locked: bool) -> dict[str, Any]:
        """Merge into the same rows over and over, each time another word: versions with words, and seconds."""
        writer = LockedDeltaWriter(self.spark, self.manager, table) if locked else None
        merged, took = [], []
        while time.time() < until:
            began, word = time.time(), f"{name}.{len(merged)}"
            source = DeltaTable.forPath(self.spark, table).toDF().selectExpr("id").alias("s")
            how = {"said": f"concat(t.said, '{word};')"}
            if writer is None:
                target = DeltaTable.forPath(self.spark, table).alias("t")
                target.merge(source, "t.id = s.id").whenMatchedUpdate(set=how).execute()
            else:
                merge = writer.merge(source, "t.id = s.id", alias="t").whenMatchedUpdate(set=how)
                merged.append((merge.execute(lock_during="commit").version, word))
            took.append(time.time() - began)
        return {"merged": merged, "took": took}

    def read_then_append(self, table: str) -> list[int]:
        """Append the number of rows that there are: a decision made upon a read under the lock."""
        with locked(self.spark, table, manager=self.manager):
            read = self._ids(table)
            self.spark.range(1000 + len(read), 1001 + len(read)).write.format("delta").mode("append").save(table)
        return read

    def merge_while_another_thread_takes_the_lock(self, table: str, first: int, end: int) -> None:
        """Lose the hold at the commit of a MERGE, with another hold of the same process in place by then."""
        check, ready = GUARD.check, threading.Event()

        def lose_and_take_again(request: str) -> str:
            if not ready.is_set():
                ready.set()
                taken = threading.Event()
                release = threading.Event()

                def again() -> None:
                    with self.manager.acquire(table) as hold:
                        bound = guard.GuardedHold(hold, {})
                        GUARD.add(bound)
                        taken.set()
                        release.wait(60)
                        GUARD.remove(bound)

                client = self.manager._session.client
                client.delete(*contenders(client, table))
                thread = threading.Thread(target=again)
                thread.start()
                self.taken_again = taken.wait(60)
                try:
                    return check(request)
                finally:
                    release.set()
                    thread.join()
            return check(request)

        GUARD.check = lose_and_take_again  # type: ignore[method-assign]
        try:
            self.merge(table, first, end)
        finally:
            GUARD.check = check  # type: ignore[method-assign]

    def was_taken_again(self) -> bool:
        """Tell whether the other thread of that MERGE had the lock when the guard was asked."""
        return self.taken_again

    def append_then_look(self, table: str, first: int, end: int) -> list[int]:
        """Append and hear nothing; commit to another table of the hold; then look, in another block of it."""
        beside = f"{table}-beside"
        with self.manager.acquire_all([table, beside]):
            try:
                LockedDeltaWriter(self.spark, self.manager, table).append(self.spark.range(first, end))
            except CommitUnknownError as error:
                say({"done": type(error).__name__})
                sys.stdin.readline()
            LockedDeltaWriter(self.spark, self.manager, beside).append(self.spark.range(1))
            with locked(self.spark, table, manager=self.manager):
                return self._ids(table)

    def read_twice(self, table: str) -> list[int]:
        with locked(self.spark, table, manager=self.manager):
            say({"done": self._ids(table)})
            sys.stdin.readline()
            return self._ids(table)

    def _ids(self, table: str) -> list[int]:
        return sorted(row[0] for row in self.spark.read.format("delta").load(table).collect())

    # -- protections off, for the negative controls ---------------------------------------------------------------

    def find_no_commit(self) -> None:
        """Have the writer look for its own commit in vain."""
        before = DeltaTableLog.find_commit

        def find(self: DeltaTableLog, write_id: str, **search: Any) -> Any:
            return None, before(self, write_id, **search)[1]

        DeltaTableLog.find_commit = find  # type: ignore[method-assign]
        self.undo.callback(setattr, DeltaTableLog, "find_commit", before)

    def ignore_intents(self) -> None:
        before = writer_jobs.commit.guarded._settle_unfinished_intents
        writer_jobs.commit.guarded._settle_unfinished_intents = lambda *_: False  # type: ignore[assignment]
        self.undo.callback(setattr, writer_jobs.commit.guarded, "_settle_unfinished_intents", before)

    def settle_by_block(self) -> None:
        """Have a block forget at its beginning what earlier ones of its hold left open."""
        before = writer_jobs.commit.guarded._settle_unfinished_intents

        def fill(spark: SparkSession, log: DeltaTableLog, bound: guard.GuardedHold) -> bool:
            intents = bound.hold.intents_of(bound.table)
            intents.settle(intents.open)
            return before(spark, log, bound)

        writer_jobs.commit.guarded._settle_unfinished_intents = fill
        self.undo.callback(setattr, writer_jobs.commit.guarded, "_settle_unfinished_intents", before)

    def guard_off(self) -> None:
        conf = self.spark.sparkContext._jsc.sc().conf()
        conf.set("spark.sluice.guard", "off")
        self.undo.callback(conf.set, "spark.sluice.guard", "required")

    def use_stock_store(self) -> None:
        """Commit through Delta's own log store, which asks nobody, to tables that are new to this driver."""
        conf, setting = self.spark.sparkContext._jsc.sc().conf(), "spark.delta.logStore.class"
        self.undo.callback(conf.set, setting, conf.get(setting))
        conf.set(setting, "io.delta.storage.S3SingleDriverLogStore")

    def bind_to_any_hold(self) -> None:
        before = guard.CommitGuard._covering_blocks

        def covering(self: guard.CommitGuard, asked: Any) -> list[guard.GuardedHold]:
            return list(self._blocks.values())[-1:]

        guard.CommitGuard._covering_blocks = covering  # type: ignore[method-assign]
        self.undo.callback(setattr, guard.CommitGuard, "_covering_blocks", before)

    def protect_again(self) -> None:
        self.undo.close()


def serve(driver: Driver) -> None:
    """Do what standard input tells, until it ends."""
    say({"done": "ready"})
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = {"done": getattr(driver, told.pop("do"))(**told)}
        except Exception as error:
            facts = {name: getattr(error, name, None) for name in ("version", "commits")}
            answer = {"error": type(error).__name__, "message": str(error), **facts}
        say(answer)


def main() -> None:
    """Serve until standard input ends."""
    # As the append job has it: its standard error is for its sentence.
    logging.basicConfig(level=logging.CRITICAL + 1)
    zookeeper, session_seconds, conf = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    spark = build_session("driver under test", jars=jar_paths(), launch_conf=conf, log_level="OFF")
    # S3A raises shorter time-outs to 15 s, and faults would cost that each time.
    duration = spark._jvm.java.time.Duration.ofMillis(1)
    spark._jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(duration)
    with ZookeeperLockManager(zookeeper, 120, session_timeout_seconds=session_seconds) as manager:
        serve(Driver(spark, manager))
    spark.stop()


if __name__ == "__main__":
    main()
