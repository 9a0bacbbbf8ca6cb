"""`sluice doctor --lock-url` reports faults of a bucket for locks, and passes a bucket that can be used."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from typer.testing import CliRunner

from lock_manager import LockSettings, canonical_table_uri
from lock_manager.settings import OPTIMISTIC_URL
from sluice.audit.log_folder import s3_client
from sluice.commands.app import app
from sluice.doctor import lock_bucket
from sluice.doctor.finding import Verdict
from sluice.doctor.lock_bucket import KEY, lock_bucket_findings
from soak.s3_faults import FaultyS3
from tests.support.gateway import Gateway, serve_gateway
from tests.support.lock_bucket import BUCKET, LockBucket, serving

Findings = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3]:
    with serving(FaultyS3()) as s3:
        yield s3


@pytest.fixture
def bucket(s3: FaultyS3) -> Iterator[LockBucket]:
    with ExitStack() as stack:
        yield LockBucket(s3, stack)


def doctor(url: str, *arguments: str) -> tuple[int, Findings]:
    """Run the command; return its exit code, and verdict and message of each check."""
    result = CliRunner().invoke(app, ["doctor", "--json", "--lock-url", url, *arguments])
    findings = json.loads(result.stdout)
    return result.exit_code, {finding["what"]: (finding["verdict"], finding["says"]) for finding in findings}


def test_a_usable_bucket_has_no_fault(bucket: LockBucket) -> None:
    code, findings = doctor(bucket.url)
    assert code == 0, findings
    assert findings["locks"][0] == "note"
    assert "there is no coordinator yet" in findings["locks"][1]
    manager = bucket.manager()
    with manager.acquire(bucket.table) as hold:
        code, findings = doctor(bucket.url)
        assert code == 0, findings
        assert findings["locks"][0] == "ok"
        assert findings["locks"][1].endswith(f"coordinator {hold.ensemble_id}")
        hold.check()
    for check in ("permission", "conditional PUT", "latency", "versioning", "lifecycle", "jars"):
        assert findings[check][0] == "ok", findings[check]
    assert "in sequence, and by 8 concurrent rivals, with one winner in" in findings["conditional PUT"][1]
    objects = s3_client({}).list_objects_v2(Bucket=BUCKET, Prefix=f"{bucket.prefix}/")["Contents"]
    names = {item["Key"].removeprefix(f"{bucket.prefix}/").partition("/")[0] for item in objects}
    assert names == {KEY, "coordinator.json", "tables"}


def test_two_doctors_at_once_do_not_report_each_other_as_a_fault(bucket: LockBucket) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(lock_bucket_findings, bucket.settings()) for _ in range(6)]
    faults = [finding for run in runs for finding in run.result() if finding.failed]
    assert not faults


class ChecksEtag(Gateway):
    """Compares the ETag, and stores the object a moment later. Two concurrent PUTs both succeed."""

    lock: Any = nullcontext()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            status, _, headers = self.forward_unconditionally("HEAD")
            etag = {name.lower(): value for name, value in headers}.get("etag") if status == HTTPStatus.OK else None
            if self.headers.get("If-Match", etag) != etag or (self.headers.get("If-None-Match") and etag):
                self.refuse(412, "PreconditionFailed")
                return
            time.sleep(0.02)  # the fault
            response = self.forward_unconditionally("PUT", body)
        self.respond(*response)


class ChecksEtagUnderLock(ChecksEtag):
    """Compares and stores under a lock."""

    lock = Lock()


class LosesWinners(ChecksEtagUnderLock):
    """Acknowledges a PUT that replaces an object, and does not store it."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            etag = dict(self.forward_unconditionally("HEAD")[2]).get("ETag")
            if "If-None-Match" in self.headers:
                self.respond(*self.forward_unconditionally("PUT", body))
            elif self.headers["If-Match"] == etag and not hasattr(type(self), "winner"):
                type(self).winner = self  # type: ignore[attr-defined]
                self.respond(200, headers=[("ETag", f'"{hashlib.md5(body).hexdigest()}"')])  # noqa: S324 (as S3 does)
            else:
                self.refuse(412, "PreconditionFailed")


class RefusesMissing(Gateway):
    """Refuses to read objects that do not exist, as S3 does without s3:ListBucket."""

    def do_GET(self) -> None:
        status, content, headers = self.forward_unconditionally("GET")
        if status == HTTPStatus.NOT_FOUND:
            self.refuse(403, "AccessDenied")
        else:
            self.respond(status, content, headers)


class HidesSettings(ChecksEtagUnderLock):
    """Refuses to show the settings of a bucket."""

    def do_GET(self) -> None:
        if self.path.endswith(("?versioning", "?lifecycle")):
            self.refuse(403, "AccessDenied")
        else:
            self.respond(*self.forward_unconditionally("GET"))


@pytest.fixture
def use_gateway(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Gateway]], None]]:
    """Put a gateway in front of the S3 that boto3 finds by the environment."""
    with ExitStack() as stack:

        def start(kind: type[Gateway]) -> None:
            endpoint = stack.enter_context(serve_gateway(kind, s3.environment["AWS_ENDPOINT_URL"]))
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

        yield start


@pytest.mark.parametrize(
    ("kind", "verdict", "message"),
    [
        (Gateway, "failed", "8 of 8 rivals wrote s3://"),
        (ChecksEtag, "failed", "rivals wrote s3://"),
        (ChecksEtagUnderLock, "ok", "rivals, with one winner in"),
        (LosesWinners, "failed", "does not have the content of the rival that wrote it"),
    ],
)
def test_the_conditions_of_puts_are_tried_by_rivals(
    bucket: LockBucket, use_gateway: Callable[[type[Gateway]], None], kind: type[Gateway], verdict: str, message: str
) -> None:
    doctor(bucket.url)  # The object exists.
    use_gateway(kind)
    code, findings = doctor(bucket.url)
    assert findings["conditional PUT"][0] == verdict, findings
    assert message in findings["conditional PUT"][1]
    assert code == (1 if verdict == "failed" else 0)


def test_a_missing_permission_is_named(bucket: LockBucket, use_gateway: Callable[[type[Gateway]], None]) -> None:
    use_gateway(RefusesMissing)
    code, findings = doctor(bucket.url)
    assert (code, findings["permission"][0]) == (1, "failed")
    assert "s3:ListBucket on the bucket" in findings["permission"][1]
    assert "locks" not in findings


def test_hidden_settings_of_a_bucket_are_no_fault(
    bucket: LockBucket, use_gateway: Callable[[type[Gateway]], None]
) -> None:
    use_gateway(HidesSettings)
    code, findings = doctor(bucket.url)
    assert code == 0, findings
    assert findings["versioning"] == (
        "note",
        "cannot be read (AccessDenied): allow s3:GetBucketVersioning for this check",
    )
    assert "s3:GetLifecycleConfiguration" in findings["lifecycle"][1]


def test_a_missing_bucket_is_a_fault(s3: FaultyS3) -> None:
    code, findings = doctor("s3-lease://nobody-s/locks")
    assert (code, findings["locks"][0]) == (1, "failed")
    assert "NoSuchBucket" in findings["locks"][1]


def test_a_bucket_that_keeps_old_versions_is_noted(s3: FaultyS3) -> None:
    s3.create_bucket("versioned")
    s3_client({}).put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    code, findings = doctor("s3-lease://versioned/locks")
    assert (code, findings["versioning"][0]) == (0, "note")
    assert "use a bucket without versioning" in findings["versioning"][1]


AFTER_A_DAY = {"Expiration": {"Days": 1}}


@pytest.mark.parametrize(
    ("rule", "is_harmful"),
    [
        ({"Filter": {}, **AFTER_A_DAY}, True),
        ({"Filter": {"Prefix": "locks/"}, **AFTER_A_DAY}, True),
        ({"Filter": {"Prefix": "lo"}, **AFTER_A_DAY}, True),
        ({"Filter": {"Prefix": "locks/tables/"}, **AFTER_A_DAY}, True),
        ({"Filter": {"And": {"Prefix": "locks/", "ObjectSizeGreaterThan": 10}}, **AFTER_A_DAY}, True),
        ({"Filter": {}, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}, True),
        ({"Filter": {"Prefix": "raw/"}, **AFTER_A_DAY}, False),
        ({"Filter": {"Prefix": "locks/other/"}, **AFTER_A_DAY}, False),
        ({"Filter": {"Tag": {"Key": "temporary", "Value": "yes"}}, **AFTER_A_DAY}, False),
        ({"Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False),
        ({"Filter": {}, "Transitions": [{"Days": 30, "StorageClass": "STANDARD_IA"}]}, False),
        ({"Filter": {}, "Status": "Disabled", **AFTER_A_DAY}, False),
    ],
)
def test_a_lifecycle_rule_that_may_delete_locks_is_a_fault(
    s3: FaultyS3, rule: dict[str, Any], *, is_harmful: bool
) -> None:
    s3.create_bucket("with-rules")
    configuration = {"Rules": [{"ID": "nightly", "Status": "Enabled", **rule}]}
    s3_client({}).put_bucket_lifecycle_configuration(Bucket="with-rules", LifecycleConfiguration=configuration)
    settings = LockSettings(lock_url="s3-lease://with-rules/locks")
    (finding,) = [finding for finding in lock_bucket_findings(settings) if finding.check == "lifecycle"]
    assert finding.verdict is (Verdict.FAILED if is_harmful else Verdict.OK)
    assert ("rule nightly deletes or archives" in finding.message) is is_harmful


@pytest.mark.parametrize(("size", "is_harmful"), [(1 << 10, True), (1 << 30, False)])
def test_a_rule_for_large_objects_does_not_delete_locks(size: int, *, is_harmful: bool) -> None:
    # The S3 of the tests does not keep this condition.
    rule = {"Status": "Enabled", "Filter": {"ObjectSizeGreaterThan": size}, **AFTER_A_DAY}
    assert lock_bucket._may_remove(rule, "locks/") is is_harmful


def test_the_adoption_is_compared_with_this_coordinator(bucket: LockBucket, tmp_path: Path) -> None:
    with bucket.manager().acquire(tmp_path) as hold:
        ensemble = hold.ensemble_id

    def adoption(adopted_by: str, url: str) -> tuple[str, str]:
        table = tmp_path / adopted_by
        properties = {"sluice.ensemble": adopted_by, "sluice.table": canonical_table_uri(table)}
        schema = Schema([Field("id", "long")])
        DeltaTable.create(table, schema, mode="overwrite", configuration=properties, raise_if_key_not_exists=False)
        return doctor(url, "--table", str(table))[1]["adoption"]

    assert adoption(ensemble, bucket.url)[0] == "ok"
    assert adoption("optimistic", OPTIMISTIC_URL)[0] == "ok"
    verdict, message = adoption("another", bucket.url)
    assert verdict == "failed"
    assert "--lock-url" in message
    assert adoption(ensemble, OPTIMISTIC_URL)[0] == "failed"


def test_a_table_of_writers_with_a_fallback_has_to_be_adopted(zookeeper: Any, tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, Schema([Field("id", "long")]))
    url = f"zookeeper://{zookeeper.hosts}?fallback=optimistic"
    code, findings = doctor(url, "--table", str(tmp_path))
    assert (code, findings["adoption"][0], findings["locks"][0]) == (1, "failed", "note")
    assert findings["session"][0] == "ok"
    assert "writers with a fallback are refused" in findings["adoption"][1]


class Busy(ChecksEtagUnderLock):
    """Answers every fifth PUT with SlowDown."""

    puts = itertools.count()

    def do_PUT(self) -> None:
        if next(self.puts) % 5:
            super().do_PUT()
        else:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.refuse(503, "SlowDown")


def test_a_busy_store_is_no_fault(bucket: LockBucket, use_gateway: Callable[[type[Gateway]], None]) -> None:
    use_gateway(Busy)
    code, findings = doctor(bucket.url)
    assert code == 0, findings
    assert findings["conditional PUT"][0] == "ok"


def test_an_object_of_another_program_is_noted(bucket: LockBucket) -> None:
    s3_client({}).put_object(Bucket=BUCKET, Key=f"{bucket.prefix}/{KEY}", Body=b"[1]")
    assert doctor(bucket.url)[0] == 0


def test_a_coordinator_without_locks_is_noted() -> None:
    code, findings = doctor(OPTIMISTIC_URL)
    assert (code, findings["locks"][0]) == (0, "note")
    assert "session" not in findings
