"""Following the locks of all tables: every change is seen, and locks that do not change cost no requests."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from kazoo.client import KazooClient

from lock_manager import EnsembleUnavailableError, LockInspector, LockSettings, TableResource
from lock_manager.coordinator import Follower, Inspector
from lock_manager.managers import inspector_of, manager_of
from lock_manager.queue_entry import TableLocks
from lock_manager.s3_lease.queue_object import FOLDER
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.follower import LockFollower
from lock_manager.zookeeper.znodes import table_node
from sluice.audit.log_folder import s3_client
from tests.support.recording_s3 import RecordingS3
from tests.support.rivals import RivalManager
from tests.support.server_counters import requests_of

TABLES = [f"s3://lake/table-{number}" for number in range(6)]
PARTITION = {"year": 2013, "month": 1}


@dataclass
class Viewer:
    """The tables as a follower has reported them, beside an inspector that reads all of them."""

    inspector: Inspector
    eventually: Callable[..., None]
    tables: dict[str | None, TableLocks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.follower: Follower = self.inspector.follow()

    def look(self, seconds: float = 0.05) -> list[TableLocks]:
        tables = self.follower.changes(seconds)
        self.tables |= {table.uri: table for table in tables}
        return tables

    def queues(self) -> Mapping[str | None, Any]:
        return queues_of(self.tables.values())

    def wait_until_equal(self) -> None:
        def is_equal() -> bool:
            self.look()
            return self.queues() == queues_of(self.inspector.tables())

        self.eventually(is_equal, within=30, label="the view of all locks")


def queues_of(tables: Any) -> dict[str | None, Any]:
    """Return the holders and waiters of each table that has some."""
    return {
        table.uri: [(entry.hold_id, entry.holds, entry.partitions, entry.waits_for) for entry in table.entries]
        for table in tables
        if table.entries
    }


@pytest.fixture
def settings(zookeeper: Any) -> LockSettings:
    return LockSettings(zk_hosts=zookeeper.hosts, lock_root=f"/{uuid.uuid4()}", timeout_seconds=30)


@pytest.fixture
def rival(settings: LockSettings) -> Iterator[RivalManager]:
    with RivalManager(settings) as manager:
        yield manager


@pytest.fixture
def viewer(settings: LockSettings, eventually: Callable[..., None]) -> Iterator[Viewer]:
    with inspector_of(settings) as inspector:
        yield Viewer(inspector, eventually)


@pytest.mark.usefixtures("guard_declared")
def test_a_random_history_is_followed(viewer: Viewer, rival: RivalManager) -> None:
    numbers = random.Random(7)
    holds: dict[tuple[str, bool], Any] = {}
    for _ in range(60):
        table, of_partition = numbers.choice(TABLES), numbers.random() < 0.5
        if (hold := holds.pop((table, of_partition), None)) is not None:
            hold.release()
        elif (table, not of_partition) not in holds:
            holds[table, of_partition] = rival.acquire(table, partitions=[PARTITION] if of_partition else None)
        if numbers.random() < 0.3:
            viewer.look(0)
    viewer.wait_until_equal()
    assert viewer.queues().keys() == {table for table, _ in holds}
    for hold in holds.values():
        hold.release()
    viewer.wait_until_equal()
    assert viewer.queues() == {}


def test_locks_that_do_not_change_cost_no_requests(settings: LockSettings, eventually: Callable[..., None]) -> None:
    with EmbeddedZooKeeper() as zookeeper:
        own_settings = LockSettings(zk_hosts=zookeeper.hosts, lock_root=settings.lock_root, timeout_seconds=30)
        with RivalManager(own_settings) as rival, inspector_of(own_settings) as inspector:
            for table in TABLES:
                rival.acquire(table).release()
            viewer = Viewer(inspector, eventually)
            viewer.look()

            def requests_of_looks(count: int) -> int:
                before = requests_of(zookeeper)
                for _ in range(count):
                    viewer.look(0)
                return requests_of(zookeeper) - before

            # The sessions ping the server.
            eventually(lambda: requests_of_looks(4) <= 6, within=30, label="looks without requests")
            with rival.acquire(TABLES[0]):
                # A hold stores its time after its first second.
                eventually(lambda: requests_of_looks(4) <= 6, within=30, label="looks at a hold without requests")
                # Negative control: the other way to look costs requests.
                before = requests_of(zookeeper)
                assert len(inspector.tables()) == len(TABLES)
                assert requests_of(zookeeper) - before > 2 * len(TABLES)


def test_changes_during_an_outage_are_seen_after_it(settings: LockSettings, eventually: Callable[..., None]) -> None:
    with EmbeddedZooKeeper() as zookeeper:
        own_settings = LockSettings(zk_hosts=zookeeper.hosts, lock_root=settings.lock_root, timeout_seconds=30)
        with RivalManager(own_settings) as rival, LockInspector(own_settings, answer_seconds=2) as inspector:
            viewer = Viewer(inspector, eventually)
            first_hold = rival.acquire(TABLES[0])
            viewer.wait_until_equal()
            (server,) = zookeeper.servers
            server.kill()
            with pytest.raises(EnsembleUnavailableError):
                viewer.look(5)
            server.start()
            with suppress(EnsembleUnavailableError):
                viewer.look()
            second_hold = rival.acquire(TABLES[1])
            viewer.wait_until_equal()
            assert viewer.queues().keys() == {TABLES[0], TABLES[1]}
            first_hold.release()
            second_hold.release()
            viewer.wait_until_equal()


def test_negative_control_without_watches_a_hold_is_not_seen(
    viewer: Viewer, rival: RivalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockFollower, "_on_watch", lambda *_: None)
    rival.acquire(TABLES[0]).release()
    # The first look has made the session, which makes the second one read everything.
    viewer.look()
    viewer.look()
    with rival.acquire(TABLES[0]):
        assert [table for _ in range(4) for table in viewer.look(0.3) if table.entries] == []


def test_locks_on_s3_are_read_if_their_objects_have_changed(
    eventually: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RecordingS3() as s3:
        s3.create_bucket("locks")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        settings = LockSettings.from_url("s3-lease://locks/sluice")
        with manager_of(settings) as manager, inspector_of(settings) as inspector:
            viewer = Viewer(inspector, eventually)
            assert viewer.look() == []
            for table in TABLES:
                manager.acquire(table).release()
            assert {table.uri for table in viewer.look()} == set(TABLES)
            s3.forget()
            assert [viewer.look() for _ in range(3)] == [[]] * 3
            # A list for each look, and no other request.
            assert [request.action for request in s3.requests] == ["s3:ListBucket"] * 3
            assert viewer.follower.keys == {TableResource.of(table).key for table in TABLES}
            with manager.acquire(TABLES[3]):
                assert [table.uri for table in viewer.look()] == [TABLES[3]]
                viewer.wait_until_equal()
            viewer.wait_until_equal()
            assert viewer.queues() == {}
            s3_client({}).delete_object(Bucket="locks", Key=f"sluice/{FOLDER}{TableResource.of(TABLES[0]).key}.json")
            viewer.look()
            assert viewer.follower.keys == {TableResource.of(table).key for table in TABLES[1:]}


def test_a_znode_that_was_removed_and_created_again_is_followed(
    viewer: Viewer, rival: RivalManager, ensemble_client: KazooClient
) -> None:
    rival.acquire(TABLES[0]).release()
    viewer.wait_until_equal()
    ensemble_client.delete(table_node(rival.settings.lock_root, TableResource.of(TABLES[0])), recursive=True)
    viewer.look()
    assert list(viewer.follower.keys) == []
    with rival.acquire(TABLES[0]):
        viewer.wait_until_equal()
        assert viewer.queues().keys() == {TABLES[0]}
        assert list(viewer.follower.keys) == [TableResource.of(TABLES[0]).key]


def test_a_znode_without_a_name_is_followed_when_it_has_one(
    viewer: Viewer, rival: RivalManager, ensemble_client: KazooClient
) -> None:
    rival.acquire(TABLES[1]).release()
    node = table_node(rival.settings.lock_root, TableResource.of(TABLES[0]))
    ensemble_client.create(node)
    viewer.wait_until_equal()
    assert viewer.tables.keys() == {None, TABLES[1]}
    # The view gets both changes at once.
    ensemble_client.delete(node)
    with rival.acquire(TABLES[0]):
        viewer.wait_until_equal()
        assert viewer.queues().keys() == {TABLES[0]}
