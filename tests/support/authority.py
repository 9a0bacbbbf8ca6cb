"""A certificate authority for servers and clients on this machine."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lock_manager import Security


class Authority:
    """A certificate authority with its files in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = distinguished_name("authority")
        self._certificate = self._sign(self._name, self._key, ca=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate_pem(self._certificate))

    def issue(self, name: str, *hosts: str, password: str | None = None) -> tuple[Path, Path]:
        """Issue a certificate for host names or addresses; return the files of the certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(certificate_pem(self._sign(distinguished_name(name), key, hosts)))
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return certificate, key_file

    def store(self, name: str, *hosts: str) -> Path:
        """Issue a certificate for a server; return one file that contains the key and the certificate."""
        certificate, key = self.issue(name, *hosts)
        file = self._folder / f"{name}-store.pem"
        file.write_bytes(key.read_bytes() + certificate.read_bytes())
        return file

    def client(self, name: str, **options: Any) -> Security:
        certificate, key = self.issue(name)
        return Security(tls_ca=str(self.file), tls_certificate=str(certificate), tls_key=str(key), **options)

    def _sign(self, name: x509.Name, key: Any, hosts: tuple[str, ...] = (), *, ca: bool = False) -> x509.Certificate:
        builder = certificate_builder(name, self._name, key.public_key(), hours=24)
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def certificate_builder(subject: x509.Name, issuer: x509.Name, key: Any, *, hours: float) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=hours))
    )


def distinguished_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
