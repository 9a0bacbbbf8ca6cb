"""Who may speak to the ensemble: certificates of our own authorities, one for the members and one for the clients.

Two authorities, so that a client's certificate opens no member's port, and a member's opens no client's. Each has
generations: a new one is trusted before it signs, and the old one until nobody uses it, so that a rotation never
parts the ensemble. All keys are in Pulumi's state (docs/deploy.md says how to protect it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_tls as tls

from components.node_config import SUPER_USER

_DAY_HOURS = 24
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
#: So long before its end a certificate is made anew, by the next ``pulumi up``.
RENEWAL_DAYS = 90

#: Subjects of clients: ZooKeeper's ACLs name them as ``x509:CN=…``.
NODE, APPENDER, MAINTENANCE, OPERATOR = "sluice-node", "sluice-appender", "sluice-maintenance", SUPER_USER


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate, in PEM; the key is PKCS #8, which is what ZooKeeper reads."""

    key: pulumi.Output[str]
    certificate: pulumi.Output[str]

    @property
    def pem(self) -> pulumi.Output[str]:
        """Both in one text, for a key store."""
        return pulumi.Output.secret(pulumi.Output.concat(self.key, self.certificate))


@dataclass(frozen=True)
class AuthorityArgs:
    """What an authority is.

    Attributes:
        purpose: for whom it vouches: ``members`` or ``clients``.
        signing: the generation that signs.
        trusted: the generations that are trusted.

    """

    purpose: str
    signing: int
    trusted: Sequence[int]


class Authority(pulumi.ComponentResource):
    """A certificate authority, with its generations.

    Attributes:
        bundle: the certificates that are trusted, in PEM.

    """

    def __init__(self, name: str, args: AuthorityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:certificates:Authority", name, None, opts)
        self._name = name
        self._child = pulumi.ResourceOptions(parent=self)
        self._keys: dict[int, tls.PrivateKey] = {}
        self._certificates: dict[int, tls.SelfSignedCert] = {}
        for generation in sorted(set(args.trusted)):
            key = tls.PrivateKey(f"{name}-{generation}", algorithm="ECDSA", ecdsa_curve="P256", opts=self._child)
            self._keys[generation] = key
            self._certificates[generation] = tls.SelfSignedCert(
                f"{name}-{generation}",
                private_key_pem=key.private_key_pem,
                subject={"common_name": f"sluice {args.purpose} {generation}"},
                is_ca_certificate=True,
                set_subject_key_id=True,
                allowed_uses=["cert_signing", "crl_signing", "digital_signature"],
                validity_period_hours=AUTHORITY_DAYS * _DAY_HOURS,
                opts=self._child,
            )
        self._signing = args.signing
        self.bundle: pulumi.Output[str] = pulumi.Output.concat(
            *(certificate.cert_pem for certificate in self._certificates.values())
        )
        self.register_outputs({"bundle": self.bundle})

    def member(self, name: str, address: pulumi.Input[str]) -> Pair:
        """Sign for a member of the ensemble, by its address.

        127.0.0.1 is in it too: an operator who forwards the port through Session Manager verifies it like others.
        """
        return self._signed(name, name, uses=["server_auth", "client_auth"], addresses=[address, "127.0.0.1"])

    def client(self, name: str) -> Pair:
        """Sign for a client, by its name."""
        return self._signed(name, name, uses=["client_auth"], addresses=[])

    def _signed(self, name: str, subject: str, uses: list[str], addresses: list[pulumi.Input[str]]) -> Pair:
        # A new authority signs new keys: who has seen an old one has nothing of the new certificate.
        resource = f"{self._name}-{name}-{self._signing}"
        key = tls.PrivateKey(resource, algorithm="ECDSA", ecdsa_curve="P256", opts=self._child)
        request = tls.CertRequest(
            resource,
            private_key_pem=key.private_key_pem,
            subject={"common_name": subject},
            ip_addresses=addresses or None,
            opts=self._child,
        )
        certificate = tls.LocallySignedCert(
            resource,
            cert_request_pem=request.cert_request_pem,
            ca_private_key_pem=self._keys[self._signing].private_key_pem,
            ca_cert_pem=self._certificates[self._signing].cert_pem,
            allowed_uses=["digital_signature", *uses],
            validity_period_hours=CERTIFICATE_DAYS * _DAY_HOURS,
            early_renewal_hours=RENEWAL_DAYS * _DAY_HOURS,
            opts=self._child,
        )
        return Pair(key.private_key_pem_pkcs8, certificate.cert_pem)


def node_secret(member: Pair, node: Pair, members: Authority, clients: Authority) -> pulumi.Output[str]:
    """Return what a node has to know, as JSON: files by name; see ``infra/node/sluice-configure``."""
    return _secret_json(
        {
            "member.pem": member.pem,
            "members-ca.pem": members.bundle,
            "clients-ca.pem": clients.bundle,
            "node.pem": node.pem,
        }
    )


def client_secret(pair: Pair, members: Authority, acl: str) -> pulumi.Output[str]:
    """Return what a client has to know, as JSON: what ``SLUICE_ZK_SECRET`` takes (docs/security.md)."""
    return _secret_json(
        {"tls_ca": members.bundle, "tls_certificate": pair.certificate, "tls_key": pair.key, "acl": acl}
    )


def acl_of(permissions: Mapping[str, str]) -> str:
    """Return an ACL, as zkCli writes it, of the permissions by the subject's common name."""
    return ",".join(f"x509:CN={subject}:{letters}" for subject, letters in permissions.items())


#: Of the lock root. Nobody but the node and the operators may say anew who may do what.
LOCK_ROOT_ACL = acl_of({NODE: "cdrwa", OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})
#: Of what is above it, where writers have nothing to do.
PARENT_ACL = acl_of({NODE: "cdrwa", OPERATOR: "cdrwa", MAINTENANCE: "r", APPENDER: "r"})
#: Of what clients make below it.
CLIENT_ACL = acl_of({OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})


def _secret_json(parts: Mapping[str, pulumi.Input[str]]) -> pulumi.Output[str]:
    return pulumi.Output.secret(pulumi.Output.all(**parts).apply(lambda known: json.dumps(known, sort_keys=True)))
