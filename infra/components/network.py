"""The private network of the ensemble: no ingress from outside; egress only to AWS services or, with NAT, by HTTPS."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.documents import allow, document, trust_policy, write_logs
from components.settings import ZONES, Settings

HTTPS = 443
ANYWHERE = "0.0.0.0/0"
#: Services that a node needs: Session Manager, secrets, logs and metrics. S3 has a gateway endpoint, free of charge.
SERVICES = ("ssm", "ssmmessages", "secretsmanager", "logs", "monitoring")


@dataclass(frozen=True)
class Account:
    """The AWS account and the region of the stack."""

    id: pulumi.Input[str]
    partition: pulumi.Input[str]
    region: pulumi.Input[str]


def tcp_rule(
    rule_type: Callable[..., pulumi.Resource],
    name: str,
    group_id: pulumi.Input[str],
    description: str,
    port: int,
    opts: pulumi.ResourceOptions,
    **peer: pulumi.Input[str],
) -> pulumi.Resource:
    """Create a rule of a security group for one TCP port. ``peer`` is the property that names the source or target."""
    return rule_type(
        name,
        security_group_id=group_id,
        description=description,
        ip_protocol="tcp",
        from_port=port,
        to_port=port,
        **peer,
        opts=opts,
    )


@dataclass(frozen=True)
class AwsEgress:
    """The access of machines to AWS services.

    Attributes:
        endpoint_group_id: Security group of the interface endpoints; None for NAT or an existing network.
        s3_prefix_list_id: Prefix list of S3, for rules to the gateway endpoint; None for an existing network.
        resources: Routes and endpoints that must exist before a machine starts.

    """

    endpoint_group_id: pulumi.Input[str] | None = None
    s3_prefix_list_id: pulumi.Input[str] | None = None
    resources: Sequence[pulumi.Resource] = ()

    def allow(self, name: str, group_id: pulumi.Input[str], opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
        """Create rules that allow a security group HTTPS to S3 and the interface endpoints, else to all addresses.

        ``name`` is the prefix of the rules' names.
        """
        targets: dict[str, dict[str, pulumi.Input[str]]] = {"aws": {"cidr_ipv4": ANYWHERE}}
        if self.endpoint_group_id is not None:
            targets["aws"] = {"referenced_security_group_id": self.endpoint_group_id}
            if self.s3_prefix_list_id is not None:
                targets["s3"] = {"prefix_list_id": self.s3_prefix_list_id}
        rule_type = aws.vpc.SecurityGroupEgressRule
        return [
            tcp_rule(rule_type, f"{name}-{target_name}", group_id, "HTTPS to AWS services", HTTPS, opts, **target)
            for target_name, target in targets.items()
        ]


class Network(pulumi.ComponentResource):
    """A VPC with a private subnet in each of three zones.

    Args:
        account: Account whose principals may use the endpoints.
        artifacts_arn: Bucket that can be read through the gateway endpoint.
        lake_arn: Bucket of the lake, which can be read and written through the gateway endpoint.

    Attributes:
        subnet_ids: Ids of the private subnets, one in each zone.
        aws_egress: Access of machines in these subnets to AWS services.

    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        account: Account,
        *,
        artifacts_arn: pulumi.Input[str],
        lake_arn: pulumi.Input[str],
    ) -> None:
        super().__init__("sluice:network:Network", name)
        self._name, self._settings, self._account = name, settings, account
        self._child_options = pulumi.ResourceOptions(parent=self)
        blocks = list(ipaddress.IPv4Network(settings.vpc_cidr).subnets(prefixlen_diff=4))
        vpc = aws.ec2.Vpc(
            name,
            cidr_block=settings.vpc_cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": settings.name},
            opts=self._child_options,
        )
        # A machine without a security group of its own gets this group, whose empty rules allow no traffic.
        aws.ec2.DefaultSecurityGroup(f"{name}-closed", vpc_id=vpc.id, ingress=[], egress=[], opts=self._child_options)
        zones = aws.get_availability_zones_output(
            state="available",
            # Excludes local zones, which lack some services.
            filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
            opts=pulumi.InvokeOutputOptions(parent=self),
        ).names.apply(_three_zones)
        private_table = aws.ec2.RouteTable(f"{name}-private", vpc_id=vpc.id, opts=self._child_options)
        subnets = [
            self._create_subnet(f"private-{number + 1}", vpc, blocks[number], zones[number]) for number in range(ZONES)
        ]
        self._connectivity: list[pulumi.Resource] = [
            aws.ec2.RouteTableAssociation(
                f"{name}-private-{number}",
                subnet_id=subnet.id,
                route_table_id=private_table.id,
                opts=self._child_options,
            )
            for number, subnet in enumerate(subnets, start=1)
        ]
        self._create_flow_logs(vpc)
        gateway_policy_text = pulumi.Output.all(
            account.id, account.region, account.partition, artifacts_arn, lake_arn
        ).apply(lambda values: json.dumps(gateway_policy(*values, reachable_buckets=settings.reachable_buckets)))
        gateway = aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            vpc_endpoint_type="Gateway",
            service_name=pulumi.Output.format("com.amazonaws.{}.s3", account.region),
            route_table_ids=[private_table.id],
            policy=gateway_policy_text,
            opts=self._child_options,
        )
        self._connectivity.append(gateway)
        self.vpc_id = vpc.id
        self.subnet_ids: list[pulumi.Output[str]] = [subnet.id for subnet in subnets]
        endpoint_group_id: pulumi.Output[str] | None = None
        if settings.egress == "nat":
            self._create_nat(vpc, private_table, blocks[ZONES], zones[0])
        else:
            endpoint_group_id = self._create_endpoints(vpc, subnets)
        self.aws_egress = AwsEgress(endpoint_group_id, gateway.prefix_list_id, self._connectivity)
        self.register_outputs({"vpc_id": self.vpc_id, "subnet_ids": self.subnet_ids})

    def _create_subnet(
        self, suffix: str, vpc: aws.ec2.Vpc, block: ipaddress.IPv4Network, zone: pulumi.Output[str]
    ) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            f"{self._name}-{suffix}",
            vpc_id=vpc.id,
            cidr_block=str(block),
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags={"Name": f"{self._settings.name}-{suffix}"},
            # A new zone of AWS may change the order of the zones, which must not replace a subnet.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["availability_zone"]),
        )

    def _create_flow_logs(self, vpc: aws.ec2.Vpc) -> None:
        group = aws.cloudwatch.LogGroup(
            f"{self._name}-flow",
            name=f"/sluice/{self._settings.name}/flow",
            retention_in_days=self._settings.log_retention_days,
            opts=self._child_options,
        )
        role = aws.iam.Role(
            f"{self._name}-flow",
            assume_role_policy=pulumi.Output.from_input(self._account.id).apply(_flow_log_trust),
            opts=self._child_options,
        )
        find_group = allow("FindGroup", "logs:DescribeLogGroups", "*")
        aws.iam.RolePolicy(
            f"{self._name}-flow",
            role=role.id,
            policy=group.arn.apply(lambda arn: json.dumps(document(write_logs("WriteFlowLogs", arn), find_group))),
            opts=self._child_options,
        )
        aws.ec2.FlowLog(
            f"{self._name}-flow",
            vpc_id=vpc.id,
            traffic_type="ALL",
            iam_role_arn=role.arn,
            log_destination=group.arn,
            opts=self._child_options,
        )

    def _create_endpoints(self, vpc: aws.ec2.Vpc, subnets: Sequence[aws.ec2.Subnet]) -> pulumi.Output[str]:
        group = aws.ec2.SecurityGroup(
            f"{self._name}-endpoints",
            vpc_id=vpc.id,
            description="Interface endpoints of AWS services",
            tags={"Name": f"{self._settings.name}-endpoints"},
            opts=self._child_options,
        )
        rule_type, name = aws.vpc.SecurityGroupIngressRule, f"{self._name}-endpoints"
        source = {"cidr_ipv4": self._settings.vpc_cidr}
        self._connectivity.append(
            tcp_rule(rule_type, name, group.id, "HTTPS from this VPC", HTTPS, self._child_options, **source)
        )
        policy = pulumi.Output.from_input(self._account.id).apply(lambda account: json.dumps(endpoint_policy(account)))
        self._connectivity += [
            aws.ec2.VpcEndpoint(
                f"{self._name}-{service}",
                vpc_id=vpc.id,
                vpc_endpoint_type="Interface",
                service_name=pulumi.Output.format("com.amazonaws.{}.{}", self._account.region, service),
                subnet_ids=[subnet.id for subnet in subnets],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                policy=policy,
                opts=self._child_options,
            )
            for service in SERVICES
        ]
        group_id: pulumi.Output[str] = group.id
        return group_id

    def _create_nat(
        self,
        vpc: aws.ec2.Vpc,
        private_table: aws.ec2.RouteTable,
        block: ipaddress.IPv4Network,
        zone: pulumi.Output[str],
    ) -> None:
        internet_gateway = aws.ec2.InternetGateway(f"{self._name}-internet", vpc_id=vpc.id, opts=self._child_options)
        public_subnet = self._create_subnet("public", vpc, block, zone)
        public_table = aws.ec2.RouteTable(f"{self._name}-public", vpc_id=vpc.id, opts=self._child_options)
        aws.ec2.Route(
            f"{self._name}-public",
            route_table_id=public_table.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=internet_gateway.id,
            opts=self._child_options,
        )
        aws.ec2.RouteTableAssociation(
            f"{self._name}-public", subnet_id=public_subnet.id, route_table_id=public_table.id, opts=self._child_options
        )
        address = aws.ec2.Eip(f"{self._name}-nat", domain="vpc", opts=self._child_options)
        nat = aws.ec2.NatGateway(
            f"{self._name}-nat",
            allocation_id=address.id,
            subnet_id=public_subnet.id,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[internet_gateway]),
        )
        self._connectivity.append(
            aws.ec2.Route(
                f"{self._name}-nat",
                route_table_id=private_table.id,
                destination_cidr_block=ANYWHERE,
                nat_gateway_id=nat.id,
                opts=self._child_options,
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
            raise pulumi.RunError(f"configuration subnetIds: must be in distinct zones, and are in {', '.join(zones)}")
        return list(subnet_ids)

    ids = pulumi.Output.all(*zone_outputs).apply(checked_ids)
    return [ids[number] for number in range(len(subnet_ids))]


def gateway_policy(
    account_id: str,
    region: str,
    partition: str,
    artifacts_arn: str,
    lake_arn: str,
    *,
    reachable_buckets: Sequence[str],
) -> dict[str, object]:
    """Return the policy of the gateway endpoint to S3. ``reachable_buckets`` are names.

    Only principals of the account may read the artifacts, and use the lake and the reachable buckets.
    Amazon Linux 2023 has a package bucket in each region; all their names end in the same eight characters.
    """
    bucket_arns = [lake_arn, *(f"arn:{partition}:s3:::{name}" for name in reachable_buckets)]
    own_account = _account_condition(account_id)
    return document(
        allow("AmazonLinux", "s3:GetObject", f"arn:{partition}:s3:::al2023-repos-{region}-de612dc2/*", Principal="*"),
        allow("Artifacts", "s3:GetObject", [f"{artifacts_arn}/*"], Principal="*", Condition=own_account),
        allow(
            "LakeAndSources",
            "s3:*",
            [resource for arn in bucket_arns for resource in (arn, f"{arn}/*")],
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
        raise pulumi.RunError(
            f"this region has {len(zones)} zones: choose a region with {ZONES}, because one may be lost"
        )
    return sorted(zones)[:ZONES]
