"""Stacks that break a rule about data: buckets, commits, and who may do what with them."""

from __future__ import annotations

import json

from tests.support.policy_break import ADDRESS, NODE, Break, denial, statement, trust

PEM = "-----BEGIN PRIVATE KEY-----"
LAKE, ARTIFACTS = "lake", "artifacts"
VERSION = "_delta_log/" + 20 * "?" + ".json"
EXPIRES = [{"id": "old", "status": "Enabled", "expiration": {"days": 30}}]
MOVES = [{"id": "cold", "status": "Enabled", "transitions": [{"days": 30, "storageClass": "GLACIER"}]}]
OUR_ROLE = "arn:aws:iam::123456789012:role/maintenance"

STORAGE = [
    *(
        Break("buckets-are-complete", "Bucket", LAKE, without=(f"Bucket{part}", LAKE))
        for part in (
            *("PublicAccessBlock", "OwnershipControls", "Versioning", "ServerSideEncryptionConfiguration"),
            *("LifecycleConfiguration", "Policy"),
        )
    ),
    Break("buckets-are-private", "BucketPublicAccessBlock", ARTIFACTS, {"blockPublicPolicy": False}),
    Break("buckets-are-private", "BucketPublicAccessBlock", LAKE, {"restrictPublicBuckets": None}),
    Break("no-access-control-lists", "Bucket", LAKE, {"acl": "public-read"}),
    Break("no-access-control-lists", "BucketOwnershipControls", LAKE, {"rule": {"objectOwnership": "ObjectWriter"}}),
    Break("no-access-control-lists", "X", LAKE, {"bucket": LAKE, "acl": "private"}, type="aws:s3/bucketAcl:BucketAcl"),
    Break("buckets-are-versioned", "BucketVersioning", LAKE, {"versioningConfiguration": {"status": "Suspended"}}),
    Break("buckets-are-encrypted", "BucketServerSideEncryptionConfiguration", LAKE, {"rules": []}),
    Break(
        "buckets-are-encrypted",
        "BucketServerSideEncryptionConfiguration",
        LAKE,
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]},
        stack="KMS and prefixes",
    ),
    Break("current-objects-stay", "BucketLifecycleConfiguration", LAKE, {"rules": lambda old: old + EXPIRES}),
    Break("current-objects-stay", "BucketLifecycleConfiguration", LAKE, {"rules": lambda old: old + MOVES}),
    Break("current-objects-stay", "Bucket", LAKE, {"lifecycleRules": EXPIRES}),
    Break("buckets-by-tls-only", "BucketPolicy", ARTIFACTS, {"policy": denial("DenyPlainHttp", Effect="Allow")}),
    Break(
        "buckets-by-tls-only", "BucketPolicy", LAKE, {"policy": denial("DenyPlainHttp", Resource="arn:aws:s3:::lake")}
    ),
    Break("bucket-policies-allow-nobody", "BucketPolicy", LAKE, {"policy": statement(Principal="*")}),
]
UNCONDITIONAL, VACATING = "DenyUnconditionalCommit", "DenyVacatingVersions"
NULL = {"Null": {"s3:if-none-match": "true"}}
COMMITS = [
    Break("commits-are-conditional", "BucketPolicy", LAKE, {"policy": denial(UNCONDITIONAL, **each)})
    for each in (
        {"Effect": "Allow"},
        {"Resource": f"arn:aws:s3:::lake/{VERSION}"},
        {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
        {"Resource": [f"arn:aws:s3:::other/{VERSION}", f"arn:aws:s3:::other/*/{VERSION}"]},
        {"Action": "s3:PutObjectAcl"},
        {"Principal": {"AWS": "123456789012"}},
        {"Principal": None, "NotPrincipal": {"AWS": OUR_ROLE}},
        {"Condition": {"Null": {"s3:if-none-match": "false"}}},
        {"Condition": {**NULL, "Bool": {"s3:ObjectCreationOperation": "false"}}},
        {"Condition": {**NULL, "Bool": {"s3:ObjectCreationOperation": "true", "aws:SecureTransport": "false"}}},
        {
            "Condition": {
                **NULL,
                "Bool": {"s3:ObjectCreationOperation": "true"},
                "ArnNotEquals": {"aws:PrincipalArn": OUR_ROLE},
            }
        },
    )
] + [
    Break("versions-are-kept", "BucketPolicy", LAKE, {"policy": denial(VACATING, **each)})
    for each in (
        {"Action": "s3:DeleteObject"},
        {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/*"}}},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": [OUR_ROLE, OUR_ROLE + "-2"]}}},
        {"Condition": {"ArnNotEquals": {"aws:PrincipalArn": OUR_ROLE}, "Bool": {"aws:ViaAWSService": "true"}}},
    )
]
APPENDER, KEEP_LOGS = "access-appender", "KeepLogs"
WRITERS = [
    *(
        Break("writers-commit-conditionally", "Policy", APPENDER, {"policy": denial(UNCONDITIONAL, **each)})
        for each in (
            {"Effect": "Allow"},
            {"Resource": f"arn:aws:s3:::lake/{VERSION}"},
            {"Resource": f"arn:aws:s3:::lake/*/{VERSION}"},
            {"Condition": NULL},
        )
    ),
    Break("one-role-removes-logs", "Policy", APPENDER, {"policy": denial(KEEP_LOGS, Effect="Allow")}, late=True),
    Break("one-role-removes-logs", "Policy", APPENDER, {"policy": denial(KEEP_LOGS, Resource="x")}, late=True),
]
PROTECTION = [
    Break("protected", kind, name, options={"protect": False})
    for kind, name in (("Bucket", LAKE), ("Volume", f"{NODE}-data"), ("NetworkInterface", NODE))
] + [
    Break("protected", "Key", "sluice-test", options={"protect": None}, stack="KMS and prefixes"),
    Break("buckets-are-not-emptied", "Bucket", LAKE, {"forceDestroy": True}),
]
OWN = "access-appender"
IDENTITY = [
    Break("no-administrators", "Policy", OWN, {"policy": statement(Action="*", Resource="*")}),
    Break("no-administrators", "RolePolicy", NODE, {"policy": statement(Action=["*"], Resource=["*"])}),
    Break("actions-are-named", "Policy", OWN, {"policy": statement(Action="s3:*")}),
    Break(
        "actions-are-named",
        "Role",
        NODE,
        {"inlinePolicies": [{"name": "x", "policy": statement(Action="s3:*")('{"Statement": []}')}]},
    ),
    Break("nothing-by-omission", "Policy", OWN, {"policy": statement(NotAction="iam:*")}),
    Break("nothing-by-omission", "RolePolicy", NODE, {"policy": statement(NotResource="x")}),
    Break("keys-are-named", "Policy", OWN, {"policy": statement(Action="kms:*", Resource="*")}),
    Break(
        "keys-are-named",
        "RolePolicy",
        NODE,
        {"policy": statement(Action="kms:Decrypt", Resource="arn:aws:kms:*:*:key/*")},
    ),
    Break(
        "data-is-named", "RolePolicy", NODE, {"policy": statement(Action="secretsmanager:GetSecretValue", Resource="*")}
    ),
    Break("trust-is-named", "Role", "maintenance", {"assumeRolePolicy": trust(Principal={"AWS": "*"})}),
    Break("trust-is-named", "Role", "maintenance", {"assumeRolePolicy": trust(NotPrincipal={"AWS": OUR_ROLE})}),
    Break(
        "trust-is-named",
        "Role",
        "network-flow",
        {"assumeRolePolicy": trust(Principal={"Service": "vpc-flow-logs.amazonaws.com"})},
    ),
    Break(
        "own-policies",
        "RolePolicyAttachment",
        "access-writer",
        {"policyArn": "arn:aws:iam::aws:policy/AmazonS3FullAccess"},
    ),
    Break("own-policies", "Role", NODE, {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}),
    Break("roles-only", "X", "somebody", ADDRESS, type="aws:iam/user:User"),
    Break("roles-only", "X", "somebody", {}, type="aws:iam/accessKey:AccessKey"),
]
EVERYBODY = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "kms:*", "Resource": "*"}
SECRETS = [
    Break("keys-are-in-secrets", "Instance", NODE, {"userData": lambda old: f"{old}\n{PEM}"}),
    Break("keys-are-in-secrets", "Parameter", NODE, {"value": lambda old: f"{old}\n{PEM}"}),
    Break("keys-are-in-secrets", "Secret", NODE, {"tags": {"Key": PEM}}),
    Break("keys-are-in-secrets", "Parameter", NODE, {"value": "AKIA" + 16 * "A"}),
    Break("secrets-come-back", "Secret", NODE, {"recoveryWindowInDays": 0}),
    Break("secrets-are-for-somebody", "Secret", NODE, {"policy": json.dumps({"Statement": EVERYBODY})}),
    Break(
        "secrets-are-for-somebody",
        "Key",
        "sluice-test",
        {"policy": json.dumps({"Statement": [EVERYBODY]})},
        stack="KMS and prefixes",
    ),
    Break("keys-are-rotated", "Key", "sluice-test", {"enableKeyRotation": None}, stack="KMS and prefixes"),
    Break("keys-come-back", "Key", "sluice-test", {"deletionWindowInDays": 7}, stack="KMS and prefixes"),
    Break("parameters-are-ours", "Parameter", NODE, {"name": "/aws/zoo.cfg"}),
]
BREAKS = [*STORAGE, *COMMITS, *WRITERS, *PROTECTION, *IDENTITY, *SECRETS]
