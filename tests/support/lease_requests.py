"""The requests of the locks on S3, as IAM sees them."""

from __future__ import annotations

from lock_manager.settings import bucket_and_prefix
from tests.support.iam_evaluator import Request, s3

_ETAG = '"0123456789abcdef"'


def lease_requests(principal: str, lock_url: str) -> list[Request]:
    """Return one request of each kind. ``test_locks_on_s3.py`` compares the kinds with those of recorded requests."""
    bucket, prefix = bucket_and_prefix(lock_url)
    arn = f"arn:aws:s3:::{bucket}"
    queue = f"{arn}/{prefix}tables/{64 * '0'}.json"
    return [
        s3(principal, "GetObject", queue),
        s3(principal, "PutObject", queue, **{"s3:if-none-match": "*"}),
        s3(principal, "PutObject", queue, **{"s3:if-match": _ETAG}),
        # For a GET of a missing object, S3 checks this action without a prefix.
        s3(principal, "ListBucket", arn),
        s3(principal, "ListBucket", arn, **{"s3:prefix": f"{prefix}tables/"}),
    ]


def request_kind(request: Request) -> tuple[str, bool, tuple[str, ...]]:
    """Return the action, whether its resource is an object, and the condition keys that the request has."""
    return request.action, "/" in request.resource, tuple(sorted(request.context))
