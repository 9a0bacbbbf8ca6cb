"""Stacks that break a rule, for each rule: what a later change of the program could do."""

from __future__ import annotations

import json

from tests.support.policy_break import Break, denial, statement, trust

PEM = "-----BEGIN PRIVATE KEY-----"
IN, OLD, GROUP = "SecurityGroupIngressRule", "aws:ec2/securityGroupRule:SecurityGroupRule", "SecurityGroup"
NODE, TWO = "zookeeper-1", "zookeeper-2"
LAKE, ARTIFACTS = "lake", "artifacts"
ANYBODY = {"referencedSecurityGroupId": None, "cidrIpv4": "0.0.0.0/0"}
ALL_PORTS = {"ipProtocol": "-1", "fromPort": None, "toPort": None}
INLINE = [{"protocol": "tcp", "fromPort": 443, "toPort": 443, "cidrBlocks": ["0.0.0.0/0"]}]
VERSION = "_delta_log/" + 20 * "?" + ".json"
EXPIRES = [{"id": "old", "status": "Enabled", "expiration": {"days": 30}}]
MOVES = [{"id": "cold", "status": "Enabled", "transitions": [{"days": 30, "storageClass": "GLACIER"}]}]
OUR_ROLE = "arn:aws:iam::123456789012:role/maintenance"

GROUPS = [
    Break("ingress-from-inside", IN, "zookeeper-writers", ANYBODY),
    Break("ingress-from-inside", IN, "zookeeper-writers", {**ANYBODY, "cidrIpv4": None, "cidrIpv6": "::/0"}),
    Break("ingress-from-inside", IN, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "128.0.0.0/1"}),
    Break("ingress-from-inside", IN, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "203.0.114.7/32"}),
    Break("ingress-from-inside", IN, "network-endpoints", {"cidrIpv4": None, "prefixListId": "pl-9"}),
    Break("ingress-from-inside", GROUP, "access-writers", {"ingress": INLINE}),
    Break("ingress-from-inside", "X", "old", {"type": "ingress", **INLINE[0]}, type=OLD),
    Break("no-remote-shell-ports", IN, "zookeeper-writers", {"fromPort": 22, "toPort": 22}),
    Break("no-remote-shell-ports", IN, "zookeeper-writers", {"fromPort": 3000, "toPort": 4000}),
    Break("no-remote-shell-ports", IN, "network-endpoints", ALL_PORTS),
    Break("group-rules-are-resources", GROUP, "zookeeper-members", {"egress": INLINE}),
    Break("group-rules-are-resources", "X", "old", {"type": "egress"}, type=OLD),
    Break("default-group-has-no-rules", "DefaultSecurityGroup", "network-closed", {"egress": INLINE}),
    Break("default-group-gets-no-rules", IN, "zookeeper-writers", {"securityGroupId": "network-closed-id"}),
    Break("ensemble-ports", IN, "zookeeper-quorum", {"referencedSecurityGroupId": "access-writers-id"}),
    Break("ensemble-ports", IN, "zookeeper-writers", {"fromPort": 3888, "toPort": 3888}),
    Break("ensemble-ports", IN, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "10.100.0.0/16"}),
    Break("ensemble-ports", IN, "zookeeper-writers", {"fromPort": 7000, "toPort": 7000}),
    Break("ensemble-ports", IN, "network-endpoints", ALL_PORTS),
]
NETWORK = [
    Break("default-group-is-ours", "Vpc", "network", without=("DefaultSecurityGroup", "network-closed")),
    Break("subnets-give-no-public-addresses", "Subnet", "network-private-2", {"mapPublicIpOnLaunch": True}),
    Break("subnets-give-no-public-addresses", "Subnet", "network-public", {"mapPublicIpOnLaunch": True}, stack="NAT"),
    Break("flow-logs", "Vpc", "network", without=("FlowLog", "network-flow")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", {"policy": None}),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", {"policy": statement(Resource="*")}),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", {"policy": statement(Resource="arn:aws:s3:::*")}),
    Break("endpoints-are-limited", "VpcEndpoint", "network-ssm", {"policy": statement(Resource="*")}),
    Break("endpoints-are-limited", "VpcEndpoint", "network-ssm", {"policy": statement(NotResource="x")}),
    Break("nodes-reach-aws", "Vpc", "network", without=("VpcEndpoint", "network-ssmmessages")),
    Break("source-is-checked", "NetworkInterface", NODE, {"sourceDestCheck": False}),
    Break("source-is-checked", "Instance", NODE, {"sourceDestCheck": False}),
]
ADDRESS = {"domain": "vpc", "tags": {"Project": "sluice", "Stack": "test"}}
COMPUTE = [
    Break("metadata-needs-a-token", "Instance", NODE, {"metadataOptions": None}),
    Break("metadata-needs-a-token", "Instance", NODE, {"metadataOptions": {"httpTokens": "required"}}),
    Break(
        "metadata-needs-a-token", "Instance", NODE, {"metadataOptions": lambda old: {**old, "httpTokens": "optional"}}
    ),
    Break("no-key-pair", "Instance", TWO, {"keyName": "mine"}),
    Break("no-public-address", "Instance", NODE, {"associatePublicIpAddress": True}),
    Break("no-public-address", "X", "way-in", {**ADDRESS, "instance": "zookeeper-1-id"}, type="aws:ec2/eip:Eip"),
    Break("no-public-address", "X", "way-in", {}, type="aws:ec2/eipAssociation:EipAssociation"),
    Break("one-interface", "Instance", NODE, {"primaryNetworkInterface": None}),
    Break("one-interface", "Instance", NODE, {"networkInterfaces": [{"deviceIndex": 1}]}),
    Break("one-interface", "X", "second", {}, type="aws:ec2/networkInterfaceAttachment:NetworkInterfaceAttachment"),
    Break("root-volume-is-encrypted", "Instance", NODE, {"rootBlockDevice": {"volumeType": "gp3"}}),
    Break("root-volume-is-encrypted", "Instance", NODE, {"ebsBlockDevices": [{"deviceName": "/dev/sdz"}]}),
    Break("volumes-are-encrypted", "Volume", f"{NODE}-log", {"encrypted": False}),
    Break("machines-are-managed", "Instance", NODE, {"iamInstanceProfile": None}),
    Break("machines-make-room", "Instance", NODE, options={"delete_before_replace": None}),
    Break("machines-make-room", "VolumeAttachment", f"{NODE}-log", options={"delete_before_replace": None}),
    Break("machines-are-replaced-on-purpose", "Instance", TWO, options={"ignore_changes": None}),
    Break("machines-are-replaced-on-purpose", "Instance", TWO, options={"ignore_changes": ["ami", "instance_type"]}),
    Break("volumes-stay", "Volume", f"{NODE}-data", options={"ignore_changes": None}),
]
ENSEMBLE = [
    Break(
        "members-have-ids",
        "Instance",
        TWO,
        {"userData": lambda old: old.replace("SLUICE_NODE=2", "SLUICE_NODE=1")},
        late=True,
    ),
    Break(
        "members-have-ids",
        "Instance",
        TWO,
        {"userData": lambda old: old.replace("SLUICE_NODE=2", "SLUICE_NODE=4")},
        late=True,
    ),
    Break("members-have-ids", "Instance", TWO, {"userData": "#!/bin/sh"}, late=True),
    Break(
        "members-have-interfaces", "Instance", TWO, {"primaryNetworkInterface": {"networkInterfaceId": f"{NODE}-id"}}
    ),
    Break(
        "members-have-volumes", "VolumeAttachment", f"{TWO}-log", {"volumeId": "vol-1"}, also=f"{NODE}-log", late=True
    ),
    Break("odd-ensemble", "Instance", "zookeeper-3", without=("Instance", NODE)),
    Break("members-are-spread", "NetworkInterface", TWO, {"subnetId": "network-private-1-id"}),
]
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
MONITORING = [
    Break("logs-end", "LogGroup", "network-flow", {"retentionInDays": 0}),
    Break("silence-is-a-fault", "MetricAlarm", "alarms-quorum-lost", {"treatMissingData": "missing"}),
    Break("silence-is-a-fault", "MetricAlarm", "alarms-silent-1", {"treatMissingData": None}),
    Break("alarms-act", "MetricAlarm", "alarms-silent-1", {"actionsEnabled": False}),
    Break("tagged", "Vpc", "network", {"tags": {"Project": "sluice"}}),
    Break("tagged", "Secret", NODE, {"tags": None}),
    Break("tagged", "X", "new", {}, type="aws:sqs/queue:Queue"),
]
BREAKS = [*GROUPS, *NETWORK, *COMPUTE, *ENSEMBLE, *STORAGE, *COMMITS, *PROTECTION, *IDENTITY, *SECRETS, *MONITORING]
