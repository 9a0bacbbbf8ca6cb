"""`sluice doctor` reports faults of an ensemble, a store, a table and this machine; without a fault it exits with 0."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from http import HTTPStatus
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from kazoo.client import KazooClient
from kazoo.security import make_acl
from typer.testing import CliRunner

from lock_manager import TableResource, ZookeeperLockManager, canonical_table_uri
from lock_manager.testing.embedded import EmbeddedServer, EmbeddedZooKeeper, free_ports
from lock_manager.zookeeper.znodes import table_node
from sluice.audit.log_folder import s3_client
from sluice.commands.app import app
from sluice.doctor import machine as doctor_machine
from sluice.doctor.ensemble import clock_finding, server_findings
from sluice.doctor.finding import Finding, Verdict
from sluice.doctor.spark import defaults_finding
from sluice.ensemble.members import Server, ask_server
from sluice.local import jars
from tests.support.gateway import Gateway, serve_gateway
from tests.support.lake import S3, lake, require_embedded_s3
from tests.support.lock_znodes import connected_client
from writer_jobs.delta.session import GUARD_MODE, KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING

Findings = dict[str, tuple[str, str]]


def doctor(hosts: str, *arguments: str) -> tuple[int, Findings]:
    """Run the command; return its exit code, and verdict and message of each check."""
    result = CliRunner().invoke(app, ["doctor", "--json", "--zookeeper", hosts, *arguments])
    findings = json.loads(result.stdout)
    return result.exit_code, {finding["what"]: (finding["verdict"], finding["says"]) for finding in findings}


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as ensemble:
        yield ensemble


@pytest.fixture
def client(ensemble: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    with connected_client(ensemble.servers[0].address) as client:
        yield client


@pytest.fixture
def hosts(zookeeper: Any) -> str:
    return str(zookeeper.hosts)


def test_a_healthy_ensemble_has_no_fault(ensemble: EmbeddedZooKeeper, client: KazooClient) -> None:
    code, findings = doctor(ensemble.hosts)
    assert code == 0, findings
    assert findings["lock root"] == ("note", "/locks/delta_tables does not exist yet: the first lock creates it")
    assert findings["quorum"] == ("ok", "1 leader, 2 followers")
    with ZookeeperLockManager(ensemble.hosts) as manager, manager.acquire("s3://lake/t"):
        code, findings = doctor(ensemble.hosts)
    assert code == 0, findings
    for check in ("lock root", "versions", "session", "permission", "clock", "jars", "log store"):
        assert findings[check][0] == "ok"
    verdict, message = findings["ACL"]
    assert (verdict, "every client may delete" in message) == ("note", True)
    assert findings["versions"][1] == "ZooKeeper 3.9.5"
    assert [check for check in findings if check.startswith("server ")] == [
        f"server {server.address}" for server in ensemble.servers
    ]
    # The server of this client may not have the last writes yet.
    client.sync("/locks/delta_tables")
    assert not [name for name in client.get_children("/locks/delta_tables") if "scratch" in name]


def test_the_text_has_a_line_for_each_check(ensemble: EmbeddedZooKeeper) -> None:
    result = CliRunner().invoke(app, ["doctor", "--zookeeper", ensemble.hosts])
    assert result.exit_code == 0
    *lines, summary = result.stdout.splitlines()
    assert summary == "no check failed"
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    assert len(lines) == len(doctor(ensemble.hosts)[1])


@pytest.mark.full
def test_a_stopped_server_and_a_missing_quorum_are_reported(
    ensemble: EmbeddedZooKeeper, eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(server: EmbeddedServer) -> Server:
        return ask_server("127.0.0.1", server.client_port)

    first, second, third = ensemble.servers
    first.kill()
    eventually(lambda: {ask(second).mode, ask(third).mode} == {"leader", "follower"})
    code, findings = doctor(ensemble.hosts)
    assert code == 1
    assert findings[f"server {first.address}"][0] == "failed"
    assert findings["session"][0] == "ok", "no session, although two of three servers are a quorum"
    second.kill()
    eventually(lambda: ask(third).problem)
    monkeypatch.setattr("sluice.doctor.ensemble.SESSION_SECONDS", 1.0)
    code, findings = doctor(ensemble.hosts)
    assert code == 1
    assert "sees no quorum" in findings[f"server {third.address}"][1]
    assert findings["session"][0] == "failed"
    first.start()
    second.start()
    eventually(lambda: all(ask(server).mode for server in ensemble.servers), within=90)


def test_a_standalone_server_among_others_is_a_fault(ensemble: EmbeddedZooKeeper) -> None:
    with EmbeddedZooKeeper() as standalone:
        code, findings = doctor(f"{standalone.hosts},{ensemble.hosts}")
        assert code == 1
        assert "no ensemble" in findings["quorum"][1]
        code, findings = doctor(standalone.hosts)
        assert (code, findings["quorum"][0]) == (0, "note")


def test_an_unusable_lock_root_is_a_fault(ensemble: EmbeddedZooKeeper, client: KazooClient) -> None:
    client.create("/readonly", b'{"format": 1, "ensemble": "e"}', acl=[make_acl("world", "anyone", read=True)])
    client.create("/foreign", b"something else")
    code, findings = doctor(ensemble.hosts, "--lock-root", "/readonly")
    assert code == 1
    assert "NoAuthError" in findings["permission"][1]
    assert findings["ACL"][0] == "ok"
    code, findings = doctor(ensemble.hosts, "--lock-root", "/foreign")
    assert (code, findings["lock root"][0]) == (1, "failed")


def test_tables_and_partitions_with_an_open_acl_are_named(ensemble: EmbeddedZooKeeper, client: KazooClient) -> None:
    def acl_finding() -> tuple[str, str]:
        return doctor(ensemble.hosts, "--lock-root", root)[1]["ACL"]

    root, table = "/closed", TableResource.of("s3://lake/t")
    acl = [make_acl("world", "anyone", read=True, write=True, create=True)]
    partitions = f"{table_node(root, table)}/partitions"
    client.create(root, b'{"format": 1, "ensemble": "e"}', acl=acl)
    client.create(table_node(root, table), json.dumps({"uri": table.uri}).encode(), acl=acl)
    for path in (partitions, f"{partitions}/year=2013", f"{partitions}/year=2013/partitions"):
        client.create(path, acl=acl)
    assert acl_finding() == (
        "ok", "not every client may delete contenders; 1 of 1 tables and 1 partitions were checked"
    )  # fmt: skip
    client.create(f"{partitions}/year=2013/partitions/month=1")
    verdict, message = acl_finding()
    assert (verdict, f"below {partitions}/year=2013/partitions/month=1 (" in message) == ("note", True)
    client.create(f"{root}/{TableResource.of('s3://lake/open').key}", b'{"uri": "s3://lake/open"}')
    verdict, message = acl_finding()
    assert (verdict, ", s3://lake/open (2 of 2 tables" in message) == ("note", True)


@pytest.mark.parametrize(
    ("versions", "verdict", "message"),
    [
        ([(3, 9, 5)], Verdict.OK, "3.9.5"),
        ([(3, 9, 1)], Verdict.NOTE, "CVE"),
        ([(3, 8, 4)], Verdict.OK, "3.8.4"),
        ([(3, 7, 2)], Verdict.NOTE, "CVE"),
        ([(3, 4, 14)], Verdict.FAILED, "too old"),
        ([(3, 9, 5), (3, 9, 4)], Verdict.NOTE, "differ"),
        ([(3, 8, 4), (3, 9, 0)], Verdict.NOTE, "3.9.0 has CVE"),
    ],
)
def test_old_and_different_versions_are_reported(
    versions: list[tuple[int, int, int]], verdict: Verdict, message: str
) -> None:
    modes = ["standalone"] if len(versions) == 1 else ["leader", "follower"]
    servers = [Server("a", version=version, mode=mode) for version, mode in zip(versions, modes, strict=True)]
    (finding,) = [finding for finding in server_findings(servers) if finding.check == "versions"]
    assert (finding.verdict, message in finding.message) == (verdict, True)


def test_two_leaders_fail_and_a_silent_server_is_a_note() -> None:
    (finding,) = server_findings([Server("a")])
    assert finding.verdict is Verdict.NOTE
    leaders = [Server(name, version=(3, 9, 5), mode="leader") for name in "ab"]
    assert [finding.check for finding in server_findings(leaders) if finding.failed] == ["quorum"]


def test_clocks_may_differ_by_the_request_s_time_and_a_second() -> None:
    assert clock_finding(100.2, sent_at=100.0, answered_at=100.4).verdict is Verdict.OK
    assert clock_finding(99.1, sent_at=100.0, answered_at=100.4).verdict is Verdict.OK
    assert clock_finding(98.9, sent_at=100.0, answered_at=100.4).failed
    assert clock_finding(101.5, sent_at=100.0, answered_at=100.4).failed


# -- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """An S3 that only this file uses, because the tests list all of its objects."""
    with lake() as s3:
        yield s3


SEQUENTIAL_PUTS = 2
"""PUTs of the check before it starts concurrent rivals."""


class NotAtomic(Gateway):
    """Looks for the object, and stores it a moment later. Two concurrent PUTs both succeed."""

    lock = nullcontext()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            if self.forward_unconditionally("HEAD")[0] == HTTPStatus.OK:
                self.refuse(412, "PreconditionFailed")
                return
            time.sleep(0.02)  # the fault
            response = self.forward_unconditionally("PUT", body)
        self.respond(*response)


class Atomic(NotAtomic):
    """Looks for the object and stores it under a lock."""

    lock = Lock()  # type: ignore[assignment]


class RefusesAndOverwrites(Atomic):
    """Reports one winner, and stores the content of refused rivals, too."""

    refused_puts = 0

    def refuse(self, status: int, code: str) -> None:
        type(self).refused_puts += 1
        # The first refused PUT is part of the sequential check.
        if self.refused_puts > 1:
            self.forward_unconditionally("PUT", b"of a rival")
        super().refuse(status, code)


class Conflicts(Gateway):
    """Answers concurrent PUTs after the first with 409, as S3 may."""

    refuses_all = False
    puts = 0
    lock = Lock()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            type(self).puts += 1
            exists = self.forward_unconditionally("HEAD")[0] == HTTPStatus.OK
            is_rival = self.puts > SEQUENTIAL_PUTS
            if exists or (is_rival and self.refuses_all):
                status, code = (409, "ConditionalRequestConflict") if is_rival else (412, "PreconditionFailed")
                self.refuse(status, code)
                return
            self.respond(*self.forward_unconditionally("PUT", body))


class ConflictsAlways(Conflicts):
    """Answers every concurrent PUT with 409."""

    refuses_all = True


class Blocks(Atomic):
    """Blocks the PUTs of rivals until the test lets them proceed."""

    puts = 0
    blocked, proceed = Event(), Event()

    def do_PUT(self) -> None:
        type(self).puts += 1
        if self.puts > SEQUENTIAL_PUTS:
            self.blocked.set()
            self.proceed.wait(30)
        super().do_PUT()


@pytest.fixture
def gateway(s3: S3) -> Iterator[Callable[[type[Gateway]], str]]:
    """Start a gateway in front of the S3; return its endpoint as a storage option."""
    require_embedded_s3("a store with a fault of its own")
    with ExitStack() as stack:
        yield lambda kind: f"AWS_ENDPOINT_URL={stack.enter_context(serve_gateway(kind, s3.endpoint or ''))}"


def keys(s3: S3) -> list[str]:
    bucket, _, prefix = s3.root.partition("/")
    return [item["Key"] for item in s3_client({}).list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]


on_bucket_and_table = pytest.mark.parametrize(
    "location", [("--bucket", "{root}"), ("--table", "s3a://{root}/raw/flights")], ids=["bucket", "table"]
)


@pytest.mark.full
@pytest.mark.s3
@on_bucket_and_table
def test_a_store_that_refuses_to_overwrite_passes(hosts: str, s3: S3, location: tuple[str, str]) -> None:
    code, findings = doctor(hosts, *(word.format(root=s3.root) for word in location))
    assert code == 0, findings
    assert findings["put-if-absent"][0] == "ok"
    assert keys(s3) == []


@pytest.mark.s3
@on_bucket_and_table
def test_a_store_that_overwrites_is_a_fault(
    hosts: str, s3: S3, gateway: Callable[[type[Gateway]], str], location: tuple[str, str]
) -> None:
    words = (word.format(root=s3.root) for word in location)
    code, findings = doctor(hosts, *words, "--storage-option", gateway(Gateway))
    assert code == 1
    assert findings["put-if-absent"][0] == "failed"
    assert "overwrote" in findings["put-if-absent"][1]
    assert keys(s3) == []


@pytest.mark.full
@pytest.mark.s3
@pytest.mark.parametrize(
    ("kind", "verdict", "message"),
    [
        (NotAtomic, "failed", "rivals wrote s3://"),
        (RefusesAndOverwrites, "failed", "does not have the content of the rival"),
        (Atomic, "ok", "rivals, with one winner in"),
        (Conflicts, "ok", "rivals, with one winner in"),
        (ConflictsAlways, "note", "it refused all of 8 concurrent ones"),
    ],
)
def test_a_store_is_checked_with_concurrent_rivals(
    hosts: str, s3: S3, gateway: Callable[[type[Gateway]], str], kind: type[Gateway], verdict: str, message: str
) -> None:
    code, findings = doctor(hosts, "--bucket", s3.root, "--storage-option", gateway(kind))
    assert findings["put-if-absent"][0] == verdict, findings
    assert message in findings["put-if-absent"][1]
    assert code == (1 if verdict == "failed" else 0)
    assert keys(s3) == []


@pytest.mark.s3
def test_a_check_stopped_among_rivals_leaves_no_object(
    hosts: str, s3: S3, gateway: Callable[[type[Gateway]], str]
) -> None:
    command = [sys.executable, "-m", "sluice", "doctor", "--zookeeper", hosts, "--bucket", s3.root]
    process = subprocess.Popen([*command, "--storage-option", gateway(Blocks)])
    try:
        assert Blocks.blocked.wait(60)
        assert len(keys(s3)) == 1
        process.send_signal(signal.SIGTERM)
        Blocks.proceed.set()
        assert process.wait(60) == 143
    finally:
        Blocks.proceed.set()
        process.kill()
        process.wait()
    assert keys(s3) == []


def test_a_file_system_whose_links_are_not_atomic_is_a_fault(
    hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError
        time.sleep(0.02)  # the fault
        shutil.copy(source, target)

    monkeypatch.setattr("os.link", link)
    code, findings = doctor(hosts, "--table", str(tmp_path))
    assert (code, findings["put-if-absent"][0]) == (1, "failed")
    assert "rivals wrote" in findings["put-if-absent"][1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.s3
def test_a_missing_bucket_is_a_fault(hosts: str, s3: S3) -> None:
    code, findings = doctor(hosts, "--bucket", "nobody-s")
    assert (code, "NoSuchBucket" in findings["put-if-absent"][1]) == (1, True)
    assert "scratch object" not in findings


def test_a_folder_is_checked_with_a_hard_link(hosts: str, tmp_path: Path) -> None:
    code, findings = doctor(hosts, "--table", str(tmp_path))
    assert (code, findings["put-if-absent"][0]) == (0, "ok")
    assert list(tmp_path.iterdir()) == []
    code, findings = doctor(hosts, "--table", str(tmp_path / "missing"))
    assert (code, "the folder must exist" in findings["put-if-absent"][1]) == (1, True)


def test_a_table_of_another_ensemble_or_name_is_a_fault(hosts: str, tmp_path: Path) -> None:
    with ZookeeperLockManager(hosts) as manager, manager.acquire(tmp_path) as hold:
        ensemble = hold.ensemble_id

    def check(name: str, *arguments: str) -> tuple[int, str, str]:
        code, findings = doctor(hosts, "--table", str(tmp_path / name), *arguments)
        return code, *findings["adoption"]

    def check_new(name: str, **properties: str) -> tuple[int, str, str]:
        configuration = {f"sluice.{key}": value for key, value in properties.items()}
        schema = Schema([Field("id", "long")])
        DeltaTable.create(tmp_path / name, schema, configuration=configuration, raise_if_key_not_exists=False)
        return check(name)

    name = canonical_table_uri(tmp_path / "here")
    message = f"the table is adopted by this ensemble, {ensemble}, and under this name"
    assert check_new("here", ensemble=ensemble, table=name) == (0, "ok", message)
    code, verdict, message = check_new("copy", ensemble=ensemble, table=name)
    assert (code, verdict) == (1, "failed")
    assert f"adopted under the name {name}" in message
    assert "--move`" in message
    code, verdict, message = check_new("earlier", ensemble=ensemble)
    assert (code, verdict, "but not under its name" in message) == (0, "note", True)
    code, verdict, message = check_new("elsewhere", ensemble="another")
    assert (code, verdict) == (1, "failed")
    assert f"adopted by ensemble another, but this is ensemble {ensemble}" in message
    assert "--move`" in message
    code, verdict, message = check_new("nowhere")
    assert (code, verdict, f"`sluice adopt {tmp_path / 'nowhere'}`" in message) == (0, "note", True)
    (tmp_path / "empty").mkdir()
    code, verdict, message = check("empty")
    assert (code, verdict, "no Delta table" in message) == (0, "note", True)
    (tmp_path / "here/_delta_log/00000000000000000000.json").write_text("{}")
    code, _, message = check("here")
    assert (code, "could not be compared" in message) == (1, True)
    code, _, message = check("elsewhere", "--lock-root", f"/{tmp_path.name}")
    assert (code, "nothing was ever locked" in message) == (1, True)
    (port,) = free_ports(1)
    code, findings = doctor(f"127.0.0.1:{port}", "--table", str(tmp_path / "elsewhere"))
    assert (code, findings["adoption"][0]) == (1, "failed")


# -- this machine ----------------------------------------------------------------------------------------------------


def machine_finding(check: str) -> Finding:
    (finding,) = [finding for finding in doctor_machine.machine_findings() if finding.check == check]
    return finding


def test_the_releases_are_named_and_untested_ones_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = machine_finding("spark")
    assert finding.verdict is Verdict.OK
    spark, delta = jars.chosen_releases()
    assert finding.message.startswith(f"Spark {spark}.")
    for part in (f"Delta {delta}, Hadoop 3.", "Java ", "puts versions on S3"):
        assert part in finding.message
    monkeypatch.setenv("SLUICE_DELTA", "4.5.0")
    for check in ("spark", "jars"):
        finding = machine_finding(check)
        assert finding.verdict is Verdict.FAILED
        assert "with Delta 4.5.0 is not tested (the nearest tested pair: Spark" in finding.message


class SparkHome:
    """A folder of Spark with empty jars. The doctor reads only the names of jars and of the files in them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jars = folder / "jars"
        self.jars.mkdir()
        (self.jars / "zookeeper-3.9.4.jar").touch()
        monkeypatch.setenv("SPARK_HOME", str(folder))

    def add(self, *names: str) -> None:
        for name in names:
            with zipfile.ZipFile(self.jars / f"{name}.jar", "w"):
                pass


def test_a_vendor_s_build_of_spark_is_named_and_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SparkHome(tmp_path, monkeypatch).add("spark-core_2.13-4.1.1-amzn-0", "hadoop-client-api-3.4.1-amzn-5")
    monkeypatch.setenv("SLUICE_DELTA", "4.2.0")
    finding = machine_finding("spark")
    assert finding.verdict is Verdict.FAILED
    assert finding.message.startswith(
        "Spark 4.1.1-amzn-0 with Delta 4.2.0 is not tested, because Spark 4.1.1-amzn-0 is"
    )
    for part in ("(the nearest tested pair: Spark 4.1 with Delta 4.2.0)", "spark.sluice.allowUntested=true"):
        assert part in finding.message


def test_a_spark_without_a_jar_of_hadoop_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = SparkHome(tmp_path, monkeypatch)
    monkeypatch.setenv("SLUICE_DELTA", "4.4.0")
    finding = machine_finding("spark")
    assert (finding.verdict, "has no spark-core jar" in finding.message) == (Verdict.NOTE, True)
    home.add("spark-core_2.13-4.1.1")
    finding = machine_finding("spark")
    assert (finding.verdict, "has no hadoop-client-api jar" in finding.message) == (Verdict.NOTE, True)


def test_missing_and_changed_jars_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_finding("jars").verdict is Verdict.OK
    folder = tmp_path / "jars"
    shutil.copytree(jars.jars_folder(), folder)
    monkeypatch.setenv("SLUICE_JARS", str(folder))
    assert machine_finding("jars").verdict is Verdict.OK
    jar = folder / jars.locked_jars()[0].file_name
    jar.write_bytes(jar.read_bytes()[:-1])
    finding = machine_finding("jars")
    assert finding.verdict is Verdict.FAILED
    assert f"not the pinned ones (the first: {jar.name})" in finding.message
    jar.unlink()
    assert f"1 of {len(jars.locked_jars())} are missing" in machine_finding("jars").message


def test_a_missing_or_foreign_log_store_jar_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not machine_finding("log store").failed
    jar_path = tmp_path / "log-store.jar"
    monkeypatch.setattr(doctor_machine, "LOG_STORE_JAR", jar_path)
    finding = machine_finding("log store")
    assert finding.failed
    assert finding.message == f"{jar_path} is missing: run `make setup`, or install the package"
    jar_path.write_bytes(b"no jar")
    assert "cannot be read" in machine_finding("log store").message
    with zipfile.ZipFile(jar_path, "w") as jar:
        jar.writestr("other.class", b"")
    assert "has no GuardedLogStore" in machine_finding("log store").message


KERNEL = [f"{key} {LOG_STORE}" for key in KERNEL_LOG_STORE_SETTINGS]
COMPLETE = [f"{LOG_STORE_SETTING} {LOG_STORE}", *KERNEL]
S3A_SETTING = "spark.delta.logStore.s3a.impl"
DEFAULTS = {
    "no file": (None, Verdict.NOTE, "no spark-defaults.conf here"),
    "no log store": (["spark.master  local[2]", "# a comment"], Verdict.NOTE, "names no log store"),
    "complete": ([f"{LOG_STORE_SETTING}={LOG_STORE}", *KERNEL], Verdict.OK, "Delta and Delta Kernel"),
    "one missing": (
        [f"{LOG_STORE_SETTING}  {LOG_STORE}", *KERNEL[1:]], Verdict.FAILED, f"missing (the first: {KERNEL[0]})"
    ),
    "one different": (
        [f"{LOG_STORE_SETTING}: {LOG_STORE}", *KERNEL[1:], f"{KERNEL_LOG_STORE_SETTINGS[0]} org.example.Store"],
        Verdict.FAILED,
        f"{KERNEL_LOG_STORE_SETTINGS[0]}=org.example.Store, so commits bypass the guarded log store",
    ),
    "scheme different": ([f"{S3A_SETTING}=org.example.Store"], Verdict.FAILED, "commits bypass the guarded log store"),
    "off": ([*COMPLETE, f"{GUARD_MODE} off"], Verdict.FAILED, "commits without asking for the lock"),
    "off, no log store": ([f"{GUARD_MODE} OFF"], Verdict.FAILED, "commits without asking for the lock"),
    "observe": ([*COMPLETE, f"{GUARD_MODE} observe"], Verdict.NOTE, "the guard allows commits without the lock"),
    "observe, no log store": ([f"{GUARD_MODE} observe"], Verdict.NOTE, "the guard allows commits without the lock"),
    "observe, one missing": ([*COMPLETE[:-1], f"{GUARD_MODE} observe"], Verdict.FAILED, "missing (the first:"),
    "misspelt mode": ([*COMPLETE, f"{GUARD_MODE} of"], Verdict.FAILED, "choose required, observe or off"),
    "required": ([*COMPLETE, f"{GUARD_MODE} required"], Verdict.OK, "Delta and Delta Kernel"),
    "all schemes and one": ([*COMPLETE, f"{S3A_SETTING} {LOG_STORE}"], Verdict.FAILED, "Delta refuses both together"),
    "one scheme": (
        [f"{S3A_SETTING} {LOG_STORE}"],
        Verdict.NOTE,
        f"for some schemes only: put {LOG_STORE_SETTING}={LOG_STORE} in place of {S3A_SETTING}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "verdict", "message"), DEFAULTS.values(), ids=DEFAULTS)
def test_spark_defaults_must_name_the_guarded_log_store(
    lines: list[str] | None, verdict: Verdict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if lines is not None:
        (tmp_path / "spark-defaults.conf").write_text("\n".join(lines), encoding="utf-8")
    finding = defaults_finding()
    assert finding.verdict is verdict
    assert message in finding.message
