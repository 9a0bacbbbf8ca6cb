"""Each fault at points of a commit: the outcome that the writer reports, and finally every promise.

Seed 1, 2 writers. The faults of an ensemble are in test_ensemble.py, those of locks on S3 in test_lease.py, and the
negative controls in test_controls.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.local.jars import locked_jars
from soak.evidence import Evidence
from soak.run import Soak
from soak.verdict import judge
from tests.support.lake import require_embedded_s3
from tests.support.strikes import END_EVENTS, WRITER, outcome, strike, wait_for_commits, wait_until

pytestmark = pytest.mark.s3

#: ``writer-1`` puts versions with Hadoop's conditional create, ``writer-2`` with S3A's client of the AWS SDK.
BOTH_WAYS = pytest.mark.parametrize("writer", [WRITER, "writer-2"], ids=["createFile", "S3A's client"])


@pytest.fixture(scope="module")
def soak(make_soak: Callable[..., Soak]) -> Soak:
    return wait_for_commits(make_soak())


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "point"),
    [
        *(("pause-python", "acquired"), ("pause-both", "read"), ("pause-both", "data"), ("pause-python", "checked")),
        *(pytest.param("pause-both", point, marks=pytest.mark.soak) for point in ("acquired", "checked")),
        *(pytest.param("pause-python", point, marks=pytest.mark.soak) for point in ("read", "data")),
    ],
)
def test_a_writer_paused_before_its_put_is_refused(soak: Soak, name: str, point: str) -> None:
    end = outcome(strike(soak, name, point))
    assert end["event"] == "refused", end
    assert end["error"] in ("LockLostError", "LockNotHeldError")


def test_a_put_after_a_takeover_finds_its_version_filled(soak: Soak) -> None:
    history = strike(soak, "pause-both", "put")
    assert outcome(history)["event"] == "refused"
    versions = [event["version"] for event in history if event["event"] == "taken" and event["worker"] == WRITER]
    (filled,) = [event for event in history if event["event"] == "filled"]
    assert filled["version"] == versions[0]
    assert filled["worker"] != WRITER


@pytest.mark.full
def test_a_version_stored_before_the_pause_is_acknowledged(soak: Soak) -> None:
    end = outcome(strike(soak, "pause-both", "stored"))
    assert end["event"] == "acknowledged"


@pytest.mark.full
def test_a_paused_jvm_commits_while_python_keeps_the_lock(soak: Soak) -> None:
    assert outcome(strike(soak, "pause-jvm", "checked"))["event"] == "acknowledged"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("kill-python", "checked"),
        ("kill-jvm", "checked"),
        *(("kill-both", point) for point in ("put", "stored")),
        *(pytest.param("kill-both", point, marks=pytest.mark.soak) for point in ("read", "data")),
    ],
)
def test_a_killed_writer_is_followed_by_the_next_holder(soak: Soak, name: str, point: str) -> None:
    (fault,) = [event for event in strike(soak, name, point) if event["event"] == "fault"]
    # The fault ends when the writer is replaced, which may be before the next holder has committed.
    wait_until(
        soak,
        lambda: any(event["event"] == "acknowledged" and event["token"] > fault["token"] for event in soak.history),
    )


def test_a_writer_cut_off_from_zookeeper_is_refused(soak: Soak) -> None:
    end = outcome(strike(soak, "cut-zookeeper", "data"))
    assert (end["event"], end["error"]) == ("refused", "LockLostError")


@pytest.mark.full
@pytest.mark.parametrize(
    "point", ["data", *(pytest.param(name, marks=pytest.mark.soak) for name in ("read", "checked"))]
)
def test_a_writer_cut_off_from_s3_gives_up_only_before_its_put(soak: Soak, point: str) -> None:
    history = strike(soak, "cut-s3", point)
    end = outcome(history)
    attempted = any(event["event"] == "attempting" and event["token"] == end.get("token") for event in history)
    assert end["event"] in (("acknowledged", "refused", "unknown") if attempted else ("gave-up",)), end
    # ZooKeeper answered, so the writer held the lock until it released it.
    (released,) = [event for event in history if event["event"] == "released" and event["token"] == end["token"]]
    assert not released["lost"]


@pytest.mark.full
@pytest.mark.parametrize("point", ["asking", "data", "releasing"])
def test_a_lost_reply_of_zookeeper_changes_nothing(soak: Soak, point: str) -> None:
    assert outcome(strike(soak, "lost-zookeeper-reply", point))["event"] == "acknowledged"


@pytest.mark.full
def test_a_waiter_whose_session_expires_waits_again(soak: Soak) -> None:
    assert outcome(strike(soak, "expire-queued", "asking"))["event"] == "acknowledged"


@pytest.mark.full
def test_a_cancelled_wait_leaves_no_contender(soak: Soak) -> None:
    history = strike(soak, "cancel-queued", "asking")
    (fault,) = [index for index, event in enumerate(history) if event["event"] == "fault"]
    ends = (event for event in history[fault:] if event.get("worker") == WRITER and event["event"] in END_EVENTS)
    cancelled, later = next(ends), next(ends)
    assert (cancelled["event"], cancelled["error"]) == ("gave-up", "LockCancelledError")
    (check,) = [event for event in history if event["event"] == "queue"]
    assert (check["worker"], check["left"]) == (WRITER, [])
    assert later["event"] == "acknowledged"


@pytest.mark.full
def test_a_hold_that_is_lost_during_its_release_keeps_the_commit(soak: Soak) -> None:
    assert outcome(strike(soak, "pause-both", "releasing"))["event"] == "acknowledged"


def test_a_broken_lock_refuses_the_commit(soak: Soak) -> None:
    end = outcome(strike(soak, "break-lock", "data"))
    assert (end["event"], end["error"]) == ("refused", "LockLostError")


def test_another_hold_of_the_process_does_not_allow_the_commit(soak: Soak) -> None:
    history = strike(soak, "second-hold", "data")
    assert any(event["event"] == "acknowledged" and event.get("thread") == 2 for event in history)
    assert outcome([event for event in history if "thread" not in event])["event"] == "refused"


# Each error comes once.
@BOTH_WAYS
@pytest.mark.parametrize("name", ["s3-lost-reply", "s3-500", "s3-503", "s3-409", "s3-412", "s3-403"])
def test_a_commit_survives_an_error_of_s3(soak: Soak, name: str, writer: str) -> None:
    assert outcome(strike(soak, name, "data", writer), writer)["event"] == "acknowledged"


@pytest.mark.full
@BOTH_WAYS
def test_a_put_that_outlasts_the_session_timeout_is_acknowledged(soak: Soak, writer: str) -> None:
    history = strike(soak, "s3-delay", "data", writer)
    end = outcome(history, writer)
    (fault,) = [event for event in history if event["event"] == "fault"]
    assert end["event"] == "acknowledged", end
    assert end["monotonic"] - fault["monotonic"] > soak.context.session_seconds


@pytest.mark.full
@BOTH_WAYS
def test_a_commit_without_an_answer_is_unknown_and_gets_filled(soak: Soak, writer: str) -> None:
    end = outcome(strike(soak, "s3-unavailable", "data", writer), writer)
    assert (end["event"], end["error"]) == ("unknown", "CommitUnknownException")
    wait_until(
        soak, lambda: any(event["event"] == "filled" and event["token"] >= end["token"] for event in soak.history)
    )


@pytest.mark.full
@BOTH_WAYS
def test_a_later_block_fills_the_version_of_a_late_put(soak: Soak, writer: str) -> None:
    history = strike(soak, "s3-late", "data", writer)
    end = outcome(history, writer)
    assert (end["event"], end["error"]) == ("unknown", "CommitUnknownException")
    events = [event for event in history if event.get("token") == end["token"]]
    # Other steps may be taken under the same hold.
    filled, step = (event for event in events if event["event"] == "filled" or event.get("kind") == "second-block")
    assert (filled["event"], step["event"]) == ("filled", "step")
    assert (step["open"], step["left"], step["version"]) == (1, 0, filled["version"])
    # The empty commit was stored, and the late PUT was not.
    assert soak.context.gate is not None
    puts = [put.status for put in soak.context.gate.puts if put.txn in (end["txn"], filled["txn"])]
    assert puts == [200, 412]


@BOTH_WAYS
def test_a_writer_puts_versions_in_its_own_way(soak: Soak, writer: str) -> None:
    require_embedded_s3("the requests of a writer are recorded")
    assert soak.context.gate is not None
    (hadoop,) = (jar.version for jar in locked_jars() if jar.artifact == "hadoop-aws")
    by_hadoop = writer == WRITER and tuple(map(int, hadoop.split("."))) >= (3, 4, 2)
    operations = {put.operation for put in soak.context.gate.puts if put.writer == writer}
    assert operations == {"op_createfile" if by_hadoop else "sluice_put"}


@pytest.fixture(scope="module")
def evidence(soak: Soak) -> Evidence:
    wait_until(soak, lambda: soak.progress.counts["acknowledged"] > 10)
    soak.finish()
    return soak.evidence()


# The last test of this file, both in make test and in make test-all.
@pytest.mark.parametrize("faults", [4, pytest.param(14, marks=pytest.mark.full)])
def test_every_promise_holds_in_the_end(soak: Soak, evidence: Evidence, faults: int) -> None:
    assert [str(violation) for violation in judge(evidence)] == []
    assert soak.progress.faults.total() >= faults
    assert bool(evidence.puts) == (soak.context.gate is not None)
