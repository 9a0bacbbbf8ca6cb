"""The lock on a real server: order, modes, deadlines, errors and the removal of contenders."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from lock_manager import (
    ClosedError,
    EnsembleFormatError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    HeldLock,
    LockCancelledError,
    LockLostError,
    LockNotHeldError,
    LockOrderError,
    LockTimeoutError,
    SettingsError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import table_node
from tests.support.lock_znodes import LOCK_ROOT, LockZnodes
from tests.support.new_thread import in_new_thread
from tests.support.waiting import lock_timeout


@pytest.fixture
def table() -> str:
    return f"s3a://lake/{uuid.uuid4().hex}"


@pytest.fixture
def znodes(ensemble_client, table: str) -> LockZnodes:
    return LockZnodes(ensemble_client, table)


def test_acquire_check_and_release(make_manager, table):
    with make_manager() as manager:
        hold = manager.acquire(table)
        assert isinstance(hold, HeldLock)
        assert hold.resource == table.replace("s3a", "s3")
        hold.check()
        assert hold.is_valid()
        manager.release(table)
        with manager.acquire(table) as next_hold:
            assert next_hold.token > hold.token
            assert next_hold.hold_id != hold.hold_id
        with pytest.raises(LockNotHeldError):
            manager.release(table)


def test_spellings_of_one_table_are_one_lock(make_manager, make_rival, table):
    path = table.removeprefix("s3a://lake")
    with make_rival().acquire(f"s3n://LAKE//{path}/"), pytest.raises(LockTimeoutError):
        make_manager().acquire(table, timeout_seconds=0)


def test_a_contender_names_its_job_and_process(make_manager, table, eventually):
    manager = make_manager(job="nightly", app_id="application_1")
    with manager.acquire(table) as hold:
        (entry,) = manager.queue(table)
        assert entry.holds
        assert entry.data["job"] == "nightly"
        assert entry.data["app_id"] == "application_1"
        assert entry.data["pid"] == os.getpid()
        assert entry.data["requested_at"] <= hold.acquired_at
        eventually(lambda: manager.queue(table)[0].data.get("acquired_at") == hold.acquired_at)


def test_the_znode_of_a_table_contains_its_uri(make_manager, table, znodes):
    with make_manager().acquire(table):
        assert znodes.client.get(znodes.path)[0] == b'{"uri": "%s"}' % table.replace("s3a", "s3").encode()


def test_first_come_first_served_with_rising_tokens(make_manager, table, eventually):
    manager = make_manager()
    served_requests: list[tuple[int, int]] = []

    def acquire_once(number: int) -> None:
        with manager.acquire(table) as hold:
            served_requests.append((number, hold.token))

    first_hold = manager.acquire(table)
    waiters = []
    for number in range(20):
        waiters.append(in_new_thread(acquire_once, number))
        eventually(lambda number=number: len(manager.queue(table)) == number + 2)
    first_hold.release()
    for waiter in waiters:
        waiter.result()
    assert [number for number, _ in served_requests] == list(range(20))
    tokens = [first_hold.token] + [token for _, token in served_requests]
    assert tokens == sorted(set(tokens))


def test_shared_holds_exclude_an_exclusive_hold(make_manager, table, eventually):
    manager = make_manager()
    readers = [in_new_thread(manager.acquire, table, shared=True).result() for _ in range(3)]
    writer = in_new_thread(manager.acquire, table)
    eventually(lambda: len(manager.queue(table)) == 4)
    # A reader that comes after the writer waits for it: the writer is not starved.
    late_reader = in_new_thread(manager.acquire, table, shared=True)
    eventually(lambda: len(manager.queue(table)) == 5)
    for reader in readers:
        assert not writer.done()
        reader.release()
    hold = writer.result()
    assert not late_reader.done()
    hold.release()
    late_reader.result().release()


def test_one_release_wakes_one_waiter(table, eventually):
    """The server counts the watches that fire."""
    waiter_count = 20
    with EmbeddedZooKeeper() as ensemble, ZookeeperLockManager(ensemble.hosts) as manager:

        def watch_counts() -> dict[str, float]:
            lines: list[str] = []
            while not lines:
                lines = ensemble.servers[0].command(b"mntr").decode().splitlines()
            return {name: float(count) for name, count in (line.split("\t") for line in lines if "watch_count" in line)}

        def fired_watch_count() -> float:
            return sum(count for name, count in watch_counts().items() if name.startswith("zk_sum_"))

        hold = manager.acquire(table)
        waiters = [in_new_thread(lambda: manager.acquire(table).release()) for _ in range(waiter_count)]
        eventually(lambda: watch_counts()["zk_watch_count"] == waiter_count)
        count_at_start = fired_watch_count()
        hold.release()
        for waiter in waiters:
            waiter.result()
        assert fired_watch_count() - count_at_start == waiter_count


@pytest.mark.full
def test_the_deadline_covers_all_predecessors(make_manager, table, eventually):
    """Kazoo's recipe restarts its timeout for each predecessor; here the nearest one leaves halfway to the deadline."""
    manager, predecessor, waiter = make_manager(), make_manager(), make_manager()
    waiter.connect()
    with manager.acquire(table):
        nearest_request = in_new_thread(predecessor.acquire, table)
        eventually(lambda: len(manager.queue(table)) == 2)
        started = time.monotonic()
        waiting_request = in_new_thread(waiter.acquire, table, timeout_seconds=8)
        eventually(lambda: len(manager.queue(table)) == 3)
        eventually(lambda: time.monotonic() - started > 4)
        predecessor.cancel(table)
        error = waiting_request.exception()
        # A restarted timeout would end after 12 s at the earliest.
        assert time.monotonic() - started < 11
        assert isinstance(error, LockTimeoutError)
        assert error.ahead == 1
        assert isinstance(nearest_request.exception(), LockCancelledError)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e10, "5"])
def test_an_invalid_deadline_is_refused(make_manager, table, seconds):
    manager = make_manager()
    with pytest.raises(SettingsError, match="timeout_seconds"):
        manager.acquire(table, timeout_seconds=seconds)
    with manager.acquire(table) as hold, pytest.raises(SettingsError, match="timeout_seconds"):
        hold.check(timeout_seconds=seconds)


def test_a_timeout_names_the_holder(make_manager, make_rival, table):
    waiter = make_manager()
    waiter.connect()
    with make_rival(job="compaction").acquire(table), pytest.raises(LockTimeoutError, match="compaction") as error:
        waiter.acquire(table, timeout_seconds=3)
    assert error.value.holder["pid"] == os.getpid()
    assert isinstance(error.value, TimeoutError)


def test_200_failed_acquires_leave_no_contender(make_manager, make_rival, table, znodes, zookeeper, eventually):
    """Timeouts, cancellations and interrupts come at random moments. All sessions are alive at the check."""
    random_moments = random.Random(7)
    holder = make_rival().acquire(table)
    manager = make_manager()
    manager.connect()
    cancellation_errors: list[type] = []

    for _ in range(70):
        lock_timeout(lambda: manager.acquire(table, timeout_seconds=random_moments.choice([0, 0.001, 0.005, 0.02])))
    for _ in range(60):
        waiting_request = in_new_thread(manager.acquire, table)
        cancel_at = time.monotonic() + random_moments.random() * 0.02
        while time.monotonic() < cancel_at or not manager.cancel(table):
            pass
        cancellation_errors.append(type(waiting_request.exception()))
    assert set(cancellation_errors) == {LockCancelledError}

    interrupted_process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED_PROGRAM), zookeeper.hosts, table],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert interrupted_process.stdout.readline().strip() == "70"
        # The process with 70 interrupts is still alive, and so is its session.
        eventually(lambda: len(znodes.contenders()) == 1)
        (contender,) = znodes.contenders()
        assert znodes.client.exists(contender).czxid == holder.token
    finally:
        interrupted_process.communicate("end")
    holder.release()
    assert znodes.contenders() == []


INTERRUPTED_PROGRAM = """
    import random, signal, sys
    from lock_manager import ZookeeperLockManager

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    random_moments = random.Random(11)
    manager = ZookeeperLockManager(sys.argv[1], timeout_seconds=60)
    manager.connect()
    interrupts = 0
    while interrupts < 70:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + random_moments.random() * 0.02)
            manager.acquire(sys.argv[2])
        except KeyboardInterrupt:
            interrupts += 1
    print(interrupts, flush=True)
    sys.stdin.read()
    manager.close()
"""


def test_the_lock_of_a_killed_holder_is_free_after_its_session(make_manager, table, zookeeper):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER_PROGRAM, zookeeper.hosts, table], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline().strip() == "held"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    killed_at = time.monotonic()
    with make_manager().acquire(table, timeout_seconds=60):
        # The holder requests a session of 4 s, and the server rounds up to its next tick. A busy machine may need
        # longer, but not the 30 s of a default session.
        assert time.monotonic() - killed_at < 20


HOLDER_PROGRAM = """
import sys, time
from lock_manager import ZookeeperLockManager
hold = ZookeeperLockManager(sys.argv[1], session_timeout_seconds=4).acquire(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


def test_threads_of_one_manager_hold_the_lock_one_at_a_time(make_manager, table):
    manager = make_manager()
    holders, most_holders = 0, 0
    mutex = threading.Lock()

    def acquire_repeatedly(_: int) -> None:
        nonlocal holders, most_holders
        for _ in range(5):
            with manager.acquire(table):
                with mutex:
                    holders += 1
                    most_holders = max(most_holders, holders)
                time.sleep(0.001)  # Long enough for another thread to enter, if the lock allowed it.
                with mutex:
                    holders -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(acquire_repeatedly, range(8)))
    assert most_holders == 1


def test_nested_acquires_follow_one_order(make_manager):
    manager, folder = make_manager(), uuid.uuid4().hex
    low, high = f"s3://lake/{folder}/a", f"s3://lake/{folder}/b"
    with manager.acquire(low), manager.acquire(high):
        pass
    with manager.acquire(high), pytest.raises(LockOrderError, match="first"):
        manager.acquire(low)


def test_cancel_and_close_end_a_wait(make_manager, table, eventually):
    manager, observer = make_manager(), make_manager()
    with make_manager().acquire(table):
        waiting_request = in_new_thread(manager.acquire, table)
        eventually(lambda: manager.cancel(table) == 1)
        assert isinstance(waiting_request.exception(), LockCancelledError)
        waiting_request = in_new_thread(manager.acquire, table)
        eventually(lambda: len(observer.queue(table)) == 2)
        manager.close()
        assert isinstance(waiting_request.exception(), LockCancelledError)


def test_a_closed_manager_raises_and_frees_its_locks(make_manager, table):
    manager = make_manager()
    hold = manager.acquire(table)
    manager.close()
    manager.close()
    assert not hold.is_valid()
    for method in (manager.acquire, manager.release, manager.queue):
        with pytest.raises(ClosedError):
            method(table)
    with pytest.raises((ClosedError, LockNotHeldError)):
        hold.check()
    make_manager().acquire(table, timeout_seconds=30).release()


def test_a_forked_child_raises_and_spares_its_parent(zookeeper, table):
    process = subprocess.run(
        [sys.executable, "-c", FORKING_PROGRAM, zookeeper.hosts, table],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = ["ClosedError"] * 6 + ["child False CLOSED", "parent True CONNECTED"]
    assert process.stdout.splitlines() == expected, process.stderr


FORKING_PROGRAM = """
import os, sys
from lock_manager import SluiceError, ZookeeperLockManager
manager, table = ZookeeperLockManager(sys.argv[1]), sys.argv[2]
hold = manager.acquire(table)
if os.fork() == 0:
    for call in (
        lambda: manager.acquire(table + "x"), lambda: manager.release(table), lambda: manager.cancel(table),
        lambda: manager.queue(table), hold.check, hold.release,
    ):
        try:
            call()
        except SluiceError as error:
            print(type(error).__name__, flush=True)
    print("child", hold.is_valid(), manager.state.name, flush=True)
    manager.close()
    os._exit(0)
os.wait()
hold.check()
print("parent", hold.is_valid(), manager.state.name)
manager.close()
"""


def test_an_unreachable_ensemble_is_reported_in_time():
    with ZookeeperLockManager("127.0.0.1:1", timeout_seconds=0.5) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleUnavailableError, match=r"127\.0\.0\.1:1") as error:
            manager.acquire("s3://lake/t")
        assert isinstance(error.value, ConnectionError)
        manager.close()
        assert time.monotonic() - started < 10


def test_an_unknown_lock_format_is_refused(zookeeper, ensemble_client, table):
    root = f"/{uuid.uuid4().hex}"
    for value in (b'{"format": 2, "ensemble": "x"}', b"something else"):
        ensemble_client.ensure_path(root)
        ensemble_client.set(root, value)
        with (
            ZookeeperLockManager(zookeeper.hosts, lock_root=root) as manager,
            pytest.raises(EnsembleFormatError),
        ):
            manager.acquire(table)
        assert ensemble_client.get(root)[0] == value


def test_a_chroot_is_created_and_used(zookeeper, ensemble_client, table):
    chroot = f"/{uuid.uuid4().hex}"
    with ZookeeperLockManager(f"{zookeeper.hosts}{chroot}") as manager, manager.acquire(table):
        assert ensemble_client.exists(table_node(chroot + LOCK_ROOT, TableResource.of(table)))


def test_a_queue_that_kazoo_created_is_used(make_manager, table, ensemble_client):
    root = f"/{uuid.uuid4().hex}"
    with ensemble_client.WriteLock(table_node(root, TableResource.of(table))):
        pass
    make_manager(lock_root=root).acquire(table).release()


def test_a_lost_hold_masks_no_error_of_the_block(make_manager, table, znodes):
    manager = make_manager()
    with pytest.raises(ZeroDivisionError) as block_error, manager.acquire(table):
        znodes.delete_contenders()
        1 / 0  # noqa: B018
    assert "was lost" in block_error.value.__notes__[0]
    with pytest.raises(LockLostError, match="version 3, 4") as lost_error, manager.acquire(table) as hold:
        hold.record_commit(3)
        hold.record_commit(4)
        znodes.delete_contenders()
    assert lost_error.value.commits == {hold.resource: (3, 4)}
    assert lost_error.value.hold_id == hold.hold_id


def test_check_writes_nothing_and_detects_a_lost_contender(make_manager, table, znodes):
    with make_manager().acquire(table) as hold:
        (contender,) = znodes.contenders()
        version = znodes.client.exists(contender).version
        for _ in range(10):
            hold.check()
        # The manager may have written to the contender once more, to store the time at which it acquired the lock.
        assert znodes.client.exists(contender).version - version <= 1
        znodes.delete_contenders()
        with pytest.raises(LockLostError, match="contender was gone"):
            hold.check()
        assert not hold.is_valid()
        with pytest.raises(LockLostError):
            hold.release()


def test_check_raises_if_it_may_not_read_the_contender(make_manager, table, znodes):
    with make_manager().acquire(table) as hold:
        (contender,) = znodes.contenders()
        znodes.client.set_acls(contender, [make_acl("world", "anyone", write=True)])
        with pytest.raises(EnsembleRefusedError, match="NoAuthError"):
            hold.check()


def test_an_undeletable_contender_ends_with_its_session(make_manager, table, znodes, eventually):
    manager = make_manager()
    hold = manager.acquire(table)
    znodes.client.set_acls(znodes.path, [make_acl("world", "anyone", read=True, create=True, admin=True)])
    with pytest.raises(EnsembleRefusedError):
        hold.release()
    eventually(lambda: znodes.contenders() == [])
    znodes.client.set_acls(znodes.path, OPEN_ACL_UNSAFE)
    manager.acquire(table, timeout_seconds=10).release()


def test_on_loss_is_not_called_for_a_release(make_manager, table, monkeypatch):
    """The keepalive may check a hold during its release."""
    monkeypatch.setattr("lock_manager.zookeeper.hold_state.ANNOUNCE_SECONDS", 0.002)
    manager = make_manager()
    lost_holds: list[HeldLock] = []
    for _ in range(300):
        with manager.acquire(table) as hold:
            hold.on_loss(lost_holds.append)
            while time.time() < hold.acquired_at + 0.002:
                pass
    manager.close()
    assert lost_holds == []


def test_no_watchers_or_threads_remain(make_manager, make_rival, table, eventually):
    manager = make_manager()
    manager.connect()
    with make_rival().acquire(table):
        for _ in range(20):
            lock_timeout(lambda: manager.acquire(table, timeout_seconds=0.05))
        assert not manager._session._watchers
        assert sum(len(watchers) for watchers in manager._session.client._child_watchers.values()) <= 1
    threads = threading.active_count()
    for _ in range(5):
        with make_manager() as short_lived_manager:
            short_lived_manager.acquire(table).release()
    eventually(lambda: threading.active_count() <= threads, label="the end of the threads of closed managers")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_manager_survives_the_end_of_kazoo_s_thread(make_manager, table, eventually):
    manager = make_manager()
    hold = manager.acquire(table)

    def fail(*_: object) -> None:
        raise RuntimeError("an error code that kazoo does not know")

    manager._session.client._connection._read_response = fail
    eventually(lambda: hold.lost)
    manager.acquire(table, timeout_seconds=20).release()
