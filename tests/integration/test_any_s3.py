"""What the log store relies on, tried on the S3 that is used: the embedded one, or one of the user's choice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.audit.log_folder import s3_client
from sluice.demo.services import keep_tables, open_store
from sluice.errors import ChosenS3Error
from sluice.local.chosen_s3 import ChosenS3, s3a_settings
from sluice.local.s3 import LocalS3
from tests.support.gateway import Gateway, served
from tests.support.lake import S3

KEYS, RIVALS = 40, 8


def put_if_absent(client: Any, bucket: str, key: str, body: bytes) -> int:
    try:
        client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return 200


def keys(environment: dict[str, str], bucket: str, prefix: str = "") -> list[str]:
    found = s3_client(environment).list_objects_v2(Bucket=bucket, Prefix=prefix)
    return [each["Key"] for each in found.get("Contents", ())]


@pytest.mark.s3
def test_of_rivals_for_a_key_exactly_one_wins_and_its_content_stays(s3: S3) -> None:
    client = s3_client(s3.environment)
    bucket, _, prefix = f"{s3.root}/".partition("/")
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(KEYS):
            key = f"{prefix}rivals/_delta_log/{number:020}.json"
            start = threading.Barrier(RIVALS)

            def rival(name: bytes, key: str = key, start: threading.Barrier = start) -> int:
                start.wait(30)
                return put_if_absent(client, bucket, key, name)

            names = [f"rival {index}".encode() for index in range(RIVALS)]
            answers = list(pool.map(rival, names))
            # AWS may answer 409 to who comes while another is at it, and the log store repeats such a PUT.
            assert set(answers) <= {200, 409, 412}
            assert answers.count(200) == 1
            stored = client.get_object(Bucket=bucket, Key=key)["Body"].read()
            assert stored == names[answers.index(200)]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalS3]:
    with LocalS3() as running:
        yield running


def chosen(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, bucket: str | None = None, endpoint: str | None = None
) -> ChosenS3:
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    return ChosenS3(endpoint or local.endpoint, bucket)


def test_a_bucket_of_ones_own_is_removed_with_all_that_is_in_it(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chosen(local, monkeypatch) as s3:
        client = s3_client(s3.environment)
        client.put_bucket_versioning(Bucket=s3.root, VersioningConfiguration={"Status": "Enabled"})
        for number in range(3):
            client.put_object(Bucket=s3.root, Key=f"table/{number % 2}", Body=b"x")
        client.delete_object(Bucket=s3.root, Key="table/0")
        assert keys(s3.environment, s3.root) == ["table/1"]
    assert s3.root not in [each["Name"] for each in client.list_buckets()["Buckets"]]


def test_in_a_bucket_that_is_there_only_the_prefix_of_ones_own_is_removed(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.create_bucket("theirs")
    with chosen(local, monkeypatch, "theirs") as s3:
        bucket, _, prefix = s3.root.partition("/")
        assert bucket == "theirs"
        client = s3_client(s3.environment)
        for key in ("kept", f"{prefix}/table/0", f"{prefix}-another/kept"):
            client.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert keys(s3.environment, "theirs") == ["kept", f"{prefix}-another/kept"]


class NoVersions(Gateway):
    """Does not list versions of objects."""

    answer = (403, "AccessDenied")

    def do_GET(self) -> None:
        if "versions" in self.path.partition("?")[2].split("&"):
            self.refuse(*self.answer)
        else:
            self.forward()


class NotImplementedStatus(NoVersions):
    """The same, for it does not know versions."""

    answer = (501, "NotImplemented")


class NotImplementedCode(NoVersions):
    """The same, with another status."""

    answer = (400, "NotImplemented")


@pytest.mark.parametrize("kind", [NoVersions, NotImplementedStatus, NotImplementedCode])
@pytest.mark.parametrize("bucket", [None, "plain"])
def test_where_versions_cannot_be_listed_objects_are_removed_without_them(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, kind: type[Gateway], bucket: str | None
) -> None:
    local.create_bucket("plain")
    with served(kind, local.endpoint) as endpoint, chosen(local, monkeypatch, bucket, endpoint) as s3:
        name, _, prefix = f"{s3.root}/".partition("/")
        for number in range(3):
            s3_client(s3.environment).put_object(Bucket=name, Key=f"{prefix}table/{number}", Body=b"x")
        assert len(keys(local.environment, name)) == 3
    client = s3_client(local.environment)
    left = [each["Name"] for each in client.list_buckets()["Buckets"]]
    assert keys(local.environment, "plain") == []
    assert bucket or s3.root not in left


class NoDelete(Gateway):
    """Refuses to remove anything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.refuse(403, "AccessDenied")


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_removed_does_not_hide_the_error_that_came_first(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, fails: bool
) -> None:
    local.create_bucket("stuck")
    with (
        served(NoDelete, local.endpoint) as endpoint,
        pytest.raises(ZeroDivisionError if fails else ChosenS3Error),
        chosen(local, monkeypatch, "stuck", endpoint) as s3,
    ):
        s3_client(s3.environment).put_object(Bucket="stuck", Key=f"{s3.root.partition('/')[2]}/part", Body=b"x")
        if fails:
            raise ZeroDivisionError
    told = capsys.readouterr().err
    assert (f"remove the objects below s3://{s3.root} yourself" in told) is fails


def test_a_bucket_that_is_not_there_is_told_in_a_sentence(local: LocalS3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChosenS3Error, match=r"NoSuchBucket.*; name an existing bucket$"):
        chosen(local, monkeypatch, "nobody-s").start()


def test_without_credentials_the_sentence_says_so(local: LocalS3, monkeypatch: pytest.MonkeyPatch) -> None:
    there = chosen(local, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
        del there.environment[name]
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # it remembers the credentials of an earlier test
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(ChosenS3Error, match="Unable to locate credentials"):
        there.start()


def test_a_demo_keeps_its_table_on_disk_and_leaves_nothing_in_the_bucket(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local.create_bucket("demos")
    with open_store("s3", tmp_path, chosen(local, monkeypatch, "demos")) as store:
        bucket, _, prefix = store.root.removeprefix("s3a://").partition("/")
        s3_client({}).put_object(Bucket=bucket, Key=f"{prefix}/flights/part", Body=b"x")
        assert store.table("flights") == f"s3a://demos/{prefix}/flights"
        keep_tables(store, tmp_path)
    assert (tmp_path / "flights/part").read_bytes() == b"x"
    assert keys(local.environment, "demos") == []


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "https://", "http://[::1", "http://host:port"])
def test_what_is_no_url_of_an_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ChosenS3Error, match="give http://HOST:PORT or https://HOST"):
        ChosenS3(endpoint)


def test_without_an_endpoint_everyone_takes_the_one_that_the_environment_names(
    local: LocalS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local.create_bucket("named")
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    s3 = ChosenS3(None, "named")
    assert s3.endpoint == local.endpoint
    assert s3.environment["AWS_ENDPOINT_URL"] == local.endpoint
    assert s3.spark_conf["spark.hadoop.fs.s3a.endpoint"] == local.endpoint
    with open_store("s3", tmp_path, s3) as store:
        assert store.where == f"s3a://{s3.root} on {local.endpoint}"
        s3_client(store.environment).put_object(Bucket="named", Key=f"{s3.root.partition('/')[2]}/part", Body=b"x")
    assert keys(local.environment, "named") == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(ChosenS3Error, match=r"'127\.0\.0\.1:9000' is not an endpoint"):
        ChosenS3(None, "named")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert "spark.hadoop.fs.s3a.endpoint" not in ChosenS3(None, "named").spark_conf


def test_region_encryption_and_where_the_bucket_is_named_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
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
    urls = [s3_client(s3.environment).generate_presigned_url("get_object", {"Bucket": "theirs", "Key": "k"})]
    monkeypatch.delenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    urls.append(s3_client(s3.environment).generate_presigned_url("get_object", {"Bucket": "theirs", "Key": "k"}))
    assert [url.partition("?")[0] for url in urls] == [
        "https://theirs.s3.example.com/k",
        "https://s3.example.com/theirs/k",
    ]
