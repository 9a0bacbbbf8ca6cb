"""The part of the contract that holds for writers without a lock: ``optimistic://``, and with a queue of ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import lock_manager
from lock_manager import (
    ClosedError,
    Hold,
    LockLostError,
    LockManager,
    LockNotHeldError,
    TableResource,
    UnsupportedLockError,
)
from lock_manager.coordinator import Offer
from lock_manager.managers import inspector_of

URI = f"s3://lake/{uuid.uuid4().hex}"
NewManager = Callable[[], LockManager]


@pytest.fixture(params=["optimistic", "fallback"])
def new_manager(request: pytest.FixtureRequest) -> Iterator[NewManager]:
    url = "optimistic://"
    if request.param == "fallback":
        url = f"zookeeper://{request.getfixturevalue('zookeeper').hosts}?fallback=optimistic"
    with ExitStack() as stack:
        yield lambda: stack.enter_context(lock_manager.connect(url, timeout_seconds=30))


def acquire(manager: LockManager, offer: Offer | None = None) -> Hold:
    return manager.acquire_all([URI], needs_exclusion=False, offer=offer)


def test_a_request_that_relies_on_the_lock_is_refused(new_manager: NewManager) -> None:
    manager = new_manager()
    for request in (
        lambda: manager.acquire(URI),
        lambda: manager.acquire_all([URI]),
        lambda: manager.acquire_all([lock_manager.TableScope.of(URI, shared=True)], needs_exclusion=False),
    ):
        with pytest.raises(UnsupportedLockError):
            request()


def test_a_hold_is_released_once(new_manager: NewManager) -> None:
    hold = acquire(new_manager())
    hold.check()
    hold.release()
    with pytest.raises(LockNotHeldError):
        hold.release()
    with pytest.raises(LockNotHeldError):
        hold.intend(1, txn=None, attempt="late")


def test_a_thread_gets_its_hold_again(new_manager: NewManager) -> None:
    manager, other_manager = new_manager(), new_manager()
    with acquire(manager) as hold:
        assert acquire(other_manager) is hold
        hold.release()
        hold.check()
    assert hold.over


def test_holds_exclude_no_other_and_leave_no_intent(new_manager: NewManager) -> None:
    manager, other_manager = new_manager(), new_manager()
    with acquire(manager) as hold:
        if manager.settings.fallback:
            with inspector_of(manager.settings) as inspector:
                assert len(inspector.table(TableResource.of(URI)).entries) == 1
        assert (hold.excludes, hold.is_valid()) == (False, False)
        assert hold.intend(1, txn=None, attempt="first") == {}
        assert (dict(hold.intents.open), hold.intents.settled) == ({"first": 1}, False)
        hold.record_commit(1)
        assert hold.commits == {URI: (1,)}
    with acquire(other_manager) as next_hold:
        assert (next_hold.intents.unfinished, next_hold.intents.read()) == ((), [])
        assert next_hold.ensemble_id == hold.ensemble_id


def test_no_other_writer_commits_an_offer(new_manager: NewManager) -> None:
    manager, offer = new_manager(), Offer("write", {"number": 1})
    with acquire(manager, offer) as hold:
        assert hold.offers() == {}
    assert not manager.is_offered(URI, offer, 5)


def test_the_end_of_a_manager_ends_its_holds(new_manager: NewManager) -> None:
    manager = new_manager()
    with pytest.raises(LockLostError, match="the manager that granted it was closed"), acquire(manager) as hold:
        manager.close()
        assert hold.over
    with pytest.raises(ClosedError):
        acquire(manager)
