"""The network: what a VPC needs to be closed, to be watched, and to be left for AWS's services alone."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .compute import INSTANCE
from .documents import allowed
from .groups import INTERFACE
from .ingress import DEFAULT_GROUP
from .rule import Rule, Stack, resource_rule, stack_rule

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
NAT = "aws:ec2/natGateway:NatGateway"

#: Without these a node that has no other way out does not come up.
SERVICES = ("s3", "ssm", "ssmmessages", "secretsmanager", "logs", "monitoring")
#: What the nodes of anybody may do with buckets that are named, for Amazon Linux's are not this account's.
_READING = {"s3:GetObject"}
_OWN = ("aws:principalaccount", "aws:principalorgid")


def _taken_over(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    if not stack.about(vpc, "vpcId", "id", DEFAULT_GROUP):
        yield "Its default security group is as AWS makes it: members reach each other, and everybody outside."


def _no_public_addresses(args: ResourceValidationArgs) -> Iterator[str]:
    for key in ("mapPublicIpOnLaunch", "assignIpv6AddressOnCreation"):
        if args.props.get(key):
            yield f"{key} is true: what starts in this subnet can be reached from outside."


def _watched(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    logs = stack.about(vpc, "vpcId", "id", FLOW_LOG)
    if not any(each.props.get("trafficType") == "ALL" for each in logs):
        yield "It has no flow log of ALL its traffic."


def _limited(args: ResourceValidationArgs) -> Iterator[str]:
    document = args.props.get("policy")
    if document is None:
        yield "It has no policy of its own: AWS's default lets everybody do everything through it."
    is_gateway = args.props.get("vpcEndpointType", "Gateway") == "Gateway"
    for each in allowed(document):
        everything = any(resource == "*" or resource.endswith(":s3:::*") for resource in each.resources)
        ours = any(key in _OWN and operator.startswith("string") for operator, key in each.conditions)
        if each.inverted:
            yield f"A statement allows all but what it names ({', '.join(each.inverted)})."
        elif everything and is_gateway:
            yield "A statement is about every bucket there is: rows can be copied to anybody's."
        elif not ours and (everything or set(each.actions) - _READING):
            yield "A statement lets principals of any account pass: it has no condition on aws:PrincipalAccount."


def _reaches_aws(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    if stack.of(NAT):
        return
    names = [str(each.props.get("serviceName")) for each in stack.about(vpc, "vpcId", "id", ENDPOINT)]
    missing = [service for service in SERVICES if not any(name.endswith(f".{service}") for name in names)]
    if missing:
        yield f"It has neither a NAT gateway nor endpoints of {', '.join(missing)}: its nodes cannot come up."


def _checks_source(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("sourceDestCheck") is False:
        yield "sourceDestCheck is false: it may pass on what is not its own."


RULES: tuple[Rule, ...] = (
    stack_rule(
        "default-group-is-ours",
        "The stack has each VPC's default security group in hand, and so without rules.",
        (VPC,),
        _taken_over,
        ("EC2.2",),
    ),
    resource_rule(
        "subnets-give-no-public-addresses",
        "No subnet gives public addresses by itself, a NAT gateway's neither.",
        (SUBNET,),
        _no_public_addresses,
        ("EC2.15",),
    ),
    stack_rule("flow-logs", "Each VPC has a flow log of all its traffic.", (VPC,), _watched, ("EC2.6",)),
    resource_rule(
        "endpoints-are-limited",
        "Each endpoint has a policy: S3's names buckets, and the others let this account's principals pass.",
        (ENDPOINT,),
        _limited,
    ),
    stack_rule(
        "nodes-reach-aws",
        "A VPC without a NAT gateway has the endpoints that a node needs.",
        (VPC,),
        _reaches_aws,
        ("EC2.57",),
    ),
    resource_rule(
        "source-is-checked",
        "No interface passes on packets of others.",
        (INTERFACE, INSTANCE),
        _checks_source,
        ("EC2.180",),
    ),
)
