"""Empty partitions are removed, and no newcomer is harmed: against a real server."""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from lock_manager import (
    EnsembleUnavailableError,
    LockTimeoutError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.zookeeper.empty_znodes import EmptyZnodes
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.znodes import table_node
from tests.support.months import part
from tests.support.rivals import RivalManager

pytestmark = pytest.mark.usefixtures("guard_said_to_be_there")

ROOT = "/locks/delta_tables"
MANAGERS, THREADS, ROUNDS, YEARS, MONTHS = 4, 8, 25, 25, 12


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def node(table: str) -> str:
    return table_node(ROOT, TableResource.of(table))


@pytest.fixture
def make_manager(make_manager: Callable[..., ZookeeperLockManager]) -> Callable[..., ZookeeperLockManager]:
    """With more patience: partitions are removed all the time."""
    return lambda **settings: make_manager(**{"timeout_seconds": 60, **settings})


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove without any patience."""
    monkeypatch.setattr("lock_manager.zookeeper.empty_znodes.IDLE_SECONDS", 0.0)


def has_partitions(client: KazooClient, node: str) -> bool:
    return "partitions" in client.get_children(node)


class Work:
    """Threads of several managers that lock random partitions and count, in plain Python, what only a holder may."""

    def __init__(self, managers: list[ZookeeperLockManager], table: str, seed: int) -> None:
        self.managers, self.table, self.seed = managers, table, seed
        self.counted: Counter[tuple[int, int]] = Counter()
        self.expected: Counter[tuple[int, int]] = Counter()
        self._inside: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for done in Counter[tuple[int, int]](), *pool.map(self._work, range(THREADS)):
                self.expected += done

    def _work(self, number: int) -> Counter[tuple[int, int]]:
        choose = random.Random(f"{self.seed}-{number}")
        done: Counter[tuple[int, int]] = Counter()
        for turn in range(ROUNDS):
            # Every third time one that others want, too.
            year = choose.randrange(YEARS) if turn % 3 else 0
            months = sorted(choose.sample(range(MONTHS), choose.randint(1, 3)))
            wanted = [part(year, month) for month in months] if turn % 5 else [part(year)]
            taken = [(year, month) for month in (months if turn % 5 else range(MONTHS))]
            with self.managers[number % len(self.managers)].acquire(self.table, partitions=wanted):
                for each in taken:
                    assert self._inside.setdefault(each, number) == number, f"two hold {each}"
                before = [self.counted[each] for each in taken]
                threading.Event().wait(choose.random() * 0.002)
                for each, count in zip(taken, before, strict=True):
                    self.counted[each] = count + 1
                    del self._inside[each]
            done.update(taken)
        return done


@pytest.mark.usefixtures("at_once")
def test_partitions_that_are_removed_all_the_time_exclude_as_ever_and_none_is_left(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    node: str,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    made_again = Counter[str]()
    make = Acquisition._make_queues

    def counted(attempt: Acquisition) -> None:
        made_again.update(each.path for each in attempt._request.queues)
        make(attempt)

    monkeypatch.setattr(Acquisition, "_make_queues", counted)
    work = Work([make_manager() for _ in range(MANAGERS)], table, seed=random.randrange(2**32))
    work.run()
    assert work.counted == work.expected, f"seed {work.seed}"
    assert sum(work.expected.values()) >= THREADS * ROUNDS
    assert max(made_again.values()) > 2, "nothing was removed meanwhile"
    eventually(lambda: not has_partitions(ensemble_client, node))
    assert sorted(ensemble_client.get_children(node)) == ["intents"]


@pytest.mark.usefixtures("at_once")
def test_negative_control_without_making_paths_again_nobody_gets_in(
    make_manager: Callable[..., ZookeeperLockManager], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = Acquisition._make_queues, set[str]()

    def only_once(attempt: Acquisition) -> None:
        paths = {each.path for each in attempt._request.queues}
        if not paths <= made:
            made.update(paths)
            make(attempt)

    monkeypatch.setattr(Acquisition, "_make_queues", only_once)
    # A server that all ask again and again may owe the last answer for longer than it is waited for.
    with pytest.raises((LockTimeoutError, EnsembleUnavailableError)):
        Work([make_manager(timeout_seconds=3) for _ in range(MANAGERS)], table, seed=1).run()


def test_what_is_used_stays_and_what_is_idle_goes(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    node: str,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    monkeypatch.setattr("lock_manager.zookeeper.empty_znodes.IDLE_SECONDS", 0.1)
    manager, other = make_manager(), make_manager()
    idle, used = f"{node}/partitions/year=2012", f"{node}/partitions/year=2013/partitions/month=1"
    remove_due, lives = EmptyZnodes.remove_due, list[int]()

    def remove_after_use(empty_znodes: EmptyZnodes) -> None:
        if empty_znodes is not manager._cleanup._empty_znodes:
            return empty_znodes._postpone()
        # Another manager's use counts, too.
        other.acquire(table, partitions=[part(2013, 1)]).release()
        lives.append(ensemble_client.exists(used).czxid)
        return remove_due(empty_znodes)

    with monkeypatch.context() as patch:
        patch.setattr(EmptyZnodes, "remove_due", remove_after_use)
        manager.acquire(table, partitions=[part(2012, 1), part(2013, 1)]).release()
        life = ensemble_client.exists(used).czxid
        # The two are due at almost the same moment: a round looks at either, or at both.
        eventually(lambda: ensemble_client.exists(idle) is None and len(lives) > 6)
        assert ensemble_client.exists(used).czxid == life
    assert set(lives) == {life}
    eventually(lambda: not has_partitions(ensemble_client, node))


def test_closing_removes_what_was_used_but_not_what_is_held(
    make_manager: Callable[..., ZookeeperLockManager],
    make_rival: Callable[..., RivalManager],
    table: str,
    node: str,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How soon closing gives up on a slow server is not what this test shows.
    monkeypatch.setattr("lock_manager.zookeeper.empty_znodes.CLOSE_SECONDS", 30.0)
    manager, other = make_manager(), make_rival()
    held = other.acquire(table, partitions=[part(2013, 2)])
    manager.acquire(table, partitions=[part(2013, 1), part(2014)]).release()
    with pytest.raises(LockTimeoutError):
        manager.acquire(table, partitions=[part(2013, 2), part(2015)], timeout_seconds=0)
    manager.close()
    assert ensemble_client.get_children(f"{node}/partitions") == ["year=2013"]
    assert ensemble_client.get_children(f"{node}/partitions/year=2013/partitions") == ["month=2"]
    held.check()
    held.release()
    other.close()
    assert not has_partitions(ensemble_client, node)


def test_what_the_dead_left_is_found_by_who_uses_the_table(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    node: str,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    for left in ("year=2001/partitions/month=1", "year=2002", "year=2003/partitions"):
        ensemble_client.ensure_path(f"{node}/partitions/{left}")
    monkeypatch.setattr("lock_manager.zookeeper.empty_znodes.IDLE_SECONDS", 0.1)
    manager = make_manager()
    manager.acquire(table, partitions=[part(2013, 1)]).release()
    eventually(lambda: not has_partitions(ensemble_client, node))


def test_a_path_that_is_half_removed_is_made_whole_by_who_waits_in_it(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    node: str,
    ensemble_client: KazooClient,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., None],
) -> None:
    """Who waits for the table has given up his places behind it: their queues may be gone when he goes on."""
    first, second = make_manager(), make_manager()
    caplog.set_level(logging.WARNING)
    for removed in (1, 2, 3, 4):
        held = first.acquire(table)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(second.acquire, table, partitions=[part(2013, 1)])
            eventually(lambda: len(first.queue(table)) == 2)
            gone = f"{node}/partitions/year=2013/partitions/month=1"
            eventually(lambda gone=gone: ensemble_client.exists(gone) and not ensemble_client.get_children(gone))
            for _ in range(removed):
                ensemble_client.delete(gone)
                gone = gone.rpartition("/")[0]
            held.release()
            with waiting.result(30) as hold:
                hold.check()
                assert len(hold.tokens) == 3
    assert caplog.messages == []
