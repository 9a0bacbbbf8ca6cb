"""The coordinators on which the contract tests run: ZooKeeper, objects on S3, and one in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from lock_manager import Hold, LockManager, LockSettings, TableResource
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from sluice.local.s3 import LocalS3
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


class RivalLeaseManager(S3LeaseManager):
    """Acquires each lock in a new thread, so that it is not nested in a hold of the calling thread."""

    def acquire_all(self, *scopes: Any, **options: Any) -> HeldLease:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().acquire_all, *scopes, **options).result()


class S3LeaseCoordinator:
    """Objects on S3 as a coordinator under test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._settings = LockSettings(lock_url="s3-lease://locks/contract", timeout_seconds=30)
        self._inspector = LeaseInspector(self._settings)

    def manager(self, **settings: Any) -> LockManager:
        return self._stack.enter_context(RivalLeaseManager(replace(self._settings, **settings)))

    def queue_length(self, table: str) -> int:
        return len(self._inspector.table(TableResource.of(table)).entries)

    def revoke(self, hold: Hold) -> None:
        (table,) = hold.scope
        locks = self._inspector.table(TableResource.of(table))
        (entry,) = [entry for entry in locks.entries if entry.hold_id == hold.hold_id]
        assert self._inspector.remove(locks, entry)


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


@pytest.fixture(scope="module")
def lock_bucket() -> Iterator[None]:
    """Start an S3 with a bucket for locks, which boto3 finds by the environment."""
    with LocalS3() as s3, pytest.MonkeyPatch.context() as environment:
        s3.create_bucket("locks")
        for name, value in s3.environment.items():
            environment.setenv(name, value)
        yield


@pytest.fixture(params=["zookeeper", "memory", "s3-lease"])
def table(request: pytest.FixtureRequest) -> Iterator[LockedTable]:
    if request.param == "memory":
        with closing(MemoryCoordinator()) as memory:
            yield LockedTable(memory)
        return
    if request.param == "s3-lease":
        request.getfixturevalue("lock_bucket")
        with ExitStack() as stack:
            yield LockedTable(S3LeaseCoordinator(stack))
        return
    hosts, client = request.getfixturevalue("zookeeper").hosts, request.getfixturevalue("ensemble_client")
    with ExitStack() as stack:
        yield LockedTable(ZookeeperCoordinator(hosts, client, stack))
