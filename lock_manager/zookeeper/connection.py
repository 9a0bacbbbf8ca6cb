"""TCP connections to one server: with TLS, which knows the server by its name, and for a four-letter word."""

from __future__ import annotations

import socket
import ssl
import time

from kazoo.hosts import collect_hosts

WORD_SECONDS = 2.0
"""For all of a four-letter word: connecting, TLS and the answer. Finding the address of a name comes before it."""

_LEAST_SECONDS = 0.1


def connect_with_tls(
    address: tuple[str, int], context: ssl.SSLContext, seconds: float, hostname: str | None
) -> ssl.SSLSocket:
    """Connect, shake hands, and look whether the certificate is for ``hostname``, if the context demands that.

    The socket keeps what is left of the time as its time-out.

    Raises:
        OSError: nobody answers in time; as ``ssl.SSLError``: one of the two does not trust the other.

    """
    give_up_at = time.monotonic() + seconds
    plain = socket.create_connection(address, seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(max(_LEAST_SECONDS, give_up_at - time.monotonic()))
        return context.wrap_socket(plain, server_hostname=hostname)
    except BaseException:
        plain.close()
        raise


def ask_word(
    address: tuple[str, int], word: bytes, tls: ssl.SSLContext | None = None, seconds: float = WORD_SECONDS
) -> bytes:
    """Send a four-letter word (``srvr``, ``mntr``, ``cons`` …) and return the answer, which may be empty.

    Raises:
        OSError: as :func:`connect_with_tls`; a ``TimeoutError`` if the server does not come to an end in time.

    """
    give_up_at = time.monotonic() + seconds
    connection = (
        connect_with_tls(address, tls, seconds, address[0]) if tls else socket.create_connection(address, seconds)
    )
    answer = bytearray()
    with connection:
        connection.sendall(word)
        while True:
            # Once for each piece: a server that sends a byte now and then would have us wait for ever.
            connection.settimeout(max(_LEAST_SECONDS, give_up_at - time.monotonic()))
            piece = connection.recv(65536)
            if not piece:
                return bytes(answer)
            answer += piece
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"the answer does not end within {seconds:g} s")


def refusal_of_all(hosts: str, seconds: float) -> str | None:
    """Return why no server accepts a TCP connection; None as soon as one does.

    All servers are tried in turn until the time is over: one that restarts may refuse at first.

    Args:
        hosts: Connection string.
        seconds: For all attempts; finding the addresses of names is not included.

    """
    members = members_of(hosts)
    give_up_at = time.monotonic() + seconds
    while True:
        for address in members:
            try:
                socket.create_connection(address, seconds / len(members)).close()
            except OSError as error:
                problem = f"{address[0]}:{address[1]}: {reason(error)}"
            else:
                return None
        if time.monotonic() >= give_up_at:
            return problem
        time.sleep(_LEAST_SECONDS)


def reason(error: BaseException) -> str:
    """Return what an error says of itself, the shortest that is there."""
    told = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(told or error) or type(error).__name__


def members_of(hosts: str) -> list[tuple[str, int]]:
    """Return the servers of a connection string, each once and without the chroot."""
    return list(dict.fromkeys((host, port) for host, port in collect_hosts(hosts)[0]))
