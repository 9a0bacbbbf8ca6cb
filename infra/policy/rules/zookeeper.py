"""The zoo.cfg and the user data of members: TLS and certificates for every connection, and a complete member list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .compute import INSTANCE
from .rule import Stack, resource_rule, stack_rule
from .secrets import PARAMETER

#: Required settings of zoo.cfg: the value, and the connections that the member would accept with another value.
REQUIRED_SETTINGS: Mapping[str, tuple[str, str]] = {
    "secureClientPort": ("2281", "clients that do not use TLS on port 2281"),
    "ssl.clientAuth": ("need", "clients without a certificate"),
    "enforce.auth.enabled": ("true", "clients without authentication"),
    "enforce.auth.schemes": ("x509", "clients without authentication by certificate"),
    "sslQuorum": ("true", "members in clear text"),
    "ssl.quorum.clientAuth": ("need", "members without a certificate"),
    "admin.enableServer": ("false", "users of the admin server"),
    "reconfigEnabled": ("false", "members that a client adds"),
    "audit.enable": ("true", "clients that no audit log records"),
    "metricsProvider.httpHost": ("127.0.0.1", "remote readers of the metrics"),
}
_CONFIG = "/zoo.cfg"
_ACLS = re.compile(r"^SLUICE_(?:LOCK_ROOT|PARENT)_ACL=(.*)$", re.MULTILINE)


@resource_rule(PARAMETER)
def members_require_tls(args: ResourceValidationArgs) -> Iterator[str]:
    """Members accept only TLS connections with a certificate, write an audit log, and purge old snapshots."""
    if not str(args.props.get("name")).endswith(_CONFIG):
        return
    settings = _settings(args.props["value"])
    for key, (value, admitted) in REQUIRED_SETTINGS.items():
        if settings.get(key) != value:
            yield f"The member admits {admitted}: set {key} to {value}."
    if "clientPort" in settings:
        yield "The member admits clients in clear text: remove clientPort."
    if settings.get("ssl.trustStore.location") == settings.get("ssl.quorum.trustStore.location"):
        yield "Members and clients have the same certificate authority: a client could act as a member."
    if int(settings.get("autopurge.purgeInterval", "0")) < 1:
        yield "Snapshots are never purged: set autopurge.purgeInterval, or the volumes fill up."


@resource_rule(PARAMETER)
def members_without_data_wait(args: ResourceValidationArgs) -> Iterator[str]:
    """A member without data waits for a leader that has data."""
    if str(args.props.get("name")).endswith(_CONFIG) and _settings(args.props["value"]).get("db.autocreate") != "false":
        yield "A majority of members without data could serve an empty tree: set db.autocreate to false."


def _settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}


@stack_rule(PARAMETER)
def zoo_cfg_lists_all_members(parameter: PolicyResource, stack: Stack) -> Iterator[str]:
    """The zoo.cfg of each member lists all members."""
    if not str(parameter.props.get("name")).endswith(_CONFIG):
        return
    listed = {key for key in _settings(parameter.props["value"]) if key.startswith("server.")}
    members = {f"server.{number}" for number in range(1, len(stack.of_type(INSTANCE)) + 1)}
    if listed != members:
        yield f"zoo.cfg lists {len(listed)} members, and the stack has {len(members)}: list every member once."


@resource_rule(INSTANCE)
def lock_root_needs_a_certificate(args: ResourceValidationArgs) -> Iterator[str]:
    """Only holders of certificates have rights on the lock root and its parents."""
    acls = _ACLS.findall(str(args.props.get("userData")))
    if not acls:
        yield "The user data has no ACL of the lock root (SLUICE_LOCK_ROOT_ACL)."
    for acl in acls:
        if any(not entry.strip("'").startswith("x509:CN=") for entry in acl.split(",")):
            yield f"{acl} grants rights to clients without a certificate."
