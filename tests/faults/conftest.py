"""Writers, an ensemble and an S3 with faults, as the soak has them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.soak.options import SoakOptions
from sluice.soak.run import Soak
from sluice.soak.s3_faults import FaultyS3
from tests.support.lake import chosen_s3, lake, need_the_gate


class First(random.Random):
    """Chance that always takes the first: faults end when the next holder has read, and errors are of stored PUTs."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3]:
    """An S3 with faults and the bucket ``lake``, whose credentials are in the environment."""
    need_the_gate("answers of S3 are lost, spoiled or held back")
    faulty = FaultyS3()
    with lake(faulty):
        yield faulty


@pytest.fixture(scope="module")
def make_soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Soak]]:
    """Start a soak whose faults the test plays itself."""
    with ExitStack() as stack:
        table = f"s3a://{stack.enter_context(lake()).root}/soak" if chosen_s3() else None

        def make(**options: Any) -> Soak:
            output: Path = tmp_path_factory.mktemp("soak")
            given = {"writers": 2, "commits": 1, "seed": 1, "session_seconds": 2.0, "table": table, **options}
            soak = stack.enter_context(Soak(SoakOptions(output=output, **given)))
            soak.stage.random = First(1)
            soak.start_writers()
            return soak

        yield make
