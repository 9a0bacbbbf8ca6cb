"""The connection from the JVM to the commit guard: each Python process has its own, and no other program can use it."""

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
from tests.support.new_thread import in_new_thread
from writer_jobs import LockedDeltaWriter, attach, locked
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
LISTEN_STATE = "0A"


def append(spark: SparkSession, start: int, end: int, table: str) -> None:
    spark.range(start, end).write.format("delta").mode("append").save(table)


def listening_ports() -> list[int]:
    """Return the TCP ports that this process listens on, from ``/proc``."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    sockets = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return sorted(
        int(fields[1].rpartition(":")[2], 16) for fields in sockets if fields[3] == LISTEN_STATE and fields[9] in inodes
    )


def send_text(port: int, text: str) -> None:
    """Send text to a port, and read until the other end closes the connection or is silent for 3 s."""
    with socket.create_connection(("127.0.0.1", port), timeout=3) as connection, suppress(OSError):
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


@pytest.mark.full
def test_another_program_cannot_ask_the_guard(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = str(tmp_path / "table")
    with locked(spark, table, manager=manager):
        append(spark, 0, 1, table)
    # A stream with foreachBatch opens Spark's own callback server in Python.
    batches: list[int] = []
    stream = spark.readStream.format("delta").load(table).writeStream.trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.foreachBatch(lambda _, batch: batches.append(batch)).start()
    assert query.awaitTermination(60)
    assert batches == [0]
    requests: list[str] = []
    check = GUARD.check

    def record(request: str) -> str:
        requests.append(request)
        return check(request)

    monkeypatch.setattr(GUARD, "check", record)
    request = json.dumps({"kind": "commit", "table": table, "version": 1, "attempt": "forged", "blocks": "none"})
    texts = (
        "".join(f"c\np{name}\ncheck\ns{request}\ne\n" for name in range(20)),  # Py4J's protocol
        f"{request}\n",  # the guard's protocol
    )
    # These include the port of Spark's callback server. The guard has none.
    ports = listening_ports()
    assert ports
    with ThreadPoolExecutor(len(ports) * len(texts)) as pool:
        for sending in [pool.submit(send_text, port, text) for port in ports for text in texts]:
            sending.result()
    assert requests == []
    with locked(spark, table, manager=manager):
        append(spark, 1, 2, table)
    assert len(requests) == 1, "the guard got no request from the log store, or several"


class SecondPython:
    """Another process on the JVM of this process's driver."""

    def __init__(self, spark: SparkSession, hosts: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        gateway_environment = {
            "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
            "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/second_python.py"), hosts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **gateway_environment, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        return answer.get("done") if "done" in answer else (answer["error"], answer["message"])

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of the process; return its result, or the name and the message of its error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": function, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_python(spark: SparkSession, zookeeper: Any) -> Iterator[Callable[[], SecondPython]]:
    """Start another Python on this driver's JVM."""
    processes: list[SecondPython] = []

    def start() -> SecondPython:
        processes.append(SecondPython(spark, zookeeper.hosts))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.mark.full
def test_each_python_of_a_jvm_checks_its_own_commits(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    start_python: Callable[[], SecondPython],
    set_lock: Callable[[str], None],
    rows_of: Callable[..., list[tuple[int]]],
) -> None:
    table, second_table = str(tmp_path / "first"), str(tmp_path / "second")
    attach(spark)
    with locked(spark, table, manager=manager):
        append(spark, 0, 1, table)
        second_python = start_python()
        assert second_python.call("append", table=second_table, first=0, end=2) is None
        append(spark, 1, 2, table)
        assert second_python.call("append", table=second_table, first=2, end=3) is None
        for lock in ("none", "commit"):
            # Also if commits of this process request the lock by themselves.
            set_lock(lock)
            error, message = second_python.call("append_without_the_lock", table=table, first=5, end=6)
            assert (error, "bound to no lock" in message) == ("LockNotHeldError", True)
        set_lock("none")
        with pytest.raises(LockNotHeldError):
            append(spark, 7, 8, second_table)
    # A new thread, which never called attach, uses this thread's writer. The second Python attached last.
    writer = LockedDeltaWriter(spark, manager, table)
    for version, write in (
        (2, lambda: writer.append(spark.range(8, 9), lock_during="commit")),
        (3, lambda: writer.delete("id = 8", lock_during="commit")),
    ):
        assert in_new_thread(write).result().version == version
    third_python = start_python()
    assert third_python.call("append", table=second_table, first=3, end=4) is None
    third_python.kill()
    # A dead Python changes nothing: a commit without the lock is refused, a commit with the lock succeeds.
    with pytest.raises(LockNotHeldError, match="bound to no lock"):
        append(spark, 7, 8, table)
    assert second_python.call("append", table=second_table, first=4, end=5) is None
    with locked(spark, table, manager=manager):
        append(spark, 2, 3, table)
    assert rows_of(table) == [(0,), (1,), (2,)]
    assert rows_of(second_table) == [(0,), (1,), (2,), (3,), (4,)]
