"""The S3 of the tests: the embedded server, or one that the environment names."""

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
    """Return the S3 that the environment names, or None if the tests use the embedded server."""
    endpoint, bucket = os.environ.get(ENDPOINT), os.environ.get(BUCKET)
    return ChosenS3(endpoint, bucket) if endpoint or bucket else None


def describe_s3() -> str:
    """Return the name of the S3 for the header of pytest."""
    chosen = chosen_s3()
    return "embedded" if chosen is None else chosen.endpoint or "AWS"


@contextmanager
def lake(server: S3 | None = None) -> Iterator[S3]:
    """Run an S3 with tables below ``s3.root`` and its credentials in the environment.

    The default is the S3 that the environment names, or else the embedded server with the bucket ``lake``.
    """
    server = server or chosen_s3() or LocalS3()
    with server as running_server, pytest.MonkeyPatch.context() as patch:
        for name, value in running_server.environment.items():
            patch.setenv(name, value)
        if isinstance(running_server, LocalS3):
            running_server.create_bucket("lake")
        yield running_server


def require_embedded_s3(fault: str) -> None:
    """Skip a test whose fault needs the embedded S3, if the environment names another S3."""
    if chosen_s3() is not None:
        pytest.skip(f"{fault}: needs the embedded S3, but the environment names another S3")
