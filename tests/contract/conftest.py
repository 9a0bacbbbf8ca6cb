"""The coordinators, each as the contract needs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from lock_manager import Hold, LockManager, TableResource
from lock_manager.zookeeper.znodes import parse_queue, table_node
from tests.support.memory_coordinator import Memory
from tests.support.rivals import RivalManager


class Coordinator(Protocol):
    """What a coordinator gives to the tests of its contract, beside its lock manager."""

    def manager(self, **settings: Any) -> LockManager:
        """Make a lock manager, as another program would; it is closed in the end."""

    def asked_for(self, table: str) -> int:
        """Return how many hold the table or wait for it."""

    def take_away(self, hold: Hold) -> None:
        """Have the coordinator give up a hold of one table, as if its holder were dead; the holder is not told."""


class Zookeeper:
    """The coordinator that ZooKeeper is."""

    def __init__(self, hosts: str, client: KazooClient, made: ExitStack) -> None:
        self._hosts, self._client, self._made = hosts, client, made

    def manager(self, **settings: Any) -> LockManager:
        """Make a lock manager; it is closed in the end."""
        given = {"timeout_seconds": 30, **settings}
        return self._made.enter_context(RivalManager(self._hosts, **given))

    def asked_for(self, table: str) -> int:
        """Count the contenders in the table's queue."""
        node = table_node("/locks/delta_tables", TableResource.of(table))
        return len(parse_queue(self._client.get_children(node)))

    def take_away(self, hold: Hold) -> None:
        """Delete the contender."""
        (table,) = hold.scope.values()
        node = table_node("/locks/delta_tables", table.table)
        [name] = [each.name for each in parse_queue(self._client.get_children(node)) if each.hold_id == hold.hold_id]
        self._client.delete(f"{node}/{name}")


@pytest.fixture(params=["zookeeper", "memory"])
def coordinator(request: pytest.FixtureRequest) -> Iterator[Coordinator]:
    """Each coordinator in turn."""
    if request.param == "memory":
        with closing(Memory()) as memory:
            yield memory
        return
    hosts, client = request.getfixturevalue("zookeeper").hosts, request.getfixturevalue("ensemble_client")
    with ExitStack() as made:
        yield Zookeeper(hosts, client, made)


@pytest.fixture
def table() -> str:
    """A table that nobody else has."""
    return f"s3://lake/{uuid.uuid4().hex}"
