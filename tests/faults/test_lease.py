"""Faults of writers with locks on S3: the outcome that the writer reports, and finally every promise.

Seed 1, 2 writers. Faults of single requests are in integration/test_s3_lease.py, the negative controls in
test_controls.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from soak.evidence import Evidence
from soak.liveness import takeovers
from soak.run import Soak
from soak.verdict import judge
from tests.support.strikes import END_EVENTS, WRITER, outcome, strike, wait_for_commits, wait_until

pytestmark = pytest.mark.s3

SEEDS = 30
LOST = ("LockLostError", "LockNotHeldError")


def start(make_soak: Callable[..., Soak]) -> Soak:
    # Longer than the shortest lease, so that holders on a busy machine renew their locks in time.
    return wait_for_commits(make_soak(coordinator="s3-lease", session_seconds=3.0))


@pytest.fixture(scope="module")
def soak(make_soak: Callable[..., Soak]) -> Soak:
    return start(make_soak)


@pytest.mark.full
@pytest.mark.parametrize(("name", "point"), [("pause-both", "acquired"), ("pause-python", "data")])
def test_a_holder_paused_past_its_lease_is_refused(soak: Soak, name: str, point: str) -> None:
    end = outcome(strike(soak, name, point))
    assert end["event"] == "refused", end
    assert end["error"] in LOST


def test_a_put_after_a_takeover_finds_its_version_filled(soak: Soak) -> None:
    history = strike(soak, "pause-both", "put")
    assert outcome(history)["event"] == "refused"
    versions = [event["version"] for event in history if event["event"] == "taken" and event["worker"] == WRITER]
    (filled,) = [event for event in history if event["event"] == "filled"]
    assert filled["version"] == versions[0]
    assert filled["worker"] != WRITER


@pytest.mark.full
@pytest.mark.parametrize("point", ["checked", "put"])
def test_a_killed_holder_is_followed_after_its_lease(soak: Soak, point: str) -> None:
    (fault,) = [event for event in strike(soak, "kill-both", point) if event["event"] == "fault"]
    wait_until(
        soak,
        lambda: any(event["event"] == "acknowledged" and event["token"] > fault["token"] for event in soak.history),
    )


@pytest.mark.parametrize(
    "name",
    ["lease-cut", *(pytest.param(name, marks=pytest.mark.full) for name in ("lease-cut-both", "lease-unavailable"))],
)
def test_a_holder_that_cannot_renew_its_lock_is_refused(soak: Soak, name: str) -> None:
    end = outcome(strike(soak, name, "data"))
    assert end["event"] == "refused", end
    assert end["error"] in LOST


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("lease-lost-reply", "data"),
        *(
            pytest.param(name, point, marks=pytest.mark.full)
            for name in ("lease-lost-reply", "lease-500", "lease-503", "lease-409", "lease-412")
            for point in ("asking", "data", "releasing")
            if (name, point) != ("lease-lost-reply", "data")
        ),
    ],
)
def test_a_commit_survives_an_error_of_a_lock_request(soak: Soak, name: str, point: str) -> None:
    end = outcome(strike(soak, name, point))
    assert end["event"] == "acknowledged", end


@pytest.mark.full
@pytest.mark.parametrize(
    ("point", "event", "error"),
    [
        ("asking", "gave-up", "EnsembleRefusedError"),
        ("data", "refused", "LockLostError"),
        ("releasing", "acknowledged", None),
    ],
)
def test_a_refused_lock_request_has_a_definite_outcome(soak: Soak, point: str, event: str, error: str | None) -> None:
    end = outcome(strike(soak, "lease-403", point))
    assert (end["event"], end.get("error")) == (event, error)


@pytest.mark.full
@pytest.mark.parametrize("name", ["lease-delay", "lease-late"])
@pytest.mark.parametrize(
    ("point", "event"), [("asking", "acknowledged"), ("data", "refused"), ("releasing", "acknowledged")]
)
def test_a_late_lock_request_changes_no_outcome(soak: Soak, name: str, point: str, event: str) -> None:
    end = outcome(strike(soak, name, point))
    assert end["event"] == event, end


@pytest.mark.full
def test_a_broken_lock_refuses_the_commit(soak: Soak) -> None:
    end = outcome(strike(soak, "break-lock", "data"))
    assert (end["event"], end["error"]) == ("refused", "LockLostError")


@pytest.mark.full
def test_another_hold_of_the_process_does_not_allow_the_commit(soak: Soak) -> None:
    history = strike(soak, "second-hold", "data")
    assert any(event["event"] == "acknowledged" and event.get("thread") == 2 for event in history)
    assert outcome([event for event in history if "thread" not in event])["event"] == "refused"


@pytest.mark.full
def test_a_cancelled_wait_leaves_no_contender(soak: Soak) -> None:
    history = strike(soak, "cancel-queued", "asking")
    ends = [event for event in history if event.get("worker") == WRITER and event["event"] in END_EVENTS]
    assert "LockCancelledError" in [event.get("error") for event in ends]
    (check,) = [event for event in history if event["event"] == "queue"]
    assert (check["worker"], check["left"]) == (WRITER, [])
    assert ends[-1]["event"] == "acknowledged"


@pytest.mark.full
def test_a_waiter_paused_in_its_turn_waits_again(soak: Soak) -> None:
    assert outcome(strike(soak, "pause-queued", "asking"))["event"] == "acknowledged"


@pytest.fixture(scope="module")
def evidence(soak: Soak) -> Evidence:
    wait_until(soak, lambda: soak.progress.counts["acknowledged"] > 10)
    soak.finish()
    return soak.evidence()


# The last test of this soak, both in make test and in make test-all.
@pytest.mark.parametrize("faults", [3, pytest.param(12, marks=pytest.mark.full)])
def test_every_promise_holds_in_the_end(soak: Soak, evidence: Evidence, faults: int) -> None:
    assert [str(violation) for violation in judge(evidence)] == []
    assert soak.progress.faults.total() >= faults
    assert soak.progress.counts["filled"]
    assert any(successor is not None for _, successor in takeovers(evidence))


@pytest.mark.soak
def test_a_holder_stopped_past_its_lease_is_refused_with_each_seed(make_soak: Callable[..., Soak]) -> None:
    soak = start(make_soak)
    ends: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        choices = soak.context.random = random.Random(seed)
        name = choices.choice(("pause-python", "pause-both"))
        point = choices.choice(("acquired", "read", "data", "checked"))
        writer = choices.choice(sorted(soak.writers))
        ends.append(outcome(strike(soak, name, point, writer), writer))
    assert [(end["event"], end["error"] in LOST) for end in ends] == [("refused", True)] * SEEDS
    soak.finish()
    assert [str(violation) for violation in judge(soak.evidence())] == []
