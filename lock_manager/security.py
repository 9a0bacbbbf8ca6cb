"""Credentials, TLS and ACLs: how a client proves who it is, protects its connection, and shares its znodes.

Settings come from keywords, the environment, a JSON file or a JSON secret at AWS. They never come from a URL or a
command line, which other users of the machine and every log can see. No secret is in a repr, in a message or in kazoo's
log.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lock_manager.errors import SettingsError

#: Prefix of the environment variables for credentials, TLS and ACLs.
ENVIRONMENT_PREFIX = "SLUICE_ZK_"
#: Variable with the ARN of a secret in AWS Secrets Manager, which has all of them as JSON.
SECRET = "SLUICE_ZK_SECRET"  # noqa: S105 (the variable's name)
_SECRET_FILE = "SLUICE_ZK_SECRET_FILE"  # noqa: S105 (likewise)
_HOW = "docs/security.md explains"
_FROM_FILE = ("password", "tls_key_password")
_TLS_FIELDS = ("tls_ca", "tls_certificate", "tls_key", "tls_key_password")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# An x509 id is a distinguished name: it has commas, and ends where the permissions do.
_ACL_ENTRY = re.compile(r"(?P<scheme>[a-z][a-z0-9]*):(?P<id>.*?):(?P<permissions>[cdrwa]+)(?:,(?=[a-z][a-z0-9]*:)|$)")


@dataclass(frozen=True)
class AclEntry:
    """What somebody may do with a znode.

    Attributes:
        scheme: how the server knows whom it is about, such as ``x509``.
        id: whom, in that scheme.
        permissions: letters of ``cdrwa``: create, delete, read, write, administer.

    """

    scheme: str
    id: str
    permissions: str


#: All rights for whom the server knows us as.
_FOR_US = AclEntry("auth", "", "cdrwa")


@dataclass(frozen=True, kw_only=True)
class Security:
    """Credentials, TLS and the ACL of new znodes. Without arguments: none of them, as ZooKeeper is by default.

    Attributes:
        auth: ``sasl`` (mechanism DIGEST-MD5: the server knows its users) or ``digest`` (the server believes any name;
            it means something only to ACLs, and the password crosses the network as it is: use it with TLS).
        username: for either.
        password: for either. Not in the repr.
        tls: encrypt, and verify the server's certificate, its host name included. Implied by the next four.
        tls_ca: authorities that may vouch for a server: path of a PEM file, or PEM text; the system's when not given.
        tls_certificate: our own certificate, with its chain: path of a PEM file, or PEM text.
        tls_key: its private key: path of a PEM file, or PEM text. Not in the repr.
        tls_key_password: if the key is encrypted. Not in the repr.
        acl: of every znode that we create, as in zkCli: ``scheme:id:permissions``, comma-separated. When not given:
            ``auth::cdrwa`` (all rights for whom the server knows us as, nobody else) with credentials or a client
            certificate, else open to all (``world:anyone:cdrwa``).

    Raises:
        SettingsError: one of them is malformed, is missing its other half, or names a file that cannot be used.

    """

    auth: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = field(default=None, repr=False)
    tls_key: str | None = field(default=None, repr=False)
    tls_key_password: str | None = field(default=None, repr=False)
    acl: str | None = None

    def __post_init__(self) -> None:
        """Validate, which reads the PEM files."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "tls" and value is not None and (not isinstance(value, str) or not value.strip()):
                raise SettingsError(f"security setting {each.name} must be a text that is not empty: {_HOW}")
        if not isinstance(self.tls, bool):
            raise SettingsError(f"security setting tls={self.tls!r}: must be True or False")
        self._check_credentials()
        if any(getattr(self, name) is not None for name in _TLS_FIELDS):
            object.__setattr__(self, "tls", True)
        if (self.tls_certificate is None) != (self.tls_key is None):
            lacking = "tls_key" if self.tls_key is None else "tls_certificate"
            raise SettingsError(f"half a key pair: {lacking} is not set; give tls_certificate and tls_key: {_HOW}")
        if self.tls_key_password is not None and self.tls_key is None:
            raise SettingsError(f"tls_key_password is set and tls_key is not: {_HOW}")
        if self.tls:
            self.tls_context()
        self.new_znodes()

    def _check_credentials(self) -> None:
        if self.auth not in (None, "digest", "sasl"):
            raise SettingsError(f"security setting auth={self.auth!r}: must be sasl or digest")
        for name in ("auth", "username", "password"):
            given = [each for each in ("auth", "username", "password") if getattr(self, each) is not None]
            if given and name not in given:
                raise SettingsError(f"half of the credentials: {given[0]} is set and {name} is not: {_HOW}")
        if self.username is not None and ":" in self.username:
            raise SettingsError("security setting username: must have no colon, which would end it")
        if self.auth == "sasl" and importlib.util.find_spec("puresasl") is None:
            raise SettingsError("auth=sasl needs the package pure-sasl: pip install '.[sasl]' in a clone of Sluice")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Security:
        """Read ``SLUICE_ZK_AUTH``, ``SLUICE_ZK_TLS_CA`` and so on: one variable for each attribute.

        ``SLUICE_ZK_PASSWORD_FILE`` and ``SLUICE_ZK_TLS_KEY_PASSWORD_FILE`` name a file instead.
        ``SLUICE_ZK_SECRET_FILE`` names a JSON file, ``SLUICE_ZK_SECRET`` an AWS secret (``arn:aws:secretsmanager:…``,
        extra ``aws``, asked for once per process): an object with any of the attributes as keys, such as
        ``{"auth": "sasl", "username": "etl", "password": "…"}``. Single variables win over it.

        Raises:
            SettingsError: a value is malformed, or a file or secret cannot be read.

        """
        environ = os.environ if environ is None else environ
        names = [each.name for each in fields(cls)]
        variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in names}
        found = _document(environ)
        found |= {name: environ[variable] for name, variable in variables.items() if variable in environ}
        for name in _FROM_FILE:
            variable = f"{variables[name]}_FILE"
            if variable in environ:
                if variables[name] in environ:
                    raise SettingsError(f"{variable} and {variables[name]} are both set: unset one of them")
                found[name] = _read(environ[variable], variable).rstrip("\r\n")
        if isinstance(found.get("tls"), str):
            switch = _SWITCH.get(found["tls"].lower())
            if switch is None:
                raise SettingsError(f"{variables['tls']}={found['tls']!r}: must be 1 or 0")
            found["tls"] = switch
        return cls(**found)

    # -- for the client ------------------------------------------------------------------------------------------

    def tls_context(self) -> ssl.SSLContext:
        """Return how to speak TLS, of the files as they are now: TLS 1.2 or later, host names verified.

        Raises:
            SettingsError: a file is missing or no such thing, or key and certificate do not belong together.

        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.tls_ca is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            authorities = _pem(self.tls_ca, "tls_ca")
            try:
                context.load_verify_locations(cadata=authorities)
            except (ssl.SSLError, ValueError) as error:
                raise SettingsError("tls_ca holds no certificate in PEM, or one that is broken") from error
        if self.tls_certificate is not None and self.tls_key is not None:
            with ExitStack() as stack:
                certificate = stack.enter_context(_pem_file(self.tls_certificate, "tls_certificate"))
                key = stack.enter_context(_pem_file(self.tls_key, "tls_key"))
                try:
                    # Without any password OpenSSL would ask at the terminal.
                    context.load_cert_chain(certificate, key, password=self.tls_key_password or "")
                except (ssl.SSLError, ValueError) as error:
                    raise SettingsError(
                        "tls_certificate and tls_key are no pair of certificate and private key in PEM, or "
                        "tls_key_password is missing or wrong"
                    ) from error
        return context

    def sasl_options(self) -> dict[str, str] | None:
        """Return what kazoo's ``sasl_options`` takes."""
        if self.auth != "sasl" or self.username is None or self.password is None:
            return None
        return {"mechanism": "DIGEST-MD5", "username": self.username, "password": self.password}

    def auth_data(self) -> list[tuple[str, str]] | None:
        """Return what kazoo's ``auth_data`` takes."""
        return [("digest", f"{self.username}:{self.password}")] if self.auth == "digest" else None

    def new_znodes(self) -> list[AclEntry] | None:
        """Return who may do what with new znodes; None: everybody everything.

        Raises:
            SettingsError: ``acl`` is malformed.

        """
        if self.acl is not None:
            return list(_parsed_acl(self.acl))
        return [_FOR_US] if self.auth or self.tls_certificate else None


def _document(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the JSON file or secret says, empty if none is named."""
    if SECRET in environ and _SECRET_FILE in environ:
        raise SettingsError(f"{SECRET} and {_SECRET_FILE} are both set: unset one of them")
    if SECRET in environ:
        from lock_manager.aws_secret import fetch  # noqa: PLC0415 (boto3 is for those who use it)

        where, text = f"the secret {environ[SECRET]}", fetch(environ[SECRET])
    elif _SECRET_FILE in environ:
        where, text = f"the file that {_SECRET_FILE} names", _read(environ[_SECRET_FILE], _SECRET_FILE)
    else:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        # Not even its position is told, and not as a cause: that error carries the whole text.
        raise SettingsError(f"{where} is no JSON") from None
    names = [each.name for each in fields(Security)]
    if not isinstance(found, dict):
        raise SettingsError(f"{where} must be a JSON object with some of the keys {', '.join(names)}")
    if unknown := sorted(set(found) - set(names)):
        raise SettingsError(f"{where} has the unknown key {unknown[0]!r}; it may have {', '.join(names)}")
    return found


def _read(path: str, name: str) -> str:
    """Return what a file holds; its path is not told, for somebody may have put the secret itself in its place."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsError(f"the file that {name} names cannot be read ({reason})") from None


def _pem(value: str, name: str) -> str:
    return value if "-----BEGIN " in value else _read(value, name)


@contextmanager
def _pem_file(value: str, name: str) -> Iterator[str]:
    """Give OpenSSL a file, which is all that it takes: one that only we can read, for that moment."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write(_pem(value, name))
        file.flush()
        yield file.name


def _parsed_acl(text: str) -> Iterator[AclEntry]:
    position = 0
    while position < len(text):
        match = _ACL_ENTRY.match(text, position)
        if match is None:
            raise SettingsError(
                f"security setting acl={text!r}: must be scheme:id:permissions, comma-separated, with permissions of "
                "cdrwa, such as sasl:etl:cdrwa,world:anyone:r"
            )
        yield AclEntry(match["scheme"], match["id"], match["permissions"])
        position = match.end()
