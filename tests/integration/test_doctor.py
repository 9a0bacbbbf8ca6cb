"""`sluice doctor`: each fault that it looks for, made for real, beside the sound case."""

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
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import table_node
from sluice.commands.app import app
from sluice.doctor import machine as doctor_machine
from sluice.doctor.ensemble import clock_finding, server_findings
from sluice.doctor.finding import Verdict
from sluice.doctor.spark import defaults_finding
from sluice.ensemble.members import Server, ask_server
from sluice.local import jars
from tests.support.gateway import Gateway, served
from tests.support.lake import S3, lake, need_the_gate
from writer_jobs.delta.session import GUARD_MODE, KERNEL_LOG_STORE_SETTINGS, LOG_STORE, LOG_STORE_SETTING

Found = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as running:
        yield running


@pytest.fixture
def doctor() -> Callable[..., tuple[int, Found]]:
    """The exit code, and what was found: verdict and sentence by what was looked at."""

    def run(hosts: str, *arguments: str) -> tuple[int, Found]:
        answer = CliRunner().invoke(app, ["doctor", "--json", "--zookeeper", hosts, *arguments])
        findings = json.loads(answer.stdout)
        return answer.exit_code, {each["what"]: (each["verdict"], each["says"]) for each in findings}

    return run


def test_a_sound_ensemble_has_no_fault_and_nothing_stays_there(
    ensemble: EmbeddedZooKeeper, doctor: Callable[..., tuple[int, Found]]
) -> None:
    code, found = doctor(ensemble.hosts)
    assert code == 0, found
    assert found["lock root"] == ("note", "/locks/delta_tables does not exist yet: the first lock creates it")
    assert found["quorum"] == ("ok", "1 leader, 2 followers")
    with ZookeeperLockManager(ensemble.hosts) as manager, manager.acquire("s3://lake/t"):
        code, found = doctor(ensemble.hosts)
    assert code == 0, found
    assert found["lock root"][0] == "ok"
    assert {found[what][0] for what in ("versions", "session", "permission", "clock", "jars", "log store")} == {"ok"}
    assert (found["ACL"][0], "every client may delete" in found["ACL"][1]) == ("note", True)
    assert found["versions"][1] == "ZooKeeper 3.9.5"
    assert [what for what in found if what.startswith("server ")] == [
        f"server {each.address}" for each in ensemble.servers
    ]
    client = KazooClient(ensemble.servers[0].address)
    client.start()
    assert not [name for name in client.get_children("/locks/delta_tables") if "scratch" in name]
    client.stop()
    client.close()


def test_people_get_a_line_for_each(zookeeper: object, ensemble: EmbeddedZooKeeper) -> None:
    answer = CliRunner().invoke(app, ["doctor", "--zookeeper", ensemble.hosts])
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert lines[-1] == "no check failed"
    assert {line.split()[0] for line in lines[:-1]} <= {"ok", "note"}


@pytest.mark.full
def test_a_server_that_is_down_is_named_and_without_a_quorum_there_is_no_session(
    ensemble: EmbeddedZooKeeper, doctor: Callable[..., tuple[int, Found]], eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hosts, (first, second, _) = ensemble.hosts, ensemble.servers
    first.kill()
    eventually(
        lambda: (
            {ask_server("127.0.0.1", each.client_port).mode for each in ensemble.servers[1:]} == {"leader", "follower"}
        )
    )
    code, found = doctor(hosts)
    assert code == 1
    assert found[f"server {first.address}"][0] == "failed"
    assert found["session"][0] == "ok", "two of three are a quorum"
    second.kill()
    eventually(lambda: ask_server("127.0.0.1", ensemble.servers[2].client_port).problem)
    monkeypatch.setattr("sluice.doctor.ensemble.CONNECT_SECONDS", 1.0)
    code, found = doctor(hosts)
    assert code == 1
    assert "sees no quorum" in found[f"server {ensemble.servers[2].address}"][1]
    assert found["session"][0] == "failed"
    first.start()
    second.start()
    eventually(lambda: all(ask_server("127.0.0.1", each.client_port).mode for each in ensemble.servers), within=90)


def test_two_servers_that_run_alone_are_no_ensemble(
    zookeeper: object, ensemble: EmbeddedZooKeeper, doctor: Callable[..., tuple[int, Found]]
) -> None:
    with EmbeddedZooKeeper() as alone:
        code, found = doctor(f"{alone.hosts},{ensemble.hosts}")
        assert code == 1
        assert "no ensemble" in found["quorum"][1]
        code, found = doctor(alone.hosts)
        assert (code, found["quorum"][0]) == (0, "note")


def test_a_lock_root_that_may_not_be_written_is_a_fault(
    zookeeper: object, ensemble: EmbeddedZooKeeper, doctor: Callable[..., tuple[int, Found]]
) -> None:
    client = KazooClient(ensemble.servers[0].address)
    client.start()
    client.create("/readonly", b'{"format": 1, "ensemble": "e"}', acl=[make_acl("world", "anyone", read=True)])
    client.create("/foreign", b"something else")
    client.stop()
    client.close()
    code, found = doctor(ensemble.hosts, "--lock-root", "/readonly")
    assert code == 1
    assert "NoAuthError" in found["permission"][1]
    assert found["ACL"][0] == "ok"
    code, found = doctor(ensemble.hosts, "--lock-root", "/foreign")
    assert (code, found["lock root"][0]) == (1, "failed")


def test_a_table_or_a_partition_where_everybody_may_delete_is_named(
    zookeeper: object, ensemble: EmbeddedZooKeeper, doctor: Callable[..., tuple[int, Found]]
) -> None:
    root, table = "/closed", TableResource.of("s3://lake/t")
    reads = [make_acl("world", "anyone", read=True, write=True, create=True)]
    partitions = f"{table_node(root, table)}/partitions"
    client = KazooClient(ensemble.servers[0].address)
    client.start()
    client.create(root, b'{"format": 1, "ensemble": "e"}', acl=reads)
    client.create(table_node(root, table), json.dumps({"uri": table.uri}).encode(), acl=reads)
    for each in (partitions, f"{partitions}/year=2013", f"{partitions}/year=2013/partitions"):
        client.create(each, acl=reads)
    assert doctor(ensemble.hosts, "--lock-root", root)[1]["ACL"] == (
        "ok", "not every client may delete contenders; 1 of 1 tables and 1 partitions were checked"
    )  # fmt: skip
    client.create(f"{partitions}/year=2013/partitions/month=1")
    verdict, says = doctor(ensemble.hosts, "--lock-root", root)[1]["ACL"]
    assert (verdict, f"below {partitions}/year=2013/partitions/month=1 (" in says) == ("note", True)
    client.create(f"{root}/{TableResource.of('s3://lake/open').key}", b'{"uri": "s3://lake/open"}')
    verdict, says = doctor(ensemble.hosts, "--lock-root", root)[1]["ACL"]
    assert (verdict, ", s3://lake/open (2 of 2 tables" in says) == ("note", True)
    client.stop()
    client.close()


@pytest.mark.parametrize(
    ("servers", "verdict", "word"),
    [
        ([Server("a", version=(3, 9, 5), mode="standalone")], Verdict.OK, "3.9.5"),
        ([Server("a", version=(3, 9, 1), mode="standalone")], Verdict.NOTE, "CVE"),
        ([Server("a", version=(3, 8, 4), mode="standalone")], Verdict.OK, "3.8.4"),
        ([Server("a", version=(3, 7, 2), mode="standalone")], Verdict.NOTE, "CVE"),
        ([Server("a", version=(3, 4, 14), mode="standalone")], Verdict.FAILED, "too old"),
        (
            [Server("a", version=(3, 9, 5), mode="leader"), Server("b", version=(3, 9, 4), mode="follower")],
            Verdict.NOTE,
            "differ",
        ),
    ],
)
def test_versions_are_judged(servers: list[Server], verdict: Verdict, word: str) -> None:
    (found,) = [each for each in server_findings(servers) if each.check == "versions"]
    assert (found.verdict, word in found.message) == (verdict, True)


def test_a_server_that_says_nothing_of_itself_is_no_fault_but_two_leaders_are() -> None:
    (found,) = server_findings([Server("a")])
    assert found.verdict is Verdict.NOTE
    leaders = [Server(name, version=(3, 9, 5), mode="leader") for name in "ab"]
    assert [each.check for each in server_findings(leaders) if each.failed] == ["quorum"]


def test_clocks_may_differ_by_what_a_request_takes_and_a_second() -> None:
    assert clock_finding(100.2, sent_at=100.0, answered_at=100.4).verdict is Verdict.OK
    assert clock_finding(99.1, sent_at=100.0, answered_at=100.4).verdict is Verdict.OK
    assert clock_finding(98.9, sent_at=100.0, answered_at=100.4).failed
    assert clock_finding(101.5, sent_at=100.0, answered_at=100.4).failed


# -- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with lake() as running:
        yield running


class LooksFirst(Gateway):
    """Looks whether there is an object, and stores it a moment later: two at once both find none."""

    together = nullcontext()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.together:
            if self.ask("HEAD")[0] == HTTPStatus.OK:
                self.refuse(412, "PreconditionFailed")
                return
            time.sleep(0.02)  # the flaw itself
            answer = self.ask("PUT", body)
        self.say(*answer)


class LooksFirstOneByOne(LooksFirst):
    """The same, and nobody comes between."""

    together = Lock()  # type: ignore[assignment]


class Overlooks(LooksFirst):
    """Tells one winner only, and stores what the rivals brought who were refused, too."""

    puts = 0
    together = Lock()  # type: ignore[assignment]

    def refuse(self, status: int, code: str) -> None:
        type(self).puts += 1
        # The first is no rival's.
        if self.puts > 1:
            self.ask("PUT", b"of a rival")
        super().refuse(status, code)


class Conflicts(Gateway):
    """Has 409 for all but the first of some who come at once, as S3 may; for every rival if it is told to.

    Attributes:
        all_of_them: whether nobody wins where there are rivals.

    """

    all_of_them = False
    puts = 0
    turn = Lock()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.turn:
            type(self).puts += 1
            there = self.ask("HEAD")[0] == HTTPStatus.OK
            rival = self.puts > IN_A_ROW
            if there or (rival and self.all_of_them):
                self.refuse(409 if rival else 412, "ConditionalRequestConflict" if rival else "PreconditionFailed")
                return
            self.say(*self.ask("PUT", body))


class AllConflict(Conflicts):
    """Has 409 for all rivals."""

    all_of_them = True


class Stops(LooksFirstOneByOne):
    """Keeps the rivals waiting, until it is told to go on."""

    puts = 0
    waiting, go_on = Event(), Event()

    def do_PUT(self) -> None:
        type(self).puts += 1
        if self.puts > IN_A_ROW:
            self.waiting.set()
            self.go_on.wait(30)
        super().do_PUT()


IN_A_ROW = 2
"""How many puts the trial makes before there are rivals."""


@pytest.fixture
def gateway(s3: S3) -> Iterator[Callable[[type[Gateway]], str]]:
    """Start a store that has a fault; return its endpoint."""
    need_the_gate("a store with a fault of its own")
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(served(kind, s3.endpoint or ""))


def keys(s3: S3) -> list[str]:
    from sluice.audit.log_folder import s3_client

    bucket, _, prefix = s3.root.partition("/")
    return [each["Key"] for each in s3_client({}).list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]


WHERE = [("--bucket", "{root}"), ("--table", "s3a://{root}/raw/flights")]


@pytest.mark.full
@pytest.mark.s3
@pytest.mark.parametrize("where", WHERE)
def test_a_store_that_refuses_to_overwrite_is_sound(
    zookeeper: Any, s3: S3, doctor: Callable[..., tuple[int, Found]], where: tuple[str, str]
) -> None:
    code, found = doctor(zookeeper.hosts, *(word.format(root=s3.root) for word in where))
    assert code == 0, found
    assert found["put-if-absent"][0] == "ok"
    assert keys(s3) == []


@pytest.mark.s3
@pytest.mark.parametrize("where", WHERE)
def test_a_store_that_overwrites_is_not_sound(
    zookeeper: Any,
    s3: S3,
    gateway: Callable[[type[Gateway]], str],
    doctor: Callable[..., tuple[int, Found]],
    where: tuple[str, str],
) -> None:
    place = (word.format(root=s3.root) for word in where)
    code, found = doctor(zookeeper.hosts, *place, "--storage-option", f"AWS_ENDPOINT_URL={gateway(Gateway)}")
    assert code == 1
    assert found["put-if-absent"][0] == "failed"
    assert "overwrote" in found["put-if-absent"][1]
    assert keys(s3) == []


@pytest.mark.full
@pytest.mark.s3
@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        (LooksFirst, "failed", "rivals created s3://"),
        (Overlooks, "failed", "does not have the content of the rival"),
        (LooksFirstOneByOne, "ok", "one winner each time"),
        (Conflicts, "ok", "one winner each time"),
        (AllConflict, "note", "it refused all of 8 concurrent ones"),
    ],
)
def test_a_store_that_refuses_the_second_in_a_row_is_tried_with_rivals_too(
    zookeeper: object, s3: S3, gateway: Callable[[type[Gateway]], str], doctor: Callable[..., tuple[int, Found]],
    kind: type[Gateway], verdict: str, words: str,
) -> None:  # fmt: skip
    hosts: str = zookeeper.hosts  # type: ignore[attr-defined]
    code, found = doctor(hosts, "--bucket", s3.root, "--storage-option", f"AWS_ENDPOINT_URL={gateway(kind)}")
    assert found["put-if-absent"][0] == verdict, found
    assert words in found["put-if-absent"][1]
    assert code == (1 if verdict == "failed" else 0)
    assert keys(s3) == []


@pytest.mark.s3
def test_ctrl_c_among_the_rivals_leaves_nothing_behind(
    zookeeper: object, s3: S3, gateway: Callable[[type[Gateway]], str]
) -> None:
    hosts: str = zookeeper.hosts  # type: ignore[attr-defined]
    command = [sys.executable, "-m", "sluice", "doctor", "--zookeeper", hosts, "--bucket", s3.root]
    doctor = subprocess.Popen([*command, "--storage-option", f"AWS_ENDPOINT_URL={gateway(Stops)}"])
    try:
        assert Stops.waiting.wait(60)
        assert len(keys(s3)) == 1
        doctor.send_signal(signal.SIGTERM)
        Stops.go_on.set()
        assert doctor.wait(60) == 143
    finally:
        Stops.go_on.set()
        doctor.kill()
        doctor.wait()
    assert keys(s3) == []


def test_a_folder_where_two_links_at_once_both_succeed_is_a_fault(
    zookeeper: object, tmp_path: Path, doctor: Callable[..., tuple[int, Found]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError
        time.sleep(0.02)  # the flaw itself
        shutil.copy(source, target)

    monkeypatch.setattr("os.link", link)
    code, found = doctor(zookeeper.hosts, "--table", str(tmp_path))  # type: ignore[attr-defined]
    assert (code, found["put-if-absent"][0]) == (1, "failed")
    assert "rivals created" in found["put-if-absent"][1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_told(
    zookeeper: object, s3: S3, doctor: Callable[..., tuple[int, Found]]
) -> None:
    code, found = doctor(zookeeper.hosts, "--bucket", "nobody-s")  # type: ignore[attr-defined]
    assert (code, "NoSuchBucket" in found["put-if-absent"][1]) == (1, True)
    assert "scratch object" not in found


def test_a_folder_is_tried_with_a_hard_link(
    zookeeper: object, tmp_path: Path, doctor: Callable[..., tuple[int, Found]]
) -> None:
    hosts: str = zookeeper.hosts  # type: ignore[attr-defined]
    code, found = doctor(hosts, "--table", str(tmp_path))
    assert (code, found["put-if-absent"][0]) == (0, "ok")
    assert list(tmp_path.iterdir()) == []
    code, found = doctor(hosts, "--table", str(tmp_path / "missing"))
    assert (code, "the folder must be there" in found["put-if-absent"][1]) == (1, True)


def test_a_table_that_is_adopted_elsewhere_is_a_fault(
    zookeeper: object, tmp_path: Path, doctor: Callable[..., tuple[int, Found]]
) -> None:
    hosts: str = zookeeper.hosts  # type: ignore[attr-defined]
    with ZookeeperLockManager(hosts) as manager, manager.acquire(tmp_path) as hold:
        here = hold.ensemble_id

    def judged(name: str, ensemble: str | None, *, to: str = "") -> tuple[int, tuple[str, str]]:
        folder = tmp_path / name
        if ensemble is not None:
            configuration = {"sluice.ensemble": ensemble} if ensemble else {}
            configuration |= {"sluice.table": to} if to else {}
            schema = Schema([Field("id", "long")])
            DeltaTable.create(folder, schema, configuration=configuration, raise_if_key_not_exists=False)
        folder.mkdir(exist_ok=True)
        code, found = doctor(hosts, "--table", str(folder))
        return code, found["adoption"]

    name = canonical_table_uri(tmp_path / "here")
    says = f"the table is adopted by this ensemble, {here}, and under this name"
    assert judged("here", here, to=name) == (0, ("ok", says))
    code, (verdict, says) = judged("copy", here, to=name)
    assert (code, verdict, f"adopted under the name {name}" in says, "--move`" in says) == (1, "failed", True, True)
    code, (verdict, says) = judged("earlier", here)
    assert (code, verdict, "but not under its name" in says) == (0, "note", True)
    code, (verdict, says) = judged("elsewhere", "another")
    assert (code, verdict) == (1, "failed")
    assert f"adopted by ensemble another, but this is ensemble {here}" in says
    assert "--move`" in says
    code, (verdict, says) = judged("nowhere", "")
    assert (code, verdict, f"`sluice adopt {tmp_path / 'nowhere'}`" in says) == (0, "note", True)
    code, (verdict, says) = judged("empty", None)
    assert (code, verdict, "no Delta table" in says) == (0, "note", True)
    (tmp_path / "here/_delta_log/00000000000000000000.json").write_text("{}")
    code, found = doctor(hosts, "--table", str(tmp_path / "here"))
    assert (code, "could not be compared" in found["adoption"][1]) == (1, True)
    code, found = doctor(hosts, "--table", str(tmp_path / "elsewhere"), "--lock-root", f"/{tmp_path.name}")
    assert (code, "nothing was ever locked" in found["adoption"][1]) == (1, True)


# -- this machine ----------------------------------------------------------------------------------------------------


def test_jars_that_are_missing_or_changed_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_jars() -> tuple[Verdict, str]:
        (found,) = [each for each in doctor_machine.machine_findings() if each.check == "jars"]
        return found.verdict, found.message

    assert of_jars()[0] is Verdict.OK
    folder = tmp_path / "jars"
    shutil.copytree(jars.jars_folder(), folder)
    monkeypatch.setenv("SLUICE_JARS", str(folder))
    assert of_jars()[0] is Verdict.OK
    one = folder / jars.locked_jars()[0].file_name
    one.write_bytes(one.read_bytes()[:-1])
    verdict, says = of_jars()
    assert (verdict, f"not the pinned ones (the first: {one.name})" in says) == (Verdict.FAILED, True)
    one.unlink()
    assert "1 of 44 are missing" in of_jars()[1]


def test_a_log_store_that_is_missing_or_another_jar_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_log_store() -> tuple[bool, str]:
        (found,) = [each for each in doctor_machine.machine_findings() if each.check == "log store"]
        return found.failed, found.message

    assert not of_log_store()[0]
    monkeypatch.setattr(doctor_machine, "LOG_STORE_JAR", tmp_path / "log-store.jar")
    assert of_log_store() == (
        True,
        f"{tmp_path / 'log-store.jar'} is missing: run `make setup`, or install the package",
    )
    (tmp_path / "log-store.jar").write_bytes(b"no jar")
    assert "cannot be read" in of_log_store()[1]
    with zipfile.ZipFile(tmp_path / "log-store.jar", "w") as jar:
        jar.writestr("other.class", b"")
    assert "has no GuardedLogStore" in of_log_store()[1]


KERNEL = [f"{key} {LOG_STORE}" for key in KERNEL_LOG_STORE_SETTINGS]
WHOLE = [f"{LOG_STORE_SETTING} {LOG_STORE}", *KERNEL]


@pytest.mark.parametrize(
    ("lines", "verdict", "says"),
    [
        (None, Verdict.NOTE, "no spark-defaults.conf here"),
        (["spark.master  local[2]", "# a comment"], Verdict.NOTE, "names no log store"),
        ([f"{LOG_STORE_SETTING}={LOG_STORE}", *KERNEL], Verdict.OK, "Delta and Delta Kernel"),
        ([f"{LOG_STORE_SETTING}  {LOG_STORE}", *KERNEL[1:]], Verdict.FAILED, f"missing (the first: {KERNEL[0]})"),
        (
            [f"{LOG_STORE_SETTING}: {LOG_STORE}", *KERNEL[1:], f"{KERNEL_LOG_STORE_SETTINGS[0]} org.example.Store"],
            Verdict.FAILED,
            f"{KERNEL_LOG_STORE_SETTINGS[0]}=org.example.Store, past the guarded log store",
        ),
        (["spark.delta.logStore.s3a.impl=org.example.Store"], Verdict.FAILED, "past the guarded log store"),
        ([*WHOLE, f"{GUARD_MODE} off"], Verdict.FAILED, "commits without asking for the lock"),
        ([f"{GUARD_MODE} OFF"], Verdict.FAILED, "commits without asking for the lock"),
        ([*WHOLE, f"{GUARD_MODE} observe"], Verdict.NOTE, "commits without the lock pass"),
        ([f"{GUARD_MODE} observe"], Verdict.NOTE, "commits without the lock pass"),
        ([*WHOLE[:-1], f"{GUARD_MODE} observe"], Verdict.FAILED, "missing (the first:"),
        ([*WHOLE, f"{GUARD_MODE} of"], Verdict.FAILED, "choose required, observe or off"),
        ([*WHOLE, f"{GUARD_MODE} required"], Verdict.OK, "Delta and Delta Kernel"),
        ([*WHOLE, f"spark.delta.logStore.s3a.impl {LOG_STORE}"], Verdict.FAILED, "Delta refuses both together"),
        (
            [f"spark.delta.logStore.s3a.impl {LOG_STORE}"],
            Verdict.NOTE,
            f"for some schemes only: put {LOG_STORE_SETTING}={LOG_STORE} in place of spark.delta.logStore.s3a.impl",
        ),
    ],
    ids=[
        "none",
        "without",
        "whole",
        "one is missing",
        "one is another",
        "another for one scheme",
        "off",
        "off without a store",
        "observe",
        "observe without a store",
        "observe, and one is missing",
        "misspelt",
        "required",
        "for all and for one scheme",
        "for one scheme",
    ],
)
def test_spark_s_defaults_have_to_name_the_guarded_log_store_for_delta_kernel_too(
    lines: list[str] | None, verdict: Verdict, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    if lines is not None:
        (tmp_path / "spark-defaults.conf").write_text("\n".join(lines), encoding="utf-8")
    found = defaults_finding()
    assert found.verdict is verdict
    assert says in found.message
