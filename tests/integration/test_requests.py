"""The number of requests of a lock, as the server counts them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mode

import pytest

from lock_manager import HeldLock, LockOrderError, Partition, TableScope, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedServer, EmbeddedZooKeeper
from tests.support.months import part

pytestmark = pytest.mark.usefixtures("guard_declared")

CYCLES = 7


@dataclass
class Client:
    """A lock manager whose requests the server counts."""

    server: EmbeddedServer
    manager: ZookeeperLockManager

    def requests(self) -> int:
        """Return the number of requests that the server has received in the manager's session."""
        pattern = rf"recved=(\d+),[^\n]*sid={self.manager._session.session_id or 0:#x},"
        match = re.search(pattern, self.server.command(b"cons").decode())
        assert match is not None
        return int(match[1])

    def cost_of(self, acquire: Callable[[], HeldLock]) -> int:
        """Return the number of requests that one acquire and its release take. The queues of the lock exist already."""
        acquire().release()
        costs = []
        for _ in range(CYCLES):
            earlier_requests = self.requests()
            acquire().release()
            costs.append(self.requests() - earlier_requests)
        # A ping, which the client sends three times a minute, may make a cost larger by one.
        assert max(costs) <= mode(costs) + 1
        return mode(costs)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server that allows the command `cons`, which the default settings of a container forbid."""
    with EmbeddedZooKeeper() as ensemble:
        yield ensemble.servers[0]


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    with ZookeeperLockManager(server.address, timeout_seconds=30, session_timeout_seconds=60) as manager:
        manager.connect()
        yield Client(server, manager)


@pytest.mark.parametrize("shared", [False, True])
def test_a_table_takes_at_most_4_requests(client: Client, *, shared: bool) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"

    def acquire() -> HeldLock:
        return client.manager.acquire(table, shared=shared)

    def acquire_and_check() -> HeldLock:
        hold = acquire()
        hold.check()
        return hold

    assert client.cost_of(acquire) <= 4
    assert client.cost_of(acquire_and_check) == 1 + client.cost_of(acquire), "a check did not take one more request"


@pytest.mark.parametrize(
    ("partitions", "level_count"),
    [
        ([part(2013)], 1),
        ([part(2013, 1)], 2),
        ([part(2013, 1), part(2013, 2)], 3),
        ([part(2013, 1), part(2014, 1)], 4),
        ([part(2000 + number // 12, number % 12 + 1) for number in range(64)], 70),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_partitions_take_at_most_4_requests_and_3_per_level(
    client: Client, partitions: list[Partition], level_count: int, *, shared: bool
) -> None:
    """Each level of each partition counts, and a level that two partitions share counts once."""
    table = f"s3://lake/{uuid.uuid4().hex}"
    cost = client.cost_of(lambda: client.manager.acquire(table, partitions=partitions, shared=shared))
    assert cost <= 4 + 3 * level_count


def test_tables_take_at_most_4_requests_each_and_3_per_level(client: Client) -> None:
    tables = [f"s3://lake/{uuid.uuid4().hex}" for _ in range(3)]
    scopes = [TableScope.of(tables[0]), TableScope.of(tables[1], [part(2013, 1)]), TableScope.of(tables[2])]
    assert client.cost_of(lambda: client.manager.acquire_all(scopes)) <= 3 * 4 + 3 * 2


def test_a_hold_of_another_manager_takes_no_request(client: Client) -> None:
    folder = f"s3://lake/{uuid.uuid4().hex}"
    table, earlier_table = f"{folder}/b", f"{folder}/a"
    costs = []
    with (
        ZookeeperLockManager(client.server.address, 30, session_timeout_seconds=60) as manager,
        client.manager.acquire(table) as hold,
    ):
        manager.connect()
        second_client = Client(client.server, manager)
        for _ in range(CYCLES):
            earlier_requests = second_client.requests()
            for _ in range(10):
                assert manager.acquire(table) is hold
                hold.release()
                with pytest.raises(LockOrderError):
                    manager.acquire(earlier_table)
            costs.append(second_client.requests() - earlier_requests)
        # The control: a lock that the thread does not hold takes requests.
        with manager.acquire(f"{table}/c"):
            pass
        assert second_client.requests() - earlier_requests >= 4
    assert mode(costs) == 0
    assert max(costs) <= 1, "more than a ping was sent"
