"""Invariants of buckets that no rule of the policy pack checks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.graph import Graph
from tests.support.graph_invariants.registry import invariant
from tests.support.iam_evaluator import is_allowed, s3, s3_put
from tests.support.lease_requests import lease_requests

_ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
_ROLE = "arn:aws:iam::123456789012:role/role"
_VERSION = "_delta_log/00000000000000000007.json"


@invariant
def an_existing_bucket_is_not_changed(graph: Graph) -> Iterator[str]:
    created_buckets = {bucket.name for bucket in graph.some("Bucket")}
    for resource in graph.resources:
        kind = resource.kind
        if kind.startswith("Bucket") and kind != "Bucket" and resource.inputs["bucket"] not in created_buckets:
            yield f"{resource} changes the existing bucket {resource.inputs['bucket']}"


@invariant
def commits_and_cleanup_are_allowed(graph: Graph) -> Iterator[str]:
    """The rules check that the policies deny enough. Policies that deny more would stop commits."""
    bucket = f"arn:aws:s3:::{graph.outputs['delta_lake_bucket_name']}"
    for policy in graph.some("BucketPolicy"):
        if policy.name != "lake":
            continue
        statements = [_ADMINISTRATOR, *policy.document()["Statement"]]
        prefixes = ["silver/", "gold/daily/"] if "/silver/" in str(statements) else [""]
        for version in (f"{bucket}/{prefix}{table}{_VERSION}" for prefix in prefixes for table in ("", "a/b/")):
            if not is_allowed(s3_put(_ROLE, version, conditional=True), statements):
                yield f"the bucket policy does not allow a conditional PUT of {version}"
            if not is_allowed(s3(graph.outputs["maintenance_role_arn"], "DeleteObject", version), statements):
                yield f"the bucket policy does not allow the maintenance role to delete {version}"
    statements = graph.one("Policy", "access-appender").document()["Statement"]
    prefix = "silver/" if f"{bucket}/silver/*" in str(statements) else ""
    if not is_allowed(s3_put(_ROLE, f"{bucket}/{prefix}flights/{_VERSION}", conditional=True), statements):
        yield f"{graph.one('Policy', 'access-appender')} does not allow a conditional PUT of a version file"


@invariant
def roles_may_use_the_locks_on_s3(graph: Graph) -> Iterator[str]:
    """The rules check that the bucket of the locks denies enough. Policies that deny more would stop the locks."""
    if graph.outputs["lock_url"] is None:
        return
    bucket_statements = graph.one("BucketPolicy", "locks").document()["Statement"]
    for policy in graph.all("Policy"):
        statements = [*policy.document()["Statement"], *bucket_statements]
        for request in lease_requests(_ROLE, graph.outputs["lock_url"]):
            if not is_allowed(request, statements):
                yield f"{policy} does not allow {request}"
