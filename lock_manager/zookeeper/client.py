"""A kazoo client with corrected behaviour where a lock relies on it.

Only this module uses kazoo's internals. pyproject.toml limits kazoo's version accordingly, and tests against a real
server check each correction.
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
from kazoo.security import ACL, make_acl

from lock_manager.errors import SettingsError
from lock_manager.security import Security
from lock_manager.zookeeper.connection import connect_with_tls, describe_error, lookup_problem

_CLOSED_EARLY = "the server closed the connection without a response, as it does if it demands TLS"
_CLOSED_IN_SASL = "the server closed the connection in the SASL exchange, as old servers do with wrong credentials"
_TICKET_REFUSED = "the server refuses the ticket, as with an old keytab, another time, or another SASL mechanism"
_MAX_SASL_ROUNDS = 5
"""DIGEST-MD5 takes three rounds. A server without a list of users never ends the exchange and reports no error."""
_MIN_HANDSHAKE_SECONDS = 2.0
"""Minimum time limit for the response of a slow server, in seconds: a new session is a quorum write."""
_CREDENTIALS_REFUSED = (AuthFailedError, SessionClosedRequireSaslError, SASLException)
_TLS_CUT_SHORT = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
"""TLS errors that the network may also cause."""

_PERMISSIONS = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with replaced TCP and TLS connections.

    * Each TCP connect has a time limit. Kazoo waits the whole session timeout for a dead host.
    * TLS verifies the host name, which kazoo does not do by default. It trusts only the given authorities; kazoo adds
      the system's. A socket whose handshake failed is closed.
    """

    def __init__(self, connect_seconds: float, security: Security) -> None:
        super().__init__()
        self._connect_seconds = connect_seconds
        self._security = security

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **kwargs: Any
    ) -> Any:
        seconds = self._connect_seconds if timeout is None else min(timeout, self._connect_seconds)
        if not self._security.tls:
            return super().create_connection(address, hostname=hostname, timeout=seconds, **kwargs)
        try:
            # Read the files for each connection: certificates are renewed while drivers run.
            context = self._security.tls_context()
        except SettingsError as error:
            raise ConnectionDropped(str(error)) from error
        return connect_with_tls(address, context, seconds, hostname)

    def select(self, readers: list[Any], writers: list[Any], errors: list[Any], timeout: float | None = None) -> Any:
        # A socket does not show data that TLS has already decrypted. Kazoo would delay a response until the next one.
        ready = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        return (ready, [], []) if ready else super().select(readers, writers, errors, timeout)


class _MaskedLog(logging.LoggerAdapter[logging.Logger]):
    """Kazoo's log without secrets: at DEBUG kazoo logs each request, including passwords."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            super().log(level, msg, *map(_mask, args), **kwargs)


def _mask(argument: object) -> object:
    if isinstance(argument, Auth | SASL | Connect):
        return f"{type(argument).__name__}(…)"
    # Kazoo logs the session's password as hexadecimal digits. Anyone who knows it can take over the session.
    return "…" if isinstance(argument, bytes) else argument


def acl_of(security: Security) -> list[ACL] | None:
    """Return kazoo's ACL for new znodes; None for kazoo's default, which is open to all."""
    entries = security.acl_of_new_znodes()
    if entries is None:
        return None
    return [
        make_acl(entry.scheme, entry.id, **{_PERMISSIONS[letter]: True for letter in entry.permissions})
        for entry in entries
    ]


class Client(KazooClient):  # type: ignore[misc]
    """A kazoo client of one ensemble.

    * One unreachable server of several takes only a part of the session's time. The same applies to a server that
      accepts the connection and sends no response, as servers sometimes do to a returning session while they start.
    * ``on_granted`` gets the session timeout in seconds that the server *granted*, before the state becomes CONNECTED.
      Kazoo stores only the requested one.
    * A refusal of the credentials ends the client and sets :attr:`refusal`. TLS handshakes and Kerberos logins that
      fail with every server before the first session do the same. Kazoo would try forever.
    * A server that closes the connection is tried again, also during a SASL exchange. Kazoo would assume a refusal.
    * New znodes have the configured ACL, also in transactions.

    Attributes:
        problem: Error of the last connection attempt, None if it succeeded.
        is_unresolvable: Whether the resolver answered in the last attempt that no host name has an address.
        refusal: Why this client has given up, as ``EnsembleRefusedError.refusal``, or None.
        login: Principals of the last Kerberos login; None without Kerberos.

    """

    def __init__(
        self, hosts: str, session_timeout_seconds: float, on_granted: Callable[[float], None], security: Security
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
            logger=_MaskedLog(logging.getLogger("kazoo.client"), {}),
            default_acl=acl_of(security),
            auth_data=security.auth_data(),
            sasl_options=security.sasl_options(),
            use_ssl=security.tls,
        )
        self.problem: str | None = None
        self.refusal: str | None = None
        self.is_unresolvable = False
        self.login: str | None = None
        self._security = security
        self._server_failures: dict[tuple[str, int], str] = {}
        self._sasl_rounds = 0
        self._session_seconds = session_timeout_seconds
        connection = self._connection
        invoke, connect, submit = connection._invoke, connection._connect, connection._submit  # noqa: SLF001

        def invoke_and_report(timeout: float, request: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(request, Connect):
                # Kazoo waits for the whole requested timeout, which may be many times the granted one.
                timeout = min(timeout, max(_MIN_HANDSHAKE_SECONDS, self._session_seconds / (3 * servers)))
            # ConnectionHandler._connect keeps the granted timeout in a local variable. The server's reply passes here.
            reply = invoke(timeout, request, *args, **kwargs)
            if isinstance(reply, tuple) and (milliseconds := getattr(reply[0], "time_out", 0)) > 0:
                self._session_seconds = milliseconds / 1000
                on_granted(self._session_seconds)
            return reply

        def submit_and_count(request: Any, *args: Any) -> None:
            self._sasl_rounds += isinstance(request, SASL)
            if self._sasl_rounds > _MAX_SASL_ROUNDS:
                raise SASLException("the exchange does not end")
            submit(request, *args)

        def connect_and_classify(host: str, address: str, port: int) -> Any:
            self._sasl_rounds = 0
            if security.auth == "kerberos":
                self._log_in(host, port)
            try:
                timeouts = connect(host, address, port)
            except Exception as error:
                replacement = self._error_for_kazoo(error, (host, port))
                if replacement is None:
                    raise
                raise replacement from error
            self.problem = None
            self._server_failures.clear()
            return timeouts

        connection._invoke = invoke_and_report  # noqa: SLF001
        connection._connect = connect_and_classify  # noqa: SLF001
        connection._submit = submit_and_count  # noqa: SLF001
        resolve = connection._expand_client_hosts  # noqa: SLF001
        connection._expand_client_hosts = lambda: self._resolve(resolve)  # noqa: SLF001

    def _resolve(self, resolve: Callable[[], list[Any]]) -> list[Any]:
        """Resolve the host names and record whether none has an address: kazoo would then try forever."""
        addresses = resolve()
        if addresses:
            self.is_unresolvable = False
        else:
            self.is_unresolvable, self.problem = lookup_problem(self.hosts)
        return addresses

    def _log_in(self, host: str, port: int) -> None:
        """Obtain the Kerberos tickets for a server.

        It is done before the connection: the server prolongs the session at each connection, so a client without a
        ticket would keep its contenders alive forever.
        """
        self.problem = "Kerberos: the KDC has not answered yet"
        try:
            from lock_manager.zookeeper.kerberos import Login  # noqa: PLC0415 (gssapi is optional)

            login = Login(self._security, host)
        except (ImportError, SASLException) as error:
            raise self._server_failure(f"Kerberos: {error}", (host, port)) from error
        except ConnectionDropped as error:
            self.problem = str(error)
            raise
        self.login = login.description
        self._connection.sasl_options = login.sasl_options()

    @property
    def is_dead(self) -> bool:
        """Whether kazoo's connection thread has ended. No request gets a response afterwards."""
        thread = self._connection._connection_routine  # noqa: SLF001
        return thread is not None and not thread.is_alive()

    def _error_for_kazoo(self, error: Exception, server: tuple[str, int]) -> Any:
        """Return the error that kazoo gets instead of ``error`` for a failed attempt; None to keep ``error``.

        AuthFailedError ends kazoo's attempts, ConnectionDropped does not.
        """
        causes = list(_chain(error))
        tls_error = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
        if isinstance(error, AuthFailedError) and any(isinstance(cause, ConnectionDropped) for cause in causes):
            self.problem = _CLOSED_IN_SASL
            return ConnectionDropped(_CLOSED_IN_SASL)
        if isinstance(error, _CREDENTIALS_REFUSED):
            self.problem = self.refusal = type(error).__name__
            if self._security.auth == "kerberos":
                reasons = (str(cause) for cause in causes if isinstance(cause, SASLException))
                self.problem = self.refusal = f"Kerberos: {next(reasons, _TICKET_REFUSED)}"
            return AuthFailedError(self.refusal)
        if tls_error is None or isinstance(tls_error, _TLS_CUT_SHORT):
            self._server_failures.pop(server, None)
            was_closed = any(isinstance(cause, ConnectionResetError) for cause in causes) or "broken" in str(error)
            self.problem = _CLOSED_EARLY if was_closed and not self.use_ssl else describe_error(tls_error or causes[-1])
            return None
        return self._server_failure(f"TLS: {describe_error(tls_error)}", server)

    def _server_failure(self, problem: str, server: tuple[str, int]) -> Any:
        """Record that a server cannot be used; return the error for kazoo.

        It is final if every server has failed in this way before the first session.
        """
        self.problem = self._server_failures[server] = problem
        if self._session_id or len(self._server_failures) < len(self.hosts):
            return ConnectionDropped(problem)
        self.refusal = problem
        return AuthFailedError(problem)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
