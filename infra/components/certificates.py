"""Certificates for connections to the ensemble, from two private authorities: one for members, one for clients.

With two authorities, a member port accepts no client certificate, and the client port accepts no member certificate.
An authority has generations. A new generation is trusted before it signs certificates. The old generation stays trusted
while its certificates are in use. So a rotation does not disconnect members. All keys are in Pulumi's state;
docs/deploy.md describes how to protect it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
import pulumi_tls as tls

from components.node_config import SUPER_USER
from components.settings import Settings

_HOURS_PER_DAY = 24
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
#: ``pulumi up --refresh`` renews a certificate that expires within these days.
RENEWAL_DAYS = 90

#: Common names of clients. ACLs of ZooKeeper contain them as ``x509:CN=…``.
NODE, APPENDER, MAINTENANCE, OPERATOR = "sluice-node", "sluice-appender", "sluice-maintenance", SUPER_USER


@dataclass(frozen=True)
class KeyPair:
    """A private key and its certificate, in PEM. The key is in PKCS #8, the only format that ZooKeeper reads."""

    key: pulumi.Output[str]
    certificate: pulumi.Output[str]

    @property
    def pem(self) -> pulumi.Output[str]:
        """Key and certificate in one text, for a key store."""
        return pulumi.Output.secret(pulumi.Output.concat(self.key, self.certificate))


class Authority(pulumi.ComponentResource):
    """A certificate authority with its generations. Its purpose is ``members`` or ``clients``.

    Attributes:
        bundle: Certificates of the trusted generations, in PEM.

    """

    def __init__(self, purpose: str, settings: Settings) -> None:
        super().__init__("sluice:certificates:Authority", purpose)
        self._purpose = purpose
        self._child_options = pulumi.ResourceOptions(parent=self)
        self._keys: dict[int, tls.PrivateKey] = {}
        self._certificates: dict[int, tls.SelfSignedCert] = {}
        for generation in sorted(set(settings.trusted_authorities)):
            key = tls.PrivateKey(
                f"{purpose}-{generation}", algorithm="ECDSA", ecdsa_curve="P256", opts=self._child_options
            )
            self._keys[generation] = key
            self._certificates[generation] = tls.SelfSignedCert(
                f"{purpose}-{generation}",
                private_key_pem=key.private_key_pem,
                subject={"common_name": f"sluice {purpose} {generation}"},
                is_ca_certificate=True,
                set_subject_key_id=True,
                allowed_uses=["cert_signing", "crl_signing", "digital_signature"],
                validity_period_hours=AUTHORITY_DAYS * _HOURS_PER_DAY,
                opts=self._child_options,
            )
        self._signing_generation = settings.signing_authority
        self.bundle: pulumi.Output[str] = pulumi.Output.concat(
            *(certificate.cert_pem for certificate in self._certificates.values())
        )
        self.register_outputs({"bundle": self.bundle})

    def issue(self, name: str, address: pulumi.Input[str] | None = None) -> KeyPair:
        """Issue a certificate for the common name of a client, or for the address of a member.

        A member's certificate also contains 127.0.0.1, so that an operator can verify it through a port that Session
        Manager forwards.
        """
        uses = ["client_auth"] if address is None else ["server_auth", "client_auth"]
        addresses = None if address is None else [address, "127.0.0.1"]
        # A new generation signs new keys, so that a stolen old key is useless with the new certificate.
        resource_name = f"{self._purpose}-{name}-{self._signing_generation}"
        key = tls.PrivateKey(resource_name, algorithm="ECDSA", ecdsa_curve="P256", opts=self._child_options)
        request = tls.CertRequest(
            resource_name,
            private_key_pem=key.private_key_pem,
            subject={"common_name": name},
            ip_addresses=addresses,
            opts=self._child_options,
        )
        certificate = tls.LocallySignedCert(
            resource_name,
            cert_request_pem=request.cert_request_pem,
            ca_private_key_pem=self._keys[self._signing_generation].private_key_pem,
            ca_cert_pem=self._certificates[self._signing_generation].cert_pem,
            allowed_uses=["digital_signature", *uses],
            validity_period_hours=CERTIFICATE_DAYS * _HOURS_PER_DAY,
            early_renewal_hours=RENEWAL_DAYS * _HOURS_PER_DAY,
            opts=self._child_options,
        )
        return KeyPair(key.private_key_pem_pkcs8, certificate.cert_pem)


def node_secret(
    member_pair: KeyPair, client_pair: KeyPair, members: Authority, clients: Authority
) -> pulumi.Output[str]:
    """Return the secret of a node: JSON with the contents of the files that ``infra/node/sluice-configure`` writes.

    The node serves with ``member_pair``, and connects to its own server with ``client_pair``.
    """
    return _secret_json(
        {
            "member.pem": member_pair.pem,
            "members-ca.pem": members.bundle,
            "clients-ca.pem": clients.bundle,
            "node.pem": client_pair.pem,
        }
    )


def client_secret(pair: KeyPair, members: Authority, acl: str) -> pulumi.Output[str]:
    """Return the secret of a client: JSON in the format of ``SLUICE_ZK_SECRET`` (docs/security.md)."""
    return _secret_json(
        {"tls_ca": members.bundle, "tls_certificate": pair.certificate, "tls_key": pair.key, "acl": acl}
    )


def store_secret(
    name: str, prefix: str, description: str, content: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> tuple[aws.secretsmanager.Secret, aws.secretsmanager.SecretVersion]:
    """Create a secret in Secrets Manager and its value.

    The secret's name in AWS is ``prefix`` and a suffix that the provider appends; ``name`` is Pulumi's name.
    A deleted secret can be restored for a week.
    """
    secret = aws.secretsmanager.Secret(
        name, name_prefix=prefix, description=description, recovery_window_in_days=7, opts=opts
    )
    return secret, aws.secretsmanager.SecretVersion(name, secret_id=secret.id, secret_string=content, opts=opts)


def x509_acl(permissions: Mapping[str, str]) -> str:
    """Return an ACL in the format of zkCli. ``permissions`` are letters such as ``cdrwa``, by common name."""
    return ",".join(f"x509:CN={subject}:{letters}" for subject, letters in permissions.items())


#: ACL of the lock root. Only nodes and operators may change the ACL.
LOCK_ROOT_ACL = x509_acl({NODE: "cdrwa", OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})
#: ACL of the znodes above the lock root, which writers only read.
PARENT_ACL = x509_acl({NODE: "cdrwa", OPERATOR: "cdrwa", MAINTENANCE: "r", APPENDER: "r"})
#: ACL of the znodes that clients create below the lock root.
CLIENT_ACL = x509_acl({OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})


def _secret_json(parts: Mapping[str, pulumi.Input[str]]) -> pulumi.Output[str]:
    return pulumi.Output.secret(pulumi.Output.all(**parts).apply(lambda values: json.dumps(values, sort_keys=True)))
