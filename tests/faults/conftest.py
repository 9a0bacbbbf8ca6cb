"""Writers, an ensemble and an S3 with faults, as the soak has them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.options import SoakOptions
from soak.run import Soak
from soak.s3_faults import FaultyS3
from tests.support.driver_process import IMPATIENT, Driver
from tests.support.lake import chosen_s3, lake, need_the_gate


class First(random.Random):
    """Chance that always takes the first: faults end when the next holder has read, and errors are of stored PUTs."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.0


@pytest.fixture(scope="session")
def faulty_s3() -> Iterator[FaultyS3]:
    """An S3 with faults, for all files: a driver that they share has no other."""
    with FaultyS3() as running:
        yield running


@pytest.fixture(scope="module")
def s3(request: pytest.FixtureRequest) -> Iterator[FaultyS3]:
    """That S3 with the buckets ``lake`` and ``impatient``, while its credentials are in the environment."""
    need_the_gate("answers of S3 are lost, spoiled or held back")
    running: FaultyS3 = request.getfixturevalue("faulty_s3")
    for bucket in (IMPATIENT, "lake"):
        # Anew for each file: the start of a soak's own S3 in this process has emptied this one.
        running.create_bucket(bucket)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="session")
def ensemble_of_drivers() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as running:
        yield running


@pytest.fixture(scope="session")
def shared_driver(faulty_s3: FaultyS3, ensemble_of_drivers: EmbeddedZooKeeper) -> Iterator[Driver]:
    """``writer-1``, a Spark driver for all files that take it: wait until it is ready."""
    driver = Driver("writer-1", ensemble_of_drivers.hosts, faulty_s3)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def make_soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Soak]]:
    """Start a soak whose faults the test plays itself."""
    with ExitStack() as stack:
        table = f"s3a://{stack.enter_context(lake()).root}/soak" if chosen_s3() else None

        def make(**options: Any) -> Soak:
            output: Path = tmp_path_factory.mktemp("soak")
            given = {"writers": 2, "commits": 1, "seed": 1, "session_seconds": 2.0, "table": table, **options}
            soak = stack.enter_context(Soak(SoakOptions(output=output, **given)))
            soak.context.random = First(1)
            soak.start_writers()
            return soak

        yield make
