"""How many requests a lock costs, as the server counts them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from statistics import mode

import pytest

from lock_manager import (
    HeldLock,
    LockOrderError,
    Partition,
    TableScope,
    ZookeeperLockManager,
)
from lock_manager.testing.embedded import EmbeddedServer, EmbeddedZooKeeper
from tests.support.months import part

pytestmark = pytest.mark.usefixtures("guard_said_to_be_there")

CYCLES = 7


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One that allows the word `cons`, which a container's default does not."""
    with EmbeddedZooKeeper() as running:
        yield running.servers[0]


@pytest.fixture
def manager(server: EmbeddedServer) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(server.address, timeout_seconds=30, session_timeout_seconds=60) as made:
        made.connect()
        yield made


@pytest.fixture
def received(server: EmbeddedServer) -> Callable[[ZookeeperLockManager], int]:
    """Tell how many requests of a manager's session the server has had."""

    def look(manager: ZookeeperLockManager) -> int:
        pattern = rf"recved=(\d+),[^\n]*sid={manager._session.session_id or 0:#x},"
        found = re.search(pattern, server.command(b"cons").decode())
        assert found is not None
        return int(found[1])

    return look


@pytest.fixture
def requests_of(
    received: Callable[[ZookeeperLockManager], int], manager: ZookeeperLockManager
) -> Callable[[Callable[[], HeldLock]], int]:
    """Tell how many requests one acquire and release are, of a lock whose queues are there already."""

    def count(acquire: Callable[[], HeldLock]) -> int:
        acquire().release()
        counts = []
        for _ in range(CYCLES):
            before = received(manager)
            acquire().release()
            counts.append(received(manager) - before)
        # A ping, three of which fit into a minute, makes one of them larger.
        assert max(counts) <= mode(counts) + 1
        return mode(counts)

    return count


@pytest.mark.parametrize("shared", [False, True])
def test_a_table_takes_four_requests(
    requests_of: Callable[..., int], manager: ZookeeperLockManager, *, shared: bool
) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"
    assert requests_of(lambda: manager.acquire(table, shared=shared)) <= 4

    def and_check() -> HeldLock:
        hold = manager.acquire(table, shared=shared)
        hold.check()
        return hold

    assert requests_of(and_check) == 1 + requests_of(lambda: manager.acquire(table, shared=shared)), "the control"


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        ([part(2013)], 1),
        ([part(2013, 1)], 2),
        ([part(2013, 1), part(2013, 2)], 3),
        ([part(2013, 1), part(2014, 1)], 4),
        ([part(2000 + number // 12, number % 12 + 1) for number in range(64)], 70),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_partitions_take_four_and_three_for_each_level_and_key(
    requests_of: Callable[..., int],
    manager: ZookeeperLockManager,
    wanted: list[Partition],
    nodes: int,
    *,
    shared: bool,
) -> None:
    """A level that two keys share counts once."""
    table = f"s3://lake/{uuid.uuid4().hex}"
    assert requests_of(lambda: manager.acquire(table, partitions=wanted, shared=shared)) <= 4 + 3 * nodes


def test_several_tables_take_four_each_and_three_for_each_level_and_key(
    requests_of: Callable[..., int], manager: ZookeeperLockManager
) -> None:
    tables = [f"s3://lake/{uuid.uuid4().hex}" for _ in range(3)]
    scopes = [TableScope.of(tables[0]), TableScope.of(tables[1], [part(2013, 1)]), TableScope.of(tables[2])]
    assert requests_of(lambda: manager.acquire_all(scopes)) <= 3 * 4 + 3 * 2


def test_what_another_manager_holds_is_had_again_without_a_request(
    server: EmbeddedServer, received: Callable[[ZookeeperLockManager], int], manager: ZookeeperLockManager
) -> None:
    folder = f"s3://lake/{uuid.uuid4().hex}"
    table, low = f"{folder}/b", f"{folder}/a"
    counts = []
    with ZookeeperLockManager(server.address, 30, session_timeout_seconds=60) as other, manager.acquire(table) as hold:
        other.connect()
        for _ in range(CYCLES):
            before = received(other)
            for _ in range(10):
                assert other.acquire(table) is hold
                hold.release()
                with pytest.raises(LockOrderError):
                    other.acquire(low)
            counts.append(received(other) - before)
        # The control: what nobody has is asked for.
        with other.acquire(f"{table}/c"):
            pass
        assert received(other) - before >= 4
    assert mode(counts) == 0
    assert max(counts) <= 1, "a ping"
