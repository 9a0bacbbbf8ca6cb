"""The znodes of unused partitions are removed, and locks still exclude each other, on a real server."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from lock_manager import EnsembleUnavailableError, LockTimeoutError, ZookeeperLockManager
from lock_manager.zookeeper.empty_znodes import EmptyZnodes
from lock_manager.zookeeper.queue import Acquisition
from tests.support.lock_znodes import LockZnodes
from tests.support.months import part
from tests.support.new_thread import in_new_thread
from tests.support.rivals import RivalManager

pytestmark = pytest.mark.usefixtures("guard_declared")

MANAGERS, THREADS, ROUNDS, YEARS, MONTHS = 4, 8, 25, 25, 12
IDLE_SECONDS = "lock_manager.zookeeper.empty_znodes.IDLE_SECONDS"
Month = tuple[int, int]
MakeManager = Callable[..., ZookeeperLockManager]


class Partitions(LockZnodes):
    """The znodes of a table's partitions."""

    def exist(self) -> bool:
        return "partitions" in self.client.get_children(self.path)

    def path_of(self, *names: str) -> str:
        """Return the znode of a partition: ``path_of("year=2013", "month=1")``."""
        return self.path + "".join(f"/partitions/{name}" for name in names)

    def creation(self, path: str) -> int:
        """Return the transaction that created a znode."""
        return int(self.client.exists(path).czxid)


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def partitions(ensemble_client: KazooClient, table: str) -> Partitions:
    return Partitions(ensemble_client, table)


class Workers:
    """Threads of several managers that lock random partitions and increment a counter of each, without another lock."""

    def __init__(self, managers: list[ZookeeperLockManager], table: str, seed: int) -> None:
        self.managers, self.table, self.seed = managers, table, seed
        self.counts: Counter[Month] = Counter()
        self.expected: Counter[Month] = Counter()
        self._holders: dict[Month, int] = {}

    def run(self) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for increments in pool.map(self._work, range(THREADS)):
                self.expected += increments

    def _work(self, number: int) -> Counter[Month]:
        generator = random.Random(f"{self.seed}-{number}")
        increments: Counter[Month] = Counter()
        for round_number in range(ROUNDS):
            # Every third round locks partitions of a year that all threads use.
            year = generator.randrange(YEARS) if round_number % 3 else 0
            months = sorted(generator.sample(range(MONTHS), generator.randint(1, 3)))
            partitions = [part(year, month) for month in months] if round_number % 5 else [part(year)]
            locked_months = [(year, month) for month in (months if round_number % 5 else range(MONTHS))]
            with self.managers[number % len(self.managers)].acquire(self.table, partitions=partitions):
                for month in locked_months:
                    assert self._holders.setdefault(month, number) == number, f"two threads hold {month}"
                counts = [self.counts[month] for month in locked_months]
                time.sleep(generator.random() * 0.002)
                for month, count in zip(locked_months, counts, strict=True):
                    self.counts[month] = count + 1
                    del self._holders[month]
            increments.update(locked_months)
        return increments


def test_partitions_whose_znodes_are_removed_still_exclude(
    make_manager: MakeManager,
    table: str,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    monkeypatch.setattr(IDLE_SECONDS, 0.0)
    creations = defaultdict[str, set[int]](set)
    make_queues = Acquisition._make_queues

    def record_creations(acquisition: Acquisition) -> None:
        make_queues(acquisition)
        for queue in acquisition.request.queues:
            if (stat := partitions.client.exists(queue.path)) is not None:
                creations[queue.path].add(stat.czxid)

    monkeypatch.setattr(Acquisition, "_make_queues", record_creations)
    workers = Workers([make_manager() for _ in range(MANAGERS)], table, seed=random.randrange(2**32))
    workers.run()
    assert workers.counts == workers.expected, f"an increment was lost, with the seed {workers.seed}"
    assert sum(workers.expected.values()) >= THREADS * ROUNDS
    assert max(map(len, creations.values())) > 1, "no znode of a partition was removed and created again"
    eventually(lambda: not partitions.exist())
    assert sorted(partitions.client.get_children(partitions.path)) == ["intents"]


def test_negative_control_queues_that_are_created_once_block_requests(
    make_manager: MakeManager, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IDLE_SECONDS, 0.0)
    make_queues, created = Acquisition._make_queues, set[str]()

    def create_once(acquisition: Acquisition) -> None:
        paths = {queue.path for queue in acquisition.request.queues}
        if not paths <= created:
            created.update(paths)
            make_queues(acquisition)

    monkeypatch.setattr(Acquisition, "_make_queues", create_once)
    # The requests are repeated at once, so the server may answer the last one later than its deadline.
    with pytest.raises((LockTimeoutError, EnsembleUnavailableError)):
        Workers([make_manager(timeout_seconds=3) for _ in range(MANAGERS)], table, seed=1).run()


def test_used_partitions_stay_and_idle_ones_are_removed(
    make_manager: MakeManager,
    table: str,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    monkeypatch.setattr(IDLE_SECONDS, 0.1)
    manager, second_manager = make_manager(), make_manager()
    idle, used = partitions.path_of("year=2012"), partitions.path_of("year=2013", "month=1")
    remove_due, creations = EmptyZnodes.remove_due, list[int]()

    def use_and_remove(empty_znodes: EmptyZnodes) -> None:
        if empty_znodes is not manager._cleanup._empty_znodes:
            return empty_znodes._postpone()
        # The use by another manager counts, too.
        second_manager.acquire(table, partitions=[part(2013, 1)]).release()
        creations.append(partitions.creation(used))
        return remove_due(empty_znodes)

    with monkeypatch.context() as patch:
        patch.setattr(EmptyZnodes, "remove_due", use_and_remove)
        manager.acquire(table, partitions=[part(2012, 1), part(2013, 1)]).release()
        creation = partitions.creation(used)
        # The znodes are due at almost the same moment, so a round may check only some of them.
        eventually(lambda: partitions.client.exists(idle) is None and len(creations) > 6)
        assert partitions.creation(used) == creation
    assert set(creations) == {creation}
    eventually(lambda: not partitions.exist())


def test_close_removes_used_partitions_and_keeps_held_ones(
    make_manager: MakeManager,
    make_rival: Callable[..., RivalManager],
    table: str,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The time limit of a close is not the subject of this test.
    monkeypatch.setattr("lock_manager.zookeeper.empty_znodes.CLOSE_SECONDS", 30.0)
    manager, rival = make_manager(), make_rival()
    hold = rival.acquire(table, partitions=[part(2013, 2)])
    manager.acquire(table, partitions=[part(2013, 1), part(2014)]).release()
    with pytest.raises(LockTimeoutError):
        manager.acquire(table, partitions=[part(2013, 2), part(2015)], timeout_seconds=0)
    manager.close()
    get_children = partitions.client.get_children
    assert get_children(f"{partitions.path}/partitions") == ["year=2013"]
    assert get_children(f"{partitions.path_of('year=2013')}/partitions") == ["month=2"]
    hold.check()
    hold.release()
    rival.close()
    assert not partitions.exist()


def test_empty_partitions_of_a_dead_manager_are_removed(
    make_manager: MakeManager,
    table: str,
    partitions: Partitions,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    for path in ("year=2001/partitions/month=1", "year=2002", "year=2003/partitions"):
        partitions.client.ensure_path(f"{partitions.path}/partitions/{path}")
    monkeypatch.setattr(IDLE_SECONDS, 0.1)
    make_manager().acquire(table, partitions=[part(2013, 1)]).release()
    eventually(lambda: not partitions.exist())


def test_a_waiter_creates_removed_queues_again(
    make_manager: MakeManager,
    table: str,
    partitions: Partitions,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., None],
) -> None:
    """A request that waits in the table's queue has left its partition's queues. They may be removed meanwhile."""
    manager, waiting_manager = make_manager(), make_manager()
    caplog.set_level(logging.WARNING)
    for removed_levels in (1, 2, 3, 4):
        table_hold = manager.acquire(table)
        waiting = in_new_thread(waiting_manager.acquire, table, partitions=[part(2013, 1)])
        eventually(lambda: len(manager.queue(table)) == 2)
        path = partitions.path_of("year=2013", "month=1")
        eventually(lambda path=path: partitions.client.exists(path) and not partitions.client.get_children(path))
        for _ in range(removed_levels):
            partitions.client.delete(path)
            path = path.rpartition("/")[0]
        table_hold.release()
        with waiting.result(30) as hold:
            hold.check()
            assert len(hold.tokens) == 3
    assert caplog.messages == []
