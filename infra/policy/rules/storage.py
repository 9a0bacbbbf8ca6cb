"""Buckets: private, encrypted, versioned, TLS only, and no lifecycle rule that deletes current objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .documents import DENY, allow_statements, statements
from .rule import Stack, resource_rule, stack_rule

BUCKET = "aws:s3/bucket:Bucket"
ACCESS_BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
OWNERSHIP = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
ACL = "aws:s3/bucketAcl:BucketAcl"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
#: Types of the resources that each bucket needs.
PARTS = (ACCESS_BLOCK, OWNERSHIP, VERSIONING, ENCRYPTION, LIFECYCLE, POLICY)

#: Pulumi name of the bucket of the locks on S3, the only bucket that is not versioned.
LOCKS = "locks"
#: Pulumi names of buckets without tables.
WITHOUT_TABLES = ("artifacts", LOCKS)

_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
_NO_ACLS = "BucketOwnerEnforced"
_WITHOUT_TLS = {("bool", "aws:securetransport"): ("false",)}


@stack_rule(BUCKET, controls=("S3.2", "S3.3", "S3.5", "S3.8", "S3.10", "S3.12", "S3.13", "S3.14"))
def buckets_are_complete(bucket: PolicyResource, stack: Stack) -> Iterator[str]:
    """Each bucket has the resources that make it private, encrypted and TLS only, and versioned unless it has locks."""
    for part in PARTS:
        is_needed = part != VERSIONING or bucket.name != LOCKS
        if is_needed and not stack.referring_to(bucket, "bucket", "bucket", part):
            yield f"The bucket has no {part.rpartition(':')[2]}."


@resource_rule(ACCESS_BLOCK, controls=("S3.2", "S3.3", "S3.8"))
def buckets_are_private(args: ResourceValidationArgs) -> Iterator[str]:
    """S3 blocks public access to buckets."""
    for key in _BLOCKS:
        if args.props.get(key) is not True:
            yield f"{key} is not true: S3 does not block public access."


@resource_rule(BUCKET, ACL, OWNERSHIP, controls=("S3.12",))
def no_access_control_lists(args: ResourceValidationArgs) -> Iterator[str]:
    """Buckets have no access control lists."""
    if args.resource_type == ACL or args.props.get("acl") or args.props.get("grants"):
        yield "The bucket has an access control list: use policies."
    elif args.resource_type == OWNERSHIP and (args.props.get("rule") or {}).get("objectOwnership") != _NO_ACLS:
        yield "Access control lists are not disabled: set objectOwnership to BucketOwnerEnforced."


@resource_rule(VERSIONING, controls=("S3.14",))
def buckets_are_versioned(args: ResourceValidationArgs) -> Iterator[str]:
    """Buckets are versioned, except the bucket of the locks."""
    is_enabled = (args.props.get("versioningConfiguration") or {}).get("status") == "Enabled"
    if args.name != LOCKS and not is_enabled:
        yield "Versioning is not enabled: deleted and replaced objects are lost."


@resource_rule(ENCRYPTION, controls=("S3.17",))
def buckets_are_encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    """Buckets encrypt objects with S3's keys, or with the lake's key where kms is true."""
    rules: Sequence[Mapping[str, Any]] = args.props.get("rules") or [{}]
    for rule in rules:
        encryption = rule.get("applyServerSideEncryptionByDefault") or {}
        if encryption.get("sseAlgorithm") not in ("AES256", "aws:kms", "aws:kms:dsse"):
            yield "New objects are not encrypted: set sseAlgorithm to AES256 or aws:kms."
        elif stack_config.uses_kms_key() and args.name not in WITHOUT_TABLES and not encryption.get("kmsMasterKeyId"):
            yield "kmsMasterKeyId is not set, and the stack's configuration has kms: true."


@resource_rule(BUCKET, LIFECYCLE)
def lifecycle_keeps_current_objects(args: ResourceValidationArgs) -> Iterator[str]:
    """Lifecycle rules neither delete nor move current objects."""
    for rule in args.props.get("rules") or args.props.get("lifecycleRules") or ():
        expiration = rule.get("expiration") or {}
        if expiration.get("days") or expiration.get("date") or rule.get("transitions"):
            yield f"Rule {rule.get('id')!r} deletes or moves current objects: readers of the table need them."


@resource_rule(POLICY, controls=("S3.5",))
def buckets_require_tls(args: ResourceValidationArgs) -> Iterator[str]:
    """Buckets refuse plain HTTP."""
    bucket = args.props.get("bucket")
    for suffix in (f":::{bucket}", f":::{bucket}/*"):
        if not any(
            statement.effect == DENY
            and statement.is_for_everybody
            and statement.conditions == _WITHOUT_TLS
            and "s3:*" in statement.actions
            and any(resource.endswith(suffix) for resource in statement.resources)
            for statement in statements(args.props.get("policy"))
        ):
            yield f"The policy does not deny requests without TLS to arn:aws:s3{suffix}."


@resource_rule(POLICY, controls=("S3.2", "S3.3", "S3.6"))
def bucket_policies_allow_nobody(args: ResourceValidationArgs) -> Iterator[str]:
    """Policies of buckets only deny."""
    if allow_statements(args.props.get("policy")):
        yield "The bucket's policy has an Allow statement: only policies of IAM roles may allow access."
