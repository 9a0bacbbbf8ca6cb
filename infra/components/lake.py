"""The bucket that holds the tables: private, encrypted, versioned, and with the commit policy."""

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
    """The commit policy's statements, for whichever bucket has the lake.

    Attributes:
        maintenance_role_arn: the one role that may delete version files.
        mode: ``off``, ``prefixes`` or ``all``.
        prefixes: where it holds with ``prefixes``.
        exempt: ARNs of principals that are let pass.

    """

    maintenance_role_arn: pulumi.Input[str]
    mode: str
    prefixes: Sequence[str]
    exempt: Sequence[str]

    def of(self, bucket_arn: pulumi.Input[str]) -> pulumi.Output[list[dict[str, object]]]:
        """Return them when all is known; none with mode ``off``."""
        prefixes = self.prefixes if self.mode == "prefixes" else ()
        return pulumi.Output.all(bucket_arn, self.maintenance_role_arn).apply(
            lambda known: [] if self.mode == "off" else commit_policy(*known, prefixes=prefixes, exempt=self.exempt)
        )


@dataclass(frozen=True)
class PrivateBucketArgs:
    """What a private bucket is made of.

    Attributes:
        name: what its name begins with.
        protect: whether Pulumi, and S3 itself, refuse to delete it with what is in it.
        noncurrent_version_days: for which what was deleted or replaced can be brought back.
        kms_key_arn: of the key that encrypts it; S3's own when not given.
        statements: of its policy, beside TLS only.

    """

    name: str
    protect: bool
    noncurrent_version_days: int
    kms_key_arn: pulumi.Input[str] | None = None
    statements: CommitStatements | None = None


class PrivateBucket(pulumi.ComponentResource):
    """A bucket that is private, encrypted and versioned, and speaks TLS only.

    Attributes:
        bucket: its name.
        arn: its ARN.

    """

    def __init__(self, name: str, args: PrivateBucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:storage:PrivateBucket", name, None, opts)
        # All of it: a bucket that is kept without its policies would be another one.
        child = pulumi.ResourceOptions(parent=self, protect=args.protect)
        made = aws.s3.Bucket(
            name,
            bucket_prefix=f"{args.name}-",
            force_destroy=not args.protect,
            opts=child,
        )
        self.bucket, self.arn = made.bucket, made.arn
        blocked = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=made.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child,
        )
        aws.s3.BucketOwnershipControls(
            name, bucket=made.bucket, rule={"object_ownership": "BucketOwnerEnforced"}, opts=child
        )
        versioning = aws.s3.BucketVersioning(
            name, bucket=made.bucket, versioning_configuration={"status": "Enabled"}, opts=child
        )
        encryption = (
            {"sse_algorithm": "aws:kms", "kms_master_key_id": args.kms_key_arn}
            if args.kms_key_arn
            else {"sse_algorithm": "AES256"}
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=made.bucket,
            rules=[{"apply_server_side_encryption_by_default": encryption, "bucket_key_enabled": True}],
            opts=child,
        )
        # Nothing here ends a current object: what is in a table's log is Delta's to remove.
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=made.bucket,
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
        statements: pulumi.Input[Sequence[dict[str, object]]] = args.statements.of(made.arn) if args.statements else []
        policy = pulumi.Output.all(arn=made.arn, statements=statements).apply(
            lambda known: json.dumps(document(tls_only(known["arn"]), *known["statements"]))
        )
        aws.s3.BucketPolicy(
            name,
            bucket=made.bucket,
            policy=policy,
            # Block public access first: S3 looks at each policy that is set from then on.
            opts=pulumi.ResourceOptions(parent=self, protect=args.protect, depends_on=[blocked]),
        )
        self.register_outputs({"bucket": self.bucket, "arn": self.arn})


def lake_key(name: str, *, protect: bool) -> aws.kms.Key:
    """Make the KMS key of a lake; this account's IAM policies say who may use it."""
    key = aws.kms.Key(
        name,
        description=f"The tables of {name}",
        enable_key_rotation=True,
        deletion_window_in_days=30,
        opts=pulumi.ResourceOptions(protect=protect),
    )
    aws.kms.Alias(name, name=f"alias/{name}", target_key_id=key.key_id)
    return key
