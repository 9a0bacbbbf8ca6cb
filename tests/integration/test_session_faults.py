"""Faults of the network, the server and the operating system during a session, on real servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lock_manager import (
    EnsembleUnavailableError,
    LockCancelledError,
    LockLostError,
    LockTimeoutError,
    SessionState,
    ZookeeperLockManager,
)
from lock_manager.testing import embedded
from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.tcp_proxy import Link
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.new_thread import in_new_thread
from tests.support.rivals import RivalManager
from tests.support.running import is_running
from tests.support.sessions import end_session

TABLE = "s3://lake/faults"
SESSION_SECONDS = 4.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server with short ticks that grants session timeouts of at most four seconds."""
    with EmbeddedZooKeeper(tick_ms=200, max_session_timeout_ms=4000) as ensemble:
        yield ensemble


@pytest.fixture
def rival(server) -> Iterator[RivalManager]:
    with RivalManager(server.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS) as manager:
        yield manager


@pytest.fixture
def proxy(server) -> Iterator[Link]:
    with Link(server.hosts) as link:
        yield link


@pytest.fixture
def manager(proxy) -> Iterator[ZookeeperLockManager]:
    """A connected manager behind the proxy."""
    with ZookeeperLockManager(proxy.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS) as manager:
        manager.connect()
        yield manager


@pytest.fixture
def znodes(server) -> Iterator[LockZnodes]:
    with connected_client(server.hosts) as client:
        yield LockZnodes(client, TABLE)


def expire(manager: ZookeeperLockManager, hosts: str) -> None:
    """End the manager's session on the server. A second client takes it over and closes it."""
    session_id, password = manager._session.client.client_id
    deadline = time.monotonic() + 20
    # The first client may reconnect before the second one closes the session.
    while manager._session.session_id == session_id:
        assert time.monotonic() < deadline, "the session has not ended within 20 s"
        end_session(hosts, (session_id, password))


def start_program(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that runs Python code."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_granted_timeout_counts_not_the_requested_one(server, eventually):
    with (
        Link(server.hosts) as proxy,
        ZookeeperLockManager(proxy.hosts, session_timeout_seconds=30) as manager,
    ):
        hold = manager.acquire(TABLE)
        assert manager._session.granted_seconds == SESSION_SECONDS
        proxy.cut()
        cut_at = time.monotonic()
        eventually(lambda: not hold.is_valid(), within=10)
        # With the 30 s that the manager requested, the hold would stay valid for 12 s.
        assert time.monotonic() - cut_at < 10
        proxy.mend()


@pytest.mark.full
def test_a_holder_is_invalid_before_the_next_one_holds(manager, proxy, rival, eventually):
    """Kazoo stays SUSPENDED while the rival acquires the lock. is_valid turns False before the rival holds it."""
    hold = manager.acquire(TABLE)
    lost_holds: list[object] = []
    hold.on_loss(lost_holds.append)
    last_valid_at = [0.0]
    stop = threading.Event()

    def record_validity() -> None:
        while not stop.is_set():
            checked_at = time.monotonic()
            if hold.is_valid():
                last_valid_at[0] = checked_at

    observer = threading.Thread(target=record_validity, daemon=True)
    observer.start()
    proxy.cut()
    with rival.acquire(TABLE):
        acquired_at = time.monotonic()
        stop.set()
        observer.join()
        assert 0 < last_valid_at[0] < acquired_at
        with pytest.raises((LockLostError, EnsembleUnavailableError)):
            hold.check(timeout_seconds=0.2)
        eventually(lambda: lost_holds == [hold])
    proxy.mend()
    with pytest.raises(LockLostError):
        hold.release()


@pytest.mark.full
def test_a_paused_holder_is_invalid_when_it_resumes(server, rival):
    """The process is stopped for longer than its session timeout. Its clock goes on."""
    holder = start_program(PAUSED_PROGRAM, server.hosts, TABLE)
    assert holder.stdout.readline().strip() == "held"
    os.kill(holder.pid, signal.SIGSTOP)
    rival.acquire(TABLE).release()
    os.kill(holder.pid, signal.SIGCONT)
    output, _ = holder.communicate("go\n", timeout=30)
    # The clock makes the hold invalid before the client notices that its connection is closed.
    assert output.split() == ["False", "LockLostError", "LockLostError"]


PAUSED_PROGRAM = """
import sys
from lock_manager import SluiceError, ZookeeperLockManager
hold = ZookeeperLockManager(sys.argv[1], session_timeout_seconds=2).acquire(sys.argv[2])
print("held", flush=True)
sys.stdin.readline()
print(hold.is_valid())
for call in (hold.check, hold.release):
    try:
        call()
    except SluiceError as error:
        print(type(error).__name__)
"""


def test_a_short_loss_of_the_connection_keeps_the_lock(manager, proxy, eventually):
    hold = manager.acquire(TABLE)
    states: list[SessionState] = []
    manager.add_listener(states.append)
    proxy.drop()
    eventually(lambda: SessionState.SUSPENDED in states)
    eventually(lambda: manager.state is SessionState.CONNECTED)
    hold.check()
    assert hold.is_valid()
    hold.release()


def test_a_silent_server_is_soon_tried_again(proxy, caplog, eventually):
    """Kazoo would wait for all of the 30 s that the manager requests, though the server granted 4 s."""
    with ZookeeperLockManager(proxy.hosts, timeout_seconds=30, session_timeout_seconds=30) as manager:
        manager.connect()
        proxy.discards_replies = True
        proxy.drop()
        eventually(lambda: "Connection time-out" in caplog.text, within=20)
        proxy.discards_replies = False
        manager.acquire(TABLE).release()


def test_a_suspended_hold_is_not_valid(manager, proxy, eventually):
    hold = manager.acquire(TABLE)
    proxy.refuses_connections = True
    proxy.drop()
    eventually(lambda: manager.state is SessionState.SUSPENDED)
    assert not hold.is_valid()
    proxy.refuses_connections = False
    eventually(lambda: manager.state is SessionState.CONNECTED)
    hold.check()
    hold.release()


def test_an_expired_hold_reports_its_loss(server, rival, eventually):
    manager = ZookeeperLockManager(server.hosts, session_timeout_seconds=SESSION_SECONDS)
    hold = manager.acquire(TABLE)
    validity_of_next_hold: list[bool] = []
    # A callback may use the manager. In kazoo's own listener that would deadlock.
    hold.on_loss(lambda _: validity_of_next_hold.append(manager.acquire(TABLE, timeout_seconds=10).is_valid()))
    expire(manager, server.hosts)
    eventually(lambda: validity_of_next_hold == [True])
    assert not hold.is_valid()
    with pytest.raises(LockLostError, match="session had ended"):
        hold.check()
    with pytest.raises(LockLostError):
        hold.release()
    manager.close()
    rival.acquire(TABLE).release()


def test_an_expired_waiter_joins_the_queue_again(server, rival, znodes, eventually):
    manager = ZookeeperLockManager(server.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS)
    hold = rival.acquire(TABLE)
    waiting_request = in_new_thread(manager.acquire, TABLE)
    eventually(lambda: len(znodes.contenders()) == 2)
    contenders = set(znodes.contenders())
    expire(manager, server.hosts)
    eventually(lambda: len(znodes.contenders()) == 2 and set(znodes.contenders()) != contenders)
    hold.release()
    waiting_request.result().release()
    manager.close()


def test_a_lost_reply_to_create_leaves_one_contender(manager, proxy, rival, znodes, eventually):
    rival.acquire(TABLE).release()
    proxy.discards_replies = True
    pending_acquire = in_new_thread(manager.acquire, TABLE)
    eventually(lambda: len(znodes.contenders()) == 1)
    contenders = znodes.contenders()
    # This contender has the same prefix and an earlier number, but belongs to another session.
    foreign_contender = f"{contenders[0][:-10]}0000000000"
    znodes.client.create(foreign_contender, ephemeral=True)
    proxy.discards_replies = False
    proxy.drop()
    eventually(lambda: manager.state is SessionState.CONNECTED)
    znodes.client.delete(foreign_contender)
    hold = pending_acquire.result()
    assert znodes.contenders() == contenders
    assert hold.token == znodes.client.exists(contenders[0]).czxid
    hold.check()
    hold.release()
    assert znodes.contenders() == []


def test_a_lost_reply_to_delete_is_a_release(manager, proxy, znodes, eventually):
    hold = manager.acquire(TABLE)
    proxy.discards_replies = True
    pending_release = in_new_thread(hold.release)
    eventually(lambda: znodes.contenders() == [])
    proxy.discards_replies = False
    proxy.drop()
    assert pending_release.result() is None


@pytest.mark.full
def test_a_release_in_an_outage_is_bounded_and_completes(manager, proxy, znodes, eventually):
    hold = manager.acquire(TABLE)
    proxy.cut()
    started = time.monotonic()
    hold.release()  # It raises no error, because the hold is still valid.
    assert time.monotonic() - started < SESSION_SECONDS + 4
    proxy.mend()
    eventually(lambda: znodes.contenders() == [])


@pytest.mark.full
def test_a_failed_acquire_is_cleaned_up_after_the_outage(manager, proxy, rival, znodes, eventually):
    with rival.acquire(TABLE) as hold:
        waiting_request = in_new_thread(manager.acquire, TABLE, timeout_seconds=5)
        eventually(lambda: len(znodes.contenders()) == 2)
        proxy.cut()
        assert isinstance(waiting_request.exception(), LockTimeoutError | EnsembleUnavailableError)
        proxy.mend()
        eventually(lambda: len(znodes.contenders()) == 1)
        hold.check()


def test_a_close_in_an_outage_is_bounded(proxy, znodes, eventually):
    manager = ZookeeperLockManager(proxy.hosts, session_timeout_seconds=SESSION_SECONDS)
    manager.acquire(TABLE)
    proxy.cut()
    started = time.monotonic()
    manager.close()
    assert time.monotonic() - started < 10
    proxy.mend()
    eventually(lambda: znodes.contenders() == [])


def test_cancel_ends_an_acquire_without_a_connection(manager, proxy, eventually):
    manager.acquire(TABLE).release()
    proxy.refuses_connections = True
    proxy.drop()
    eventually(lambda: manager.state is SessionState.SUSPENDED)
    waiting_request = in_new_thread(manager.acquire, TABLE, timeout_seconds=600)
    eventually(lambda: manager.cancel(TABLE) == 1)
    assert isinstance(waiting_request.exception(20), LockCancelledError)


def test_two_interrupts_in_an_outage_leave_no_contender(proxy, znodes, eventually):
    """The second interrupt comes while the first one's cleanup waits for the network."""
    program = start_program(TWICE_INTERRUPTED_PROGRAM, proxy.hosts, TABLE)
    assert program.stdout.readline().strip() == "connected"
    proxy.refuses_connections = True
    proxy.drop()
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline().strip() == "waiting"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline().strip() == "first"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline().strip() == "interrupted"
    proxy.refuses_connections = False
    # The program reconnects under the same session or another one, and no longer requests the lock.
    output, _ = program.communicate("done\n", timeout=60)
    assert output.strip() == "CONNECTED []"
    eventually(lambda: znodes.contenders() == [])


TWICE_INTERRUPTED_PROGRAM = """
import signal, sys, time
from lock_manager import ZookeeperLockManager

def interrupt(number, frame):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("first", flush=True)
    raise KeyboardInterrupt

manager = ZookeeperLockManager(sys.argv[1], timeout_seconds=60, session_timeout_seconds=2)
manager.connect()
print("connected", flush=True)
sys.stdin.readline()
while manager.state.name == "CONNECTED":
    time.sleep(0.01)
signal.signal(signal.SIGINT, interrupt)
try:
    print("waiting", flush=True)
    manager.acquire(sys.argv[2])
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", flush=True)
sys.stdin.readline()
manager.connect(30)
for _ in range(100):
    if manager._holds or manager._acquisitions:
        time.sleep(0.05)
print(manager.state.name, manager._holds + manager._acquisitions)
manager.close()
"""


@pytest.mark.full
def test_a_lost_hold_whose_session_survives_is_cleaned_up(eventually):
    """The hold expires by the client's clock, but a restarted server continues the session and keeps the contender."""
    with (
        EmbeddedZooKeeper(tick_ms=200, max_session_timeout_ms=2000) as ensemble,
        ZookeeperLockManager(ensemble.hosts) as manager,
    ):
        hold = manager.acquire(TABLE)
        (server,) = ensemble.servers
        server.kill()
        eventually(lambda: hold.lost)
        server.start()
        server.wait_until_serving(time.monotonic() + 20)
        with ZookeeperLockManager(ensemble.hosts, timeout_seconds=20) as second_manager, second_manager.acquire(TABLE):
            pass
        manager.acquire(TABLE, timeout_seconds=20).release()
        with pytest.raises(LockLostError):
            hold.release()


def test_a_proof_counts_from_the_time_of_the_request(eventually):
    with (
        EmbeddedZooKeeper() as ensemble,
        Link(ensemble.hosts) as proxy,
        ZookeeperLockManager(proxy.hosts, session_timeout_seconds=30) as manager,
    ):
        hold = manager.acquire(TABLE)
        # After this write the manager sends no request of its own for 5 s.
        eventually(lambda: "acquired_at" in manager.queue(TABLE)[0].data)
        proxy.replies.clear()
        sent_at = time.monotonic()
        pending_check = in_new_thread(hold.check)
        eventually(lambda: time.monotonic() - sent_at > 0.5)
        answered_at = time.monotonic()
        proxy.replies.set()
        pending_check.result()
        assert sent_at <= manager._session.proven_at < answered_at


@pytest.mark.full
def test_check_asks_the_quorum_not_the_connected_server():
    """A follower that is cut off from the other servers answers reads for a while."""
    with EmbeddedZooKeeper(3, tick_ms=500) as ensemble:
        follower = next(server for server in ensemble.servers if b"follower" in server.command(b"srvr"))
        with (
            ZookeeperLockManager(follower.address, timeout_seconds=30, session_timeout_seconds=20) as manager,
            connected_client(follower.address) as client,
        ):
            hold = manager.acquire(TABLE)
            hold.check()
            majority = [server for server in ensemble.servers if server is not follower]
            for server in majority:
                server.pause()
            with pytest.raises(EnsembleUnavailableError):
                hold.check(timeout_seconds=0.5)
            assert len(LockZnodes(client, TABLE).contenders()) == 1
            for server in majority:
                server.resume()


@pytest.mark.full
def test_a_hold_survives_the_leader_of_three_servers(eventually):
    with (
        EmbeddedZooKeeper(3, tick_ms=200) as ensemble,
        ZookeeperLockManager(ensemble.hosts, timeout_seconds=30, session_timeout_seconds=20) as manager,
    ):
        hold = manager.acquire(TABLE)
        leader = next(server for server in ensemble.servers if b"leader" in server.command(b"srvr"))
        leader.kill()

        def check_succeeds() -> bool:
            try:
                hold.check()
            except EnsembleUnavailableError:
                return False
            return True

        eventually(lambda: manager.state is SessionState.CONNECTED and check_succeeds())
        assert hold.is_valid()
        hold.release()


def test_embedded_servers_end_with_their_parent(eventually):
    parent = start_program(PARENT_PROGRAM)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.communicate()
    eventually(lambda: not is_running(pid), within=15)


PARENT_PROGRAM = """
import time
from lock_manager.testing.embedded import EmbeddedZooKeeper
print(EmbeddedZooKeeper().start().servers[0].pid, flush=True)
time.sleep(60)
"""


def test_a_server_with_much_output_does_not_block():
    program = [sys.executable, "-c", "print('x' * 1_000_000)"]
    script = Path(embedded.__file__).with_name("_supervise.py")
    command = [sys.executable, str(script), "--output-to-stderr", *program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            # The test does not read the output.
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_an_occupied_port_is_replaced(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        occupied_port, free_ports = listener.getsockname()[1], embedded.free_ports
        first_offer = iter([[occupied_port, *free_ports(2)]])
        monkeypatch.setattr(embedded, "free_ports", lambda count: next(first_offer, None) or free_ports(count))
        with EmbeddedZooKeeper() as zookeeper:
            assert not zookeeper.hosts.endswith(f":{occupied_port}")


def test_data_in_the_caller_s_folder_outlives_the_server(tmp_path):
    holds = []
    for _ in range(2):
        with EmbeddedZooKeeper(data_dir=tmp_path) as ensemble, ZookeeperLockManager(ensemble.hosts) as manager:
            with manager.acquire(TABLE) as hold:
                holds.append((hold.ensemble_id, hold.token))
    (first_ensemble, first_token), (second_ensemble, second_token) = holds
    assert second_ensemble == first_ensemble
    assert second_token > first_token
