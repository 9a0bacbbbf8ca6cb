"""What the bucket's policy, and the roles' own, let pass and refuse: each refusal beside its opposite."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from components.access import Lake, appender_policy, maintenance_policy, operator_policy
from components.commit_policy import commit_policy, tls_only
from components.ensemble import node_policy

from tests.support.iam_evaluator import Request, allowed, s3, s3_put

BUCKET = "arn:aws:s3:::lake"
MAINTENANCE, ETL, RESTORE = (f"arn:aws:iam::123456789012:role/{name}" for name in ("maintenance", "etl", "restore"))
#: The worst case: somebody whose own policies allow everything.
ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
VERSION = "_delta_log/00000000000000000007.json"
VERSIONS = [f"{BUCKET}/{table}{VERSION}" for table in ("", "flights/", "silver/2013/flights/")]
OTHERS = [
    f"{BUCKET}/flights/_delta_log/00000000000000000007.checkpoint.parquet",
    f"{BUCKET}/flights/_delta_log/_last_checkpoint",
    f"{BUCKET}/flights/_delta_log/_sluice_conditional_put",
    f"{BUCKET}/flights/_delta_log/00000000000000000007.crc",
    f"{BUCKET}/flights/_delta_log/_sidecars/8.json",
    f"{BUCKET}/flights/part-00000.snappy.parquet",
    f"{BUCKET}/delta_log/00000000000000000007.json",
]


def policy(**kind: Any) -> list[Mapping[str, Any]]:
    return [ADMINISTRATOR, tls_only(BUCKET), *commit_policy(BUCKET, MAINTENANCE, **kind)]


@pytest.mark.parametrize("version", VERSIONS)
class TestAVersionFile:
    def test_is_put_on_condition_only(self, version: str) -> None:
        assert allowed(s3_put(ETL, version, conditional=True), policy())
        assert not allowed(s3_put(ETL, version, conditional=False), policy())

    def test_is_not_put_by_maintenance_otherwise(self, version: str) -> None:
        assert allowed(s3_put(MAINTENANCE, version, conditional=True), policy())
        assert not allowed(s3_put(MAINTENANCE, version, conditional=False), policy())

    def test_may_come_in_parts_and_is_completed_on_condition_only(self, version: str) -> None:
        assert allowed(s3_put(ETL, version, conditional=False, creates=False), policy())
        assert allowed(s3_put(ETL, version, conditional=True, creates=True), policy())
        assert not allowed(s3_put(ETL, version, conditional=False, creates=True), policy())

    def test_is_not_the_target_of_a_copy_but_for_who_restores(self, version: str) -> None:
        copy = s3_put(RESTORE, version, conditional=False)
        assert not allowed(copy, policy())
        assert allowed(copy, policy(exempt=[RESTORE]))
        assert not allowed(s3_put(ETL, version, conditional=False), policy(exempt=[RESTORE]))

    @pytest.mark.parametrize("action", ["DeleteObject", "DeleteObjectVersion"])
    def test_is_deleted_by_maintenance_only(self, version: str, action: str) -> None:
        assert not allowed(s3(ETL, action, version), policy())
        assert allowed(s3(MAINTENANCE, action, version), policy())
        assert allowed(s3(RESTORE, action, version), policy(exempt=[RESTORE]))

    def test_is_refused_by_no_other_policy(self, version: str) -> None:
        """The control: without the commit policy the same requests pass."""
        assert allowed(s3_put(ETL, version, conditional=False), [ADMINISTRATOR])
        assert allowed(s3(ETL, "DeleteObject", version), [ADMINISTRATOR])

    def test_is_read_by_all(self, version: str) -> None:
        assert allowed(s3(ETL, "GetObject", version), policy())

    def test_is_not_sent_in_clear_text(self, version: str) -> None:
        plain = Request(ETL, "s3:GetObject", version, {"aws:SecureTransport": "false"})
        assert not allowed(plain, policy())


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_version_file_is_put_and_deleted_as_ever(other: str) -> None:
    assert allowed(s3_put(ETL, other, conditional=False), policy())
    assert allowed(s3(ETL, "DeleteObject", other), policy())


def test_with_prefixes_the_rest_of_the_bucket_is_free() -> None:
    kept = policy(prefixes=["silver", "gold/daily"])
    for table in ("silver", "silver/2013/flights", "gold/daily", "gold/daily/x"):
        assert not allowed(s3_put(ETL, f"{BUCKET}/{table}/{VERSION}", conditional=False), kept)
        assert not allowed(s3(ETL, "DeleteObject", f"{BUCKET}/{table}/{VERSION}"), kept)
    for table in ("bronze", "gold", "silverado"):
        assert allowed(s3_put(ETL, f"{BUCKET}/{table}/{VERSION}", conditional=False), kept)


# -- the roles' own policies, without any of the bucket


LAKE = Lake(
    BUCKET,
    ("silver",),
    "arn:aws:kms:eu-central-1:123456789012:key/1",
    "arn:aws:secretsmanager:eu-central-1:123456789012:secret:appender-AbCdEf",
)


class TestAnAppender:
    statements = appender_policy(LAKE)["Statement"]

    def test_commits_on_condition_only_in_any_bucket(self) -> None:
        version = f"{BUCKET}/silver/flights/{VERSION}"
        assert allowed(s3_put(ETL, version, conditional=True), self.statements)
        assert not allowed(s3_put(ETL, version, conditional=False), self.statements)
        assert allowed(s3_put(ETL, f"{BUCKET}/silver/flights/part-0.parquet", conditional=False), self.statements)

    def test_takes_its_own_files_away_and_nothing_of_a_log(self) -> None:
        assert allowed(s3(ETL, "DeleteObject", f"{BUCKET}/silver/flights/part-0.parquet"), self.statements)
        for name in ("00000000000000000007.json", "_last_checkpoint", "00000000000000000010.checkpoint.parquet"):
            assert not allowed(s3(ETL, "DeleteObject", f"{BUCKET}/silver/flights/_delta_log/{name}"), self.statements)

    def test_reaches_its_prefixes_alone(self) -> None:
        assert allowed(s3(ETL, "GetObject", f"{BUCKET}/silver/flights/part-0.parquet"), self.statements)
        assert not allowed(s3(ETL, "GetObject", f"{BUCKET}/gold/flights/part-0.parquet"), self.statements)
        assert allowed(s3(ETL, "ListBucket", BUCKET, **{"s3:prefix": "silver/flights/_delta_log/"}), self.statements)
        assert not allowed(s3(ETL, "ListBucket", BUCKET, **{"s3:prefix": "gold/"}), self.statements)

    @pytest.mark.parametrize(
        "action", ["DeleteObjectVersion", "PutBucketPolicy", "DeleteBucketPolicy", "PutLifecycleConfiguration"]
    )
    def test_changes_nothing_of_the_bucket(self, action: str) -> None:
        assert not allowed(s3(ETL, action, f"{BUCKET}/silver/x"), self.statements)
        assert not allowed(s3(ETL, action, BUCKET), self.statements)

    def test_uses_the_key_and_its_own_secret(self) -> None:
        for action, resource in (
            ("kms:GenerateDataKey", LAKE.key), ("kms:Decrypt", LAKE.key),
            ("secretsmanager:GetSecretValue", LAKE.secret),
        ):  # fmt: skip
            assert resource is not None
            assert allowed(Request(ETL, action, resource), self.statements)
            assert not allowed(Request(ETL, action, f"{resource}-of-another"), self.statements)


class TestMaintenance:
    statements = maintenance_policy(LAKE)["Statement"]

    def test_cleans_the_log_up_and_commits_on_condition_only(self) -> None:
        version = f"{BUCKET}/silver/flights/{VERSION}"
        assert allowed(s3(MAINTENANCE, "DeleteObject", version), self.statements)
        assert not allowed(s3_put(MAINTENANCE, version, conditional=False), self.statements)
        assert not allowed(s3(MAINTENANCE, "DeleteObjectVersion", version), self.statements)


class TestAnOperator:
    statements = operator_policy(LAKE, instance_arns=["arn:aws:ec2:eu-central-1:123456789012:instance/i-1"])[
        "Statement"
    ]

    def test_reads_logs_and_neither_rows_nor_writes_anything(self) -> None:
        assert allowed(s3(ETL, "GetObject", f"{BUCKET}/silver/flights/{VERSION}"), self.statements)
        assert not allowed(s3(ETL, "GetObject", f"{BUCKET}/silver/flights/part-0.parquet"), self.statements)
        for conditional in (True, False):
            version = f"{BUCKET}/silver/flights/{VERSION}"
            assert not allowed(s3_put(ETL, version, conditional=conditional), self.statements)

    def test_reaches_the_nodes_and_no_other_machine(self) -> None:
        node, other = (f"arn:aws:ec2:eu-central-1:123456789012:instance/i-{number}" for number in (1, 2))
        assert allowed(Request(ETL, "ssm:StartSession", node), self.statements)
        assert not allowed(Request(ETL, "ssm:StartSession", other), self.statements)


POLICIES = {
    "appender": appender_policy(LAKE),
    "appender of a bucket": appender_policy(Lake(BUCKET)),
    "maintenance": maintenance_policy(LAKE),
    "operator": operator_policy(LAKE, instance_arns=["arn:aws:ec2:eu-central-1:123456789012:instance/i-1"]),
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
# In a process of its own: it leaves files open, and imports what warns.
LINT = """
import json, sys, parliament
told = json.load(sys.stdin)
print(json.dumps({
    name: [[each.issue, str(each.detail)] for each in parliament.analyze_policy_string(json.dumps(document)).findings]
    for name, document in told.items()
}))
"""


@pytest.fixture(scope="module")
def findings() -> dict[str, list[tuple[str, str]]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LINT],
        input=json.dumps(POLICIES), stdout=subprocess.PIPE, text=True, timeout=120, check=True,
    )  # fmt: skip
    found: dict[str, list[tuple[str, str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("role", [name for name in POLICIES if name != "a mistake"])
def test_a_policy_is_one_that_aws_takes(role: str, findings: dict[str, list[tuple[str, str]]]) -> None:
    # It does not know the key s3:if-none-match, which is younger than it; that the statement works is shown above. Nor
    # that ssmmessages:OpenDataChannel takes sessions, as AWS's sample policies for users of Session Manager have it.
    younger = ("s3:if-none-match", "ssmmessages:OpenDataChannel")
    assert [each for each in findings[role] if not any(name in each[1] for name in younger)] == []


def test_a_policy_with_a_mistake_is_found(findings: dict[str, list[tuple[str, str]]]) -> None:
    assert [issue for issue, _ in findings["a mistake"]] == ["UNKNOWN_ACTION"]
