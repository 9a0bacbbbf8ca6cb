"""Buckets: private, encrypted, versioned, TLS only, and no lifecycle rule that deletes current objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .documents import DENY, allowed, statements
from .rule import Rule, Stack, resource_rule, stack_rule

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

#: Pulumi names of buckets without tables.
WITHOUT_TABLES = ("artifacts",)

_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
_NO_ACLS = "BucketOwnerEnforced"
_PLAIN_HTTP = {("bool", "aws:securetransport"): ("false",)}


def _check_parts(bucket: PolicyResource, stack: Stack) -> Iterator[str]:
    for part in PARTS:
        if not stack.referring_to(bucket, "bucket", "bucket", part):
            yield f"The bucket has no {part.rpartition(':')[2]}."


def _check_access_block(args: ResourceValidationArgs) -> Iterator[str]:
    for key in _BLOCKS:
        if args.props.get(key) is not True:
            yield f"{key} is not true."


def _check_access_lists(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == ACL or args.props.get("acl") or args.props.get("grants"):
        yield "The bucket has an access control list: use policies."
    elif args.resource_type == OWNERSHIP and (args.props.get("rule") or {}).get("objectOwnership") != _NO_ACLS:
        yield "Access control lists are not disabled: set objectOwnership to BucketOwnerEnforced."


def _check_versioning(args: ResourceValidationArgs) -> Iterator[str]:
    if (args.props.get("versioningConfiguration") or {}).get("status") != "Enabled":
        yield "Versioning is not enabled: deleted and replaced objects are lost."


def _check_encryption(args: ResourceValidationArgs) -> Iterator[str]:
    rules: Sequence[Mapping[str, Any]] = args.props.get("rules") or [{}]
    for rule in rules:
        default = rule.get("applyServerSideEncryptionByDefault") or {}
        if default.get("sseAlgorithm") not in ("AES256", "aws:kms", "aws:kms:dsse"):
            yield "No sseAlgorithm encrypts new objects."
        elif stack_config.kms() and args.name not in WITHOUT_TABLES and not default.get("kmsMasterKeyId"):
            yield "kmsMasterKeyId is not set, and the stack's configuration has kms: true."


def _check_lifecycle(args: ResourceValidationArgs) -> Iterator[str]:
    for rule in args.props.get("rules") or args.props.get("lifecycleRules") or ():
        expiration = rule.get("expiration") or {}
        if expiration.get("days") or expiration.get("date") or rule.get("transitions"):
            yield f"Rule {rule.get('id')!r} deletes or moves current objects: readers of the table need them."


def _check_tls(args: ResourceValidationArgs) -> Iterator[str]:
    bucket = args.props.get("bucket")
    for suffix in (f":::{bucket}", f":::{bucket}/*"):
        if not any(
            statement.effect == DENY
            and statement.is_for_everybody
            and statement.conditions == _PLAIN_HTTP
            and "s3:*" in statement.actions
            and any(resource.endswith(suffix) for resource in statement.resources)
            for statement in statements(args.props.get("policy"))
        ):
            yield f"The policy does not deny requests without TLS to arn:aws:s3{suffix}."


def _check_allow(args: ResourceValidationArgs) -> Iterator[str]:
    if allowed(args.props.get("policy")):
        yield "The bucket's policy has an Allow statement: only policies of IAM roles may allow access."


RULES: tuple[Rule, ...] = (
    stack_rule(
        "buckets-are-complete",
        "Each bucket has the resources that make it private, encrypted, versioned and TLS only.",
        (BUCKET,),
        _check_parts,
        ("S3.2", "S3.3", "S3.5", "S3.8", "S3.10", "S3.12", "S3.13", "S3.14"),
    ),
    resource_rule(
        "buckets-are-private",
        "S3 blocks public access to buckets.",
        (ACCESS_BLOCK,),
        _check_access_block,
        ("S3.2", "S3.3", "S3.8"),
    ),
    resource_rule(
        "no-access-control-lists",
        "Buckets have no access control lists.",
        (BUCKET, ACL, OWNERSHIP),
        _check_access_lists,
        ("S3.12",),
    ),
    resource_rule("buckets-are-versioned", "Buckets are versioned.", (VERSIONING,), _check_versioning, ("S3.14",)),
    resource_rule(
        "buckets-are-encrypted",
        "Buckets encrypt objects with S3's keys, or with the lake's key where kms is true.",
        (ENCRYPTION,),
        _check_encryption,
        ("S3.17",),
    ),
    resource_rule(
        "current-objects-stay",
        "Lifecycle rules neither delete nor move current objects.",
        (BUCKET, LIFECYCLE),
        _check_lifecycle,
    ),
    resource_rule("buckets-by-tls-only", "Buckets refuse plain HTTP.", (POLICY,), _check_tls, ("S3.5",)),
    resource_rule(
        "bucket-policies-allow-nobody",
        "Policies of buckets only deny.",
        (POLICY,),
        _check_allow,
        ("S3.2", "S3.3", "S3.6"),
    ),
)
