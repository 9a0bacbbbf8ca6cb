"""A program with a Spark driver that executes the commands of a test.

Each line on standard input is a JSON object with ``do`` (a method of :class:`Driver`) and its arguments. Each line on
standard output is the answer: ``{"done": …}`` or ``{"error": class, "message": …, "version": …, "commits": …}``.
Some commands also answer ``{"done": …}`` in the middle, and continue after a line with any text. SIGINT interrupts a
command, and SIGUSR1 cancels the writer of ``append_as``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import lock_manager
import writer_jobs.commit.guarded
from lock_manager import ZookeeperLockManager
from lock_manager.guard import commit_guard as guard
from lock_manager.guard.group_commit import OfferedAppend
from sluice.local.jars import jar_paths
from tests.support.lock_znodes import LockZnodes
from writer_jobs import CommitUnknownError, LockedDeltaWriter, build_session, locked
from writer_jobs.append import main as append_job
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.delta.table_log import DeltaTableLog

OUT = os.fdopen(os.dup(1), "w", buffering=1)


def respond(answer: dict[str, Any]) -> None:
    OUT.write(json.dumps(answer) + "\n")


class Driver:
    """A Spark session, a lock manager, and the commands that use them."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager) -> None:
        self.spark = spark
        self.manager = manager
        self.undo = contextlib.ExitStack()
        self.reacquired = False
        self.writer: LockedDeltaWriter | None = None

    def pids(self) -> list[int]:
        return [os.getpid(), int(self.spark._jvm.java.lang.ProcessHandle.current().pid())]

    def append(self, table: str, first: int, end: int, files: int = 1) -> None:
        with locked(self.spark, table, manager=self.manager):
            self.spark.range(first, end, numPartitions=files).write.format("delta").mode("append").save(table)

    def append_at_the_gate(self, table: str, first: int, end: int) -> float:
        """Append with the lock for the commit alone; return the duration of the hold in seconds."""
        writer = LockedDeltaWriter(self.spark, self.manager, table)
        return writer.append(self.spark.range(first, end), lock_during="commit").held_seconds

    def append_as(
        self, table: str, first: int, end: int, txn: list[Any] | None = None, lock_timeout_seconds: float = 120
    ) -> dict[str, Any]:
        """Append with the writer, with or without a transaction of an application."""
        self.writer = LockedDeltaWriter(self.spark, self.manager, table)
        result = self.writer.append(
            self.spark.range(first, end, numPartitions=1),
            txn=(txn[0], txn[1]) if txn else None,
            lock_timeout_seconds=lock_timeout_seconds,
        )
        return {"version": result.version, "already_committed": result.already_committed}

    def cancel(self) -> None:
        """Cancel the writer of ``append_as``."""
        assert self.writer is not None
        self.writer.cancel()

    def group_commits(self) -> None:
        """Let the appends of this driver be committed together with those of others."""
        conf = self.spark.sparkContext._jsc.sc().conf()
        conf.set("spark.sluice.groupCommits", "true")
        self.undo.callback(conf.remove, "spark.sluice.groupCommits")

    def operate(self, table: str, operation: str, lock_during: str | None = None) -> dict[str, Any]:
        """Run an operation of the writer, or a statement under the lock; return its version, or the hold's commits."""
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
        """Return the id and the password of the ZooKeeper session. Another client needs them to end the session."""
        number, password = self.manager._session.client.client_id
        return [number, password.hex()]

    def job(self, arguments: list[str]) -> dict[str, Any]:
        """Run the append job in this session; return its exit code, its lines and its standard error."""
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

    def append_on_signal(self, table: str, first: int, end: int) -> None:
        with locked(self.spark, table, manager=self.manager):
            respond({"done": "holding"})
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
            rows = self.spark.range(keys).selectExpr("id", "'' AS words").coalesce(1)
            rows.write.format("delta").mode("append").save(table)

    def merge_hot(self, table: str, name: str, until: float, *, locked: bool) -> dict[str, Any]:
        """Repeat a MERGE that appends a word to the same rows; return the seconds, and if locked versions and words."""
        writer = LockedDeltaWriter(self.spark, self.manager, table) if locked else None
        versions_and_words, seconds = [], []
        while time.time() < until:
            start, word = time.time(), f"{name}.{len(versions_and_words)}"
            source = DeltaTable.forPath(self.spark, table).toDF().selectExpr("id").alias("s")
            assignments = {"words": f"concat(t.words, '{word};')"}
            if writer is None:
                target = DeltaTable.forPath(self.spark, table).alias("t")
                target.merge(source, "t.id = s.id").whenMatchedUpdate(set=assignments).execute()
            else:
                merge = writer.merge(source, "t.id = s.id", alias="t").whenMatchedUpdate(set=assignments)
                versions_and_words.append((merge.execute(lock_during="commit").version, word))
            seconds.append(time.time() - start)
        return {"merged": versions_and_words, "seconds": seconds}

    def read_then_append(self, table: str) -> list[int]:
        """Read the table under the lock and append a row that depends on the number of its rows."""
        with locked(self.spark, table, manager=self.manager):
            ids = self.ids(table)
            self.spark.range(1000 + len(ids), 1001 + len(ids)).write.format("delta").mode("append").save(table)
        return ids

    def merge_while_another_thread_gets_the_lock(self, table: str, first: int, end: int) -> None:
        """Lose the hold at the commit of a MERGE, while another thread of the process acquires the lock."""
        check = GUARD.check

        def lose_lock_and_check(request: str) -> str:
            GUARD.check = check  # type: ignore[method-assign]
            acquired, release = threading.Event(), threading.Event()

            def acquire() -> None:
                with self.manager.acquire(table) as hold:
                    block = guard.GuardedBlock(hold, {})
                    GUARD.add(block)
                    acquired.set()
                    release.wait(60)
                    GUARD.remove(block)

            LockZnodes(self.manager._session.client, table).delete_contenders()
            thread = threading.Thread(target=acquire)
            thread.start()
            self.reacquired = acquired.wait(60)
            try:
                return check(request)
            finally:
                release.set()
                thread.join()

        GUARD.check = lose_lock_and_check  # type: ignore[method-assign]
        try:
            self.merge(table, first, end)
        finally:
            GUARD.check = check  # type: ignore[method-assign]

    def was_reacquired(self) -> bool:
        """Return whether the other thread had the lock when the guard checked the commit of the MERGE."""
        return self.reacquired

    def append_then_read(self, table: str, first: int, end: int) -> list[int]:
        """Append without a response from S3, commit to the hold's second table, then read the first in a new block."""
        second_table = f"{table}-second"
        with self.manager.acquire_all([table, second_table]):
            try:
                LockedDeltaWriter(self.spark, self.manager, table).append(self.spark.range(first, end))
            except CommitUnknownError as error:
                respond({"done": type(error).__name__})
                sys.stdin.readline()
            LockedDeltaWriter(self.spark, self.manager, second_table).append(self.spark.range(1))
            with locked(self.spark, table, manager=self.manager):
                return self.ids(table)

    def read_twice(self, table: str) -> list[int]:
        with locked(self.spark, table, manager=self.manager):
            respond({"done": self.ids(table)})
            sys.stdin.readline()
            return self.ids(table)

    def ids(self, table: str) -> list[int]:
        """Return the ids of a table's rows, in order."""
        return sorted(row[0] for row in self.spark.read.format("delta").load(table).collect())

    def stop_before_intents(self) -> None:
        """Let each commit that has chosen members answer their number, and wait for a line before its intent."""
        real_choose = guard.CommitGuard._choose_members

        def choose(*arguments: Any) -> dict[str, OfferedAppend]:
            members = real_choose(*arguments)
            if members:
                respond({"done": len(members)})
                sys.stdin.readline()
            return members

        self._replace(guard.CommitGuard, "_choose_members", choose)

    # -- commands that remove a protection, for negative controls

    def find_no_commit(self) -> None:
        """Let the writer's search for its own commit find no commit."""
        real_find = DeltaTableLog.find_commit

        def find(self: DeltaTableLog, write_id: str, **options: Any) -> Any:
            return None, real_find(self, write_id, **options)[1]

        self._replace(DeltaTableLog, "find_commit", find)

    def forget_offers(self) -> None:
        """Let the writer believe that no holder may commit its offers any more."""
        self._replace(ZookeeperLockManager, "is_offered", lambda *_: False)

    def offer_under_another_id(self) -> None:
        """Let holders stamp this writer's appends with an id that the writer does not know."""
        real_data = OfferedAppend.data

        def data(append: OfferedAppend) -> dict[str, Any]:
            return {**real_data(append), "write_id": "another id"}

        self._replace(OfferedAppend, "data", data)

    def ignore_intents(self) -> None:
        self._replace(writer_jobs.commit.guarded, "_settle_unfinished_intents", lambda *_: False)

    def settle_by_block(self) -> None:
        """Let each block settle the intents that earlier blocks of its hold left open."""
        real_settle = writer_jobs.commit.guarded._settle_unfinished_intents

        def settle(spark: SparkSession, log: DeltaTableLog, block: guard.GuardedBlock) -> bool:
            intents = block.hold.intents_of(block.table)
            intents.settle(intents.open)
            return real_settle(spark, log, block)

        self._replace(writer_jobs.commit.guarded, "_settle_unfinished_intents", settle)

    def guard_off(self) -> None:
        conf = self.spark.sparkContext._jsc.sc().conf()
        conf.set("spark.sluice.guard", "off")
        self.undo.callback(conf.set, "spark.sluice.guard", "required")

    def without_lock(self) -> None:
        """Write without a lock from now on."""
        self._replace(self, "manager", lock_manager.connect("optimistic://", timeout_seconds=120))

    def use_stock_store(self) -> None:
        """Use Delta's own log store, without the guard, for tables that are new to this driver."""
        conf, setting = self.spark.sparkContext._jsc.sc().conf(), "spark.delta.logStore.class"
        self.undo.callback(conf.set, setting, conf.get(setting))
        conf.set(setting, "io.delta.storage.S3SingleDriverLogStore")

    def bind_to_any_hold(self) -> None:
        def newest_block(self: guard.CommitGuard, _request: Any) -> list[guard.GuardedBlock]:
            return list(self._blocks.values())[-1:]

        self._replace(guard.CommitGuard, "_covering_blocks", newest_block)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, replacement)

    def protect_again(self) -> None:
        """Restore all protections."""
        self.undo.close()


def serve(driver: Driver) -> None:
    """Execute the commands on standard input until it ends."""
    respond({"done": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"done": getattr(driver, command.pop("do"))(**command)}
        except (Exception, KeyboardInterrupt) as error:
            fields = {name: getattr(error, name, None) for name in ("version", "commits")}
            message = "\n".join([str(error), *getattr(error, "__notes__", [])])
            answer = {"error": type(error).__name__, "message": message, **fields}
        respond(answer)


def main() -> None:
    """Serve until standard input ends."""
    # The append job writes only its error message on standard error.
    logging.basicConfig(level=logging.CRITICAL + 1)
    zookeeper, session_seconds, conf = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    spark = build_session("driver under test", jars=jar_paths(), launch_conf=conf, log_level="OFF")
    # S3A raises timeouts below 15 s to 15 s. Every fault would then take 15 s.
    duration = spark._jvm.java.time.Duration.ofMillis(1)
    spark._jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(duration)
    with ZookeeperLockManager(zookeeper, 120, session_timeout_seconds=session_seconds) as manager:
        driver = Driver(spark, manager)
        # Not in the signal handler, see LockedDeltaWriter.cancel.
        signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=driver.cancel).start())
        serve(driver)
    spark.stop()


if __name__ == "__main__":
    main()
