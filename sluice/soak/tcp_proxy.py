"""A writer's way to ZooKeeper, which can be cut: a TCP proxy on 127.0.0.1 for each server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_HOST = "127.0.0.1"
_CONNECT_SECONDS = 5.0


class Link:
    """Forwards to each of the servers of a connection string, through ports of its own.

    While it is cut nothing passes in either direction and connections stay open: a network that swallows. What was sent
    meanwhile arrives late.

    Args:
        hosts: ``host:port,host:port[/chroot]``.

    Attributes:
        hosts: the connection string through this link.

    """

    def __init__(self, hosts: str) -> None:
        servers, slash, chroot = hosts.partition("/")
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listeners: list[socket.socket] = []
        own = []
        for server in servers.split(","):
            host, _, port = server.rpartition(":")
            listener = socket.create_server((_HOST, 0))
            self._listeners.append(listener)
            own.append(f"{_HOST}:{listener.getsockname()[1]}")
            threading.Thread(target=self._accept, args=(listener, (host, int(port))), daemon=True).start()
        self.hosts = ",".join(own) + slash + chroot

    def cut(self) -> None:
        """Let nothing pass."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything pass, what was sent meanwhile too."""
        self._open.set()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._open.set()
        for each in (*self._listeners, *(end for pair in self._pairs for end in pair)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while not self._closed:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(target, timeout=_CONNECT_SECONDS)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
