"""An append that waits for its lock while other writers commit, on S3: its requests, and its reads of versions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow import table as arrow_table
from pyspark.sql import DataFrame, SparkSession

from lock_manager import LockCancelledError, ZookeeperLockManager
from lock_manager.guard import ticket
from soak.s3_faults import FaultyS3
from tests.support.at_the_gate import waiting_write
from writer_jobs import CommitResult, LockedDeltaWriter, WriteFailedError

pytestmark = pytest.mark.spark

BUCKET = "contended"
WRITER = "writer-1"
MIB = 1 << 20


@dataclass
class Recorder:
    """WSGI middleware that records the requests of the driver to the logs of tables.

    Attributes:
        requests: Methods and names of files; the name of a listing is empty.
        before_get: Functions that are called before the file of a name is read for the first time.
        errors: Statuses that answer the next reads of the file of a name.

    """

    application: Any
    requests: list[tuple[str, str]] = field(default_factory=list)
    before_get: dict[str, Callable[[], None]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, query = environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")
        if WRITER in environ.get("HTTP_USER_AGENT", "") and "_delta_log" in path + query:
            name = "" if "list-type" in query else path.rsplit("/", 1)[1]
            method = "LIST" if "list-type" in query else environ["REQUEST_METHOD"]
            self.requests.append((method, name))
            if method == "GET" and name in self.before_get:
                self.before_get.pop(name)()
            if method == "GET" and self.errors.get(name):
                start_response(self.errors[name].pop(), [("Content-Length", "0")])
                return [b""]
        response: Iterable[bytes] = self.application(environ, start_response)
        return response


@dataclass
class Table:
    """A table on S3, to which this driver appends through the gate, and another writer without Spark."""

    spark: SparkSession
    manager: ZookeeperLockManager
    s3: FaultyS3
    recorder: Recorder
    name: str
    eventually: Callable[..., None]

    def __post_init__(self) -> None:
        self.options = {**self.s3.environment, "AWS_ENDPOINT_URL": self.s3.endpoint}
        self.append_elsewhere(0)
        self.writer = LockedDeltaWriter(self.spark, self.manager, f"s3a://{BUCKET}/{self.name}")

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/{self.name}"

    @property
    def store(self) -> Any:
        return boto3.client("s3", endpoint_url=self.s3.endpoint)

    def key(self, version: int) -> str:
        return f"{self.name}/_delta_log/{file_name(version)}"

    def append(self, number: int, **options: Any) -> CommitResult:
        return self.writer.append(self.rows(number), **options)

    def rows(self, number: int) -> DataFrame:
        return self.spark.createDataFrame([(number,)], "id long").coalesce(1)

    def append_elsewhere(self, number: int, commit: CommitProperties | None = None) -> None:
        rows = arrow_table({"id": [number]})
        write_deltalake(self.uri, rows, mode="append", commit_properties=commit, storage_options=self.options)

    def put_version(self, version: int, content: str) -> None:
        self.store.put_object(Bucket=BUCKET, Key=self.key(version), Body=content.encode())

    def read_version(self, version: int) -> str:
        return str(self.store.get_object(Bucket=BUCKET, Key=self.key(version))["Body"].read().decode())

    def remove(self) -> None:
        for entry in self.store.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.name}/")["Contents"]:
            self.store.delete_object(Bucket=BUCKET, Key=entry["Key"])

    def waiting(self, append: Callable[[], CommitResult]) -> AbstractContextManager[Future[CommitResult]]:
        """Start an append that waits for its lock until the end of the block."""
        return waiting_write(self.manager, self.writer.table, append, self.eventually)

    def ids(self) -> list[int]:
        rows = DeltaTable(self.uri, storage_options=self.options).to_pyarrow_table()
        return sorted(rows["id"].to_pylist())

    def log_requests(self, version: int) -> Counter[tuple[str, str]]:
        """Count the requests up to the PUT of a version."""
        requests = self.recorder.requests
        return Counter(requests[: requests.index(("PUT", file_name(version)))])


def file_name(version: int) -> str:
    return f"{version:020d}.json"


@pytest.fixture(scope="module")
def recorded_s3() -> Iterator[tuple[FaultyS3, Recorder]]:
    s3 = FaultyS3()
    recorder = Recorder(s3.gate)
    s3.gate = recorder  # type: ignore[assignment] (it is served as it is)
    with s3:
        s3.create_bucket(BUCKET)
        yield s3, recorder


@pytest.fixture
def table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    recorded_s3: tuple[FaultyS3, Recorder],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> Iterator[Table]:
    """A table whose driver has met another writer, with four versions."""
    s3, recorder = recorded_s3
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    prefix = f"fs.s3a.bucket.{BUCKET}"
    settings = {key.replace("spark.hadoop.fs.s3a", prefix, 1): value for key, value in s3.spark_conf.items()}
    settings[f"{prefix}.user.agent.prefix"] = WRITER
    settings[f"{prefix}.access.key"] = s3.environment["AWS_ACCESS_KEY_ID"]
    settings[f"{prefix}.secret.key"] = s3.environment["AWS_SECRET_ACCESS_KEY"]
    for key, value in settings.items():
        conf.set(key, value)
    table = Table(spark, manager, s3, recorder, re.sub(r"\W", "-", request.node.name), eventually)
    table.append(1)
    table.append_elsewhere(2)
    table.append(3)
    recorder.requests.clear()
    recorder.before_get.clear()
    recorder.errors.clear()
    yield table
    for key in settings:
        conf.unset(key)


@pytest.fixture
def no_checks_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a waiting append check for conflicts only when it has its lock, not every few seconds."""
    monkeypatch.setattr(ticket, "TURN_SECONDS", 60)


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_versions_of_other_writers_are_listed_once_and_read_once(table: Table) -> None:
    with table.waiting(lambda: table.append(7)) as append:
        for number in (4, 5, 6):
            table.append_elsewhere(number)
        table.recorder.requests.clear()
    assert append.result().version == 7
    requests = table.log_requests(7)
    versions = [file_name(version) for version in (4, 5, 6)]
    assert [requests["GET", name] for name in versions] == [1, 1, 1]
    assert [requests["HEAD", name] for name in versions] == [0, 0, 0]
    # The identity of the version that the append has read.
    assert requests["HEAD", file_name(3)] == 1
    assert requests["LIST", ""] == 1
    assert table.ids() == list(range(8))


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_more_versions_than_are_read_at_once(table: Table) -> None:
    with table.waiting(lambda: table.append(100)) as append:
        for number in range(4, 24):
            table.append_elsewhere(number)
        # A version that is too large to be read at once.
        large = json.dumps({"commitInfo": {"timestamp": 0, "operation": "WRITE", "text": "x" * MIB}})
        table.put_version(24, large + "\n")
    assert append.result().version == 25
    requests = table.log_requests(25)
    assert {requests["GET", file_name(version)] for version in range(4, 25)} == {1}
    assert [version for version in range(4, 25) if requests["HEAD", file_name(version)]] == [24]
    assert table.ids() == [*range(24), 100]


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_a_version_that_was_replaced_since_its_listing_is_read_as_it_is_now(table: Table) -> None:
    with table.waiting(lambda: table.append(6)) as append:
        for number in (4, 5):
            table.append_elsewhere(number)
        content = table.read_version(4)
        longer = content + json.dumps({"txn": {"appId": "other", "version": 1}}) + "\n"
        table.recorder.before_get[file_name(4)] = lambda: table.put_version(4, longer)
    assert append.result().version == 6
    assert not table.recorder.before_get
    assert table.ids() == list(range(7))


def test_a_transaction_that_was_committed_during_the_wait_is_not_repeated(table: Table) -> None:
    with table.waiting(lambda: table.append(9, txn=("nightly", 1))) as append:
        for number in (4, 5):
            table.append_elsewhere(number)
        table.append_elsewhere(6, CommitProperties(app_transactions=[Transaction("nightly", 1)]))
    assert append.result().already_committed
    assert table.ids() == list(range(7))


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_a_version_of_a_writer_without_the_lock_is_read(table: Table) -> None:
    """It is committed between the listing and the PUT."""
    with table.waiting(lambda: table.append(6)) as append:
        for number in (4, 5):
            table.append_elsewhere(number)
        table.recorder.before_get[file_name(5)] = lambda: table.append_elsewhere(7)
    assert append.result().version == 7
    assert table.ids() == list(range(8))


@pytest.mark.usefixtures("no_checks_while_it_waits")
@pytest.mark.parametrize("status", ["404 Not Found", "412 Precondition Failed", "503 Slow Down"])
def test_a_version_whose_first_read_fails_is_read_again(table: Table, status: str) -> None:
    with table.waiting(lambda: table.append(7)) as append:
        for number in (4, 5, 6):
            table.append_elsewhere(number)
        table.recorder.errors[file_name(5)] = [status]
    assert append.result().version == 7
    assert table.recorder.errors == {file_name(5): []}
    assert table.ids() == list(range(8))


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_no_append_follows_a_version_that_cannot_be_read(table: Table) -> None:
    with table.waiting(lambda: table.append(6)) as append:
        for number in (4, 5):
            table.append_elsewhere(number)
        table.recorder.errors[file_name(5)] = ["403 Forbidden"] * 100
    assert isinstance(append.exception(), WriteFailedError)
    assert ("PUT", file_name(6)) not in table.recorder.requests
    table.recorder.errors.clear()
    assert table.append(6).version == 6
    assert table.ids() == list(range(7))


@pytest.mark.usefixtures("no_checks_while_it_waits")
def test_an_append_that_is_cancelled_while_versions_are_read_is_committed_or_not(table: Table) -> None:
    cancelling = []

    def cancel() -> None:
        """Cancel in another thread, because it returns when the append has ended."""
        cancelling.append(pool.submit(canceller.cancel))
        table.eventually(canceller._cancelled.is_set, label="the cancellation")

    canceller = LockedDeltaWriter(table.spark, table.manager, f"s3a://{BUCKET}/{table.name}")
    with ThreadPoolExecutor(1) as pool:
        with table.waiting(lambda: canceller.append(table.rows(6))) as append:
            for number in (4, 5):
                table.append_elsewhere(number)
            table.recorder.before_get[file_name(5)] = cancel
        cancelling.pop().result(60)
    is_committed = append.exception() is None
    assert is_committed or isinstance(append.exception(), LockCancelledError | WriteFailedError)
    assert table.append(7).version == (7 if is_committed else 6)
    assert table.ids() == [*range(6), *([6] if is_committed else []), 7]


@pytest.mark.usefixtures("no_checks_while_it_waits")
@pytest.mark.parametrize("versions", [2, 9], ids=["shorter log", "longer log"])
def test_a_table_that_was_created_again_during_the_wait(table: Table, versions: int) -> None:
    with table.waiting(lambda: table.append(100)) as append:
        table.remove()
        for number in range(versions):
            table.append_elsewhere(number)
    assert append.result().version == versions
    assert table.ids() == [*range(versions), 100]


def test_a_driver_that_has_just_committed_reads_the_versions_under_the_lock(table: Table) -> None:
    for number in (4, 5, 6):
        assert table.append(number).version == number
    table.append_elsewhere(7, CommitProperties(app_transactions=[Transaction("nightly", 1)]))
    assert table.append(8, txn=("nightly", 1)).already_committed
    assert table.append(9).version == 8


def test_settings_of_hadoop_have_no_names_of_files(table: Table) -> None:
    conf: Any = table.spark.sparkContext._jsc.hadoopConfiguration()
    assert conf.get("io.file.buffer.size")
    assert conf.getPropertySources("io.file.buffer.size") is None
