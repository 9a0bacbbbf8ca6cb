"""An embedded S3 that records its requests as IAM sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs

from sluice.local._s3_server import WsgiApplication
from soak.s3_faults import FaultyS3
from tests.support.iam_evaluator import Request, s3


class RecordingS3(FaultyS3):
    """An embedded S3 that injects no faults and records its requests.

    Attributes:
        methods: HTTP methods of the requests, in order.
        requests: Requests that IAM evaluates for them, without a principal.

    """

    def __init__(self) -> None:
        super().__init__()
        self.methods: list[str] = []
        self.requests: list[Request] = []
        self.gate = self._recorded(self.gate)

    def forget(self) -> None:
        """Delete the records."""
        self.methods, self.requests = [], []

    def _recorded(self, application: WsgiApplication) -> WsgiApplication:
        def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            def start(status: str, *arguments: Any) -> Any:
                self.methods.append(environ["REQUEST_METHOD"])
                self.requests += _evaluated_requests(environ, int(status.partition(" ")[0]))
                return start_response(status, *arguments)

            return application(environ, start)

        return serve


def _evaluated_requests(environ: Mapping[str, Any], status: int) -> list[Request]:
    """Return the requests that IAM evaluates for an HTTP request.

    Sources: "GetObject" and "PutObject" (S3 API Reference), and "How to prevent object overwrites with conditional
    writes" (S3 User Guide): a PUT with If-Match also needs s3:GetObject.
    """
    method = environ["REQUEST_METHOD"]
    bucket, _, key = environ["PATH_INFO"].strip("/").partition("/")
    arn = f"arn:aws:s3:::{bucket}"
    resource = f"{arn}/{key}"
    if method == "GET" and not key:
        (prefix,) = parse_qs(environ["QUERY_STRING"])["prefix"]
        return [s3("", "ListBucket", arn, **{"s3:prefix": prefix})]
    if method == "GET":
        listing = [s3("", "ListBucket", arn)] if status == 404 else []
        return [s3("", "GetObject", resource), *listing]
    if method == "PUT" and key:
        headers = {"s3:if-match": "HTTP_IF_MATCH", "s3:if-none-match": "HTTP_IF_NONE_MATCH"}
        conditions = {name: environ[header] for name, header in headers.items() if header in environ}
        reading = [s3("", "GetObject", resource)] if "s3:if-match" in conditions else []
        return [s3("", "PutObject", resource, **conditions), *reading]
    # No policy allows it.
    return [s3("", f"Unknown{method}", resource)]
