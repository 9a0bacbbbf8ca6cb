"""Negative controls: with one protection left out, the same faults break a promise, and the verdict says which.

Seed 1; 2 writers; one fault each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.soak.faults import CLASSES
from sluice.soak.run import Soak
from sluice.soak.verdict import judge


@pytest.mark.parametrize(
    ("without", "name", "point", "broken"),
    [
        ("guard", "pause-both", "data", "I5"),
        ("condition", "pause-both", "put", "I3"),
        ("binding", "second-hold", "data", "I5"),
        ("intent", "pause-both", "put", "I5"),
    ],
)
def test_without_a_protection_a_promise_is_broken(
    make_soak: Callable[..., Soak], without: str, name: str, point: str, broken: str
) -> None:
    soak = make_soak(without=without)
    # Version 0 is another matter: there is nothing yet that could be occupied.
    while soak.progress.counts["acknowledged"] < 2:
        soak.next_event()
    soak.play(CLASSES[name].strike(soak.stage, "writer-1", point))
    assert soak.progress.faults == {name: 1}
    soak.finish()
    violations = judge(soak.evidence())
    assert broken in {each.invariant for each in violations}
    assert all(each.sentence for each in violations)
