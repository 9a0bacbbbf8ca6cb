"""The soak's own parts: the JVM asks for the hold to which the thread is bound; nothing outlives its parent."""

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

import pytest

from soak.errors import JvmError, StoreError, VersionTakenError, WriteError
from soak.hadoop import hadoop_settings
from soak.jvm import StoreJvm
from soak.s3_faults import FaultyS3, S3Fault

TABLE = "s3a://lake/machinery"
pytestmark = pytest.mark.s3
COMMIT = ['{"commitInfo":{"txnId":"a"}}']


class Asked:
    """A guard that lets all pass, but no commit under the hold ``"none"``, and notes what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def check(self, request: str) -> str:
        asked = json.loads(request)
        self.requests.append(asked)
        if asked["blocks"] == "none":
            return json.dumps({"refused": "LockNotHeldError", "message": "no lock"})
        return json.dumps({"holds": [asked["blocks"]], "stamp": {"hold": asked["blocks"]}})


@pytest.fixture(scope="module")
def guard() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def jvm(s3: FaultyS3, guard: Asked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreJvm]:
    errors = tmp_path_factory.mktemp("jvm") / "jvm.log"
    settings = hadoop_settings("writer-1", s3)
    made = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, errors=errors)
    yield made
    made.close()


def test_every_commit_is_asked_for_under_the_hold_that_its_call_was_bound_to(jvm: StoreJvm, guard: Asked) -> None:
    for number in range(10):
        jvm.write(TABLE, number, COMMIT, block=f"hold-{number}")
        gc.collect()
    assert [(asked["kind"], asked["blocks"], asked["version"]) for asked in guard.requests] == [
        ("commit", f"hold-{number}", number) for number in range(10)
    ]
    assert jvm.versions(TABLE, 0) == list(range(10))
    assert '"hold":"hold-3"' in jvm.read(TABLE, 3)[0]
    assert [attempt["outcome"] for attempt in jvm.attempts("hold-3")] == ["committed"]
    jvm.forget("hold-3")
    assert jvm.attempts("hold-3") == []


def test_what_calls_leave_behind_in_the_jvm_is_given_up(jvm: StoreJvm) -> None:
    """Thousands of commits in one process: Py4J keeps every object that Python was ever told of."""

    def kept() -> int:
        jvm.versions(f"{TABLE}-many", 0)
        return int(jvm._bindings.size())

    jvm.write(f"{TABLE}-many", 0, COMMIT, block="hold")
    before = kept()
    for number in range(1, 11):
        jvm.write(f"{TABLE}-many", number, COMMIT, block="hold")
        jvm.write_data_file(f"{TABLE}-many", f"{number}.parquet", [2**40])
        kept()
    # The list itself has grown by ten entries.
    assert kept() < before + 100


def test_a_commit_in_another_java_thread_than_the_bound_one_is_an_error(
    jvm: StoreJvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = iter([1, 2])
    monkeypatch.setattr(jvm, "_thread", lambda: next(threads))
    with pytest.raises(JvmError, match="another Java thread"):
        jvm.write(TABLE, 10, COMMIT, block="hold")


def test_what_java_throws_comes_by_its_kind(jvm: StoreJvm, s3: FaultyS3) -> None:
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


def test_an_s3a_that_was_told_to_make_no_conditional_puts_makes_none_instead_of_unconditional_ones(
    s3: FaultyS3, guard: Asked, tmp_path: Path
) -> None:
    settings = {**hadoop_settings("writer-2", s3), "fs.s3a.create.conditional.enabled": "false"}
    jvm = StoreJvm(hadoop=settings, guard=guard, mode="required", conditional=True, errors=tmp_path / "jvm.log")
    before = len(s3.gate.puts)
    try:
        with pytest.raises(WriteError, match="Conditional Writes Unavailable"):
            jvm.write(f"{TABLE}-unconditional", 0, COMMIT, block="hold")
        # The store is not proven, so the guard was not asked for a put.
        assert jvm.attempts("hold") == []
    finally:
        jvm.close()
    assert len(s3.gate.puts) == before


def test_a_writer_ends_with_its_parent_even_if_it_is_stopped(tmp_path: Path, eventually: Callable[..., None]) -> None:
    note = tmp_path / "pids"
    child = f"import os,time; open({str(note)!r},'w').write(str(os.getpid())+chr(10)); time.sleep(600)"
    parent = (
        "import subprocess,sys,time; from soak import processes\n"
        "process = subprocess.Popen([sys.executable, str(processes._SUPERVISOR), sys.executable, '-c', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\ntime.sleep(600)"
    )
    running = subprocess.Popen([sys.executable, "-c", parent, child])
    try:
        eventually(lambda: note.exists() and note.read_text().endswith("\n"))
        pid = int(note.read_text())
        os.kill(pid, signal.SIGSTOP)
    finally:
        running.kill()
        running.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
