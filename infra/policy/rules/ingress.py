"""The ingress that a security group allows, parsed from each resource type that can allow it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GROUP = "aws:ec2/securityGroup:SecurityGroup"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
INGRESS_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
#: The older rule type of pulumi-aws. The program does not use it.
LEGACY_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
EGRESS_RULE = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
TYPES = (GROUP, DEFAULT_GROUP, INGRESS_RULE, LEGACY_RULE)

# The largest private IPv4 block is 10.0.0.0/8.
_SHORTEST_PREFIX = 8


@dataclass(frozen=True)
class Permission:
    """A range of ports that a security group opens, and the sources other than security groups.

    Attributes:
        blocks: CIDR blocks of sources.
        prefix_lists: Ids of prefix lists, whose addresses AWS or another account maintains.

    """

    ports: range
    blocks: tuple[str, ...]
    prefix_lists: tuple[str, ...]

    @property
    def is_public(self) -> bool:
        """Whether a source may be outside the private networks. A prefix list counts as public."""
        return bool(self.prefix_lists) or any(map(_is_public, self.blocks))


def permissions(resource_type: str, props: Mapping[str, Any]) -> Iterator[Permission]:
    """Yield the ingress that a resource allows."""
    if resource_type == INGRESS_RULE:
        blocks = [props.get("cidrIpv4"), props.get("cidrIpv6")]
        yield Permission(ports(props), _present(blocks), _present([props.get("prefixListId")]))
    elif resource_type in (GROUP, DEFAULT_GROUP):
        for rule in props.get("ingress") or ():
            yield _legacy_permission(rule)
    elif props.get("type") == "ingress":
        yield _legacy_permission(props)


def ports(props: Mapping[str, Any]) -> range:
    """Return the ports of a rule. A rule for another protocol than TCP or UDP counts as all ports."""
    from_port, to_port = props.get("fromPort"), props.get("toPort")
    if str(props.get("ipProtocol", props.get("protocol"))) not in ("tcp", "udp", "6", "17") or from_port is None:
        return range(65536)
    return range(int(from_port), int(from_port if to_port is None else to_port) + 1)


def _legacy_permission(props: Mapping[str, Any]) -> Permission:
    blocks = [*(props.get("cidrBlocks") or ()), *(props.get("ipv6CidrBlocks") or ())]
    return Permission(ports(props), _present(blocks), _present(list(props.get("prefixListIds") or ())))


def _present(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values if value)


def _is_public(block: str) -> bool:
    network = ipaddress.ip_network(block, strict=False)
    # Python's is_private is true for 0.0.0.0/0, because its first and last addresses are private.
    return network.prefixlen < _SHORTEST_PREFIX or not network.is_private
