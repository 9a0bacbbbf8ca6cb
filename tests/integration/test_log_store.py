"""The guarded log store in a bare JVM, on a local disk and on services whose files are on this disk."""

from __future__ import annotations

import json
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from lock_manager.guard.guard_server import GuardServer
from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.local.spark import LOCAL_DRIVER, QUICK_JVM
from soak.errors import VersionTakenError, WriteError
from soak.gateway import connect, start_jvm
from soak.jvm import StoreJvm
from tests.support.without_hard_links import SYSTEM_CALLS

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
COMMIT = ['{"commitInfo":{"txnId":"a"}}', '{"add":{}}']
DELTA_LOG_STORES = {"hdfs": "HDFSLogStore", "abfs": "AzureLogStore", "gs": "GCSLogStore"}
TIMEOUT_SECONDS = 240


class PermissiveGuard:
    """Allows every commit. It first calls a function that the test sets."""

    def __init__(self) -> None:
        self.before_answer: Callable[[], object] = lambda: None

    def check(self, request: str) -> str:
        self.before_answer()
        hold = json.loads(request)["blocks"]
        return json.dumps({"holds": [hold], "stamp": {"hold": hold}})


def version_file(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


@dataclass
class LogStore:
    """The log store of a JVM, its guard, and the folder of a table with an empty log."""

    jvm: StoreJvm
    guard: PermissiveGuard
    folder: Path

    def write(self, version: int, hold: str, table: str | None = None) -> None:
        """Write a version of the table at its URI on the local disk, or at another URI."""
        self.jvm.write(table or f"file:{self.folder}", version, COMMIT, block=hold)

    def files(self) -> list[Path]:
        return list((self.folder / "_delta_log").iterdir())


@pytest.fixture(scope="module")
def guard() -> PermissiveGuard:
    return PermissiveGuard()


@pytest.fixture(scope="module")
def jvm(guard: PermissiveGuard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreJvm]:
    """A JVM with a log store whose services are folders of this machine (``LocalDiskScheme.java``)."""
    classes = tmp_path_factory.mktemp("elsewhere")
    javac = Path(find_java()).with_name("javac")
    command = [str(javac), "-cp", f"{find_spark_jars()}/*", "-d", str(classes), str(SUPPORT / "LocalDiskScheme.java")]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    hadoop = {f"fs.{scheme}.impl": f"LocalDiskScheme${scheme.capitalize()}" for scheme in DELTA_LOG_STORES}
    hadoop["fs.AbstractFileSystem.hdfs.impl"] = "LocalDiskScheme$HdfsContext"
    jvm = StoreJvm(hadoop=hadoop, guard=guard, mode="required", conditional=True, stderr_path=classes / "jvm.log")
    urls = jvm._gateway.new_array(jvm._jvm.java.net.URL, 1)
    urls[0] = jvm._jvm.java.net.URL(f"file:{classes}/")
    jvm._conf.setClassLoader(jvm._jvm.java.net.URLClassLoader(urls, jvm._conf.getClassLoader()))
    yield jvm
    jvm.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a table with an empty log."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    return tmp_path / "table"


@pytest.fixture
def store(jvm: StoreJvm, guard: PermissiveGuard, folder: Path) -> Iterator[LogStore]:
    yield LogStore(jvm, guard, folder)
    guard.before_answer = lambda: None


@pytest.mark.parametrize("scheme", ["abfs", "gs"])
def test_delta_s_own_store_creates_versions_behind_the_guard(store: LogStore, scheme: str) -> None:
    table, hold = f"{scheme}://elsewhere{store.folder}", f"hold-{scheme}"
    store.write(0, hold, table)
    commit_info, *actions = version_file(store.folder, 0).read_text().splitlines()
    assert json.loads(commit_info)["commitInfo"]["sluice"]["hold"] == hold
    assert actions == COMMIT[1:]
    creator = str(store.jvm._jvm.java.lang.System.getProperty("elsewhere.created.by"))
    assert creator.startswith(f"io.delta.storage.{DELTA_LOG_STORES[scheme]}")
    with pytest.raises(VersionTakenError):
        store.write(0, hold, table)
    # A rival creates the version after the log store looked for it and before the put: Delta's store must detect it.
    store.guard.before_answer = lambda: version_file(store.folder, 1).write_text("of a rival")
    with pytest.raises(VersionTakenError):
        store.write(1, hold, table)
    assert version_file(store.folder, 1).read_text() == "of a rival"
    assert [attempt["outcome"] for attempt in store.jvm.attempts(hold)] == ["committed", "taken"]
    assert store.jvm.versions(table, 0) == [0, 1]
    assert [path.name for path in store.folder.rglob("*.tmp")] == []


def test_the_error_names_an_unreadable_version_file(store: LogStore) -> None:
    store.guard.before_answer = lambda: version_file(store.folder, 0).mkdir()
    with pytest.raises(WriteError, match=f"its outcome is unknown: {version_file(store.folder, 0)}"):
        store.write(0, "hold-taken")


def test_an_unknown_scheme_is_refused_before_the_guard_is_asked(store: LogStore) -> None:
    requests: list[None] = []
    store.guard.before_answer = lambda: requests.append(None)
    with pytest.raises(WriteError, match="this scheme has no conditional create that Sluice knows") as error:
        store.write(0, "hold-weird", "weird://host/table")
    assert (error.value.kind, error.value.reason) == ("refused", "TableError")
    assert (requests, store.jvm.attempts("hold-weird")) == ([], [])


def test_a_driver_without_python_is_refused_with_a_reason(folder: Path, tmp_path: Path) -> None:
    process, port, token = start_jvm("required", tmp_path / "jvm.log")
    gateway = connect(port, token)
    try:
        java: Any = gateway.jvm
        conf = java.org.apache.hadoop.conf.Configuration()
        path = java.org.apache.hadoop.fs.Path(f"file:{version_file(folder, 0)}")
        lines = java.java.util.ArrayList(COMMIT).iterator()
        with pytest.raises(Py4JJavaError, match="SluicePlugin in other drivers") as error:
            java.io.deltasluice.storage.GuardedLogStore(conf).write(path, lines, False, conf)
        assert error.value.java_exception.errorName() == "GuardMissingError"
    finally:
        gateway.close()
        process.kill()
        process.communicate()
    assert list((folder / "_delta_log").iterdir()) == []


def test_only_this_user_can_reach_the_socket_of_a_guard(store: LogStore) -> None:
    server = GuardServer(store.guard)
    folder = Path(server.path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.install(store.jvm._jvm, answer_seconds=60)
    store.write(0, "hold-1")
    server.close()
    assert not folder.exists()
    # When that guard is closed, the JVM uses the previous guard again.
    store.write(1, "hold-1")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A", "file", *DELTA_LOG_STORES])
def test_the_service_decides_whether_partial_writes_are_visible(jvm: StoreJvm, scheme: str) -> None:
    path = jvm._path(f"{scheme}://elsewhere/table/_delta_log/{0:020d}.json")
    is_visible = scheme == "file"
    if scheme in DELTA_LOG_STORES:
        delta_store: Any = getattr(jvm._jvm.io.delta.storage, DELTA_LOG_STORES[scheme])(jvm._conf)
        is_visible = delta_store.isPartialWriteVisible(path, jvm._conf)
    assert jvm._guarded.isPartialWriteVisible(path, jvm._conf) is is_visible


WITHOUT_AWS = """
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

class WithoutAws {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    Path version = new Path("s3a://lake/table/_delta_log/00000000000000000000.json");
    System.out.println(new io.deltasluice.storage.GuardedLogStore(conf).isPartialWriteVisible(version, conf));
  }
}
"""


def test_a_driver_without_the_aws_sdk_loads_the_log_store(jars: list[Path], tmp_path: Path) -> None:
    program = tmp_path / "WithoutAws.java"
    program.write_text(WITHOUT_AWS)
    delta = [str(jar) for jar in jars if jar.name.startswith(("delta-", "sluice-"))]
    command = [find_java(), "-cp", os.pathsep.join([f"{find_spark_jars()}/*", *delta]), str(program)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    assert (process.returncode, process.stdout) == (0, "false\n"), process.stderr


NEEDS_SYSTEM_CALLS = pytest.mark.skipif(
    platform.machine() not in SYSTEM_CALLS,
    reason="without_hard_links.py does not know the system call numbers of this processor",
)


def write_with_link_error(folder: Path, error: str, *options: str) -> dict[str, Any]:
    """Write version 0 in a process whose hard links fail with this error.

    With the option ``later`` the first link is created after its error.
    """
    log = folder.parent / "jvm.log"
    process = subprocess.run(
        [sys.executable, str(SUPPORT / "without_hard_links.py"), f"file:{folder}", str(log), error, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    return result


@NEEDS_SYSTEM_CALLS
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_disk_without_hard_links_is_refused_and_unchanged(folder: Path, error: str) -> None:
    result = write_with_link_error(folder, error)
    assert result["message"].startswith("the disk refuses a hard link, which each commit needs: ")
    assert (result["kind"], result["outcomes"]) == ("failed", ["rejected"])
    assert list((folder / "_delta_log").iterdir()) == []


@NEEDS_SYSTEM_CALLS
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_after_an_ambiguous_error_the_outcome_is_unknown(folder: Path, error: str) -> None:
    """The error leaves open whether the link was created."""
    result = write_with_link_error(folder, error)
    assert (result["kind"], result["reason"], result["outcomes"]) == ("unknown", "CommitUnknownException", ["unknown"])
    # The log store repeats a put with an unknown outcome: MAX_PUTS in GuardedLogStore.java.
    assert result["links"] == 4
    assert list((folder / "_delta_log").iterdir()) == []


@NEEDS_SYSTEM_CALLS
def test_a_link_that_appears_after_its_error_is_the_commit(folder: Path) -> None:
    result = write_with_link_error(folder, "EIO", "later")
    assert result["outcomes"] == ["committed"]
    assert "kind" not in result
    (file,) = (folder / "_delta_log").iterdir()
    commit_info = json.loads(file.read_text().splitlines()[0])
    assert file == version_file(folder, 0)
    assert commit_info["commitInfo"]["sluice"]["attempt"] == result["attempt"]


WITHOUT_THE_JAR = """
import json
import sys

from sluice.local.jars import LOG_STORE_JAR, jar_paths
from writer_jobs import GuardMissingError, attach, build_session

jars = [path for path in jar_paths() if path != LOG_STORE_JAR]
spark = build_session("without the jar", jars=jars, launch_conf=json.loads(sys.argv[2]), log_level="OFF")
errors = {}
try:
    attach(spark)
except GuardMissingError as error:
    errors["attach"] = str(error)
try:
    spark.range(1).write.format("delta").save(sys.argv[1])
except Exception as error:
    errors["write"] = str(error)
print(json.dumps(errors))
spark.stop()
"""


@pytest.mark.full
@pytest.mark.spark
def test_a_session_without_the_jar_is_refused_with_advice(jars: list[Path], tmp_path: Path) -> None:
    table = tmp_path / "table"
    conf = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": QUICK_JVM, **LOCAL_DRIVER}
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_JAR, str(table), json.dumps(conf)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    errors = json.loads(process.stdout.splitlines()[-1])
    assert errors["attach"] == (
        "the guarded log store is not on the driver's class path: give spark-submit the --jars that "
        "`sluice submit-args` prints, or build_session(jars=…)"
    )
    assert "io.deltasluice.storage.GuardedLogStore" in errors["write"]
    assert not list(table.glob("_delta_log/*.json"))
