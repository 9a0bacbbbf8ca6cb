"""An embedded S3 for demos and tests: moto in a process of its own, on 127.0.0.1 and a free port.

Objects live in its memory (spilling to temporary files) and are gone when it stops. It stops with the process
that started it, however that ends. Not for production, and not a model of S3's speed.
"""

from __future__ import annotations

import http.client
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote, urlsplit

from sluice.errors import LocalS3Error

_SERVER = Path(__file__).with_name("_s3_server.py")
_REGION = "us-east-1"
_GRACE_SECONDS = 5.0
#: Names of this machine, which is reached without a proxy.
THIS_MACHINE = ("127.0.0.1", "localhost")
_NO_PROXY = ("no_proxy", "NO_PROXY")


def past_proxies() -> dict[str, str]:
    """Return ``no_proxy`` and ``NO_PROXY`` with this machine added to the hosts that the user has there."""
    given = [value for name in _NO_PROXY if (value := os.environ.get(name))]
    variables = {}
    for name in _NO_PROXY:
        # Programs differ in which of the two they heed first: one that is not set must not hide the other.
        hosts = os.environ.get(name) or "".join(given[:1])
        variables[name] = ",".join(dict.fromkeys([*filter(None, hosts.split(",")), *THIS_MACHINE]))
    return variables


class LocalS3:
    """An S3 endpoint that lives as long as this process.

    ``with LocalS3() as s3: s3.create_bucket("lake")``

    A conditional PUT has exactly one winner, because requests for one key are served one at a time; moto
    alone does not promise that. Requests are not authenticated: any credentials will do.

    Args:
        log: a file that gets what the server says; by default it is kept for error messages only.

    Attributes:
        root: the bucket that was made last, below which tables are.

    """

    def __init__(self, *, log: Path | None = None) -> None:
        self.root = ""
        self._log = log
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:PORT``.

        Raises:
            LocalS3Error: it is not running.

        """
        if self._port is None:
            raise LocalS3Error("the embedded S3 is not running: start() it first")
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs, else None."""
        return self._process.pid if self._process is not None else None

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which boto3 and ``deltalake`` find this endpoint past any proxy, and S3A its credentials."""
        return {
            "AWS_ACCESS_KEY_ID": "sluice",
            "AWS_SECRET_ACCESS_KEY": "sluice-local",
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            **past_proxies(),
        }

    @property
    def spark_conf(self) -> dict[str, str]:
        """Spark properties with which S3A finds this endpoint; credentials come from :attr:`environment`."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": _REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def start(self, timeout_seconds: float = 30.0) -> Self:
        """Start the server and wait until it serves.

        Raises:
            LocalS3Error: moto is missing, or the server did not come up in time.

        """
        if self._process is not None:
            raise LocalS3Error(f"the embedded S3 is running already, at {self.endpoint}")
        with self._log.open("w+b") if self._log else tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                # -P: the script's folder is no place to import from
                [sys.executable, "-P", str(_SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C at the terminal is for the parent, which then stops its servers in its own order.
                start_new_session=True,
            )
            try:
                self._port = self._read_port(timeout_seconds, log)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server and forget its objects. Does nothing if it does not run."""
        process, self._process, self._port = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def create_bucket(self, name: str) -> None:
        """Create a bucket; one that exists already is left as it is.

        Raises:
            LocalS3Error: the name is not allowed, or the server does not run.

        """
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request("PUT", "/" + quote(name, safe=""))
            response = connection.getresponse()
            answer = response.read().decode(errors="replace")
        except OSError as error:
            raise LocalS3Error(f"the embedded S3 does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK and "BucketAlreadyOwnedByYou" not in answer:
            raise LocalS3Error(f"bucket {name!r} was refused ({response.status} {response.reason}): {answer[:200]}")
        self.root = name

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_port(self, timeout_seconds: float, log: IO[bytes]) -> int:
        assert self._process is not None  # noqa: S101 (start() made it)
        assert self._process.stdout is not None  # noqa: S101 (a pipe was asked for)
        deadline = time.monotonic() + timeout_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise LocalS3Error(f"the embedded S3 did not start within {timeout_seconds:g} s")
        line = self._process.stdout.readline()
        if line:
            return int(line)
        log.seek(0)
        words = log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        advice = ": pip install '.[cli]' in a clone of Sluice" if "ModuleNotFoundError" in words[-1] else ""
        raise LocalS3Error(f"the embedded S3 did not start ({words[-1].strip()}){advice}")
