"""A JVM asks this process's commit guard here: a TCP port on 127.0.0.1, closed to clients without the secret.

Py4J's own way back into Python is not used. PySpark leaves it without a token, and a second Python process on the same
JVM takes it away from the first. ``PythonGuard.java`` is the other end. Knows nothing of Spark.

The protocol is lines of UTF-8, with one question for each connection. The JVM sends the key of questions and the
question; the answer is the key of answers and the answer. So both ends know each other: another local user who connects
does not have the first key. A process that takes the port when this one is gone does not have the second.
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

_HOST = "127.0.0.1"
_KEY_BYTES = 32
_KEY_LENGTH = 2 * _KEY_BYTES
_KEY_SECONDS = 10
"""How long a client may keep a thread waiting for its key, in seconds."""
_BACKLOG = 128


class Guarding(Protocol):
    """What decides on commits: see :class:`lock_manager.guard.commit_guard.CommitGuard`."""

    def check(self, request: str) -> str:
        """Answer one question of the log store's."""


class GuardServer:
    """Answers a JVM's questions for as long as this process lives, or until it is closed.

    Args:
        guard: decides. Its questions come from threads of their own, several at once.

    Attributes:
        name: unique; threads of the JVM that are bound to it (``spark.sluice.guard.name``) have it asked.
        port: on 127.0.0.1.

    """

    def __init__(self, guard: Guarding) -> None:
        self.name = uuid.uuid4().hex
        self._keys = (secrets.token_hex(_KEY_BYTES), secrets.token_hex(_KEY_BYTES))
        self._server = _Server(guard, *self._keys)
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="sluice-guard", daemon=True)
        self._thread.start()

    def install(self, jvm: Any, *, answer_seconds: float) -> None:
        """Have a JVM ask this guard.

        Args:
            jvm: Py4J's view of it, with the guarded log store on its class path.
            answer_seconds: how long it waits for an answer; none is a refusal.

        Raises:
            Py4JJavaError: the JVM cannot reach this process.

        """
        with _py4j_says_nothing():
            jvm.io.deltasluice.storage.Guard.install(self.name, self.port, *self._keys, round(answer_seconds * 1000))

    def close(self) -> None:
        """Answer no more: commits that are asked about here are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def _py4j_says_nothing() -> Iterator[None]:
    """Keep the keys out of Py4J's log, which at DEBUG has the arguments of every call."""
    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]

    def drop(_: logging.LogRecord) -> bool:
        return False

    for each in loggers:
        each.addFilter(drop)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(drop)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, guard: Guarding, question_key: str, answer_key: str) -> None:
        self.guard = guard
        self.question_key = question_key.encode()
        self.answer_key = answer_key.encode()
        super().__init__((_HOST, 0), _Conversation)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's names)
        log.debug("a connection to the commit guard ended", exc_info=True)  # noqa: LOG014 (it is called in one)


class _Conversation(socketserver.StreamRequestHandler):
    server: _Server
    timeout = _KEY_SECONDS

    def handle(self) -> None:
        with suppress(OSError):
            self._handle()

    def _handle(self) -> None:
        # No more than a key is read of somebody who has none.
        key = self.rfile.read(_KEY_LENGTH + 1)
        if not hmac.compare_digest(key, self.server.question_key + b"\n"):
            log.warning("a program on this machine asked the commit guard without its key, and got no answer")
            return
        question = self.rfile.readline().decode().rstrip("\n")
        # A greeting, to learn whether this process can be reached.
        answer = self.server.guard.check(question) if question else ""
        self.wfile.write(self.server.answer_key + b"\n" + answer.encode() + b"\n")
