"""Who may do what: policies for those who append, who maintain, and who operate, each with the least that it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from components.certificates import APPENDER, CLIENT_ACL, MAINTENANCE, OPERATOR, Authority, client_secret
from components.commit_policy import log_arns, object_arns, unconditional_commit
from components.documents import MACHINES, SESSION_MANAGER, assumed_by, document
from components.network import WayToAws
from components.node_config import CLIENT_PORT

#: Roles, and the subjects of their certificates.
SUBJECTS = {"appender": APPENDER, "maintenance": MAINTENANCE, "operator": OPERATOR}


@dataclass(frozen=True)
class Lake:
    """What policies are about; ARNs, as soon as they are known.

    Attributes:
        bucket: of the lake.
        prefixes: folders of the tables, without a slash at either end; empty: the whole bucket.
        key: KMS key of the lake, if it has one.
        secret: with the settings of the role's clients of ZooKeeper, if they are known.

    """

    bucket: str
    prefixes: tuple[str, ...] = ()
    key: str | None = None
    secret: str | None = None


def appender_policy(lake: Lake) -> dict[str, Any]:
    """Read tables and add to them: no version file but by a conditional PUT, and nothing of a log is deleted.

    Data files may be deleted, for a write whose commit was refused takes its files away.
    """
    keep_logs = {
        "Sid": "KeepLogs",
        "Effect": "Deny",
        "Action": "s3:DeleteObject",
        "Resource": _logs(lake),
    }
    return document(*_read_and_write(lake), keep_logs)


def maintenance_policy(lake: Lake) -> dict[str, Any]:
    """Do what an appender does, and remove what VACUUM and the log's clean-up remove."""
    return document(*_read_and_write(lake))


def _read_and_write(lake: Lake) -> list[dict[str, Any]]:
    return [
        *_list_bucket(lake),
        {
            "Sid": "ReadAndWrite",
            "Effect": "Allow",
            "Action": [
                "s3:GetObject",
                "s3:PutObject",
                "s3:DeleteObject",
                "s3:AbortMultipartUpload",
                "s3:ListMultipartUploadParts",
            ],
            "Resource": object_arns(lake.bucket, lake.prefixes),
        },
        # In the role as well, so that it holds in a bucket whose own policy has no such statement.
        unconditional_commit(lake.bucket, lake.prefixes),
        *_key(lake),
        *_secret(lake),
    ]


def operator_policy(lake: Lake, *, instance_arns: Sequence[str] = (), partition: str = "aws") -> dict[str, Any]:
    """Look at locks, logs and nodes, take a lock away, restart a member; neither rows are read nor is a log written."""
    statements: list[dict[str, Any]] = [
        *_list_bucket(lake),
        {
            "Sid": "ReadLogs",
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": _logs(lake),
        },
        *_secret(lake),
    ]
    if lake.key:
        statements.append({"Sid": "Decrypt", "Effect": "Allow", "Action": "kms:Decrypt", "Resource": lake.key})
    if instance_arns:
        statements += [
            {
                "Sid": "Nodes",
                "Effect": "Allow",
                "Action": ["ssm:StartSession", "ssm:SendCommand"],
                "Resource": [
                    *instance_arns,
                    f"arn:{partition}:ssm:*:*:document/AWS-RunShellScript",
                    f"arn:{partition}:ssm:*:*:document/AWS-StartPortForwardingSessionToRemoteHost",
                    f"arn:{partition}:ssm:*:*:document/SSM-SessionManagerRunShell",
                ],
            },
            {
                "Sid": "OwnSessions",
                "Effect": "Allow",
                "Action": ["ssm:TerminateSession", "ssm:ResumeSession", "ssmmessages:OpenDataChannel"],
                # An IAM user's sessions are named after the user, a role's after its session.
                "Resource": [
                    f"arn:{partition}:ssm:*:*:session/${{aws:username}}-*",
                    f"arn:{partition}:ssm:*:*:session/${{aws:userid}}-*",
                ],
            },
            {
                "Sid": "Look",
                "Effect": "Allow",
                "Action": [
                    "ssm:GetCommandInvocation",
                    "ssm:DescribeInstanceInformation",
                    "ec2:DescribeInstances",
                    "cloudwatch:GetMetricData",
                ],
                "Resource": "*",
            },
            {
                "Sid": "Alarms",
                "Effect": "Allow",
                "Action": "cloudwatch:DescribeAlarms",
                "Resource": f"arn:{partition}:cloudwatch:*:*:alarm:*",
            },
        ]
    return document(*statements)


def _logs(lake: Lake) -> list[str]:
    return log_arns(lake.bucket, lake.prefixes)


def _list_bucket(lake: Lake) -> list[dict[str, Any]]:
    listing: dict[str, Any] = {
        "Sid": "ListTables",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": lake.bucket,
    }
    if lake.prefixes:
        listing["Condition"] = {
            "StringLike": {"s3:prefix": [each for prefix in lake.prefixes for each in (prefix, f"{prefix}/*")]}
        }
    where = {
        "Sid": "FindBucket",
        "Effect": "Allow",
        "Action": ["s3:GetBucketLocation", "s3:ListBucketMultipartUploads"],
        "Resource": lake.bucket,
    }
    return [listing, where]


def _key(lake: Lake) -> list[dict[str, Any]]:
    if lake.key is None:
        return []
    return [
        {
            "Sid": "EncryptAndDecrypt",
            "Effect": "Allow",
            "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
            "Resource": lake.key,
        },
    ]


def _secret(lake: Lake) -> list[dict[str, Any]]:
    if lake.secret is None:
        return []
    return [
        {
            "Sid": "OwnSecret",
            "Effect": "Allow",
            "Action": "secretsmanager:GetSecretValue",
            "Resource": lake.secret,
        },
    ]


@dataclass(frozen=True)
class AccessArgs:
    """What access is given to.

    Attributes:
        name: what names begin with.
        vpc_id: where Spark clusters are to be; None: no security group is made for them.
        way_to_aws: of their machines.
        bucket_arn: of the lake.
        prefixes: folders of the tables; empty: the whole bucket.
        key_arn: KMS key of the lake, if it has one.
        authorities: of the members and of the clients; None: the ensemble is not ours.
        secret_arn: of clients' settings, where the ensemble is not ours.
        zookeeper_group_id: security group of the members; None: the ensemble is not ours.
        writer_group_ids: security groups that are there, whose machines connect to the ensemble, too.
        instance_arns: of the members' machines.
        maintenance_role: made before, for the bucket's policy names it.
        partition: of the stack.

    """

    name: str
    vpc_id: pulumi.Input[str] | None
    way_to_aws: WayToAws
    bucket_arn: pulumi.Input[str]
    prefixes: tuple[str, ...]
    key_arn: pulumi.Input[str] | None
    authorities: tuple[Authority, Authority] | None
    secret_arn: str | None
    zookeeper_group_id: pulumi.Input[str] | None
    writer_group_ids: Sequence[str]
    instance_arns: Sequence[pulumi.Input[str]]
    maintenance_role: aws.iam.Role
    partition: pulumi.Input[str]


class Access(pulumi.ComponentResource):
    """Policies of three roles, the secrets of their clients, and what a Spark cluster is started with.

    Attributes:
        secret_arns: by role, of what ``SLUICE_ZK_SECRET`` takes.
        policy_arns: by role.
        writer_group_id: security group for Spark clusters, which reaches ZooKeeper; None without a network.
        instance_profile: for the drivers and executors of Spark clusters that append.

    """

    def __init__(self, name: str, args: AccessArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:access:Access", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        self.secret_arns = {role: arn for role in SUBJECTS if (arn := self._secret(role)) is not None}
        policies = {role: self._policy(role) for role in SUBJECTS}
        self.policy_arns = {role: policy.arn for role, policy in policies.items()}
        aws.iam.RolePolicyAttachment(
            f"{name}-maintenance",
            role=args.maintenance_role.name,
            policy_arn=policies["maintenance"].arn,
            opts=self._child,
        )
        writer = aws.iam.Role(
            f"{name}-writer",
            name_prefix=f"{args.name}-writer-",
            assume_role_policy=json.dumps(MACHINES),
            opts=self._child,
        )
        aws.iam.RolePolicyAttachment(
            f"{name}-writer", role=writer.name, policy_arn=policies["appender"].arn, opts=self._child
        )
        aws.iam.RolePolicy(
            f"{name}-writer",
            role=writer.id,
            policy=json.dumps(document(SESSION_MANAGER)),
            opts=self._child,
        )
        profile = aws.iam.InstanceProfile(f"{name}-writer", role=writer.name, opts=self._child)
        self.instance_profile = profile.name
        self.writer_group_id: pulumi.Output[str] | None = None
        if args.vpc_id is not None:
            group = aws.ec2.SecurityGroup(
                f"{name}-writers",
                vpc_id=args.vpc_id,
                description="Spark clusters that write to the lake",
                tags={"Name": f"{args.name}-writers"},
                opts=self._child,
            )
            args.way_to_aws.open_to(f"{name}-writers", group.id, self._child)
            self.writer_group_id = group.id
            self._lead_to_zookeeper("writers", group.id, ours=True)
        for number, group_id in enumerate(args.writer_group_ids, start=1):
            self._lead_to_zookeeper(f"writers-{number}", group_id, ours=False)
        self.register_outputs({"policy_arns": self.policy_arns})

    def _lead_to_zookeeper(self, what: str, group_id: pulumi.Input[str], *, ours: bool) -> None:
        """Let the clients of a security group in; and out of that group, if it is ours to change."""
        members = self._args.zookeeper_group_id
        if members is None:
            return
        rules = [(aws.vpc.SecurityGroupIngressRule, members, group_id)]
        if ours:
            rules.append((aws.vpc.SecurityGroupEgressRule, group_id, members))
        for kind, here, there in rules:
            kind(
                f"zookeeper-{what}",
                security_group_id=here,
                description="Clients of ZooKeeper",
                referenced_security_group_id=there,
                ip_protocol="tcp",
                from_port=CLIENT_PORT,
                to_port=CLIENT_PORT,
                opts=self._child,
            )

    def _secret(self, role: str) -> pulumi.Output[str] | None:
        if self._args.authorities is None:
            return pulumi.Output.from_input(self._args.secret_arn) if self._args.secret_arn else None
        members, clients = self._args.authorities
        secret = aws.secretsmanager.Secret(
            f"{self._name}-{role}",
            name_prefix=f"{self._args.name}/zookeeper/{role}-",
            description=f"SLUICE_ZK_SECRET of the {role} role",
            recovery_window_in_days=7,
            opts=self._child,
        )
        aws.secretsmanager.SecretVersion(
            f"{self._name}-{role}",
            secret_id=secret.id,
            secret_string=client_secret(clients.client(SUBJECTS[role]), members, CLIENT_ACL),
            opts=self._child,
        )
        arn: pulumi.Output[str] = secret.arn
        return arn

    def _policy(self, role: str) -> aws.iam.Policy:
        known = pulumi.Output.all(
            bucket=self._args.bucket_arn,
            key=self._args.key_arn,
            secret=self.secret_arns.get(role),
            instances=list(self._args.instance_arns),
            partition=self._args.partition,
        )

        def text(found: Mapping[str, Any]) -> str:
            lake = Lake(found["bucket"], self._args.prefixes, found["key"], found["secret"])
            if role == "operator":
                made = operator_policy(lake, instance_arns=found["instances"], partition=found["partition"])
            else:
                made = (appender_policy if role == "appender" else maintenance_policy)(lake)
            return json.dumps(made)

        return aws.iam.Policy(
            f"{self._name}-{role}",
            name_prefix=f"{self._args.name}-{role}-",
            description=f"Sluice: what the {role} role may do",
            policy=known.apply(text),
            opts=self._child,
        )


def maintenance_role(
    name: str,
    prefix: str,
    principal_arns: Sequence[str],
    account_id: pulumi.Input[str],
    partition: pulumi.Input[str],
) -> aws.iam.Role:
    """Make the one role that the commit policy lets delete version files.

    Args:
        name: of the resource.
        prefix: what its name begins with.
        principal_arns: who may assume it; empty: whom this account's own policies allow to.
        account_id: of the stack.
        partition: of the stack.

    """

    def trust(known: Sequence[str]) -> str:
        trusted = list(principal_arns) or [f"arn:{known[1]}:iam::{known[0]}:root"]
        return json.dumps(assumed_by({"AWS": trusted}))

    return aws.iam.Role(
        name,
        name_prefix=f"{prefix}-maintenance-",
        assume_role_policy=pulumi.Output.all(account_id, partition).apply(trust),
        max_session_duration=4 * 3600,
    )
