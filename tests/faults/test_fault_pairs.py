"""Two faults on Spark drivers at the gate, and two threads in one block: acknowledged operations are in the table.

2 writers and seed 6: the first writer takes only the step with two threads under its first lock. The first fault
leaves an unfinished intent, so the next holder fills that version with an empty commit. The second fault makes the next
holder's own commit fail.
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
MAX_TRIES = 12
# Operations without userMetadata. The guard's stamp identifies them.
STAMPED = {"merge", "delete", "apply_rows"}
Condition = Callable[[Soak, set[str | None]], bool]


def start_drivers(make_soak: Callable[..., Soak], commits: int = 4, **options: Any) -> Soak:
    """Start Spark drivers, and wait for some commits, because version 0 is never filled."""
    # Without group commits, most operations are stamped ones.
    soak = make_soak(engine="spark", seed=SEED, group_commits=False, **options)
    while soak.progress.counts["acknowledged"] < commits:
        soak.next_event()
    return soak


def struck_operation(soak: Soak, start: int) -> str | None:
    """Return the operation that the second fault struck; ``start`` is the history index at which the pair began.

    None if the faults did not meet, if the struck hold attempted no operation, or if it stored no empty commit because
    the late PUT of the first writer was faster.
    """
    events = soak.history[start:]
    if not any(event["event"] == "pair" and event["met"] for event in events):
        return None
    token = [event["token"] for event in events if event["event"] == "fault"][-1]
    hold_events = [event for event in events if event.get("token") == token]
    if not any(event["event"] == "filled" for event in hold_events):
        return None
    attempts = [event for event in hold_events if event["event"] == "attempting"]
    return next((str(event["operation"]) for event in attempts if "operation" in event), None)


def strikes_stamped_operation(_: Soak, operations: set[str | None]) -> bool:
    return bool(operations & STAMPED)


def acknowledges_empty_commit(soak: Soak, _: set[str | None]) -> bool:
    """Return whether an operation was acknowledged with the version of an empty commit."""
    filled = {(event["table"], event["version"]) for event in soak.history if event["event"] == "filled"}
    acknowledged = [event for event in soak.history if event["event"] == "acknowledged"]
    return any((event["table"], event["version"]) in filled for event in acknowledged)


def strike(soak: Soak, second: str, until: Condition) -> None:
    """Repeat the pair of faults until a condition is true for the soak and the operations that the second struck."""
    pair = Pair(CLASSES["break-lock"], "writer-1", "checked", CLASSES[second], "data", NEXT_HOLD)
    operations: list[str | None] = []
    while not until(soak, set(operations)):
        assert len(operations) < MAX_TRIES, f"{until.__name__}: false; the second fault struck {operations}"
        start = len(soak.history)
        soak.run_fault(pair.strike(soak.context))
        operations.append(struck_operation(soak, start))
    soak.finish()


def violations(soak: Soak) -> list[str]:
    return [str(violation) for violation in judge(soak.evidence())]


@pytest.mark.parametrize("second", ["break-lock", pytest.param("s3-unavailable", marks=pytest.mark.soak)])
def test_acknowledged_operations_are_in_the_table(make_soak: Callable[..., Soak], second: str) -> None:
    soak = start_drivers(make_soak)
    strike(soak, second, strikes_stamped_operation)
    steps = [event for event in soak.history if event["event"] == "step" and event["kind"] == "two-threads"]
    assert [(step["met"], step["error"]) for step in steps[:1]] == [(True, None)]
    assert violations(soak) == []


def test_negative_control_an_empty_commit_proves_the_operation(make_soak: Callable[..., Soak]) -> None:
    soak = start_drivers(make_soak, without="identity")
    # The empty commit has the write id of an operation only if one waits for its lock at that moment.
    strike(soak, "break-lock", acknowledges_empty_commit)
    assert any(violation.startswith("I1: ") for violation in violations(soak))


def test_negative_control_a_thread_reports_the_commit_of_another(make_soak: Callable[..., Soak]) -> None:
    soak = start_drivers(make_soak, commits=1, writers=1, without="block")
    soak.finish()
    assert any(violation.startswith("I12: ") for violation in violations(soak))
