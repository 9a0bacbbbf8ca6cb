"""A certificate authority of the tests' own, for servers and clients on this machine."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lock_manager import Security


class Authority:
    """A certificate authority of the test's own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self._certificate = self._signed(self._name, self._key, ca=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(self._certificate))

    def issue(self, name: str, *hosts: str, password: str | None = None) -> tuple[Path, Path]:
        """Return the files of a certificate for these host names or addresses, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(_pem(self._signed(_name(name), key, hosts)))
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
        return certificate, key_file

    def store(self, name: str, *hosts: str) -> Path:
        """Return one file with both, as a server wants it."""
        certificate, key = self.issue(name, *hosts)
        both = self._folder / f"{name}-store.pem"
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return both

    def client(self, name: str, **more: Any) -> Security:
        certificate, key = self.issue(name)
        return Security(tls_ca=str(self.file), tls_certificate=str(certificate), tls_key=str(key), **more)

    def _signed(self, name: x509.Name, key: Any, hosts: tuple[str, ...] = (), *, ca: bool = False) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
