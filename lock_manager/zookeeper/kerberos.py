"""The Kerberos login of a client: the mechanism GSSAPI (RFC 4752) for kazoo's SASL exchange.

pure-sasl has such a mechanism, for the package ``kerberos``. That package holds Python's global lock during requests to
the KDC, so a slow KDC would stop heartbeats and the commit guard, and it finds a keytab only through the environment of
the whole process. ``gssapi`` does neither.

GSSAPI obtains tickets from a keytab, and renews them there after half of their lifetime, at the next login.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gssapi
import puresasl.mechanisms
from kazoo.exceptions import ConnectionDropped, SASLException

from lock_manager.security import Security

_T = TypeVar("_T")

_MECHANISM = "SLUICE-GSSAPI"
"""Key in pure-sasl's registry, which is shared with other programs of the process. It is not sent to the server."""
_AUTHENTICATION_ONLY = b"\x01\x00\x00\x00"
"""No integrity or encryption of what follows, a buffer of 0 bytes, the identity of the ticket (RFC 4752, 3.1)."""
_OFFERS_AUTHENTICATION_ONLY = 0x01
_KRB5_BASE = 2**32 - 1765328384
_KDC_UNREACHABLE = {_KRB5_BASE + 156, _KRB5_BASE + 220}
"""KRB5_KDC_UNREACH and KRB5_REALM_CANT_RESOLVE."""
_TICKET_EXPIRED = _KRB5_BASE + 32
"""KRB5KRB_AP_ERR_TKT_EXPIRED."""
_NO_CACHE = _KRB5_BASE + 195
"""KRB5_FCC_NOFILE: the error of a keytab from which no ticket could be put into the cache in memory."""


class Login:
    """The client's part of one exchange with one server. The constructor sends requests to the KDC.

    Args:
        security: Settings of the client.
        host: Name of the server in the host list.

    Attributes:
        description: Principals of client and server, and the lifetime of the ticket.

    Raises:
        SASLException: There is no valid ticket of the client, or no ticket for the server.
        ConnectionDropped: No KDC answers.

    """

    def __init__(self, security: Security, host: str) -> None:
        name = security.kerberos_principal
        client = f" of {name}" if name else ""
        store = None
        if security.kerberos_keytab is not None:
            # A cache in memory keeps these tickets apart from the user's.
            cache = f"MEMORY:sluice:{security.kerberos_keytab}:{name or ''}"
            store = {"client_keytab": security.kerberos_keytab, "ccache": cache}
        source = "the ticket cache" if security.kerberos_keytab is None else "the keytab"

        def acquire_ticket() -> Any:
            principal = gssapi.Name(name, gssapi.NameType.kerberos_principal) if name else None
            return gssapi.Credentials(usage="initiate", name=principal, store=store)

        def start_exchange() -> bytes | None:
            service = gssapi.Name(f"{security.kerberos_service}@{host}", gssapi.NameType.hostbased_service)
            flags = [gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity]
            self._context = gssapi.SecurityContext(usage="initiate", name=service, creds=credentials, flags=flags)
            token: bytes | None = self._context.step()
            # krb5.conf may replace the host name by another one. The realm is empty if the KDC chooses it.
            server = str(service.canonicalize(gssapi.MechType.kerberos)).rstrip("@")
            self.description = (
                f"Kerberos, {credentials.name} to {server}; the ticket from {source} is valid for "
                f"{credentials.lifetime} s"
            )
            return token

        credentials = _call(f"{source} gives no ticket{client}", acquire_ticket)
        self._problem = f"no login to the server {security.kerberos_service}/{host}"
        self._first_token = _call(self._problem, start_exchange)

    def sasl_options(self) -> dict[str, Any]:
        """Return the value of kazoo's ``sasl_options`` for this exchange."""
        puresasl.mechanisms.mechanisms[_MECHANISM] = _Mechanism
        return {"mechanism": _MECHANISM, "login": self}

    def respond(self, challenge: bytes | None) -> tuple[bytes, bool]:
        """Return the response to a challenge of the server, and whether it is the last one.

        Raises:
            SASLException: The server does not prove its identity, or does not use Kerberos.

        """
        if self._first_token:
            token, self._first_token = self._first_token, None
            return token, False
        if not challenge:
            raise SASLException(f"{self._problem}: it does not use Kerberos")
        if not self._context.complete:
            return _call(self._problem, lambda: self._context.step(challenge)) or b"", False
        offer = _call(self._problem, lambda: self._context.unwrap(challenge)).message
        if not offer or not offer[0] & _OFFERS_AUTHENTICATION_ONLY:
            raise SASLException(f"{self._problem}: it demands integrity or encryption, which ZooKeeper does not have")
        return _call(self._problem, lambda: self._context.wrap(_AUTHENTICATION_ONLY, encrypt=False)).message, True


class _Mechanism(puresasl.mechanisms.Mechanism):  # type: ignore[misc]
    def __init__(self, sasl: Any, login: Login) -> None:
        super().__init__(sasl)
        self._login = login

    def process(self, challenge: bytes | None = None) -> bytes:
        response, self.complete = self._login.respond(challenge)
        return response


def _call(problem: str, request: Callable[[], _T]) -> _T:
    """Return the result of a request to GSSAPI.

    Raises:
        SASLException: The request failed. The message begins with ``problem``.
        ConnectionDropped: No KDC answers.

    """
    try:
        return request()
    except gssapi.exceptions.GSSError as error:
        failure = error
    # Raised below and without the error as context, because its text contains numbers.
    reason = "; ".join(failure.get_all_statuses(failure.min_code, is_maj=False))
    if failure.min_code in _KDC_UNREACHABLE:
        raise ConnectionDropped(f"Kerberos: {reason}")
    if isinstance(failure, gssapi.exceptions.ExpiredCredentialsError) or failure.min_code == _TICKET_EXPIRED:
        reason = "the ticket has expired"
    elif failure.min_code == _NO_CACHE:
        reason = "it has no key of the principal"
    elif reason == "Success":
        # The cause is not an error of Kerberos, but one of GSSAPI, such as a malformed token.
        reason = "; ".join(failure.get_all_statuses(failure.maj_code, is_maj=True))
    raise SASLException(f"{problem}: {reason}")
