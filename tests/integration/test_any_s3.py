"""Conditional PUTs of the S3 in use, and buckets and settings of an S3 that the user chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.audit.log_folder import s3_client
from sluice.demo.services import download_tables, open_store
from sluice.errors import ChosenS3Error
from sluice.local.chosen_s3 import ChosenS3, s3a_settings
from sluice.local.s3 import LocalS3
from tests.support.gateway import Gateway, serve_gateway
from tests.support.lake import S3

KEYS, RIVALS = 40, 8


def put_if_absent(client: Any, bucket: str, key: str, body: bytes) -> int:
    """PUT an object on condition that it does not exist; return the HTTP status."""
    try:
        client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return 200


def keys(environment: dict[str, str], bucket: str) -> list[str]:
    """Return the keys of a bucket's objects."""
    listing = s3_client(environment).list_objects_v2(Bucket=bucket)
    return [entry["Key"] for entry in listing.get("Contents", ())]


def bucket_names(client: Any) -> list[str]:
    return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]


def split_root(root: str) -> tuple[str, str]:
    """Return the bucket of a root, and the prefix of its keys: empty, or with a slash at its end."""
    bucket, _, prefix = root.partition("/")
    return bucket, f"{prefix}/" if prefix else ""


@pytest.mark.s3
def test_exactly_one_rival_wins_a_key_and_its_content_stays(s3: S3) -> None:
    client = s3_client(s3.environment)
    bucket, prefix = split_root(s3.root)
    contents = [f"rival {number}".encode() for number in range(RIVALS)]
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(KEYS):
            key = f"{prefix}rivals/_delta_log/{number:020}.json"
            start = threading.Barrier(RIVALS)

            def put(content: bytes, key: str = key, start: threading.Barrier = start) -> int:
                start.wait(30)
                return put_if_absent(client, bucket, key, content)

            statuses = list(pool.map(put, contents))
            # AWS may answer 409 during a PUT of another client, and the log store repeats such a PUT.
            assert set(statuses) <= {200, 409, 412}
            assert statuses.count(200) == 1
            assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == contents[statuses.index(200)]


@pytest.fixture(scope="module")
def running_s3() -> Iterator[LocalS3]:
    with LocalS3() as server:
        yield server


@pytest.fixture
def local(running_s3: LocalS3, monkeypatch: pytest.MonkeyPatch) -> LocalS3:
    """An S3 whose endpoint and credentials are in the environment, as a user sets them."""
    for name, value in running_s3.environment.items():
        monkeypatch.setenv(name, value)
    return running_s3


def test_a_temporary_bucket_is_deleted_with_all_its_versions(local: LocalS3) -> None:
    with ChosenS3(local.endpoint, None) as s3:
        client = s3_client(s3.environment)
        client.put_bucket_versioning(Bucket=s3.root, VersioningConfiguration={"Status": "Enabled"})
        for number in range(3):
            client.put_object(Bucket=s3.root, Key=f"table/{number % 2}", Body=b"x")
        client.delete_object(Bucket=s3.root, Key="table/0")
        assert keys(s3.environment, s3.root) == ["table/1"]
    assert s3.root not in bucket_names(client)


def test_only_the_temporary_prefix_of_a_chosen_bucket_is_deleted(local: LocalS3) -> None:
    local.create_bucket("theirs")
    with ChosenS3(local.endpoint, "theirs") as s3:
        bucket, _, prefix = s3.root.partition("/")
        assert bucket == "theirs"
        client = s3_client(s3.environment)
        for key in ("data", f"{prefix}/table/0", f"{prefix}-another/data"):
            client.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert keys(s3.environment, "theirs") == ["data", f"{prefix}-another/data"]


class NoVersions(Gateway):
    """Refuses to list versions of objects."""

    answer = (403, "AccessDenied")

    def do_GET(self) -> None:
        if "versions" in self.path.partition("?")[2].split("&"):
            self.refuse(*self.answer)
        else:
            self.forward()


class NotImplementedStatus(NoVersions):
    """Refuses with the status of an operation that is not implemented."""

    answer = (501, "NotImplemented")


class NotImplementedCode(NoVersions):
    """Refuses with the error code of an operation that is not implemented."""

    answer = (400, "NotImplemented")


@pytest.mark.parametrize("gateway", [NoVersions, NotImplementedStatus, NotImplementedCode])
@pytest.mark.parametrize("bucket", [None, "plain"])
def test_objects_are_deleted_where_versions_cannot_be_listed(
    local: LocalS3, gateway: type[Gateway], bucket: str | None
) -> None:
    local.create_bucket("plain")
    with serve_gateway(gateway, local.endpoint) as endpoint, ChosenS3(endpoint, bucket) as s3:
        name, prefix = split_root(s3.root)
        for number in range(3):
            s3_client(s3.environment).put_object(Bucket=name, Key=f"{prefix}table/{number}", Body=b"x")
        assert len(keys(local.environment, name)) == 3
    assert keys(local.environment, "plain") == []
    assert bucket or s3.root not in bucket_names(s3_client(local.environment))


class NoDelete(Gateway):
    """Refuses to delete objects."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.refuse(403, "AccessDenied")


@pytest.mark.parametrize("block_fails", [False, True])
def test_a_failed_deletion_does_not_hide_an_earlier_error(
    local: LocalS3, capsys: pytest.CaptureFixture[str], *, block_fails: bool
) -> None:
    local.create_bucket("stuck")
    with (
        serve_gateway(NoDelete, local.endpoint) as endpoint,
        pytest.raises(ZeroDivisionError if block_fails else ChosenS3Error),
        ChosenS3(endpoint, "stuck") as s3,
    ):
        s3_client(s3.environment).put_object(Bucket="stuck", Key=f"{split_root(s3.root)[1]}part", Body=b"x")
        if block_fails:
            raise ZeroDivisionError
    assert (f"remove the objects below s3://{s3.root} yourself" in capsys.readouterr().err) is block_fails


def test_the_error_for_a_missing_bucket_has_advice(local: LocalS3) -> None:
    with pytest.raises(ChosenS3Error, match=r"NoSuchBucket.*; name an existing bucket$"):
        ChosenS3(local.endpoint, "missing").start()


def test_missing_credentials_are_reported(local: LocalS3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = ChosenS3(local.endpoint, None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
        del s3.environment[name]
    # The default session stores the credentials of an earlier test.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(ChosenS3Error, match="Unable to locate credentials"):
        s3.start()


def test_a_demo_copies_its_table_to_disk_and_empties_the_bucket(local: LocalS3, tmp_path: Path) -> None:
    local.create_bucket("demos")
    with open_store("s3", tmp_path, ChosenS3(local.endpoint, "demos")) as store:
        bucket, prefix = split_root(store.root.removeprefix("s3a://"))
        s3_client({}).put_object(Bucket=bucket, Key=f"{prefix}flights/part", Body=b"x")
        assert store.table("flights") == f"s3a://demos/{prefix}flights"
        download_tables(store, tmp_path)
    assert (tmp_path / "flights/part").read_bytes() == b"x"
    assert keys(local.environment, "demos") == []


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "https://", "http://[::1", "http://host:port"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ChosenS3Error, match="give http://HOST:PORT or https://HOST"):
        ChosenS3(endpoint)


def test_the_default_endpoint_comes_from_the_environment(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local.create_bucket("named")
    s3 = ChosenS3(None, "named")
    assert s3.endpoint == local.endpoint
    assert s3.environment["AWS_ENDPOINT_URL"] == local.endpoint
    assert s3.spark_conf["spark.hadoop.fs.s3a.endpoint"] == local.endpoint
    with open_store("s3", tmp_path, s3) as store:
        assert store.description == f"s3a://{s3.root} on {local.endpoint}"
        s3_client(store.environment).put_object(Bucket="named", Key=f"{split_root(s3.root)[1]}part", Body=b"x")
    assert keys(local.environment, "named") == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(ChosenS3Error, match=r"'127\.0\.0\.1:9000' is not an endpoint"):
        ChosenS3(None, "named")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert "spark.hadoop.fs.s3a.endpoint" not in ChosenS3(None, "named").spark_conf


def test_the_user_sets_region_tls_and_address_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", raising=False)
    assert s3a_settings("http://h:1", None) == {
        "fs.s3a.endpoint": "http://h:1", "fs.s3a.path.style.access": "true", "fs.s3a.connection.ssl.enabled": "false",
    }  # fmt: skip
    assert s3a_settings(None, "eu-central-1") == {"fs.s3a.endpoint.region": "eu-central-1"}
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    s3 = ChosenS3("https://s3.example.com", "theirs")
    assert s3.spark_conf["spark.hadoop.fs.s3a.path.style.access"] == "false"
    assert s3.spark_conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    assert s3.environment["AWS_ALLOW_HTTP"] == "false"

    def url() -> str:
        client = s3_client(s3.environment)
        return str(client.generate_presigned_url("get_object", {"Bucket": "theirs", "Key": "k"})).partition("?")[0]

    assert url() == "https://theirs.s3.example.com/k"
    monkeypatch.delenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    assert url() == "https://s3.example.com/theirs/k"
