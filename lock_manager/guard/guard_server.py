"""The server through which a JVM asks this process's commit guard, on a Unix socket.

It does not use Py4J's callback server. PySpark starts that server without a token, and a JVM calls only one callback
server: that of the Python process that started its server last. ``PythonGuard.java`` is the client.

The protocol consists of lines of UTF-8. Each connection carries one question and its answer. The socket is in a folder
that only the user of this process can enter, so no other user can ask, or answer in place of this process.
"""

from __future__ import annotations

import logging
import os
import shutil
import socketserver
import tempfile
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

log = logging.getLogger(__name__)

_READ_SECONDS = 10
"""Seconds to wait for the next bytes of a client."""
ANSWER_SECONDS = 60
"""Seconds that a JVM waits for an answer. The guard asks an ensemble for 45 s at most; the interpreter may be busy."""
_PREFIX, _SOCKET = "sluice-", "guard"
_MAX_SOCKET_PATH = 103
"""Bytes in the path of a Unix socket: 107 on Linux, 103 on other systems (``sun_path``)."""
LIFELINE = "lifeline"
"""The question of the connection that the JVM keeps open until it ends. It gets no answer."""


class CommitDecider(Protocol):
    """The interface of :class:`lock_manager.guard.commit_guard.CommitGuard`."""

    def check(self, request: str) -> str:
        """Answer one question of the log store."""


class GuardServer:
    """Answers the questions of a JVM, each in its own thread, until :meth:`close` or the end of the process.

    Args:
        on_client_end: Called in another thread when the JVM has ended.

    Attributes:
        name: Unique name. Threads of the JVM with this name in ``spark.sluice.guard.name`` ask this guard.
        path: Path of the socket.

    """

    def __init__(self, guard: CommitDecider, on_client_end: Callable[[], None] = lambda: None) -> None:
        self.name = uuid.uuid4().hex
        folder = _create_folder()
        self._remove_folder = weakref.finalize(self, _remove_folder, folder, os.getpid())
        self.path = str(Path(folder, _SOCKET))
        self._server = _Server(guard, on_client_end, self.path)
        self._thread = Thread(target=self._server.serve_forever, name="sluice-guard", daemon=True)
        self._thread.start()

    def install(self, jvm: Any, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Register this guard in a JVM. ``jvm`` is Py4J's view of it; its class path has the guarded log store.

        The JVM waits ``answer_seconds`` for an answer; no answer is a refusal.

        Raises:
            Py4JJavaError: The JVM cannot reach this process.

        """
        jvm.io.deltasluice.storage.Guard.install(self.name, self.path, round(answer_seconds * 1000))

    def close(self) -> None:
        """Stop answering. Commits that need an answer of this guard are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._remove_folder()


def _create_folder() -> str:
    """Create a folder that only this user can enter: in the folder for temporary files, unless its path is too long."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    if len(os.fsencode(Path(folder, _SOCKET))) <= _MAX_SOCKET_PATH:
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")


def _remove_folder(folder: str, owner: int) -> None:
    # A forked child that exits does not remove its parent's folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, guard: CommitDecider, on_client_end: Callable[[], None], path: str) -> None:
        self.guard = guard
        self.on_client_end = on_client_end
        super().__init__(path, _QuestionHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's names)
        log.debug("a connection to the commit guard ended", exc_info=True)  # noqa: LOG014 (called in an except block)


class _QuestionHandler(socketserver.StreamRequestHandler):
    server: _Server
    timeout = _READ_SECONDS

    def handle(self) -> None:
        with suppress(OSError):
            question = self.rfile.readline().decode().rstrip("\n")
            if question == LIFELINE:
                self._watch_client()
                return
            # An empty question only tests the connection.
            answer = self.server.guard.check(question) if question else ""
            self.wfile.write(answer.encode() + b"\n")

    def _watch_client(self) -> None:
        self.connection.settimeout(None)
        try:
            self.rfile.read()
        finally:
            self.server.on_client_end()
