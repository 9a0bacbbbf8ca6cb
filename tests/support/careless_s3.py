"""An S3 that ignores the condition of a PUT, or responds to the proof of conditional PUTs with errors."""

from __future__ import annotations

import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.local._s3_server import WsgiApplication
from soak.s3_faults import FaultGate, FaultyS3

SCRATCH = "_sluice_conditional_put"
"""Name of the objects with which a driver proves a store."""
WRITER = "writer-1"
_NO_KEY = "(?!)"
"""Pattern that matches no key."""
_S3A_SETTINGS = {"attempts.maximum": "1", "retry.limit": "0", "retry.throttle.limit": "0", "user.agent.prefix": WRITER}


class CarelessMiddleware:
    """WSGI middleware that removes conditions from PUTs and replaces responses.

    Attributes:
        unconditional_keys: Pattern of the keys whose PUTs lose ``If-None-Match``, as in a store without the feature.
        errors: HTTP statuses for the next PUTs of the object ``SCRATCH``. These PUTs do not reach the store.
        puts: Number of PUTs by the last segment of the key.

    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self.unconditional_keys = re.compile(_NO_KEY)
        self.errors: deque[int] = deque()
        self.puts: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            name = environ["PATH_INFO"].rpartition("/")[2]
            self.puts[name] += 1
            if self.unconditional_keys.search(environ["PATH_INFO"]):
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if name == SCRATCH and self.errors:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response(f"{self.errors.popleft()} Error", [("Content-Length", "0")])
                return [b""]
        return self._application(environ, start_response)


class CarelessS3(FaultyS3):
    """The S3 of the tests behind :class:`CarelessMiddleware`.

    Attributes:
        front: The outermost middleware.
        faults: The gate with the faults of :class:`FaultyS3`, behind ``front``.

    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: FaultGate = self.gate
        self.front = CarelessMiddleware(self.faults)
        self.gate = self.front  # type: ignore[assignment]


@contextmanager
def careless_table(
    spark: SparkSession, unconditional_keys: str = _NO_KEY, *, put: str = ""
) -> Iterator[tuple[CarelessS3, str]]:
    """Configure a new bucket of a careless S3 in a running session; yield the S3 and the URI of a table to create.

    ``put`` is the bucket's ``sluice.put``.
    """
    with CarelessS3() as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        s3.front.unconditional_keys = re.compile(unconditional_keys)
        bucket = f"careless-{uuid.uuid4().hex}"
        s3.create_bucket(bucket)
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        settings = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in s3.spark_conf.items()}
        for name, value in (settings | _S3A_SETTINGS | {"sluice.put": put}).items():
            conf.set(f"fs.s3a.bucket.{bucket}.{name}", value)
        yield s3, f"s3a://{bucket}/table"
