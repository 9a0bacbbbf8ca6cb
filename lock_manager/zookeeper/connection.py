"""TCP connections to one server: with TLS, which knows the server by its name, and for a four-letter word."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Sequence

from kazoo.hosts import collect_hosts

WORD_SECONDS = 2.0
"""For all of a four-letter word: connecting, TLS and the answer. Finding the address of a name comes before it."""

_LEAST_SECONDS = 0.1

_UNKNOWN_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""The resolver's answers that a name has no address. Its other errors may pass, such as EAI_AGAIN."""


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
    """Return why no server can be reached; None if one accepts a TCP connection, or if that is not certain.

    Certain are only refused connections and unknown host names. All servers are tried at the same moment, and again
    until the time is over: a server that restarts may refuse at first. Unknown names alone are returned at once.

    Args:
        hosts: Connection string.
        seconds: For each attempt, and for all attempts that are refused.

    """
    servers = members_of(hosts)
    give_up_at = time.monotonic() + seconds
    while True:
        errors = _connection_errors(servers, seconds)
        if not all(isinstance(error, ConnectionRefusedError) or is_unknown_name(error) for error in errors):
            return None
        if all(map(is_unknown_name, errors)):
            return no_address(servers)
        if time.monotonic() >= give_up_at:
            return "; ".join(
                f"{host}:{port}: {reason(error)}"
                for (host, port), error in zip(servers, errors, strict=True)
                if error is not None
            )
        time.sleep(_LEAST_SECONDS)


def _connection_errors(servers: Sequence[tuple[str, int]], seconds: float) -> list[OSError | None]:
    """Connect to all servers at the same moment; return each error, None for a success or no result in time.

    Returns as soon as one server accepts.
    """
    results: queue.SimpleQueue[tuple[int, OSError | None]] = queue.SimpleQueue()

    def connect(index: int) -> None:
        try:
            socket.create_connection(servers[index], seconds).close()
        except OSError as error:
            results.put((index, error))
        else:
            results.put((index, None))

    for index in range(len(servers)):
        # Not a pool, which would wait for its threads: the resolver has no time-out.
        threading.Thread(target=connect, args=(index,), name="sluice-reach", daemon=True).start()
    errors: list[OSError | None] = [None] * len(servers)
    give_up_at = time.monotonic() + seconds + _LEAST_SECONDS
    for _ in servers:
        try:
            index, error = results.get(timeout=max(0.0, give_up_at - time.monotonic()))
        except queue.Empty:
            break
        if error is None:
            break
        errors[index] = error
    return errors


def lookup_error(host: str, port: int) -> OSError | None:
    """Return why a host name has no address; None if it has one."""
    try:
        socket.getaddrinfo(host.strip(), port, 0, 0, socket.IPPROTO_TCP)
    except OSError as error:
        return error
    return None


def is_unknown_name(error: OSError | None) -> bool:
    """Whether the error is the resolver's answer that a host name has no address."""
    return isinstance(error, socket.gaierror) and error.errno in _UNKNOWN_NAME


def no_address(servers: Iterable[tuple[str, int]]) -> str:
    """Return the sentence for servers whose host names are all unknown."""
    return f"no address is known for the host name {', '.join(dict.fromkeys(host.strip() for host, _ in servers))}"


def reason(error: BaseException) -> str:
    """Return what an error says of itself, the shortest that is there."""
    told = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(told or error) or type(error).__name__


def members_of(hosts: str) -> list[tuple[str, int]]:
    """Return the servers of a connection string, each once and without the chroot."""
    return list(dict.fromkeys((host, port) for host, port in collect_hosts(hosts)[0]))
