"""A ZooKeeper ensemble on EC2. Members keep their address and data when their machine is replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.artifacts import Artifacts
from components.certificates import LOCK_ROOT_ACL, NODE, PARENT_ACL, Authority, KeyPair, node_secret, store_secret
from components.documents import EC2_TRUST, SESSION_MANAGER, allow, document, write_logs
from components.network import Account, AwsEgress, tcp_rule
from components.node_config import (
    ELECTION_PORT,
    LOCK_ROOT,
    QUORUM_PORT,
    ZOOKEEPER_SHA512,
    connection_string,
    file_list,
    user_data,
    zoo_cfg,
)
from components.settings import Settings

#: Properties whose change replaces or stops a machine. Only the machine named by ``replaceNode`` takes such a change.
REPLACING_PROPERTIES = ["ami", "instance_type", "user_data", "root_block_device"]
_VOLUMES = {"data": "/dev/sdf", "log": "/dev/sdg"}


@dataclass(frozen=True)
class EnsembleArgs:
    """The arguments of :class:`Ensemble`.

    Attributes:
        subnet_ids: Private subnets, one in each zone. Members are assigned to them in turn.
        aws_egress: Access of the machines to AWS services.
        artifacts: Bucket with ZooKeeper and the node files.
        member_authority: Certificate authority of the members.
        client_authority: Certificate authority of the clients.

    """

    settings: Settings
    account: Account
    vpc_id: pulumi.Input[str]
    subnet_ids: Sequence[pulumi.Input[str]]
    aws_egress: AwsEgress
    image_id: pulumi.Input[str]
    artifacts: Artifacts
    member_authority: Authority
    client_authority: Authority
    log_group: aws.cloudwatch.LogGroup


class Ensemble(pulumi.ComponentResource):
    """The members, whose ids count from 1. A member's interface and two volumes survive a replacement of its machine.

    Attributes:
        security_group_id: Security group of the members.
        connection_string: Addresses for clients: ``address:port``, comma-separated.
        instance_ids: Ids of the machines, in the order of the members.

    """

    def __init__(self, name: str, args: EnsembleArgs) -> None:
        super().__init__("sluice:ensemble:Ensemble", name)
        self._name, self._args, self._settings = name, args, args.settings
        self._child_options = pulumi.ResourceOptions(parent=self)
        # User data runs once, so machines are created after the rules and routes that their downloads need.
        self._connectivity: list[pulumi.Resource] = list(args.aws_egress.resources)
        group = self._create_security_group()
        self.security_group_id = group.id
        ids = range(1, self._settings.nodes + 1)
        interfaces = {member_id: self._create_interface(member_id, group) for member_id in ids}
        # The interfaces get their addresses before the first machine starts, so each zoo.cfg lists all members.
        self._addresses: pulumi.Output[dict[int, str]] = pulumi.Output.all(
            *(interface.private_ip for interface in interfaces.values())
        ).apply(lambda addresses: dict(enumerate(addresses, start=1)))
        self._initialized = aws.ssm.Parameter(
            f"{name}-initialized",
            name=f"/{self._settings.name}/zookeeper/initialized",
            type="String",
            value="no",
            description="Whether the ensemble has ever had a leader: the nodes set it to yes",
            opts=pulumi.ResourceOptions(parent=self, protect=self._settings.protect, ignore_changes=["value"]),
        )
        node_client_pair = args.client_authority.issue(NODE)
        self.instance_ids = [self._create_node(member_id, interfaces[member_id], node_client_pair) for member_id in ids]
        self.connection_string = self._addresses.apply(connection_string)
        self.register_outputs({"connection_string": self.connection_string})

    def _create_security_group(self) -> aws.ec2.SecurityGroup:
        args = self._args
        group = aws.ec2.SecurityGroup(
            f"{self._name}-members",
            vpc_id=args.vpc_id,
            description="Members of the ZooKeeper ensemble",
            tags={"Name": f"{self._settings.name}-zookeeper"},
            opts=self._child_options,
        )
        for purpose, port in (("quorum", QUORUM_PORT), ("election", ELECTION_PORT)):
            name, description = f"{self._name}-{purpose}", f"Traffic between members: {purpose}"
            self._connectivity += [
                tcp_rule(
                    rule_type,
                    name,
                    group.id,
                    description,
                    port,
                    self._child_options,
                    referenced_security_group_id=group.id,
                )
                for rule_type in (aws.vpc.SecurityGroupIngressRule, aws.vpc.SecurityGroupEgressRule)
            ]
        self._connectivity += args.aws_egress.allow(self._name, group.id, self._child_options)
        return group

    def _subnet_of(self, member_id: int) -> pulumi.Input[str]:
        return self._args.subnet_ids[(member_id - 1) % len(self._args.subnet_ids)]

    def _create_interface(self, member_id: int, group: aws.ec2.SecurityGroup) -> aws.ec2.NetworkInterface:
        return aws.ec2.NetworkInterface(
            f"{self._name}-{member_id}",
            subnet_id=self._subnet_of(member_id),
            security_groups=[group.id],
            description=f"ZooKeeper member {member_id} of {self._settings.stack}",
            tags={"Name": f"{self._settings.name}-zookeeper-{member_id}"},
            opts=pulumi.ResourceOptions(parent=self, protect=self._settings.protect),
        )

    def _create_node(
        self, member_id: int, interface: aws.ec2.NetworkInterface, client_pair: KeyPair
    ) -> pulumi.Output[str]:
        args, settings, name = self._args, self._settings, f"{self._name}-{member_id}"
        member_pair = args.member_authority.issue(f"node-{member_id}", interface.private_ip)
        content = node_secret(member_pair, client_pair, args.member_authority, args.client_authority)
        description = f"Key and certificates of ZooKeeper member {member_id} of {settings.stack}"
        secret, version = store_secret(
            name, f"{settings.name}/zookeeper/node-{member_id}-", description, content, self._child_options
        )
        parameter = aws.ssm.Parameter(
            name,
            name=f"/{settings.name}/zookeeper/node-{member_id}/zoo.cfg",
            type="String",
            value=self._addresses.apply(lambda addresses: zoo_cfg(member_id, addresses)),
            description="Read by the node at each start of ZooKeeper",
            opts=self._child_options,
        )
        volumes = {purpose: self._create_volume(member_id, purpose) for purpose in _VOLUMES}
        profile, role_policy = self._create_profile(member_id, secret, parameter)
        instance = aws.ec2.Instance(
            name,
            ami=args.image_id,
            instance_type=settings.instance_type,
            iam_instance_profile=profile.name,
            primary_network_interface={"network_interface_id": interface.id},
            metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 1},
            root_block_device={"encrypted": True, "volume_type": "gp3", "delete_on_termination": True},
            user_data=self._user_data(member_id, volumes, secret, parameter),
            user_data_replace_on_change=True,
            tags={"Name": f"{settings.name}-zookeeper-{member_id}"},
            opts=pulumi.ResourceOptions(
                parent=self,
                # The new machine needs the interface and the volumes of the old one.
                delete_before_replace=True,
                ignore_changes=None if member_id == settings.replace_node else REPLACING_PROPERTIES,
                depends_on=[version, role_policy, *args.artifacts.objects, *self._connectivity],
            ),
        )
        for purpose, device in _VOLUMES.items():
            aws.ec2.VolumeAttachment(
                f"{name}-{purpose}",
                device_name=device,
                instance_id=instance.id,
                volume_id=volumes[purpose].id,
                # A running ZooKeeper has files of the volume open.
                stop_instance_before_detaching=True,
                opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
            )
        instance_id: pulumi.Output[str] = instance.id
        return instance_id

    def _create_volume(self, member_id: int, purpose: str) -> aws.ebs.Volume:
        settings = self._settings
        zone = aws.ec2.get_subnet_output(id=self._subnet_of(member_id), opts=pulumi.InvokeOutputOptions(parent=self))
        return aws.ebs.Volume(
            f"{self._name}-{member_id}-{purpose}",
            availability_zone=zone.availability_zone,
            size=settings.data_volume_gib if purpose == "data" else settings.log_volume_gib,
            type="gp3",
            encrypted=True,
            tags={"Name": f"{settings.name}-zookeeper-{member_id}-{purpose}"},
            # If AWS returns another zone for the subnet later, the volume must not be replaced.
            opts=pulumi.ResourceOptions(parent=self, protect=settings.protect, ignore_changes=["availability_zone"]),
        )

    def _create_profile(
        self, member_id: int, secret: aws.secretsmanager.Secret, parameter: aws.ssm.Parameter
    ) -> tuple[aws.iam.InstanceProfile, aws.iam.RolePolicy]:
        """Create the instance profile and role of a node, which can read only its own secret and zoo.cfg parameter."""
        args, name = self._args, f"{self._name}-{member_id}"
        role = aws.iam.Role(
            name,
            name_prefix=f"{self._settings.name}-zk-{member_id}-",
            assume_role_policy=json.dumps(EC2_TRUST),
            opts=self._child_options,
        )
        arns = pulumi.Output.all(
            secret=secret.arn,
            parameter=parameter.arn,
            initialized=self._initialized.arn,
            artifacts=args.artifacts.arn,
            log_group=args.log_group.arn,
        )
        role_policy = aws.iam.RolePolicy(
            name,
            role=role.id,
            policy=arns.apply(lambda values: json.dumps(node_policy(**values))),
            opts=self._child_options,
        )
        return aws.iam.InstanceProfile(name, role=role.name, opts=self._child_options), role_policy

    def _user_data(
        self,
        member_id: int,
        volumes: Mapping[str, aws.ebs.Volume],
        secret: aws.secretsmanager.Secret,
        parameter: aws.ssm.Parameter,
    ) -> pulumi.Output[str]:
        args = self._args
        return pulumi.Output.all(
            NODE=str(member_id),
            STACK=self._settings.stack,
            REGION=args.account.region,
            DATA_VOLUME=volumes["data"].id,
            LOG_VOLUME=volumes["log"].id,
            ARTIFACTS=args.artifacts.bucket,
            ARCHIVE=args.artifacts.archive_key,
            ARCHIVE_SHA512=ZOOKEEPER_SHA512,
            FILES=file_list(args.artifacts.files),
            LOG_GROUP=args.log_group.name,
            PARAMETER=parameter.name,
            INITIALIZED=self._initialized.name,
            SECRET=secret.arn,
            LOCK_ROOT=LOCK_ROOT,
            LOCK_ROOT_ACL=LOCK_ROOT_ACL,
            PARENT_ACL=PARENT_ACL,
        ).apply(user_data)


def node_policy(*, secret: str, parameter: str, initialized: str, artifacts: str, log_group: str) -> dict[str, object]:
    """Return the policy of a node's role; the arguments are ARNs."""
    return document(
        allow("OwnSecret", "secretsmanager:GetSecretValue", secret),
        allow("OwnConfiguration", "ssm:GetParameter", parameter),
        allow("Initialized", ["ssm:GetParameter", "ssm:PutParameter"], initialized),
        allow("Artifacts", "s3:GetObject", f"{artifacts}/*"),
        write_logs("Logs", log_group),
        allow(
            "Metrics",
            "cloudwatch:PutMetricData",
            "*",
            Condition={"StringEquals": {"cloudwatch:namespace": "Sluice/ZooKeeper"}},
        ),
        SESSION_MANAGER,
    )
