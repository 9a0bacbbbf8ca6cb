"""The bucket of the locks in a stack without an ensemble (``coordinator: s3-lease``).

The queue of each table is one small object. Each acquire, commit and release replaces it. The bucket is not the lake:

- The lake keeps old versions. A queue would get thousands of versions a day, and S3 throttles PUTs of an object with
  millions of versions ("Troubleshooting versioning", S3 User Guide). Lifecycle rules delete a version after a day or
  later. And a restored version would lack later holders and unfinished intents.
- Writers may delete data files of the lake. No role may delete a queue, because its unfinished intents would be lost.
- The lake may be an existing bucket, whose policy and lifecycle rules the program does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi

from components.commit_policy import ALL_FILES, object_arns
from components.documents import Statement, allow
from components.lake import PrivateBucket
from components.settings import Settings

#: Folder of the locks in their bucket.
LOCK_PREFIX = "locks"


def lock_bucket(settings: Settings) -> PrivateBucket:
    """Create the bucket of the locks. No rule deletes its objects, and it keeps no old versions of them."""
    return PrivateBucket(
        "locks",
        f"{settings.name}-locks",
        settings,
        statements=lambda arn: arn.apply(lambda bucket_arn: queue_policy(bucket_arn, settings.exempt_principal_arns)),
        is_versioned=False,
    )


def lock_url(bucket: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the URL of the locks in a bucket, for ``SLUICE_LOCK_URL``."""
    return pulumi.Output.format("s3-lease://{}/{}", bucket, LOCK_PREFIX)


def queue_policy(bucket_arn: str, exempt: Sequence[str] = ()) -> list[Statement]:
    """Return the statements, for the bucket's policy, that deny unconditional PUTs and deletions of queues.

    A PUT needs ``If-Match`` or ``If-None-Match``. They also deny multipart uploads, which no client of the locks uses.

    Args:
        bucket_arn: ``arn:aws:s3:::NAME``.
        exempt: ARNs of IAM principals to which the statements do not apply, for a repair.

    """
    exemption = {"ArnNotEquals": {"aws:PrincipalArn": list(exempt)}} if exempt else {}
    everybody = {"Effect": "Deny", "Principal": "*", "Resource": object_arns(ALL_FILES, bucket_arn)}
    put: Statement = {
        "Sid": "DenyUnconditionalChange",
        **everybody,
        "Action": "s3:PutObject",
        "Condition": {"Null": {"s3:if-match": "true", "s3:if-none-match": "true"}, **exemption},
    }
    delete: Statement = {
        "Sid": "DenyDeletion",
        **everybody,
        "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
        **({"Condition": exemption} if exemption else {}),
    }
    return [put, delete]


def lock_statements(bucket_arn: str) -> list[dict[str, Any]]:
    """Return the statements of a role that takes, views or breaks locks. ``bucket_arn`` is the bucket of the locks."""
    return [
        # A PUT with If-Match needs both actions. The lock deletes no object.
        allow("Locks", ["s3:GetObject", "s3:PutObject"], f"{bucket_arn}/{LOCK_PREFIX}/*"),
        # Without it, S3 responds to a GET of a missing object with 403 instead of 404. A condition on s3:prefix would
        # not hold for a GET.
        allow("FindLocks", "s3:ListBucket", bucket_arn),
    ]
