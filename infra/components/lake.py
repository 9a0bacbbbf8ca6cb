"""The private, encrypted buckets of a stack, and the key and the commit policy of the lake."""

from __future__ import annotations

import json
from collections.abc import Callable

import pulumi
import pulumi_aws as aws

from components.commit_policy import commit_policy, tls_only
from components.documents import Statement, document
from components.settings import Settings


def commit_statements(
    settings: Settings, maintenance_role_arn: pulumi.Input[str], bucket_arn: pulumi.Input[str]
) -> pulumi.Output[list[Statement]]:
    """Return the statements of the stack's commit policy; an empty list if ``commitPolicy`` is ``off``."""
    mode, exempt = settings.commit_policy, settings.exempt_principal_arns
    prefixes = settings.table_prefixes if mode == "prefixes" else ()
    return pulumi.Output.all(bucket_arn, maintenance_role_arn).apply(
        lambda arns: [] if mode == "off" else commit_policy(*arns, prefixes=prefixes, exempt=exempt)
    )


class PrivateBucket(pulumi.ComponentResource):
    """A private and encrypted bucket that accepts only TLS.

    Args:
        name: Pulumi name of the bucket.
        prefix: Prefix of the bucket's name.
        settings: With ``protect``, Pulumi refuses to delete the bucket, and S3 refuses to delete it while it contains
            objects.
        kms_key_arn: KMS key that encrypts the bucket; None for S3's own keys.
        statements: Returns further statements of the bucket's policy for the ARN of the bucket; None for no statements.
        is_versioned: Whether the bucket is versioned. Then deleted and replaced objects can be restored for
            ``noncurrent_version_days``.
        parent: The component that the bucket belongs to.

    Attributes:
        bucket: Name of the bucket.
        arn: ARN of the bucket.

    """

    def __init__(
        self,
        name: str,
        prefix: str,
        settings: Settings,
        *,
        kms_key_arn: pulumi.Input[str] | None = None,
        statements: Callable[[pulumi.Output[str]], pulumi.Output[list[Statement]]] | None = None,
        is_versioned: bool = True,
        parent: pulumi.Resource | None = None,
    ) -> None:
        super().__init__("sluice:storage:PrivateBucket", name, None, pulumi.ResourceOptions(parent=parent))
        # Protect all parts: a bucket that keeps its objects but loses its policies is not safe.
        child_options = pulumi.ResourceOptions(parent=self, protect=settings.protect)
        bucket = aws.s3.Bucket(name, bucket_prefix=f"{prefix}-", force_destroy=not settings.protect, opts=child_options)
        self.bucket, self.arn = bucket.bucket, bucket.arn
        access_block = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child_options,
        )
        aws.s3.BucketOwnershipControls(
            name, bucket=bucket.bucket, rule={"object_ownership": "BucketOwnerEnforced"}, opts=child_options
        )
        versioning: list[pulumi.Resource] = []
        lifecycle_rules: list[dict[str, object]] = []
        if is_versioned:
            versioning.append(
                aws.s3.BucketVersioning(
                    name, bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=child_options
                )
            )
            lifecycle_rules.append(
                {
                    "id": "expire-noncurrent-versions",
                    "status": "Enabled",
                    "filter": {},
                    "noncurrent_version_expiration": {"noncurrent_days": settings.noncurrent_version_days},
                }
            )
        lifecycle_rules.append(
            {
                "id": "abort-incomplete-uploads",
                "status": "Enabled",
                "filter": {},
                "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
            }
        )
        encryption = (
            {"sse_algorithm": "aws:kms", "kms_master_key_id": kms_key_arn}
            if kms_key_arn
            else {"sse_algorithm": "AES256"}
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=bucket.bucket,
            rules=[{"apply_server_side_encryption_by_default": encryption, "bucket_key_enabled": True}],
            opts=child_options,
        )
        # No rule deletes current objects: only Delta may delete files of a table.
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.bucket,
            rules=lifecycle_rules,
            opts=pulumi.ResourceOptions(parent=self, protect=settings.protect, depends_on=versioning),
        )
        policy = pulumi.Output.all(arn=bucket.arn, statements=statements(bucket.arn) if statements else []).apply(
            lambda values: json.dumps(document(tls_only(values["arn"]), *values["statements"]))
        )
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.bucket,
            policy=policy,
            # The access block must exist first, because S3 checks only policies that are set later.
            opts=pulumi.ResourceOptions(parent=self, protect=settings.protect, depends_on=[access_block]),
        )
        self.register_outputs({"bucket": self.bucket, "arn": self.arn})


def lake_key(name: str, *, protect: bool) -> aws.kms.Key:
    """Create the KMS key of the lake. IAM policies of this account permit its use."""
    key = aws.kms.Key(
        name,
        description=f"The tables of {name}",
        enable_key_rotation=True,
        deletion_window_in_days=30,
        opts=pulumi.ResourceOptions(protect=protect),
    )
    aws.kms.Alias(name, name=f"alias/{name}", target_key_id=key.key_id)
    return key
