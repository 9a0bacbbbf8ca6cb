"""An S3 for tests, as the programs under test find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from sluice.local_s3 import LocalS3

Server = TypeVar("Server", bound=LocalS3)


@contextmanager
def lake(server: Server) -> Iterator[Server]:
    """Run an S3 with the bucket ``lake``, whose credentials are in the environment."""
    with server as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        running.create_bucket("lake")
        yield running
