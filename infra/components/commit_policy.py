"""The statements with which S3 itself refuses a commit that could overwrite another, or vacate a version's name.

Delta's stock log stores write a version file with a plain PUT: two drivers can both "win" the same version, and one
acknowledged commit is gone. Here the PUT has to be conditional (``If-None-Match: *``), so the second one fails.

Sources: "Enforce conditional writes on Amazon S3 buckets" (S3 User Guide). The key ``s3:ObjectCreationOperation`` is
false for the requests of a multipart upload that create no object yet (CreateMultipartUpload, UploadPart,
UploadPartCopy), which cannot carry the header; it is true for the one that completes it. CopyObject to such a key
fails with 403, or with 501 if it has the header.
"""

from __future__ import annotations

from collections.abc import Sequence

from components.documents import Statement

#: Names of version files: twenty digits. ``?`` is any one character, in the ARN of a resource too.
VERSION_FILES = 20 * "?" + ".json"


def version_file_arns(bucket_arn: str, prefixes: Sequence[str] = ()) -> list[str]:
    """Return the ARNs of all version files, of tables at the root of the bucket or of a prefix too.

    Args:
        bucket_arn: ``arn:aws:s3:::NAME``.
        prefixes: folders to which they are limited, without a slash at either end; empty: the whole bucket.

    """
    return _in_logs(VERSION_FILES, bucket_arn, prefixes)


def log_arns(bucket_arn: str, prefixes: Sequence[str] = ()) -> list[str]:
    """Return the ARNs of everything in the tables' logs, limited as in :func:`version_file_arns`."""
    return _in_logs("*", bucket_arn, prefixes)


def object_arns(bucket_arn: str, prefixes: Sequence[str] = ()) -> list[str]:
    """Return the ARNs of all objects, limited as in :func:`version_file_arns`."""
    return [f"{base}/*" for base in _bases(bucket_arn, prefixes)]


def _bases(bucket_arn: str, prefixes: Sequence[str]) -> list[str]:
    return [f"{bucket_arn}/{prefix}" for prefix in prefixes] or [bucket_arn]


def _in_logs(files: str, bucket_arn: str, prefixes: Sequence[str]) -> list[str]:
    # ``*`` stands for slashes as well, so that nested folders are covered.
    return [f"{base}/{between}_delta_log/{files}" for base in _bases(bucket_arn, prefixes) for between in ("", "*/")]


def unconditional_commit(bucket_arn: str, prefixes: Sequence[str] = ()) -> Statement:
    """Return the statement, without a principal, that denies the unconditional PUT of a version file."""
    return {
        "Sid": "DenyUnconditionalCommit",
        "Effect": "Deny",
        "Action": "s3:PutObject",
        "Resource": version_file_arns(bucket_arn, prefixes),
        "Condition": {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
    }


def commit_policy(
    bucket_arn: str, maintenance_role_arn: str, *, prefixes: Sequence[str] = (), exempt: Sequence[str] = ()
) -> list[Statement]:
    """Return the statements of the commit policy, for a bucket's own policy.

    Args:
        bucket_arn: ``arn:aws:s3:::NAME``.
        maintenance_role_arn: the one role that may delete version files, to clean the log up.
        prefixes: where it holds, without a slash at either end; empty: for every table of the bucket.
        exempt: ARNs of IAM principals that are let pass, for a restore.

    """
    put = unconditional_commit(bucket_arn, prefixes) | {"Principal": "*"}
    if exempt:
        put["Condition"] = put["Condition"] | {"ArnNotEquals": {"aws:PrincipalArn": list(exempt)}}
    delete = {
        "Sid": "DenyVacatingVersions",
        "Effect": "Deny",
        "Principal": "*",
        # Deleting a version and then putting it, conditionally, would rewrite history.
        "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
        "Resource": version_file_arns(bucket_arn, prefixes),
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
