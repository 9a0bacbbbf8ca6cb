"""Two faults under one hold, or under two that follow each other, on Spark drivers at the gate; seed 1; 2 writers.

The first fault leaves an intent unfinished, so that the next holder fills that version with an empty commit. The second
one has the next holder's own commit fail.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.soak.faults import CLASSES
from sluice.soak.pairs import NEXT_HOLD, Pair
from sluice.soak.run import Soak
from sluice.soak.verdict import judge

pytestmark = pytest.mark.spark

MOST_TRIES = 6
# These are found by the commit id that the guard records, not by Delta's userMetadata.
FOUND_BY_THE_GUARD = {"merge", "delete", "apply_rows"}


def pair(second: str, second_point: str) -> Pair:
    return Pair(CLASSES["break-lock"], "writer-1", "checked", CLASSES[second], second_point, NEXT_HOLD)


def operation_struck(soak: Soak, begun: int) -> str | None:
    """Return the operation of the next holder, whose commit failed; None if the faults did not meet."""
    since = soak.history[begun:]
    if not [event for event in since if event["event"] == "pair" and event["met"]]:
        return None
    token = [event["token"] for event in since if event["event"] == "fault"][-1]
    mine = [event for event in since if event["event"] == "attempting" and event["token"] == token]
    return next((event["operation"] for event in mine if "operation" in event), None)


def strike_each(soak: Soak, second: str, point: str) -> set[str]:
    """Play the pair until it has struck an operation that the guard's record identifies."""
    struck: set[str] = set()
    for _ in range(MOST_TRIES):
        begun = len(soak.history)
        soak.play(pair(second, point).strike(soak.context))
        operation = operation_struck(soak, begun)
        struck |= {operation} if operation else set()
        if struck & FOUND_BY_THE_GUARD:
            return struck
    raise AssertionError(f"the two faults struck {struck or 'nothing'}")


@pytest.mark.parametrize(("second", "point"), [("break-lock", "data"), ("s3-unavailable", "data")])
def test_an_empty_commit_is_no_proof_of_the_operation_that_filled_it(
    make_soak: Callable[..., Soak], second: str, point: str
) -> None:
    soak = make_soak(engine="spark")
    while soak.progress.counts["acknowledged"] < 4:
        soak.next_event()
    strike_each(soak, second, point)
    soak.finish()
    assert [violation.sentence for violation in judge(soak.evidence())] == []
