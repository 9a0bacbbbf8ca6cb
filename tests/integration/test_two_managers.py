"""Several managers of one ensemble in one process: what a thread holds counts, whichever of them gave it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lock_manager import (
    ClosedError,
    EnsembleUnavailableError,
    HeldLock,
    LockCancelledError,
    LockLostError,
    LockNotHeldError,
    LockOrderError,
    LockTimeoutError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import table_node
from tests.support.months import part

ROOT = "/locks/delta_tables"
NOWHERE = "127.0.0.1:1"
TURNS = 50


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def one(make_manager: Callable[..., ZookeeperLockManager]) -> ZookeeperLockManager:
    return make_manager()


@pytest.fixture
def other(make_manager: Callable[..., ZookeeperLockManager]) -> ZookeeperLockManager:
    """Another manager of the same ensemble, not connected yet."""
    return make_manager()


def take_all(manager: ZookeeperLockManager, *tables: str, seconds: float = 0) -> Callable[[], HeldLock]:
    return lambda: manager.acquire_all(tables, timeout_seconds=seconds)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do it in a thread that holds nothing."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.parametrize("connected", [True, False])
def test_another_manager_gives_the_very_same_hold(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str, *, connected: bool
) -> None:
    if connected:
        other.connect()
    with one.acquire(table) as outer:
        with other.acquire(table, timeout_seconds=0) as inner:
            assert inner is outer
            with one.acquire(table, timeout_seconds=0) as third:
                assert third is outer
        outer.check()
        assert len(one.queue(table)) == 1
    assert one.queue(table) == []


def test_another_manager_refuses_what_would_be_refused_in_one(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str, guard_said_to_be_there: None
) -> None:
    low, high = f"{table}/a", f"{table}/b"
    with one.acquire(high), pytest.raises(LockOrderError, match=f"{low} first"):
        other.acquire(low)
    with one.acquire(low), other.acquire(high), pytest.raises(LockOrderError, match="together with other tables"):
        other.acquire_all([low, f"{table}/c"])
    with one.acquire(table, shared=True), pytest.raises(LockOrderError, match="exclusive lock from the start"):
        other.acquire(table)
    with one.acquire(table, partitions=[part(2013)]):
        with other.acquire(table, partitions=[part(2013, 1)]):
            pass
        with pytest.raises(LockOrderError, match="all of it at once"):
            other.acquire(table)


def test_a_partition_of_a_table_that_another_manager_holds_needs_no_guard(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str
) -> None:
    with one.acquire(table) as outer, other.acquire(table, partitions=[part(2013)]) as inner:
        assert inner is outer


class Pairs:
    """Two threads with two managers each, that take two tables in opposite orders at the same time."""

    def __init__(self, make_manager: Callable[..., ZookeeperLockManager], table: str, **settings: Any) -> None:
        self._managers = [(make_manager(**settings), make_manager(**settings)) for _ in range(2)]
        for manager in (each for pair in self._managers for each in pair):
            manager.connect()
        self._tables = [f"{table}/a", f"{table}/b"]
        self._start = threading.Barrier(2, timeout=60)
        self._both_have_one = threading.Barrier(2, timeout=60)
        self.outcomes: Counter[str] = Counter()

    def turn(self, *, both_have_one: bool = False) -> None:
        with ThreadPoolExecutor(2) as pool:
            self.outcomes.update(
                pool.map(lambda number: self._take_both(number, both_have_one=both_have_one), range(2))
            )

    def _take_both(self, number: int, *, both_have_one: bool) -> str:
        first, second = self._managers[number]
        mine, theirs = self._tables if number == 0 else self._tables[::-1]
        self._start.wait()
        with first.acquire(mine):
            if both_have_one:
                self._both_have_one.wait()
            try:
                with second.acquire(theirs):
                    return "both"
            except (LockOrderError, LockTimeoutError) as error:
                return type(error).__name__


@pytest.mark.parametrize("both_have_one", [False, True])
def test_two_threads_with_two_managers_each_never_wait_for_each_other(
    make_manager: Callable[..., ZookeeperLockManager], table: str, *, both_have_one: bool
) -> None:
    pairs = Pairs(make_manager, table)
    for _ in range(TURNS):
        pairs.turn(both_have_one=both_have_one)
    assert pairs.outcomes == {"both": TURNS, "LockOrderError": TURNS}


def test_negative_control_managers_that_know_their_own_holds_only_wait_until_their_deadlines(
    make_manager: Callable[..., ZookeeperLockManager], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ZookeeperLockManager._held_by
    monkeypatch.setattr(
        ZookeeperLockManager, "_held_by",
        lambda self, thread: [hold for hold in every(self, thread) if hold in self._holds],
    )  # fmt: skip
    one, other = make_manager(), make_manager()
    with one.acquire(table), pytest.raises(LockTimeoutError):
        other.acquire(table, timeout_seconds=0)
    pairs = Pairs(make_manager, table, timeout_seconds=5)
    pairs.turn(both_have_one=True)
    assert pairs.outcomes["LockTimeoutError"] >= 1
    assert pairs.outcomes["LockOrderError"] == 0


def test_host_lists_and_members_of_one_ensemble_are_one(table: str) -> None:
    with EmbeddedZooKeeper(servers=3) as ensemble:
        members = [server.address for server in ensemble.servers]
        by_name = members[2].replace("127.0.0.1", "localhost")
        spelled = [members[0], members[1], ",".join(members), ",".join(reversed(members)), by_name]
        managers = [ZookeeperLockManager(hosts, 30) for hosts in spelled]
        try:
            for giver, asked in itertools.permutations(managers, 2):
                with giver.acquire(table) as outer, asked.acquire(table, timeout_seconds=0) as inner:
                    assert inner is outer
        finally:
            for manager in managers:
                manager.close()


def test_a_chroot_and_a_lock_root_that_are_one_place_are_one(zookeeper: Any, ensemble_client: Any, table: str) -> None:
    chroot = f"/{uuid.uuid4().hex}"
    ensemble_client.ensure_path(chroot)
    with (
        ZookeeperLockManager(f"{zookeeper.hosts}{chroot}", 30) as one,
        ZookeeperLockManager(zookeeper.hosts, 30, lock_root=chroot + ROOT) as other,
        one.acquire(table) as outer,
        other.acquire(table, timeout_seconds=0) as inner,
    ):
        assert inner is outer


def test_other_lock_roots_and_other_ensembles_have_nothing_to_do_with_it(
    one: ZookeeperLockManager, make_manager: Callable[..., ZookeeperLockManager], table: str
) -> None:
    """As `adopt --move` holds the lock of one table in two ensembles."""
    with EmbeddedZooKeeper() as second, ZookeeperLockManager(second.hosts, 30) as there:
        beside = make_manager(lock_root=f"/{uuid.uuid4().hex}")
        with one.acquire(table) as first:
            for manager in (there, beside):
                with manager.acquire(table, timeout_seconds=0) as hold:
                    assert hold is not first
                    assert hold.ensemble_id != first.ensemble_id
                    # Nor is there an order between ensembles.
                    with manager.acquire(table + "x", timeout_seconds=0):
                        pass
                    with one.acquire(table, timeout_seconds=0) as again, manager.acquire(table) as inner:
                        assert (again, inner) == (first, hold)
                manager.acquire(table[:-1], timeout_seconds=0).release()


def test_what_another_manager_holds_in_another_thread_is_waited_for(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str
) -> None:
    hold = elsewhere(take_all(one, table))
    with pytest.raises(LockTimeoutError):
        other.acquire(table, timeout_seconds=0)
    hold.release()
    other.acquire(table, timeout_seconds=0).release()


def test_closing_the_manager_that_did_not_give_it_ends_nothing(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str
) -> None:
    with one.acquire(table) as outer:
        with other.acquire(table):
            other.close()
            outer.check()
        outer.check()
        with pytest.raises(ClosedError):
            other.acquire(table)
        with pytest.raises(ClosedError):
            other.release(table)
    assert one.queue(table) == []


def test_closing_the_manager_that_gave_it_ends_it_for_all(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str
) -> None:
    with pytest.raises(LockLostError, match="the manager that gave it was closed"):
        with one.acquire(table), other.acquire(table):
            one.close()
    # What is over is not given again.
    with other.acquire(table, timeout_seconds=5) as hold:
        hold.check()
    one_more = other.acquire(table)
    other.close()
    with pytest.raises((ClosedError, LockNotHeldError)):
        one_more.release()


def test_a_hold_that_is_lost_is_asked_for_anew(
    one: ZookeeperLockManager, other: ZookeeperLockManager, ensemble_client: Any, table: str
) -> None:
    node = table_node(ROOT, TableResource.of(table))
    lost = one.acquire(table)
    other.acquire(table)
    for name in ensemble_client.get_children(node):
        if "lock__" in name:
            ensemble_client.delete(f"{node}/{name}")
    with pytest.raises(LockLostError):
        lost.check()
    with other.acquire(table, timeout_seconds=5) as hold:
        assert hold is not lost
    # It was entered twice: the last to give it back is told.
    other.release(table)
    with pytest.raises(LockLostError):
        other.release(table)
    assert one.queue(table) == []


def test_released_is_released_through_any_of_them(
    one: ZookeeperLockManager, other: ZookeeperLockManager, table: str
) -> None:
    hold = one.acquire(table)
    with pytest.raises(LockNotHeldError, match="not held"):
        elsewhere(lambda: other.release(table))
    other.acquire(table)
    other.release(table)
    hold.check()
    other.release(table)
    assert one.queue(table) == []
    for manager in (one, other):
        with pytest.raises(LockNotHeldError):
            manager.release(table)
    # By another thread: the manager that gave it, or the hold itself.
    for through_manager in (True, False):
        hold = one.acquire(table)
        elsewhere((lambda: one.release(table)) if through_manager else hold.release)
        with other.acquire(table, timeout_seconds=0) as new:
            assert new is not hold


def test_the_settings_of_the_manager_that_gave_it_count(
    make_manager: Callable[..., ZookeeperLockManager], eventually: Callable[..., None], table: str
) -> None:
    short, long = make_manager(max_hold_seconds=1), make_manager(max_hold_seconds=3600)
    with long.acquire(table) as hold, short.acquire(table):
        assert hold._hold_state._ends_at > time.monotonic() + 3000
    hold = short.acquire(table)
    assert long.acquire(table) is hold
    eventually(lambda: hold.lost)
    with pytest.raises(LockLostError, match="max_hold_seconds=1"):
        hold.check()


def test_a_manager_that_is_not_connected_connects_first_within_the_deadline(
    one: ZookeeperLockManager, eventually: Callable[..., None], table: str
) -> None:
    with ZookeeperLockManager(NOWHERE) as nowhere, one.acquire(table) as hold:
        with pytest.raises(EnsembleUnavailableError):
            nowhere.acquire(table, timeout_seconds=0.3)
        cancelled = []
        threading.Thread(
            target=lambda: cancelled.append(eventually(lambda: nowhere.cancel(table) == 1)), daemon=True
        ).start()
        with pytest.raises(LockCancelledError):
            nowhere.acquire(table, timeout_seconds=60)
        threading.Thread(
            target=lambda: (eventually(lambda: nowhere._acquisitions), nowhere.close()), daemon=True
        ).start()
        with pytest.raises(LockCancelledError):
            nowhere.acquire(table, timeout_seconds=60)
        hold.check()


def test_ctrl_c_while_it_connects_changes_nothing(zookeeper: Any, table: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, zookeeper.hosts, NOWHERE, table],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["interrupted", "stands", "again"], done.stderr


INTERRUPTED = """
import signal, sys, threading, time
from lock_manager import ZookeeperLockManager
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
one, nowhere, table = ZookeeperLockManager(sys.argv[1], 30), ZookeeperLockManager(sys.argv[2], 600), sys.argv[3]
hold = one.acquire(table)
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    nowhere.acquire(table)
except KeyboardInterrupt:
    print("interrupted")
assert nowhere._acquisitions == []
hold.check()
print("stands")
with ZookeeperLockManager(sys.argv[1]) as other, other.acquire(table, timeout_seconds=0) as inner:
    assert inner is hold
print("again")
hold.release()
"""


def test_an_outage_does_not_keep_a_thread_from_what_it_has(one: ZookeeperLockManager, table: str) -> None:
    with EmbeddedZooKeeper() as server:
        first, second = (ZookeeperLockManager(server.hosts, 30, session_timeout_seconds=20) for _ in range(2))
        second.connect()
        hold = first.acquire(table)
        server.servers[0].pause()
        try:
            assert second.acquire(table, timeout_seconds=0) is hold
        finally:
            server.servers[0].resume()
        second.close()
        first.close()


def test_a_forked_child_holds_nothing_of_its_parent(zookeeper: Any, table: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, zookeeper.hosts, table], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["waits", "other", "stands"], done.stderr


FORK = """
import os, sys
from lock_manager import LockTimeoutError, ZookeeperLockManager
one, table = ZookeeperLockManager(sys.argv[1]), sys.argv[2]
hold = one.acquire(table)
if os.fork() == 0:
    with ZookeeperLockManager(sys.argv[1]) as mine:
        try:
            mine.acquire(table, timeout_seconds=0)
        except LockTimeoutError:
            print("waits", flush=True)
        with mine.acquire(table[:-1], timeout_seconds=0):
            print("other", flush=True)
    os._exit(0)
os.wait()
hold.check()
print("stands")
one.close()
"""


def test_nothing_is_kept_of_what_is_over(
    one: ZookeeperLockManager, make_manager: Callable[..., ZookeeperLockManager], table: str
) -> None:
    import gc
    import weakref

    left: list[weakref.ref[Any]] = []

    def work(number: int) -> None:
        left.append(weakref.ref(threading.current_thread()))
        with make_manager() as passing:
            hold = passing.acquire(f"{table}/{number}")
            left.append(weakref.ref(hold))
            with one.acquire(f"{table}/{number}"):
                pass
            if number % 2:
                # Lost, and never given back.
                hold._hold_state.lose("in a test")
            elif number % 4:
                hold.release()

    for number in range(8):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
    del thread
    gc.collect()
    assert [each() for each in left if each() is not None] == []
