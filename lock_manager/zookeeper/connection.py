"""TCP and TLS connections to one server, four-letter words, and the check that some server can be reached."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from kazoo.hosts import collect_hosts

from lock_manager.deadline import Deadline

WORD_SECONDS = 2.0
"""Time limit for a four-letter word: connection, TLS and response, in seconds. The resolver has no timeout."""

_MIN_SECONDS = 0.1

_UNKNOWN_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""The resolver's errors for a name without an address. Its other errors may be temporary, such as EAI_AGAIN."""


def connect_with_tls(
    address: tuple[str, int], context: ssl.SSLContext, seconds: float, hostname: str | None
) -> ssl.SSLSocket:
    """Connect, perform the TLS handshake, and verify the certificate's host name if the context requires it.

    The rest of the time becomes the timeout of the socket.

    Raises:
        OSError: The server refused or did not respond in time; ``ssl.SSLError`` if one side does not trust the other.

    """
    deadline = Deadline(seconds)
    plain_socket = socket.create_connection(address, seconds)
    try:
        plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain_socket.settimeout(max(_MIN_SECONDS, deadline.remaining()))
        return context.wrap_socket(plain_socket, server_hostname=hostname)
    except BaseException:
        plain_socket.close()
        raise


def ask_four_letter_word(address: tuple[str, int], word: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a four-letter word (``srvr``, ``mntr``, ``cons`` …) and return the response, which may be empty.

    Raises:
        OSError: As :func:`connect_with_tls`; a ``TimeoutError`` if the server does not finish its response in time.

    """
    deadline = Deadline(WORD_SECONDS)
    if tls is None:
        connection = socket.create_connection(address, WORD_SECONDS)
    else:
        connection = connect_with_tls(address, tls, WORD_SECONDS, address[0])
    response = bytearray()
    with connection:
        connection.sendall(word)
        while True:
            # Set for each chunk: a timeout for one chunk never expires if the server sends a byte now and then.
            connection.settimeout(max(_MIN_SECONDS, deadline.remaining()))
            chunk = connection.recv(65536)
            if not chunk:
                return bytes(response)
            response += chunk
            if deadline.remaining() == 0:
                raise TimeoutError(f"the response does not end within {WORD_SECONDS:g} s")


def unreachable_reason(hosts: str, seconds: float) -> str | None:
    """Return why no server can be reached; None if one accepts a TCP connection, or if the cause is uncertain.

    Only refused connections and unknown host names are certain. All servers are tried at the same moment, and again
    until the time is over, because a server that restarts may refuse at first. If all host names are unknown, the
    function returns at once. ``seconds`` limits each attempt, and the time in which refused attempts are repeated.
    """
    servers = members_of(hosts)
    deadline = Deadline(seconds)
    while True:
        errors = _connection_errors(servers, seconds)
        if not all(isinstance(error, ConnectionRefusedError) or _is_unknown_name(error) for error in errors):
            return None
        if all(map(_is_unknown_name, errors)):
            return _no_address_message(servers)
        if deadline.remaining() == 0:
            return "; ".join(
                f"{host}:{port}: {describe_error(error)}"
                for (host, port), error in zip(servers, errors, strict=True)
                if error is not None
            )
        time.sleep(_MIN_SECONDS)


def _connection_errors(servers: Sequence[tuple[str, int]], seconds: float) -> list[OSError | None]:
    """Connect to all servers at the same moment; return each error, None for a success or no result in time.

    Returns as soon as one server accepts.
    """
    results: queue.SimpleQueue[tuple[int, OSError | None]] = queue.SimpleQueue()

    def connect(index: int) -> None:
        try:
            socket.create_connection(servers[index], seconds).close()
            results.put((index, None))
        except OSError as error:
            results.put((index, error))

    for index in range(len(servers)):
        # A pool would wait for its threads, and the resolver has no timeout.
        threading.Thread(target=connect, args=(index,), name="sluice-reach", daemon=True).start()
    errors: list[OSError | None] = [None] * len(servers)
    deadline = Deadline(seconds + _MIN_SECONDS)
    with suppress(queue.Empty):
        for _ in servers:
            index, error = results.get(timeout=deadline.remaining())
            if error is None:
                break
            errors[index] = error
    return errors


def lookup_problem(servers: Sequence[tuple[str, int]]) -> tuple[bool, str]:
    """Return whether all host names are unknown, and a message about the failed lookup of their addresses."""
    errors = [_lookup_error(host, port) for host, port in servers]
    if all(map(_is_unknown_name, errors)):
        return True, _no_address_message(servers)
    reasons = dict.fromkeys(describe_error(error) for error in errors if error is not None)
    return False, f"the name service fails: {'; '.join(reasons) or 'a second lookup succeeded'}"


def _lookup_error(host: str, port: int) -> OSError | None:
    try:
        socket.getaddrinfo(host.strip(), port, 0, 0, socket.IPPROTO_TCP)
    except OSError as error:
        return error
    return None


def _is_unknown_name(error: OSError | None) -> bool:
    return isinstance(error, socket.gaierror) and error.errno in _UNKNOWN_NAME


def _no_address_message(servers: Sequence[tuple[str, int]]) -> str:
    return f"no address is known for the host name {', '.join(dict.fromkeys(host.strip() for host, _ in servers))}"


def describe_error(error: BaseException) -> str:
    """Return the most specific description that an error contains; its class name if it contains none."""
    description = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(description or error) or type(error).__name__


def members_of(hosts: str) -> list[tuple[str, int]]:
    """Return the servers of a connection string without duplicates and without the chroot."""
    return list(dict.fromkeys(collect_hosts(hosts)[0]))
