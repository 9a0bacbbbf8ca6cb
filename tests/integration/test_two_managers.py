"""Several managers of one ensemble in one process: each of them returns the hold of the calling thread."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from lock_manager import (
    ClosedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockLostError,
    LockNotHeldError,
    LockOrderError,
    LockTimeoutError,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedZooKeeper
from tests.support.lock_znodes import LOCK_ROOT, LockZnodes
from tests.support.months import part
from tests.support.new_thread import in_new_thread

NOWHERE = "127.0.0.1:1"
ROUNDS = 50


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def second_manager(make_manager: Callable[..., ZookeeperLockManager]) -> ZookeeperLockManager:
    """Another manager of the same ensemble, not connected yet."""
    return make_manager()


@pytest.mark.parametrize("is_connected", [True, False])
def test_another_manager_returns_the_same_hold(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str, *, is_connected: bool
) -> None:
    if is_connected:
        second_manager.connect()
    with manager.acquire(table) as outer:
        with second_manager.acquire(table, timeout_seconds=0) as inner:
            assert inner is outer
            with manager.acquire(table, timeout_seconds=0) as innermost:
                assert innermost is outer
        outer.check()
        assert len(manager.queue(table)) == 1
    assert manager.queue(table) == []


def test_another_manager_refuses_the_same_requests(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str, guard_declared: None
) -> None:
    low, high = f"{table}/a", f"{table}/b"
    with manager.acquire(high), pytest.raises(LockOrderError, match=f"{low} first"):
        second_manager.acquire(low)
    with manager.acquire(low), second_manager.acquire(high):
        with pytest.raises(LockOrderError, match="together with other tables"):
            second_manager.acquire_all([low, f"{table}/c"])
    with manager.acquire(table, shared=True), pytest.raises(LockOrderError, match="exclusive lock from the start"):
        second_manager.acquire(table)
    with manager.acquire(table, partitions=[part(2013)]):
        with second_manager.acquire(table, partitions=[part(2013, 1)]):
            pass
        with pytest.raises(LockOrderError, match="all of it at once"):
            second_manager.acquire(table)


def test_a_partition_of_a_held_table_needs_no_guard(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str
) -> None:
    with manager.acquire(table) as outer, second_manager.acquire(table, partitions=[part(2013)]) as inner:
        assert inner is outer


class OppositeOrders:
    """Two threads with two managers each, which acquire two tables in opposite orders at the same time."""

    def __init__(self, make_manager: Callable[..., ZookeeperLockManager], table: str, **settings: Any) -> None:
        self._managers = [(make_manager(**settings), make_manager(**settings)) for _ in range(2)]
        for manager in itertools.chain(*self._managers):
            manager.connect()
        self._tables = [f"{table}/a", f"{table}/b"]
        self._start = threading.Barrier(2, timeout=60)
        self._first_acquired = threading.Barrier(2, timeout=60)
        self.outcomes: Counter[str] = Counter()

    def play_round(self, *, hold_first: bool = False) -> None:
        """Let each thread acquire both tables; with ``hold_first`` both hold one before they request the other."""
        with ThreadPoolExecutor(2) as pool:
            self.outcomes.update(pool.map(lambda number: self._acquire_tables(number, hold_first=hold_first), range(2)))

    def _acquire_tables(self, number: int, *, hold_first: bool) -> str:
        first_manager, second_manager = self._managers[number]
        first_table, second_table = self._tables if number == 0 else self._tables[::-1]
        self._start.wait()
        with first_manager.acquire(first_table):
            if hold_first:
                self._first_acquired.wait()
            try:
                with second_manager.acquire(second_table):
                    return "acquired"
            except (LockOrderError, LockTimeoutError) as error:
                return type(error).__name__


@pytest.mark.parametrize("hold_first", [False, True])
def test_two_threads_with_two_managers_never_deadlock(
    make_manager: Callable[..., ZookeeperLockManager], table: str, *, hold_first: bool
) -> None:
    threads = OppositeOrders(make_manager, table)
    for _ in range(ROUNDS):
        threads.play_round(hold_first=hold_first)
    assert threads.outcomes == {"acquired": ROUNDS, "LockOrderError": ROUNDS}


def test_negative_control_managers_that_know_only_their_holds_time_out(
    make_manager: Callable[..., ZookeeperLockManager], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_holds_of = ZookeeperLockManager._holds_of
    monkeypatch.setattr(
        ZookeeperLockManager, "_holds_of",
        lambda self, thread: [hold for hold in all_holds_of(self, thread) if hold in self._holds],
    )  # fmt: skip
    with make_manager().acquire(table), pytest.raises(LockTimeoutError):
        make_manager().acquire(table, timeout_seconds=0)
    threads = OppositeOrders(make_manager, table, timeout_seconds=3)
    threads.play_round(hold_first=True)
    assert threads.outcomes["LockTimeoutError"] >= 1
    assert threads.outcomes["LockOrderError"] == 0


def test_host_lists_of_one_ensemble_share_holds(table: str) -> None:
    with EmbeddedZooKeeper(servers=3) as ensemble, ExitStack() as stack:
        members = [server.address for server in ensemble.servers]
        address_by_name = members[2].replace("127.0.0.1", "localhost")
        host_lists = [members[0], members[1], ",".join(members), ",".join(reversed(members)), address_by_name]
        managers = [stack.enter_context(ZookeeperLockManager(hosts, 30)) for hosts in host_lists]
        for manager, second_manager in itertools.permutations(managers, 2):
            with manager.acquire(table) as outer, second_manager.acquire(table, timeout_seconds=0) as inner:
                assert inner is outer


def test_a_chroot_and_an_equal_lock_root_share_holds(zookeeper: Any, ensemble_client: Any, table: str) -> None:
    chroot = f"/{uuid.uuid4().hex}"
    ensemble_client.ensure_path(chroot)
    with (
        ZookeeperLockManager(f"{zookeeper.hosts}{chroot}", 30) as manager,
        ZookeeperLockManager(zookeeper.hosts, 30, lock_root=chroot + LOCK_ROOT) as second_manager,
        manager.acquire(table) as outer,
        second_manager.acquire(table, timeout_seconds=0) as inner,
    ):
        assert inner is outer


def test_other_lock_roots_and_ensembles_are_independent(
    manager: ZookeeperLockManager, make_manager: Callable[..., ZookeeperLockManager], table: str
) -> None:
    """``adopt --move`` holds the lock of one table in two ensembles."""
    with EmbeddedZooKeeper() as ensemble, ZookeeperLockManager(ensemble.hosts, 30) as manager_of_ensemble:
        manager_of_root = make_manager(lock_root=f"/{uuid.uuid4().hex}")
        with manager.acquire(table) as hold:
            for independent_manager in (manager_of_ensemble, manager_of_root):
                with independent_manager.acquire(table, timeout_seconds=0) as second_hold:
                    assert second_hold is not hold
                    assert second_hold.ensemble_id != hold.ensemble_id
                    # Tables of independent managers have no common order.
                    with independent_manager.acquire(table + "x", timeout_seconds=0):
                        pass
                    with (
                        manager.acquire(table, timeout_seconds=0) as inner,
                        independent_manager.acquire(table) as second_inner,
                    ):
                        assert (inner, second_inner) == (hold, second_hold)
                independent_manager.acquire(table[:-1], timeout_seconds=0).release()


def test_another_manager_waits_for_the_hold_of_another_thread(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str
) -> None:
    hold = in_new_thread(manager.acquire, table, timeout_seconds=0).result()
    with pytest.raises(LockTimeoutError):
        second_manager.acquire(table, timeout_seconds=0)
    hold.release()
    second_manager.acquire(table, timeout_seconds=0).release()


def test_closing_another_manager_keeps_the_hold(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str
) -> None:
    with manager.acquire(table) as outer:
        with second_manager.acquire(table):
            second_manager.close()
            outer.check()
        outer.check()
        with pytest.raises(ClosedError):
            second_manager.acquire(table)
        with pytest.raises(ClosedError):
            second_manager.release(table)
    assert manager.queue(table) == []


def test_closing_the_manager_of_a_hold_ends_it_for_all(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str
) -> None:
    with pytest.raises(LockLostError, match="the manager that granted it was closed"):
        with manager.acquire(table), second_manager.acquire(table):
            manager.close()
    # The other manager does not return the lost hold.
    with second_manager.acquire(table, timeout_seconds=5) as hold:
        hold.check()
    hold = second_manager.acquire(table)
    second_manager.close()
    with pytest.raises((ClosedError, LockNotHeldError)):
        hold.release()


def test_a_lost_hold_is_acquired_again(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, ensemble_client: Any, table: str
) -> None:
    lost_hold = manager.acquire(table)
    second_manager.acquire(table)
    LockZnodes(ensemble_client, table).delete_contenders()
    with pytest.raises(LockLostError):
        lost_hold.check()
    with second_manager.acquire(table, timeout_seconds=5) as hold:
        assert hold is not lost_hold
    # The lost hold was acquired twice. Its second release raises.
    second_manager.release(table)
    with pytest.raises(LockLostError):
        second_manager.release(table)
    assert manager.queue(table) == []


def test_each_manager_can_release_the_hold(
    manager: ZookeeperLockManager, second_manager: ZookeeperLockManager, table: str
) -> None:
    hold = manager.acquire(table)
    with pytest.raises(LockNotHeldError, match="not held"):
        in_new_thread(second_manager.release, table).result()
    second_manager.acquire(table)
    second_manager.release(table)
    hold.check()
    second_manager.release(table)
    assert manager.queue(table) == []
    for releasing_manager in (manager, second_manager):
        with pytest.raises(LockNotHeldError):
            releasing_manager.release(table)
    # Another thread can release the hold: through the manager that acquired it, or through the hold itself.
    for through_manager in (True, False):
        hold = manager.acquire(table)
        in_new_thread((lambda: manager.release(table)) if through_manager else hold.release).result()
        with second_manager.acquire(table, timeout_seconds=0) as next_hold:
            assert next_hold is not hold


def test_the_settings_of_the_acquiring_manager_apply(
    make_manager: Callable[..., ZookeeperLockManager], eventually: Callable[..., None], table: str
) -> None:
    short_manager, long_manager = make_manager(max_hold_seconds=1), make_manager(max_hold_seconds=3600)
    with long_manager.acquire(table) as hold, short_manager.acquire(table):
        assert hold._life.ends_at > time.monotonic() + 3000
    hold = short_manager.acquire(table)
    assert long_manager.acquire(table) is hold
    eventually(lambda: hold.lost)
    with pytest.raises(LockLostError, match="max_hold_seconds=1"):
        hold.check()


def test_a_deadline_cancel_or_close_ends_connecting(
    manager: ZookeeperLockManager, eventually: Callable[..., None], table: str
) -> None:
    with ZookeeperLockManager(NOWHERE) as unreachable_manager, manager.acquire(table) as hold:
        with pytest.raises(EnsembleUnavailableError):
            unreachable_manager.acquire(table, timeout_seconds=0.3)

        def close() -> None:
            eventually(lambda: unreachable_manager._acquisitions)
            unreachable_manager.close()

        for end_the_wait in (lambda: eventually(lambda: unreachable_manager.cancel(table) == 1), close):
            pending_end = in_new_thread(end_the_wait)
            with pytest.raises(LockCancelledError):
                unreachable_manager.acquire(table, timeout_seconds=60)
            pending_end.result()
        hold.check()


def run_program(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_a_manager_connects_changes_nothing(zookeeper: Any, table: str) -> None:
    process = run_program(INTERRUPTED_PROGRAM, zookeeper.hosts, NOWHERE, table)
    assert process.stdout.split() == ["interrupted", "stands", "again"], process.stderr


INTERRUPTED_PROGRAM = """
import signal, sys, threading, time
from lock_manager import ZookeeperLockManager
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
manager, unreachable, table = ZookeeperLockManager(sys.argv[1], 30), ZookeeperLockManager(sys.argv[2], 600), sys.argv[3]
hold = manager.acquire(table)
signal.setitimer(signal.ITIMER_REAL, 0.5)
try:
    unreachable.acquire(table)
except KeyboardInterrupt:
    print("interrupted")
assert unreachable._acquisitions == []
hold.check()
print("stands")
with ZookeeperLockManager(sys.argv[1]) as second_manager, second_manager.acquire(table, timeout_seconds=0) as inner:
    assert inner is hold
print("again")
hold.release()
"""


def test_a_thread_gets_its_hold_again_in_an_outage(table: str) -> None:
    with (
        EmbeddedZooKeeper() as ensemble,
        ZookeeperLockManager(ensemble.hosts, 30, session_timeout_seconds=20) as manager,
        ZookeeperLockManager(ensemble.hosts, 30, session_timeout_seconds=20) as second_manager,
    ):
        second_manager.connect()
        hold = manager.acquire(table)
        ensemble.servers[0].pause()
        try:
            assert second_manager.acquire(table, timeout_seconds=0) is hold
        finally:
            ensemble.servers[0].resume()


def test_a_forked_child_holds_no_lock_of_its_parent(zookeeper: Any, table: str) -> None:
    process = run_program(FORKING_PROGRAM, zookeeper.hosts, table)
    assert process.stdout.split() == ["waits", "other", "stands"], process.stderr


FORKING_PROGRAM = """
import os, sys
from lock_manager import LockTimeoutError, ZookeeperLockManager
manager, table = ZookeeperLockManager(sys.argv[1]), sys.argv[2]
hold = manager.acquire(table)
if os.fork() == 0:
    with ZookeeperLockManager(sys.argv[1]) as manager_of_child:
        try:
            manager_of_child.acquire(table, timeout_seconds=0)
        except LockTimeoutError:
            print("waits", flush=True)
        with manager_of_child.acquire(table[:-1], timeout_seconds=0):
            print("other", flush=True)
    os._exit(0)
os.wait()
hold.check()
print("stands")
manager.close()
"""


def test_ended_holds_and_threads_are_garbage_collected(
    manager: ZookeeperLockManager, make_manager: Callable[..., ZookeeperLockManager], table: str
) -> None:
    references: list[weakref.ref[Any]] = []

    def acquire_and_end(number: int) -> None:
        references.append(weakref.ref(threading.current_thread()))
        with make_manager() as short_lived_manager:
            hold = short_lived_manager.acquire(f"{table}/{number}")
            references.append(weakref.ref(hold))
            with manager.acquire(f"{table}/{number}"):
                pass
            if number % 2:
                # The hold is lost and never released.
                hold._life.lose("in a test")
            elif number % 4:
                hold.release()

    for number in range(8):
        thread = threading.Thread(target=acquire_and_end, args=(number,))
        thread.start()
        thread.join()
    del thread
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
