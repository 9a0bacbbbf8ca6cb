"""An embedded S3 that injects faults into commits: moto behind a gate, in this process.

A request passes three layers: :class:`FaultGate`, which injects the faults of a writer's next requests;
``OneAtATimePerKey``, which passes one request at a time for each key; and moto. A PUT that is held back waits in
the outermost layer, like a request in the network. Its body has been read, so it is stored even if its sender is dead.
"""

from __future__ import annotations

import io
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from typing import Any, Self

from lock_manager.s3_lease.state import Queue
from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, make_s3_server, moto_application
from sluice.local.s3 import LocalS3
from soak.tcp_proxy import Link

VERSION_FILES = re.compile(r"/(?P<key>[^/]+/.*_delta_log/(?P<version>\d{20})\.json)")
_TRANSACTION = re.compile(rb'"txnId":"([^"]+)"')
# A parameter of the referrer of S3A's audit.
_OPERATION = re.compile(r"[?&]op=(\w+)")
_WRITER = re.compile(r"(writer-\d+)")
_OK = 200
_FORBIDDEN = 403
_ERRORS = {
    _FORBIDDEN: ("403 Forbidden", "AccessDenied"),
    409: ("409 Conflict", "ConditionalRequestConflict"),
    412: ("412 Precondition Failed", "PreconditionFailed"),
    500: ("500 Internal Server Error", "InternalError"),
    503: ("503 Slow Down", "SlowDown"),
}
# Headers of a request that describe its body and its condition.
_BODY_HEADERS = (
    "HTTP_CONTENT_ENCODING", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_MD5", "HTTP_EXPECT", "HTTP_IF_MATCH",
    "HTTP_IF_NONE_MATCH",
)  # fmt: skip
#: Suffix of the folder whose tables only the two-threads step (``steps.py``) uses. No fault strikes requests for them.
TWO_THREADS_SUFFIX = "-threads"
#: Name of the writer without the lock, whose commits the gate puts. Its transaction ids begin with this name.
RIVAL = "rival-without-the-lock"


@dataclass(eq=False)
class S3Fault:
    """A fault of the next requests of a writer, by default of its PUTs of version files.

    Attributes:
        status: HTTP status of the error; 0 to pass the store's response on.
        stored: Whether a PUT with an error or a lost response is stored nevertheless.
        lost: Whether the connection is closed without a response.
        rival: Whether another client changes the object first: a writer without the lock stores the version, or a
            client of the lock changes the queue.
        held: Whether the request is held back until :attr:`release` is set.
        times: Number of requests that the fault strikes.
        keys: Pattern of the paths that it strikes.
        methods: HTTP methods that it strikes.
        arrived: Set when the first request has arrived.
        release: Set by the caller to pass a held request on to the store.
        ended: Set when the first request has ended.

    """

    status: int = 0
    stored: bool = False
    lost: bool = False
    rival: bool = False
    held: bool = False
    times: int = 1
    keys: re.Pattern[str] = VERSION_FILES
    methods: frozenset[str] = frozenset({"PUT"})
    arrived: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def strikes(self, method: str, path: str) -> bool:
        """Return whether the fault strikes a request."""
        return method in self.methods and self.keys.fullmatch(path) is not None


@dataclass(frozen=True)
class Put:
    """A PUT of a version file that reached the store.

    Attributes:
        key: Bucket and key of the object.
        version: Version of the table.
        writer: Name of its sender.
        txn: Id of its transaction.
        status: HTTP status of the store's response.
        digest: ETag of the content if it was stored, else empty.
        operation: Operation of S3A's audit that sent it: ``op_createfile``, or ``sluice_put`` with S3A's client of the
            AWS SDK.

    """

    key: str
    version: int
    writer: str
    txn: str
    status: int
    digest: str
    operation: str = ""


class FaultGate:
    """WSGI middleware that injects faults into requests of writers, and records PUTs of version files.

    A request belongs to the writer whose name its user agent contains.

    Attributes:
        puts: PUTs of version files that reached the store, in order.
        denies_unconditional: Whether a PUT of a version file without ``If-None-Match`` is denied, as by a bucket
            policy.

    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._armed: dict[str, deque[S3Fault]] = {}
        self._on_arrival: Callable[[str, int | None, S3Fault], None] = lambda *_: None
        self._rivals = 0
        self.denies_unconditional = False
        self.puts: list[Put] = []

    def on_arrival(self, callback: Callable[[str, int | None, S3Fault], None]) -> None:
        """Call ``callback(writer, version, fault)`` when the first request of a fault arrives.

        The version is None if the request is not a PUT of a version file.
        """
        self._on_arrival = callback

    def arm(self, writer: str, fault: S3Fault) -> S3Fault:
        """Let a fault strike the next requests of this writer; return the fault."""
        with self._lock:
            self._armed.setdefault(writer, deque()).append(fault)
        return fault

    def disarm(self, writer: str, *faults: S3Fault) -> None:
        """Let these armed faults strike no further request of this writer; without ``faults``, all of them."""
        with self._lock:
            armed = self._armed.pop(writer, deque())
            if remaining := deque(fault for fault in armed if faults and fault not in faults):
                self._armed[writer] = remaining

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "")
        writer = _WRITER.search(environ.get("HTTP_USER_AGENT", ""))
        name = writer[1] if writer else ""
        version_file = VERSION_FILES.fullmatch(path) if method == "PUT" else None
        version = int(version_file["version"]) if version_file else None
        fault = self._next_fault(name, method, path)
        if version_file is None and fault is None:
            return self._application(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if fault is not None and not fault.arrived.is_set():
            self._on_arrival(name, version, fault)
            fault.arrived.set()
        fault = fault or S3Fault()
        if fault.held:
            fault.release.wait()
        try:
            if fault.rival:
                self._change_as_rival(environ, version_file)
            if status := self._refusal_status(environ, fault, version_file):
                return _respond_with_error(status, start_response)
            if fault.lost and not fault.stored:
                return _drop_connection(environ)
            response = _Response()
            content = list(self._application(environ, response.start))
            if version_file is not None:
                referer = environ.get("HTTP_REFERER", "")
                self._record_put(version_file["key"], int(version_file["version"]), name, body, response, referer)
            if fault.lost:
                return _drop_connection(environ)
            if fault.status:
                return _respond_with_error(fault.status, start_response)
            start_response(response.status, response.headers)
            return content
        finally:
            fault.ended.set()

    def _refusal_status(self, environ: Mapping[str, Any], fault: S3Fault, version_file: re.Match[str] | None) -> int:
        """Return the status of a request that is refused before it reaches the store; 0 if it is not refused."""
        if version_file is not None and self.denies_unconditional and "HTTP_IF_NONE_MATCH" not in environ:
            return _FORBIDDEN
        return 0 if fault.stored else fault.status

    def _next_fault(self, writer: str, method: str, path: str) -> S3Fault | None:
        with self._lock:
            armed = self._armed.get(writer, deque())
            fault = next((fault for fault in armed if fault.strikes(method, path)), None)
            if fault is None or f"{TWO_THREADS_SUFFIX}/" in path:
                return None
            fault.times -= 1
            if fault.times <= 0:
                armed.remove(fault)
            return fault

    def _record_put(self, key: str, version: int, writer: str, body: bytes, response: _Response, referer: str) -> None:
        status = response.code
        txn = _TRANSACTION.search(body)
        digest = dict(response.headers).get("ETag", "").strip('"') if status == _OK else ""
        with self._lock:
            operation = _OPERATION.search(referer)
            self.puts.append(
                Put(
                    key, version, writer, txn[1].decode() if txn else "", status, digest,
                    operation[1] if operation else "",
                )
            )  # fmt: skip

    def _change_as_rival(self, environ: Mapping[str, Any], version_file: re.Match[str] | None) -> None:
        if version_file is None:
            self._change_queue(environ)
            return
        with self._lock:
            self._rivals += 1
            txn = f"{RIVAL}-{self._rivals}"
        body = (
            f'{{"commitInfo":{{"timestamp":{int(time.time() * 1000)},"engineInfo":"{RIVAL}","operation":"NOTHING",'
            f'"operationParameters":{{}},"isBlindAppend":true,"txnId":"{txn}"}}}}\n'
        ).encode()
        response, _ = self._send(environ, "PUT", body, HTTP_IF_NONE_MATCH="*")
        self._record_put(version_file["key"], int(version_file["version"]), RIVAL, body, response, "")

    def _change_queue(self, environ: Mapping[str, Any]) -> None:
        """Change the object of a queue as a client of the lock does, but only its ETag."""
        response, content = self._send(environ, "GET")
        etag = dict(response.headers).get("ETag")
        if response.code == _OK and etag is not None:
            self._send(
                environ, "PUT", replace(Queue.parse(content), change_id=uuid.uuid4().hex).data(), HTTP_IF_MATCH=etag
            )

    def _send(
        self, environ: Mapping[str, Any], method: str, body: bytes = b"", **headers: str
    ) -> tuple[_Response, bytes]:
        """Send a request for the same object, without the headers that describe the body and its condition."""
        other_environ = {name: value for name, value in environ.items() if not name.startswith("HTTP_X_AMZ")}
        for name in _BODY_HEADERS:
            other_environ.pop(name, None)
        other_environ |= {
            "REQUEST_METHOD": method, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), **headers,
        }  # fmt: skip
        response = _Response()
        content = b"".join(self._application(other_environ, response.start))
        return response, content


class FaultyS3(LocalS3):
    """An embedded S3 like :class:`LocalS3`, in this process and with injected faults.

    Attributes:
        gate: The gate that injects the faults.

    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = FaultGate(OneAtATimePerKey(moto_application()))
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start serving, without any buckets."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # by default it logs each request
        self._server = make_s3_server(self.gate)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="sluice-s3", daemon=True)
        self._thread.start()
        # Moto keeps its state in the process, so a new server has the objects of an earlier one until this reset.
        connection = HTTPConnection("127.0.0.1", self._server.server_port)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        connection.close()
        return self

    def connect(self) -> Link:
        """Return a new connection, which faults can disturb."""
        return Link(self.endpoint.removeprefix("http://"))

    def stop(self) -> None:
        """Stop serving."""
        server, self._server, self._port = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Response:
    status = ""
    headers: list[tuple[str, str]]

    @property
    def code(self) -> int:
        """HTTP status."""
        return int(self.status.partition(" ")[0])

    def start(self, status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], None]:
        self.status, self.headers = status, headers
        return lambda _: None


def _respond_with_error(status: int, start_response: Callable[..., Any]) -> Iterable[bytes]:
    line, code = _ERRORS[status]
    body = f"<Error><Code>{code}</Code><Message>injected fault</Message></Error>".encode()
    start_response(line, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _drop_connection(environ: Mapping[str, Any]) -> Iterable[bytes]:
    connection = environ.get("werkzeug.socket")
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(2)
    raise ConnectionResetError("injected fault: the connection was closed without a response")
