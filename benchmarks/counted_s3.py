"""An embedded S3 that records its requests and can delay each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sluice.local._s3_server import WsgiApplication
from soak.s3_faults import FaultyS3


@dataclass(frozen=True)
class Request:
    """A request to S3.

    Attributes:
        at: Time of arrival, in seconds since the epoch.
        operation: LIST, or the HTTP method. DELETE includes bulk deletes.
        path: Bucket and key; only the bucket if the request is for a bucket.

    """

    at: float
    operation: str
    path: str


class CountingMiddleware:
    """WSGI middleware that records and delays each request. Requests wait in parallel.

    Attributes:
        requests: The requests so far.
        delay_seconds: Seconds that each request waits before it is served.

    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self.requests: list[Request] = []
        self.delay_seconds = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        operation = "LIST" if method == "GET" and re.search(r"(^|&)list-type=", query) else method
        if operation == "POST" and "delete" in query:
            operation = "DELETE"
        self.requests.append(Request(time.time(), operation, environ["PATH_INFO"].lstrip("/")))
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        return self._application(environ, start_response)


class CountedS3(FaultyS3):
    """The S3 server of the soak, without faults.

    Attributes:
        counting: The outermost middleware.

    """

    def __init__(self) -> None:
        super().__init__()
        self.counting = CountingMiddleware(self.gate)
        self.gate = self.counting  # type: ignore[assignment]
