"""What a member is told, its zoo.cfg and its user data: TLS and certificates for all, and every member knows all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .compute import INSTANCE
from .rule import Rule, Stack, resource_rule, stack_rule
from .secrets import PARAMETER

#: Settings that a later change must not part with, and whom each keeps out.
NEEDED: Mapping[str, tuple[str, str]] = {
    "secureClientPort": ("2281", "clients in clear text"),
    "ssl.clientAuth": ("need", "clients without a certificate"),
    "enforce.auth.enabled": ("true", "clients whose certificate was not looked at"),
    "enforce.auth.schemes": ("x509", "clients whose certificate was not looked at"),
    "sslQuorum": ("true", "members in clear text"),
    "ssl.quorum.clientAuth": ("need", "members without a certificate"),
    "admin.enableServer": ("false", "whoever reaches the admin server"),
    "reconfigEnabled": ("false", "members that a client names"),
    "audit.enable": ("true", "those of whom nobody is told afterwards"),
    "metricsProvider.httpHost": ("127.0.0.1", "whoever reaches the metrics"),
}
_CONFIG = "/zoo.cfg"
_LOCK_ROOT = re.compile(r"^SLUICE_(?:LOCK_ROOT|PARENT)_ACL=(.*)$", re.MULTILINE)


def _closed(args: ResourceValidationArgs) -> Iterator[str]:
    if not str(args.props.get("name")).endswith(_CONFIG):
        return
    told = _settings(args.props["value"])
    for key, (value, whom) in NEEDED.items():
        if told.get(key) != value:
            yield f"It lets in {whom}: {key} is not {value}."
    if "clientPort" in told:
        yield "It lets in clients in clear text: clientPort is set."
    if told.get("ssl.trustStore.location") == told.get("ssl.quorum.trustStore.location"):
        yield "Members and clients are vouched for by the same authority: a client could be a member."
    if int(told.get("autopurge.purgeInterval", "0")) < 1:
        yield "Snapshots are never purged: its volumes fill up."


def _waits(args: ResourceValidationArgs) -> Iterator[str]:
    if str(args.props.get("name")).endswith(_CONFIG) and _settings(args.props["value"]).get("db.autocreate") != "false":
        yield "A majority of members without data would serve an empty tree: db.autocreate is not false."


def _settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}


def _knows_all(parameter: PolicyResource, stack: Stack) -> Iterator[str]:
    if not str(parameter.props.get("name")).endswith(_CONFIG):
        return
    told = {key for key in _settings(parameter.props["value"]) if key.startswith("server.")}
    wanted = {f"server.{number}" for number in range(1, len(stack.of(INSTANCE)) + 1)}
    if told != wanted:
        yield f"It names {len(told)} members, and {len(wanted)} are made: a majority of one is none of the other."


def _locks_for_ours(args: ResourceValidationArgs) -> Iterator[str]:
    found = _LOCK_ROOT.findall(str(args.props.get("userData")))
    if not found:
        yield "Its user data does not say who may lock (SLUICE_LOCK_ROOT_ACL)."
    for acl in found:
        if any(not entry.strip("'").startswith("x509:CN=") for entry in acl.split(",")):
            yield f"{acl} names others than holders of certificates."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "members-speak-tls",
        "Members speak TLS alone, with those who have a certificate, and keep an audit log.",
        (PARAMETER,),
        _closed,
    ),
    resource_rule(
        "empty-members-wait",
        "A member without data waits for a leader that has data.",
        (PARAMETER,),
        _waits,
    ),
    stack_rule("members-know-each-other", "Each member knows all members.", (PARAMETER,), _knows_all),
    resource_rule(
        "locks-are-for-ours",
        "Only holders of certificates have rights at the lock root, and above it.",
        (INSTANCE,),
        _locks_for_ours,
    ),
)
