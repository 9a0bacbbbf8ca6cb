"""The coordinators on which the contract tests run: ZooKeeper, and one in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from lock_manager import Hold, LockManager
from tests.support.lock_znodes import LockZnodes
from tests.support.memory_coordinator import MemoryCoordinator
from tests.support.rivals import RivalManager
from tests.support.waiting import eventually


class Coordinator(Protocol):
    """A coordinator under test."""

    def manager(self, **settings: Any) -> LockManager:
        """Open a lock manager, as another program would; the fixture closes it."""

    def queue_length(self, table: str) -> int:
        """Return the number of holds and requests in a table's queue."""

    def revoke(self, hold: Hold) -> None:
        """Remove a hold of one table, as if its holder had died, without notice to the holder."""


class ZookeeperCoordinator:
    """ZooKeeper as a coordinator under test."""

    def __init__(self, hosts: str, client: KazooClient, stack: ExitStack) -> None:
        self._hosts, self._client, self._stack = hosts, client, stack

    def manager(self, **settings: Any) -> LockManager:
        """Open a lock manager whose holds do not belong to the calling thread."""
        return self._stack.enter_context(RivalManager(self._hosts, **{"timeout_seconds": 30, **settings}))

    def queue_length(self, table: str) -> int:
        """Count the contenders in the table's queue."""
        return len(LockZnodes(self._client, table).contenders())

    def revoke(self, hold: Hold) -> None:
        """Delete the contender."""
        (table,) = hold.scope
        LockZnodes(self._client, table).delete_contenders(hold)


@dataclass
class LockedTable:
    """A table that no other test uses, and the coordinator of its lock.

    Attributes:
        coordinator: The coordinator.
        patience: Seconds to wait for a condition.
        uri: Location of the table.

    """

    coordinator: Coordinator
    patience: float = 30.0
    uri: str = field(default_factory=lambda: f"s3://lake/{uuid.uuid4().hex}")

    def managers(self, count: int) -> list[LockManager]:
        return [self.coordinator.manager() for _ in range(count)]

    def wait_for_queue(self, length: int) -> None:
        eventually(lambda: self.coordinator.queue_length(self.uri) == length, self.patience)


@pytest.fixture(params=["zookeeper", "memory"])
def table(request: pytest.FixtureRequest) -> Iterator[LockedTable]:
    if request.param == "memory":
        with closing(MemoryCoordinator()) as memory:
            yield LockedTable(memory)
        return
    hosts, client = request.getfixturevalue("zookeeper").hosts, request.getfixturevalue("ensemble_client")
    with ExitStack() as stack:
        yield LockedTable(ZookeeperCoordinator(hosts, client, stack))
