"""Whole Spark drivers that are paused, cut off or lose their hold at a commit, beside another on one S3 table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lock_manager.local import EmbeddedZooKeeper
from sluice.local_spark import LOCAL_DRIVER, QUICK_JVM
from sluice.soak.s3_faults import FaultyS3, S3Fault
from sluice.soak.tcp_proxy import Link

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "support" / "spark_driver.py"
READER = ROOT / "tests" / "support" / "read_table.py"
SESSION_SECONDS = 4
WAIT = 120


class Driver:
    """A Spark driver as a process of its own, with a way of its own to ZooKeeper."""

    def __init__(self, name: str, hosts: str, s3: FaultyS3) -> None:
        self.link = Link(hosts)
        conf = {
            "spark.master": "local[1]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **LOCAL_DRIVER,
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.hadoop.fs.s3a.user.agent.prefix": name,
            **s3.spark_conf,
        }
        command = [sys.executable, str(DRIVER), self.link.hosts, str(SESSION_SECONDS), json.dumps(conf)]
        environment = {**os.environ, **s3.environment, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self.name = name

    def begin(self, do: str, **arguments: Any) -> None:
        self.tell(json.dumps({"do": do, **arguments}))

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def do(self, do: str, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        answer = self.answer()
        assert "done" in answer, answer
        return answer["done"]

    def signal(self, number: signal.Signals, which: str) -> None:
        python, jvm = self.pids
        for pid in {"python": [python], "jvm": [jvm], "both": [python, jvm]}[which]:
            os.kill(pid, number)

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.link.close()


@pytest.fixture(scope="module")
def both(s3: FaultyS3) -> Iterator[tuple[Driver, Driver]]:
    with EmbeddedZooKeeper() as ensemble:
        drivers = [Driver(f"writer-{number}", ensemble.hosts, s3) for number in (1, 2)]
        try:
            for driver in drivers:
                assert driver.answer() == {"done": "ready"}
                driver.pids = driver.do("pids")
            yield drivers[0], drivers[1]
        finally:
            for driver in drivers:
                driver.close()


@pytest.fixture
def drivers(both: tuple[Driver, Driver]) -> Iterator[tuple[Driver, Driver]]:
    yield both
    for driver in both:
        driver.do("protect_again")


@pytest.fixture
def table(drivers: tuple[Driver, Driver]) -> str:
    name = f"s3a://lake/{uuid.uuid4().hex}"
    drivers[0].do("append", table=name, first=0, end=3)
    return name


def rows(table: str) -> list[int]:
    """Read the table, and make sure that nothing is wrong with it."""
    command = [sys.executable, str(READER), table]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=WAIT).stdout)
    assert found["problems"] == []
    ids: list[int] = found["ids"]
    return ids


def stored(s3: FaultyS3, table: str) -> dict[int, int]:
    """Count the stored PUTs of each version."""
    folder = table.removeprefix("s3a://") + "/"
    counts: dict[int, int] = {}
    for put in s3.gate.puts:
        if put.key.startswith(folder) and put.status == 200:
            counts[put.version] = counts.get(put.version, 0) + 1
    return counts


def while_the_put_is_held_back(
    drivers: tuple[Driver, Driver],
    s3: FaultyS3,
    table: str,
    paused: str,
    operation: str,
) -> tuple[dict[str, Any], list[int]]:
    """Pause a writer whose PUT is on its way, for so long that a rival has the lock, and let both go on then."""
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin(operation, table=table, first=10, end=12)
    assert fault.arrived.wait(WAIT)
    first.signal(signal.SIGSTOP, paused)
    if paused == "jvm":
        # Python would keep the session alive.
        first.link.cut()
    try:
        read = second.do("read_then_append", table=table)
    finally:
        fault.release.set()
        assert fault.ended.wait(WAIT)
        first.link.mend()
        first.signal(signal.SIGCONT, paused)
    return first.answer(), read


@pytest.mark.parametrize(("paused", "operation"), [("python", "append"), ("jvm", "append"), ("both", "merge")])
def test_a_writer_that_is_paused_with_its_put_on_the_way_commits_nothing_after_the_next_has_read(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, paused: str, operation: str
) -> None:
    answer, read = while_the_put_is_held_back(drivers, s3, table, paused, operation)
    assert answer["error"] == "LockLostError", answer
    assert read == [0, 1, 2]
    assert rows(table) == [0, 1, 2, 1003]
    assert stored(s3, table) == {0: 1, 1: 1, 2: 1}


def test_negative_control_without_intents_the_late_put_lands_behind_the_next_one_s_read(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str
) -> None:
    drivers[1].do("ignore_intents")
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin("append", table=table, first=10, end=12)
    assert fault.arrived.wait(WAIT)
    first.signal(signal.SIGSTOP, "both")
    own = s3.gate.arm(second.name, S3Fault(held=True))
    try:
        second.begin("read_then_append", table=table)
        assert own.arrived.wait(WAIT)
        fault.release.set()
        assert fault.ended.wait(WAIT)
    finally:
        fault.release.set()
        own.release.set()
        first.signal(signal.SIGCONT, "both")
    assert second.answer()["done"] == [0, 1, 2]
    first.answer()
    # What the second one had read was not what it built on.
    assert rows(table) == [0, 1, 2, 10, 11, 1003]


def test_a_hold_of_another_thread_does_not_vouch_for_one_that_was_lost(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    first, _ = drivers
    first.begin("merge_while_another_thread_takes_the_lock", table=table, first=10, end=12)
    answer = first.answer()
    assert answer.get("error") == "LockLostError", answer
    assert rows(table) == [0, 1, 2]


def test_negative_control_without_the_binding_it_does(drivers: tuple[Driver, Driver], table: str) -> None:
    first, _ = drivers
    first.do("bind_to_any_hold")
    first.begin("merge_while_another_thread_takes_the_lock", table=table, first=10, end=12)
    first.answer()
    assert rows(table) == [0, 1, 2, 10, 11]


def test_a_holder_that_is_cut_off_from_zookeeper_is_refused_at_its_commit(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    first, second = drivers
    first.begin("append_when_told", table=table, first=10, end=12)
    assert first.answer() == {"done": "holding"}
    first.link.cut()
    first.tell("go")
    answer = first.answer()
    first.link.mend()
    assert answer["error"] == "LockLostError", answer
    second.do("append", table=table, first=20, end=21)
    assert rows(table) == [0, 1, 2, 20]


@pytest.mark.parametrize(
    ("fault", "committed", "error"),
    [
        (S3Fault(lost=True, stored=True), True, None),
        (S3Fault(status=500, stored=True), True, None),
        (S3Fault(status=503), True, None),
        (S3Fault(status=409), True, None),
        (S3Fault(rival=True), True, None),
        (S3Fault(status=403, times=9), False, "CommitUnknownError"),
    ],
    ids=["lost reply", "500 but stored", "503", "409", "412 of a rival", "403"],
)
def test_what_s3_answers_never_makes_two_commits_of_one_nor_none_of_an_acknowledged_one(
    drivers: tuple[Driver, Driver],
    s3: FaultyS3,
    table: str,
    fault: S3Fault,
    committed: bool,  # noqa: FBT001 (pytest gives it by name)
    error: str | None,
) -> None:
    first, second = drivers
    s3.gate.arm(first.name, fault)
    first.begin("append", table=table, first=10, end=12)
    answer = first.answer()
    assert fault.arrived.is_set()
    assert answer.get("error") == error, answer
    second.do("append", table=table, first=20, end=21)
    assert rows(table) == ([0, 1, 2, 10, 11, 20] if committed else [0, 1, 2, 20])
    assert set(stored(s3, table).values()) == {1}
