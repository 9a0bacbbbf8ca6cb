"""An embedded S3 for demos and tests: moto in its own process, on a free port of 127.0.0.1.

Objects are kept in memory and in temporary files until the server stops. The server stops when the process that started
it ends, even if that process is killed. It is not for production, and not a model of S3's speed.
"""

from __future__ import annotations

import http.client
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote, urlsplit

from sluice.errors import LocalS3Error

_REGION = "us-east-1"
_START_SECONDS = 30
#: Host names of this machine. No proxy may be used for them.
THIS_MACHINE = ("127.0.0.1", "localhost")
_NO_PROXY = ("no_proxy", "NO_PROXY")


def no_proxy_variables() -> dict[str, str]:
    """Return ``no_proxy`` and ``NO_PROXY`` with this machine added to the user's hosts."""
    user_values = [value for name in _NO_PROXY if (value := os.environ.get(name))]
    variables = {}
    for name in _NO_PROXY:
        # Programs differ in which variable they prefer. A variable that is not set gets the value of the other one.
        hosts = os.environ.get(name) or "".join(user_values[:1])
        variables[name] = ",".join(dict.fromkeys([*filter(None, hosts.split(",")), *THIS_MACHINE]))
    return variables


class LocalS3:
    """An embedded S3. It stops when this process ends, if not earlier.

    ``with LocalS3() as s3: s3.create_bucket("lake")``

    Exactly one of several conditional PUTs succeeds, because requests for one key are served one at a time. Moto alone
    does not guarantee that. Requests are not authenticated: any credentials are accepted.

    Args:
        log: A file for the server's output. None keeps the output for error messages only.

    Attributes:
        root: The bucket that was created last. Tables are below it.

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
            LocalS3Error: The server is not running.

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
        """Environment variables that configure boto3 and ``deltalake``, and S3A's credentials. They bypass proxies."""
        return {
            "AWS_ACCESS_KEY_ID": "sluice",
            "AWS_SECRET_ACCESS_KEY": "sluice-local",
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            **no_proxy_variables(),
        }

    @property
    def spark_conf(self) -> dict[str, str]:
        """Spark properties that configure S3A's endpoint. Credentials come from :attr:`environment`."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": _REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def start(self) -> Self:
        """Start the server and wait until it serves, at most 30 s.

        Raises:
            LocalS3Error: The server runs already, moto is missing, or the server did not start in time.

        """
        if self._process is not None:
            raise LocalS3Error(f"the embedded S3 is running already, at {self.endpoint}")
        with self._log.open("w+b") if self._log else tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                # -P: do not import from the script's folder
                [sys.executable, "-P", str(Path(__file__).with_name("_s3_server.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C at the terminal must reach only the parent, which stops its servers in order.
                start_new_session=True,
            )
            try:
                self._port = self._read_port(log)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server, which deletes its objects. Do nothing if it does not run."""
        process, self._process, self._port = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def create_bucket(self, name: str) -> None:
        """Create a bucket. An existing bucket is not changed.

        Raises:
            LocalS3Error: The name is not allowed, or the server does not run.

        """
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request("PUT", "/" + quote(name, safe=""))
            response = connection.getresponse()
            body = response.read().decode(errors="replace")
        except OSError as error:
            raise LocalS3Error(f"the embedded S3 does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK and "BucketAlreadyOwnedByYou" not in body:
            raise LocalS3Error(f"bucket {name!r} was refused ({response.status} {response.reason}): {body[:200]}")
        self.root = name

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read_port(self, log: IO[bytes]) -> int:
        assert self._process is not None  # noqa: S101 (start() sets it)
        assert self._process.stdout is not None  # noqa: S101 (it is a pipe)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(_START_SECONDS):
                raise LocalS3Error(f"the embedded S3 did not start within {_START_SECONDS} s")
        line = self._process.stdout.readline()
        if line:
            return int(line)
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        advice = ": pip install '.[cli]' in a clone of Sluice" if "ModuleNotFoundError" in lines[-1] else ""
        raise LocalS3Error(f"the embedded S3 did not start ({lines[-1].strip()}){advice}")
