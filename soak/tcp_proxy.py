"""A client's way to ZooKeeper or to S3, with faults on request: a TCP proxy on 127.0.0.1 for each server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_HOST = "127.0.0.1"
_CONNECT_SECONDS = 5.0
_HEADER = 8


class Link:
    """Forwards to each of the servers of a connection string, through ports of its own.

    Args:
        hosts: ``host:port,host:port[/chroot]``.

    Attributes:
        hosts: the connection string through this link.
        replies: cleared to keep back what the servers answer; set to let it through, late.
        deaf: while set, what the servers answer is thrown away.
        deafened: set when the answer to a request was thrown away; that to a heartbeat does not count.
        refused: while set, new connections are closed at once.

    """

    def __init__(self, hosts: str) -> None:
        servers, slash, chroot = hosts.partition("/")
        self.replies = threading.Event()
        self.replies.set()
        self.deaf = False
        self.deafened = threading.Event()
        self.refused = False
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
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
        """Let nothing pass in either direction; connections stay open: a network that swallows."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything pass, what was sent meanwhile too."""
        self._open.set()

    def drop(self) -> None:
        """Close all connections; new ones are accepted again."""
        pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _close(*pair)

    def close(self) -> None:
        """Close everything."""
        self._closed = True
        _close(*self._listeners)
        self._open.set()
        self.replies.set()
        self.drop()

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
            if self.refused:
                client.close()
                continue
            try:
                server = socket.create_connection(target, timeout=_CONNECT_SECONDS)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._pairs.add((client, server))
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Thread(target=self._answer, args=(server, client), daemon=True)
        answers.start()
        self._ask(client, server)
        answers.join()
        # An HTTP client may open one for each request.
        self._pairs.discard((client, server))
        _close(client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._open.wait()
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        deafened = False
        with suppress(OSError):
            while data := server.recv(65536):
                self._open.wait()
                self.replies.wait()
                if not self.deaf and not deafened:
                    client.sendall(data)
                elif _is_of_a_request(data):
                    # No network loses an answer and brings the next one on the same connection.
                    deafened = True
                    self.deafened.set()
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _is_of_a_request(data: bytes) -> bool:
    # Length and xid, four bytes each; a heartbeat's xid is -2, a watch's -1.
    return len(data) >= _HEADER and int.from_bytes(data[4:_HEADER], signed=True) > 0


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
