"""MERGEs of many drivers into the same rows, with the lock for the commit alone: all end, as if one after the other.

Eight drivers, five minutes; only with ``-m soak``. One driver with threads, in CI: test_gate_operations.py. The
negative control is the same without the lock.
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
def start(s3: FaultyS3) -> Iterator[Callable[..., list[Driver]]]:
    with ExitStack() as stack:
        ensemble = stack.enter_context(EmbeddedZooKeeper())

        def make(count: int, **conf: str) -> list[Driver]:
            drivers = []
            for number in range(count):
                drivers.append(Driver(f"writer-{number}", ensemble.hosts, s3, conf))
                stack.callback(drivers[-1].close)
            for driver in drivers:
                assert driver.answer() == {"done": "ready"}
            return drivers

        yield make


def merge_for(drivers: list[Driver], minutes: float, *, locked: bool) -> tuple[str, list[dict[str, Any]]]:
    """Have all merge into the same rows for so long; return the table, and what each driver says."""
    table = f"s3a://lake/{uuid.uuid4().hex}"
    drivers[0].do("make_hot", table=table, keys=KEYS)
    until = time.time() + 60 * minutes
    for driver in drivers:
        driver.begin("merge_hot", table=table, name=driver.name, until=until, locked=locked)
    return table, [driver.answer() for driver in drivers]


def test_all_end_and_the_table_is_that_of_a_serial_run(start: Callable[..., list[Driver]]) -> None:
    table, answers = merge_for(start(WRITERS), MINUTES, locked=True)
    assert [answer for answer in answers if "error" in answer] == []
    acknowledged = sorted(chain.from_iterable(answer["done"]["merged"] for answer in answers))
    assert all(answer["done"]["merged"] for answer in answers), "a writer never had its turn"
    # Each MERGE adds its name to what every row says; so all say the same, in the order of the versions.
    serial = "".join(f"{name};" for _, name in acknowledged)
    read = DeltaTable(table.replace("s3a:", "s3:")).to_pyarrow_table().to_pydict()
    assert sorted(read["id"]) == list(range(KEYS))
    assert set(read["said"]) == {serial}
    took = sorted(chain.from_iterable(answer["done"]["took"] for answer in answers))
    say = f"{len(acknowledged)} MERGEs, all acknowledged; p50 {took[len(took) // 2]:.1f} s, at most {took[-1]:.1f} s"
    sys.stdout.write(f"\n{say}\n")


def test_negative_control_without_the_lock_some_fail(start: Callable[..., list[Driver]]) -> None:
    _, answers = merge_for(start(4, **{"spark.sluice.guard": "off"}), 0.5, locked=False)
    assert any("DELTA_CONCURRENT" in answer.get("message", "") for answer in answers), answers
