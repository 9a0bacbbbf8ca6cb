"""The lock against a real server: order, modes, time-outs, and that nothing is left behind."""

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
from collections.abc import Callable
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
from lock_manager.zookeeper.znodes import table_node

ROOT = "/locks/delta_tables"


@pytest.fixture
def table() -> str:
    return f"s3a://lake/{uuid.uuid4().hex}"


@pytest.fixture
def node(table: str) -> str:
    return table_node(ROOT, TableResource.of(table))


def contenders(client, node: str) -> list[str]:
    return [name for name in client.get_children(node) if "lock__" in name]


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list]:
    """Run in a thread; the list gets the result or the exception."""
    outcome: list = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_the_users_api_holds(make_manager, table):
    with make_manager() as manager:
        hold = manager.acquire(table)
        assert isinstance(hold, HeldLock)
        assert hold.resource == table.replace("s3a", "s3")
        hold.check()
        assert hold.is_valid()
        manager.release(table)
        with manager.acquire(table) as again:
            assert again.token > hold.token
            assert again.hold_id != hold.hold_id
        with pytest.raises(LockNotHeldError):
            manager.release(table)


def test_spellings_of_one_table_are_one_lock(make_manager, make_rival, table):
    bucket_and_path = table.removeprefix("s3a://lake")
    with make_rival().acquire(f"s3n://LAKE//{bucket_and_path}/"), pytest.raises(LockTimeoutError):
        make_manager().acquire(table, timeout_seconds=0)


def test_contender_tells_who_it_is(make_manager, table, eventually):
    manager = make_manager(job="nightly", app_id="application_1")
    with manager.acquire(table) as hold:
        (entry,) = manager.queue(table)
        assert entry.holds
        assert entry.data["job"] == "nightly"
        assert entry.data["app_id"] == "application_1"
        assert entry.data["pid"] == os.getpid()
        assert entry.data["requested_at"] <= hold.acquired_at
        eventually(lambda: manager.queue(table)[0].data.get("acquired_at") == hold.acquired_at)


def test_table_node_says_which_table_it_is(make_manager, table, node, ensemble_client):
    with make_manager().acquire(table):
        assert ensemble_client.get(node)[0] == b'{"uri": "%s"}' % table.replace("s3a", "s3").encode()


def test_first_come_first_served_with_rising_tokens(make_manager, table, eventually):
    manager = make_manager()
    served: list[tuple[int, int]] = []

    def queue_up(number: int) -> None:
        with manager.acquire(table) as hold:
            served.append((number, hold.token))

    first = manager.acquire(table)
    threads = []
    for number in range(20):
        threads.append(in_thread(lambda number=number: queue_up(number))[0])
        eventually(lambda number=number: len(manager.queue(table)) == number + 2)
    first.release()
    for thread in threads:
        thread.join()
    assert [number for number, _ in served] == list(range(20))
    tokens = [first.token] + [token for _, token in served]
    assert tokens == sorted(set(tokens))


def test_shared_holders_hold_together_and_exclude_an_exclusive_one(make_manager, table, eventually):
    manager = make_manager()
    readers = []
    for _ in range(3):
        thread, outcome = in_thread(lambda: manager.acquire(table, shared=True))
        thread.join()
        readers += outcome
    writer, outcome = in_thread(lambda: manager.acquire(table))
    eventually(lambda: len(manager.queue(table)) == 4)
    # A reader that comes after the writer waits for it: the writer is not starved.
    late, late_outcome = in_thread(lambda: manager.acquire(table, shared=True))
    eventually(lambda: len(manager.queue(table)) == 5)
    for reader in readers:
        assert not outcome
        reader.release()
    writer.join()
    assert not late_outcome
    outcome[0].release()
    late.join()
    late_outcome[0].release()


def test_one_release_wakes_one_waiter(make_manager, table, eventually):
    """No herd: the server itself counts the watches that deletions fire."""
    from lock_manager.testing.embedded import EmbeddedZooKeeper

    waiters = 20
    with EmbeddedZooKeeper() as own, ZookeeperLockManager(own.hosts) as manager:

        def counted() -> dict[str, float]:
            lines: list[str] = []
            while not lines:
                lines = own.servers[0].command(b"mntr").decode().splitlines()
            return {name: float(count) for name, count in (line.split("\t") for line in lines if "watch_count" in line)}

        def fired() -> float:
            return sum(count for name, count in counted().items() if name.startswith("zk_sum_"))

        first = manager.acquire(table)
        threads = [in_thread(lambda: manager.acquire(table).release())[0] for _ in range(waiters)]
        eventually(lambda: counted()["zk_watch_count"] == waiters)
        before = fired()
        first.release()
        for thread in threads:
            thread.join()
        assert fired() - before == waiters


@pytest.mark.full
def test_the_deadline_is_total_over_all_predecessors(make_manager, table, eventually):
    """Kazoo's recipe starts its time-out again for each predecessor; here the nearest leaves just before the end."""
    manager, between, waiting = make_manager(), make_manager(), make_manager()
    waiting.connect()
    with manager.acquire(table):
        nearest, _ = in_thread(lambda: between.acquire(table))
        eventually(lambda: len(manager.queue(table)) == 2)
        started = time.monotonic()
        waiter, result = in_thread(lambda: waiting.acquire(table, timeout_seconds=8))
        eventually(lambda: len(manager.queue(table)) == 3)
        eventually(lambda: time.monotonic() - started > 4)
        between.cancel(table)
        waiter.join()
        # Started again, it would end after 12 s at the earliest.
        assert time.monotonic() - started < 11
        assert isinstance(result[0], LockTimeoutError)
        assert result[0].ahead == 1
        nearest.join()


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 1e10, "5"])
def test_a_deadline_that_is_none_is_refused(make_manager, table, bad):
    manager = make_manager()
    with pytest.raises(SettingsError, match="timeout_seconds"):
        manager.acquire(table, timeout_seconds=bad)
    with manager.acquire(table) as hold, pytest.raises(SettingsError, match="timeout_seconds"):
        hold.check(timeout_seconds=bad)


def test_timeout_names_the_holder(make_manager, make_rival, table):
    waiting = make_manager()
    waiting.connect()
    with make_rival(job="compaction").acquire(table), pytest.raises(LockTimeoutError, match="compaction") as told:
        waiting.acquire(table, timeout_seconds=3)
    assert told.value.holder["pid"] == os.getpid()
    assert isinstance(told.value, TimeoutError)


def test_200_failed_acquires_leave_no_contender(
    make_manager, make_rival, table, node, ensemble_client, zookeeper, eventually
):
    """Time-outs, cancellations and interrupts at random moments; asserted on the server while all sessions live on."""
    choose = random.Random(7)
    holder = make_rival().acquire(table)
    manager = make_manager()
    manager.connect()
    outcomes: list[type] = []

    for _ in range(70):
        with pytest.raises(LockTimeoutError):
            manager.acquire(table, timeout_seconds=choose.choice([0, 0.001, 0.005, 0.02]))
        outcomes.append(LockTimeoutError)
    for _ in range(60):
        thread, outcome = in_thread(lambda: manager.acquire(table))
        pause = time.monotonic() + choose.random() * 0.02
        while time.monotonic() < pause or not manager.cancel(table):
            pass
        thread.join()
        outcomes.append(type(outcome[0]))
    assert set(outcomes) == {LockTimeoutError, LockCancelledError}

    interrupted = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), zookeeper.hosts, table],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert interrupted.stdout.readline().strip() == "70"
        # The process with 70 interrupts still lives, and so its session.
        eventually(lambda: len(contenders(ensemble_client, node)) == 1)
        (left,) = contenders(ensemble_client, node)
        assert ensemble_client.exists(f"{node}/{left}").czxid == holder.token
    finally:
        interrupted.communicate("end")
    holder.release()
    assert contenders(ensemble_client, node) == []


INTERRUPTED = """
    import random, signal, sys
    from lock_manager import ZookeeperLockManager

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    choose = random.Random(11)
    manager = ZookeeperLockManager(sys.argv[1], timeout_seconds=60)
    manager.connect()
    interrupts = 0
    while interrupts < 70:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + choose.random() * 0.02)
            manager.acquire(sys.argv[2])
        except KeyboardInterrupt:
            interrupts += 1
    print(interrupts, flush=True)
    sys.stdin.read()
    manager.close()
"""


def test_sigkilled_holder_lets_the_next_in_within_the_session_timeout(make_manager, table, zookeeper):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, zookeeper.hosts, table], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline().strip() == "held"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    killed_at = time.monotonic()
    with make_manager().acquire(table, timeout_seconds=60):
        # 4 s were asked for; the server rounds up to its next tick. The rest is room for a busy machine: a session that
        # nobody asked for has 30 s.
        assert time.monotonic() - killed_at < 20


HOLDER = """
import sys, time
from lock_manager import ZookeeperLockManager
hold = ZookeeperLockManager(sys.argv[1], session_timeout_seconds=4).acquire(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


def test_manager_shared_by_threads_serves_one_at_a_time(make_manager, table):
    manager = make_manager()
    inside, most = 0, 0
    guard = threading.Lock()

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(5):
            with manager.acquire(table):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)  # long enough for another thread to come in, if it could
                with guard:
                    inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most == 1


def test_nested_acquires_follow_one_order(make_manager):
    manager, mark = make_manager(), uuid.uuid4().hex
    low, high = f"s3://lake/{mark}/a", f"s3://lake/{mark}/b"
    with manager.acquire(low), manager.acquire(high):
        pass
    with manager.acquire(high), pytest.raises(LockOrderError, match="first"):
        manager.acquire(low)


def test_cancel_and_close_end_waiting(make_manager, table, eventually):
    manager = make_manager()
    with make_manager().acquire(table):
        thread, outcome = in_thread(lambda: manager.acquire(table))
        eventually(lambda: manager.cancel(table) == 1)
        thread.join()
        assert isinstance(outcome[0], LockCancelledError)
        thread, outcome = in_thread(lambda: manager.acquire(table))
        look = make_manager()
        eventually(lambda: len(look.queue(table)) == 2)
        manager.close()
        thread.join()
        assert isinstance(outcome[0], LockCancelledError)


def test_closed_manager_raises_and_its_locks_are_free(make_manager, table):
    manager = make_manager()
    hold = manager.acquire(table)
    manager.close()
    manager.close()
    assert not hold.is_valid()
    for call in (
        lambda: manager.acquire(table),
        lambda: manager.release(table),
        lambda: manager.queue(table),
    ):
        with pytest.raises(ClosedError):
            call()
    with pytest.raises((ClosedError, LockNotHeldError)):
        hold.check()
    make_manager().acquire(table, timeout_seconds=30).release()


def test_forked_child_raises_and_does_not_disturb_its_parent(zookeeper, table):
    done = subprocess.run(
        [sys.executable, "-c", FORK, zookeeper.hosts, table], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["ClosedError"] * 6 + ["child False CLOSED", "parent True CONNECTED"], (
        done.stderr
    )


FORK = """
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


def test_unreachable_ensemble_is_told_in_time():
    with ZookeeperLockManager("127.0.0.1:1", timeout_seconds=0.5) as manager:
        started = time.monotonic()
        with pytest.raises(EnsembleUnavailableError, match=r"127\.0\.0\.1:1") as told:
            manager.acquire("s3://lake/t")
        assert isinstance(told.value, ConnectionError)
        manager.close()
        assert time.monotonic() - started < 10


def test_unknown_lock_format_is_refused(zookeeper, ensemble_client, table):
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


def test_chroot_is_made_and_respected(zookeeper, ensemble_client, table):
    chroot = f"/{uuid.uuid4().hex}"
    with ZookeeperLockManager(f"{zookeeper.hosts}{chroot}") as manager, manager.acquire(table):
        assert ensemble_client.exists(table_node(chroot + ROOT, TableResource.of(table)))


def test_queue_node_made_by_kazoo_is_shared(make_manager, table, node, ensemble_client):
    root = f"/{uuid.uuid4().hex}"
    theirs = ensemble_client.WriteLock(table_node(root, TableResource.of(table)))
    theirs.acquire()
    theirs.release()
    make_manager(lock_root=root).acquire(table).release()


def test_body_exception_is_never_masked_by_a_lost_hold(make_manager, table, ensemble_client, node):
    manager = make_manager()

    def lose(name_of: str) -> None:
        for child in contenders(ensemble_client, name_of):
            ensemble_client.delete(f"{name_of}/{child}")

    with pytest.raises(ZeroDivisionError) as told, manager.acquire(table):
        lose(node)
        1 / 0  # noqa: B018
    assert "was lost" in told.value.__notes__[0]
    with pytest.raises(LockLostError, match="version 3, 4") as lost, manager.acquire(table) as hold:
        hold.record_commit(3)
        hold.record_commit(4)
        lose(node)
    assert lost.value.commits == {hold.resource: (3, 4)}
    assert lost.value.hold_id == hold.hold_id


def test_check_changes_nothing_and_finds_a_contender_that_is_gone(make_manager, table, node, ensemble_client):
    with make_manager().acquire(table) as hold:
        (name,) = contenders(ensemble_client, node)
        before = ensemble_client.exists(f"{node}/{name}")
        for _ in range(10):
            hold.check()
        after = ensemble_client.exists(f"{node}/{name}")
        # Since when it holds may have been written meanwhile, once; nothing else.
        assert after.version - before.version <= 1
        ensemble_client.delete(f"{node}/{name}")
        with pytest.raises(LockLostError, match="contender was gone"):
            hold.check()
        assert not hold.is_valid()
        with pytest.raises(LockLostError):
            hold.release()


def test_an_answer_that_proves_nothing_is_no_proof(make_manager, table, node, ensemble_client):
    with make_manager().acquire(table) as hold:
        (name,) = contenders(ensemble_client, node)
        ensemble_client.set_acls(f"{node}/{name}", [make_acl("world", "anyone", write=True)])
        with pytest.raises(EnsembleRefusedError, match="NoAuthError"):
            hold.check()


def test_a_contender_that_may_not_be_deleted_ends_with_its_session(
    make_manager, table, node, ensemble_client, eventually
):
    manager = make_manager()
    hold = manager.acquire(table)
    ensemble_client.set_acls(node, [make_acl("world", "anyone", read=True, create=True, admin=True)])
    with pytest.raises(EnsembleRefusedError):
        hold.release()
    eventually(lambda: contenders(ensemble_client, node) == [])
    ensemble_client.set_acls(node, OPEN_ACL_UNSAFE)
    manager.acquire(table, timeout_seconds=10).release()


def test_on_loss_is_not_called_for_a_release(make_manager, table, monkeypatch):
    """The keepalive may ask about a hold just as it is released."""
    monkeypatch.setattr("lock_manager.zookeeper.hold_state.ANNOUNCE_SECONDS", 0.002)
    manager = make_manager()
    lost: list[HeldLock] = []
    for _ in range(300):
        with manager.acquire(table) as hold:
            hold.on_loss(lost.append)
            while time.time() < hold.acquired_at + 0.002:
                pass
    manager.close()
    assert lost == []


def test_nothing_piles_up(make_manager, make_rival, table, eventually):
    manager = make_manager()
    manager.connect()
    with make_rival().acquire(table):
        for _ in range(20):
            with pytest.raises(LockTimeoutError):
                manager.acquire(table, timeout_seconds=0.05)
        assert not manager._session._watchers
        assert sum(len(watchers) for watchers in manager._session.client._child_watchers.values()) <= 1
    before = threading.active_count()
    for _ in range(5):
        with make_manager() as passing:
            passing.acquire(table).release()
    eventually(lambda: threading.active_count() <= before, what="the end of the threads of closed managers")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_manager_survives_the_end_of_kazoo_s_connection_thread(make_manager, table, eventually):
    manager = make_manager()
    hold = manager.acquire(table)

    def fail(*_: object) -> None:
        raise RuntimeError("an error code that kazoo does not know")

    manager._session.client._connection._read_response = fail
    eventually(lambda: hold.lost)
    manager.acquire(table, timeout_seconds=20).release()
