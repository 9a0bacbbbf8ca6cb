"""The lake's bucket: private, encrypted, versioned, with the commit policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.commit_policy import commit_policy, tls_only
from components.documents import document

ABORT_UPLOADS_AFTER_DAYS = 7


@dataclass(frozen=True)
class CommitStatements:
    """The commit policy of the stack, for the created or the existing bucket.

    Attributes:
        maintenance_role_arn: The only role that may delete version files.
        mode: ``off``, ``prefixes`` or ``all``.
        prefixes: Folders to which mode ``prefixes`` applies.
        exempt: ARNs of principals to which the policy does not apply.

    """

    maintenance_role_arn: pulumi.Input[str]
    mode: str
    prefixes: Sequence[str]
    exempt: Sequence[str]

    def of(self, bucket_arn: pulumi.Input[str]) -> pulumi.Output[list[dict[str, object]]]:
        """Return the statements for a bucket; an empty list with mode ``off``."""
        prefixes = self.prefixes if self.mode == "prefixes" else ()
        return pulumi.Output.all(bucket_arn, self.maintenance_role_arn).apply(
            lambda arns: [] if self.mode == "off" else commit_policy(*arns, prefixes=prefixes, exempt=self.exempt)
        )


@dataclass(frozen=True)
class PrivateBucketArgs:
    """The arguments of :class:`PrivateBucket`.

    Attributes:
        name: Prefix of the bucket's name.
        protect: Whether Pulumi refuses to delete the bucket, and S3 refuses to delete it with objects in it.
        noncurrent_version_days: Days for which deleted and replaced objects can be restored.
        kms_key_arn: KMS key that encrypts the bucket; None for S3's own keys.
        statements: Commit policy to add to the statement that requires TLS.

    """

    name: str
    protect: bool
    noncurrent_version_days: int
    kms_key_arn: pulumi.Input[str] | None = None
    statements: CommitStatements | None = None


class PrivateBucket(pulumi.ComponentResource):
    """A private, encrypted and versioned bucket that accepts only TLS.

    Attributes:
        bucket: Name of the bucket.
        arn: ARN of the bucket.

    """

    def __init__(self, name: str, args: PrivateBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:storage:PrivateBucket", name, None, opts)
        # Protect all parts: a bucket that keeps its objects but loses its policies is not safe.
        child = pulumi.ResourceOptions(parent=self, protect=args.protect)
        bucket = aws.s3.Bucket(
            name,
            bucket_prefix=f"{args.name}-",
            force_destroy=not args.protect,
            opts=child,
        )
        self.bucket, self.arn = bucket.bucket, bucket.arn
        access_block = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child,
        )
        aws.s3.BucketOwnershipControls(
            name, bucket=bucket.bucket, rule={"object_ownership": "BucketOwnerEnforced"}, opts=child
        )
        versioning = aws.s3.BucketVersioning(
            name, bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=child
        )
        encryption = (
            {"sse_algorithm": "aws:kms", "kms_master_key_id": args.kms_key_arn}
            if args.kms_key_arn
            else {"sse_algorithm": "AES256"}
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=bucket.bucket,
            rules=[{"apply_server_side_encryption_by_default": encryption, "bucket_key_enabled": True}],
            opts=child,
        )
        # No rule deletes current objects: only Delta may delete files of a table.
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.bucket,
            rules=[
                {
                    "id": "what-was-deleted-or-replaced",
                    "status": "Enabled",
                    "filter": {},
                    "noncurrent_version_expiration": {"noncurrent_days": args.noncurrent_version_days},
                },
                {
                    "id": "uploads-that-were-given-up",
                    "status": "Enabled",
                    "filter": {},
                    "abort_incomplete_multipart_upload": {"days_after_initiation": ABORT_UPLOADS_AFTER_DAYS},
                },
            ],
            opts=pulumi.ResourceOptions(parent=self, protect=args.protect, depends_on=[versioning]),
        )
        statements: pulumi.Input[Sequence[dict[str, object]]] = (
            args.statements.of(bucket.arn) if args.statements else []
        )
        policy = pulumi.Output.all(arn=bucket.arn, statements=statements).apply(
            lambda values: json.dumps(document(tls_only(values["arn"]), *values["statements"]))
        )
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.bucket,
            policy=policy,
            # The access block must exist first, because S3 checks only policies that are set later.
            opts=pulumi.ResourceOptions(parent=self, protect=args.protect, depends_on=[access_block]),
        )
        self.register_outputs({"bucket": self.bucket, "arn": self.arn})


def lake_key(name: str, *, protect: bool) -> aws.kms.Key:
    """Create the KMS key of the lake. IAM policies of this account grant its use."""
    key = aws.kms.Key(
        name,
        description=f"The tables of {name}",
        enable_key_rotation=True,
        deletion_window_in_days=30,
        opts=pulumi.ResourceOptions(protect=protect),
    )
    aws.kms.Alias(name, name=f"alias/{name}", target_key_id=key.key_id)
    return key
