"""Stacks that violate a rule about data: buckets, commits, roles and secrets."""

from __future__ import annotations

import json

from tests.support.policy_break import ADDRESS, NODE, STATEMENT, Break, added_statement, changed_statement, trust

PEM = "-----BEGIN PRIVATE KEY-----"
LAKE, ARTIFACTS, LOCKS, BUCKET_ARN = "lake", "artifacts", "locks", "arn:aws:s3:::lake"
ENCRYPTION, LIFECYCLE = "BucketServerSideEncryptionConfiguration", "BucketLifecycleConfiguration"
VERSION = "_delta_log/" + 20 * "?" + ".json"
SSE_S3 = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
EXPIRES = [{"id": "old", "status": "Enabled", "expiration": {"days": 30}}]
MOVES = [{"id": "cold", "status": "Enabled", "transitions": [{"days": 30, "storageClass": "GLACIER"}]}]
OUR_ROLE = "arn:aws:iam::123456789012:role/maintenance"
KMS, LEASE = "KMS and prefixes", "locks on S3"

BUCKET_PARTS = ("PublicAccessBlock", "OwnershipControls", "Versioning", "Policy")
STORAGE = [
    *(
        Break("buckets-are-complete", "Bucket", LAKE, without=(kind, LAKE))
        for kind in (ENCRYPTION, LIFECYCLE, *(f"Bucket{part}" for part in BUCKET_PARTS))
    ),
    Break("buckets-are-complete", "Bucket", LOCKS, without=("BucketPolicy", LOCKS), stack=LEASE),
    Break("buckets-are-private", "BucketPublicAccessBlock", ARTIFACTS, {"blockPublicPolicy": False}),
    Break("buckets-are-private", "BucketPublicAccessBlock", LAKE, {"restrictPublicBuckets": None}),
    Break("no-access-control-lists", "Bucket", LAKE, {"acl": "public-read"}),
    Break("no-access-control-lists", "BucketOwnershipControls", LAKE, {"rule": {"objectOwnership": "ObjectWriter"}}),
    Break("no-access-control-lists", "X", LAKE, {"bucket": LAKE, "acl": "private"}, type="aws:s3/bucketAcl:BucketAcl"),
    Break("buckets-are-versioned", "BucketVersioning", LAKE, {"versioningConfiguration": {"status": "Suspended"}}),
    Break("buckets-are-encrypted", ENCRYPTION, LAKE, {"rules": []}),
    Break("buckets-are-encrypted", ENCRYPTION, LAKE, {"rules": [SSE_S3]}, stack=KMS),
    Break("lifecycle-keeps-current-objects", LIFECYCLE, LAKE, {"rules": lambda rules: rules + EXPIRES}),
    Break("lifecycle-keeps-current-objects", LIFECYCLE, LAKE, {"rules": lambda rules: rules + MOVES}),
    Break("lifecycle-keeps-current-objects", "Bucket", LAKE, {"lifecycleRules": EXPIRES}),
    Break("buckets-require-tls", "BucketPolicy", ARTIFACTS, changed_statement("DenyPlainHttp", Effect="Allow")),
    Break("buckets-require-tls", "BucketPolicy", LAKE, changed_statement("DenyPlainHttp", Resource=BUCKET_ARN)),
    Break("bucket-policies-allow-nobody", "BucketPolicy", LAKE, added_statement(Principal="*")),
]
UNCONDITIONAL, VACATING = "DenyUnconditionalCommit", "DenyVacatingVersions"
NULL, CREATES = {"Null": {"s3:if-none-match": "true"}}, {"s3:ObjectCreationOperation": "true"}
COMMITS = [
    Break("commits-are-conditional", "BucketPolicy", LAKE, changed_statement(UNCONDITIONAL, **changes))
    for changes in (
        {"Effect": "Allow"},
        {"Resource": f"arn:aws:s3:::lake/{VERSION}"},
        {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
        {"Resource": [f"arn:aws:s3:::other/{VERSION}", f"arn:aws:s3:::other/*/{VERSION}"]},
        {"Action": "s3:PutObjectAcl"},
        {"Principal": {"AWS": "123456789012"}},
        {"Principal": None, "NotPrincipal": {"AWS": OUR_ROLE}},
        {"Condition": {"Null": {"s3:if-none-match": "false"}}},
        {"Condition": {**NULL, "Bool": {"s3:ObjectCreationOperation": "false"}}},
        {"Condition": {**NULL, "Bool": {**CREATES, "aws:SecureTransport": "false"}}},
        {"Condition": {**NULL, "Bool": CREATES, "ArnNotEquals": {"aws:PrincipalArn": OUR_ROLE}}},
    )
] + [
    Break("only-maintenance-deletes-versions", "BucketPolicy", LAKE, changed_statement(VACATING, **changes))
    for changes in (
        {"Action": "s3:DeleteObject"},
        {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/*"}}},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": [OUR_ROLE, OUR_ROLE + "-2"]}}},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": OUR_ROLE}, "Bool": {"aws:ViaAWSService": "true"}}},
    )
]
NO_CONDITION = {"s3:if-match": "true", "s3:if-none-match": "true"}
QUEUES = [
    Break(rule, "BucketPolicy", LOCKS, changed_statement(sid, **changes), stack=LEASE)
    for rule, sid, condition, other_action in (
        ("queues-are-changed-conditionally", "DenyUnconditionalChange", {"Null": NO_CONDITION}, "s3:PutObjectAcl"),
        ("queues-are-not-deleted", "DenyDeletion", {}, "s3:DeleteObject"),
    )
    for changes in (
        {"Effect": "Allow"},
        {"Action": other_action},
        {"Resource": "arn:aws:s3:::locks/locks/*"},
        {"Principal": {"AWS": "123456789012"}},
        {"Condition": {**condition, "ArnNotEquals": {"aws:PrincipalArn": OUR_ROLE}}},
        {"Condition": {**condition, "Bool": {"aws:SecureTransport": "false"}}},
    )
] + [
    Break(
        "queues-are-changed-conditionally",
        "BucketPolicy",
        LOCKS,
        changed_statement("DenyUnconditionalChange", Condition={"Null": {**NO_CONDITION, "s3:if-match": "false"}}),
        stack=LEASE,
    ),
    Break(
        "queues-have-one-version",
        "X",
        LOCKS,
        {"bucket": LOCKS, "versioningConfiguration": {"status": "Enabled"}},
        type="aws:s3/bucketVersioning:BucketVersioning",
        stack=LEASE,
    ),
    Break("queues-have-one-version", "Bucket", LOCKS, {"versioning": {"enabled": True}}, stack=LEASE),
]
APPENDER, KEEP_LOGS = "access-appender", "KeepLogs"
WRITERS = [
    *(
        Break("writers-commit-conditionally", "Policy", APPENDER, changed_statement(UNCONDITIONAL, **changes))
        for changes in (
            {"Effect": "Allow"},
            {"Resource": f"arn:aws:s3:::lake/{VERSION}"},
            {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
            {"Condition": NULL},
        )
    ),
    Break(
        "writers-commit-conditionally",
        "Policy",
        "access-operator",
        changed_statement(UNCONDITIONAL, Effect="Allow"),
        stack=LEASE,
    ),
    Break("one-role-deletes-logs", "Policy", APPENDER, changed_statement(KEEP_LOGS, Effect="Allow"), late=True),
    Break("one-role-deletes-logs", "Policy", APPENDER, changed_statement(KEEP_LOGS, Resource="x"), late=True),
]
PROTECTION = [
    Break("resources-are-protected", kind, name, options={"protect": False})
    for kind, name in (("Bucket", LAKE), ("Volume", f"{NODE}-data"), ("NetworkInterface", NODE))
] + [
    Break("resources-are-protected", "Key", "sluice-test", options={"protect": None}, stack=KMS),
    Break("buckets-are-not-emptied", "Bucket", LAKE, {"forceDestroy": True}),
]
ALL_OF_S3 = json.dumps({"Statement": [{**STATEMENT, "Action": "s3:*"}]})
FLOW_LOGS = {"Service": "vpc-flow-logs.amazonaws.com"}
AWS_POLICY = "arn:aws:iam::aws:policy/"
IDENTITY = [
    Break("no-administrators", "Policy", APPENDER, added_statement(Action="*", Resource="*")),
    Break("no-administrators", "RolePolicy", NODE, added_statement(Action=["*"], Resource=["*"])),
    Break("actions-are-named", "Policy", APPENDER, added_statement(Action="s3:*")),
    Break("actions-are-named", "Role", NODE, {"inlinePolicies": [{"name": "x", "policy": ALL_OF_S3}]}),
    Break("no-inverted-elements", "Policy", APPENDER, added_statement(NotAction="iam:*")),
    Break("no-inverted-elements", "RolePolicy", NODE, added_statement(NotResource="x")),
    Break("keys-are-named", "Policy", APPENDER, added_statement(Action="kms:*", Resource="*")),
    Break(
        "keys-are-named",
        "RolePolicy",
        NODE,
        added_statement(Action="kms:Decrypt", Resource="arn:aws:kms:*:*:key/*"),
    ),
    Break(
        "data-resources-are-named",
        "RolePolicy",
        NODE,
        added_statement(Action="secretsmanager:GetSecretValue", Resource="*"),
    ),
    Break("trust-is-named", "Role", "maintenance", {"assumeRolePolicy": trust(Principal={"AWS": "*"})}),
    Break("trust-is-named", "Role", "maintenance", {"assumeRolePolicy": trust(NotPrincipal={"AWS": OUR_ROLE})}),
    Break("trust-is-named", "Role", "network-flow", {"assumeRolePolicy": trust(Principal=FLOW_LOGS)}),
    Break(
        "no-aws-managed-policies",
        "RolePolicyAttachment",
        "access-writer",
        {"policyArn": AWS_POLICY + "AmazonS3FullAccess"},
    ),
    Break("no-aws-managed-policies", "Role", NODE, {"managedPolicyArns": [AWS_POLICY + "AdministratorAccess"]}),
    Break("roles-only", "X", "user", ADDRESS, type="aws:iam/user:User"),
    Break("roles-only", "X", "user", {}, type="aws:iam/accessKey:AccessKey"),
]
EVERYBODY = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "kms:*", "Resource": "*"}
KEY = "sluice-test"
SECRETS = [
    Break("keys-are-in-secrets", "Instance", NODE, {"userData": lambda text: f"{text}\n{PEM}"}),
    Break("keys-are-in-secrets", "Parameter", NODE, {"value": lambda text: f"{text}\n{PEM}"}),
    Break("keys-are-in-secrets", "Secret", NODE, {"tags": {"Key": PEM}}),
    Break("keys-are-in-secrets", "Parameter", NODE, {"value": "AKIA" + 16 * "A"}),
    Break("deleted-secrets-are-recoverable", "Secret", NODE, {"recoveryWindowInDays": 0}),
    Break("policies-name-principals", "Secret", NODE, {"policy": json.dumps({"Statement": EVERYBODY})}),
    Break("policies-name-principals", "Key", KEY, {"policy": json.dumps({"Statement": [EVERYBODY]})}, stack=KMS),
    Break("keys-are-rotated", "Key", KEY, {"enableKeyRotation": None}, stack=KMS),
    Break("deleted-keys-are-recoverable", "Key", KEY, {"deletionWindowInDays": 7}, stack=KMS),
    Break("parameter-names-belong-to-the-stack", "Parameter", NODE, {"name": "/aws/zoo.cfg"}),
]
BREAKS = [*STORAGE, *COMMITS, *QUEUES, *WRITERS, *PROTECTION, *IDENTITY, *SECRETS]
