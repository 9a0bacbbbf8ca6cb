"""MERGEs of many drivers into the same rows, with the lock for the commit alone: all succeed and are serializable.

Eight drivers, five minutes; only with ``-m soak``. test_gate_operations.py has one driver with threads, in CI. The
control has no lock.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest
from deltalake import DeltaTable

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3
from tests.support.driver_process import Driver

pytestmark = pytest.mark.soak

WRITERS = 8
MINUTES = 5
KEYS = 5


@pytest.fixture
def start_drivers(s3: FaultyS3) -> Iterator[Callable[..., list[Driver]]]:
    with ExitStack() as stack:
        ensemble = stack.enter_context(EmbeddedZooKeeper())

        def start(count: int, **conf: str) -> list[Driver]:
            drivers = []
            for number in range(count):
                drivers.append(Driver(f"writer-{number}", ensemble.hosts, s3, conf))
                stack.callback(drivers[-1].close)
            for driver in drivers:
                assert driver.answer() == {"done": "ready"}
            return drivers

        yield start


def merge_for(drivers: list[Driver], minutes: float, *, locked: bool) -> tuple[str, list[dict[str, Any]]]:
    """Let all drivers merge into the same rows for ``minutes``; return the table and the answer of each driver."""
    table = f"s3a://lake/{uuid.uuid4().hex}"
    drivers[0].do("make_hot", table=table, keys=KEYS)
    until = time.time() + 60 * minutes
    for driver in drivers:
        driver.begin("merge_hot", table=table, name=driver.name, until=until, locked=locked)
    return table, [driver.answer() for driver in drivers]


def test_merges_of_many_drivers_are_serializable(start_drivers: Callable[..., list[Driver]]) -> None:
    table, answers = merge_for(start_drivers(WRITERS), MINUTES, locked=True)
    assert [answer for answer in answers if "error" in answer] == []
    acknowledged = sorted(chain.from_iterable(answer["done"]["merged"] for answer in answers))
    assert all(answer["done"]["merged"] for answer in answers), "a writer merged nothing"
    # Each MERGE appends its name to every row, so all rows have all names in the order of the versions.
    names_in_order = "".join(f"{name};" for _, name in acknowledged)
    columns = DeltaTable(table.replace("s3a:", "s3:")).to_pyarrow_table().to_pydict()
    assert sorted(columns["id"]) == list(range(KEYS))
    assert set(columns["words"]) == {names_in_order}
    seconds = sorted(chain.from_iterable(answer["done"]["seconds"] for answer in answers))
    median, longest = seconds[len(seconds) // 2], seconds[-1]
    sys.stdout.write(f"\n{len(acknowledged)} MERGEs, all acknowledged; p50 {median:.1f} s, at most {longest:.1f} s\n")


def test_negative_control_without_the_lock_some_merges_fail(start_drivers: Callable[..., list[Driver]]) -> None:
    _, answers = merge_for(start_drivers(4, **{"spark.sluice.guard": "off"}), 0.5, locked=False)
    assert any("DELTA_CONCURRENT" in answer.get("message", "") for answer in answers), answers
