"""The rules of a queue on S3, for partitions, shared entries, offers and intents. ``tests/model`` has the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lock_manager.intents import Intent
from lock_manager.s3_lease import state
from lock_manager.s3_lease.state import Entry, Queue

NOBODY = Queue(uri="s3://lake/table", next_token=7)
PARTITIONS = ["a=1", "a=10", "a=2", "a=1/b=1", "a=1/b=2", "a=2/b=1", "a=1/b=1/c=1"]


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


def conflict(one: Entry, other: Entry) -> bool:
    """The definition of a conflict, for two entries."""
    if one.shared and other.shared:
        return False
    if one.partitions is None or other.partitions is None:
        return True
    names = [(mine, theirs) for mine in one.partitions for theirs in other.partitions]
    return any(f"{mine}/".startswith(f"{theirs}/") or f"{theirs}/".startswith(f"{mine}/") for mine, theirs in names)


SCOPES = st.none() | st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3).map(tuple)


@settings(deadline=None)
@given(st.lists(st.tuples(SCOPES, st.booleans()), max_size=8))
def test_the_entries_ahead_are_those_that_conflict_in_pairs(scopes: list[tuple[Any, bool]]) -> None:
    entries = [entry(f"{n}", partitions=partitions, shared=shared) for n, (partitions, shared) in enumerate(scopes)]
    queue = queue_of(*entries)
    for number, waiting in enumerate(queue.entries):
        ahead = [other for other in queue.entries[:number] if conflict(other, waiting)]
        assert queue.ahead_of(waiting) == ahead
        assert queue.holds(waiting.hold_id) == (not ahead)
        assert queue.ahead_of(replace(waiting, hold_id="new")) == [
            other for other in queue.entries if conflict(other, waiting)
        ]


def steps_of(function: Callable[[], object]) -> int:
    """Return the number of Python's instructions that a call executes."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return steps


def long_queue(length: int, make: Callable[[int], Entry]) -> Queue:
    entries = tuple(replace(make(number), token=number) for number in range(length))
    return replace(NOBODY, entries=entries, next_token=length)


def look(content: bytes) -> None:
    """Do what a client does that reads a queue and waits at its end, and what a new client does."""
    queue = Queue.parse(content)
    waiting = queue.entries[-1]
    seen = state.observe({}, queue, 0.0)
    state.stale_holders(seen, queue, waiting, 1.0)
    queue.ahead_of(waiting)
    state.offers_behind(queue, queue.entries[0].hold_id, seen, 1.0)
    state.join(queue, entry("new"))


@pytest.mark.parametrize(
    "make",
    [
        lambda number: entry(f"{number}"),
        lambda number: entry(f"{number}", shared=True),
        lambda number: entry(f"{number}", offer={"lines": []}),
        lambda number: part(f"{number}", f"a=1/b={number % 7}", f"a={number}"),
    ],
    ids=["table", "shared", "offers", "partitions"],
)
def test_the_steps_of_a_look_increase_with_the_length_of_the_queue(make: Callable[[int], Entry]) -> None:
    half, whole = (long_queue(length, make).data() for length in (500, 1000))
    assert steps_of(lambda: look(whole)) < 2.2 * steps_of(lambda: look(half))


def test_negative_control_steps_for_each_pair_increase_with_the_square() -> None:
    half, whole = (long_queue(length, lambda number: entry(f"{number}")) for length in (50, 100))

    def compare_pairs(queue: Queue) -> None:
        for waiting in queue.entries:
            queue.ahead_of(waiting)

    assert steps_of(lambda: compare_pairs(whole)) > 3 * steps_of(lambda: compare_pairs(half))


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


def test_a_request_that_joins_again_begins_a_new_observation() -> None:
    """Another client removed it, and it has got the lock again: it is not the holder that was seen."""
    queue = state.leave(queue_of(entry("a"), entry("b"), entry("c")), "a")
    seen = state.observe({}, queue, 0.0)
    stale = queue.entries[0]
    again = state.join(state.expel(queue, stale), entry("b"))
    again = state.join(state.leave(again, "c"), entry("d"))
    assert holders(again) == ["b"]
    assert again.entries[0].counter == stale.counter == 0
    assert state.expel(again, stale) == again
    seen = state.observe(seen, again, 100.0)
    assert state.stale_holders(seen, again, again.entries[1], 100.0) == []


def test_an_offer_may_be_committed_only_behind_a_holder() -> None:
    """A join without an answer is repeated if no holder can have seen the entry."""
    member = entry("m", offer={})
    alone = state.join(NOBODY, member)
    assert not state.may_be_offered(alone, NOBODY, "m")
    assert not state.may_be_offered(alone, queue_of(entry("b")), "m")
    before = queue_of(entry("a"))
    attempt = state.join(before, member)
    assert not state.may_be_offered(attempt, attempt, "m")
    # The token is not given, or another request has it.
    assert not state.may_be_offered(attempt, before, "m")
    assert not state.may_be_offered(attempt, state.beat(before, "a"), "m")
    assert not state.may_be_offered(attempt, state.leave(before, "a"), "m")
    other = state.join(before, entry("b"))
    assert not state.may_be_offered(attempt, other, "m")
    # The request with the token has left the queue: it may be this one.
    assert state.may_be_offered(attempt, state.dismiss(attempt, ["m"]), "m")
    assert state.may_be_offered(attempt, state.leave(other, "b"), "m")


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
    queue = replace(state.intend(queue, intent("a", 3)), change_id="change")
    assert Queue.parse(queue.data()) == queue
    assert Queue.parse(queue.data()).change_id == "change"


def test_equal_queues_of_two_changes_differ() -> None:
    """Otherwise an object could have an earlier ETag again, and a late PUT could succeed."""
    one, other = (replace(NOBODY, change_id=change_id) for change_id in ("change", "another change"))
    assert one == other
    assert one.data() != other.data()


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
    content = json.loads(NOBODY.data()) | fields
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
