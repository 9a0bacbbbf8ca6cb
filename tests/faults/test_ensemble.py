"""Faults of an ensemble of three: the leader is killed or paused, the quorum is lost, all servers restart.

Seed 1, 2 writers, one fault of each class; the restarts only with ``-m soak``. The controls of the verdict are in
test_controls.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from soak.faults import CLASSES
from soak.liveness import takeovers
from soak.run import Soak
from soak.verdict import judge


@pytest.mark.full
@pytest.mark.parametrize(
    "names",
    [
        ("zookeeper-leader-kill", "zookeeper-leader-pause", "zookeeper-quorum"),
        pytest.param(("zookeeper-rolling-restart",), marks=pytest.mark.soak),
    ],
    ids=["leader and quorum", "rolling restart"],
)
def test_writers_continue_and_every_promise_holds(make_soak: Callable[..., Soak], names: tuple[str, ...]) -> None:
    soak = make_soak(faults=names, session_seconds=3.0)
    for name in names:
        acknowledged = soak.progress.counts["acknowledged"]
        soak.run_fault(CLASSES[name].strike(soak.context, "writer-1", "data"))
        assert soak.progress.counts["acknowledged"] > acknowledged, f"{name}: no commit was acknowledged"
    assert soak.progress.faults == dict.fromkeys(names, 1)
    soak.finish()
    assert [str(violation) for violation in judge(soak.evidence())] == []


@pytest.mark.full
def test_the_session_timeout_that_the_server_grants_counts(make_soak: Callable[..., Soak]) -> None:
    soak = make_soak(session_seconds=60.0)
    granted = soak.context.session_seconds
    assert granted < 20
    soak.run_fault(CLASSES["pause-both"].strike(soak.context, "writer-1", "data"))
    soak.finish()
    evidence = soak.evidence()
    ((_, successor),) = takeovers(evidence)
    assert successor is not None
    assert soak.progress.counts["refused"] == 1
    assert evidence.session_seconds == granted
    assert [str(violation) for violation in judge(evidence)] == []
