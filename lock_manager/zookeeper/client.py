"""A kazoo client with mended behaviour where a lock must be able to rely on it.

This is the one module that uses kazoo's internals. pyproject.toml bounds kazoo's version accordingly, and tests against
a real server check each mend.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SASLException, SessionClosedRequireSaslError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import SASL, Auth, Connect
from kazoo.security import ACL, Id, Permissions

from lock_manager.errors import SettingsError
from lock_manager.security import Security
from lock_manager.zookeeper.connection import connect_with_tls, is_unknown_name, lookup_error, no_address, reason

_CLOSED_EARLY = "the server closed the connection before it answered, as it does if it demands TLS"
_CLOSED_IN_SASL = "the server closed the connection in the SASL exchange, as old ones do with wrong credentials"
_MOST_SASL_ROUNDS = 5
"""DIGEST-MD5 takes three; a server without users of its own answers for ever, and says nothing."""
_LEAST_HANDSHAKE_SECONDS = 2.0
"""A server that is slow, but there, gets at least this long to answer: a new session is a write of the quorum."""
_CREDENTIALS_REFUSED = (AuthFailedError, SessionClosedRequireSaslError, SASLException)
_TLS_CUT_SHORT = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
"""TLS errors that may as well be the network's."""

_PERMISSIONS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with connections of our own.

    * One TCP connect is bounded: kazoo gives a dead host the whole session time-out.
    * TLS verifies the host name, which kazoo does not by default, trusts nobody beside the given authorities, to which
      kazoo adds the system's, and closes a socket whose handshake failed.
    """

    def __init__(self, connect_seconds: float, security: Security) -> None:
        super().__init__()
        self._connect_seconds = connect_seconds
        self._security = security

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **kwargs: Any
    ) -> Any:
        bound = self._connect_seconds if timeout is None else min(timeout, self._connect_seconds)
        if not self._security.tls:
            return super().create_connection(address, hostname=hostname, timeout=bound, **kwargs)
        try:
            # Of the files as they are now: certificates are renewed while drivers run.
            context = self._security.tls_context()
        except SettingsError as error:
            raise ConnectionDropped(str(error)) from error
        return connect_with_tls(address, context, bound, hostname)

    def select(self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float | None = None) -> Any:
        # What TLS has decrypted already does not show on the socket: kazoo would let an answer lie until the next one.
        decrypted = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        return (decrypted, [], []) if decrypted else super().select(readers, writers, others, timeout)


class _Discreet(logging.LoggerAdapter[logging.Logger]):
    """Kazoo's log without what it is not to tell: at DEBUG it writes down each request, passwords included."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            super().log(level, msg, *map(_masked, args), **kwargs)


def _masked(argument: object) -> object:
    if isinstance(argument, Auth | SASL | Connect):
        return f"{type(argument).__name__}(…)"
    # The password of a session, with which anybody could take it over, is written as hexadecimal digits.
    return "…" if isinstance(argument, bytes) else argument


def acl_of(security: Security) -> list[ACL] | None:
    """Return the ACL of new znodes as kazoo takes it; None for kazoo's own, which is open to all."""
    entries = security.new_znodes()
    if entries is None:
        return None
    return [
        ACL(sum(_PERMISSIONS[letter] for letter in set(entry.permissions)), Id(entry.scheme, entry.id))
        for entry in entries
    ]


class Client(KazooClient):  # type: ignore[misc]
    """A kazoo client of one ensemble.

    * One unreachable server of several takes a part of the session's time, not all of it, and so does one that takes
      the connection and says nothing, as a server does now and then to a session that comes back while it starts.
    * The session time-out that the server *granted* is told: kazoo keeps only the one that it asked for.
    * A refusal of the credentials ends it, with :attr:`refusal`, and so does, before the first session, a TLS handshake
      that fails with every server: kazoo would try for ever. A server that hangs up is tried again, also in the middle
      of a SASL exchange, which kazoo takes for a refusal.
    * What it creates has the ACL that is asked for, in transactions as well.

    Args:
        hosts: ``host:port,host:port[/chroot]``.
        session_timeout_seconds: to ask for.
        granted: called with what the server granted, in seconds, before the state becomes CONNECTED.
        security: credentials, TLS and the ACL of new znodes.

    Attributes:
        problem: what the last attempt to connect met, None if it succeeded.
        is_unresolvable: Whether the resolver answered in the last attempt that no host name has an address.
        refusal: why this client has given up, as ``EnsembleRefusedError.refusal``, or None.

    """

    def __init__(
        self,
        hosts: str,
        session_timeout_seconds: float,
        granted: Callable[[float], None],
        security: Security,
    ) -> None:
        servers = hosts.partition("/")[0].count(",") + 1
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_seconds,
            handler=_Handler(max(0.5, session_timeout_seconds / (3 * servers)), security),
            # Kazoo would wait up to a minute between attempts: longer than most sessions live.
            connection_retry={
                "max_tries": -1,
                "delay": 0.05,
                "backoff": 2,
                "max_delay": min(1.0, session_timeout_seconds / 6),
            },
            logger=_Discreet(logging.getLogger("kazoo.client"), {}),
            default_acl=acl_of(security),
            auth_data=security.auth_data(),
            sasl_options=security.sasl_options(),
            use_ssl=security.tls,
        )
        self.problem: str | None = None
        self.refusal: str | None = None
        self.is_unresolvable = False
        self._distrust: dict[tuple[str, int], str] = {}
        self._sasl_rounds = 0
        self._session_seconds = session_timeout_seconds
        connection = self._connection
        invoke, connect, submit = connection._invoke, connection._connect, connection._submit  # noqa: SLF001

        def invoke_and_tell(timeout: float, request: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(request, Connect):
                # Kazoo waits for all that it asked for, which may be many times what was granted.
                timeout = min(timeout, max(_LEAST_HANDSHAKE_SECONDS, self._session_seconds / (3 * servers)))
            # The granted time-out is a local variable of ConnectionHandler._connect; the server's reply passes here.
            reply = invoke(timeout, request, *args, **kwargs)
            if isinstance(reply, tuple) and (milliseconds := getattr(reply[0], "time_out", 0)) > 0:
                self._session_seconds = milliseconds / 1000
                granted(self._session_seconds)
            return reply

        def submit_and_count(request: Any, *args: Any) -> None:
            self._sasl_rounds += isinstance(request, SASL)
            if self._sasl_rounds > _MOST_SASL_ROUNDS:
                raise SASLException("the exchange comes to no end")
            submit(request, *args)

        def connect_and_judge(host: str, address: str, port: int) -> Any:
            self._sasl_rounds = 0
            try:
                timeouts = connect(host, address, port)
            except Exception as error:
                verdict = self._judged(error, (host, port))
                if verdict is None:
                    raise
                raise verdict from error
            self.problem = None
            self._distrust.clear()
            return timeouts

        connection._invoke = invoke_and_tell  # noqa: SLF001
        connection._connect = connect_and_judge  # noqa: SLF001
        connection._submit = submit_and_count  # noqa: SLF001
        resolve = connection._expand_client_hosts  # noqa: SLF001
        connection._expand_client_hosts = lambda: self._addresses(resolve)  # noqa: SLF001

    def _addresses(self, resolve: Callable[[], list[Any]]) -> list[Any]:
        """Note whether a host name has an address: kazoo leaves the others out, and tries for ever if none is left."""
        addresses = resolve()
        if not addresses:
            errors = [lookup_error(host, port) for host, port in self.hosts]
            self.is_unresolvable = all(map(is_unknown_name, errors))
            failures = "; ".join(dict.fromkeys(reason(error) for error in errors if error is not None))
            self.problem = no_address(self.hosts) if self.is_unresolvable else f"the name service fails: {failures}"
        else:
            self.is_unresolvable = False
        return addresses

    @property
    def dead(self) -> bool:
        """Whether kazoo's connection thread has ended, by an error of its own: nothing will ever answer again."""
        thread = self._connection._connection_routine  # noqa: SLF001
        return thread is not None and not thread.is_alive()

    def _judged(self, error: Exception, server: tuple[str, int]) -> Any:
        """Return what kazoo is to make of a failed attempt, if not what it makes of ``error`` itself.

        AuthFailedError ends its trying, ConnectionDropped does not.
        """
        causes = list(_chain(error))
        tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
        if isinstance(error, AuthFailedError) and any(isinstance(each, ConnectionDropped) for each in causes):
            self.problem = _CLOSED_IN_SASL
            return ConnectionDropped(_CLOSED_IN_SASL)
        if isinstance(error, _CREDENTIALS_REFUSED):
            self.problem = self.refusal = type(error).__name__
            return AuthFailedError(self.refusal)
        if tls is None or isinstance(tls, _TLS_CUT_SHORT):
            self._distrust.pop(server, None)
            closed = any(isinstance(each, ConnectionResetError) for each in causes) or "broken" in str(error)
            self.problem = _CLOSED_EARLY if closed and not self.use_ssl else reason(tls or causes[-1])
            return None
        self.problem = self._distrust[server] = f"TLS: {reason(tls)}"
        if self._session_id or len(self._distrust) < len(self.hosts):
            return None
        self.refusal = self.problem
        return AuthFailedError(self.refusal)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
