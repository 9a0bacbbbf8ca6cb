"""Security requirements of an embedded ZooKeeper: TLS with client certificates, SASL, or authentication schemes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROVIDERS = "org.apache.zookeeper.server.auth"


@dataclass(frozen=True, kw_only=True)
class ServerKerberos:
    """The Kerberos identity of a server.

    Attributes:
        principal: Principal of the server, ``zookeeper/HOST@REALM``.
        keytab: Keytab with the key of the principal.
        configuration: Kerberos configuration (``krb5.conf``).

    """

    principal: str
    keytab: Path
    configuration: Path


@dataclass(frozen=True, kw_only=True)
class ServerSecurity:
    """A server's requirements for its clients. By default there are none, and connections are not encrypted.

    With a key store the server has no port for plain connections, and clients must present a certificate.

    Attributes:
        key_store: PEM file with the server's private key (PKCS #8) and certificates. It enables TLS.
        trust_store: PEM file with the authorities that sign client certificates; required with ``key_store``.
        sasl_users: Passwords by user name, for the SASL mechanism DIGEST-MD5. Not in the repr.
        kerberos: Identity of the server, for the SASL mechanism GSSAPI instead of DIGEST-MD5.
        schemes: Authentication schemes (``sasl``, ``digest``, ``x509``). The server refuses a client that authenticates
            with none of them. If empty, it requires none.

    """

    key_store: Path | None = None
    trust_store: Path | None = None
    sasl_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    kerberos: ServerKerberos | None = None
    schemes: tuple[str, ...] = ()

    def configuration(self, port: int) -> str:
        """Return the lines of ``zoo.cfg`` for a server on ``port`` of 127.0.0.1."""
        port_setting = "secureClientPort" if self.key_store else "clientPort"
        lines = [f"{port_setting}={port}", f"{port_setting}Address=127.0.0.1"]
        if self.key_store:
            lines += [
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"authProvider.x509={_PROVIDERS}.X509AuthenticationProvider",
                f"ssl.keyStore.location={self.key_store}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self.trust_store}",
                "ssl.trustStore.type=PEM",
                "ssl.clientAuth=need",
            ]
        if self.sasl_users or self.kerberos:
            lines.append(f"authProvider.sasl={_PROVIDERS}.SASLAuthenticationProvider")
        if self.schemes:
            lines += ["enforce.auth.enabled=true", f"enforce.auth.schemes={','.join(self.schemes)}"]
        return "".join(f"{line}\n" for line in lines)

    def java_options(self, folder: Path) -> list[str]:
        """Return the server's Java options; write the users into ``folder``, readable only by the owner."""
        options = []
        if self.kerberos:
            module = "com.sun.security.auth.module.Krb5LoginModule"
            # The server accepts logins and starts none, so it needs its key, and no KDC.
            settings = {
                "useKeyTab": "true", "storeKey": "true", "isInitiator": "false", "useTicketCache": "false",
                "keyTab": self.kerberos.keytab, "principal": self.kerberos.principal,
            }  # fmt: skip
            options = [f"-Djava.security.krb5.conf={self.kerberos.configuration}"]
        elif self.sasl_users:
            module = f"{_PROVIDERS}.DigestLoginModule"
            settings = {f"user_{name}": password for name, password in self.sasl_users.items()}
        else:
            return []
        jaas = folder / "jaas.conf"
        lines = "".join(f'  {name}="{value}"\n' for name, value in settings.items())
        jaas.touch(mode=0o600)
        jaas.write_text(f"Server {{\n  {module} required\n{lines};\n}};\n", encoding="utf-8")
        return [*options, f"-Djava.security.auth.login.config={jaas}"]

    def probe_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for probes, with the server's own certificate; None for a plain connection."""
        if self.key_store is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.trust_store)
        context.load_cert_chain(self.key_store)
        return context
