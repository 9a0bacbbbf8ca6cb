"""Parts of the soak: the JVM sends the block of its thread to the guard; no process outlives its parent."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from soak.errors import JvmError, StoreError, VersionTakenError, WriteError
from soak.hadoop import hadoop_settings
from soak.jvm import StoreJvm
from soak.s3_faults import RIVAL, FaultyS3, S3Fault

TABLE = "s3a://lake/machinery"
pytestmark = pytest.mark.s3
COMMIT = ['{"commitInfo":{"txnId":"a"}}']


class RecordingGuard:
    """A guard that records its requests, and refuses only the commits in the block ``"none"``."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def check(self, request: str) -> str:
        fields = json.loads(request)
        self.requests.append(fields)
        if fields["blocks"] == "none":
            return json.dumps({"refused": "LockNotHeldError", "message": "no lock"})
        return json.dumps({"holds": [fields["blocks"]], "stamp": {"hold": fields["blocks"]}})


@pytest.fixture(scope="module")
def guard() -> RecordingGuard:
    return RecordingGuard()


@pytest.fixture(scope="module")
def jvm(s3: FaultyS3, guard: RecordingGuard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreJvm]:
    errors = tmp_path_factory.mktemp("jvm") / "jvm.log"
    settings = hadoop_settings("writer-1", s3)
    store = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, stderr_path=errors)
    yield store
    store.close()


@pytest.mark.full
def test_each_commit_sends_the_block_of_its_thread(jvm: StoreJvm, guard: RecordingGuard) -> None:
    for number in range(10):
        jvm.write(TABLE, number, COMMIT, block=f"hold-{number}")
        gc.collect()
    assert [(request["kind"], request["blocks"], request["version"]) for request in guard.requests] == [
        ("commit", f"hold-{number}", number) for number in range(10)
    ]
    assert jvm.versions(TABLE, 0) == list(range(10))
    assert '"hold":"hold-3"' in jvm.read(TABLE, 3)[0]
    assert [attempt["outcome"] for attempt in jvm.attempts("hold-3")] == ["committed"]
    jvm.forget("hold-3")
    assert jvm.attempts("hold-3") == []


@pytest.mark.full
@pytest.mark.parametrize("writer", ["writer-1", "writer-2"], ids=["createFile", "S3A's client"])
def test_versions_have_the_encryption_and_storage_class_of_s3a(
    s3: FaultyS3, guard: RecordingGuard, tmp_path: Path, writer: str
) -> None:
    settings = {
        **hadoop_settings(writer, s3), "fs.s3a.encryption.algorithm": "AES256",
        "fs.s3a.create.storage.class": "intelligent_tiering",
    }  # fmt: skip
    table = f"{TABLE}-{writer}"
    store = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, stderr_path=tmp_path / "jvm.log")
    try:
        store.write(table, 0, COMMIT, block="hold")
    finally:
        store.close()
    bucket, path = table.removeprefix("s3a://").split("/", 1)
    version = boto3.client("s3", endpoint_url=s3.endpoint).head_object(
        Bucket=bucket, Key=f"{path}/_delta_log/{0:020d}.json"
    )
    assert (version["ServerSideEncryption"], version["StorageClass"]) == ("AES256", "INTELLIGENT_TIERING")


@pytest.mark.full
def test_java_objects_of_earlier_calls_are_released(jvm: StoreJvm) -> None:
    """Without the release, Py4J keeps every object that it has returned, for thousands of commits."""

    def count_objects() -> int:
        jvm.versions(f"{TABLE}-many", 0)
        return int(jvm._bindings.size())

    jvm.write(f"{TABLE}-many", 0, COMMIT, block="hold")
    first_count = count_objects()
    for number in range(1, 11):
        jvm.write(f"{TABLE}-many", number, COMMIT, block="hold")
        jvm.write_data_file(f"{TABLE}-many", f"{number}.parquet", [2**40])
        count_objects()
    # The listing itself has ten more entries.
    assert count_objects() < first_count + 100


def test_a_commit_in_another_java_thread_is_an_error(jvm: StoreJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = iter([1, 2])
    monkeypatch.setattr(jvm, "_thread", lambda: next(threads))
    with pytest.raises(JvmError, match="another Java thread"):
        jvm.write(TABLE, 10, COMMIT, block="hold")


@pytest.mark.full
def test_java_exceptions_become_python_errors(jvm: StoreJvm, s3: FaultyS3) -> None:
    jvm.write(f"{TABLE}-errors", 0, COMMIT, block="hold")
    with pytest.raises(VersionTakenError):
        jvm.write(f"{TABLE}-errors", 0, COMMIT, block="hold")
    with pytest.raises(WriteError) as refused:
        jvm.write(f"{TABLE}-errors", 1, COMMIT, block="none")
    assert (refused.value.kind, refused.value.reason) == ("refused", "LockNotHeldError")
    s3.gate.arm("writer-1", S3Fault(status=500, times=99))
    with pytest.raises(WriteError) as unknown:
        jvm.write(f"{TABLE}-errors", 1, COMMIT, block="hold")
    s3.gate.disarm("writer-1")
    assert (unknown.value.kind, unknown.value.reason) == ("unknown", "CommitUnknownException")
    with pytest.raises(StoreError) as missing:
        jvm.read(f"{TABLE}-errors", 7)
    assert missing.value.reason == "FileNotFoundException"
    assert jvm.versions(f"{TABLE}-nowhere", 0) == []


REFUSED_SETTINGS = [
    # Writers with an even number put with S3A's client.
    ("writer-3", "fs.s3a.create.conditional.enabled", "false", "Conditional Writes Unavailable|leave the setting out"),
    ("writer-2", "fs.s3a.create.conditional.enabled", "false", "leave the setting out"),
    ("writer-3", "fs.s3a.sluice.put", "createFile", "fs.s3a.sluice.put=createFile: set it to client"),
]


@pytest.mark.parametrize(("writer", "name", "value", "message"), REFUSED_SETTINGS)
def test_s3a_settings_without_conditional_puts_commit_nothing(
    s3: FaultyS3, guard: RecordingGuard, tmp_path: Path, writer: str, name: str, value: str, message: str
) -> None:
    settings = {**hadoop_settings(writer, s3), name: value}
    jvm = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, stderr_path=tmp_path / "jvm.log")
    count = len(s3.gate.puts)
    try:
        with pytest.raises(WriteError, match=message):
            jvm.write(f"{TABLE}-unconditional", 0, COMMIT, block="hold")
        # The store is not proven, so the guard is not asked.
        assert jvm.attempts("hold") == []
    finally:
        jvm.close()
    assert len(s3.gate.puts) == count


def test_a_version_of_the_size_of_two_parts_is_one_put(s3: FaultyS3, guard: RecordingGuard, tmp_path: Path) -> None:
    """The S3 of the tests ignores the condition of a multipart upload."""
    parts = {"fs.s3a.multipart.size": "5M", "fs.s3a.multipart.threshold": "5M"}
    # An operation outside of an audit span would be refused.
    settings = {**hadoop_settings("writer-3", s3), **parts, "fs.s3a.audit.reject.out.of.span.operations": "true"}
    jvm = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, stderr_path=tmp_path / "jvm.log")
    table = f"{TABLE}-large"
    commit = [*COMMIT, json.dumps({"txn": {"appId": "x" * (6 << 20), "version": 1}})]
    try:
        s3.gate.arm("writer-3", S3Fault(rival=True))
        with pytest.raises(VersionTakenError):
            jvm.write(table, 0, commit, block="hold")
        jvm.write(table, 1, commit, block="hold")
        assert "rival" in jvm.read(table, 0)[0]
        assert jvm.read(table, 1)[1:] == commit[1:]
    finally:
        jvm.close()
    folder = table.removeprefix("s3a://") + "/"
    puts = [(put.version, put.writer, put.status) for put in s3.gate.puts if put.key.startswith(folder)]
    assert puts == [(0, RIVAL, 200), (0, "writer-3", 412), (1, "writer-3", 200)]


def test_a_stopped_writer_ends_with_its_parent(tmp_path: Path, eventually: Callable[..., None]) -> None:
    pid_file = tmp_path / "pid"
    child_program = f"import os,time; open({str(pid_file)!r},'w').write(str(os.getpid())+chr(10)); time.sleep(600)"
    parent_program = (
        "import subprocess,sys,time; from soak import processes\n"
        "process = subprocess.Popen([sys.executable, str(processes._SUPERVISOR), sys.executable, '-c', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\ntime.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_program, child_program])
    try:
        eventually(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
