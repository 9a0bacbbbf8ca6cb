"""Negative controls of group commits: without one protection, the verdict of a soak names a broken promise.

Spark drivers, which only append. In each scenario ``writer-1`` holds the lock, and the appends of the others wait
behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from lock_manager.testing.queues import LockQueues
from soak.evidence import Event
from soak.fault_context import OFFERS, OUTCOMES, PUT, FaultContext, Incident, is_from, stop_at, wait_for, wait_until
from soak.faults import CLASSES
from soak.group_controls import GROUP_CONTROLS
from soak.groups import group_figures
from soak.pairs import GROUP, Pair
from soak.queue_faults import Queued, queue_behind_new_holder, stop_holder_at
from soak.run import Soak
from soak.verdict import judge

pytestmark = pytest.mark.spark

HOLDER, MEMBER, LAST = "writer-1", "writer-2", "writer-3"
SECONDS = 60.0

Scenario = Callable[[FaultContext], Incident]


def wait_in_group(context: FaultContext, point: str) -> Generator[None, Event | None, Queued]:
    """Let the member wait behind the holder until the holder is stopped at this point."""
    while True:
        queued = yield from queue_behind_new_holder(context, MEMBER, "asking")
        if queued is None:
            continue
        yield from wait_until(SECONDS, partial(all_wait, context, queued.table))
        if point != queued.point:
            queued = yield from stop_holder_at(context, queued, point)
        if queued is not None and (point in ("acquired", OFFERS) or is_named(context)):
            return queued
        if queued is not None:
            queued.continue_holder(context)
            yield from wait_for(SECONDS, is_from(HOLDER, *OUTCOMES))


def all_wait(context: FaultContext, table: str) -> bool:
    return len(context.queues.contenders(table)) == len(context.writers)


def is_named(context: FaultContext) -> bool:
    """Return whether the holder's newest attempt has a member."""
    events = (event["event"] for event in reversed(context.history) if event.get("worker") == HOLDER)
    return next(kind for kind in events if kind in ("grouped", "attempting")) == "grouped"


def cancel_at(point: str) -> Scenario:
    """Return a scenario: the member cancels its wait while the holder is stopped at this point."""

    def run(context: FaultContext) -> Incident:
        queued = yield from wait_in_group(context, point)
        context.record("fault", kind="cancel-queued", worker=MEMBER)
        context.writers[MEMBER].send("cancel")
        yield from wait_for(SECONDS, is_from(MEMBER, *OUTCOMES))
        queued.continue_holder(context)
        yield from wait_for(SECONDS, is_from(HOLDER, *OUTCOMES))

    return run


def cancel_between_log_and_intents(context: FaultContext) -> Incident:
    """The holder's PUT is stored after the member has read the log, and before it reads the intents."""
    queued = yield from wait_in_group(context, PUT)
    looking = stop_at(context, MEMBER, "looked")
    next(looking)
    context.record("fault", kind="cancel-queued", worker=MEMBER)
    context.writers[MEMBER].send("cancel")
    yield from looking
    queued.continue_holder(context)
    yield from wait_for(SECONDS, is_from(HOLDER, "released"))
    context.writers[MEMBER].send("go")
    yield from wait_for(SECONDS, is_from(MEMBER, *OUTCOMES))


def lose_hold_after_put(context: FaultContext) -> Incident:
    """The holder's contender is deleted after its PUT is stored, and before the holder removes its members."""
    queued = yield from wait_in_group(context, "stored")
    context.record("fault", kind="break-lock", worker=HOLDER)
    context.queues.delete(queued.table, queued.stop.event["token"])
    yield from wait_for(SECONDS, lambda event: is_from(MEMBER, *OUTCOMES)(event) or is_from(LAST, *OUTCOMES)(event))
    queued.continue_holder(context)
    yield from wait_for(SECONDS, is_from(HOLDER, *OUTCOMES))


def commit(context: FaultContext) -> Incident:
    """Nothing happens to the group."""
    queued = yield from wait_in_group(context, "checked")
    queued.continue_holder(context)
    yield from wait_for(SECONDS, is_from(MEMBER, *OUTCOMES))


def remove_member(context: FaultContext) -> Incident:
    """Another client deletes the member's contender, and the holder commits nothing for it."""
    queued = yield from wait_in_group(context, "acquired")
    assert isinstance(context.queues, LockQueues)
    context.queues.delete_of(queued.table, MEMBER)
    # Without the protection the member reports success. With it, it requests the lock again.
    yield from wait_for(SECONDS, is_from(MEMBER, "acknowledged", "waiting"))
    queued.continue_holder(context)
    yield from wait_for(SECONDS, is_from(MEMBER, *OUTCOMES))


cancel_before_intent, cancel_before_put, cancel_during_put = (cancel_at(point) for point in (OFFERS, "checked", PUT))

SCENARIOS: dict[str, Scenario] = {
    "named-members": cancel_during_put,
    "waiting-members": cancel_before_intent,
    "remaining-members": cancel_before_intent,
    "member-asks": cancel_during_put,
    "intents-first": cancel_between_log_and_intents,
    "member-looks": lose_hold_after_put,
    "committed-offers": lose_hold_after_put,
    "member-stamps": commit,
    "member-actions": commit,
    # The PUT cannot wait until the member has given up: S3A would repeat it.
    "kept-files": cancel_before_put,
    "log-proves": remove_member,
}


def test_each_control_has_a_scenario() -> None:
    assert SCENARIOS.keys() == GROUP_CONTROLS.keys()


def start(make_soak: Callable[..., Soak], **options: Any) -> Soak:
    """Start Spark drivers. No scenario needs the end of a session."""
    return make_soak(engine="spark", appends_only=True, session_seconds=8.0, **options)


def wait_for_commits(soak: Soak) -> Incident:
    """Wait until the table exists and each driver has loaded its classes."""
    yield from wait_until(300, lambda: soak.progress.counts["acknowledged"] >= 3)


def strike(soak: Soak, *scenarios: Scenario) -> set[str]:
    """Run scenarios one after the other; return the broken invariants."""
    soak.run_fault(wait_for_commits(soak), seconds=300)
    for scenario in scenarios:
        soak.run_fault(scenario(soak.context), seconds=300)
    soak.finish()
    return {violation.invariant for violation in judge(soak.evidence())}


# It takes 20 s, and needs no moment between two requests. The other controls are left to the soaks.
FAST = {"member-actions"}
CONTROLS = [pytest.param(name, marks=pytest.mark.full if name in FAST else pytest.mark.soak) for name in SCENARIOS]


@pytest.mark.parametrize("without", CONTROLS)
def test_without_a_protection_of_groups_a_promise_is_broken(make_soak: Callable[..., Soak], without: str) -> None:
    # One offer does not fit, so that its writer is the next holder.
    writers = 3 if without == "committed-offers" else 2
    soak = start(make_soak, without=without, writers=writers)
    assert strike(soak, SCENARIOS[without]) & GROUP_CONTROLS[without].breaks


PAIRS = [
    Pair(CLASSES[first], MEMBER, "asking", CLASSES[second], point, GROUP)
    for first, second, point in (("cancel-queued", "s3-lost-reply", "checked"), ("expire-queued", "break-lock", PUT))
] + [Pair(CLASSES[name], HOLDER, OFFERS) for name in ("break-lock", "kill-both")]


@pytest.mark.soak
def test_with_all_protections_the_scenarios_break_no_promise(make_soak: Callable[..., Soak]) -> None:
    soak = start(make_soak, writers=3)
    assert strike(soak, *dict.fromkeys(SCENARIOS.values()), *(pair.strike for pair in PAIRS)) == set()
    assert [event["met"] for event in soak.history if event["event"] == "pair"] == [True] * len(PAIRS)
    assert group_figures(soak.evidence())["members"]


@pytest.mark.soak
def test_the_preparation_of_a_control_breaks_no_promise(make_soak: Callable[..., Soak]) -> None:
    soak = start(make_soak, prepared_for="committed-offers", writers=3)
    assert strike(soak, SCENARIOS["committed-offers"]) == set()
    assert group_figures(soak.evidence())["members"]
