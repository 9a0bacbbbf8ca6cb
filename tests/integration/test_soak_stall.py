"""The result of the soak's stalled listing on a real ensemble, with a living hold and with a lost hold."""

from __future__ import annotations

import uuid

import pytest
from kazoo.client import KazooClient

from lock_manager import HeldLock, ZookeeperLockManager
from soak.stalls import take_stalled_listing_step
from tests.support.lock_znodes import LockZnodes

pytestmark = pytest.mark.usefixtures("guard_declared")


def test_a_stalled_listing_keeps_a_living_intent(manager: ZookeeperLockManager) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"
    for _ in range(2):
        result = take_stalled_listing_step(manager, table, lambda hold: hold.intents.clear())
        assert result == {"met": True, "stays": True, "error": None, "lost": False}
    with manager.acquire(table, timeout_seconds=0) as hold:
        assert hold.intents.unfinished == ()


def test_a_lost_hold_is_reported_without_its_intent(
    manager: ZookeeperLockManager, ensemble_client: KazooClient
) -> None:
    table = f"s3://lake/{uuid.uuid4().hex}"

    def clear_and_break(hold: HeldLock) -> None:
        hold.intents.clear()
        LockZnodes(ensemble_client, table).delete_contenders()

    result = take_stalled_listing_step(manager, table, clear_and_break)
    assert result == {"met": True, "stays": None, "error": "LockLostError", "lost": True}
    assert take_stalled_listing_step(manager, table, lambda hold: hold.intents.clear())["stays"] is True
