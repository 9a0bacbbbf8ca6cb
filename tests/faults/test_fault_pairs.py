"""Two faults on Spark drivers at the gate, and two threads in one block: what is acknowledged is in the table.

Seed 6: the first writer takes the step with two threads, and no other, under its first lock. 2 writers. The first fault
leaves an intent unfinished, so that the next holder fills that version with an empty commit. The second fault has the
next holder's own commit fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from soak.faults import CLASSES
from soak.pairs import NEXT_HOLD, Pair
from soak.run import Soak
from soak.verdict import judge

pytestmark = pytest.mark.spark

SEED = 6
MOST_TRIES = 6
# Their commits have no userMetadata, so the guard's stamp identifies them.
STAMPED = {"merge", "delete", "apply_rows"}


def drivers(make_soak: Callable[..., Soak], commits: int = 4, **options: Any) -> Soak:
    """Start Spark drivers, and wait for some commits: version 0 is never filled."""
    soak = make_soak(engine="spark", seed=SEED, **options)
    while soak.progress.counts["acknowledged"] < commits:
        soak.next_event()
    return soak


def struck_operation(soak: Soak, begun: int) -> str | None:
    """Return the operation that the second fault struck; None if the two faults did not meet."""
    since = soak.history[begun:]
    if not any(event["event"] == "pair" and event["met"] for event in since):
        return None
    token = [event["token"] for event in since if event["event"] == "fault"][-1]
    attempts = [event for event in since if event["event"] == "attempting" and event["token"] == token]
    return next((str(event["operation"]) for event in attempts if "operation" in event), None)


def strike(soak: Soak, second: str) -> None:
    """Have the two faults meet, again until the second one has struck a stamped operation."""
    pair = Pair(CLASSES["break-lock"], "writer-1", "checked", CLASSES[second], "data", NEXT_HOLD)
    operations: list[str | None] = []
    while not STAMPED.intersection(operations):
        assert len(operations) < MOST_TRIES, operations
        begun = len(soak.history)
        soak.play(pair.strike(soak.context))
        operations.append(struck_operation(soak, begun))
    soak.finish()


def violations(soak: Soak) -> list[str]:
    return [f"{violation.invariant}: {violation.sentence}" for violation in judge(soak.evidence())]


@pytest.mark.parametrize("second", ["break-lock", pytest.param("s3-unavailable", marks=pytest.mark.soak)])
def test_what_is_acknowledged_is_in_the_table(make_soak: Callable[..., Soak], second: str) -> None:
    soak = drivers(make_soak)
    strike(soak, second)
    steps = [event for event in soak.history if event["event"] == "step" and event["kind"] == "two-threads"]
    assert [(step["met"], step["error"]) for step in steps[:1]] == [(True, None)]
    assert violations(soak) == []


def test_negative_control_an_empty_commit_proves_the_operation(make_soak: Callable[..., Soak]) -> None:
    soak = drivers(make_soak, without="identity")
    strike(soak, "break-lock")
    assert any(violation.startswith("I1: ") for violation in violations(soak))


def test_negative_control_a_thread_takes_the_commit_of_another(make_soak: Callable[..., Soak]) -> None:
    soak = drivers(make_soak, commits=1, writers=1, without="block")
    soak.finish()
    assert any(violation.startswith("I12: ") for violation in violations(soak))
