"""Spark drivers that are paused, cut off or lose their hold at a commit, with a second driver on the same S3 table.

If several pauses or S3 responses take the same path through Spark, some run only with ``-m soak``. test_promises.py
tests more of them, with the log store alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.driver_process import LAKE, WAIT, Driver
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.s3_table import copy, count_stored_puts, read, rows

pytestmark = [pytest.mark.spark, pytest.mark.s3]

MAX_FIRST_HOLD = 2.0
"""Seconds for which the first commit of a driver may hold the lock."""
DELTALAKE_APPEND = """
import sys
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake
table, *ids = sys.argv[1:]
rows = Table.from_pydict({"id": Array([int(number) for number in ids], type=DataType.int64())})
write_deltalake(table.replace("s3a:", "s3:"), rows, mode="append")
"""


@pytest.fixture
def drivers(driver_pair: tuple[Driver, Driver]) -> Iterator[tuple[Driver, Driver]]:
    yield driver_pair
    for driver in driver_pair:
        driver.do("protect_again")


@pytest.fixture
def stock(drivers: tuple[Driver, Driver]) -> Driver:
    """A Spark driver with Delta's own log store, which asks no guard."""
    drivers[1].do("use_stock_store")
    return drivers[1]


@pytest.fixture
def table(drivers: tuple[Driver, Driver], s3: FaultyS3, original: str) -> str:
    name = f"s3a://{LAKE[0]}/{uuid.uuid4().hex}"
    copy(s3, original, name)
    return name


def pause_with_held_put(
    drivers: tuple[Driver, Driver],
    s3: FaultyS3,
    table: str,
    paused: str,
    operation: str,
) -> tuple[dict[str, Any], list[int]]:
    """Pause the first driver during its PUT until the second has committed; return its answer and the second's ids."""
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin(operation, table=table, first=10, end=12)
    assert fault.arrived.wait(WAIT)
    first.signal(signal.SIGSTOP, paused)
    if paused == "jvm":
        # Python would keep the session alive.
        first.link.cut()
    try:
        ids = second.do("read_then_append", table=table)
    finally:
        fault.release.set()
        assert fault.ended.wait(WAIT)
        first.link.mend()
        first.signal(signal.SIGCONT, paused)
    return first.answer(), ids


@pytest.mark.parametrize(
    ("paused", "operation"),
    [
        ("jvm", "append_at_the_gate"),
        pytest.param("python", "append", marks=pytest.mark.full),
        pytest.param("both", "append_at_the_gate", marks=pytest.mark.full),
        pytest.param("jvm", "append", marks=pytest.mark.soak),
        pytest.param("both", "merge", marks=pytest.mark.soak),
        pytest.param("python", "append_at_the_gate", marks=pytest.mark.soak),
    ],
)
def test_a_writer_paused_during_its_put_commits_nothing_later(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, paused: str, operation: str
) -> None:
    answer, ids = pause_with_held_put(drivers, s3, table, paused, operation)
    assert answer["error"] == "LockLostError", answer
    assert ids == [0, 1, 2]
    assert rows(table) == [0, 1, 2, 1003]
    assert count_stored_puts(s3, table) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("operation", [pytest.param("append", marks=pytest.mark.soak), "append_at_the_gate"])
def test_negative_control_without_intents_a_late_put_succeeds(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, operation: str
) -> None:
    drivers[1].do("ignore_intents")
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin(operation, table=table, first=10, end=12)
    assert fault.arrived.wait(WAIT)
    first.signal(signal.SIGSTOP, "both")
    second_fault = s3.gate.arm(second.name, S3Fault(held=True))
    try:
        second.begin("read_then_append", table=table)
        assert second_fault.arrived.wait(WAIT)
        fault.release.set()
        assert fault.ended.wait(WAIT)
    finally:
        fault.release.set()
        second_fault.release.set()
        first.signal(signal.SIGCONT, "both")
    assert second.answer()["done"] == [0, 1, 2]
    first.answer()
    # The second driver committed on top of a version that it had not read.
    assert rows(table) == [0, 1, 2, 10, 11, 1003]


@pytest.mark.full
@pytest.mark.parametrize(
    "paused", ["both", *(pytest.param(name, marks=pytest.mark.soak) for name in ("python", "jvm"))]
)
def test_a_writer_paused_at_the_gate_blocks_no_writer(
    drivers: tuple[Driver, Driver], table: str, paused: str, eventually: Callable[..., None]
) -> None:
    first, second = drivers
    second.begin("append_on_signal", table=table, first=20, end=21)
    assert second.answer() == {"done": "holding"}
    first.begin("append_at_the_gate", table=table, first=10, end=12)
    with connected_client(first.hosts) as client:
        eventually(lambda: len(LockZnodes(client, table).contenders()) == 2, within=WAIT)
    first.signal(signal.SIGSTOP, paused)
    if paused == "jvm":
        # The driver's Python process would get the lock and keep it.
        first.link.cut()
    try:
        second.send_line("go")
        assert second.answer() == {"done": None}
        assert second.do("read_then_append", table=table) == [0, 1, 2, 20]
    finally:
        first.signal(signal.SIGCONT, paused)
        first.link.mend()
    assert "done" in first.answer()
    assert rows(table) == [0, 1, 2, 10, 11, 20, 1004]


@pytest.mark.full
def test_the_first_commit_of_a_driver_holds_the_lock_briefly(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, ensemble_of_drivers: EmbeddedZooKeeper
) -> None:
    for first_id in (10, 11, 12):
        drivers[0].do("append_at_the_gate", table=table, first=first_id, end=first_id + 1)
    with closing(Driver("writer-3", ensemble_of_drivers.hosts, s3)) as new:
        new.wait_until_ready()
        # It waits for its JVM and its log store before it requests the lock.
        assert new.do("append_at_the_gate", table=table, first=13, end=14) < MAX_FIRST_HOLD
    assert rows(table) == [0, 1, 2, 10, 11, 12, 13]


@pytest.mark.full
def test_a_hold_of_another_thread_does_not_replace_a_lost_hold(drivers: tuple[Driver, Driver], table: str) -> None:
    first, _ = drivers
    first.begin("merge_while_another_thread_gets_the_lock", table=table, first=10, end=12)
    answer = first.answer()
    assert first.do("was_reacquired")
    assert answer.get("error") == "LockLostError", answer
    assert rows(table) == [0, 1, 2]


@pytest.mark.full
def test_negative_control_without_the_binding_another_hold_suffices(drivers: tuple[Driver, Driver], table: str) -> None:
    first, _ = drivers
    first.do("bind_to_any_hold")
    first.begin("merge_while_another_thread_gets_the_lock", table=table, first=10, end=12)
    answer = first.answer()
    assert rows(table) == [0, 1, 2, 10, 11], answer


@pytest.mark.soak
def test_a_holder_cut_off_from_zookeeper_is_refused(drivers: tuple[Driver, Driver], table: str) -> None:
    first, second = drivers
    first.begin("append_on_signal", table=table, first=10, end=12)
    assert first.answer() == {"done": "holding"}
    first.link.cut()
    first.send_line("go")
    answer = first.answer()
    first.link.mend()
    assert answer["error"] == "LockLostError", answer
    second.do("append", table=table, first=20, end=21)
    assert rows(table) == [0, 1, 2, 20]


def commit_after_a_takeover(first: Driver, second: Driver, table: str) -> dict[str, Any]:
    """Cut a holder off from ZooKeeper, let a second driver commit, then let the holder commit; return its answer."""
    first.begin("append_on_signal", table=table, first=10, end=12)
    assert first.answer() == {"done": "holding"}
    first.link.cut()
    try:
        second.do("append", table=table, first=20, end=21)
        first.send_line("go")
        return first.answer()
    finally:
        first.link.mend()


def test_a_cut_off_holder_is_refused_after_a_takeover(drivers: tuple[Driver, Driver], table: str) -> None:
    assert commit_after_a_takeover(*drivers, table)["error"] == "LockLostError"
    assert rows(table) == [0, 1, 2, 20]


def test_negative_control_without_the_guard_a_cut_off_holder_commits(
    drivers: tuple[Driver, Driver], table: str
) -> None:
    drivers[0].do("guard_off")
    assert commit_after_a_takeover(*drivers, table)["error"] == "LockLostError"
    # The error comes only after the commit.
    state = read(table)
    assert state["ids"] == [0, 1, 2, 10, 11, 20]
    assert list(state["unlocked_writers"].values()) == [[2]]


@pytest.mark.full
@pytest.mark.parametrize("bucket", LAKE)
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
def test_responses_of_s3_neither_lose_nor_duplicate_a_commit(
    drivers: tuple[Driver, Driver],
    s3: FaultyS3,
    original: str,
    bucket: str,
    fault: S3Fault,
    committed: bool,  # noqa: FBT001 (pytest passes it by name)
    error: str | None,
) -> None:
    first, second = drivers
    table = f"s3a://{bucket}/{uuid.uuid4().hex}"
    copy(s3, original, table)
    # A fault remembers that it has struck, and both buckets use it.
    fault = replace(fault, arrived=Event(), release=Event(), ended=Event())
    s3.gate.arm(first.name, fault)
    first.begin("append", table=table, first=10, end=12)
    answer = first.answer()
    s3.gate.disarm(first.name)
    assert fault.arrived.is_set()
    assert answer.get("error") == error, answer
    second.do("append", table=table, first=20, end=21)
    assert rows(table) == ([0, 1, 2, 10, 11, 20] if committed else [0, 1, 2, 20])
    assert set(count_stored_puts(s3, table).values()) == {1}


@pytest.mark.full
def test_faster_writers_without_the_lock_are_named(
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
                command = [sys.executable, "-c", DELTALAKE_APPEND, table, str(number + 5)]
                subprocess.run(command, check=True, timeout=WAIT)
        finally:
            fault.release.set()
        assert first.answer() == {"done": None}
    assert rows(table) == [0, 1, 2, 10, 11, 15, 20, 21, 25]
    assert count_stored_puts(s3, table) == dict.fromkeys(range(5), 1)
    writers = read(table)["unlocked_writers"]
    assert {engine.partition("/")[0].partition(":")[0]: versions for engine, versions in writers.items()} == {
        "Apache-Spark": [1],
        "delta-rs": [3],
    }


def commit_during_a_stock_put(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str
) -> dict[str, Any]:
    """Commit under the lock while a stock writer puts the same version; return the answer of the stock writer."""
    fault = s3.gate.arm(stock.name, S3Fault(held=True))
    stock.begin("append_without_the_lock", table=table, first=20, end=22)
    assert fault.arrived.wait(WAIT)
    try:
        drivers[0].do("append", table=table, first=10, end=12)
    finally:
        fault.release.set()
    return stock.answer()


def test_a_bucket_policy_refuses_an_unconditional_put(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3.gate, "denies_unconditional", True)
    answer = commit_during_a_stock_put(drivers, stock, s3, table)
    assert "AccessDenied" in answer["message"]
    assert rows(table) == [0, 1, 2, 10, 11]
    assert count_stored_puts(s3, table) == {0: 1, 1: 1}


def test_negative_control_without_the_bucket_policy_a_commit_is_lost(
    drivers: tuple[Driver, Driver], stock: Driver, s3: FaultyS3, table: str
) -> None:
    assert "done" in commit_during_a_stock_put(drivers, stock, s3, table)
    assert read(table)["ids"] == [0, 1, 2, 20, 21]
    assert count_stored_puts(s3, table) == {0: 1, 1: 2}
