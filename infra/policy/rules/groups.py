"""Security groups: no ingress from outside, and into the ensemble only the ports of ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .ingress import DEFAULT_GROUP, EGRESS_RULE, GROUP, INGRESS_RULE, LEGACY_RULE, TYPES, permissions, ports
from .rule import Rule, Stack, identity, resource_rule, stack_rule

INTERFACE = "aws:ec2/networkInterface:NetworkInterface"

CLIENT_PORT = 2281
MEMBER_PORTS = {2888: "quorum", 3888: "election"}
_SHELL_PORTS = {22: "SSH", 3389: "RDP"}
_HTTPS = 443


def _check_sources(args: ResourceValidationArgs) -> Iterator[str]:
    for permission in permissions(args.resource_type, args.props):
        if permission.is_public:
            sources = ", ".join((*permission.blocks, *permission.prefix_lists))
            yield f"Ingress from {sources} is allowed: name a security group or a block of private addresses."


def _check_shell_ports(args: ResourceValidationArgs) -> Iterator[str]:
    for permission in permissions(args.resource_type, args.props):
        for port, protocol in _SHELL_PORTS.items():
            if port in permission.ports:
                yield f"Port {port} ({protocol}) is open: log in through Session Manager."


def _check_egress(args: ResourceValidationArgs) -> Iterator[str]:
    open_ports = ports(args.props)
    if len(open_ports) != 1:
        yield f"Egress to {len(open_ports)} ports is allowed: name the one that is needed."
    elif not args.props.get("referencedSecurityGroupId") and open_ports[0] != _HTTPS:
        yield f"Egress to addresses by port {open_ports[0]} is allowed: only HTTPS, to AWS services, may be."


def _check_inline_rules(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == LEGACY_RULE:
        yield "The policy pack does not check this type: use SecurityGroupIngressRule and SecurityGroupEgressRule."
    elif args.props.get("ingress") or args.props.get("egress"):
        yield "The group has inline rules: inline rules and rule resources remove each other."


def _check_default_group(args: ResourceValidationArgs) -> Iterator[str]:
    for side in ("ingress", "egress"):
        if args.props.get(side):
            yield f"The default security group has {side} rules: resources without a group get them."


def _check_group_of_rule(rule: PolicyResource, stack: Stack) -> Iterator[str]:
    for group in stack.of(DEFAULT_GROUP):
        if rule in stack.referring_to(group, "securityGroupId", "id", INGRESS_RULE):
            yield "The rule is added to a VPC's default security group."


def _check_ensemble_ports(rule: PolicyResource, stack: Stack) -> Iterator[str]:
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
    for interface in stack.of(INTERFACE):
        groups = interface.property_dependencies.get("securityGroups")
        if groups:
            yield from (frozenset({group.urn}) for group in groups)
        else:
            yield from interface.props.get("securityGroups") or ()


RULES: tuple[Rule, ...] = (
    resource_rule(
        "ingress-from-inside",
        "Security groups allow ingress only from other security groups and private addresses.",
        TYPES,
        _check_sources,
        ("EC2.13", "EC2.14", "EC2.18", "EC2.19", "EC2.53", "EC2.54"),
    ),
    resource_rule(
        "no-remote-shell-ports",
        "No security group opens the ports of SSH or RDP.",
        TYPES,
        _check_shell_ports,
        ("EC2.13", "EC2.14", "EC2.53", "EC2.54"),
    ),
    resource_rule(
        "egress-by-one-port",
        "An egress rule allows one port to another security group, or HTTPS.",
        (EGRESS_RULE,),
        _check_egress,
    ),
    resource_rule(
        "group-rules-are-resources",
        "Each rule of a security group is a separate resource.",
        (GROUP, LEGACY_RULE),
        _check_inline_rules,
    ),
    resource_rule(
        "default-group-has-no-rules",
        "A VPC's default security group has no rules.",
        (DEFAULT_GROUP,),
        _check_default_group,
        ("EC2.2",),
    ),
    stack_rule(
        "default-group-gets-no-rules",
        "No rule is added to a VPC's default security group.",
        (INGRESS_RULE,),
        _check_group_of_rule,
        ("EC2.2",),
    ),
    stack_rule(
        "ensemble-ports",
        "The client port is open to security groups, and the member ports to the members only.",
        (INGRESS_RULE,),
        _check_ensemble_ports,
    ),
)
