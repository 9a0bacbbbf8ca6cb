"""Whole Spark drivers that are paused, cut off or lose their hold at a commit, beside another on one S3 table.

Of pauses and of answers of S3 that go the same way through Spark some are here and the rest only with ``-m soak``. With
the log store alone, more of them: test_promises.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.at_the_gate import contenders
from tests.support.driver_process import WAIT, Driver
from tests.support.s3_table import copy, read, rows, stored

pytestmark = [pytest.mark.spark, pytest.mark.s3]

ANOTHER_ENGINE = """
import sys
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake
table, *ids = sys.argv[1:]
rows = Table.from_pydict({"id": Array([int(each) for each in ids], type=DataType.int64())})
write_deltalake(table.replace("s3a:", "s3:"), rows, mode="append")
"""


@pytest.fixture(scope="module")
def both(
    s3: FaultyS3, shared_driver: Driver, ensemble_of_drivers: EmbeddedZooKeeper
) -> Iterator[tuple[Driver, Driver]]:
    second = Driver("writer-2", ensemble_of_drivers.hosts, s3)
    try:
        for driver in (shared_driver, second):
            driver.wait_until_ready()
        yield shared_driver, second
    finally:
        second.close()


@pytest.fixture
def drivers(both: tuple[Driver, Driver]) -> Iterator[tuple[Driver, Driver]]:
    yield both
    for driver in both:
        driver.do("protect_again")


@pytest.fixture(scope="module")
def original(both: tuple[Driver, Driver]) -> str:
    name = f"s3a://lake/{uuid.uuid4().hex}"
    both[0].do("append", table=name, first=0, end=3)
    return name


@pytest.fixture
def stock(drivers: tuple[Driver, Driver]) -> Driver:
    """A Spark driver with Delta's own log store, which asks nobody."""
    drivers[1].do("use_stock_store")
    return drivers[1]


@pytest.fixture
def table(drivers: tuple[Driver, Driver], s3: FaultyS3, original: str) -> str:
    name = f"s3a://lake/{uuid.uuid4().hex}"
    copy(s3, original, name)
    return name


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


@pytest.mark.parametrize(
    ("paused", "operation"),
    [
        *(("python", "append"), ("jvm", "append_at_the_gate"), ("both", "append_at_the_gate")),
        pytest.param("jvm", "append", marks=pytest.mark.soak),
        pytest.param("both", "merge", marks=pytest.mark.soak),
        pytest.param("python", "append_at_the_gate", marks=pytest.mark.soak),
    ],
)
def test_a_writer_that_is_paused_with_its_put_on_the_way_commits_nothing_after_the_next_has_read(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, paused: str, operation: str
) -> None:
    answer, read = while_the_put_is_held_back(drivers, s3, table, paused, operation)
    assert answer["error"] == "LockLostError", answer
    assert read == [0, 1, 2]
    assert rows(table) == [0, 1, 2, 1003]
    assert stored(s3, table) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("operation", [pytest.param("append", marks=pytest.mark.soak), "append_at_the_gate"])
def test_negative_control_without_intents_the_late_put_lands_behind_the_next_one_s_read(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, operation: str
) -> None:
    drivers[1].do("ignore_intents")
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin(operation, table=table, first=10, end=12)
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


@pytest.mark.parametrize("paused", ["both", *(pytest.param(one, marks=pytest.mark.soak) for one in ("python", "jvm"))])
def test_a_writer_that_is_paused_at_the_gate_keeps_nobody_waiting_and_commits_when_it_goes_on(
    drivers: tuple[Driver, Driver], table: str, paused: str, eventually: Callable[..., None]
) -> None:
    first, second = drivers
    second.begin("append_when_told", table=table, first=20, end=21)
    assert second.answer() == {"done": "holding"}
    first.begin("append_at_the_gate", table=table, first=10, end=12)
    client = KazooClient(first.hosts)
    client.start()
    try:
        eventually(lambda: len(contenders(client, table)) == 2, within=WAIT)
    finally:
        client.stop()
        client.close()
    first.signal(signal.SIGSTOP, paused)
    if paused == "jvm":
        # Its Python would get the lock, and keep it.
        first.link.cut()
    try:
        second.tell("go")
        assert second.answer() == {"done": None}
        assert second.do("read_then_append", table=table) == [0, 1, 2, 20]
    finally:
        first.signal(signal.SIGCONT, paused)
        first.link.mend()
    assert first.answer() == {"done": None}
    assert rows(table) == [0, 1, 2, 10, 11, 20, 1004]


def test_a_hold_of_another_thread_does_not_vouch_for_one_that_was_lost(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    first, _ = drivers
    first.begin("merge_while_another_thread_takes_the_lock", table=table, first=10, end=12)
    answer = first.answer()
    assert first.do("was_taken_again")
    assert answer.get("error") == "LockLostError", answer
    assert rows(table) == [0, 1, 2]


def test_negative_control_without_the_binding_it_does(drivers: tuple[Driver, Driver], table: str) -> None:
    first, _ = drivers
    first.do("bind_to_any_hold")
    first.begin("merge_while_another_thread_takes_the_lock", table=table, first=10, end=12)
    answer = first.answer()
    assert rows(table) == [0, 1, 2, 10, 11], answer


@pytest.mark.soak
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


def what_a_holder_says_whose_lock_went_to_another(first: Driver, second: Driver, table: str) -> dict[str, Any]:
    """Cut a holder off from ZooKeeper, have another writer commit meanwhile, and let the first one commit then."""
    first.begin("append_when_told", table=table, first=10, end=12)
    assert first.answer() == {"done": "holding"}
    first.link.cut()
    try:
        second.do("append", table=table, first=20, end=21)
        first.tell("go")
        return first.answer()
    finally:
        first.link.mend()


def test_a_holder_that_is_cut_off_is_refused_when_somebody_else_has_had_the_lock(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    assert what_a_holder_says_whose_lock_went_to_another(*drivers, table)["error"] == "LockLostError"
    assert rows(table) == [0, 1, 2, 20]


def test_negative_control_with_the_guard_off_it_commits_although_somebody_else_has_had_the_lock(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    drivers[0].do("guard_off")
    assert what_a_holder_says_whose_lock_went_to_another(*drivers, table)["error"] == "LockLostError"
    # It hears of it when all is over.
    found = read(table)
    assert found["ids"] == [0, 1, 2, 10, 11, 20]
    assert list(found["unlocked_writers"].values()) == [[2]]


@pytest.mark.parametrize(
    ("fault", "committed", "error"),
    [
        pytest.param(S3Fault(lost=True, stored=True), True, None, id="lost reply"),
        pytest.param(S3Fault(rival=True), True, None, id="412 of a rival"),
        pytest.param(S3Fault(status=403, times=9), False, "CommitUnknownError", id="403"),
        pytest.param(S3Fault(status=500, stored=True), True, None, id="500 but stored", marks=pytest.mark.soak),
        pytest.param(S3Fault(status=503), True, None, id="503", marks=pytest.mark.soak),
        pytest.param(S3Fault(status=409), True, None, id="409", marks=pytest.mark.soak),
    ],
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
    s3.gate.disarm(first.name)
    assert fault.arrived.is_set()
    assert answer.get("error") == error, answer
    second.do("append", table=table, first=20, end=21)
    assert rows(table) == ([0, 1, 2, 10, 11, 20] if committed else [0, 1, 2, 20])
    assert set(stored(s3, table).values()) == {1}


def test_writers_without_the_lock_that_are_faster_lose_nothing_and_are_named(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str
) -> None:
    first, _ = drivers
    for number, rival in ((10, "stock"), (20, "deltalake")):
        fault = s3.gate.arm(first.name, S3Fault(held=True))
        first.begin("append", table=table, first=number, end=number + 2)
        assert fault.arrived.wait(WAIT)
        try:
            if rival == "stock":
                stock.do("append_without_the_lock", table=table, first=number + 5, end=number + 6)
            else:
                command = [sys.executable, "-c", ANOTHER_ENGINE, table, str(number + 5)]
                subprocess.run(command, check=True, timeout=WAIT)
        finally:
            fault.release.set()
        assert first.answer() == {"done": None}
    assert rows(table) == [0, 1, 2, 10, 11, 15, 20, 21, 25]
    assert stored(s3, table) == dict.fromkeys(range(5), 1)
    named = read(table)["unlocked_writers"]
    assert {engine.partition("/")[0].partition(":")[0]: versions for engine, versions in named.items()} == {
        "Apache-Spark": [1],
        "delta-rs": [3],
    }


def while_a_stock_writer_s_put_is_late(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str
) -> dict[str, Any]:
    """Have a locked writer commit the version that a stock writer has found free; return what the latter says."""
    fault = s3.gate.arm(stock.name, S3Fault(held=True))
    stock.begin("append_without_the_lock", table=table, first=20, end=22)
    assert fault.arrived.wait(WAIT)
    try:
        drivers[0].do("append", table=table, first=10, end=12)
    finally:
        fault.release.set()
    return stock.answer()


def test_a_bucket_that_denies_unconditional_puts_keeps_a_stock_writer_from_overwriting(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3.gate, "denies_unconditional", True)
    said = while_a_stock_writer_s_put_is_late(drivers, stock, s3, table)
    assert "AccessDenied" in said["message"]
    assert rows(table) == [0, 1, 2, 10, 11]
    assert stored(s3, table) == {0: 1, 1: 1}


def test_negative_control_without_that_policy_it_overwrites_what_was_acknowledged(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str
) -> None:
    assert "done" in while_a_stock_writer_s_put_is_late(drivers, stock, s3, table)
    assert read(table)["ids"] == [0, 1, 2, 20, 21]
    assert stored(s3, table) == {0: 1, 1: 2}
