"""The private network of the ensemble: no ingress from outside, and egress only to AWS services."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.documents import allow, document, trust_policy, write_logs
from components.settings import ZONES

HTTPS = 443
ANYWHERE = "0.0.0.0/0"
#: Services that a node needs: Session Manager, secrets, logs and metrics. S3 has a gateway endpoint, free of charge.
SERVICES = ("ssm", "ssmmessages", "secretsmanager", "logs", "monitoring")
_SUBNET_BITS = 4


@dataclass(frozen=True)
class NetworkArgs:
    """The arguments of :class:`Network`.

    Attributes:
        name: Prefix of names in AWS.
        cidr: CIDR block of the VPC.
        egress: ``endpoints`` or ``nat``.
        log_retention_days: Days to keep flow logs.
        region: AWS region of the stack.
        account_id: Account whose principals may use the endpoints.
        partition: AWS partition of the stack.
        readable_bucket_arns: Buckets that the gateway endpoint allows to read.
        lake_bucket_arn: Bucket of the lake, which the gateway endpoint allows to read and write.
        reachable_buckets: Names of further buckets that clusters in this network read or write.

    """

    name: str
    cidr: str
    egress: str
    log_retention_days: int
    region: pulumi.Input[str]
    account_id: pulumi.Input[str]
    partition: pulumi.Input[str]
    readable_bucket_arns: Sequence[pulumi.Input[str]]
    lake_bucket_arn: pulumi.Input[str]
    reachable_buckets: Sequence[str]


@dataclass(frozen=True)
class AwsEgress:
    """How machines reach AWS services.

    Attributes:
        endpoint_group_id: Security group of the interface endpoints; None for NAT or an existing network.
        s3_prefix_list_id: Prefix list of S3 for security group rules, with a gateway endpoint.
        resources: Routes and endpoints that must exist before a machine starts.

    """

    endpoint_group_id: pulumi.Input[str] | None = None
    s3_prefix_list_id: pulumi.Input[str] | None = None
    resources: Sequence[pulumi.Resource] = ()

    def allow(self, name: str, group_id: pulumi.Input[str], opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
        """Create rules that allow a security group HTTPS to AWS services, to as few targets as the network permits.

        Args:
            name: Prefix of the rules' names.
            group_id: Security group to which the rules apply.
            opts: Pulumi options of the rules.

        """
        targets: dict[str, dict[str, pulumi.Input[str]]] = {}
        if self.endpoint_group_id is None:
            targets["aws"] = {"cidr_ipv4": ANYWHERE}
        else:
            targets["aws"] = {"referenced_security_group_id": self.endpoint_group_id}
            if self.s3_prefix_list_id is not None:
                targets["s3"] = {"prefix_list_id": self.s3_prefix_list_id}
        return [
            aws.vpc.SecurityGroupEgressRule(
                f"{name}-{target_name}",
                security_group_id=group_id,
                description="HTTPS to AWS services",
                ip_protocol="tcp",
                from_port=HTTPS,
                to_port=HTTPS,
                **target,
                opts=opts,
            )
            for target_name, target in targets.items()
        ]


class Network(pulumi.ComponentResource):
    """A VPC with a private subnet in each of three zones.

    Attributes:
        vpc_id: Id of the VPC.
        subnet_ids: Ids of the private subnets, one in each zone.
        aws_egress: How machines in these subnets reach AWS services.

    """

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:network:Network", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        self._connectivity: list[pulumi.Resource] = []
        blocks = list(ipaddress.IPv4Network(args.cidr).subnets(prefixlen_diff=_SUBNET_BITS))
        vpc = aws.ec2.Vpc(
            name,
            cidr_block=args.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": args.name},
            opts=self._child,
        )
        # Without rules, a machine without a security group has no network access.
        aws.ec2.DefaultSecurityGroup(f"{name}-closed", vpc_id=vpc.id, ingress=[], egress=[], opts=self._child)
        zones = aws.get_availability_zones_output(
            state="available",
            # Excludes local zones, which lack some services.
            filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
            opts=pulumi.InvokeOutputOptions(parent=self),
        ).names.apply(_three_zones)
        table = aws.ec2.RouteTable(f"{name}-private", vpc_id=vpc.id, opts=self._child)
        subnets = [self._subnet(f"private-{number + 1}", vpc, blocks[number], zones[number]) for number in range(ZONES)]
        for number, subnet in enumerate(subnets):
            self._connectivity.append(
                aws.ec2.RouteTableAssociation(
                    f"{name}-private-{number + 1}", subnet_id=subnet.id, route_table_id=table.id, opts=self._child
                )
            )
        self._flow_logs(vpc)
        gateway = aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=pulumi.Output.format("com.amazonaws.{}.s3", args.region),
            route_table_ids=[table.id],
            policy=self._gateway_policy(),
            opts=self._child,
        )
        self._connectivity.append(gateway)
        self.vpc_id = vpc.id
        self.subnet_ids: list[pulumi.Output[str]] = [subnet.id for subnet in subnets]
        endpoint_group_id: pulumi.Output[str] | None = None
        if args.egress == "nat":
            self._nat(vpc, table, blocks[ZONES], zones[0])
        else:
            endpoint_group_id = self._endpoints(vpc, subnets)
        self.aws_egress = AwsEgress(endpoint_group_id, gateway.prefix_list_id, self._connectivity)
        self.register_outputs({"vpc_id": self.vpc_id, "subnet_ids": self.subnet_ids})

    def _subnet(
        self, suffix: str, vpc: aws.ec2.Vpc, block: ipaddress.IPv4Network, zone: pulumi.Output[str]
    ) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            f"{self._name}-{suffix}",
            vpc_id=vpc.id,
            cidr_block=str(block),
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags={"Name": f"{self._args.name}-{suffix}"},
            # A new zone of AWS may change the order of the list and must not replace a subnet.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["availability_zone"]),
        )

    def _flow_logs(self, vpc: aws.ec2.Vpc) -> None:
        group = aws.cloudwatch.LogGroup(
            f"{self._name}-flow",
            name=f"/sluice/{self._args.name}/flow",
            retention_in_days=self._args.log_retention_days,
            opts=self._child,
        )
        role = aws.iam.Role(
            f"{self._name}-flow",
            assume_role_policy=pulumi.Output.from_input(self._args.account_id).apply(_flow_log_trust),
            opts=self._child,
        )
        aws.iam.RolePolicy(
            f"{self._name}-flow",
            role=role.id,
            policy=group.arn.apply(
                lambda arn: json.dumps(
                    document(
                        write_logs("WriteFlowLogs", arn),
                        allow("FindGroup", "logs:DescribeLogGroups", "*"),
                    )
                )
            ),
            opts=self._child,
        )
        aws.ec2.FlowLog(
            f"{self._name}-flow",
            vpc_id=vpc.id,
            traffic_type="ALL",
            iam_role_arn=role.arn,
            log_destination=group.arn,
            opts=self._child,
        )

    def _gateway_policy(self) -> pulumi.Output[str]:
        """Return the gateway endpoint's policy, with the lake, reachable buckets, artifacts and Amazon Linux only."""
        inputs = {
            "account": self._args.account_id,
            "region": self._args.region,
            "partition": self._args.partition,
            "readable": list(self._args.readable_bucket_arns),
            "lake": self._args.lake_bucket_arn,
        }
        return pulumi.Output.all(**inputs).apply(
            lambda values: json.dumps(
                gateway_policy(
                    account_id=values["account"],
                    region=values["region"],
                    partition=values["partition"],
                    readable_bucket_arns=values["readable"],
                    written_bucket_arns=[
                        values["lake"],
                        *(f"arn:{values['partition']}:s3:::{name}" for name in self._args.reachable_buckets),
                    ],
                )
            )
        )

    def _endpoints(self, vpc: aws.ec2.Vpc, subnets: Sequence[aws.ec2.Subnet]) -> pulumi.Output[str]:
        group = aws.ec2.SecurityGroup(
            f"{self._name}-endpoints",
            vpc_id=vpc.id,
            description="Interface endpoints of AWS services",
            tags={"Name": f"{self._args.name}-endpoints"},
            opts=self._child,
        )
        self._connectivity.append(
            aws.vpc.SecurityGroupIngressRule(
                f"{self._name}-endpoints",
                security_group_id=group.id,
                description="HTTPS from this VPC",
                cidr_ipv4=self._args.cidr,
                ip_protocol="tcp",
                from_port=HTTPS,
                to_port=HTTPS,
                opts=self._child,
            )
        )
        policy = pulumi.Output.from_input(self._args.account_id).apply(
            lambda account: json.dumps(endpoint_policy(account))
        )
        for service in SERVICES:
            self._connectivity.append(
                aws.ec2.VpcEndpoint(
                    f"{self._name}-{service}",
                    vpc_id=vpc.id,
                    vpc_endpoint_type="Interface",
                    service_name=pulumi.Output.format("com.amazonaws.{}.{}", self._args.region, service),
                    subnet_ids=[subnet.id for subnet in subnets],
                    security_group_ids=[group.id],
                    private_dns_enabled=True,
                    policy=policy,
                    opts=self._child,
                )
            )
        group_id: pulumi.Output[str] = group.id
        return group_id

    def _nat(
        self,
        vpc: aws.ec2.Vpc,
        private: aws.ec2.RouteTable,
        block: ipaddress.IPv4Network,
        zone: pulumi.Output[str],
    ) -> None:
        internet = aws.ec2.InternetGateway(f"{self._name}-internet", vpc_id=vpc.id, opts=self._child)
        public = self._subnet("public", vpc, block, zone)
        routes = aws.ec2.RouteTable(f"{self._name}-public", vpc_id=vpc.id, opts=self._child)
        aws.ec2.Route(
            f"{self._name}-public",
            route_table_id=routes.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=internet.id,
            opts=self._child,
        )
        aws.ec2.RouteTableAssociation(
            f"{self._name}-public", subnet_id=public.id, route_table_id=routes.id, opts=self._child
        )
        address = aws.ec2.Eip(f"{self._name}-nat", domain="vpc", opts=self._child)
        nat = aws.ec2.NatGateway(
            f"{self._name}-nat",
            allocation_id=address.id,
            subnet_id=public.id,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[internet]),
        )
        self._connectivity.append(
            aws.ec2.Route(
                f"{self._name}-nat",
                route_table_id=private.id,
                destination_cidr_block=ANYWHERE,
                nat_gateway_id=nat.id,
                opts=self._child,
            )
        )


def in_distinct_zones(subnet_ids: Sequence[str]) -> list[pulumi.Output[str]]:
    """Return the ids of existing subnets after a check that their zones differ.

    Raises:
        pulumi.RunError: Two subnets are in one zone. It is raised when Pulumi resolves the outputs.

    """
    zone_outputs = [aws.ec2.get_subnet_output(id=subnet_id).availability_zone for subnet_id in subnet_ids]

    def checked_ids(zones: Sequence[str]) -> list[str]:
        if len(set(zones)) < len(zones):
            raise pulumi.RunError(f"configuration subnetIds: must be in three zones, and are in {', '.join(zones)}")
        return list(subnet_ids)

    ids = pulumi.Output.all(*zone_outputs).apply(checked_ids)
    return [ids[number] for number in range(len(subnet_ids))]


def gateway_policy(
    *,
    account_id: str,
    region: str,
    partition: str,
    readable_bucket_arns: Sequence[str],
    written_bucket_arns: Sequence[str],
) -> dict[str, object]:
    """Return the policy of the gateway endpoint to S3.

    Amazon Linux 2023 has a package bucket in each region; all their names end in the same eight characters.

    Args:
        account_id: Account whose principals may use the artifacts, the lake and the reachable buckets.
        region: AWS region of the stack.
        partition: AWS partition of the stack.
        readable_bucket_arns: Buckets with read access only.
        written_bucket_arns: Buckets with all access.

    """
    own_account = _account_condition(account_id)
    return document(
        allow("AmazonLinux", "s3:GetObject", f"arn:{partition}:s3:::al2023-repos-{region}-de612dc2/*", Principal="*"),
        allow(
            "Artifacts",
            "s3:GetObject",
            [f"{arn}/*" for arn in readable_bucket_arns],
            Principal="*",
            Condition=own_account,
        ),
        allow(
            "LakeAndSources",
            "s3:*",
            [resource for arn in written_bucket_arns for resource in (arn, f"{arn}/*")],
            Principal="*",
            Condition=own_account,
        ),
    )


def endpoint_policy(account_id: str) -> dict[str, object]:
    """Return the policy of an interface endpoint, which allows only principals of the account."""
    return document(allow("ThisAccount", "*", "*", Principal="*", Condition=_account_condition(account_id)))


def _account_condition(account_id: str) -> dict[str, dict[str, str]]:
    return {"StringEquals": {"aws:PrincipalAccount": account_id}}


def _flow_log_trust(account_id: str) -> str:
    # The condition keeps flow logs of other accounts from using the role.
    own_account = {"StringEquals": {"aws:SourceAccount": account_id}}
    return json.dumps(trust_policy({"Service": "vpc-flow-logs.amazonaws.com"}, own_account))


def _three_zones(zones: Sequence[str]) -> list[str]:
    if len(zones) < ZONES:
        raise pulumi.RunError(f"this region has {len(zones)} zones: an ensemble needs {ZONES} to survive losing one")
    return sorted(zones)[:ZONES]
