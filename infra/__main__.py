"""The Pulumi program for the lake and the coordinator of its locks; docs/deploy.md describes its configuration."""

from functools import partial

import pulumi
import pulumi_aws as aws
from components.access import Access, AccessArgs, maintenance_role
from components.artifacts import Artifacts
from components.certificates import Authority
from components.ensemble import Ensemble, EnsembleArgs
from components.lake import PrivateBucket, commit_statements, lake_key
from components.locks import lock_bucket, lock_url
from components.monitoring import Monitoring
from components.network import Account, AwsEgress, Network, in_distinct_zones
from components.node_config import LOCK_ROOT
from components.settings import Settings
from components.tags import tag_everything

settings = Settings.from_stack()
tag_everything({"Project": "sluice", "Stack": settings.stack, "ManagedBy": "pulumi"})
account = Account(
    id=aws.get_caller_identity_output().account_id,
    partition=aws.get_partition_output().partition,
    region=aws.get_region_output().region,
)

# -- the lake
maintenance = maintenance_role(settings, account)
key = lake_key(settings.name, protect=settings.protect) if settings.kms and not settings.existing_bucket else None
if settings.existing_bucket:
    lake_name = pulumi.Output.from_input(settings.existing_bucket)
    lake_arn = pulumi.Output.format("arn:{}:s3:::{}", account.partition, settings.existing_bucket)
else:
    lake_bucket = PrivateBucket(
        "lake",
        settings.name,
        settings,
        kms_key_arn=key.arn if key else None,
        statements=partial(commit_statements, settings, maintenance.arn),
    )
    lake_name, lake_arn = lake_bucket.bucket, lake_bucket.arn

# -- the coordinator: a bucket for the locks, or the network and the ensemble
locks = lock_bucket(settings) if settings.locks_on_s3 else None
zookeeper: Ensemble | None = None
network: Network | None = None
aws_egress = AwsEgress()
authorities: tuple[Authority, Authority] | None = None
vpc_id: pulumi.Input[str] | None = settings.vpc_id or None
if settings.makes_ensemble:
    artifacts = Artifacts("artifacts", settings)
    if not settings.vpc_id:
        network = Network("network", settings, account, artifacts_arn=artifacts.arn, lake_arn=lake_arn)
        vpc_id, aws_egress = network.vpc_id, network.aws_egress
    authorities = Authority("members", settings), Authority("clients", settings)
    log_group = aws.cloudwatch.LogGroup(
        "zookeeper", name=f"/sluice/{settings.name}/zookeeper", retention_in_days=settings.log_retention_days
    )
    image = settings.image_id or aws.ssm.get_parameter_output(name=settings.image_parameter).value
    zookeeper = Ensemble(
        "zookeeper",
        EnsembleArgs(
            settings=settings,
            account=account,
            vpc_id=vpc_id,
            subnet_ids=network.subnet_ids if network else in_distinct_zones(settings.subnet_ids),
            aws_egress=aws_egress,
            image_id=image,
            artifacts=artifacts,
            member_authority=authorities[0],
            client_authority=authorities[1],
            log_group=log_group,
        ),
    )
    Monitoring("alarms", settings)

# -- access for writers, maintenance and operators
access = Access(
    "access",
    AccessArgs(
        settings=settings,
        account=account,
        vpc_id=vpc_id,
        aws_egress=aws_egress,
        bucket_arn=lake_arn,
        key_arn=key.arn if key else settings.existing_bucket_kms_key_arn or None,
        authorities=authorities,
        zookeeper_group_id=zookeeper.security_group_id if zookeeper else None,
        instance_ids=zookeeper.instance_ids if zookeeper else (),
        maintenance_role=maintenance,
        locks_arn=locks.arn if locks else None,
    ),
)
pulumi.export("region", account.region)
pulumi.export("delta_lake_bucket_name", lake_name)
pulumi.export("lock_url", lock_url(locks.bucket) if locks else None)
pulumi.export(
    "zookeeper_connection_string", zookeeper.connection_string if zookeeper else settings.existing_zookeeper or None
)
pulumi.export("zookeeper_members", settings.nodes if zookeeper else None)
pulumi.export("zookeeper_instance_ids", zookeeper.instance_ids if zookeeper else None)
pulumi.export("lock_root", None if locks else LOCK_ROOT)
pulumi.export("secret_arns", access.secret_arns)
pulumi.export("policy_arns", access.policy_arns)
pulumi.export("maintenance_role_arn", maintenance.arn)
pulumi.export("writer_instance_profile", access.instance_profile)
pulumi.export("writer_security_group_id", access.writer_group_id)
pulumi.export("vpc_id", vpc_id)
pulumi.export("private_subnet_ids", network.subnet_ids if network else list(settings.subnet_ids))
pulumi.export("commit_policy_statements", commit_statements(settings, maintenance.arn, lake_arn))
