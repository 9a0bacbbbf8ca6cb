"""A client's connection to ZooKeeper or S3 with injected faults: a TCP proxy on 127.0.0.1 for each server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

_HOST = "127.0.0.1"
_CONNECT_SECONDS = 5.0
_HEADER = 8


class Link:
    """A proxy for each server of a connection string.

    Args:
        hosts: Connection string, ``host:port,host:port[/chroot]``.

    Attributes:
        hosts: Connection string of the proxies.
        replies: While this event is cleared, the servers' replies are held back; when it is set, they pass.
        discards_replies: While true, the servers' replies are discarded.
        reply_discarded: Set when the reply to a request was discarded. Replies to heartbeats do not count.
        refuses_connections: While true, new connections are closed at once.

    """

    def __init__(self, hosts: str) -> None:
        servers, slash, chroot = hosts.partition("/")
        self.replies = threading.Event()
        self.replies.set()
        self.discards_replies = False
        self.reply_discarded = threading.Event()
        self.refuses_connections = False
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listeners: list[socket.socket] = []
        addresses = []
        for server in servers.split(","):
            host, _, port = server.rpartition(":")
            listener = socket.create_server((_HOST, 0))
            self._listeners.append(listener)
            addresses.append(f"{_HOST}:{listener.getsockname()[1]}")
            threading.Thread(target=self._accept, args=(listener, (host, int(port))), daemon=True).start()
        self.hosts = ",".join(addresses) + slash + chroot

    def cut(self) -> None:
        """Pass nothing on in either direction, but keep the connections open."""
        self._open.clear()

    def mend(self) -> None:
        """Pass everything on again, including the data that arrived meanwhile."""
        self._open.set()

    def drop(self) -> None:
        """Close all connections. New ones are accepted."""
        pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            _close(*pair)

    def close(self) -> None:
        """Close all connections and listeners."""
        self._closed = True
        _close(*self._listeners)
        self._open.set()
        self.replies.set()
        self.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while not self._closed:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.refuses_connections:
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
        replies = threading.Thread(target=self._forward_replies, args=(server, client), daemon=True)
        replies.start()
        self._forward_requests(client, server)
        replies.join()
        # An HTTP client may open a connection for each request.
        self._pairs.discard((client, server))
        _close(client, server)

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._open.wait()
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _forward_replies(self, server: socket.socket, client: socket.socket) -> None:
        discarded = False
        with suppress(OSError):
            while data := server.recv(65536):
                self._open.wait()
                self.replies.wait()
                if not self.discards_replies and not discarded:
                    client.sendall(data)
                elif _answers_request(data):
                    # A connection that has lost a reply must not deliver a later one.
                    discarded = True
                    self.reply_discarded.set()
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _answers_request(data: bytes) -> bool:
    # Length and xid, four bytes each. The xid of a heartbeat is -2, that of a watch event -1.
    return len(data) >= _HEADER and int.from_bytes(data[4:_HEADER], signed=True) > 0


def _close(*sockets: socket.socket) -> None:
    for connection in sockets:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
