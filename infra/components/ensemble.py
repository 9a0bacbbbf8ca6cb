"""A ZooKeeper ensemble on EC2, whose members keep their addresses and their data when a machine is replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.artifacts import Artifacts
from components.certificates import LOCK_ROOT_ACL, NODE, PARENT_ACL, Authority, Pair, node_secret
from components.documents import MACHINES, SESSION_MANAGER, document, write_logs
from components.network import WayToAws
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

#: What would replace a machine, or stop it, when it changes: only the one that ``replaceNode`` names takes it.
EXPLICIT = ["ami", "instance_type", "user_data", "root_block_device"]
_VOLUMES = {"data": "/dev/sdf", "log": "/dev/sdg"}


@dataclass(frozen=True)
class EnsembleArgs:
    """What an ensemble is made of.

    Attributes:
        name: what names begin with.
        stack: how its metrics and logs are told from those of others.
        nodes: how many members.
        replace_node: the one whose machine takes today's image, type and bootstrap; 0 for none.
        protect: whether Pulumi refuses to delete what holds data, or an address.
        vpc_id: of the network.
        subnet_ids: private ones, one a zone; members are dealt to them in this order.
        way_to_aws: of the machines.
        instance_type: of the machines.
        image_id: of their image.
        volume_gib: size by volume, ``data`` and ``log``.
        artifacts: where they fetch ZooKeeper from.
        members, clients: who vouches for whom.
        log_group: where they log.
        region: of the stack.

    """

    name: str
    stack: str
    nodes: int
    replace_node: int
    protect: bool
    vpc_id: pulumi.Input[str]
    subnet_ids: Sequence[pulumi.Input[str]]
    way_to_aws: WayToAws
    instance_type: str
    image_id: pulumi.Input[str]
    volume_gib: Mapping[str, int]
    artifacts: Artifacts
    members: Authority
    clients: Authority
    log_group: aws.cloudwatch.LogGroup
    region: pulumi.Input[str]


class Ensemble(pulumi.ComponentResource):
    """Members with ids from 1, each with an interface and two volumes of its own that outlive its machine.

    Attributes:
        security_group_id: of the members.
        connection_string: for clients, ``address:port`` comma-separated.
        instance_ids: of the machines, in the order of the members.

    """

    def __init__(self, name: str, args: EnsembleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:ensemble:Ensemble", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        # A machine that starts before it may go anywhere finds nothing: its user data runs once.
        self._ways: list[pulumi.Resource] = list(args.way_to_aws.resources)
        group = self._security_group()
        self.security_group_id = group.id
        ids = range(1, args.nodes + 1)
        interfaces = {each: self._interface(each, group) for each in ids}
        # Every address is known before the first machine starts: the members' list has no gap to be filled in later.
        self.members: pulumi.Output[dict[int, str]] = pulumi.Output.all(
            *(interface.private_ip for interface in interfaces.values())
        ).apply(lambda found: dict(enumerate(found, start=1)))
        self._initialized = aws.ssm.Parameter(
            f"{name}-initialized",
            name=f"/{args.name}/zookeeper/initialized",
            type="String",
            value="no",
            description="Whether the ensemble has ever had a leader: the nodes set it to yes",
            opts=pulumi.ResourceOptions(parent=self, protect=args.protect, ignore_changes=["value"]),
        )
        node = args.clients.client(NODE)
        self.instance_ids = [self._node(each, interfaces[each], node) for each in ids]
        self.connection_string = self.members.apply(connection_string)
        self.register_outputs({"connection_string": self.connection_string})

    def _security_group(self) -> aws.ec2.SecurityGroup:
        args = self._args
        group = aws.ec2.SecurityGroup(
            f"{self._name}-members",
            vpc_id=args.vpc_id,
            description="Members of the ZooKeeper ensemble",
            tags={"Name": f"{args.name}-zookeeper"},
            opts=self._child,
        )
        for what, port in (("quorum", QUORUM_PORT), ("election", ELECTION_PORT)):
            common = {
                "security_group_id": group.id,
                "referenced_security_group_id": group.id,
                "description": f"Members among themselves: {what}",
                "ip_protocol": "tcp",
                "from_port": port,
                "to_port": port,
            }
            for kind in (aws.vpc.SecurityGroupIngressRule, aws.vpc.SecurityGroupEgressRule):
                self._ways.append(kind(f"{self._name}-{what}", **common, opts=self._child))
        self._ways += args.way_to_aws.open_to(self._name, group.id, self._child)
        return group

    def _subnet_of(self, node: int) -> pulumi.Input[str]:
        return self._args.subnet_ids[(node - 1) % len(self._args.subnet_ids)]

    def _interface(self, node: int, group: aws.ec2.SecurityGroup) -> aws.ec2.NetworkInterface:
        return aws.ec2.NetworkInterface(
            f"{self._name}-{node}",
            subnet_id=self._subnet_of(node),
            security_groups=[group.id],
            description=f"ZooKeeper member {node} of {self._args.stack}",
            tags={"Name": f"{self._args.name}-zookeeper-{node}"},
            opts=pulumi.ResourceOptions(parent=self, protect=self._args.protect),
        )

    def _node(self, node: int, interface: aws.ec2.NetworkInterface, pair: Pair) -> pulumi.Output[str]:
        args, name = self._args, f"{self._name}-{node}"
        secret = aws.secretsmanager.Secret(
            name,
            name_prefix=f"{args.name}/zookeeper/node-{node}-",
            description=f"Key and certificates of ZooKeeper member {node} of {args.stack}",
            recovery_window_in_days=7,
            opts=self._child,
        )
        member = args.members.member(f"node-{node}", interface.private_ip)
        version = aws.secretsmanager.SecretVersion(
            name,
            secret_id=secret.id,
            secret_string=node_secret(member, pair, args.members, args.clients),
            opts=self._child,
        )
        parameter = aws.ssm.Parameter(
            name,
            name=f"/{args.name}/zookeeper/node-{node}/zoo.cfg",
            type="String",
            # Of 4 to 8 KB, as seven members need.
            tier="Intelligent-Tiering",
            value=self.members.apply(lambda members: zoo_cfg(node, members)),
            description="Read by the node at each start of ZooKeeper",
            opts=self._child,
        )
        volumes = {what: self._volume(node, what) for what in _VOLUMES}
        profile, rights = self._profile(node, secret, parameter)
        instance = aws.ec2.Instance(
            name,
            ami=args.image_id,
            instance_type=args.instance_type,
            iam_instance_profile=profile.name,
            primary_network_interface={"network_interface_id": interface.id},
            metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 1},
            root_block_device={"encrypted": True, "volume_type": "gp3", "delete_on_termination": True},
            user_data=self._user_data(node, volumes, secret, parameter),
            user_data_replace_on_change=True,
            tags={"Name": f"{args.name}-zookeeper-{node}"},
            opts=pulumi.ResourceOptions(
                parent=self,
                # Its interface and its volumes have to be free before its successor can have them.
                delete_before_replace=True,
                ignore_changes=None if node == args.replace_node else EXPLICIT,
                depends_on=[version, rights, *args.artifacts.objects, *self._ways],
            ),
        )
        for what, device in _VOLUMES.items():
            aws.ec2.VolumeAttachment(
                f"{name}-{what}",
                device_name=device,
                instance_id=instance.id,
                volume_id=volumes[what].id,
                # ZooKeeper has it open.
                stop_instance_before_detaching=True,
                opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
            )
        instance_id: pulumi.Output[str] = instance.id
        return instance_id

    def _volume(self, node: int, what: str) -> aws.ebs.Volume:
        zone = aws.ec2.get_subnet_output(id=self._subnet_of(node), opts=pulumi.InvokeOutputOptions(parent=self))
        return aws.ebs.Volume(
            f"{self._name}-{node}-{what}",
            availability_zone=zone.availability_zone,
            size=self._args.volume_gib[what],
            type="gp3",
            encrypted=True,
            tags={"Name": f"{self._args.name}-zookeeper-{node}-{what}"},
            # Where a volume is it stays: to read its subnet's zone anew must not replace it.
            opts=pulumi.ResourceOptions(parent=self, protect=self._args.protect, ignore_changes=["availability_zone"]),
        )

    def _profile(
        self, node: int, secret: aws.secretsmanager.Secret, parameter: aws.ssm.Parameter
    ) -> tuple[aws.iam.InstanceProfile, aws.iam.RolePolicy]:
        """Make the role of one node: its own secret and parameter, and nothing of its neighbours'."""
        args, name = self._args, f"{self._name}-{node}"
        role = aws.iam.Role(
            name,
            name_prefix=f"{args.name}-zk-{node}-",
            assume_role_policy=json.dumps(MACHINES),
            opts=self._child,
        )
        known = pulumi.Output.all(
            secret=secret.arn,
            parameter=parameter.arn,
            initialized=self._initialized.arn,
            artifacts=args.artifacts.arn,
            log_group=args.log_group.arn,
        )
        rights = aws.iam.RolePolicy(
            name, role=role.id, policy=known.apply(lambda arns: json.dumps(node_policy(**arns))), opts=self._child
        )
        return aws.iam.InstanceProfile(name, role=role.name, opts=self._child), rights

    def _user_data(
        self,
        node: int,
        volumes: Mapping[str, aws.ebs.Volume],
        secret: aws.secretsmanager.Secret,
        parameter: aws.ssm.Parameter,
    ) -> pulumi.Output[str]:
        args = self._args
        return pulumi.Output.all(
            NODE=str(node),
            STACK=args.stack,
            REGION=args.region,
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
    """Return what the role of one node may do; the arguments are ARNs."""
    return document(
        {"Sid": "OwnSecret", "Effect": "Allow", "Action": "secretsmanager:GetSecretValue", "Resource": secret},
        {"Sid": "OwnConfiguration", "Effect": "Allow", "Action": "ssm:GetParameter", "Resource": parameter},
        {
            "Sid": "Initialized",
            "Effect": "Allow",
            "Action": ["ssm:GetParameter", "ssm:PutParameter"],
            "Resource": initialized,
        },
        {"Sid": "Artifacts", "Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{artifacts}/*"},
        write_logs("Logs", log_group),
        {
            "Sid": "Metrics",
            "Effect": "Allow",
            "Action": "cloudwatch:PutMetricData",
            "Resource": "*",
            "Condition": {"StringEquals": {"cloudwatch:namespace": "Sluice/ZooKeeper"}},
        },
        SESSION_MANAGER,
    )
