"""`verify_table` on S3, found by storage options and by the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with lake() as server:
        options = server.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        for number in range(COMMITS):
            data = Table.from_pydict({"id": Array([number, number + 1], type=DataType.int64())})
            for table in (f"s3://{server.root}/raw/flights", f"s3://{server.root}"):
                write_deltalake(table, data, mode="append", storage_options=options)
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("table", ["s3://{root}/raw/flights", "s3a://{root}/raw/flights/", "s3n://{root}"])
def test_a_table_is_found_by_storage_options(s3: S3, table: str) -> None:
    options = {name.lower(): value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    found = verify_table(table.format(root=s3.root), key=["id"], storage_options=options)
    assert found.problems == (
        f"{COMMITS - 1} duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times",
    )
    assert (found.commits, found.rows_found, found.rows_in_log) == (COMMITS, 2 * COMMITS, 2 * COMMITS)


def test_a_table_is_found_by_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert verify_table(f"s3a://{s3.root}/raw/flights").ok
    with pytest.raises(AuditError, match=f"no Delta table at s3://{s3.root}/raw/nothing"):
        verify_table(f"s3a://{s3.root}/raw/nothing")
    with pytest.raises(LogAccessError, match=r"cannot be listed.*NoSuchBucket"):
        verify_table("s3a://nobucket/table")


def test_pins_are_found_on_s3_and_what_is_gone_of_them(s3: S3) -> None:
    uri, client = f"s3://{s3.root}/raw/pinned", s3_client(s3.environment)
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    options = s3.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    for number in range(3):
        data = Table.from_pydict({"id": Array([number], type=DataType.int64())})
        write_deltalake(uri, data, mode="append", storage_options=options)
    now, table_id = datetime.now(UTC), DeltaTable(uri, storage_options=s3.environment).metadata().id
    for name, version, days in (("early", 0, 1), ("late", 1, 1), ("over", 1, -1)):
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
    found = verify_table(f"s3a://{s3.root}/raw/pinned", storage_options=s3.environment)
    assert (found.problems, found.pins) == ((), 2)

    (second,) = (
        DeltaTable(uri, version=1, storage_options=s3.environment).get_add_actions().column("path").to_pylist()[:1]
    )
    client.delete_object(Bucket=bucket, Key=f"{prefix}/{second}")
    pins, damaged = examine_pins(uri, s3.environment)
    assert damaged == []
    broken = f"pin late is broken: 1 of the 2 data files of version 1 are missing, such as {second}"
    assert [(each.pin.name, each.has_expired, each.problem) for each in pins] == [
        ("early", False, None),
        ("late", False, broken),
        ("over", True, None),
    ]
    assert broken in verify_table(uri, storage_options=s3.environment).problems


@pytest.fixture
def versioned(s3: S3, request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    """A table of two versions in a bucket that keeps object versions: client, bucket, folder of the log."""
    client, bucket = s3_client(s3.environment), s3.root.partition("/")[0]
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    options = s3.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    uri = f"s3://{s3.root}/{request.node.name}"
    for number in range(2):
        data = Table.from_pydict({"id": Array([number], type=DataType.int64())})
        write_deltalake(uri, data, mode="append", storage_options=options)
    return client, bucket, f"{uri.removeprefix(f's3://{bucket}/')}/_delta_log"


def replace_version(client: Any, bucket: str, log: str, version: int, content: bytes | None = None) -> None:
    """Put a version file without a condition; the same content if none is given."""
    key = f"{log}/{version:020}.json"
    body = content or client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=body)


def test_a_version_whose_earlier_content_the_bucket_keeps_is_named(s3: S3, versioned: tuple[Any, str, str]) -> None:
    client, bucket, log = versioned
    table = f"s3://{bucket}/{log.removesuffix('/_delta_log')}"
    assert verify_table(table, storage_options=s3.environment).ok
    lost = b'{"commitInfo":{"timestamp":1,"txnId":"of another writer","engineInfo":"another engine"}}\n'
    winner = client.get_object(Bucket=bucket, Key=f"{log}/{1:020}.json")["Body"].read()
    client.delete_object(Bucket=bucket, Key=f"{log}/{1:020}.json", VersionId=_version_id(client, bucket, log))
    replace_version(client, bucket, log, 1, lost)
    replace_version(client, bucket, log, 1, winner)
    assert verify_table(table, storage_options=s3.environment).problems == (
        (
            "version 1 was overwritten: the bucket keeps its first content, the commit of transaction of another "
            "writer by another engine"
        ),
    )


def _version_id(client: Any, bucket: str, log: str) -> str:
    (only,) = client.list_object_versions(Bucket=bucket, Prefix=f"{log}/{1:020}.json")["Versions"]
    return str(only["VersionId"])


def test_the_same_content_again_and_a_name_that_was_vacated_are_no_problem(
    s3: S3, versioned: tuple[Any, str, str]
) -> None:
    client, bucket, log = versioned
    table, key = f"s3://{bucket}/{log.removesuffix('/_delta_log')}", f"{log}/{1:020}.json"
    replace_version(client, bucket, log, 1)
    assert verify_table(table, storage_options=s3.environment).ok
    content = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=b'{"commitInfo":{}}')
    client.delete_object(Bucket=bucket, Key=key)
    client.put_object(Bucket=bucket, Key=key, Body=content)
    assert verify_table(table, storage_options=s3.environment).ok
