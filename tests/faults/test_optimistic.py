"""Spark drivers without a lock (``optimistic://``), whose PUTs of versions meet faults of S3 and one another."""

from __future__ import annotations

import random
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from soak.s3_faults import FaultyS3, S3Fault
from tests.support.driver_process import LAKE, WAIT, Driver
from tests.support.s3_table import copy, count_stored_puts, read, rows

pytestmark = [pytest.mark.spark, pytest.mark.s3]

FAULTS: dict[str, dict[str, Any]] = {
    "409": {"status": 409},
    "412": {"status": 412},
    "500, not stored": {"status": 500},
    "503, stored": {"status": 503, "stored": True},
    "no reply, not stored": {"lost": True},
    "no reply, stored": {"lost": True, "stored": True},
    "another client is faster": {"rival": True},
}
#: Errors of an append that may be in the table, or is not: repeat it with its transaction.
REPEATABLE = ("CommitUnknownError", "RetriesExhaustedError")


@pytest.fixture
def drivers(driver_pair: tuple[Driver, Driver]) -> Iterator[tuple[Driver, Driver]]:
    for driver in driver_pair:
        driver.do("without_lock")
    yield driver_pair
    for driver in driver_pair:
        driver.do("protect_again")


@pytest.fixture
def table(drivers: tuple[Driver, Driver], s3: FaultyS3, original: str) -> str:
    name = f"s3a://{LAKE[0]}/{uuid.uuid4().hex}"
    copy(s3, original, name)
    return name


def append(driver: Driver, table: str, number: int) -> None:
    """Append one row in a transaction of its own, and repeat it until its outcome is known."""
    for _ in range(10):
        driver.begin("append_as", table=table, first=number, end=number + 1, txn=[driver.name, number])
        answer = driver.answer()
        if "done" in answer:
            return
        assert answer["error"] in REPEATABLE, answer
    pytest.fail(f"{answer} again and again")


@pytest.mark.full
@pytest.mark.parametrize("name", FAULTS)
def test_an_append_whose_put_meets_a_fault_is_stored_once(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, name: str
) -> None:
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(**FAULTS[name]))
    append(first, table, 10)
    assert fault.arrived.is_set()
    append(second, table, 20)
    append(first, table, 11)
    assert rows(table) == [0, 1, 2, 10, 11, 20]
    assert set(count_stored_puts(s3, table).values()) == {1}


@pytest.mark.parametrize("pauses", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_late_put_loses_against_a_faster_writer(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, *, pauses: bool
) -> None:
    first, second = drivers
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    with ThreadPoolExecutor(1) as pool:
        late_append = pool.submit(append, first, table, 10)
        try:
            assert fault.arrived.wait(WAIT)
            if pauses:
                first.signal(signal.SIGSTOP, "both")
            append(second, table, 20)
        finally:
            fault.release.set()
            if pauses:
                first.signal(signal.SIGCONT, "both")
        late_append.result(WAIT)
    assert rows(table) == [0, 1, 2, 10, 20]
    assert set(count_stored_puts(s3, table).values()) == {1}


def test_negative_control_with_delta_s_own_store_a_late_put_replaces_a_commit(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str
) -> None:
    first, second = drivers
    first.do("use_stock_store")
    fault = s3.gate.arm(first.name, S3Fault(held=True))
    first.begin("append_without_the_lock", table=table, first=10, end=11)
    try:
        assert fault.arrived.wait(WAIT)
        append(second, table, 20)
    finally:
        fault.release.set()
    assert "done" in first.answer()
    assert read(table)["ids"] == [0, 1, 2, 10]


@pytest.mark.parametrize(
    "seed", [pytest.param(1, marks=pytest.mark.full), *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 31))]
)
def test_random_faults_of_two_writers_lose_no_row(
    drivers: tuple[Driver, Driver], s3: FaultyS3, table: str, seed: int
) -> None:
    choices = random.Random(seed)
    numbers = [list(range(first, first + 8)) for first in (100, 200)]
    plans = [[choices.choice([None, *FAULTS.values()]) for _ in own_numbers] for own_numbers in numbers]

    def append_all(driver: Driver, own_numbers: list[int], plan: list[dict[str, Any] | None]) -> None:
        for number, fault in zip(own_numbers, plan, strict=True):
            if fault is not None:
                s3.gate.arm(driver.name, S3Fault(**fault))
            append(driver, table, number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append_all, drivers, numbers, plans))
    assert rows(table) == [0, 1, 2, *numbers[0], *numbers[1]]
    assert set(count_stored_puts(s3, table).values()) == {1}
