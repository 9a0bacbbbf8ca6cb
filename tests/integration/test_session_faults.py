"""What the network, the server and the operating system do to a session, against real servers."""

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
from kazoo.client import KazooClient

from lock_manager import (
    EnsembleUnavailableError,
    LockCancelledError,
    LockLostError,
    LockTimeoutError,
    SessionState,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.testing import embedded as local
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import table_node
from soak.tcp_proxy import Link
from tests.support.rivals import RivalManager
from tests.support.running import is_running
from tests.support.sessions import end_session

TABLE = "s3://lake/faults"
NODE = table_node("/locks/delta_tables", TableResource.of(TABLE))
SESSION_SECONDS = 4.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server of our own, with short ticks, that grants at most four seconds."""
    with EmbeddedZooKeeper(tick_ms=200, max_session_timeout_ms=4000) as embedded:
        yield embedded


@pytest.fixture
def direct(server) -> Iterator[RivalManager]:
    with RivalManager(server.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS) as manager:
        yield manager


@pytest.fixture
def proxy(server) -> Iterator[Link]:
    with Link(server.hosts) as between:
        yield between


@pytest.fixture
def through_proxy(proxy) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(proxy.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS) as manager:
        manager.connect()
        yield manager


@pytest.fixture
def look(server) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def contenders(look: KazooClient) -> list[str]:
    return [name for name in look.get_children(NODE) if "lock__" in name] if look.exists(NODE) else []


def expire(manager: ZookeeperLockManager, hosts: str) -> None:
    """End the manager's session on the server, as kazoo's own harness does: by a second client that takes it over."""
    session_id, password = manager._session.client.client_id
    deadline = time.monotonic() + 20
    # The first client may come back before the second one has said goodbye.
    while manager._session.session_id == session_id:
        assert time.monotonic() < deadline
        end_session(hosts, (session_id, password))


def test_the_granted_timeout_counts_not_the_one_asked_for(server, eventually):
    with (
        Link(server.hosts) as proxy,
        ZookeeperLockManager(proxy.hosts, session_timeout_seconds=30) as manager,
    ):
        hold = manager.acquire(TABLE)
        assert manager._session.granted_seconds == SESSION_SECONDS
        proxy.cut()
        frozen_at = time.monotonic()
        eventually(lambda: not hold.is_valid(), within=10)
        # By the 30 s that were asked for it would stay valid for 12 s.
        assert time.monotonic() - frozen_at < 10
        proxy.mend()


@pytest.mark.full
def test_partitioned_holder_knows_before_the_next_one_holds(through_proxy, proxy, direct, eventually):
    """Kazoo stays SUSPENDED while another gets the lock; is_valid must be False by then, and stay so."""
    hold = through_proxy.acquire(TABLE)
    lost: list[object] = []
    hold.on_loss(lost.append)
    last_valid = [0.0]
    stop = threading.Event()

    def observe() -> None:
        while not stop.is_set():
            asked_at = time.monotonic()
            if hold.is_valid():
                last_valid[0] = asked_at

    observer = threading.Thread(target=observe, daemon=True)
    observer.start()
    proxy.cut()
    with direct.acquire(TABLE):
        acquired_at = time.monotonic()
        stop.set()
        observer.join()
        assert 0 < last_valid[0] < acquired_at
        with pytest.raises((LockLostError, EnsembleUnavailableError)):
            hold.check(timeout_seconds=0.2)
        eventually(lambda: lost == [hold])
    proxy.mend()
    with pytest.raises(LockLostError):
        hold.release()


@pytest.mark.full
def test_paused_holder_learns_that_it_lost(server, direct, eventually):
    """SIGSTOP past the session time-out: the clock has run on when it wakes, so it is not valid for a moment even."""
    holder = subprocess.Popen(
        [sys.executable, "-c", PAUSED, server.hosts, TABLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline().strip() == "held"
    os.kill(holder.pid, signal.SIGSTOP)
    direct.acquire(TABLE).release()
    os.kill(holder.pid, signal.SIGCONT)
    told, _ = holder.communicate("go\n", timeout=30)
    # Its own clock says so, before the connection is found gone and whatever the ensemble would say.
    assert told.split() == ["False", "LockLostError", "LockLostError"]


PAUSED = """
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


def test_short_loss_of_the_connection_does_not_lose_the_lock(through_proxy, proxy, eventually):
    hold = through_proxy.acquire(TABLE)
    seen: list[SessionState] = []
    through_proxy.add_listener(seen.append)
    proxy.drop()
    eventually(lambda: SessionState.SUSPENDED in seen)
    eventually(lambda: through_proxy.state is SessionState.CONNECTED)
    hold.check()
    assert hold.is_valid()
    hold.release()


def test_a_server_that_takes_the_connection_and_says_nothing_is_soon_tried_again(proxy, caplog, eventually):
    """Kazoo would wait for all of the 30 s that it asked for, though 4 s were granted."""
    with ZookeeperLockManager(proxy.hosts, timeout_seconds=30, session_timeout_seconds=30) as manager:
        manager.connect()
        proxy.deaf = True
        proxy.drop()
        eventually(lambda: "Connection time-out" in caplog.text, within=20)
        proxy.deaf = False
        manager.acquire(TABLE).release()


def test_suspended_hold_is_not_valid(through_proxy, proxy, eventually):
    hold = through_proxy.acquire(TABLE)
    proxy.refused = True
    proxy.drop()
    eventually(lambda: through_proxy.state is SessionState.SUSPENDED)
    assert not hold.is_valid()
    proxy.refused = False
    eventually(lambda: through_proxy.state is SessionState.CONNECTED)
    hold.check()
    hold.release()


def test_expired_holder_is_told_everywhere(server, direct, eventually):
    manager = ZookeeperLockManager(server.hosts, session_timeout_seconds=SESSION_SECONDS)
    hold = manager.acquire(TABLE)
    lost: list[bool] = []
    # A callback may use the manager: in kazoo's own listener that would deadlock.
    hold.on_loss(lambda _: lost.append(manager.acquire(TABLE, timeout_seconds=10).is_valid()))
    expire(manager, server.hosts)
    eventually(lambda: lost == [True])
    assert not hold.is_valid()
    with pytest.raises(LockLostError, match="session had ended"):
        hold.check()
    with pytest.raises(LockLostError):
        hold.release()
    manager.close()
    direct.acquire(TABLE).release()


def test_session_that_ends_while_queued_goes_on_from_the_end_of_the_queue(server, direct, look, eventually):
    manager = ZookeeperLockManager(server.hosts, timeout_seconds=30, session_timeout_seconds=SESSION_SECONDS)
    hold = direct.acquire(TABLE)
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(manager.acquire(TABLE)))
    waiting.start()
    eventually(lambda: len(contenders(look)) == 2)
    before = set(contenders(look))
    expire(manager, server.hosts)
    eventually(lambda: len(contenders(look)) == 2 and set(contenders(look)) != before)
    hold.release()
    waiting.join()
    got[0].release()
    manager.close()


def test_lost_reply_to_create_leaves_one_contender_that_is_ours(through_proxy, proxy, direct, look, eventually):
    direct.acquire(TABLE).release()
    proxy.deaf = True
    got: list[object] = []
    acquiring = threading.Thread(target=lambda: got.append(through_proxy.acquire(TABLE)))
    acquiring.start()
    eventually(lambda: len(contenders(look)) == 1)
    created = contenders(look)
    # Of the same name, and earlier, but of another session: not ours.
    foreign = f"{NODE}/{created[0][:-10]}0000000000"
    look.create(foreign, ephemeral=True)
    proxy.deaf = False
    proxy.drop()
    eventually(lambda: through_proxy.state is SessionState.CONNECTED)
    look.delete(foreign)
    acquiring.join()
    assert contenders(look) == created
    assert got[0].token == look.exists(f"{NODE}/{created[0]}").czxid
    got[0].check()
    got[0].release()
    assert contenders(look) == []


def test_lost_reply_to_delete_is_a_release(through_proxy, proxy, look, eventually):
    hold = through_proxy.acquire(TABLE)
    proxy.deaf = True
    outcome: list[object] = []

    def release() -> None:
        try:
            outcome.append(hold.release())
        except Exception as error:
            outcome.append(error)

    releasing = threading.Thread(target=release)
    releasing.start()
    eventually(lambda: contenders(look) == [])
    proxy.deaf = False
    proxy.drop()
    releasing.join()
    assert outcome == [None]


@pytest.mark.full
def test_release_in_an_outage_is_bounded_and_leaves_nothing(through_proxy, proxy, direct, look, eventually):
    hold = through_proxy.acquire(TABLE)
    proxy.cut()
    started = time.monotonic()
    hold.release()  # it stood when the release was asked for
    assert time.monotonic() - started < SESSION_SECONDS + 4
    proxy.mend()
    eventually(lambda: contenders(look) == [])


@pytest.mark.full
def test_acquire_that_fails_in_an_outage_is_cleared_up_after_it(through_proxy, proxy, direct, look, eventually):
    with direct.acquire(TABLE) as hold:
        waiting_failed: list[BaseException] = []

        def wait() -> None:
            try:
                through_proxy.acquire(TABLE, timeout_seconds=5)
            except Exception as error:
                waiting_failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: len(contenders(look)) == 2)
        proxy.cut()
        waiting.join()
        assert isinstance(waiting_failed[0], LockTimeoutError | EnsembleUnavailableError)
        proxy.mend()
        eventually(lambda: len(contenders(look)) == 1)
        hold.check()


def test_close_in_an_outage_is_bounded(proxy, look, eventually):
    manager = ZookeeperLockManager(proxy.hosts, session_timeout_seconds=SESSION_SECONDS)
    manager.acquire(TABLE)
    proxy.cut()
    started = time.monotonic()
    manager.close()
    assert time.monotonic() - started < 10
    proxy.mend()
    eventually(lambda: contenders(look) == [])


def test_cancel_reaches_an_acquire_that_has_no_connection(through_proxy, proxy, eventually):
    through_proxy.acquire(TABLE).release()
    proxy.refused = True
    proxy.drop()
    eventually(lambda: through_proxy.state is SessionState.SUSPENDED)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            through_proxy.acquire(TABLE, timeout_seconds=600)
        except Exception as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: through_proxy.cancel(TABLE) == 1)
    waiting.join(20)
    assert isinstance(outcome[0], LockCancelledError)


def test_two_interrupts_in_an_outage_leave_no_lock_behind(proxy, look, eventually):
    """The second one comes while the first one's clearing up waits for the network."""
    program = subprocess.Popen(
        [sys.executable, "-c", TWICE, proxy.hosts, TABLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline().strip() == "connected"
    proxy.refused = True
    proxy.drop()
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline().strip() == "waiting"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline().strip() == "first"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline().strip() == "interrupted"
    proxy.refused = False
    # It reconnects, under the same session or another one, and must want nothing any more.
    told, _ = program.communicate("done\n", timeout=60)
    assert told.strip() == "CONNECTED []"
    eventually(lambda: contenders(look) == [])


TWICE = """
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
def test_hold_that_outlives_an_outage_of_the_server_leaves_nothing(eventually):
    """The clock says that it is lost, but a restarted server lets the session go on, and the contender with it."""
    with EmbeddedZooKeeper(tick_ms=200, max_session_timeout_ms=2000) as own, ZookeeperLockManager(own.hosts) as manager:
        hold = manager.acquire(TABLE)
        (server,) = own.servers
        server.kill()
        eventually(lambda: hold.lost)
        server.start()
        server.wait_until_serving(time.monotonic() + 20)
        with ZookeeperLockManager(own.hosts, timeout_seconds=20) as another, another.acquire(TABLE):
            pass
        manager.acquire(TABLE, timeout_seconds=20).release()
        with pytest.raises(LockLostError):
            hold.release()


def test_proof_counts_from_before_the_request_was_sent(eventually):
    with (
        EmbeddedZooKeeper() as own,
        Link(own.hosts) as proxy,
        ZookeeperLockManager(proxy.hosts, session_timeout_seconds=30) as manager,
    ):
        hold = manager.acquire(TABLE)
        # Nothing else is asked for the next 5 s than what this test asks.
        eventually(lambda: "acquired_at" in manager.queue(TABLE)[0].data)
        proxy.replies.clear()
        checking = threading.Thread(target=hold.check)
        sent_at = time.monotonic()
        checking.start()
        eventually(lambda: time.monotonic() - sent_at > 0.5)
        answered_at = time.monotonic()
        proxy.replies.set()
        checking.join()
        assert sent_at <= manager._session.proven_at < answered_at


@pytest.mark.full
def test_check_asks_the_quorum_not_the_server_at_hand():
    """A follower that is cut off from the others goes on answering reads for a while."""
    with EmbeddedZooKeeper(3, tick_ms=500) as ensemble:
        follower = next(server for server in ensemble.servers if b"follower" in server.command(b"srvr"))
        with ZookeeperLockManager(follower.address, timeout_seconds=30, session_timeout_seconds=20) as manager:
            hold = manager.acquire(TABLE)
            hold.check()
            reader = KazooClient(follower.address)
            reader.start()
            others = [server for server in ensemble.servers if server is not follower]
            for server in others:
                server.pause()
            with pytest.raises(EnsembleUnavailableError):
                hold.check(timeout_seconds=0.5)
            assert len(contenders(reader)) == 1
            for server in others:
                server.resume()
            reader.stop()
            reader.close()


@pytest.mark.full
def test_an_ensemble_of_three_survives_its_leader(eventually):
    with (
        EmbeddedZooKeeper(3, tick_ms=200) as ensemble,
        ZookeeperLockManager(ensemble.hosts, timeout_seconds=30, session_timeout_seconds=20) as manager,
    ):
        hold = manager.acquire(TABLE)
        leader = next(server for server in ensemble.servers if b"leader" in server.command(b"srvr"))
        leader.kill()
        eventually(lambda: manager.state is SessionState.CONNECTED and not raises(hold.check))
        assert hold.is_valid()
        hold.release()


def raises(call) -> bool:
    try:
        call()
    except EnsembleUnavailableError:
        return True
    return False


def test_the_embedded_servers_end_with_their_parent(eventually):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.communicate()
    eventually(lambda: not is_running(pid), within=15)


PARENT = """
import time
from lock_manager.testing import embedded as local
from lock_manager.testing.embedded import EmbeddedZooKeeper
print(EmbeddedZooKeeper().start().servers[0].pid, flush=True)
time.sleep(60)
"""


def test_a_server_that_says_much_does_not_stand_still():
    talker = [sys.executable, "-c", "print('x' * 1_000_000)"]
    script = Path(local.__file__).with_name("_supervise.py")
    command = [sys.executable, str(script), "--output-to-stderr", *talker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        try:
            # Nobody reads its output.
            assert running.wait(60) == 0
        finally:
            running.kill()


def test_a_port_that_is_taken_meanwhile_is_exchanged_for_another(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken, free = somebody.getsockname()[1], local.free_ports
        offered = iter([[taken, *free(2)]])
        monkeypatch.setattr(local, "free_ports", lambda count: next(offered, None) or free(count))
        with EmbeddedZooKeeper() as zookeeper:
            assert not zookeeper.hosts.endswith(f":{taken}")


def test_data_in_a_given_folder_outlives_the_server(tmp_path):
    with (
        EmbeddedZooKeeper(data_dir=tmp_path) as first,
        ZookeeperLockManager(first.hosts) as manager,
        manager.acquire(TABLE) as hold,
    ):
        ensemble, token = hold.ensemble_id, hold.token
    with (
        EmbeddedZooKeeper(data_dir=tmp_path) as second,
        ZookeeperLockManager(second.hosts) as manager,
        manager.acquire(TABLE) as hold,
    ):
        assert hold.ensemble_id == ensemble
        assert hold.token > token
