"""The server through which a JVM asks this process's commit guard, on a TCP port of 127.0.0.1.

It does not use Py4J's callback server. PySpark starts that server without a token, and a JVM calls only one callback
server: that of the Python process that started its server last. ``PythonGuard.java`` is the client.

The protocol consists of lines of UTF-8. Each connection carries one question. The JVM sends the question key and the
question; this process sends the answer key and the answer. So both ends authenticate: another local user does not have
the question key, and a process that takes the port after this one ends does not have the answer key.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socketserver
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Protocol

log = logging.getLogger(__name__)

_KEY_BYTES = 32
_READ_SECONDS = 10
"""Seconds to wait for the next bytes of a client."""


class CommitDecider(Protocol):
    """The interface of :class:`lock_manager.guard.commit_guard.CommitGuard`."""

    def check(self, request: str) -> str:
        """Answer one question of the log store."""


class GuardServer:
    """Answers the questions of a JVM, each in its own thread, until :meth:`close` or the end of the process.

    Attributes:
        name: Unique name. Threads of the JVM with this name in ``spark.sluice.guard.name`` ask this guard.
        port: Port on 127.0.0.1.

    """

    def __init__(self, guard: CommitDecider) -> None:
        self.name = uuid.uuid4().hex
        self._keys = (secrets.token_hex(_KEY_BYTES), secrets.token_hex(_KEY_BYTES))
        self._server = _Server(guard, *self._keys)
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="sluice-guard", daemon=True)
        self._thread.start()

    def install(self, jvm: Any, *, answer_seconds: float) -> None:
        """Register this guard in a JVM. ``jvm`` is Py4J's view of it; its class path has the guarded log store.

        The JVM waits ``answer_seconds`` for an answer; no answer is a refusal.

        Raises:
            Py4JJavaError: The JVM cannot reach this process.

        """
        with _py4j_log_muted():
            jvm.io.deltasluice.storage.Guard.install(self.name, self.port, *self._keys, round(answer_seconds * 1000))

    def close(self) -> None:
        """Stop answering. Commits that need an answer of this guard are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def _py4j_log_muted() -> Iterator[None]:
    """Keep the keys out of Py4J's log, which contains the arguments of every call at DEBUG."""
    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]

    def reject_record(_: logging.LogRecord) -> bool:
        return False

    for logger in loggers:
        logger.addFilter(reject_record)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(reject_record)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, guard: CommitDecider, question_key: str, answer_key: str) -> None:
        self.guard = guard
        self.question_key = question_key.encode()
        self.answer_key = answer_key.encode()
        super().__init__(("127.0.0.1", 0), _QuestionHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's names)
        log.debug("a connection to the commit guard ended", exc_info=True)  # noqa: LOG014 (called in an except block)


class _QuestionHandler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = _READ_SECONDS

    def handle(self) -> None:
        with suppress(OSError):
            # Read no more than a key before the client has authenticated.
            key = self.rfile.read(2 * _KEY_BYTES + 1)
            if not hmac.compare_digest(key, self.server.question_key + b"\n"):
                log.warning("a program on this machine asked the commit guard without its key, and got no answer")
                return
            question = self.rfile.readline().decode().rstrip("\n")
            # An empty question only tests the connection.
            answer = self.server.guard.check(question) if question else ""
            self.wfile.write(self.server.answer_key + b"\n" + answer.encode() + b"\n")
