"""The way from the JVM to the commit guard in Python: closed to strangers, and there for each Python of a JVM."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import LockNotHeldError, ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, attach, locked
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
LISTENS = "0A"


@pytest.fixture
def disk_table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def append(spark: SparkSession, first: int, end: int, table: str) -> None:
    spark.range(first, end).write.format("delta").mode("append").save(table)


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(table).select("id").collect())


def listening_ports() -> list[int]:
    """Return the TCP ports on which this very process listens, as Linux knows them."""
    sockets = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            sockets.update(re.findall(r"socket:\[(\d+)\]", str(each.readlink())))
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return sorted(int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == LISTENS and line[9] in sockets)


def say_to(port: int, words: str) -> None:
    """Speak as a program that knows no secret, and stay until all was read or the other end hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, suppress(OSError):
        connection.sendall(words.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


@pytest.mark.full
def test_a_stranger_who_reaches_the_ports_of_this_process_cannot_ask_the_guard(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(spark, disk_table, manager=manager):
        append(spark, 0, 1, disk_table)
    # Spark's own way back into Python, which a stream's foreachBatch needs, is open besides.
    batches: list[int] = []
    source = spark.readStream.format("delta").load(disk_table)
    stream = source.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.trigger(availableNow=True).foreachBatch(lambda _, batch: batches.append(batch)).start()
    assert query.awaitTermination(60)
    assert batches == [0]
    asked: list[str] = []
    check = GUARD.check

    def spied(request: str) -> str:
        asked.append(request)
        return check(request)

    monkeypatch.setattr(GUARD, "check", spied)
    forged = {"kind": "commit", "table": disk_table, "version": 1, "attempt": "forged", "blocks": "none"}
    request = json.dumps(forged)
    ports = listening_ports()
    assert len(ports) >= 2
    for port in ports:
        # In Py4J's words, in plain ones, and in the guard's own with a key that is not its own.
        say_to(port, "".join(f"c\np{name}\ncheck\ns{request}\ne\n" for name in range(20)))
        say_to(port, f"{request}\n")
        say_to(port, f"{'0' * 64}\n{request}\n")
    assert asked == []
    with locked(spark, disk_table, manager=manager):
        append(spark, 1, 2, disk_table)
    assert len(asked) == 1, "the spy sees what is asked"


class SecondPython:
    """Another process on the JVM of this one's driver."""

    def __init__(self, spark: SparkSession, hosts: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        to_the_jvm = {
            "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
            "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/second_python.py"), hosts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **to_the_jvm, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        return answer.get("done") if "done" in answer else (answer["error"], answer["message"])

    def tell(self, what: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def second_python(spark: SparkSession, zookeeper: Any) -> Iterator[Callable[[], SecondPython]]:
    """Start another Python on this driver's JVM, as often as wanted."""
    started: list[SecondPython] = []

    def start() -> SecondPython:
        started.append(SecondPython(spark, zookeeper.hosts))
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_two_pythons_of_one_jvm_are_each_asked_about_their_own_commits(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, second_python: Callable[[], SecondPython]
) -> None:
    mine, its = str(tmp_path / "mine"), str(tmp_path / "its")
    attach(spark)
    with locked(spark, mine, manager=manager):
        append(spark, 0, 1, mine)
        second = second_python()
        assert second.tell("append", table=its, first=0, end=2) is None
        append(spark, 1, 2, mine)
        assert second.tell("append", table=its, first=2, end=3) is None
        error, message = second.tell("append_without_the_lock", table=mine, first=5, end=6)
        assert (error, "bound to no lock" in message) == ("LockNotHeldError", True)
        with pytest.raises(LockNotHeldError):
            append(spark, 7, 8, its)
    # A thread that never attached, with a writer of another thread: the newest Python knows nothing of it.
    writer = LockedDeltaWriter(spark, manager, mine)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: writer.append(spark.range(8, 9), lock_during="commit")).result().version == 2
        assert pool.submit(lambda: writer.delete("id = 8", lock_during="commit")).result().version == 3
    third = second_python()
    assert third.tell("append", table=its, first=3, end=4) is None
    third.end()
    # What the dead one left behind stands in nobody's way, with a lock or without.
    with pytest.raises(LockNotHeldError, match="bound to no lock"):
        append(spark, 7, 8, mine)
    assert second.tell("append", table=its, first=4, end=5) is None
    with locked(spark, mine, manager=manager):
        append(spark, 2, 3, mine)
    assert (ids(spark, mine), ids(spark, its)) == ([0, 1, 2], [0, 1, 2, 3, 4])
