"""`verify_table` on S3: storage options, environment, pins and overwritten versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake

from lock_manager.table_records.pins import PINS_FOLDER, Pin, PinnedTable
from sluice.audit.log_folder import s3_client
from sluice.audit.pins import examine_pins
from sluice.audit.verify import verify_table
from sluice.errors import AuditError, LogAccessError
from tests.support.lake import S3, lake

COMMITS = 12
pytestmark = pytest.mark.s3


def append(server: S3, table: str, *ids: int) -> None:
    data = Table.from_pydict({"id": Array(list(ids), type=DataType.int64())})
    options = server.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write_deltalake(table, data, mode="append", storage_options=options)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with lake() as server:
        for number in range(COMMITS):
            for table in (f"s3://{server.root}/raw/flights", f"s3://{server.root}"):
                append(server, table, number, number + 1)
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("table", ["s3://{root}/raw/flights", "s3a://{root}/raw/flights/", "s3n://{root}"])
def test_storage_options_give_access_to_a_table(s3: S3, table: str) -> None:
    options = {name.lower(): value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    report = verify_table(table.format(root=s3.root), key=["id"], storage_options=options)
    assert report.problems == (
        f"{COMMITS - 1} duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times",
    )
    assert (report.commits, report.rows_found, report.rows_in_log) == (COMMITS, 2 * COMMITS, 2 * COMMITS)


def test_the_environment_gives_access_to_a_table(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert verify_table(f"s3a://{s3.root}/raw/flights").ok
    with pytest.raises(AuditError, match=f"no Delta table at s3://{s3.root}/raw/nothing"):
        verify_table(f"s3a://{s3.root}/raw/nothing")
    with pytest.raises(LogAccessError, match=r"cannot be listed.*NoSuchBucket"):
        verify_table("s3a://nobucket/table")


def test_a_pin_with_a_missing_file_is_a_problem(s3: S3) -> None:
    uri, client = f"s3://{s3.root}/raw/pinned", s3_client(s3.environment)
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    for number in range(3):
        append(s3, uri, number)
    now, table_id = datetime.now(UTC), DeltaTable(uri, storage_options=s3.environment).metadata().id
    for name, version, days in (("early", 0, 1), ("late", 1, 1), ("expired", 1, -1)):
        pin = Pin(
            name=name,
            pin_id=name,
            at=None,
            created_at=now,
            expires_at=now + timedelta(days=days),
            tables=(
                PinnedTable(
                    table=uri,
                    location=uri,
                    table_id=table_id,
                    version=version,
                    committed_at=now,
                    passed_version=None,
                    event_time=None,
                ),
            ),
        )
        body = json.dumps(pin.to_json()).encode()
        client.put_object(Bucket=bucket, Key=f"{prefix}/{PINS_FOLDER}/{name}.json", Body=body)
    report = verify_table(f"s3a://{s3.root}/raw/pinned", storage_options=s3.environment)
    assert (report.problems, report.pins) == ((), 2)

    version_1 = DeltaTable(uri, version=1, storage_options=s3.environment)
    file: str = version_1.get_add_actions().column("path").to_pylist()[0]
    client.delete_object(Bucket=bucket, Key=f"{prefix}/{file}")
    pins, damaged_pins = examine_pins(uri, s3.environment)
    assert damaged_pins == []
    problem_of_late_pin = f"pin late is broken: 1 of the 2 data files of version 1 are missing, such as {file}"
    assert [(state.pin.name, state.has_expired, state.problem) for state in pins] == [
        ("early", False, None),
        ("expired", True, None),
        ("late", False, problem_of_late_pin),
    ]
    assert problem_of_late_pin in verify_table(uri, storage_options=s3.environment).problems


@dataclass
class VersionedTable:
    """A table with two versions in a bucket that keeps object versions."""

    s3: S3
    name: str
    client: Any

    def __post_init__(self) -> None:
        self.bucket = self.s3.root.partition("/")[0]
        self.client.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        self.uri = f"s3://{self.s3.root}/{self.name}"
        self.key = f"{self.uri.removeprefix(f's3://{self.bucket}/')}/_delta_log/{1:020}.json"
        for number in range(2):
            append(self.s3, self.uri, number)

    def problems(self) -> tuple[str, ...]:
        return verify_table(self.uri, storage_options=self.s3.environment).problems

    def read_version_1(self) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        return content

    def put_version_1(self, content: bytes) -> None:
        """Put the version file without a condition."""
        self.client.put_object(Bucket=self.bucket, Key=self.key, Body=content)

    def delete_version_1(self, **options: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=self.key, **options)


@pytest.fixture
def versioned_table(s3: S3, request: pytest.FixtureRequest) -> VersionedTable:
    return VersionedTable(s3, request.node.name, s3_client(s3.environment))


def test_an_overwritten_version_is_a_problem(versioned_table: VersionedTable) -> None:
    """The bucket keeps the earlier content."""
    assert versioned_table.problems() == ()
    lost_commit = b'{"commitInfo":{"timestamp":1,"txnId":"of another writer","engineInfo":"another engine"}}\n'
    winning_commit = versioned_table.read_version_1()
    (stored_version,) = versioned_table.client.list_object_versions(
        Bucket=versioned_table.bucket, Prefix=versioned_table.key
    )["Versions"]
    versioned_table.delete_version_1(VersionId=str(stored_version["VersionId"]))
    versioned_table.put_version_1(lost_commit)
    versioned_table.put_version_1(winning_commit)
    assert versioned_table.problems() == (
        (
            "version 1 was overwritten: the bucket keeps its first content, the commit of transaction of another "
            "writer by another engine"
        ),
    )


def test_the_same_content_or_a_deleted_version_is_no_problem(versioned_table: VersionedTable) -> None:
    content = versioned_table.read_version_1()
    versioned_table.put_version_1(content)
    assert versioned_table.problems() == ()
    versioned_table.put_version_1(b'{"commitInfo":{}}')
    versioned_table.delete_version_1()
    versioned_table.put_version_1(content)
    assert versioned_table.problems() == ()
