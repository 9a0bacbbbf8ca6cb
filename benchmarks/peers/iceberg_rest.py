"""Iceberg's REST catalog for tests, on this machine: Jetty, with another catalog of Iceberg behind it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from iceberg_environment import iceberg_jars, iceberg_python

from lock_manager.testing.embedded import find_java, start_supervised, stop_supervised

START_SECONDS = 120


@contextmanager
def rest_catalog(properties: Mapping[str, str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Start a REST catalog for a block, and yield its URI.

    It listens on a free port of 127.0.0.1, and ends with this process.

    Args:
        properties: Properties of the Iceberg catalog behind it, such as ``type`` and ``warehouse``.
        environment: Environment variables with the credentials of S3.
        log: File for the output of the server.

    Raises:
        SystemExit: The server ended, or did not start within :data:`START_SECONDS`.

    """
    (pyspark,) = (iceberg_python().parents[1] / "lib").glob("python*/site-packages/pyspark/jars")
    jars = [*iceberg_jars("rest"), pyspark / "*"]
    program = Path(__file__).with_name("IcebergRest.java")
    java = [find_java(), "-Xmx256m", "-cp", os.pathsep.join(map(str, jars)), str(program)]
    server = start_supervised(["env", *assignments(environment), *java, *assignments(properties)], log)
    try:
        yield wait_for_uri(server, log)
    finally:
        stop_supervised(server)


def assignments(values: Mapping[str, str]) -> list[str]:
    """Return ``NAME=VALUE`` for each value."""
    return [f"{name}={value}" for name, value in values.items()]


def wait_for_uri(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server logs its URI; return it.

    Raises:
        SystemExit: The server ended, or did not start within :data:`START_SECONDS`.

    """
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        if match := re.search(r"^serves (http:\S+)/\n", log.read_text(), re.MULTILINE):
            return match[1]
        time.sleep(0.1)
    raise SystemExit(f"the REST catalog did not start: {log.read_text()[-2000:]}")
