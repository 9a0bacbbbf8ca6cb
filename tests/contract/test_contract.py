"""The contract of every coordinator in ``conftest.py``: order, exclusion, deadlines, lost holds and intents."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from lock_manager import Hold, LockCancelledError, LockLostError, LockManager, LockNotHeldError, LockTimeoutError
from lock_manager.coordinator import Offer
from lock_manager.errors import ContenderGoneError
from tests.contract.conftest import LockedTable
from tests.support.waiting import eventually, lock_timeout

TIMEOUT, RELEASE_AFTER = 4, 3
"""Timeout of the request with a deadline, and time after which the first holder releases the lock, in seconds."""


def test_the_queue_is_fifo_and_tokens_increase(table: LockedTable) -> None:
    managers = table.managers(4)
    first_hold = managers[0].acquire(table.uri)
    served: list[tuple[int, int]] = []

    def acquire(number: int) -> None:
        with managers[number].acquire(table.uri) as hold:
            served.append((number, hold.token))

    with ThreadPoolExecutor(3) as pool:
        for number in (1, 2, 3):
            pool.submit(acquire, number)
            table.wait_for_queue(number + 1)
        first_hold.release()
    assert [number for number, _ in served] == [1, 2, 3]
    tokens = [first_hold.token, *(token for _, token in served)]
    assert all(earlier < later for earlier, later in pairwise(tokens))


def test_shared_holds_coexist_but_exclude_an_exclusive_hold(table: LockedTable) -> None:
    reader, second_reader, writer = table.managers(3)
    with reader.acquire(table.uri, shared=True), second_reader.acquire(table.uri, shared=True, timeout_seconds=5):
        with pytest.raises(LockTimeoutError):
            writer.acquire(table.uri, timeout_seconds=0)
    with writer.acquire(table.uri), pytest.raises(LockTimeoutError):
        reader.acquire(table.uri, shared=True, timeout_seconds=0)


def test_a_shared_request_waits_behind_an_exclusive_request(table: LockedTable) -> None:
    reader, writer, second_reader = table.managers(3)
    shared_hold = reader.acquire(table.uri, shared=True)
    served: list[str] = []

    def acquire(manager: LockManager, name: str, *, shared: bool) -> None:
        with manager.acquire(table.uri, shared=shared):
            served.append(name)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(acquire, writer, "exclusive", shared=False)
        table.wait_for_queue(2)
        pool.submit(acquire, second_reader, "shared", shared=True)
        eventually(lambda: table.coordinator.queue_length(table.uri) == 3 or served, table.patience)
        shared_hold.release()
    assert served == ["exclusive", "shared"]


def test_the_deadline_covers_the_whole_wait(table: LockedTable) -> None:
    holder, next_holder, waiter = table.managers(3)
    hold = holder.acquire(table.uri)
    with ThreadPoolExecutor(2) as pool:
        next_hold = pool.submit(next_holder.acquire, table.uri)
        table.wait_for_queue(2)
        start = time.monotonic()
        request = pool.submit(waiter.acquire, table.uri, timeout_seconds=TIMEOUT)
        table.wait_for_queue(3)
        eventually(lambda: time.monotonic() > start + RELEASE_AFTER)
        # A deadline that starts again with this release would end after TIMEOUT + RELEASE_AFTER seconds.
        hold.release()
        error = request.exception(30)
        assert isinstance(error, LockTimeoutError)
        assert error.timeout_seconds == TIMEOUT
        assert TIMEOUT <= time.monotonic() - start < TIMEOUT + RELEASE_AFTER
        next_hold.result(30).release()


def test_a_timed_out_or_cancelled_request_leaves_the_queue(table: LockedTable) -> None:
    holder, waiter = table.managers(2)
    waiter.connect()
    with holder.acquire(table.uri), ThreadPoolExecutor(1) as pool:
        lock_timeout(lambda: waiter.acquire(table.uri, timeout_seconds=0.5))
        table.wait_for_queue(1)
        request = pool.submit(waiter.acquire, table.uri)
        table.wait_for_queue(2)
        assert waiter.cancel(table.uri) == 1
        assert isinstance(request.exception(30), LockCancelledError)
        table.wait_for_queue(1)
    assert table.coordinator.queue_length(table.uri) == 0


def test_a_lost_hold_fails_its_check_and_calls_on_loss(table: LockedTable) -> None:
    manager, next_holder = table.managers(2)
    hold = manager.acquire(table.uri)
    reported: list[Any] = []
    hold.on_loss(reported.append)
    hold.check()
    hold.record_commit(7)
    table.coordinator.revoke(hold)
    with next_holder.acquire(table.uri):
        with pytest.raises(LockLostError) as lost:
            hold.check()
        assert lost.value.commits == {table.uri: (7,)}
        with pytest.raises(LockLostError):
            hold.intend(8, txn=None, attempt="late")
        eventually(lambda: reported == [hold], table.patience)
        assert not hold.is_valid()
        assert hold.over
    with pytest.raises(LockLostError):
        hold.release()


def test_the_next_holder_gets_unfinished_intents_only(table: LockedTable) -> None:
    manager, next_manager = table.managers(2)
    with manager.acquire(table.uri) as hold:
        hold.intend(3, txn="a", attempt="first")
        assert dict(hold.intents.open) == {"first": 3}
        hold.intents.settle(["first"])
    with next_manager.acquire(table.uri) as next_hold:
        assert next_hold.intents.unfinished == ()
    with manager.acquire(table.uri) as hold:
        hold.intend(4, txn="b", attempt="second")
    with next_manager.acquire(table.uri) as next_hold:
        intents = next_hold.intents.read()
        assert [(intent.hold_id, intent.version, intent.txn) for intent in intents] == [(hold.hold_id, 4, "b")]
        next_hold.intents.clear()
    lost_hold = manager.acquire(table.uri)
    lost_hold.intend(5, txn="c", attempt="third")
    table.coordinator.revoke(lost_hold)
    with next_manager.acquire(table.uri) as next_hold:
        assert [(intent.hold_id, intent.version) for intent in next_hold.intents.read()] == [(lost_hold.hold_id, 5)]
        next_hold.intents.clear()
    with pytest.raises(LockLostError):
        lost_hold.release()
    with manager.acquire(table.uri) as hold:
        assert hold.intents.unfinished == ()


def test_a_hold_is_released_once_and_the_release_reports_a_loss(table: LockedTable) -> None:
    manager = table.coordinator.manager()
    hold = manager.acquire(table.uri)
    hold.release()
    with pytest.raises(LockNotHeldError):
        hold.release()
    lost_hold = manager.acquire(table.uri)
    table.coordinator.revoke(lost_hold)
    with pytest.raises(LockLostError):
        lost_hold.release()


def test_holds_carry_the_id_of_their_ensemble(table: LockedTable) -> None:
    manager, next_manager = table.managers(2)
    with manager.acquire(table.uri) as hold:
        pass
    with next_manager.acquire(table.uri) as next_hold:
        assert hold.ensemble_id == next_hold.ensemble_id
        assert uuid.UUID(hold.ensemble_id)


class Offering:
    """Requests for the lock of a table that wait behind a holder, each in a thread and with an offer or without one."""

    def __init__(self, table: LockedTable, pool: ThreadPoolExecutor) -> None:
        self._table, self._pool = table, pool
        self.offers: list[Offer] = []
        self.requests: list[Future[Any]] = []
        self.managers: list[LockManager] = []

    def add(self, *, offers: bool = True) -> None:
        """Start a request, and wait until it is in the queue."""
        number = len(self.offers)
        offer = Offer(f"write {number}", {"number": number})
        (manager,) = self._table.managers(1)
        manager.connect()
        length = self._table.coordinator.queue_length(self._table.uri)
        # A rival manager acquires in a thread of its own.
        options = {"offer": offer} if offers else {}
        request = self._pool.submit(manager.acquire_all, [self._table.uri], timeout_seconds=60, **options)  # type: ignore[arg-type]
        self._table.wait_for_queue(length + 1)
        self.offers.append(offer)
        self.requests.append(request)
        self.managers.append(manager)


@contextmanager
def offering(table: LockedTable) -> Iterator[tuple[Hold, Offering]]:
    """Hold the lock of a table, behind which requests wait that end when the block ends."""
    (manager,) = table.managers(1)
    with ThreadPoolExecutor(4) as pool:
        waiting = Offering(table, pool)
        try:
            with manager.acquire(table.uri) as hold:
                yield hold, waiting
        finally:
            for waiter in waiting.managers:
                waiter.cancel(table.uri)
            for request in waiting.requests:
                if request.exception(30) is None and not request.result().over:
                    request.result().release()


def test_a_holder_reads_the_offers_directly_behind_it(table: LockedTable) -> None:
    with offering(table) as (hold, waiting):
        assert hold.offers() == {}
        waiting.add()
        waiting.add()
        waiting.add(offers=False)
        waiting.add()
        eventually(lambda: [offer["number"] for offer in hold.offers().values()] == [0, 1], table.patience)


def test_an_intent_names_only_members_that_wait(table: LockedTable) -> None:
    with offering(table) as (hold, waiting):
        waiting.add()
        waiting.add()
        eventually(lambda: len(hold.offers()) == 2, table.patience)
        members = dict(zip(hold.offers(), ("write 0", "write 1"), strict=True))
        waiting.managers[0].cancel(table.uri)
        assert isinstance(waiting.requests[0].exception(30), LockCancelledError)
        assert list(hold.intend(1, txn=None, attempt="first", members=members).values()) == ["write 1"]
        assert not waiting.managers[0].is_offered(table.uri, waiting.offers[0], 30)
        assert waiting.managers[0].is_offered(table.uri, waiting.offers[1], 30)
        hold.intents.settle(["first"])


def test_an_offer_may_be_committed_while_an_intent_names_it(table: LockedTable) -> None:
    with offering(table) as (hold, waiting):
        waiting.add()
        manager, offer = waiting.managers[0], waiting.offers[0]
        assert manager.is_offered(table.uri, offer, 30)
        eventually(lambda: len(hold.offers()) == 1, table.patience)
        hold.intend(1, txn=None, attempt="first", members=dict.fromkeys(hold.offers(), offer.write_id))
        manager.cancel(table.uri)
        assert isinstance(waiting.requests[0].exception(30), LockCancelledError)
        assert manager.is_offered(table.uri, offer, 30)
        # Another intent of the hold replaces the first one, whose put is still open.
        hold.intend(2, txn=None, attempt="second")
        assert manager.is_offered(table.uri, offer, 30)
        hold.intents.settle(["first"])
        hold.intend(3, txn=None, attempt="third")
        assert not manager.is_offered(table.uri, offer, 30)
        hold.intents.settle(["second", "third"])


def test_a_dismissed_request_leaves_the_queue(table: LockedTable) -> None:
    with offering(table) as (hold, waiting):
        waiting.add()
        waiting.add()
        eventually(lambda: len(hold.offers()) == 2, table.patience)
        last = list(hold.offers())[1]
        hold.dismiss([last])
        table.wait_for_queue(2)
        # The request ahead of it still waits, so only its own removal wakes it.
        eventually(waiting.requests[1].done, table.patience)
        assert isinstance(waiting.requests[1].exception(), ContenderGoneError)
        assert not waiting.managers[1].is_offered(table.uri, waiting.offers[1], 30)
