"""The policy statements with which S3 refuses requests that overwrite or delete a version file.

Delta's stock log stores write a version file with a plain PUT: two drivers can both succeed with the same version, and
one acknowledged commit is lost. The statements require a conditional PUT (``If-None-Match: *``), so the second fails.

Source: "Enforce conditional writes on Amazon S3 buckets" (S3 User Guide). The key ``s3:ObjectCreationOperation`` is
false for requests of a multipart upload that create no object (CreateMultipartUpload, UploadPart, UploadPartCopy).
These cannot have the header ``If-None-Match``. The key is true for the request that completes the upload. CopyObject to
a version file fails with 403, or with 501 if it has the header.
"""

from __future__ import annotations

from collections.abc import Sequence

from components.documents import Statement

_LOGS = [f"{folder}_delta_log" for folder in ("", "*/")]
# Patterns below a bucket or a folder, which may itself be a table. ``?`` matches one character, and ``*`` any
# characters, slashes included.
#: Version files.
VERSION_FILES = [f"{log}/{20 * '?'}.json" for log in _LOGS]
#: All objects in table logs.
LOG_FILES = [f"{log}/*" for log in _LOGS]
#: All objects.
ALL_FILES = ["*"]


def object_arns(patterns: Sequence[str], bucket_arn: str, prefixes: Sequence[str] = ()) -> list[str]:
    """Return the ARNs of objects by patterns.

    Args:
        patterns: ``VERSION_FILES``, ``LOG_FILES`` or ``ALL_FILES``.
        bucket_arn: ``arn:aws:s3:::NAME``.
        prefixes: Folders of the tables, without a slash at either end; empty for the whole bucket.

    """
    bases = [f"{bucket_arn}/{prefix}" for prefix in prefixes] or [bucket_arn]
    return [f"{base}/{pattern}" for base in bases for pattern in patterns]


def unconditional_commit(bucket_arn: str, prefixes: Sequence[str] = ()) -> Statement:
    """Return the statement, without a Principal element, that denies the unconditional PUT of a version file."""
    return {
        "Sid": "DenyUnconditionalCommit",
        "Effect": "Deny",
        "Action": "s3:PutObject",
        "Resource": object_arns(VERSION_FILES, bucket_arn, prefixes),
        "Condition": {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
    }


def commit_policy(
    bucket_arn: str, maintenance_role_arn: str, *, prefixes: Sequence[str] = (), exempt: Sequence[str] = ()
) -> list[Statement]:
    """Return the statements of the commit policy for the policy of a bucket.

    Args:
        bucket_arn: ``arn:aws:s3:::NAME``.
        maintenance_role_arn: The only role that may delete version files, for log cleanup.
        prefixes: Folders to which the policy applies, without a slash at either end; empty for every table.
        exempt: ARNs of IAM principals to which the policy does not apply, for a restore.

    """
    put = unconditional_commit(bucket_arn, prefixes) | {"Principal": "*"}
    if exempt:
        put["Condition"] = put["Condition"] | {"ArnNotEquals": {"aws:PrincipalArn": list(exempt)}}
    delete = {
        "Sid": "DenyVacatingVersions",
        "Effect": "Deny",
        "Principal": "*",
        # A delete followed by a conditional PUT would replace a version.
        "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
        "Resource": object_arns(VERSION_FILES, bucket_arn, prefixes),
        "Condition": {"ArnNotEquals": {"aws:PrincipalArn": [maintenance_role_arn, *exempt]}},
    }
    return [put, delete]


def tls_only(bucket_arn: str) -> Statement:
    """Return the statement that denies requests without TLS."""
    return {
        "Sid": "DenyPlainHttp",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [bucket_arn, f"{bucket_arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
