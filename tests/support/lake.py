"""An S3 for tests, as the programs under test find it: the embedded one, or one that the environment names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice.local.chosen_s3 import ChosenS3
from sluice.local.s3 import LocalS3

ENDPOINT, BUCKET = "SLUICE_TEST_S3_ENDPOINT", "SLUICE_TEST_S3_BUCKET"
S3 = LocalS3 | ChosenS3


def chosen_s3() -> ChosenS3 | None:
    """Return the S3 that the environment names, None for the embedded one."""
    endpoint, bucket = os.environ.get(ENDPOINT), os.environ.get(BUCKET)
    return ChosenS3(endpoint, bucket) if endpoint or bucket else None


def s3_in_words() -> str:
    """Name the S3 that the tests take, for pytest's header."""
    chosen = chosen_s3()
    return "embedded" if chosen is None else chosen.endpoint or "AWS"


@contextmanager
def lake(server: S3 | None = None) -> Iterator[S3]:
    """Run an S3 with a place for tables at ``s3.root``, whose credentials are in the environment.

    By default it is the one that the environment names, else the embedded one with the bucket ``lake``.
    """
    server = server or chosen_s3() or LocalS3()
    with server as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        if isinstance(running, LocalS3):
            running.create_bucket("lake")
        yield running


def need_the_gate(what: str) -> None:
    """Skip a test whose fault is one of the embedded S3's own gate, if another S3 is to be tried."""
    if chosen_s3() is not None:
        pytest.skip(f"{what}: needs the embedded S3's own gate, and the environment names another S3")
