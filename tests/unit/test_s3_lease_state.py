"""The rules of a queue on S3, for partitions, shared entries, offers and intents. ``tests/model`` has the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lock_manager.intents import Intent
from lock_manager.s3_lease import state
from lock_manager.s3_lease.state import Entry, Queue

NOBODY = Queue(uri="s3://lake/table", next_token=7)


def queue_of(*entries: Entry) -> Queue:
    queue = NOBODY
    for entry in entries:
        queue = state.join(queue, entry)
    return queue


def entry(hold_id: str, **fields: Any) -> Entry:
    return Entry(hold_id=hold_id, token=0, **fields)


def part(hold_id: str, *partitions: str, shared: bool = False) -> Entry:
    return entry(hold_id, partitions=partitions, shared=shared)


def holders(queue: Queue) -> list[str]:
    return [entry.hold_id for entry in queue.entries if queue.holds(entry.hold_id)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry("a"), entry("b")], ["a"]),
        ([entry("a", shared=True), entry("b", shared=True)], ["a", "b"]),
        ([entry("a", shared=True), entry("b"), entry("c", shared=True)], ["a"]),
        ([part("a", "year=1"), part("b", "year=2")], ["a", "b"]),
        ([part("a", "year=1"), part("b", "year=10")], ["a", "b"]),
        ([part("a", "year=1/month=1"), part("b", "year=1")], ["a"]),
        ([part("a", "year=1"), part("b", "year=1/month=1")], ["a"]),
        ([part("a", "year=1/month=1"), part("b", "year=1/month=2")], ["a", "b"]),
        ([part("a", "year=1", "year=2"), part("b", "year=3", "year=2")], ["a"]),
        ([part("a", "year=1", shared=True), part("b", "year=1", shared=True)], ["a", "b"]),
        ([part("a", "year=1"), entry("b"), part("c", "year=2")], ["a"]),
        ([part("a", "year=1"), entry("b", shared=True), part("c", "year=2", shared=True)], ["a", "c"]),
    ],
)
def test_an_entry_holds_unless_an_earlier_one_conflicts(entries: list[Entry], expected: list[str]) -> None:
    assert holders(queue_of(*entries)) == expected


def test_tokens_increase_and_a_repeated_join_changes_nothing() -> None:
    queue = queue_of(entry("a"), entry("b"))
    assert [entry.token for entry in queue.entries] == [7, 8]
    assert state.join(queue, entry("a")) == queue
    assert state.join(state.leave(queue, "a"), entry("a")).entries[-1].token == 9


def test_an_entry_that_holds_at_once_has_begun_its_lease() -> None:
    assert [entry.counter for entry in queue_of(entry("a"), entry("b")).entries] == [1, 0]


def test_only_the_holder_that_was_seen_is_removed() -> None:
    queue = queue_of(entry("a"), entry("b"))
    stale = queue.entries[0]
    assert holders(state.expel(queue, stale)) == ["b"]
    assert state.expel(state.beat(queue, "a"), stale) == state.beat(queue, "a")
    waiting = queue.entries[1]
    assert state.expel(queue, waiting) == queue


def test_offers_end_at_the_first_request_without_one() -> None:
    queue = queue_of(
        entry("a", offer={"n": 0}), entry("b", offer={"n": 1}), entry("c", offer={"n": 2}), entry("d"),
        entry("e", offer={"n": 3}),
    )  # fmt: skip
    assert state.offers_behind(queue, "a", {}, 0.0) == {"b": {"n": 1}, "c": {"n": 2}}
    assert state.offers_behind(queue, "b", {}, 0.0) == {}
    assert state.offers_behind(queue_of(entry("a", shared=True), entry("b", offer={})), "a", {}, 0.0) == {}
    assert state.offers_behind(queue_of(part("a", "year=1"), entry("b", offer={})), "a", {}, 0.0) == {}


def test_an_offer_that_is_not_renewed_is_left_out() -> None:
    queue = queue_of(entry("a"), *(entry(name, offer={"of": name}, lease_seconds=10.0) for name in ("dead", "alive")))
    seen = state.observe({}, queue, 0.0)
    assert state.offers_behind(queue, "a", seen, 9.0) == {"dead": {"of": "dead"}, "alive": {"of": "alive"}}
    renewed = state.renew_offer(queue, "alive")
    seen = state.observe(seen, renewed, 9.0)
    assert state.offers_behind(renewed, "a", seen, 11.0) == {"alive": {"of": "alive"}}


def test_a_turn_begins_a_new_observation() -> None:
    """An entry that has waited for long may not be removed as soon as it holds the lock."""
    queue = queue_of(entry("a"), entry("b", lease_seconds=10.0), entry("c"))
    seen = state.observe({}, queue, 0.0)
    turned = state.leave(queue, "a")
    waiting = turned.entries[1]
    seen = state.observe(seen, turned, 100.0)
    assert state.stale_holders(seen, turned, waiting, 104.0) == []
    assert state.stale_holders(seen, turned, waiting, 105.0) == [turned.entries[0]]


def intent(hold_id: str, version: int) -> Intent:
    return Intent(hold_id=hold_id, version=version, txn=None, attempt=f"{version}", token=7)


def test_intents_of_holds_that_are_gone_are_unfinished() -> None:
    queue = queue_of(entry("a"), entry("b"))
    queue = state.intend(state.intend(queue, intent("a", 1)), intent("a", 2))
    assert queue.unfinished() == ()
    assert state.leave(queue, "a").unfinished() == (intent("a", 2),)
    assert state.leave(queue, "a", settled=True).unfinished() == ()
    assert state.expel(queue, queue.entries[0]).unfinished() == (intent("a", 2),)
    assert state.clear(queue, [intent("a", 1)]) == queue
    assert state.clear(queue, [intent("a", 2)]).intents == ()


def test_a_queue_is_stored_as_json() -> None:
    queue = queue_of(part("a", "year=1"), entry("b", offer={"lines": ["{}"]}, data={"host": "h"}, lease_seconds=5.0))
    queue = state.intend(queue, intent("a", 3))
    assert Queue.parse(queue.data("change")) == queue
    assert queue.data("change") != queue.data("another change")


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"added": 1},
        {"intents": [{**vars(Intent(hold_id="a", version=1, txn=None, attempt="1", token=1)), "added": 1}]},
        {"entries": [{"hold_id": "a", "token": 1, "partitions": None, "unknown": 1}]},
        {"entries": [{}]},
        {"next_token": "x"},
        {"intents": [{"hold_id": "a"}]},
    ],
)
def test_another_content_is_refused(fields: dict[str, Any]) -> None:
    content = json.loads(NOBODY.data("change")) | fields
    with pytest.raises(ValueError, match=r"format|not a|invalid|not known"):
        Queue.parse(json.dumps(content).encode())


def test_an_owner_trusts_a_shorter_lease_than_others_wait_for() -> None:
    (holder,) = queue_of(entry("a", lease_seconds=10.0)).entries
    assert state.valid_until(holder, not_held_at=100, renewed_at=200) == 208
    (unnoticed,) = state.leave(queue_of(entry("a"), entry("b", lease_seconds=30.0)), "a").entries
    assert state.valid_until(unnoticed, not_held_at=100, renewed_at=200) == 108


@pytest.mark.parametrize(("lease_seconds", "claim_seconds"), [(30.0, 10.0), (10.0, 5.0), (2.0, 2.0)])
def test_an_entry_has_a_part_of_its_lease_to_notice_its_turn(lease_seconds: float, claim_seconds: float) -> None:
    queue = state.leave(queue_of(entry("a"), entry("b", lease_seconds=lease_seconds)), "a")
    assert queue.entries[0].removal_seconds == claim_seconds
    assert state.beat(queue, "b").entries[0].removal_seconds == lease_seconds
