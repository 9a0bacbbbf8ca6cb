"""Negative controls: with one protection left out, the same faults break a promise, and the verdict says which.

Seed 1; 2 writers; one fault each. Likewise what no fault does: a contender that stays, a writer that hangs. For steps
(``soak/steps.py``): seed 3, of which a writer takes both under its first lock; one writer. The control without
the guard is in test_command_line.py, too.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from soak.engines import STORE
from soak.faults import CLASSES
from soak.run import Soak
from soak.verdict import judge


@pytest.mark.parametrize(
    ("without", "name", "point", "broken"),
    [
        pytest.param("guard", "pause-both", "data", "I5", marks=pytest.mark.soak),
        ("condition", "pause-both", "put", "I3"),
        ("binding", "second-hold", "data", "I5"),
        ("intent", "pause-both", "put", "I5"),
        ("attempts", "s3-late", "data", "I5"),
    ],
)
def test_without_a_protection_a_promise_is_broken(
    make_soak: Callable[..., Soak], without: str, name: str, point: str, broken: str
) -> None:
    soak = make_soak(without=without)
    # Version 0 is another matter: there is nothing yet that could be filled.
    while soak.progress.counts["acknowledged"] < 2:
        soak.next_event()
    soak.play(CLASSES[name].strike(soak.context, "writer-1", point))
    assert soak.progress.faults == {name: 1}
    soak.finish()
    violations = judge(soak.evidence())
    assert broken in {each.invariant for each in violations}
    assert all(each.sentence for each in violations)


def taken(soak: Soak, kind: str) -> list[dict[str, Any]]:
    """Return what was said of the steps of this kind."""
    return [event for event in soak.history if event["event"] == "step" and event["kind"] == kind]


def until_steps_are_taken(soak: Soak) -> None:
    while not (taken(soak, "two-managers") and taken(soak, "stalled-listing")):
        soak.next_event()


@pytest.mark.parametrize("without", ["registry", "version"])
def test_without_what_a_step_needs_its_promise_is_broken(make_soak: Callable[..., Soak], without: str) -> None:
    """No fault strikes; the same steps with all protections are in the next test."""
    soak = make_soak(without=without, seed=3, writers=1)
    until_steps_are_taken(soak)
    soak.finish()
    assert all(step["met"] and step["error"] is None for step in taken(soak, "stalled-listing"))
    expected = {
        "registry": {"I10": 2 * len(taken(soak, "two-managers"))},
        "version": {"I11": len(taken(soak, "stalled-listing"))},
    }
    assert Counter(each.invariant for each in judge(soak.evidence())) == expected[without]
    nothing_is_left_beside(soak)


def nothing_is_left_beside(soak: Soak) -> None:
    """Make sure that the partitions of the stalled listings can be had, and have no intents."""
    with ZookeeperLockManager(soak.hosts, timeout_seconds=0, job="foreign") as manager:
        for number in range(soak.options.writers):
            hold = manager.acquire(f"{soak.tables[0]}-partitions/writer-{number + 1}/{number}")
            assert hold.intents.unfinished == ()


def test_a_contender_that_stays_in_the_queue_is_found(make_soak: Callable[..., Soak]) -> None:
    """Nothing else is: with all protections, steps are as they must be."""
    soak = make_soak(seed=3, writers=1)
    until_steps_are_taken(soak)
    soak.rest()
    with (
        ZookeeperLockManager(soak.hosts, timeout_seconds=30, job="foreign") as manager,
        manager.acquire(soak.tables[0]),
    ):
        soak.finish()
    assert all(step["met"] and step["error"] is None for step in taken(soak, "stalled-listing"))
    (violation,) = judge(soak.evidence())
    assert violation.invariant == "I8"
    assert "left in the queue" in violation.sentence
    nothing_is_left_beside(soak)


def test_a_run_in_which_everybody_hangs_comes_to_its_end_and_says_so(
    make_soak: Callable[..., Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    soak = make_soak(commits=10_000)
    monkeypatch.setattr(soak, "_engine", replace(STORE, stall_seconds=1, finish_seconds=1))
    while not soak.progress.counts["acknowledged"]:
        soak.next_event()
    for writer in soak.writers.values():
        writer.signal(signal.SIGSTOP, python=True, jvm=False)
    soak.run()
    broken = [each for each in judge(soak.evidence()) if each.invariant == "I9"]
    assert "nothing was acknowledged for" in broken[0].sentence
    assert ["had to be killed" in each.sentence for each in broken[1:]] == [True, True]
