"""A TCP proxy between a client and a server, for faults: freeze it, cut it, lose its replies."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class TcpProxy:
    """Forwards 127.0.0.1:``port`` to ``target``.

    Attributes:
        frozen: while set, nothing passes in either direction, and connections stay open: a network that swallows.
        replies: cleared to keep back what the server answers; set to let it through, late.
        deaf: while set, what the server answers is thrown away: lost replies.
        refused: while set, new connections are closed at once.

    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self.replies = threading.Event()
        self.replies.set()
        self.deaf = False
        self.refused = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def freeze(self) -> None:
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Close all connections; new ones are accepted again."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        self.replies.set()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refused:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._pairs.append((client, server))
            for source, sink, replies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, replies), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:  # noqa: FBT001
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                if replies:
                    self.replies.wait()
                if not (replies and self.deaf):
                    sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
