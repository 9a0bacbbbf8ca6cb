"""Negative controls: without one protection, the same faults break a promise, and the verdict names it.

Seed 1, 2 writers, one fault each. Some controls need no fault: a contender that remains, writers that hang, and those
of steps (``soak/steps.py``), which have one writer and seed 3: the writer takes ``two-managers`` and
``stalled-listing`` under its first lock. A further control without the guard is in test_command_line.py.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import lock_manager
from lock_manager.settings import S3_LEASE
from soak.engines import STORE
from soak.faults import CLASSES
from soak.options import ZOOKEEPER
from soak.run import Soak
from soak.verdict import judge
from soak.violation import Violation


@pytest.mark.parametrize(
    ("without", "name", "point", "broken", "coordinator"),
    [
        pytest.param("guard", "pause-both", "data", "I5", ZOOKEEPER, marks=pytest.mark.soak),
        ("condition", "pause-both", "put", "I3", ZOOKEEPER),
        ("binding", "second-hold", "data", "I5", ZOOKEEPER),
        ("intent", "pause-both", "put", "I5", ZOOKEEPER),
        ("attempts", "s3-late", "data", "I5", ZOOKEEPER),
        pytest.param("guard", "lease-cut", "data", "I5", S3_LEASE, marks=pytest.mark.full),
        pytest.param("condition", "pause-both", "put", "I3", S3_LEASE, marks=pytest.mark.soak),
        pytest.param("binding", "second-hold", "data", "I5", S3_LEASE, marks=pytest.mark.soak),
        ("intent", "pause-both", "put", "I5", S3_LEASE),
        pytest.param("attempts", "s3-late", "data", "I5", S3_LEASE, marks=pytest.mark.soak),
        pytest.param("lease-condition", "lease-late", "data", "I4", S3_LEASE, marks=pytest.mark.soak),
    ],
)
def test_without_a_protection_a_promise_is_broken(
    make_soak: Callable[..., Soak], without: str, name: str, point: str, broken: str, coordinator: str
) -> None:
    def violations() -> list[Violation]:
        soak = make_soak(without=without, coordinator=coordinator)
        # No empty commit can fill version 0.
        while soak.progress.counts["acknowledged"] < 2:
            soak.next_event()
        soak.run_fault(CLASSES[name].strike(soak.context, "writer-1", point))
        assert soak.progress.faults == {name: 1}
        soak.finish()
        return judge(soak.evidence())

    # On a machine with other work the writer may continue before the next holder has read. Then nothing is broken.
    attempts = (violations() for _ in range(3))
    breaking = (attempt for attempt in attempts if broken in {violation.invariant for violation in attempt})
    broken_promises = next(breaking, [])
    assert broken_promises, f"{broken} is kept in three attempts"
    assert all(violation.sentence for violation in broken_promises)


def steps_of(soak: Soak, kind: str) -> list[dict[str, Any]]:
    """Return the events of the steps of this kind."""
    return [event for event in soak.history if event["event"] == "step" and event["kind"] == kind]


def wait_for_steps(soak: Soak, *kinds: str) -> None:
    while not all(steps_of(soak, kind) for kind in kinds):
        soak.next_event()


@pytest.mark.full
@pytest.mark.parametrize("without", ["registry", "version"])
def test_without_the_protection_of_a_step_a_promise_is_broken(make_soak: Callable[..., Soak], without: str) -> None:
    """No fault strikes. The next test takes the same steps with all protections."""
    soak = make_soak(without=without, seed=3, writers=1)
    wait_for_steps(soak, "two-managers", "stalled-listing")
    soak.finish()
    assert all(step["met"] and step["error"] is None for step in steps_of(soak, "stalled-listing"))
    expected = {
        "registry": {"I10": 2 * len(steps_of(soak, "two-managers"))},
        "version": {"I11": len(steps_of(soak, "stalled-listing"))},
    }
    assert Counter(violation.invariant for violation in judge(soak.evidence())) == expected[without]
    assert_partitions_are_free(soak)


def assert_partitions_are_free(soak: Soak) -> None:
    """Assert that the tables of the stalled listings are not locked and have no intents."""
    with lock_manager.connect(soak.locks.url, timeout_seconds=0, job="foreign") as manager:
        for number in range(soak.options.writers):
            hold = manager.acquire(f"{soak.tables[0]}-partitions/writer-{number + 1}/{number}")
            assert hold.intents.unfinished == ()


def test_a_contender_that_remains_in_the_queue_is_detected(make_soak: Callable[..., Soak]) -> None:
    """The contender is the only violation, because with all protections the steps succeed."""
    soak = make_soak(seed=3, writers=1)
    wait_for_steps(soak, "two-managers", "stalled-listing")
    soak.wait_until_idle()
    with (
        lock_manager.connect(soak.locks.url, timeout_seconds=30, job="foreign") as manager,
        manager.acquire(soak.tables[0]),
    ):
        soak.finish()
    assert all(step["met"] and step["error"] is None for step in steps_of(soak, "stalled-listing"))
    (violation,) = judge(soak.evidence())
    assert violation.invariant == "I8"
    assert "left in the queue" in violation.sentence
    assert_partitions_are_free(soak)


@pytest.mark.full
def test_a_manager_on_s3_without_the_holds_of_another_is_detected(make_soak: Callable[..., Soak]) -> None:
    soak = make_soak(without="registry", coordinator=S3_LEASE, seed=3, writers=1)
    wait_for_steps(soak, "two-managers")
    soak.finish()
    violations = judge(soak.evidence())
    assert [violation.invariant for violation in violations] == ["I10"] * 2 * len(steps_of(soak, "two-managers"))


@pytest.mark.full
def test_a_contender_on_s3_that_remains_is_detected(
    make_soak: Callable[..., Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    soak = make_soak(coordinator=S3_LEASE, seed=3, writers=1)
    wait_for_steps(soak, "two-managers")
    soak.wait_until_idle()
    for name, value in (soak._s3.environment if soak._s3 else {}).items():
        monkeypatch.setenv(name, value)
    with lock_manager.connect(soak.locks.url, job="foreign") as manager, manager.acquire(soak.tables[0]):
        soak.finish()
    (violation,) = judge(soak.evidence())
    assert violation.invariant == "I8"
    assert "left in the queue" in violation.sentence


@pytest.mark.full
def test_a_run_with_hanging_writers_ends_with_a_violation(
    make_soak: Callable[..., Soak], monkeypatch: pytest.MonkeyPatch
) -> None:
    soak = make_soak(commits=10_000)
    monkeypatch.setattr(soak, "_engine", replace(STORE, stall_seconds=1, finish_seconds=1))
    while not soak.progress.counts["acknowledged"]:
        soak.next_event()
    for writer in soak.writers.values():
        writer.signal(signal.SIGSTOP, python=True, jvm=False)
    soak.run()
    stall, *kills = [violation.sentence for violation in judge(soak.evidence()) if violation.invariant == "I9"]
    assert "nothing was acknowledged for" in stall
    assert ["was killed" in kill for kill in kills] == [True, True]
