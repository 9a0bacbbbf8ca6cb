"""The Pulumi program for the lake and its ZooKeeper ensemble; docs/deploy.md describes its configuration."""

import pulumi
import pulumi_aws as aws
from components.access import Access, AccessArgs, maintenance_role
from components.artifacts import Artifacts, ArtifactsArgs
from components.certificates import Authority, AuthorityArgs
from components.ensemble import Ensemble, EnsembleArgs
from components.lake import CommitStatements, PrivateBucket, PrivateBucketArgs, lake_key
from components.monitoring import Monitoring, MonitoringArgs
from components.network import AwsEgress, Network, NetworkArgs, in_distinct_zones
from components.node_config import LOCK_ROOT
from components.settings import Settings
from components.tags import tag_everything

settings = Settings.from_stack()
tag_everything({"Project": "sluice", "Stack": settings.stack, "ManagedBy": "pulumi"})
account_id = aws.get_caller_identity_output().account_id
partition = aws.get_partition_output().partition
region = aws.get_region_output().region

# -- the lake
maintenance = maintenance_role("maintenance", settings.name, settings.maintenance_principal_arns, account_id, partition)
key = lake_key(settings.name, protect=settings.protect) if settings.kms and not settings.existing_bucket else None
commit_statements = CommitStatements(
    maintenance.arn,
    mode=settings.commit_policy,
    prefixes=settings.table_prefixes,
    exempt=settings.exempt_principal_arns,
)
if settings.existing_bucket:
    lake_name = pulumi.Output.from_input(settings.existing_bucket)
    lake_arn = pulumi.Output.format("arn:{}:s3:::{}", partition, settings.existing_bucket)
else:
    lake_bucket = PrivateBucket(
        "lake",
        PrivateBucketArgs(
            name=settings.name,
            protect=settings.protect,
            noncurrent_version_days=settings.noncurrent_version_days,
            kms_key_arn=key.arn if key else None,
            statements=commit_statements,
        ),
    )
    lake_name, lake_arn = lake_bucket.bucket, lake_bucket.arn

# -- the network and the ensemble
zookeeper: Ensemble | None = None
network: Network | None = None
aws_egress = AwsEgress()
authorities: tuple[Authority, Authority] | None = None
vpc_id: pulumi.Input[str] | None = settings.vpc_id or None
if settings.makes_ensemble:
    artifacts = Artifacts(
        "artifacts",
        ArtifactsArgs(
            name=settings.name,
            protect=settings.protect,
            noncurrent_version_days=settings.noncurrent_version_days,
            zookeeper_archive=settings.zookeeper_archive,
        ),
    )
    if not settings.vpc_id:
        network = Network(
            "network",
            NetworkArgs(
                name=settings.name,
                cidr=settings.vpc_cidr,
                egress=settings.egress,
                log_retention_days=settings.log_retention_days,
                region=region,
                account_id=account_id,
                partition=partition,
                readable_bucket_arns=[artifacts.arn],
                lake_bucket_arn=lake_arn,
                reachable_buckets=settings.reachable_buckets,
            ),
        )
        vpc_id, aws_egress = network.vpc_id, network.aws_egress
    authorities = tuple(
        Authority(purpose, AuthorityArgs(purpose, settings.signing_authority, settings.trusted_authorities))
        for purpose in ("members", "clients")
    )
    log_group = aws.cloudwatch.LogGroup(
        "zookeeper", name=f"/sluice/{settings.name}/zookeeper", retention_in_days=settings.log_retention_days
    )
    image = settings.image_id or aws.ssm.get_parameter_output(name=settings.image_parameter).value
    zookeeper = Ensemble(
        "zookeeper",
        EnsembleArgs(
            name=settings.name,
            stack=settings.stack,
            nodes=settings.nodes,
            replace_node=settings.replace_node,
            protect=settings.protect,
            vpc_id=vpc_id,
            subnet_ids=network.subnet_ids if network else in_distinct_zones(settings.subnet_ids),
            aws_egress=aws_egress,
            instance_type=settings.instance_type,
            image_id=image,
            volume_gib={"data": settings.data_volume_gib, "log": settings.log_volume_gib},
            artifacts=artifacts,
            members=authorities[0],
            clients=authorities[1],
            log_group=log_group,
            region=region,
        ),
    )
    Monitoring("alarms", MonitoringArgs(settings.name, settings.stack, settings.nodes, settings.alarm_topic_arns))

# -- access for writers, maintenance and operators
access = Access(
    "access",
    AccessArgs(
        name=settings.name,
        vpc_id=vpc_id,
        aws_egress=aws_egress,
        bucket_arn=lake_arn,
        prefixes=settings.table_prefixes,
        key_arn=key.arn if key else settings.existing_bucket_key_arn or None,
        authorities=authorities,
        secret_arn=settings.existing_zookeeper_secret_arn or None,
        zookeeper_group_id=zookeeper.security_group_id if zookeeper else None,
        writer_group_ids=settings.writer_security_group_ids,
        instance_arns=[
            pulumi.Output.format("arn:{}:ec2:{}:{}:instance/{}", partition, region, account_id, instance_id)
            for instance_id in (zookeeper.instance_ids if zookeeper else ())
        ],
        maintenance_role=maintenance,
        partition=partition,
    ),
)
pulumi.export("region", region)
pulumi.export("delta_lake_bucket_name", lake_name)
pulumi.export("zookeeper_connection_string", zookeeper.connection_string if zookeeper else settings.existing_zookeeper)
pulumi.export("zookeeper_members", settings.nodes if zookeeper else None)
pulumi.export("zookeeper_instance_ids", zookeeper.instance_ids if zookeeper else None)
pulumi.export("lock_root", LOCK_ROOT)
pulumi.export("secret_arns", access.secret_arns)
pulumi.export("policy_arns", access.policy_arns)
pulumi.export("maintenance_role_arn", maintenance.arn)
pulumi.export("writer_instance_profile", access.instance_profile)
pulumi.export("writer_security_group_id", access.writer_group_id)
pulumi.export("vpc_id", vpc_id)
pulumi.export("private_subnet_ids", network.subnet_ids if network else list(settings.subnet_ids))
pulumi.export("commit_policy_statements", commit_statements.of(lake_arn))
