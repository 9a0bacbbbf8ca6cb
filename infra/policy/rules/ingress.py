"""Who may come in: every way in which a security group says so, in one form."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GROUP = "aws:ec2/securityGroup:SecurityGroup"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
INGRESS_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
#: What pulumi-aws still has of old, and the program does not use.
OLD_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
EGRESS_RULE = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
TYPES = (GROUP, DEFAULT_GROUP, INGRESS_RULE, OLD_RULE)

_ALL_PORTS = range(65536)
_SHORTEST = 8


@dataclass(frozen=True)
class Permission:
    """Ports that a security group opens, and to whom.

    Attributes:
        ports: that are opened.
        blocks: of addresses.
        prefix_lists: whose addresses AWS or somebody else keeps.

    """

    ports: range
    blocks: tuple[str, ...]
    prefix_lists: tuple[str, ...]

    @property
    def is_public(self) -> bool:
        """Whether addresses that are not of private networks may come in, or nobody can tell which do."""
        return bool(self.prefix_lists) or any(_is_public(each) for each in self.blocks)


def permissions(resource_type: str, props: Mapping[str, Any]) -> Iterator[Permission]:
    """Yield what a resource opens."""
    if resource_type == INGRESS_RULE:
        blocks = [props.get("cidrIpv4"), props.get("cidrIpv6")]
        yield Permission(ports(props), _present(blocks), _present([props.get("prefixListId")]))
    elif resource_type in (GROUP, DEFAULT_GROUP):
        for each in props.get("ingress") or ():
            yield _of_old(each)
    elif props.get("type") == "ingress":
        yield _of_old(props)


def ports(props: Mapping[str, Any]) -> range:
    """Return the ports of a rule; all of them with a protocol that has none, or with all protocols."""
    first, last = props.get("fromPort"), props.get("toPort")
    if str(props.get("ipProtocol", props.get("protocol"))) not in ("tcp", "udp", "6", "17") or first is None:
        return _ALL_PORTS
    return range(int(first), int(first if last is None else last) + 1)


def _of_old(props: Mapping[str, Any]) -> Permission:
    blocks = [*(props.get("cidrBlocks") or ()), *(props.get("ipv6CidrBlocks") or ())]
    return Permission(ports(props), _present(blocks), _present(list(props.get("prefixListIds") or ())))


def _present(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(each) for each in values if each)


def _is_public(block: str) -> bool:
    network = ipaddress.ip_network(block, strict=False)
    # Python calls 0.0.0.0/0 private, for its first and its last address are.
    return network.prefixlen < _SHORTEST or not network.is_private
