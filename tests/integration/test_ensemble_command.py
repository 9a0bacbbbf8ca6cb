"""`sluice ensemble status` and `ready` report the faults of ensembles. Most faults are caused on real servers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl
from typer.testing import CliRunner

from lock_manager import LockSettings, ZookeeperLockManager
from lock_manager.deadline import Deadline
from lock_manager.testing.embedded import EmbeddedServer, EmbeddedZooKeeper
from lock_manager.testing.server_security import ServerSecurity
from lock_manager.zookeeper.scratch_node import scratch_node, try_session
from lock_manager.zookeeper.session import Session
from sluice.commands.app import app
from sluice.ensemble.members import Server, ask_server, ask_servers
from sluice.ensemble.ready import epoch_faults, server_faults
from tests.support.authority import Authority
from tests.support.lock_znodes import connected_client
from tests.unit.test_alert_rules import ENSEMBLE_METRICS

MOST_COMMAND_SECONDS = 30.0
"""Upper bound for `status` and `ready` with a suspended server: requests, the session and its close time out."""

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def second_ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def standalone() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as standalone:
        yield standalone


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "own")


@pytest.fixture(scope="module")
def tls_ensemble(authority: Authority) -> Iterator[EmbeddedZooKeeper]:
    """An ensemble that accepts only TLS connections of clients with a certificate."""
    security = ServerSecurity(key_store=authority.store("server", "127.0.0.1"), trust_store=authority.file)
    with EmbeddedZooKeeper(3, security=security) as ensemble:
        yield ensemble


@pytest.fixture
def certificate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the certificate of a client of ``tls_ensemble`` in the environment."""
    security = authority.client("job")
    for name in ("tls_ca", "tls_certificate", "tls_key"):
        monkeypatch.setenv(f"SLUICE_ZK_{name.upper()}", getattr(security, name))


def status(hosts: str, *, code: int = 0) -> list[dict[str, Any]]:
    """Run `sluice ensemble status`; return its report of each server."""
    result = CliRunner().invoke(app, ["ensemble", "status", "--json", "--zookeeper", hosts])
    assert result.exit_code == code, result.output
    error = "sluice: no server serves; see the problem of each server above\n"
    assert result.stderr == (error if code else "")
    servers: list[dict[str, Any]] = json.loads(result.stdout)["servers"]
    assert len(servers) == len(hosts.split(","))
    return servers


def ready(hosts: str, *arguments: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Run `sluice ensemble ready`; return the faults and the servers that it reports."""
    result = CliRunner().invoke(app, ["ensemble", "ready", "--json", "--zookeeper", hosts, *arguments])
    report = json.loads(result.stdout)
    faults = report["wrong"]
    assert (result.exit_code, report["ready"]) == ((1, False) if faults else (0, True))
    errors = [line for line in result.stderr.splitlines() if "not ready yet" not in line]
    assert errors == [f"sluice: not ready: {fault}" for fault in faults]
    return faults, report["servers"]


def doctor_messages(hosts: str) -> dict[str, str]:
    """Return the message of each check of `sluice doctor`."""
    result = CliRunner().invoke(app, ["doctor", "--json", "--zookeeper", hosts])
    return {finding["what"]: finding["says"] for finding in json.loads(result.stdout)}


def start_waiting(hosts: str, seconds: float) -> subprocess.Popen[str]:
    """Start `sluice ensemble ready --wait` in another process, and return when it waits."""
    program = [sys.executable, "-c", "from sluice.cli import main; main()"]
    command = [*program, "ensemble", "ready", "--wait", f"{seconds:g}", "--zookeeper", hosts]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert "not ready yet" in process.stderr.readline()
    return process


def wait_until_ready(hosts: str) -> None:
    assert ready(hosts, "--wait", f"{WAIT_SECONDS:g}")[0] == []


def mode_of(server: EmbeddedServer) -> str | None:
    return ask_server("127.0.0.1", server.client_port).mode


def server_in_mode(mode: str, ensemble: EmbeddedZooKeeper) -> EmbeddedServer:
    return next(server for server in ensemble.servers if mode_of(server) == mode)


# -- all members run -------------------------------------------------------------------------------------------------


def test_members_report_the_metrics_of_the_alert_rules(ensemble: EmbeddedZooKeeper) -> None:
    """ZooKeeper has the same names for Prometheus, without ``zk_``."""
    reports = [
        dict(line.split("\t", 1) for line in server.command(b"mntr").decode().splitlines())
        for server in ensemble.servers
    ]
    (leader,) = (report for report in reports if report["zk_server_state"] == "leader")
    assert {f"zk_{name}" for name in ENSEMBLE_METRICS} <= leader.keys()
    assert (leader["zk_quorum_size"], leader["zk_synced_followers"]) == ("3", "2")
    assert all("zk_looking_count" in report for report in reports)


@pytest.mark.full
def test_a_fresh_ensemble_is_ready_despite_older_epochs() -> None:
    """Followers report an older epoch until the first write."""
    with EmbeddedZooKeeper(3) as fresh:
        servers = ask_servers(LockSettings(zk_hosts=fresh.hosts))
        assert epoch_faults(servers), "the control failed: all servers report the same epoch"
        faults, reports = ready(fresh.hosts)
        assert faults == []
        assert len({report["epoch"] for report in reports}) == 1


@pytest.mark.full
def test_status_reports_each_server(ensemble: EmbeddedZooKeeper) -> None:
    wait_until_ready(ensemble.hosts)
    with ZookeeperLockManager(ensemble.hosts) as manager, manager.acquire("s3://lake/t"):
        reports = status(ensemble.hosts)
    assert [report["address"] for report in reports] == [server.address for server in ensemble.servers]
    assert sorted(report["mode"] for report in reports) == ["follower", "follower", "leader"]
    for report in reports:
        assert (report["problem"], report["version"], report["outstanding"]) == (None, "3.9.5", 0)
        assert report["epoch"] == int(report["zxid"], 16) >> 32 >= 1
        assert report["synced_followers"] == (2 if report["mode"] == "leader" else None)
        assert report["sessions"] >= 1
        assert report["connections"] >= 1


def test_status_prints_a_line_per_server_and_ignores_a_chroot(
    ensemble: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", f"{ensemble.hosts}/not/there")
    result = CliRunner().invoke(app, ["ensemble", "status"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if "127.0.0.1" in line] == [server.address for server in ensemble.servers]
    assert sum("leader" in line for line in lines) == 1


def test_a_ready_ensemble_keeps_no_scratch_node(ensemble: EmbeddedZooKeeper) -> None:
    result = CliRunner().invoke(app, ["ensemble", "ready", "--zookeeper", ensemble.hosts, "--expect", "3"])
    leader = server_in_mode("leader", ensemble)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"ready: 3 of 3 serve, leader {leader.address}, epoch ")
    with connected_client(leader.address) as client:
        paths = [path for path in ("/", "/locks", "/locks/delta_tables") if client.exists(path)]
        assert [name for path in paths for name in client.get_children(path) if "scratch" in name] == []


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_ensemble_is_not_ready_until_all_members_run(
    ensemble: EmbeddedZooKeeper, eventually: Callable[..., None]
) -> None:
    wait_until_ready(ensemble.hosts)
    stopped, leader = server_in_mode("follower", ensemble), server_in_mode("leader", ensemble)
    stopped.kill()
    eventually(lambda: ask_server("127.0.0.1", leader.client_port).synced_followers == 1)
    # Control: a lock can be acquired, and both running members report no error.
    with ZookeeperLockManager(ensemble.hosts, timeout_seconds=WAIT_SECONDS) as manager:
        manager.acquire("s3://lake/t").release()
    assert [server.command(b"ruok") for server in ensemble.servers if server is not stopped] == [b"imok", b"imok"]
    (report,) = [report for report in status(ensemble.hosts) if report["address"] == stopped.address]
    assert report["mode"] is None
    assert "cannot be reached" in report["problem"]
    faults, _ = ready(ensemble.hosts)
    assert len(faults) == 2
    assert f"{stopped.address} cannot be reached" in str(faults)
    assert "leads with 1 follower in sync instead of 2" in str(faults)
    waiting = start_waiting(ensemble.hosts, WAIT_SECONDS)
    stopped.start()
    output, _ = waiting.communicate(timeout=2 * WAIT_SECONDS)
    assert (waiting.returncode, output.startswith("ready: 3 of 3 serve")) == (0, True)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["follower", "leader"])
def test_a_suspended_member_is_named_within_bounded_time(ensemble: EmbeddedZooKeeper, mode: str) -> None:
    wait_until_ready(ensemble.hosts)
    suspended = server_in_mode(mode, ensemble)
    suspended.pause()
    try:
        start_time = time.monotonic()
        reports = status(ensemble.hosts)
        assert suspended.address in [report["address"] for report in reports if report["problem"]]
        faults, _ = ready(ensemble.hosts)
        assert time.monotonic() - start_time < MOST_COMMAND_SECONDS
    finally:
        suspended.resume()
    assert f"{suspended.address} does not answer within 2 s: it is suspended" in str(faults)
    wait_until_ready(ensemble.hosts)


def test_without_a_quorum_no_server_serves(ensemble: EmbeddedZooKeeper, eventually: Callable[..., None]) -> None:
    first, second, third = ensemble.servers
    first.kill()
    second.kill()
    eventually(lambda: "sees no quorum" in (ask_server("127.0.0.1", third.client_port).problem or ""))
    assert "sees no quorum" in status(ensemble.hosts, code=1)[2]["problem"]
    assert len(ready(ensemble.hosts)[0]) == 3
    first.start()
    second.start()
    wait_until_ready(ensemble.hosts)


def test_members_missing_in_the_connection_string_are_reported(ensemble: EmbeddedZooKeeper) -> None:
    wait_until_ready(ensemble.hosts)
    leader, follower = server_in_mode("leader", ensemble).address, server_in_mode("follower", ensemble).address
    for hosts in (f"{leader},{follower}", f"{leader},{follower},{follower}"):
        assert ready(hosts)[0] == [f"{leader} leads with 2 followers in sync instead of 1"]
    faults, _ = ready(f"{leader},{follower}", "--expect", "3")
    assert faults == ["the connection string names 2 servers instead of 3: name every one, and no others"]
    faults, _ = ready(follower)
    assert faults == ["the connection string names no leader: name every server of the ensemble"]


def test_a_standalone_server_is_ready_only_if_one_is_expected(
    standalone: EmbeddedZooKeeper, ensemble: EmbeddedZooKeeper
) -> None:
    assert "is standalone, not part of an ensemble" in str(ready(standalone.hosts)[0])
    faults, (report,) = ready(standalone.hosts, "--expect", "1")
    assert (faults, report["mode"]) == ([], "standalone")
    assert ready(standalone.hosts, "--expect", "3")[0] != []
    faults, _ = ready(f"{standalone.hosts},{ensemble.hosts}", "--expect", "1")
    assert "names 4 servers instead of 1" in str(faults)


def test_two_ensembles_in_one_connection_string_are_not_ready(
    ensemble: EmbeddedZooKeeper, second_ensemble: EmbeddedZooKeeper
) -> None:
    wait_until_ready(ensemble.hosts)
    wait_until_ready(second_ensemble.hosts)
    assert "there are 2 leaders" in str(ready(f"{ensemble.hosts},{second_ensemble.hosts}")[0])


def test_a_member_of_another_ensemble_is_reported(
    ensemble: EmbeddedZooKeeper, second_ensemble: EmbeddedZooKeeper
) -> None:
    wait_until_ready(ensemble.hosts)
    wait_until_ready(second_ensemble.hosts)
    stranger = server_in_mode("follower", second_ensemble).address
    hosts = f"{server_in_mode('leader', ensemble).address},{server_in_mode('follower', ensemble).address},{stranger}"
    # Control: the servers' own reports show no fault.
    assert server_faults(ask_servers(LockSettings(zk_hosts=hosts)), 3, allow_standalone=False) == []
    faults, _ = ready(hosts)
    assert faults != []
    assert all("is of another ensemble" in fault for fault in faults)


def test_read_only_lock_roots_and_missing_chroots_are_reported(
    standalone: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected_client(standalone.hosts) as client:
        client.create("/readonly", b"", acl=[make_acl("world", "anyone", read=True)])
    monkeypatch.setenv("SLUICE_LOCK_ROOT", "/readonly")
    ((fault,), _) = ready(standalone.hosts, "--expect", "1")
    assert "NoAuthError" in fault
    faults, _ = ready(f"{standalone.hosts}/nowhere", "--expect", "1")
    assert faults == [
        "the chroot of the connection string does not exist: create it, or correct the path after the hosts"
    ]


def test_ctrl_c_ends_the_wait(standalone: EmbeddedZooKeeper, heed_ctrl_c: None) -> None:
    waiting = start_waiting(standalone.hosts, 600)
    waiting.send_signal(signal.SIGINT)
    _, error = waiting.communicate(timeout=WAIT_SECONDS)
    assert (waiting.returncode, "stopped by SIGINT" in error) == (130, True)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([Server("a", mode="leader", synced_followers=1), Server("b", mode="observer")], "b is an observer"),
        ([Server("a", mode="leader"), Server("b", mode="follower")], "a leads, but does not report synced followers"),
        ([Server("a", mode="leader", synced_followers=1), Server("b")], "b answers, but not to srvr"),
        ([Server("a", mode="leader", synced_followers=1), Server("b", "is ill")], "b is ill"),
    ],
)
def test_observers_and_incomplete_reports_are_faults(servers: list[Server], message: str) -> None:
    (fault,) = server_faults(servers, 2, allow_standalone=False)
    assert message in fault


def test_a_follower_may_trail_by_transactions_not_by_an_epoch() -> None:
    leader = Server("a", mode="leader", zxid=0x200000009)
    assert epoch_faults([leader, Server("b", mode="follower", zxid=0x200000001)]) == []
    (fault,) = epoch_faults([leader, Server("b", mode="follower", zxid=0x1000000FF)])
    assert fault == "b is at epoch 1, but the leader at 2: it has not caught up"


def test_a_deleted_scratch_node_is_created_again(standalone: EmbeddedZooKeeper) -> None:
    session, deadline, paths = Session(LockSettings(zk_hosts=standalone.hosts)), Deadline(WAIT_SECONDS), []

    def use_scratch_node() -> None:
        with scratch_node(session, "/", deadline) as scratch:
            paths.append(scratch.path)
            if len(paths) == 1:
                session.wait(session.client.delete_async(scratch.path), deadline)

    try_session(session, deadline, use_scratch_node)
    session.close()
    assert len(set(paths)) == 2


# -- no answer -------------------------------------------------------------------------------------------------------


def test_an_address_without_an_answer_takes_two_seconds(standalone: EmbeddedZooKeeper) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        # Connections beyond the backlog get no answer, as from behind a firewall.
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(silent.getsockname())
        start_time = time.monotonic()
        silent_report, report = status(f"127.0.0.1:{silent.getsockname()[1]},{standalone.hosts}")
        assert time.monotonic() - start_time < MOST_COMMAND_SECONDS / 3
    assert "does not answer within 2 s" in silent_report["problem"]
    assert report["mode"] == "standalone"


def test_the_wait_for_a_server_that_trickles_bytes_ends() -> None:
    end = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                while not end.wait(0.05):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        start_time = time.monotonic()
        server_report = ask_server("127.0.0.1", server.getsockname()[1])
        assert time.monotonic() - start_time < MOST_COMMAND_SECONDS / 3
        end.set()
        thread.join()
    assert server_report.problem is not None


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_servers_that_require_a_certificate_get_it(tls_ensemble: EmbeddedZooKeeper, certificate: None) -> None:
    wait_until_ready(tls_ensemble.hosts)
    modes = sorted(report["mode"] for report in status(tls_ensemble.hosts))
    assert modes == ["follower", "follower", "leader"]
    assert doctor_messages(tls_ensemble.hosts)["quorum"] == "1 leader, 2 followers"


def test_without_a_certificate_each_server_reports_a_problem(
    tls_ensemble: EmbeddedZooKeeper, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ZK_TLS_CA", str(authority.file))
    for report in status(tls_ensemble.hosts, code=1):
        assert "does not pass TLS verification (" in report["problem"]
        assert "SLUICE_ZK_TLS_CERTIFICATE" in report["problem"]
    assert ready(tls_ensemble.hosts)[0] != []


def test_without_tls_the_problem_names_tls(tls_ensemble: EmbeddedZooKeeper) -> None:
    for report in status(tls_ensemble.hosts, code=1):
        assert "requires TLS, which is not set here" in report["problem"]


def test_a_certificate_for_another_host_name_is_not_trusted(tls_ensemble: EmbeddedZooKeeper, certificate: None) -> None:
    for report in status(tls_ensemble.hosts.replace("127.0.0.1", "localhost"), code=1):
        assert "Hostname mismatch" in report["problem"]


def test_tls_to_a_plain_port_does_not_fall_back_to_plain_text(standalone: EmbeddedZooKeeper, certificate: None) -> None:
    (report,) = status(standalone.hosts, code=1)
    assert "does not use TLS, which is set here" in report["problem"]


@pytest.mark.full
def test_ready_reports_a_missing_sasl_login() -> None:
    security = ServerSecurity(sasl_users={"etl": "right"}, schemes=("sasl",))
    with EmbeddedZooKeeper(security=security) as server:
        ((fault, *_), (report,)) = ready(server.hosts, "--expect", "1")
        assert report["mode"] == "standalone", "the server did not answer srvr, which needs no login"
        assert "SessionClosedRequireSaslError" in fault
        assert "SessionClosedRequireSaslError" in doctor_messages(server.hosts)["session"]
