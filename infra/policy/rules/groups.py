"""Security groups: nobody comes in from outside, and in the ensemble only what ZooKeeper needs."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .ingress import DEFAULT_GROUP, EGRESS_RULE, GROUP, INGRESS_RULE, OLD_RULE, TYPES, permissions, ports
from .rule import Rule, Stack, identity, resource_rule, stack_rule

INTERFACE = "aws:ec2/networkInterface:NetworkInterface"

CLIENT_PORT = 2281
MEMBER_PORTS = {2888: "quorum", 3888: "election"}
_SHELL_PORTS = {22: "SSH", 3389: "RDP"}
_HTTPS = 443


def _from_inside(args: ResourceValidationArgs) -> Iterator[str]:
    for each in permissions(args.resource_type, args.props):
        if each.is_public:
            opened = ", ".join((*each.blocks, *each.prefix_lists))
            yield f"{opened} may come in: name a security group, or a block of private addresses."


def _no_shell(args: ResourceValidationArgs) -> Iterator[str]:
    for each in permissions(args.resource_type, args.props):
        for port, what in _SHELL_PORTS.items():
            if port in each.ports:
                yield f"Port {port} ({what}) is open: operators come in through Session Manager."


def _one_port(args: ResourceValidationArgs) -> Iterator[str]:
    opened = ports(args.props)
    if len(opened) != 1:
        yield f"{len(opened)} ports lead out: name the one that is needed."
    elif not args.props.get("referencedSecurityGroupId") and opened[0] != _HTTPS:
        yield f"Port {opened[0]} leads out to addresses: only HTTPS, to AWS's services, may."


def _spelled_out(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == OLD_RULE:
        yield "Use SecurityGroupIngressRule and SecurityGroupEgressRule, which all rules here know."
    elif args.props.get("ingress") or args.props.get("egress"):
        yield "The group has rules of its own: they and rules that are resources remove each other."


def _closed(args: ResourceValidationArgs) -> Iterator[str]:
    for side in ("ingress", "egress"):
        if args.props.get(side):
            yield f"The default security group has {side} rules: whoever forgets to name a group has them."


def _nothing_added(rule: PolicyResource, stack: Stack) -> Iterator[str]:
    for group in stack.of(DEFAULT_GROUP):
        if rule in stack.about(group, "securityGroupId", "id", INGRESS_RULE):
            yield "The rule is of a VPC's default security group."


def _ensemble_ports(rule: PolicyResource, stack: Stack) -> Iterator[str]:
    [opened] = permissions(rule.resource_type, rule.props)
    group, source = identity(rule, "securityGroupId"), identity(rule, "referencedSecurityGroupId")
    for port, what in MEMBER_PORTS.items():
        if port in opened.ports and source != group:
            yield f"Port {port} ({what}) is open to others than the members' own group."
    if CLIENT_PORT in opened.ports and source is None:
        yield f"Port {CLIENT_PORT} (clients) is open to addresses: admit a security group."
    alone = len(opened.ports) == 1 and opened.ports[0] in (CLIENT_PORT, *MEMBER_PORTS)
    if group in set(_groups_of_members(stack)) and not alone:
        yield "The members' group opens ports on which ZooKeeper does not listen."


def _groups_of_members(stack: Stack) -> Iterator[object]:
    """Yield them as :func:`identity` gives what a rule is of."""
    for each in stack.of(INTERFACE):
        makers = each.property_dependencies.get("securityGroups")
        yield from ([frozenset({group.urn}) for group in makers] if makers else each.props.get("securityGroups") or ())


RULES: tuple[Rule, ...] = (
    resource_rule(
        "ingress-from-inside",
        "Security groups let in other security groups and private addresses, and nobody else.",
        TYPES,
        _from_inside,
        ("EC2.13", "EC2.14", "EC2.18", "EC2.19", "EC2.53", "EC2.54"),
    ),
    resource_rule(
        "no-remote-shell-ports",
        "No security group opens the ports of SSH and RDP, to anybody.",
        TYPES,
        _no_shell,
        ("EC2.13", "EC2.14", "EC2.53", "EC2.54"),
    ),
    resource_rule(
        "egress-by-one-port",
        "What leads out is one port to another security group, or HTTPS.",
        (EGRESS_RULE,),
        _one_port,
    ),
    resource_rule(
        "group-rules-are-resources",
        "Each rule of a security group is a resource of its own.",
        (GROUP, OLD_RULE),
        _spelled_out,
    ),
    resource_rule(
        "default-group-has-no-rules",
        "A VPC's default security group has no rules.",
        (DEFAULT_GROUP,),
        _closed,
        ("EC2.2",),
    ),
    stack_rule(
        "default-group-gets-no-rules",
        "No rule is added to a VPC's default security group.",
        (INGRESS_RULE,),
        _nothing_added,
        ("EC2.2",),
    ),
    stack_rule(
        "ensemble-ports",
        "Clients reach the client port by their security group, and only members reach each other's ports.",
        (INGRESS_RULE,),
        _ensemble_ports,
    ),
)
