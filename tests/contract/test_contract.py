"""What every coordinator keeps: whoever writes another one runs it through these (``conftest.py`` has the list)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from lock_manager import LockCancelledError, LockLostError, LockManager, LockNotHeldError, LockTimeoutError
from tests.contract.conftest import Coordinator


def test_first_come_is_first_served_and_later_tokens_are_larger(
    coordinator: Coordinator, table: str, eventually: Callable[..., None]
) -> None:
    managers = [coordinator.manager() for _ in range(4)]
    first = managers[0].acquire(table)
    served: list[tuple[int, int]] = []

    def take(number: int) -> None:
        with managers[number].acquire(table) as hold:
            served.append((number, hold.token))

    with ThreadPoolExecutor(3) as pool:
        for number in (1, 2, 3):
            pool.submit(take, number)
            eventually(lambda number=number: coordinator.asked_for(table) == number + 1)
        first.release()
    assert [number for number, _ in served] == [1, 2, 3]
    assert all(earlier < later for earlier, later in pairwise([first.token, *(token for _, token in served)]))


def test_shared_holders_hold_together_and_never_beside_an_exclusive_one(coordinator: Coordinator, table: str) -> None:
    one, two, three = (coordinator.manager() for _ in range(3))
    with one.acquire(table, shared=True), two.acquire(table, shared=True, timeout_seconds=5):
        with pytest.raises(LockTimeoutError):
            three.acquire(table, timeout_seconds=0)
    with three.acquire(table), pytest.raises(LockTimeoutError):
        one.acquire(table, shared=True, timeout_seconds=0)


def test_shared_requests_do_not_overtake_an_exclusive_one_that_waits(
    coordinator: Coordinator, table: str, eventually: Callable[..., None]
) -> None:
    one, two, three = (coordinator.manager() for _ in range(3))
    reading = one.acquire(table, shared=True)
    served: list[str] = []

    def take(manager: LockManager, name: str, *, shared: bool) -> None:
        with manager.acquire(table, shared=shared):
            served.append(name)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(take, two, "exclusive", shared=False)
        eventually(lambda: coordinator.asked_for(table) == 2)
        pool.submit(take, three, "shared", shared=True)
        eventually(lambda: coordinator.asked_for(table) == 3 or served)
        reading.release()
    assert served == ["exclusive", "shared"]


def test_one_deadline_counts_over_all_that_is_ahead(
    coordinator: Coordinator, table: str, eventually: Callable[..., None]
) -> None:
    first, second, third = (coordinator.manager() for _ in range(3))
    held = first.acquire(table)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(second.acquire(table)))
    waiting.start()
    eventually(lambda: coordinator.asked_for(table) == 2)
    failed: list[LockTimeoutError] = []

    def wait_for_six_seconds() -> None:
        try:
            third.acquire(table, timeout_seconds=6)
        except LockTimeoutError as error:
            failed.append(error)

    impatient = threading.Thread(target=wait_for_six_seconds)
    began = time.monotonic()
    impatient.start()
    eventually(lambda: coordinator.asked_for(table) == 3)
    eventually(lambda: time.monotonic() > began + 4)
    # The deadline does not begin anew when somebody in front goes: that would be after ten seconds.
    held.release()
    impatient.join(30)
    assert [error.timeout_seconds for error in failed] == [6]
    assert 6 <= time.monotonic() - began < 10
    waiting.join(30)
    got[0].release()


def test_whoever_gives_up_leaves_nothing_behind(
    coordinator: Coordinator, table: str, eventually: Callable[..., None]
) -> None:
    first, second = coordinator.manager(), coordinator.manager()
    second.connect()
    with first.acquire(table):
        with pytest.raises(LockTimeoutError):
            second.acquire(table, timeout_seconds=0.5)
        eventually(lambda: coordinator.asked_for(table) == 1)
        cancelled: list[Exception] = []

        def wait() -> None:
            try:
                second.acquire(table)
            except LockCancelledError as error:
                cancelled.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: coordinator.asked_for(table) == 2)
        assert second.cancel(table) == 1
        waiting.join(30)
        assert len(cancelled) == 1
        eventually(lambda: coordinator.asked_for(table) == 1)
    assert coordinator.asked_for(table) == 0


def test_a_hold_that_was_taken_away_is_noticed_and_told(
    coordinator: Coordinator, table: str, eventually: Callable[..., None]
) -> None:
    manager, other = coordinator.manager(), coordinator.manager()
    hold = manager.acquire(table)
    told: list[Any] = []
    hold.on_loss(told.append)
    hold.check()
    hold.record_commit(7)
    coordinator.take_away(hold)
    with other.acquire(table):
        with pytest.raises(LockLostError) as lost:
            hold.check()
        assert lost.value.commits == {table: (7,)}
        with pytest.raises(LockLostError):
            hold.intend(8, txn=None, attempt="late")
        eventually(lambda: told == [hold])
        assert not hold.is_valid()
        assert hold.over
    with pytest.raises(LockLostError):
        hold.release()


def test_an_unfinished_intent_is_handed_to_the_next_holder_and_a_settled_one_is_not(
    coordinator: Coordinator, table: str
) -> None:
    one, two = coordinator.manager(), coordinator.manager()
    with one.acquire(table) as clean:
        clean.intend(3, txn="a", attempt="first")
        assert dict(clean.intents.open) == {"first": 3}
        clean.intents.settle(["first"])
    with two.acquire(table) as after:
        assert after.intents.unfinished == ()
    with one.acquire(table) as earlier:
        earlier.intend(4, txn="b", attempt="second")
    with two.acquire(table) as after:
        assert [(intent.hold_id, intent.version, intent.txn) for intent in after.intents.read()] == [
            (earlier.hold_id, 4, "b")
        ]
        after.intents.clear()
    lost = one.acquire(table)
    lost.intend(5, txn="c", attempt="third")
    coordinator.take_away(lost)
    with two.acquire(table) as after:
        assert [(intent.hold_id, intent.version) for intent in after.intents.read()] == [(lost.hold_id, 5)]
        after.intents.clear()
    with pytest.raises(LockLostError):
        lost.release()
    with one.acquire(table) as last:
        assert last.intents.unfinished == ()


def test_a_release_tells_whether_the_hold_was_lost_and_comes_once(coordinator: Coordinator, table: str) -> None:
    manager = coordinator.manager()
    hold = manager.acquire(table)
    hold.release()
    with pytest.raises(LockNotHeldError):
        hold.release()
    lost = manager.acquire(table)
    coordinator.take_away(lost)
    with pytest.raises(LockLostError):
        lost.release()


def test_holds_of_one_coordinator_have_its_id(coordinator: Coordinator, table: str) -> None:
    with coordinator.manager().acquire(table) as one:
        pass
    with coordinator.manager().acquire(table) as two:
        assert one.ensemble_id == two.ensemble_id
        assert uuid.UUID(one.ensemble_id)
