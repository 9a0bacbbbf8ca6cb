"""Iceberg's REST catalog for tests, on this machine: Jetty, with a SQLite database behind it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from iceberg_environment import iceberg_jars, iceberg_python

from lock_manager.testing.embedded import find_java, start_supervised, stop_supervised

START_SECONDS = 120


@contextmanager
def rest_catalog(folder: Path, properties: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """Start a REST catalog for a block, and yield its URI.

    It listens on all addresses of this machine, and ends with this process.

    Args:
        folder: Folder for the database and for the log, ``rest.log``.
        properties: Properties of the Iceberg catalog behind it, such as ``warehouse``.
        environment: Environment variables with the credentials of S3.

    Raises:
        SystemExit: The server ended, or did not start within :data:`START_SECONDS`.

    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {**properties, "uri": f"jdbc:sqlite:file:{folder}/rest.db", "rest.port": str(port)}
    variables = {f"CATALOG_{name.upper().replace('-', '__').replace('.', '_')}": settings[name] for name in settings}
    (pyspark,) = (iceberg_python().parents[1] / "lib").glob("python*/site-packages/pyspark/jars")
    jars = [*iceberg_jars("rest"), pyspark / "*"]
    java = [
        find_java(),
        "-Xmx256m",
        "-cp",
        os.pathsep.join(map(str, jars)),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    assignments = [f"{name}={value}" for name, value in {**environment, **variables}.items()]
    log = folder / "rest.log"
    server = start_supervised(["env", *assignments, *java], log)
    try:
        uri = f"http://127.0.0.1:{port}"
        wait_for(f"{uri}/v1/config", server, log)
        yield uri
    finally:
        stop_supervised(server)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers a GET request."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(url, timeout=START_SECONDS):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"the REST catalog did not start: {log.read_text()[-2000:]}")
