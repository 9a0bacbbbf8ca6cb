"""Credentials, TLS and ACLs of a client.

Settings come from keywords, the environment, a JSON file or a JSON secret at AWS. They never come from a URL or a
command line, because other users of the machine can see those, and logs contain them. No secret appears in a repr, in a
message or in kazoo's log.
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
#: Variable with the ARN of a secret in AWS Secrets Manager that contains these settings as JSON.
SECRET = "SLUICE_ZK_SECRET"  # noqa: S105 (the variable's name)
_SECRET_FILE = "SLUICE_ZK_SECRET_FILE"  # noqa: S105 (the variable's name)
_KERBEROS = "kerberos"
_SEE_DOCS = "see docs/security.md"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# An x509 id is a distinguished name, which contains commas: the entry ends after the permissions.
_ACL_ENTRY = re.compile(r"(?P<scheme>[a-z][a-z0-9]*):(?P<id>.*?):(?P<permissions>[cdrwa]+)(?:,(?=[a-z][a-z0-9]*:)|$)")


@dataclass(frozen=True)
class AclEntry:
    """The permissions of one identity on a znode, letters of ``cdrwa``: create, delete, read, write, administer."""

    scheme: str
    id: str
    permissions: str


#: All permissions for every identity of this client that the server has authenticated.
_OWNER_ONLY = AclEntry("auth", "", "cdrwa")


@dataclass(frozen=True, kw_only=True)
class Security:
    """Credentials, TLS and the ACL of new znodes; none of them by default, as in ZooKeeper.

    Attributes:
        auth: ``kerberos`` (SASL with the mechanism GSSAPI), ``sasl`` (mechanism DIGEST-MD5: the server has a list of
            users) or ``digest`` (the server has no list of users and accepts any name and password; only ACLs compare
            them. The password crosses the network unencrypted: use it with TLS).
        username: User name for ``sasl`` and ``digest``.
        password: Password for ``sasl`` and ``digest``. Not in the repr.
        kerberos_principal: Principal of this client; by default the first of the keytab, or that of the ticket cache.
        kerberos_keytab: Path of a keytab. GSSAPI obtains and renews tickets with it. By default it uses the ticket
            cache, which another program renews.
        kerberos_service: First part of the servers' principals, ``zookeeper/HOST``.
        tls: Whether to encrypt, and to verify the server's certificate and its host name. The next four settings imply
            it.
        tls_ca: Certificate authorities of servers: path of a PEM file, or PEM text; by default the system's.
        tls_certificate: Certificate of this client, with its chain: path of a PEM file, or PEM text. Not in the repr.
        tls_key: Private key of the certificate: path of a PEM file, or PEM text. Not in the repr.
        tls_key_password: Password of an encrypted key. Not in the repr.
        acl: ACL of every new znode in zkCli's notation: ``scheme:id:permissions``, comma-separated. By default
            ``auth::cdrwa`` (all permissions for this client's identity, none for others) with credentials or a client
            certificate, else ``world:anyone:cdrwa`` (open to all).

    Raises:
        SettingsError: A setting is malformed, lacks its counterpart, or names a file that cannot be used.

    """

    auth: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_principal: str | None = None
    kerberos_keytab: str | None = None
    kerberos_service: str = "zookeeper"
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = field(default=None, repr=False)
    tls_key: str | None = field(default=None, repr=False)
    tls_key_password: str | None = field(default=None, repr=False)
    acl: str | None = None

    def __post_init__(self) -> None:
        """Validate the settings; this reads the PEM files."""
        for name in (setting.name for setting in fields(self)):
            value = getattr(self, name)
            if name != "tls" and value is not None and (not isinstance(value, str) or not value.strip()):
                raise SettingsError(f"security setting {name} must be a text that is not empty: {_SEE_DOCS}")
        if not isinstance(self.tls, bool):
            raise SettingsError(f"security setting tls={self.tls!r}: must be True or False")
        self._check_credentials()
        if any(value is not None for value in (self.tls_ca, self.tls_certificate, self.tls_key, self.tls_key_password)):
            object.__setattr__(self, "tls", True)
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise SettingsError(f"half a key pair: {missing} is not set; give tls_certificate and tls_key: {_SEE_DOCS}")
        if self.tls_key_password is not None and self.tls_key is None:
            raise SettingsError(f"tls_key_password is set and tls_key is not: {_SEE_DOCS}")
        if self.tls:
            self.tls_context()
        self.acl_of_new_znodes()

    def _check_credentials(self) -> None:
        if self.auth not in (None, "digest", "sasl", _KERBEROS):
            raise SettingsError(f"security setting auth={self.auth!r}: must be kerberos, sasl or digest")
        self._check_kerberos()
        if self.auth == _KERBEROS:
            return
        names = ("auth", "username", "password")
        present = [name for name in names if getattr(self, name) is not None]
        missing = [name for name in names if name not in present]
        if present and missing:
            raise SettingsError(f"half of the credentials: {present[0]} is set and {missing[0]} is not: {_SEE_DOCS}")
        if self.username is not None and ":" in self.username:
            raise SettingsError("security setting username: must not contain a colon, which ends the name")
        if self.auth == "sasl" and importlib.util.find_spec("puresasl") is None:
            raise SettingsError("auth=sasl needs the package pure-sasl: pip install '.[sasl]' in a clone of Sluice")

    def _check_kerberos(self) -> None:
        unused = ("username", "password") if self.auth == _KERBEROS else ("kerberos_principal", "kerberos_keytab")
        for name in unused:
            if getattr(self, name) is not None:
                reason = f"does not apply to auth={self.auth}" if self.auth else f"needs auth={_KERBEROS}"
                raise SettingsError(f"security setting {name} {reason}: {_SEE_DOCS}")
        if self.auth != _KERBEROS:
            return
        if any(importlib.util.find_spec(package) is None for package in ("gssapi", "puresasl")):
            raise SettingsError(
                "auth=kerberos needs the packages gssapi and pure-sasl: install libkrb5-dev and a C compiler, then "
                "pip install '.[kerberos]' in a clone of Sluice"
            )
        if self.kerberos_keytab is not None:
            try:
                Path(self.kerberos_keytab).open("rb").close()
            except OSError as error:
                raise SettingsError(
                    f"the keytab that kerberos_keytab names cannot be read ({error.strerror})"
                ) from None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Security:
        """Read ``SLUICE_ZK_AUTH``, ``SLUICE_ZK_TLS_CA`` and so on: one variable for each attribute.

        ``SLUICE_ZK_PASSWORD_FILE`` and ``SLUICE_ZK_TLS_KEY_PASSWORD_FILE`` name a file instead.
        ``SLUICE_ZK_SECRET_FILE`` names a JSON file, ``SLUICE_ZK_SECRET`` an AWS secret (``arn:aws:secretsmanager:…``,
        extra ``aws``, cached in the process): an object with any of the attributes as keys, such as
        ``{"auth": "sasl", "username": "etl", "password": "…"}``. A variable of one setting wins over this object.

        Raises:
            SettingsError: A value is malformed, or a file or secret cannot be read.

        """
        environ = os.environ if environ is None else environ
        variables = {setting.name: ENVIRONMENT_PREFIX + setting.name.upper() for setting in fields(cls)}
        settings = _read_document(environ)
        settings |= {name: environ[variable] for name, variable in variables.items() if variable in environ}
        for name in ("password", "tls_key_password"):
            variable = f"{variables[name]}_FILE"
            if variable in environ:
                if variables[name] in environ:
                    raise SettingsError(f"{variable} and {variables[name]} are both set: unset one of them")
                settings[name] = _read(environ[variable], variable).rstrip("\r\n")
        if isinstance(settings.get("tls"), str):
            switch = _SWITCH.get(settings["tls"].lower())
            if switch is None:
                raise SettingsError(f"security setting tls={settings['tls']!r}: must be 1 or 0")
            settings["tls"] = switch
        return cls(**settings)

    def tls_context(self) -> ssl.SSLContext:
        """Return a TLS context from the current files: TLS 1.2 or later, host names verified.

        Raises:
            SettingsError: A file is missing or malformed, or key and certificate do not belong together.

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
                raise SettingsError("tls_ca contains no valid certificate in PEM") from error
        if self.tls_certificate is not None and self.tls_key is not None:
            with ExitStack() as stack:
                certificate = stack.enter_context(_pem_file(self.tls_certificate, "tls_certificate"))
                key = stack.enter_context(_pem_file(self.tls_key, "tls_key"))
                try:
                    # Without a password OpenSSL would ask at the terminal.
                    context.load_cert_chain(certificate, key, password=self.tls_key_password or "")
                except (ssl.SSLError, ValueError) as error:
                    raise SettingsError(
                        "tls_certificate and tls_key are not a certificate and its private key in PEM, or "
                        "tls_key_password is missing or wrong"
                    ) from error
        return context

    def sasl_options(self) -> dict[str, str] | None:
        """Return the value of kazoo's ``sasl_options``; None without SASL."""
        if self.auth != "sasl" or self.username is None or self.password is None:
            return None
        return {"mechanism": "DIGEST-MD5", "username": self.username, "password": self.password}

    def auth_data(self) -> list[tuple[str, str]] | None:
        """Return the value of kazoo's ``auth_data``; None without digest authentication."""
        return [("digest", f"{self.username}:{self.password}")] if self.auth == "digest" else None

    def acl_of_new_znodes(self) -> list[AclEntry] | None:
        """Return the ACL of new znodes; None if new znodes are open to all."""
        if self.acl is not None:
            return list(_parse_acl(self.acl))
        return [_OWNER_ONLY] if self.auth or self.tls_certificate else None


def _read_document(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in the JSON file or secret; empty if the environment names none."""
    if SECRET in environ and _SECRET_FILE in environ:
        raise SettingsError(f"{SECRET} and {_SECRET_FILE} are both set: unset one of them")
    if SECRET in environ:
        from lock_manager.aws_secret import fetch_secret  # noqa: PLC0415 (boto3 is optional)

        source, text = f"the secret {environ[SECRET]}", fetch_secret(environ[SECRET])
    elif _SECRET_FILE in environ:
        source, text = f"the file that {_SECRET_FILE} names", _read(environ[_SECRET_FILE], _SECRET_FILE)
    else:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        # The JSON error contains the whole text, so it is neither quoted nor chained.
        raise SettingsError(f"{source} is not JSON") from None
    names = [setting.name for setting in fields(Security)]
    if not isinstance(document, dict):
        raise SettingsError(f"{source} must be a JSON object with some of the keys {', '.join(names)}")
    if unknown := sorted(set(document) - set(names)):
        raise SettingsError(f"{source} has the unknown key {unknown[0]!r}; it may have {', '.join(names)}")
    return document


def _read(path: str, name: str) -> str:
    """Return the text of a file. An error leaves out its path, which may be the secret itself by mistake."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"the file that {name} names cannot be read ({reason})") from None


def _pem(value: str, name: str) -> str:
    return value if "-----BEGIN " in value else _read(value, name)


@contextmanager
def _pem_file(value: str, name: str) -> Iterator[str]:
    """Yield the name of a temporary file with PEM text for OpenSSL. Only this user can read it."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write(_pem(value, name))
        file.flush()
        yield file.name


def _parse_acl(text: str) -> Iterator[AclEntry]:
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
