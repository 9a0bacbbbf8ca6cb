"""`sluice ensemble`: what it says of real ensembles, whole ones and others; each fault is made for real."""

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
from kazoo.client import KazooClient
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

LONGEST_LOOK = 30.0
"""More than one look may take with a server that stands still: words, a session, and its end, each bounded."""

PATIENCE = 60.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as running:
        yield running


@pytest.fixture(scope="module")
def another() -> Iterator[EmbeddedZooKeeper]:
    """A second ensemble, which knows nothing of the first one."""
    with EmbeddedZooKeeper(3) as running:
        yield running


@pytest.fixture(scope="module")
def alone() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as running:
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "own")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedZooKeeper]:
    """An ensemble that speaks TLS only, with clients that have a certificate."""
    security = ServerSecurity(key_store=authority.store("server", "127.0.0.1"), trust_store=authority.file)
    with EmbeddedZooKeeper(3, security=security) as running:
        yield running


@pytest.fixture
def certificate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client of it shows, in the environment."""
    security = authority.client("job")
    for name in ("tls_ca", "tls_certificate", "tls_key"):
        monkeypatch.setenv(f"SLUICE_ZK_{name.upper()}", getattr(security, name))


Answer = tuple[int, dict[str, Any], str]


def ask(command: str, hosts: str, *arguments: str) -> Answer:
    """Return the exit code, what the JSON says, and standard error."""
    answer = CliRunner().invoke(app, ["ensemble", command, "--json", "--zookeeper", hosts, *arguments])
    assert answer.stdout, answer.output
    return answer.exit_code, json.loads(answer.stdout), answer.stderr


def doctor_lines(printed: str) -> dict[str, str]:
    return {each["what"]: each["says"] for each in json.loads(printed)}


def becomes_ready(hosts: str) -> None:
    code, found, error = ask("ready", hosts, "--wait", f"{PATIENCE:g}")
    assert (code, found["wrong"]) == (0, []), error


def mode_of(server: EmbeddedServer) -> str | None:
    return ask_server("127.0.0.1", server.client_port).mode


def one_that(mode: str, ensemble: EmbeddedZooKeeper) -> EmbeddedServer:
    return next(server for server in ensemble.servers if mode_of(server) == mode)


# -- a whole one -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_fresh_ensemble_is_ready_though_its_followers_tell_an_older_epoch_until_something_is_written() -> None:
    with EmbeddedZooKeeper(3) as fresh:
        servers = ask_servers(LockSettings(zk_hosts=fresh.hosts))
        assert epoch_faults(servers), "the words alone would not do"
        code, found, error = ask("ready", fresh.hosts)
        assert (code, found["ready"], found["wrong"], error) == (0, True, [], "")
        assert len({server["epoch"] for server in found["servers"]}) == 1


@pytest.mark.full
def test_status_tells_of_each_server(ensemble: EmbeddedZooKeeper) -> None:
    becomes_ready(ensemble.hosts)
    with ZookeeperLockManager(ensemble.hosts) as manager, manager.acquire("s3://lake/t"):
        code, found, _ = ask("status", ensemble.hosts)
    assert code == 0
    servers = found["servers"]
    assert [server["address"] for server in servers] == [server.address for server in ensemble.servers]
    assert sorted(server["mode"] for server in servers) == ["follower", "follower", "leader"]
    for server in servers:
        assert (server["problem"], server["version"], server["outstanding"]) == (None, "3.9.5", 0)
        assert server["epoch"] == int(server["zxid"], 16) >> 32 >= 1
        assert server["synced_followers"] == (2 if server["mode"] == "leader" else None)
        assert server["sessions"] >= 1
        assert server["connections"] >= 1


def test_people_get_a_line_for_each_server_and_a_chroot_does_not_count(
    ensemble: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ZK_HOSTS", f"{ensemble.hosts}/not/there")
    answer = CliRunner().invoke(app, ["ensemble", "status"])
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert [line.split()[0] for line in lines if "127.0.0.1" in line] == [each.address for each in ensemble.servers]
    assert sum("leader" in line for line in lines) == 1


def test_a_whole_ensemble_is_ready_and_nothing_stays_there(ensemble: EmbeddedZooKeeper) -> None:
    answer = CliRunner().invoke(app, ["ensemble", "ready", "--zookeeper", ensemble.hosts, "--expect", "3"])
    leader = one_that("leader", ensemble)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"ready: 3 of 3 serve, leader {leader.address}, epoch ")
    client = KazooClient(leader.address)
    client.start()
    left = [name for path in ("/", "/locks", "/locks/delta_tables") if client.exists(path)
            for name in client.get_children(path) if "scratch" in name]  # fmt: skip
    client.stop()
    client.close()
    assert left == []


# -- what is not whole -----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_majority_serves_and_is_not_ready_until_the_last_member_is_back(
    ensemble: EmbeddedZooKeeper, eventually: Callable[..., None]
) -> None:
    becomes_ready(ensemble.hosts)
    gone, leader = one_that("follower", ensemble), one_that("leader", ensemble)
    gone.kill()
    eventually(lambda: ask_server("127.0.0.1", leader.client_port).synced_followers == 1)
    # The control: a lock is to be had, and each of the others says that it is well.
    with ZookeeperLockManager(ensemble.hosts, timeout_seconds=PATIENCE) as manager, manager.acquire("s3://lake/t"):
        pass
    assert [each.command(b"ruok") for each in ensemble.servers if each is not gone] == [b"imok", b"imok"]
    code, found, _ = ask("status", ensemble.hosts)
    (told,) = [server for server in found["servers"] if server["address"] == gone.address]
    assert (code, told["mode"]) == (0, None)
    assert "cannot be reached" in told["problem"]
    code, found, error = ask("ready", ensemble.hosts)
    assert (code, found["ready"]) == (1, False)
    assert f"sluice: not ready: {gone.address} cannot be reached" in error
    assert "leads with 1 follower in sync instead of 2" in error
    assert len(error.splitlines()) == len(found["wrong"]) == 2

    waiting = command("ready", "--wait", f"{PATIENCE:g}", "--zookeeper", ensemble.hosts)
    assert waiting.stderr is not None
    assert "not ready yet" in waiting.stderr.readline()
    gone.start()
    said, _ = waiting.communicate(timeout=2 * PATIENCE)
    assert (waiting.returncode, said.startswith("ready: 3 of 3 serve")) == (0, True)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["follower", "leader"])
def test_a_member_that_stands_still_is_named_and_does_not_hang_it(ensemble: EmbeddedZooKeeper, mode: str) -> None:
    becomes_ready(ensemble.hosts)
    still = one_that(mode, ensemble)
    still.pause()
    try:
        started = time.monotonic()
        _, found, _ = ask("status", ensemble.hosts)
        assert still.address in [each["address"] for each in found["servers"] if each["problem"]]
        code, _, error = ask("ready", ensemble.hosts)
        assert time.monotonic() - started < LONGEST_LOOK
    finally:
        still.resume()
    assert code == 1
    assert f"{still.address} does not answer within 2 s: it is suspended" in error
    becomes_ready(ensemble.hosts)


def test_without_a_quorum_nobody_serves(ensemble: EmbeddedZooKeeper, eventually: Callable[..., None]) -> None:
    first, second, last = ensemble.servers
    first.kill()
    second.kill()
    eventually(lambda: "sees no quorum" in (ask_server("127.0.0.1", last.client_port).problem or ""))
    code, found, error = ask("status", ensemble.hosts)
    assert (code, error) == (1, "sluice: no server serves; see the problem of each server above\n")
    assert "sees no quorum" in found["servers"][2]["problem"]
    code, found, _ = ask("ready", ensemble.hosts)
    assert (code, len(found["wrong"])) == (1, 3)
    first.start()
    second.start()
    becomes_ready(ensemble.hosts)


def test_members_that_are_not_named_are_missed(ensemble: EmbeddedZooKeeper) -> None:
    becomes_ready(ensemble.hosts)
    leader, follower = one_that("leader", ensemble).address, one_that("follower", ensemble).address
    for hosts in (f"{leader},{follower}", f"{leader},{follower},{follower}"):
        code, found, _ = ask("ready", hosts)
        assert (code, found["wrong"]) == (1, [f"{leader} leads with 2 followers in sync instead of 1"])
    code, found, _ = ask("ready", f"{leader},{follower}", "--expect", "3")
    assert code == 1
    assert found["wrong"] == ["the connection string names 2 servers instead of 3: name every one, and no others"]
    code, found, _ = ask("ready", follower)
    assert code == 1
    assert found["wrong"] == ["the connection string names no leader: name every server of the ensemble"]


def test_a_server_that_runs_alone_is_ready_only_where_that_is_wanted(
    alone: EmbeddedZooKeeper, ensemble: EmbeddedZooKeeper
) -> None:
    code, _, error = ask("ready", alone.hosts)
    assert code == 1
    assert "is standalone, not part of an ensemble" in error
    code, found, _ = ask("ready", alone.hosts, "--expect", "1")
    assert (code, found["servers"][0]["mode"]) == (0, "standalone")
    assert ask("ready", alone.hosts, "--expect", "3")[0] == 1
    code, _, error = ask("ready", f"{alone.hosts},{ensemble.hosts}", "--expect", "1")
    assert (code, "names 4 servers instead of 1" in error) == (1, True)


def test_two_ensembles_that_are_named_together_are_not_one(
    ensemble: EmbeddedZooKeeper, another: EmbeddedZooKeeper
) -> None:
    becomes_ready(ensemble.hosts)
    becomes_ready(another.hosts)
    code, _, error = ask("ready", f"{ensemble.hosts},{another.hosts}")
    assert code == 1
    assert "there are 2 leaders" in error


def test_a_member_of_another_ensemble_is_found_out_though_all_that_it_says_of_itself_fits(
    ensemble: EmbeddedZooKeeper, another: EmbeddedZooKeeper
) -> None:
    becomes_ready(ensemble.hosts)
    becomes_ready(another.hosts)
    stranger = one_that("follower", another).address
    hosts = f"{one_that('leader', ensemble).address},{one_that('follower', ensemble).address},{stranger}"
    assert server_faults(ask_servers(LockSettings(zk_hosts=hosts)), 3, alone=False) == []
    code, found, _ = ask("ready", hosts)
    assert code == 1
    assert all("is of another ensemble" in sentence for sentence in found["wrong"])
    assert found["wrong"]


def test_a_lock_root_that_may_not_be_written_and_a_chroot_that_is_not_there_are_told(
    alone: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = KazooClient(alone.hosts)
    client.start()
    client.create("/readonly", b"", acl=[make_acl("world", "anyone", read=True)])
    client.stop()
    client.close()
    monkeypatch.setenv("SLUICE_LOCK_ROOT", "/readonly")
    code, found, _ = ask("ready", alone.hosts, "--expect", "1")
    assert (code, len(found["wrong"])) == (1, 1)
    assert "NoAuthError" in found["wrong"][0]
    code, found, _ = ask("ready", f"{alone.hosts}/nowhere", "--expect", "1")
    assert (code, found["wrong"]) == (1, ["the chroot of the connection string does not exist: create it"])


def test_ctrl_c_ends_the_wait(alone: EmbeddedZooKeeper, heed_ctrl_c: None) -> None:
    waiting = command("ready", "--wait", "600", "--zookeeper", alone.hosts)
    assert waiting.stderr is not None
    assert "not ready yet" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, error = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, "stopped by SIGINT" in error) == (130, True)


def command(*arguments: str) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    program = [sys.executable, "-c", "from sluice.cli import main; main()", "ensemble", *arguments]
    return subprocess.Popen(
        program, cwd=Path(__file__).parents[2], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("servers", "word"),
    [
        ([Server("a", mode="leader", synced_followers=1), Server("b", mode="observer")], "b is an observer"),
        (
            [Server("a", mode="leader"), Server("b", mode="follower")],
            "a leads, but does not report synced followers",
        ),
        ([Server("a", mode="leader", synced_followers=1), Server("b")], "b answers, but not to srvr"),
        ([Server("a", mode="leader", synced_followers=1), Server("b", "is ill")], "b is ill"),
    ],
)
def test_what_a_server_is_or_does_not_tell_is_judged(servers: list[Server], word: str) -> None:
    (sentence,) = server_faults(servers, 2, alone=False)
    assert word in sentence


def test_a_follower_may_be_some_transactions_behind_but_not_an_epoch() -> None:
    leader = Server("a", mode="leader", zxid=0x200000009)
    assert epoch_faults([leader, Server("b", mode="follower", zxid=0x200000001)]) == []
    (sentence,) = epoch_faults([leader, Server("b", mode="follower", zxid=0x1000000FF)])
    assert sentence == "b is at epoch 1, but the leader at 2: it has not caught up"


def test_a_scratch_node_that_went_with_its_session_is_made_again(alone: EmbeddedZooKeeper) -> None:
    session, deadline, made = Session(LockSettings(zk_hosts=alone.hosts)), Deadline(PATIENCE), []

    def ask() -> None:
        with scratch_node(session, "/", deadline) as scratch:
            made.append(scratch.path)
            if len(made) == 1:
                session.wait(session.client.delete_async(scratch.path), deadline)

    try_session(session, deadline, ask)
    session.close()
    assert len(set(made)) == 2


# -- who does not answer ---------------------------------------------------------------------------------------------


def test_an_address_at_which_nobody_answers_takes_two_seconds(alone: EmbeddedZooKeeper) -> None:
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # Whoever comes after those for whom there is room gets no answer at all, as from behind a firewall.
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(deaf.getsockname())
        started = time.monotonic()
        _, found, _ = ask("status", f"127.0.0.1:{deaf.getsockname()[1]},{alone.hosts}")
        assert time.monotonic() - started < LONGEST_LOOK / 3
    assert "does not answer within 2 s" in found["servers"][0]["problem"]
    assert found["servers"][1]["mode"] == "standalone"


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for() -> None:
    over = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                while not over.wait(0.05):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        started = time.monotonic()
        said = ask_server("127.0.0.1", server.getsockname()[1])
        assert time.monotonic() - started < LONGEST_LOOK / 3
        over.set()
        thread.join()
    assert said.problem is not None


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_servers_that_demand_a_certificate_are_asked_with_it(secured: EmbeddedZooKeeper, certificate: None) -> None:
    becomes_ready(secured.hosts)
    code, found, _ = ask("status", secured.hosts)
    assert code == 0
    assert sorted(server["mode"] for server in found["servers"]) == ["follower", "follower", "leader"]
    answer = CliRunner().invoke(app, ["doctor", "--json", "--zookeeper", secured.hosts])
    assert doctor_lines(answer.stdout)["quorum"] == "1 leader, 2 followers"


def test_without_a_certificate_each_server_says_no_in_a_sentence(
    secured: EmbeddedZooKeeper, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ZK_TLS_CA", str(authority.file))
    code, found, _ = ask("status", secured.hosts)
    assert code == 1
    for server in found["servers"]:
        assert "does not pass TLS verification (" in server["problem"]
        assert "SLUICE_ZK_TLS_CERTIFICATE" in server["problem"]
    assert ask("ready", secured.hosts)[0] == 1


def test_without_tls_the_message_says_that_it_may_be_wanted(secured: EmbeddedZooKeeper) -> None:
    code, found, _ = ask("status", secured.hosts)
    assert code == 1
    assert all("requires TLS, which is not set here" in server["problem"] for server in found["servers"])


def test_a_certificate_for_another_host_name_is_not_trusted(secured: EmbeddedZooKeeper, certificate: None) -> None:
    code, found, _ = ask("status", secured.hosts.replace("127.0.0.1", "localhost"))
    assert code == 1
    assert all("Hostname mismatch" in server["problem"] for server in found["servers"])


def test_tls_to_a_plain_port_never_falls_back_to_plain_words(alone: EmbeddedZooKeeper, certificate: None) -> None:
    code, found, _ = ask("status", alone.hosts)
    assert code == 1
    assert "does not use TLS, which is set here" in found["servers"][0]["problem"]


@pytest.mark.full
def test_a_client_that_is_refused_by_another_scheme_is_told_so_by_ready() -> None:
    security = ServerSecurity(sasl_users={"etl": "right"}, schemes=("sasl",))
    with EmbeddedZooKeeper(security=security) as server:
        code, found, _ = ask("ready", server.hosts, "--expect", "1")
        assert (code, found["servers"][0]["mode"]) == (1, "standalone"), "the words need no user"
        assert "SessionClosedRequireSaslError" in found["wrong"][0]
        answer = CliRunner().invoke(app, ["doctor", "--json", "--zookeeper", server.hosts])
        assert "SessionClosedRequireSaslError" in doctor_lines(answer.stdout)["session"]
