"""The guarded log store on every kind of storage but S3: in a bare JVM, on the local disk under other names."""

from __future__ import annotations

import json
import os
import platform
import socketserver
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
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
DELTAS_OWN = {"hdfs": "HDFSLogStore", "abfs": "AzureLogStore", "gs": "GCSLogStore"}
WAIT = 240


class Passing:
    """A guard that lets all pass, and lets somebody else write first if it is told to."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None

    def check(self, request: str) -> str:
        self.before()
        hold = json.loads(request)["blocks"]
        return json.dumps({"holds": [hold], "stamp": {"hold": hold}})


@pytest.fixture(scope="module")
def guard() -> Passing:
    return Passing()


@pytest.fixture(scope="module")
def jvm(guard: Passing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreJvm]:
    """A log store for which the services are folders of this machine (``Elsewhere.java``)."""
    folder = tmp_path_factory.mktemp("elsewhere")
    javac = Path(find_java()).with_name("javac")
    command = [str(javac), "-cp", f"{find_spark_jars()}/*", "-d", str(folder), str(SUPPORT / "Elsewhere.java")]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT)
    hadoop = {f"fs.{scheme}.impl": f"Elsewhere${scheme.capitalize()}" for scheme in DELTAS_OWN}
    hadoop["fs.AbstractFileSystem.hdfs.impl"] = "Elsewhere$HdfsContext"
    made = StoreJvm(hadoop=hadoop, guard=guard, mode="required", conditional=True, errors=folder / "jvm.log")
    urls = made._gateway.new_array(made._jvm.java.net.URL, 1)
    urls[0] = made._jvm.java.net.URL(f"file:{folder}/")
    made._conf.setClassLoader(made._jvm.java.net.URLClassLoader(urls, made._conf.getClassLoader()))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table's folder, with an empty log."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    return tmp_path / "table"


def version_file(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


@pytest.mark.parametrize("scheme", DELTAS_OWN)
def test_where_delta_s_own_store_puts_if_absent_it_does_it_behind_the_guard(
    jvm: StoreJvm, guard: Passing, folder: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    table, hold = f"{scheme}://elsewhere{folder}", f"hold-{scheme}"
    jvm.write(table, 0, COMMIT, block=hold)
    first, *others = version_file(folder, 0).read_text().splitlines()
    assert json.loads(first)["commitInfo"]["sluice"]["hold"] == hold
    assert others == COMMIT[1:]
    creator = str(jvm._jvm.java.lang.System.getProperty("elsewhere.created.by"))
    assert creator.startswith(f"io.delta.storage.{DELTAS_OWN[scheme]}")
    with pytest.raises(VersionTakenError):
        jvm.write(table, 0, COMMIT, block=hold)
    # Faster than the put, slower than the look before it: Delta's store has to find out.
    monkeypatch.setattr(guard, "before", lambda: version_file(folder, 1).write_text("of another"))
    with pytest.raises(VersionTakenError):
        jvm.write(table, 1, COMMIT, block=hold)
    assert version_file(folder, 1).read_text() == "of another"
    assert [attempt["outcome"] for attempt in jvm.attempts(hold)] == ["committed", "taken"]
    assert jvm.versions(table, 0) == [0, 1]
    assert [path.name for path in folder.rglob("*.tmp")] == []


def test_a_name_that_is_taken_by_what_cannot_be_read_is_said_to_be_taken(
    jvm: StoreJvm, guard: Passing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "before", lambda: version_file(folder, 0).mkdir())
    with pytest.raises(WriteError, match=f"the store gave no answer: {version_file(folder, 0)}"):
        jvm.write(f"file:{folder}", 0, COMMIT, block="hold-taken")


def test_a_scheme_that_is_not_known_is_refused_before_anything_is_asked_or_written(
    jvm: StoreJvm, guard: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(guard, "before", lambda: asked.append(None))
    with pytest.raises(WriteError, match="for this scheme no way is known to create a file only if") as refused:
        jvm.write("weird://host/table", 0, COMMIT, block="hold-weird")
    assert (refused.value.kind, refused.value.reason) == ("refused", "TableError")
    assert (asked, jvm.attempts("hold-weird")) == ([], [])


def test_a_driver_without_python_is_refused_with_a_reason(folder: Path, tmp_path: Path) -> None:
    process, port, token = start_jvm("required", tmp_path / "jvm.log")
    gateway = connect(port, token)
    try:
        java: Any = gateway.jvm
        conf = java.org.apache.hadoop.conf.Configuration()
        path = java.org.apache.hadoop.fs.Path(f"file:{version_file(folder, 0)}")
        lines = java.java.util.ArrayList(COMMIT).iterator()
        with pytest.raises(Py4JJavaError, match="a driver without Python cannot write a guarded table") as refused:
            java.io.deltasluice.storage.GuardedLogStore(conf).write(path, lines, False, conf)
        assert refused.value.java_exception.reason() == "GuardMissingError"
    finally:
        gateway.close()
        process.kill()
        process.communicate()
    assert list((folder / "_delta_log").iterdir()) == []


class Forger(socketserver.StreamRequestHandler):
    """Lets every commit pass."""

    def handle(self) -> None:
        self.rfile.readline()
        self.rfile.readline()
        self.wfile.write(b"0" * 64 + b'\n{"holds": ["forged"], "stamp": {}}\n')


def test_whoever_takes_the_port_of_a_python_that_ended_lets_nothing_pass(
    jvm: StoreJvm, guard: Passing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else Linux keeps the port for a minute.
    monkeypatch.setattr(socketserver.TCPServer, "allow_reuse_address", True)
    ended = GuardServer(guard)
    ended.install(jvm._jvm, answer_seconds=60)
    ended.close()
    with socketserver.ThreadingTCPServer(("127.0.0.1", ended.port), Forger) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(WriteError, match="is not the Python process of this guard") as refused:
            jvm.write(f"file:{folder}", 0, COMMIT, block="hold-forged")
        server.shutdown()
    assert (refused.value.kind, list((folder / "_delta_log").iterdir())) == ("refused", [])
    # With nobody there, the JVM forgets that one, and asks the one before it.
    jvm.write(f"file:{folder}", 0, COMMIT, block="hold-forged")


@pytest.mark.parametrize(
    ("scheme", "visible"),
    [("s3", False), ("s3a", False), ("s3n", False), ("S3A", False), ("file", True), *DELTAS_OWN.items()],
)
def test_a_reader_may_see_half_a_file_where_the_store_makes_it_so(
    jvm: StoreJvm,
    scheme: str,
    visible: bool | str,  # noqa: FBT001 (pytest gives it by name)
) -> None:
    path = jvm._path(f"{scheme}://elsewhere/table/_delta_log/{0:020d}.json")
    if isinstance(visible, str):
        own: Any = getattr(jvm._jvm.io.delta.storage, visible)(jvm._conf)
        visible = own.isPartialWriteVisible(path, jvm._conf)
    assert jvm._guarded.isPartialWriteVisible(path, jvm._conf) is visible


KNOWN_MACHINE = pytest.mark.skipif(
    platform.machine() not in SYSTEM_CALLS, reason="the numbers of its system calls are not known here"
)


@KNOWN_MACHINE
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_disk_that_makes_no_hard_links_is_refused_and_left_as_it_was(
    answer_to_link: Callable[[str, bool], dict[str, Any]], folder: Path, error: str
) -> None:
    said = answer_to_link(error, False)
    assert said["message"].startswith("this disk makes no hard links: ")
    assert (said["kind"], said["outcomes"]) == ("failed", ["rejected"])
    assert list((folder / "_delta_log").iterdir()) == []


@KNOWN_MACHINE
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_an_error_that_does_not_say_that_no_link_was_made_leaves_it_unknown(
    answer_to_link: Callable[[str, bool], dict[str, Any]], folder: Path, error: str
) -> None:
    said = answer_to_link(error, False)
    assert (said["kind"], said["reason"], said["outcomes"]) == ("unknown", "CommitUnknownException", ["unknown"])
    assert said["links"] == 4
    assert list((folder / "_delta_log").iterdir()) == []


@KNOWN_MACHINE
def test_a_link_that_is_made_after_its_error_is_found_and_is_ours(
    answer_to_link: Callable[[str, bool], dict[str, Any]], folder: Path
) -> None:
    said = answer_to_link("EIO", True)
    assert said["outcomes"] == ["committed"]
    assert "kind" not in said
    (file,) = (folder / "_delta_log").iterdir()
    first = json.loads(file.read_text().splitlines()[0])
    assert file == version_file(folder, 0)
    assert first["commitInfo"]["sluice"]["attempt"] == said["attempt"]


@pytest.fixture
def answer_to_link(folder: Path, tmp_path: Path) -> Callable[[str, bool], dict[str, Any]]:
    """Write a version where a link ends with this error, and is made a moment later all the same or never."""

    def write(error: str, later: bool) -> dict[str, Any]:  # noqa: FBT001
        program = [sys.executable, str(SUPPORT / "without_hard_links.py"), f"file:{folder}", str(tmp_path / "jvm.log")]
        done = subprocess.run(
            [*program, error, *(["later"] if later else [])],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=WAIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    return write


WITHOUT_THE_JAR = """
import json
import sys

from sluice.local.jars import LOG_STORE_JAR, jar_paths
from writer_jobs import GuardMissingError, attach, build_session

jars = [path for path in jar_paths() if path != LOG_STORE_JAR]
spark = build_session("without the jar", jars=jars, launch_conf=json.loads(sys.argv[2]), log_level="OFF")
said = {}
try:
    attach(spark)
except GuardMissingError as error:
    said["attach"] = str(error)
try:
    spark.range(1).write.format("delta").save(sys.argv[1])
except Exception as error:
    said["write"] = str(error)
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.full
@pytest.mark.spark
def test_a_session_without_the_jar_commits_nothing_and_is_told_what_to_give(jars: list[Path], tmp_path: Path) -> None:
    table = tmp_path / "table"
    conf = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": QUICK_JVM, **LOCAL_DRIVER}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_JAR, str(table), json.dumps(conf)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False, timeout=WAIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["attach"] == (
        "the guarded log store is not on the driver's class path: give spark-submit the --jars that "
        "`sluice submit-args` prints, or build_session(jars=…)"
    )
    assert "io.deltasluice.storage.GuardedLogStore" in said["write"]
    assert not list(table.glob("_delta_log/*.json"))
