"""The installed releases of PySpark and Delta, and marks that skip a test if an older Delta lacks its feature."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
from py4j.protocol import Py4JJavaError

try:
    from delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException, ConcurrentWriteException
except ImportError:
    # The Python package of Delta 4.0.0 lacks this module.
    ConcurrentAppendException = ConcurrentDeleteReadException = ConcurrentWriteException = Py4JJavaError  # type: ignore[misc]


def _numbers(package: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version(package)))


SPARK, DELTA = _numbers("pyspark"), _numbers("delta-spark")


def needs_delta(release: tuple[int, ...], feature: str) -> pytest.MarkDecorator:
    """Skip a test with an older Delta, which lacks a feature."""
    return pytest.mark.skipif(release > DELTA, reason=f"Delta {'.'.join(map(str, DELTA))} has no {feature}")
