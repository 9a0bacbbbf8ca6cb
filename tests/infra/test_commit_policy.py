"""The bucket policy and the policies of the roles: allowed and refused requests, and Parliament's findings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from components.access import PolicyResources, appender_policy, maintenance_policy, operator_policy
from components.commit_policy import commit_policy, tls_only
from components.ensemble import node_policy

from tests.support.iam_evaluator import Request, is_allowed, s3, s3_put

BUCKET = "arn:aws:s3:::lake"
MAINTENANCE, ETL, RESTORE = (f"arn:aws:iam::123456789012:role/{name}" for name in ("maintenance", "etl", "restore"))
#: The worst case: the caller's own policies allow everything.
ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
VERSION = "_delta_log/00000000000000000007.json"
VERSIONS = [f"{BUCKET}/{table}{VERSION}" for table in ("", "flights/", "silver/2013/flights/")]
OTHER_OBJECTS = [
    f"{BUCKET}/flights/_delta_log/00000000000000000007.checkpoint.parquet",
    f"{BUCKET}/flights/_delta_log/_last_checkpoint",
    f"{BUCKET}/flights/_delta_log/_sluice_conditional_put",
    f"{BUCKET}/flights/_delta_log/00000000000000000007.crc",
    f"{BUCKET}/flights/_delta_log/_sidecars/8.json",
    f"{BUCKET}/flights/part-00000.snappy.parquet",
    f"{BUCKET}/delta_log/00000000000000000007.json",
]


def bucket_statements(**options: Any) -> list[Mapping[str, Any]]:
    return [ADMINISTRATOR, tls_only(BUCKET), *commit_policy(BUCKET, MAINTENANCE, **options)]


@pytest.mark.parametrize("version", VERSIONS)
class TestAVersionFile:
    def test_needs_a_conditional_put(self, version: str) -> None:
        for role in (ETL, MAINTENANCE):
            assert is_allowed(s3_put(role, version, conditional=True), bucket_statements())
            assert not is_allowed(s3_put(role, version, conditional=False), bucket_statements())

    def test_needs_a_condition_to_complete_a_multipart_upload(self, version: str) -> None:
        assert is_allowed(s3_put(ETL, version, conditional=False, creates=False), bucket_statements())
        assert is_allowed(s3_put(ETL, version, conditional=True, creates=True), bucket_statements())
        assert not is_allowed(s3_put(ETL, version, conditional=False, creates=True), bucket_statements())

    def test_is_copied_by_exempt_principals_only(self, version: str) -> None:
        copy = s3_put(RESTORE, version, conditional=False)
        assert not is_allowed(copy, bucket_statements())
        assert is_allowed(copy, bucket_statements(exempt=[RESTORE]))
        assert not is_allowed(s3_put(ETL, version, conditional=False), bucket_statements(exempt=[RESTORE]))

    @pytest.mark.parametrize("action", ["DeleteObject", "DeleteObjectVersion"])
    def test_is_deleted_by_maintenance_and_exempt_principals_only(self, version: str, action: str) -> None:
        assert not is_allowed(s3(ETL, action, version), bucket_statements())
        assert is_allowed(s3(MAINTENANCE, action, version), bucket_statements())
        assert is_allowed(s3(RESTORE, action, version), bucket_statements(exempt=[RESTORE]))

    def test_negative_control_without_the_policy_all_requests_pass(self, version: str) -> None:
        assert is_allowed(s3_put(ETL, version, conditional=False), [ADMINISTRATOR])
        assert is_allowed(s3(ETL, "DeleteObject", version), [ADMINISTRATOR])

    def test_is_read_over_tls_only(self, version: str) -> None:
        assert is_allowed(s3(ETL, "GetObject", version), bucket_statements())
        assert not is_allowed(
            Request(ETL, "s3:GetObject", version, {"aws:SecureTransport": "false"}), bucket_statements()
        )


@pytest.mark.parametrize("key", OTHER_OBJECTS)
def test_other_objects_are_put_and_deleted_freely(key: str) -> None:
    assert is_allowed(s3_put(ETL, key, conditional=False), bucket_statements())
    assert is_allowed(s3(ETL, "DeleteObject", key), bucket_statements())


def test_prefixes_limit_the_policy_to_these_folders() -> None:
    statements = bucket_statements(prefixes=["silver", "gold/daily"])
    for table in ("silver", "silver/2013/flights", "gold/daily", "gold/daily/x"):
        assert not is_allowed(s3_put(ETL, f"{BUCKET}/{table}/{VERSION}", conditional=False), statements)
        assert not is_allowed(s3(ETL, "DeleteObject", f"{BUCKET}/{table}/{VERSION}"), statements)
    for table in ("bronze", "gold", "silverado"):
        assert is_allowed(s3_put(ETL, f"{BUCKET}/{table}/{VERSION}", conditional=False), statements)


# The policies of the roles, without a bucket policy.


LAKE = PolicyResources(
    BUCKET,
    ("silver",),
    "arn:aws:kms:eu-central-1:123456789012:key/1",
    "arn:aws:secretsmanager:eu-central-1:123456789012:secret:appender-AbCdEf",
)
LAKE_VERSION = f"{BUCKET}/silver/flights/{VERSION}"
DATA_FILE = f"{BUCKET}/silver/flights/part-0.parquet"
NODE, OTHER_MACHINE = (f"arn:aws:ec2:eu-central-1:123456789012:instance/i-{number}" for number in (1, 2))
POLICIES = {
    "appender": appender_policy(LAKE),
    "appender of a bucket": appender_policy(PolicyResources(BUCKET)),
    "maintenance": maintenance_policy(LAKE),
    "operator": operator_policy(LAKE, instance_arns=[NODE]),
    "appender with locks on S3": appender_policy(PolicyResources(BUCKET, locks="arn:aws:s3:::locks")),
    "operator with locks on S3": operator_policy(PolicyResources(BUCKET, locks="arn:aws:s3:::locks")),
    "node": node_policy(
        secret="arn:aws:secretsmanager:eu-central-1:123456789012:secret:s-AbCdEf",  # noqa: S106 (an ARN)
        parameter="arn:aws:ssm:eu-central-1:123456789012:parameter/p",
        initialized="arn:aws:ssm:eu-central-1:123456789012:parameter/i",
        artifacts="arn:aws:s3:::artifacts",
        log_group="arn:aws:logs:eu-central-1:123456789012:log-group:g",
    ),
    "a mistake": {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:GetObjekt", "Resource": "*"}],
    },
}


class TestAnAppender:
    statements = POLICIES["appender"]["Statement"]

    def test_commits_with_a_condition_only(self) -> None:
        assert is_allowed(s3_put(ETL, LAKE_VERSION, conditional=True), self.statements)
        assert not is_allowed(s3_put(ETL, LAKE_VERSION, conditional=False), self.statements)
        assert is_allowed(s3_put(ETL, DATA_FILE, conditional=False), self.statements)

    def test_deletes_data_files_and_nothing_of_a_log(self) -> None:
        assert is_allowed(s3(ETL, "DeleteObject", DATA_FILE), self.statements)
        for name in ("00000000000000000007.json", "_last_checkpoint", "00000000000000000010.checkpoint.parquet"):
            assert not is_allowed(
                s3(ETL, "DeleteObject", f"{BUCKET}/silver/flights/_delta_log/{name}"), self.statements
            )

    def test_reaches_its_prefixes_only(self) -> None:
        assert is_allowed(s3(ETL, "GetObject", DATA_FILE), self.statements)
        assert not is_allowed(s3(ETL, "GetObject", f"{BUCKET}/gold/flights/part-0.parquet"), self.statements)
        assert is_allowed(s3(ETL, "ListBucket", BUCKET, **{"s3:prefix": "silver/flights/_delta_log/"}), self.statements)
        assert not is_allowed(s3(ETL, "ListBucket", BUCKET, **{"s3:prefix": "gold/"}), self.statements)

    @pytest.mark.parametrize(
        "action", ["DeleteObjectVersion", "PutBucketPolicy", "DeleteBucketPolicy", "PutLifecycleConfiguration"]
    )
    def test_cannot_change_the_bucket(self, action: str) -> None:
        assert not is_allowed(s3(ETL, action, f"{BUCKET}/silver/x"), self.statements)
        assert not is_allowed(s3(ETL, action, BUCKET), self.statements)

    @pytest.mark.parametrize(
        ("action", "resource"),
        [
            ("kms:GenerateDataKey", LAKE.key),
            ("kms:Decrypt", LAKE.key),
            ("secretsmanager:GetSecretValue", LAKE.secret),
        ],
    )
    def test_uses_the_key_and_its_own_secret(self, action: str, resource: str) -> None:
        assert is_allowed(Request(ETL, action, resource), self.statements)
        assert not is_allowed(Request(ETL, action, f"{resource}-of-another"), self.statements)


class TestMaintenance:
    statements = POLICIES["maintenance"]["Statement"]

    def test_deletes_version_files_and_commits_with_a_condition_only(self) -> None:
        assert is_allowed(s3(MAINTENANCE, "DeleteObject", LAKE_VERSION), self.statements)
        assert is_allowed(s3_put(MAINTENANCE, LAKE_VERSION, conditional=True), self.statements)
        assert not is_allowed(s3_put(MAINTENANCE, LAKE_VERSION, conditional=False), self.statements)
        assert not is_allowed(s3(MAINTENANCE, "DeleteObjectVersion", LAKE_VERSION), self.statements)


class TestAnOperator:
    statements = POLICIES["operator"]["Statement"]

    def test_reads_logs_but_no_rows_and_writes_nothing(self) -> None:
        assert is_allowed(s3(ETL, "GetObject", LAKE_VERSION), self.statements)
        assert not is_allowed(s3(ETL, "GetObject", DATA_FILE), self.statements)
        for key in (LAKE_VERSION, DATA_FILE):
            assert not is_allowed(s3(ETL, "DeleteObject", key), self.statements)
            for conditional in (True, False):
                assert not is_allowed(s3_put(ETL, key, conditional=conditional), self.statements)

    def test_connects_to_the_nodes_only(self) -> None:
        assert is_allowed(Request(ETL, "ssm:StartSession", NODE), self.statements)
        assert not is_allowed(Request(ETL, "ssm:StartSession", OTHER_MACHINE), self.statements)


# Parliament runs in its own process: it leaves files open, and its imports warn.
LINT = """
import json, sys
from parliament import analyze_policy_string
print(json.dumps({
    role: [[finding.issue, str(finding.detail)] for finding in analyze_policy_string(json.dumps(policy)).findings]
    for role, policy in json.load(sys.stdin).items()
}))
"""
Findings = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def findings() -> Findings:
    linted = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LINT],
        input=json.dumps(POLICIES), stdout=subprocess.PIPE, text=True, timeout=120, check=True,
    )  # fmt: skip
    policy_findings: Findings = json.loads(linted.stdout)
    return policy_findings


@pytest.mark.parametrize("role", [name for name in POLICIES if name != "a mistake"])
def test_parliament_accepts_a_policy(role: str, findings: Findings) -> None:
    # Parliament is older than the key s3:if-none-match; the tests above show that the statement works. It also does
    # not know sessions as resources of ssmmessages:OpenDataChannel, as in AWS's sample policies for Session Manager.
    unknown = ("s3:if-none-match", "ssmmessages:OpenDataChannel")
    assert [finding for finding in findings[role] if not any(name in finding[1] for name in unknown)] == []


def test_negative_control_parliament_finds_a_misspelled_action(findings: Findings) -> None:
    assert [issue for issue, _ in findings["a mistake"]] == ["UNKNOWN_ACTION"]
