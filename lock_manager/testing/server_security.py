"""What an embedded ZooKeeper security of its clients: TLS with a certificate, SASL, or a scheme of authentication."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PROVIDERS = "org.apache.zookeeper.server.auth"


@dataclass(frozen=True, kw_only=True)
class ServerSecurity:
    """What a server security; without arguments nothing, and it speaks plainly.

    With a key store there is no port for plain connections, and clients have to show a certificate of their own.

    Attributes:
        key_store: PEM file with the server's private key (PKCS #8) and certificates. TLS, if given.
        trust_store: PEM file with the authorities that may vouch for clients.
        sasl_users: passwords by user name, of the SASL mechanism DIGEST-MD5. Not in the repr.
        schemes: whom a session is for: clients that are known by one of these schemes (``sasl``, ``digest``,
            ``x509``), all others are refused. Empty: anybody.

    """

    key_store: Path | None = None
    trust_store: Path | None = None
    sasl_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    schemes: tuple[str, ...] = ()

    def configuration(self, port: int) -> str:
        """Return the lines of ``zoo.cfg`` for a server on ``port`` of 127.0.0.1."""
        secure = "secureClientPort" if self.key_store else "clientPort"
        lines = [f"{secure}={port}", f"{secure}Address=127.0.0.1"]
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
        if self.sasl_users:
            lines.append(f"authProvider.sasl={_PROVIDERS}.SASLAuthenticationProvider")
        if self.schemes:
            lines += ["enforce.auth.enabled=true", f"enforce.auth.schemes={','.join(self.schemes)}"]
        return "".join(f"{line}\n" for line in lines)

    def java_options(self, folder: Path) -> list[str]:
        """Return the server's Java options; the users are written into ``folder``, readable to nobody else."""
        if not self.sasl_users:
            return []
        jaas = folder / "jaas.conf"
        users = "".join(f'  user_{name}="{password}"\n' for name, password in self.sasl_users.items())
        jaas.touch(mode=0o600)
        jaas.write_text(f"Server {{\n  {_PROVIDERS}.DigestLoginModule required\n{users};\n}};\n", encoding="utf-8")
        return [f"-Djava.security.auth.login.config={jaas}"]

    def probe(self) -> ssl.SSLContext | None:
        """Return how to ask the server whether it serves: as itself, for its certificate is at hand. None: plainly."""
        if self.key_store is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.trust_store)
        context.load_cert_chain(self.key_store)
        return context
