"""The figures of group commits in the verdict of a soak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from soak.groups import group_figures
from tests.support.soak_history import TABLE, commit, event, sound_evidence

HOLDER: dict[str, Any] = {"worker": "writer-1", "incarnation": 1, "token": 9}
MEMBER: dict[str, Any] = {"worker": "writer-2", "incarnation": 2}
OFFER = event("waiting", 2.0, **MEMBER, offer="c3")
GROUPED = event("grouped", 2.1, **HOLDER, txn="t2", members=["c3"])
FAULT = event("fault", 2.2, kind="kill-both", **HOLDER)


EXPECTED = {"versions": 1, "members": 1, "largest": 2, "offers": 1, "plain": 2, "light": 0, "faults": {}}


def figures(history: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the figures of a table whose newest version has two writers."""
    evidence = sound_evidence()
    group = replace(commit(2, 9), group=(commit(2, 9), replace(commit(2, 9, "t3"), stamp=None)))
    state = replace(evidence.tables[TABLE], commits=[commit(0, 5), commit(1, 7), group])
    return group_figures(replace(evidence, history=history, tables={TABLE: state}))


def test_versions_and_members_are_counted() -> None:
    assert figures([OFFER]) == EXPECTED


def test_light_commits_in_the_log_are_counted() -> None:
    attempts = [event("attempting", 2.0, **HOLDER, txn=txn, light=txn != "t1") for txn in ("t1", "t2", "not stored")]
    assert figures([OFFER, *attempts]) == {**EXPECTED, "light": 1}


@pytest.mark.parametrize(
    ("before_fault", "times"),
    [
        ([], None),
        ([{**OFFER, "offer": None}], None),
        ([OFFER], (1, 0)),
        ([OFFER, event("acknowledged", 2.0, **MEMBER)], None),
        ([OFFER, GROUPED], (1, 1)),
        ([GROUPED, event("stored", 2.1, **HOLDER)], None),
        # The intent of a dead holder stays until the next one has settled it.
        ([GROUPED, event("killed", 2.1, **HOLDER)], (0, 1)),
        ([GROUPED, event("read", 2.1, **MEMBER, token=11)], None),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_faults_are_counted_by_what_they_meet(
    before_fault: list[dict[str, Any]], times: tuple[int, int] | None
) -> None:
    faults = figures([*before_fault, FAULT])["faults"]
    expected = {} if times is None else {"kill-both": {"queued": times[0], "named": times[1]}}
    assert faults == expected
