"""What holds for the buckets and keys of every stack."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.graph import Graph, Resource
from tests.support.graph_invariants.registry import invariant
from tests.support.iam_evaluator import allowed, s3, s3_put

_ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
_SOMEBODY = "arn:aws:iam::123456789012:role/somebody"
_VERSION = "_delta_log/00000000000000000007.json"


def _of_bucket(graph: Graph, kind: str, bucket: Resource) -> list[Resource]:
    return [each for each in graph.some(kind) if each.inputs["bucket"] == bucket.name]


@invariant
def buckets_are_private(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        blocked = _of_bucket(graph, "BucketPublicAccessBlock", bucket)
        keys = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
        owned = _of_bucket(graph, "BucketOwnershipControls", bucket)
        if not blocked or not all(blocked[0].inputs.get(key) is True for key in keys):
            yield f"{bucket}: public access"
        if not owned or owned[0].inputs["rule"]["objectOwnership"] != "BucketOwnerEnforced":
            yield f"{bucket}: ACLs"


@invariant
def buckets_keep_versions(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        found = _of_bucket(graph, "BucketVersioning", bucket)
        if not found or found[0].inputs["versioningConfiguration"]["status"] != "Enabled":
            yield str(bucket)


@invariant
def everything_is_encrypted(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        found = _of_bucket(graph, "BucketServerSideEncryptionConfiguration", bucket)
        rules = found[0].inputs["rules"] if found else []
        if not any(each.get("applyServerSideEncryptionByDefault") for each in rules):
            yield str(bucket)
    for volume in graph.some("Volume"):
        if volume.inputs.get("encrypted") is not True:
            yield str(volume)
    for instance in graph.some("Instance"):
        if instance.inputs.get("rootBlockDevice", {}).get("encrypted") is not True:
            yield str(instance)
    for key in graph.some("Key"):
        if key.inputs.get("enableKeyRotation") is not True:
            yield str(key)


@invariant
def the_lake_has_the_key_that_was_asked_for(graph: Graph) -> Iterator[str]:
    for key in graph.some("Key"):
        [told] = [each for each in graph.all("BucketServerSideEncryptionConfiguration") if each.name == "lake"]
        rule = told.inputs["rules"][0]["applyServerSideEncryptionByDefault"]
        if rule.get("sseAlgorithm") != "aws:kms" or key.name not in rule.get("kmsMasterKeyId", ""):
            yield str(told)


@invariant
def buckets_speak_tls_only(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        statements = [
            statement
            for each in _of_bucket(graph, "BucketPolicy", bucket)
            for statement in each.document()["Statement"]
        ]
        if not any(
            each["Effect"] == "Deny"
            and each["Action"] == "s3:*"
            and each["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
            for each in statements
        ):
            yield str(bucket)


@invariant
def nothing_ends_a_live_object(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        for each in _of_bucket(graph, "BucketLifecycleConfiguration", bucket):
            for rule in each.inputs["rules"]:
                if rule.get("expiration") or rule.get("transitions"):
                    yield f"{bucket}: {rule['id']}"


@invariant
def a_bucket_that_is_not_ours_is_left_alone(graph: Graph) -> Iterator[str]:
    made = {each.name for each in graph.some("Bucket")}
    for each in graph.resources:
        if each.kind.startswith("Bucket") and each.kind != "Bucket" and each.inputs["bucket"] not in made:
            yield str(each)


@invariant
def the_bucket_refuses_unsafe_commits(graph: Graph) -> Iterator[str]:
    """Even of somebody whose own policies allow everything; and it lets safe ones pass."""
    for policy in graph.some("BucketPolicy"):
        if policy.name != "lake":
            continue
        statements = [_ADMINISTRATOR, *policy.document()["Statement"]]
        told = graph.outputs["commit_policy_statements"]
        prefixes = ["silver/", "gold/daily/"] if "/silver/" in str(told) else [""]
        for version in (
            f"arn:aws:s3:::lake/{prefix}{table}{_VERSION}" for prefix in prefixes for table in ("", "a/b/")
        ):
            if allowed(s3_put(_SOMEBODY, version, conditional=False), statements):
                yield f"{version} may be overwritten"
            if allowed(s3(_SOMEBODY, "DeleteObject", version), statements):
                yield f"{version} may be deleted"
            if not allowed(s3_put(_SOMEBODY, version, conditional=True), statements):
                yield f"{version} cannot be put"
            if not allowed(s3(graph.outputs["maintenance_role_arn"], "DeleteObject", version), statements):
                yield f"{version} cannot be cleaned up"


@invariant
def appenders_commit_safely_in_any_bucket(graph: Graph) -> Iterator[str]:
    """By their own policy, in a bucket that has none."""
    statements = graph.one("Policy", "access-appender").document()["Statement"]
    bucket = f"arn:aws:s3:::{graph.outputs['delta_lake_bucket_name']}"
    prefix = "silver/" if f"{bucket}/silver/*" in str(statements) else ""
    version = f"{bucket}/{prefix}flights/{_VERSION}"
    if not allowed(s3_put(_SOMEBODY, version, conditional=True), statements):
        yield "cannot commit"
    if allowed(s3_put(_SOMEBODY, version, conditional=False), statements):
        yield "may overwrite"
    for name in (version, version.replace(".json", ".checkpoint.parquet")):
        if allowed(s3(_SOMEBODY, "DeleteObject", name), statements):
            yield f"may delete {name}"
