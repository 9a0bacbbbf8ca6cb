"""Fixtures with an ensemble, an S3 with faults, Spark drivers and soaks."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.options import SoakOptions
from soak.run import Soak
from soak.s3_faults import FaultyS3
from tests.support.driver_process import IMPATIENT, LAKE, Driver
from tests.support.lake import chosen_s3, lake, require_embedded_s3


class FirstChoice(random.Random):
    """A source of choices that always takes the first choice.

    So faults end when the next holder has read, and ``s3-500`` and ``s3-503`` store the PUT.
    """

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.0


@pytest.fixture(scope="session")
def faulty_s3() -> Iterator[FaultyS3]:
    """An S3 with faults, for all test files, because they share a driver that uses it."""
    with FaultyS3() as server:
        yield server


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Iterator[FaultyS3]:
    """The S3 with its buckets, and its credentials in the environment."""
    require_embedded_s3("responses of S3 are lost, replaced or delayed")
    server: FaultyS3 = request.getfixturevalue("faulty_s3")
    for bucket in (*LAKE, *IMPATIENT):
        # For each test file, because a soak that starts its own S3 in this process empties this one.
        server.create_bucket(bucket)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def ensemble_of_drivers() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as zookeeper:
        yield zookeeper


@pytest.fixture(scope="session")
def shared_driver(faulty_s3: FaultyS3, ensemble_of_drivers: EmbeddedZooKeeper) -> Iterator[Driver]:
    """The Spark driver ``writer-1``, for all test files; the test waits until it is ready."""
    driver = Driver("writer-1", ensemble_of_drivers.hosts, faulty_s3)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def driver_pair(
    s3: FaultyS3, shared_driver: Driver, ensemble_of_drivers: EmbeddedZooKeeper
) -> Iterator[tuple[Driver, Driver]]:
    """The shared driver and a second one."""
    second = Driver("writer-2", ensemble_of_drivers.hosts, s3)
    try:
        for driver in (shared_driver, second):
            driver.wait_until_ready()
        yield shared_driver, second
    finally:
        second.close()


@pytest.fixture(scope="module")
def original(driver_pair: tuple[Driver, Driver]) -> str:
    """A table with the ids 0 to 2. Each test has a copy of it."""
    name = f"s3a://{LAKE[0]}/{uuid.uuid4().hex}"
    driver_pair[0].do("append", table=name, first=0, end=3)
    return name


@pytest.fixture(scope="module")
def make_soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Soak]]:
    """Start soaks whose faults the test runs itself: ``make_soak(writers=2, seed=1)``."""
    with ExitStack() as stack:
        table = f"s3a://{stack.enter_context(lake()).root}/soak" if chosen_s3() else None

        def make(**options: Any) -> Soak:
            output: Path = tmp_path_factory.mktemp("soak")
            defaults = {"writers": 2, "commits": 1, "seed": 1, "session_seconds": 2.0, "table": table}
            soak = stack.enter_context(Soak(SoakOptions(output=output, **{**defaults, **options})))
            soak.context.random = FirstChoice(1)
            soak.start_writers()
            return soak

        yield make
