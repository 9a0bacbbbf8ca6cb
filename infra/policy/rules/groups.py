"""Security groups: no ingress from public addresses, and only ZooKeeper's ports are open on the members."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .ingress import DEFAULT_GROUP, EGRESS_RULE, GROUP, INGRESS_RULE, LEGACY_RULE, TYPES, permissions, ports
from .rule import Stack, identity, resource_rule, stack_rule

INTERFACE = "aws:ec2/networkInterface:NetworkInterface"

CLIENT_PORT = 2281
MEMBER_PORTS = {2888: "quorum", 3888: "election"}
_SHELL_PORTS = {22: "SSH", 3389: "RDP"}
_HTTPS = 443


@resource_rule(*TYPES, controls=("EC2.13", "EC2.14", "EC2.18", "EC2.19", "EC2.53", "EC2.54"))
def no_public_ingress(args: ResourceValidationArgs) -> Iterator[str]:
    """Security groups allow ingress only from other security groups and private addresses."""
    for permission in permissions(args.resource_type, args.props):
        if permission.is_public:
            sources = ", ".join((*permission.blocks, *permission.prefix_lists))
            yield f"Ingress from {sources} is allowed: name a security group or a block of private addresses."


@resource_rule(*TYPES, controls=("EC2.13", "EC2.14", "EC2.53", "EC2.54"))
def no_remote_shell_ports(args: ResourceValidationArgs) -> Iterator[str]:
    """No security group opens the ports of SSH or RDP."""
    for permission in permissions(args.resource_type, args.props):
        for port, protocol in _SHELL_PORTS.items():
            if port in permission.ports:
                yield f"Port {port} ({protocol}) is open: log in through Session Manager."


@resource_rule(EGRESS_RULE)
def egress_rules_open_one_port(args: ResourceValidationArgs) -> Iterator[str]:
    """An egress rule allows one port to another security group, or HTTPS."""
    open_ports = ports(args.props)
    if len(open_ports) != 1:
        yield f"Egress to {len(open_ports)} ports is allowed: name the port that is needed."
    elif not args.props.get("referencedSecurityGroupId") and open_ports[0] != _HTTPS:
        yield f"Egress to addresses on port {open_ports[0]} is allowed: use HTTPS, or name a security group."


@resource_rule(GROUP, LEGACY_RULE)
def group_rules_are_resources(args: ResourceValidationArgs) -> Iterator[str]:
    """Each rule of a security group is a separate resource."""
    if args.resource_type == LEGACY_RULE:
        yield "The policy pack does not check this type: use SecurityGroupIngressRule and SecurityGroupEgressRule."
    elif args.props.get("ingress") or args.props.get("egress"):
        yield "The group has inline rules: inline rules and rule resources remove each other."


@resource_rule(DEFAULT_GROUP, controls=("EC2.2",))
def default_group_has_no_rules(args: ResourceValidationArgs) -> Iterator[str]:
    """A VPC's default security group has no rules."""
    for direction in ("ingress", "egress"):
        if args.props.get(direction):
            yield f"The default security group has {direction} rules: they apply to resources without another group."


@stack_rule(INGRESS_RULE, EGRESS_RULE, controls=("EC2.2",))
def default_group_gets_no_rules(rule: PolicyResource, stack: Stack) -> Iterator[str]:
    """No rule is added to a VPC's default security group."""
    for group in stack.of_type(DEFAULT_GROUP):
        if rule in stack.referring_to(group, "securityGroupId", "id", rule.resource_type):
            yield "The rule is added to a VPC's default security group."


@stack_rule(INGRESS_RULE)
def ensemble_ports(rule: PolicyResource, stack: Stack) -> Iterator[str]:
    """The client port is open only to security groups, the member ports only to members; members open no others."""
    [permission] = permissions(rule.resource_type, rule.props)
    group, source = identity(rule, "securityGroupId"), identity(rule, "referencedSecurityGroupId")
    for port, purpose in MEMBER_PORTS.items():
        if port in permission.ports and source != group:
            yield f"Port {port} ({purpose}) is open to sources other than the members' own group."
    if CLIENT_PORT in permission.ports and source is None:
        yield f"Port {CLIENT_PORT} (clients) is open to addresses: name a security group."
    is_zookeeper = len(permission.ports) == 1 and permission.ports[0] in (CLIENT_PORT, *MEMBER_PORTS)
    if group in set(_member_groups(stack)) and not is_zookeeper:
        yield "The members' group opens ports on which ZooKeeper does not listen."


def _member_groups(stack: Stack) -> Iterator[object]:
    """Yield the security groups of the members, in the form that :func:`identity` returns."""
    for interface in stack.of_type(INTERFACE):
        groups = interface.property_dependencies.get("securityGroups")
        if groups:
            yield from (frozenset({group.urn}) for group in groups)
        else:
            yield from interface.props.get("securityGroups") or ()
