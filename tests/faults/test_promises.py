"""Each fault at each point of a commit: what the writer hears, and that every promise holds at the end.

Seed 1; 2 writers; the counts are those of the parameters below. The negative controls are in test_controls.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from soak.fault_context import PUT
from soak.faults import CLASSES
from soak.run import Soak
from soak.verdict import judge
from tests.support.lake import need_the_gate

pytestmark = pytest.mark.s3

WRITER = "writer-1"
END = ("acknowledged", "refused", "unknown", "gave-up")
"""What a writer can say at last of a hold, or of its wish for one."""


@pytest.fixture(scope="module")
def soak(make_soak: Callable[..., Soak]) -> Soak:
    soak = make_soak()
    # The first commit of a JVM loads for seconds what later ones have, and faults wait for a bounded time.
    while len({event["worker"] for event in soak.history if event["event"] == "acknowledged"}) < 2:
        soak.next_event()
    return soak


def strike(soak: Soak, name: str, point: str) -> list[dict[str, Any]]:
    """Let a fault happen; return the history from then on."""
    if CLASSES[name].needs == "gate" or point == PUT:
        need_the_gate(f"{name} at {point}")
    before = len(soak.history)
    soak.play(CLASSES[name].strike(soak.context, WRITER, point))
    since = soak.history[before:]
    assert [event["kind"] for event in since if event["event"] == "fault"] == [name]
    return since


def until(soak: Soak, condition: Callable[[], bool], within: float = 60.0) -> None:
    """Follow the history until a condition is true."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        soak.next_event()


def outcome(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the writer said at last of the transaction that was struck."""
    (struck,) = [number for number, event in enumerate(history) if event["event"] == "fault"]
    token = history[struck].get("token")
    return next(
        event for event in history[struck:]
        if event["event"] in END and event.get("worker") == WRITER and token in (None, event.get("token", token))
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "point"),
    [
        *(("pause-python", "acquired"), ("pause-both", "read"), ("pause-both", "data"), ("pause-python", "checked")),
        *(pytest.param("pause-both", point, marks=pytest.mark.soak) for point in ("acquired", "checked")),
        *(pytest.param("pause-python", point, marks=pytest.mark.soak) for point in ("read", "data")),
    ],
)
def test_a_writer_that_was_paused_past_its_session_before_the_put_is_refused(soak: Soak, name: str, point: str) -> None:
    said = outcome(strike(soak, name, point))
    assert said["event"] == "refused", said
    assert said["error"] in ("LockLostError", "LockNotHeldError")


def test_a_put_that_arrives_after_a_takeover_is_refused_because_its_version_is_filled(soak: Soak) -> None:
    history = strike(soak, "pause-both", "put")
    assert outcome(history)["event"] == "refused"
    taken = [event["version"] for event in history if event["event"] == "taken" and event["worker"] == WRITER]
    (filled,) = [event for event in history if event["event"] == "filled"]
    assert filled["version"] == taken[0]
    assert filled["worker"] != WRITER


def test_what_was_stored_before_the_pause_is_acknowledged_because_it_is_there(soak: Soak) -> None:
    said = outcome(strike(soak, "pause-both", "stored"))
    assert said["event"] == "acknowledged"


def test_a_jvm_may_be_paused_for_long_while_python_keeps_the_lock(soak: Soak) -> None:
    assert outcome(strike(soak, "pause-jvm", "checked"))["event"] == "acknowledged"


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("kill-python", "checked"),
        ("kill-jvm", "checked"),
        *(("kill-both", point) for point in ("put", "stored")),
        *(pytest.param("kill-both", point, marks=pytest.mark.soak) for point in ("read", "data")),
    ],
)
def test_a_writer_that_is_killed_is_followed_by_the_next_one(soak: Soak, name: str, point: str) -> None:
    (fault,) = [event for event in strike(soak, name, point) if event["event"] == "fault"]
    # The fault is over when the killed one is back: that may be before the next one has committed.
    until(
        soak,
        lambda: any(event["event"] == "acknowledged" and event["token"] > fault["token"] for event in soak.history),
    )


def test_a_writer_that_is_cut_off_from_zookeeper_is_refused(soak: Soak) -> None:
    said = outcome(strike(soak, "cut-zookeeper", "data"))
    assert (said["event"], said["error"]) == ("refused", "LockLostError")


@pytest.mark.parametrize("point", ["data", *(pytest.param(one, marks=pytest.mark.soak) for one in ("read", "checked"))])
def test_a_writer_that_is_cut_off_from_s3_is_told_no_more_than_is_known(soak: Soak, point: str) -> None:
    history = strike(soak, "cut-s3", point)
    said = outcome(history)
    attempted = any(event["event"] == "attempting" and event["token"] == said.get("token") for event in history)
    assert said["event"] in (("acknowledged", "refused", "unknown") if attempted else ("gave-up",)), said
    # Whatever it was told, ZooKeeper answered: the lock was its own to give back.
    (released,) = [event for event in history if event["event"] == "released" and event["token"] == said["token"]]
    assert not released["lost"]


@pytest.mark.parametrize("point", ["asking", "data", "releasing"])
def test_an_answer_of_zookeeper_that_is_lost_changes_nothing(soak: Soak, point: str) -> None:
    assert outcome(strike(soak, "lost-zookeeper-reply", point))["event"] == "acknowledged"


def test_a_session_that_ends_in_the_queue_is_followed_by_another(soak: Soak) -> None:
    assert outcome(strike(soak, "expire-queued", "asking"))["event"] == "acknowledged"


def test_a_wait_that_is_cancelled_leaves_nothing_in_the_queue(soak: Soak) -> None:
    history = strike(soak, "cancel-queued", "asking")
    (struck,) = [number for number, event in enumerate(history) if event["event"] == "fault"]
    said = (event for event in history[struck:] if event.get("worker") == WRITER and event["event"] in END)
    cancelled, later = next(said), next(said)
    assert (cancelled["event"], cancelled["error"]) == ("gave-up", "LockCancelledError")
    (look,) = [event for event in history if event["event"] == "queue"]
    assert (look["worker"], look["left"]) == (WRITER, [])
    assert later["event"] == "acknowledged"


def test_a_hold_that_is_lost_while_it_is_given_back_leaves_what_was_committed(soak: Soak) -> None:
    assert outcome(strike(soak, "pause-both", "releasing"))["event"] == "acknowledged"


def test_a_broken_lock_refuses_the_commit(soak: Soak) -> None:
    said = outcome(strike(soak, "break-lock", "data"))
    assert (said["event"], said["error"]) == ("refused", "LockLostError")


def test_another_hold_of_the_same_process_does_not_help(soak: Soak) -> None:
    history = strike(soak, "second-hold", "data")
    assert any(event["event"] == "acknowledged" and event.get("thread") == 2 for event in history)
    assert outcome([event for event in history if "thread" not in event])["event"] == "refused"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("s3-lost-reply", "acknowledged"),
        ("s3-500", "acknowledged"),
        ("s3-503", "acknowledged"),
        ("s3-409", "acknowledged"),
        ("s3-412", "acknowledged"),
        ("s3-403", "acknowledged"),  # once: it is put again
    ],
)
def test_what_s3_says_to_a_commit(soak: Soak, name: str, said: str) -> None:
    assert outcome(strike(soak, name, "data"))["event"] == said


def test_a_put_that_takes_longer_than_the_session_is_put_again_while_python_keeps_the_lock(soak: Soak) -> None:
    history = strike(soak, "s3-delay", "data")
    said = outcome(history)
    (fault,) = [event for event in history if event["event"] == "fault"]
    assert said["event"] == "acknowledged", said
    assert said["monotonic"] - fault["monotonic"] > soak.context.session_seconds


def test_a_commit_of_which_nothing_is_known_is_reported_so_and_its_version_is_filled(soak: Soak) -> None:
    said = outcome(strike(soak, "s3-unavailable", "data"))
    assert (said["event"], said["error"]) == ("unknown", "CommitUnknownException")

    until(soak, lambda: any(event["event"] == "filled" and event["token"] >= said["token"] for event in soak.history))


def test_a_later_block_of_the_hold_fills_what_an_earlier_one_left_open_before_its_put_arrives(soak: Soak) -> None:
    history = strike(soak, "s3-late", "data")
    said = outcome(history)
    assert (said["event"], said["error"]) == ("unknown", "CommitUnknownException")
    own = [event for event in history if event.get("token") == said["token"]]
    # Other steps may be taken under the same hold.
    own = [event for event in own if event["event"] == "filled" or event.get("kind") == "second-block"]
    assert [event["event"] for event in own] == ["filled", "step"]
    assert (own[1]["open"], own[1]["left"], own[1]["version"]) == (1, 0, own[0]["version"])
    # The gate's record: the empty commit was stored, and the late one was not.
    assert soak.context.gate is not None
    puts = [put.status for put in soak.context.gate.puts if put.txn in (said["txn"], own[0]["txn"])]
    assert puts == [200, 412]


def test_every_promise_holds_in_the_end(soak: Soak) -> None:
    soak.finish()
    evidence = soak.evidence()
    assert [f"{each.invariant}: {each.sentence}" for each in judge(evidence)] == []
    counts = soak.progress.counts
    assert counts["acknowledged"] > 10
    assert counts["fault"] == soak.progress.faults.total() > 15
    assert bool(evidence.puts) == (soak.context.gate is not None)
