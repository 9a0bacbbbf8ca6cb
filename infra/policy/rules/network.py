"""The network: flow logs, no public addresses, limited endpoints, and endpoints or NAT for the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from .compute import INSTANCE
from .documents import allow_statements
from .groups import INTERFACE
from .ingress import DEFAULT_GROUP
from .rule import Stack, resource_rule, stack_rule

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
NAT = "aws:ec2/natGateway:NatGateway"

#: A node without a NAT gateway needs endpoints of these services to start.
SERVICES = ("s3", "ssm", "ssmmessages", "secretsmanager", "logs", "monitoring")
#: Actions that need no condition on the account: the bucket of Amazon Linux's packages belongs to AWS.
_UNCONDITIONAL_ACTIONS = {"s3:GetObject"}
_ACCOUNT_KEYS = ("aws:principalaccount", "aws:principalorgid")


@stack_rule(VPC, controls=("EC2.2",))
def default_group_is_managed(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    """The stack manages the default security group of each VPC."""
    if not stack.referring_to(vpc, "vpcId", "id", DEFAULT_GROUP):
        yield "The stack does not manage the default security group, whose default rules allow all egress."


@resource_rule(SUBNET, controls=("EC2.15",))
def subnets_give_no_public_addresses(args: ResourceValidationArgs) -> Iterator[str]:
    """No subnet assigns public addresses automatically."""
    for key in ("mapPublicIpOnLaunch", "assignIpv6AddressOnCreation"):
        if args.props.get(key):
            yield f"{key} is true: machines in this subnet would get public addresses."


@stack_rule(VPC, controls=("EC2.6",))
def flow_logs(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    """Each VPC has a flow log of all its traffic."""
    logs = stack.referring_to(vpc, "vpcId", "id", FLOW_LOG)
    if not any(log.props.get("trafficType") == "ALL" for log in logs):
        yield "The VPC has no flow log with trafficType ALL."


@resource_rule(ENDPOINT)
def endpoints_are_limited(args: ResourceValidationArgs) -> Iterator[str]:
    """Each endpoint has a policy: S3's names buckets, and the others name the account or organization."""
    document = args.props.get("policy")
    if document is None:
        yield "The endpoint has no policy: AWS's default policy allows everything to everybody."
    is_gateway = args.props.get("vpcEndpointType", "Gateway") == "Gateway"
    for statement in allow_statements(document):
        all_resources = any(arn == "*" or arn.endswith(":s3:::*") for arn in statement.resources)
        own_account = any(
            key in _ACCOUNT_KEYS and operator.startswith("string") for operator, key in statement.conditions
        )
        if statement.inverted:
            yield f"A statement allows everything except the values of {', '.join(statement.inverted)}."
        elif all_resources and is_gateway:
            yield "A statement allows every bucket: data can be copied to buckets of other accounts."
        elif not own_account and (all_resources or set(statement.actions) - _UNCONDITIONAL_ACTIONS):
            yield "A statement allows principals of any account: add a condition on aws:PrincipalAccount."


@stack_rule(VPC, controls=("EC2.57",))
def nodes_reach_aws(vpc: PolicyResource, stack: Stack) -> Iterator[str]:
    """A VPC without a NAT gateway has the endpoints that a node needs."""
    if stack.of_type(NAT):
        return
    names = [str(endpoint.props.get("serviceName")) for endpoint in stack.referring_to(vpc, "vpcId", "id", ENDPOINT)]
    missing = [service for service in SERVICES if not any(name.endswith(f".{service}") for name in names)]
    if missing:
        yield f"The VPC has neither a NAT gateway nor endpoints of {', '.join(missing)}: nodes cannot start."


@resource_rule(INTERFACE, INSTANCE, controls=("EC2.180",))
def source_is_checked(args: ResourceValidationArgs) -> Iterator[str]:
    """No interface forwards packets of other machines."""
    if args.props.get("sourceDestCheck") is False:
        yield "sourceDestCheck is false: the interface may forward packets of other machines."
