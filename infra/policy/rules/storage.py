"""Buckets: private, encrypted, versioned, by TLS only, and nothing but Delta ends an object of a table."""

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
#: What each bucket has, as a resource of its own.
PARTS = (ACCESS_BLOCK, OWNERSHIP, VERSIONING, ENCRYPTION, LIFECYCLE, POLICY)

#: Names, in the program, of buckets without tables.
WITHOUT_TABLES = ("artifacts",)

_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
_PLAIN_HTTP = {("bool", "aws:securetransport"): ("false",)}


def _complete(bucket: PolicyResource, stack: Stack) -> Iterator[str]:
    for part in PARTS:
        if not stack.about(bucket, "bucket", "bucket", part):
            yield f"It has no {part.rpartition(':')[2]}."


def _blocked(args: ResourceValidationArgs) -> Iterator[str]:
    for key in _BLOCKS:
        if args.props.get(key) is not True:
            yield f"{key} is not true."


def _owned(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == ACL or args.props.get("acl") or args.props.get("grants"):
        yield "It has an access control list: policies say who may do what."
    elif args.resource_type == OWNERSHIP and not _enforced(args.props.get("rule") or {}):
        yield "Access control lists are not switched off: objectOwnership is not BucketOwnerEnforced."


def _enforced(rule: Mapping[str, Any]) -> bool:
    return rule.get("objectOwnership") == "BucketOwnerEnforced"


def _versioned(args: ResourceValidationArgs) -> Iterator[str]:
    if (args.props.get("versioningConfiguration") or {}).get("status") != "Enabled":
        yield "Versioning is not enabled: what is deleted or replaced is gone."


def _encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    rules: Sequence[Mapping[str, Any]] = args.props.get("rules") or [{}]
    for each in rules:
        default = each.get("applyServerSideEncryptionByDefault") or {}
        if default.get("sseAlgorithm") not in ("AES256", "aws:kms", "aws:kms:dsse"):
            yield "It has no algorithm that encrypts what is put."
        elif stack_config.kms() and args.name not in WITHOUT_TABLES and not default.get("kmsMasterKeyId"):
            yield "It has no key of its own, and the stack's configuration says kms: true."


def _kept(args: ResourceValidationArgs) -> Iterator[str]:
    for each in args.props.get("rules") or args.props.get("lifecycleRules") or ():
        if _ends_current(each):
            yield f"Rule {each.get('id')!r} ends or moves current objects: readers of the table need them."


def _ends_current(rule: Mapping[str, Any]) -> bool:
    expiration = rule.get("expiration") or {}
    return bool(expiration.get("days") or expiration.get("date") or rule.get("transitions"))


def _tls_only(args: ResourceValidationArgs) -> Iterator[str]:
    bucket = args.props.get("bucket")
    for what in (f":::{bucket}", f":::{bucket}/*"):
        if not any(
            each.effect == DENY
            and each.is_for_everybody
            and each.conditions == _PLAIN_HTTP
            and "s3:*" in each.actions
            and any(resource.endswith(what) for resource in each.resources)
            for each in statements(args.props.get("policy"))
        ):
            yield f"It lets requests without TLS pass to arn:aws:s3{what}."


def _allows_nobody(args: ResourceValidationArgs) -> Iterator[str]:
    if allowed(args.props.get("policy")):
        yield "It allows something: what the policies of IAM roles say would no longer be all."


RULES: tuple[Rule, ...] = (
    stack_rule(
        "buckets-are-complete",
        "Each bucket has all that makes it private, encrypted, versioned, and reached by TLS only.",
        (BUCKET,),
        _complete,
        ("S3.2", "S3.3", "S3.5", "S3.8", "S3.10", "S3.12", "S3.13", "S3.14"),
    ),
    resource_rule(
        "buckets-are-private",
        "S3 blocks whatever would make a bucket public.",
        (ACCESS_BLOCK,),
        _blocked,
        ("S3.2", "S3.3", "S3.8"),
    ),
    resource_rule(
        "no-access-control-lists",
        "Buckets have no access control lists.",
        (BUCKET, ACL, OWNERSHIP),
        _owned,
        ("S3.12",),
    ),
    resource_rule("buckets-are-versioned", "Buckets are versioned.", (VERSIONING,), _versioned, ("S3.14",)),
    resource_rule(
        "buckets-are-encrypted",
        "Buckets encrypt what is put: with S3's keys, or the lake's own where kms says so.",
        (ENCRYPTION,),
        _encrypted,
        ("S3.17",),
    ),
    resource_rule(
        "current-objects-stay",
        "Buckets' lifecycle rules leave current objects alone.",
        (BUCKET, LIFECYCLE),
        _kept,
    ),
    resource_rule("buckets-by-tls-only", "Buckets refuse plain HTTP.", (POLICY,), _tls_only, ("S3.5",)),
    resource_rule(
        "bucket-policies-allow-nobody",
        "Buckets' policies only deny.",
        (POLICY,),
        _allows_nobody,
        ("S3.2", "S3.3", "S3.6"),
    ),
)
