"""The soak's listing that stalls, on a real ensemble: what it says if all is well, and if a hold is lost meanwhile."""

from __future__ import annotations

import uuid

from kazoo.client import KazooClient

from lock_manager import HeldLock, TableResource, ZookeeperLockManager
from lock_manager.zookeeper.znodes import table_node
from soak.stalls import stall_listing


def test_a_living_intent_is_met_and_stays_and_nothing_is_left(
    manager: ZookeeperLockManager, guard_said_to_be_there: None
) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"
    for _ in range(2):
        said = stall_listing(manager, table, lambda late: late.intents.clear())
        assert said == {"met": True, "stays": True, "error": None, "lost": False}
    with manager.acquire(table, timeout_seconds=0) as hold:
        assert hold.intents.unfinished == ()


def test_of_a_hold_that_is_lost_meanwhile_it_says_so_and_nothing_of_its_intent(
    manager: ZookeeperLockManager, guard_said_to_be_there: None, ensemble_client: KazooClient
) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"
    node = table_node("/locks/delta_tables", TableResource.of(table))

    def clear_and_break(late: HeldLock) -> None:
        late.intents.clear()
        for name in ensemble_client.get_children(node):
            if "lock__" in name:
                ensemble_client.delete(f"{node}/{name}")

    said = stall_listing(manager, table, clear_and_break)
    assert said == {"met": True, "stays": None, "error": "LockLostError", "lost": True}
    assert stall_listing(manager, table, lambda late: late.intents.clear())["stays"] is True
