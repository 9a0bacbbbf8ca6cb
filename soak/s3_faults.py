"""An S3 whose answers to a commit can be spoiled: moto behind a gate of ours, in this process.

Outermost is :class:`FaultGate`, which does what was asked for with the next PUT of one writer's version file; then
the embedded S3's own gate, one request at a time for each key; then moto. A PUT that is held back waits outside of the
inner gate, as one in the network would: its body has been read, so it is stored even if its sender is dead by then.
"""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, Self

from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, make_s3_server, moto_application
from sluice.local.s3 import LocalS3

_VERSION_FILE = re.compile(r"/(?P<key>[^/]+/.*_delta_log/(?P<version>\d{20})\.json)")
_TRANSACTION = re.compile(rb'"txnId":"([^"]+)"')
_WRITER = re.compile(r"(writer-\d+)")
_OK = 200
_FORBIDDEN = 403
_ERRORS = {
    _FORBIDDEN: ("403 Forbidden", "AccessDenied"),
    409: ("409 Conflict", "ConditionalRequestConflict"),
    500: ("500 Internal Server Error", "InternalError"),
    503: ("503 Slow Down", "SlowDown"),
}
BESIDE = "-threads"
"""Behind the location of a table: tables of steps, whose PUTs are left alone."""
RIVAL = "rival-without-the-lock"
"""How the transaction of a commit begins that the gate puts in front of a writer's own."""


@dataclass
class S3Fault:
    """What is to happen to the next PUTs of a writer's version files.

    Attributes:
        status: answer with this error; 0 to answer what the store says.
        stored: whether an error, or a lost answer, is of a PUT that was stored all the same.
        lost: close the connection without an answer.
        rival: let a writer without the lock have the version first.
        held: keep it until :attr:`release` is set; the store sees it then.
        times: how many PUTs it happens to.
        arrived: set when the first of them is there.
        release: lets a held one go on.
        ended: set when a held one is through.

    """

    status: int = 0
    stored: bool = False
    lost: bool = False
    rival: bool = False
    held: bool = False
    times: int = 1
    arrived: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Put:
    """A PUT of a version file that reached the store.

    Attributes:
        key: bucket and name of the object.
        version: of the table.
        writer: who sent it.
        txn: name of its transaction.
        status: what the store said.
        digest: of the content that is there since (the ETag), empty if it was not stored.
        at: monotonic time of the store's answer.

    """

    key: str
    version: int
    writer: str
    txn: str
    status: int
    digest: str
    at: float


class FaultGate:
    """WSGI middleware: see the module.

    Attributes:
        puts: every PUT of a version file that reached the store, in order.
        injected: how many PUTs each kind of fault happened to.
        denies_unconditional: whether a PUT of a version file that says no ``If-None-Match`` is denied, as by a bucket
            policy.

    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._armed: dict[str, deque[S3Fault]] = {}
        self._on_arrival: Callable[[str, int, S3Fault], None] = lambda *_: None
        self._rivals = 0
        self.denies_unconditional = False
        self.puts: list[Put] = []
        self.injected: Counter[str] = Counter()

    def on_arrival(self, callback: Callable[[str, int, S3Fault], None]) -> None:
        """Have ``callback(writer, version, fault)`` called when a fault meets its first PUT."""
        self._on_arrival = callback

    def arm(self, writer: str, fault: S3Fault) -> S3Fault:
        """Have ``fault`` happen to the next PUTs of this writer's version files."""
        with self._lock:
            self._armed.setdefault(writer, deque()).append(fault)
        return fault

    def disarm(self, writer: str) -> None:
        """Forget what was armed for this writer and has not happened yet."""
        with self._lock:
            self._armed.pop(writer, None)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        match = _VERSION_FILE.fullmatch(environ.get("PATH_INFO", ""))
        if match is None or environ.get("REQUEST_METHOD") != "PUT":
            return self._application(environ, start_response)
        writer = _WRITER.search(environ.get("HTTP_USER_AGENT", ""))
        name = writer[1] if writer else ""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        version = int(match["version"])
        fault = None if f"{BESIDE}/" in match["key"] else self._next_fault(name)
        if fault is not None and not fault.arrived.is_set():
            self._on_arrival(name, version, fault)
            fault.arrived.set()
        fault = fault or S3Fault()
        if fault.held:
            fault.release.wait()
        try:
            if fault.rival:
                self._put_as_rival(environ, match["key"], version)
            refused = self._refused(environ, fault)
            if refused:
                return _refuse(refused, start_response)
            if fault.lost and not fault.stored:
                return _hang_up(environ)
            answer = _Answer()
            content = list(self._application(environ, answer.start))
            self._note(match["key"], version, name, body, answer)
            if fault.lost:
                return _hang_up(environ)
            if fault.status:
                return _refuse(fault.status, start_response)
            start_response(answer.status, answer.headers)
            return content
        finally:
            fault.ended.set()

    def _refused(self, environ: Mapping[str, Any], fault: S3Fault) -> int:
        if self.denies_unconditional and "HTTP_IF_NONE_MATCH" not in environ:
            return _FORBIDDEN
        return 0 if fault.stored else fault.status

    def _next_fault(self, writer: str) -> S3Fault | None:
        with self._lock:
            armed = self._armed.get(writer)
            if not armed:
                return None
            fault = armed[0]
            fault.times -= 1
            if fault.times <= 0:
                armed.popleft()
            self.injected[_kind(fault)] += 1
            return fault

    def _note(self, key: str, version: int, writer: str, body: bytes, answer: _Answer) -> None:
        status = int(answer.status.partition(" ")[0])
        found = _TRANSACTION.search(body)
        digest = dict(answer.headers).get("ETag", "").strip('"') if status == _OK else ""
        put = Put(key, version, writer, found[1].decode() if found else "", status, digest, time.monotonic())
        with self._lock:
            self.puts.append(put)

    def _put_as_rival(self, environ: Mapping[str, Any], key: str, version: int) -> None:
        with self._lock:
            self._rivals += 1
            txn = f"{RIVAL}-{self._rivals}"
        body = (
            f'{{"commitInfo":{{"timestamp":{int(time.time() * 1000)},"engineInfo":"{RIVAL}","operation":"NOTHING",'
            f'"operationParameters":{{}},"isBlindAppend":true,"txnId":"{txn}"}}}}\n'
        ).encode()
        own = {name: value for name, value in environ.items() if not name.startswith("HTTP_X_AMZ")}
        for name in ("HTTP_CONTENT_ENCODING", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_MD5", "HTTP_EXPECT"):
            own.pop(name, None)
        own |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), "HTTP_IF_NONE_MATCH": "*"}
        answer = _Answer()
        list(self._application(own, answer.start))
        self._note(key, version, RIVAL, body, answer)


class FaultyS3(LocalS3):
    """An embedded S3 like :class:`LocalS3`, in this process, with faults on request.

    Attributes:
        gate: where to ask for them.

    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = FaultGate(OneAtATimePerKey(moto_application()))
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self, timeout_seconds: float = 30.0) -> Self:  # noqa: ARG002 (it serves at once)
        """Start serving, with nothing in store."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else one line per request
        self._server = make_s3_server(self.gate)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="sluice-s3", daemon=True)
        self._thread.start()
        # Moto keeps everything in the process, also from one server to the next.
        connection = HTTPConnection("127.0.0.1", self._server.server_port)
        connection.request("POST", "/moto-api/reset")
        connection.getresponse().read()
        connection.close()
        return self

    def stop(self) -> None:
        """Stop serving; requests that are still held back are let go."""
        server, self._server, self._port = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Answer:
    status = ""
    headers: list[tuple[str, str]]

    def start(self, status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], None]:
        self.status, self.headers = status, headers
        return lambda _: None


def _kind(fault: S3Fault) -> str:
    if fault.rival:
        return "rival"
    if fault.held:
        return "held"
    return "lost" if fault.lost else str(fault.status)


def _refuse(status: int, start_response: Callable[..., Any]) -> Iterable[bytes]:
    line, code = _ERRORS[status]
    body = f"<Error><Code>{code}</Code><Message>asked for</Message></Error>".encode()
    start_response(line, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _hang_up(environ: Mapping[str, Any]) -> Iterable[bytes]:
    connection = environ.get("werkzeug.socket")
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(2)
    raise ConnectionResetError("hung up without an answer, as asked for")
