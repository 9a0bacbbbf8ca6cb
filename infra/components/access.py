"""IAM policies of the appender, maintenance and operator roles, each with the least privileges that it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from components.certificates import APPENDER, CLIENT_ACL, MAINTENANCE, OPERATOR, Authority, client_secret, store_secret
from components.commit_policy import ALL_FILES, LOG_FILES, object_arns, unconditional_commit
from components.documents import EC2_TRUST, SESSION_MANAGER, allow, document, trust_policy
from components.locks import lock_statements
from components.network import Account, AwsEgress, tcp_rule
from components.node_config import CLIENT_PORT
from components.settings import Settings

#: Common name in the certificate of each role.
COMMON_NAMES = {"appender": APPENDER, "maintenance": MAINTENANCE, "operator": OPERATOR}


@dataclass(frozen=True)
class PolicyResources:
    """The resources that a role's policy names, by ARN.

    Attributes:
        prefixes: Folders of the tables, without a slash at either end; empty for the whole bucket.
        key: KMS key of the lake, or None.
        secret: Secret with the ZooKeeper client settings of the role, or None.
        locks: Bucket of the locks on S3, or None.

    """

    bucket: str
    prefixes: tuple[str, ...] = ()
    key: str | None = None
    secret: str | None = None
    locks: str | None = None


def appender_policy(resources: PolicyResources) -> dict[str, Any]:
    """Return the policy of appenders: read and write tables, PUT version files conditionally, never delete log files.

    It allows deleting data files, because a write deletes its files when its commit fails.
    """
    keep_logs = {
        "Sid": "KeepLogs",
        "Effect": "Deny",
        "Action": "s3:DeleteObject",
        "Resource": object_arns(LOG_FILES, resources.bucket, resources.prefixes),
    }
    return document(*_read_and_write_statements(resources), keep_logs)


def maintenance_policy(resources: PolicyResources) -> dict[str, Any]:
    """Return the policy of maintenance: an appender's rights, and deletion of log files."""
    return document(*_read_and_write_statements(resources))


def _read_and_write_statements(resources: PolicyResources) -> list[dict[str, Any]]:
    actions = [
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    ]
    encryption = ["kms:GenerateDataKey", "kms:Decrypt"]
    return [
        *_list_statements(resources),
        allow("ReadAndWrite", actions, object_arns(ALL_FILES, resources.bucket, resources.prefixes)),
        # The policy of the stack's own bucket has this statement, too. An existing bucket may lack it.
        unconditional_commit(resources.bucket, resources.prefixes),
        *([allow("EncryptAndDecrypt", encryption, resources.key)] if resources.key else []),
        *_secret_statements(resources),
        *(lock_statements(resources.locks) if resources.locks else []),
    ]


def operator_policy(
    resources: PolicyResources, *, instance_arns: Sequence[str] = (), partition: str = "aws"
) -> dict[str, Any]:
    """Return the policy of operators: view locks, logs and nodes, break locks, restart members.

    It allows neither reading rows nor writing tables. ``instance_arns`` are the machines of the members; empty if the
    stack has no ensemble.
    """
    statements: list[dict[str, Any]] = [
        *_list_statements(resources),
        allow("ReadLogs", "s3:GetObject", object_arns(LOG_FILES, resources.bucket, resources.prefixes)),
        *_secret_statements(resources),
    ]
    if resources.key:
        statements.append(allow("Decrypt", "kms:Decrypt", resources.key))
    if resources.locks:
        statements += [
            *lock_statements(resources.locks),
            # As for every role that may put objects: a further policy of the operator may allow PUTs into the lake.
            unconditional_commit(resources.bucket, resources.prefixes),
        ]
    if instance_arns:
        documents = ("AWS-RunShellScript", "AWS-StartPortForwardingSessionToRemoteHost", "SSM-SessionManagerRunShell")
        statements += [
            allow(
                "Nodes",
                ["ssm:StartSession", "ssm:SendCommand"],
                [*instance_arns, *(f"arn:{partition}:ssm:*:*:document/{name}" for name in documents)],
            ),
            # A session's name begins with the user name of an IAM user, or with the session id of a role.
            allow(
                "OwnSessions",
                ["ssm:TerminateSession", "ssm:ResumeSession", "ssmmessages:OpenDataChannel"],
                [f"arn:{partition}:ssm:*:*:session/${{aws:{key}}}-*" for key in ("username", "userid")],
            ),
            allow(
                "Look",
                [
                    "ssm:GetCommandInvocation",
                    "ssm:DescribeInstanceInformation",
                    "ec2:DescribeInstances",
                    "cloudwatch:GetMetricData",
                ],
                "*",
            ),
            allow("Alarms", "cloudwatch:DescribeAlarms", f"arn:{partition}:cloudwatch:*:*:alarm:*"),
        ]
    return document(*statements)


def _list_statements(resources: PolicyResources) -> list[dict[str, Any]]:
    listing = allow("ListTables", "s3:ListBucket", resources.bucket)
    if resources.prefixes:
        patterns = [pattern for prefix in resources.prefixes for pattern in (prefix, f"{prefix}/*")]
        listing["Condition"] = {"StringLike": {"s3:prefix": patterns}}
    return [listing, allow("FindBucket", ["s3:GetBucketLocation", "s3:ListBucketMultipartUploads"], resources.bucket)]


def _secret_statements(resources: PolicyResources) -> list[dict[str, Any]]:
    return [allow("OwnSecret", "secretsmanager:GetSecretValue", resources.secret)] if resources.secret else []


@dataclass(frozen=True)
class AccessArgs:
    """The arguments of :class:`Access`.

    Attributes:
        vpc_id: VPC of the Spark clusters; None if the program creates no security group for them.
        aws_egress: Access of the Spark clusters' machines to AWS services.
        bucket_arn: Bucket of the lake.
        key_arn: KMS key of the lake, or None.
        authorities: Certificate authorities of the members and of the clients; None if the stack has no ensemble.
        zookeeper_group_id: Security group of the members; None if the stack has no ensemble.
        instance_ids: Machines of the members.
        maintenance_role: Maintenance role; created earlier, because the bucket policy names it.
        locks_arn: Bucket of the locks on S3; None with ZooKeeper.

    """

    settings: Settings
    account: Account
    vpc_id: pulumi.Input[str] | None
    aws_egress: AwsEgress
    bucket_arn: pulumi.Input[str]
    key_arn: pulumi.Input[str] | None
    authorities: tuple[Authority, Authority] | None
    zookeeper_group_id: pulumi.Input[str] | None
    instance_ids: Sequence[pulumi.Input[str]]
    maintenance_role: aws.iam.Role
    locks_arn: pulumi.Input[str] | None


class Access(pulumi.ComponentResource):
    """The policies and client secrets of three roles, with the security group and instance profile of Spark clusters.

    Attributes:
        secret_arns: Secrets for ``SLUICE_ZK_SECRET``, by role.
        policy_arns: Policies by role.
        writer_group_id: Security group for Spark clusters, with access to ZooKeeper; None without a VPC.
        instance_profile: Instance profile for drivers and executors of Spark clusters that append.

    """

    def __init__(self, name: str, args: AccessArgs) -> None:
        super().__init__("sluice:access:Access", name)
        self._name, self._args, self._settings = name, args, args.settings
        self._child_options = pulumi.ResourceOptions(parent=self)
        self.secret_arns = {role: arn for role in COMMON_NAMES if (arn := self._create_secret(role)) is not None}
        policies = {role: self._create_policy(role) for role in COMMON_NAMES}
        self.policy_arns = {role: policy.arn for role, policy in policies.items()}
        writer = aws.iam.Role(
            f"{name}-writer",
            name_prefix=f"{self._settings.name}-writer-",
            assume_role_policy=json.dumps(EC2_TRUST),
            opts=self._child_options,
        )
        for suffix, role, policy in (
            ("maintenance", args.maintenance_role, policies["maintenance"]),
            ("writer", writer, policies["appender"]),
        ):
            aws.iam.RolePolicyAttachment(
                f"{name}-{suffix}", role=role.name, policy_arn=policy.arn, opts=self._child_options
            )
        aws.iam.RolePolicy(
            f"{name}-writer", role=writer.id, policy=json.dumps(document(SESSION_MANAGER)), opts=self._child_options
        )
        profile = aws.iam.InstanceProfile(f"{name}-writer", role=writer.name, opts=self._child_options)
        self.instance_profile = profile.name
        self.writer_group_id: pulumi.Output[str] | None = None
        if args.vpc_id is not None:
            group = aws.ec2.SecurityGroup(
                f"{name}-writers",
                vpc_id=args.vpc_id,
                description="Spark clusters that write to the lake",
                tags={"Name": f"{self._settings.name}-writers"},
                opts=self._child_options,
            )
            args.aws_egress.allow(f"{name}-writers", group.id, self._child_options)
            self.writer_group_id = group.id
            self._allow_clients("writers", group.id, managed=True)
        for number, group_id in enumerate(self._settings.writer_security_group_ids, start=1):
            self._allow_clients(f"writers-{number}", group_id, managed=False)
        self.register_outputs({"policy_arns": self.policy_arns})

    def _allow_clients(self, suffix: str, group_id: pulumi.Input[str], *, managed: bool) -> None:
        """Allow a security group to connect to the members. A group of the program also gets an egress rule."""
        members = self._args.zookeeper_group_id
        if members is None:
            return
        rules = [(aws.vpc.SecurityGroupIngressRule, members, group_id)]
        if managed:
            rules.append((aws.vpc.SecurityGroupEgressRule, group_id, members))
        name, description = f"zookeeper-{suffix}", "Clients of ZooKeeper"
        for rule_type, group, peer in rules:
            tcp_rule(
                rule_type, name, group, description, CLIENT_PORT, self._child_options, referenced_security_group_id=peer
            )

    def _create_secret(self, role: str) -> pulumi.Output[str] | None:
        if self._args.authorities is None:
            arn = self._settings.existing_zookeeper_secret_arn
            return pulumi.Output.from_input(arn) if arn else None
        members, clients = self._args.authorities
        content = client_secret(clients.issue(COMMON_NAMES[role]), members, CLIENT_ACL)
        prefix = f"{self._settings.name}/zookeeper/{role}-"
        description = f"SLUICE_ZK_SECRET of the {role} role"
        secret, _ = store_secret(f"{self._name}-{role}", prefix, description, content, self._child_options)
        return secret.arn  # type: ignore[no-any-return]

    def _create_policy(self, role: str) -> aws.iam.Policy:
        args = self._args
        arns = {"bucket": args.bucket_arn, "key": args.key_arn, "locks": args.locks_arn}
        inputs = pulumi.Output.all(
            arns=arns | {"secret": self.secret_arns.get(role)},
            instance_ids=list(args.instance_ids),
            account=vars(args.account),
        )

        def policy_text(values: Mapping[str, Any]) -> str:
            resources = PolicyResources(prefixes=self._settings.table_prefixes, **values["arns"])
            if role == "operator":
                machines = "arn:{partition}:ec2:{region}:{id}:instance".format(**values["account"])
                arns = [f"{machines}/{instance_id}" for instance_id in values["instance_ids"]]
                policy = operator_policy(resources, instance_arns=arns, partition=values["account"]["partition"])
            else:
                policy = (appender_policy if role == "appender" else maintenance_policy)(resources)
            return json.dumps(policy)

        return aws.iam.Policy(
            f"{self._name}-{role}",
            name_prefix=f"{self._settings.name}-{role}-",
            description=f"Sluice: what the {role} role may do",
            policy=inputs.apply(policy_text),
            opts=self._child_options,
        )


def maintenance_role(settings: Settings, account: Account) -> aws.iam.Role:
    """Create the only role that the commit policy allows to delete version files.

    If the settings name no principals that may assume the role, the IAM policies of the account decide.
    """

    def trust_text(values: Sequence[str]) -> str:
        account_id, partition = values
        principals = list(settings.maintenance_principal_arns) or [f"arn:{partition}:iam::{account_id}:root"]
        return json.dumps(trust_policy({"AWS": principals}))

    return aws.iam.Role(
        "maintenance",
        name_prefix=f"{settings.name}-maintenance-",
        assume_role_policy=pulumi.Output.all(account.id, account.partition).apply(trust_text),
        max_session_duration=4 * 3600,
    )
