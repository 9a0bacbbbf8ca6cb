"""An S3 whose ETags are not the MD5 of the content, as in buckets with SSE-KMS and in other stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, moto_application
from soak.s3_faults import FaultGate, FaultyS3

_NO_OBJECT = f'"{"f" * 32}"'
_CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class OtherEtags:
    """WSGI middleware that replaces ETags in responses and in conditions. Requests for one key follow one another."""

    def __init__(self, application: WsgiApplication, new_etag: Callable[[], str]) -> None:
        self._application, self._new_etag = application, new_etag
        #: For each path, the ETag of the application and the one that clients know.
        self._etags: dict[str, tuple[str, str]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        stored_etag, etag = self._etags.get(path, ("", ""))
        for name in _CONDITIONS:
            if environ.get(name, "*") != "*":
                environ[name] = stored_etag if environ[name] == etag else _NO_OBJECT

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            etags = [value for name, value in headers if name.lower() == "etag"]
            if etags and environ["REQUEST_METHOD"] == "PUT":
                self._etags[path] = (etags[0], self._new_etag())
            if etags and path in self._etags:
                others = [(name, value) for name, value in headers if name.lower() != "etag"]
                headers = [*others, ("ETag", self._etags[path][1])]
            return start_response(status, headers, *rest)

        return self._application(environ, start)


class OtherEtagsS3(FaultyS3):
    """The S3 of the tests with other ETags. ``new_etag`` returns the ETag of each PUT."""

    def __init__(self, new_etag: Callable[[], str]) -> None:
        super().__init__()
        self.gate = FaultGate(OneAtATimePerKey(OtherEtags(moto_application(), new_etag)))
