"""The verdict on a soak: a sound history passes, and each invariant finds the history that violates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.evidence import Evidence
from soak.verdict import INVARIANTS, judge
from soak.violation import Violation
from tests.support.soak_history import TABLE, commit, event, put, sound


def with_table(**changes: Any) -> Evidence:
    evidence = sound()
    return replace(evidence, tables={TABLE: replace(evidence.tables[TABLE], **changes)})


def with_history(*more: dict[str, Any]) -> Evidence:
    evidence = sound()
    return replace(evidence, history=[*evidence.history, *more])


def found(evidence: Evidence, invariant: str) -> list[Violation]:
    return list(INVARIANTS[invariant](evidence))


def test_a_sound_history_violates_nothing() -> None:
    assert judge(sound()) == []


def test_i1_finds_an_acknowledged_row_that_is_lost_or_there_twice() -> None:
    for rows in ([0, 1, 10, 11, 20], [0, 0, 1, 10, 11, 20, 21]):
        (violation,) = found(with_table(rows=rows), "I1")
        assert "rows are not there once" in violation.sentence
        assert {each["event"] for each in violation.piece} >= {"attempting", "stored", "acknowledged"}
    (violation,) = found(with_table(unread="broken"), "I1")
    assert "cannot be read: broken" in violation.sentence


def acknowledged(**more: Any) -> dict[str, Any]:
    """Return the event of an acknowledged operation that made version 2."""
    fields = {"worker": "writer-1", "incarnation": 1, "token": 9, "txn": "t2", "version": 2, "ids": []}
    return event("acknowledged", 3.0, **{**fields, **more})


def attempted(txn: str, *deletes: int) -> dict[str, Any]:
    return event("attempting", 2.9, worker="writer-1", incarnation=1, token=9, txn=txn, version=2, deletes=deletes)


def test_i1_finds_a_version_that_is_of_another_transaction() -> None:
    (violation,) = found(with_history(acknowledged(txn="t7")), "I1")
    assert "version 2 is committed, and that version is of another transaction (t2)" in violation.sentence


def test_i1_finds_rows_that_an_acknowledged_delete_has_left() -> None:
    deleted = acknowledged(deletes=[0, 1])
    (violation,) = found(with_history(attempted("t2", 0, 1), deleted), "I1")
    assert "2 of the 2 rows that it deletes are there (row 0)" in violation.sentence
    without_two = with_table(rows=[10, 11, 20, 21])
    assert found(replace(without_two, history=[*without_two.history, attempted("t2", 0, 1), deleted]), "I1") == []


def test_i1_allows_a_delete_of_unknown_outcome_and_not_one_that_was_refused() -> None:
    without_two = with_table(rows=[10, 11, 20, 21])
    unknown = [*without_two.history, attempted("t8", 0, 1)]
    assert found(replace(without_two, history=unknown), "I1") == []
    refused = event("refused", 3.0, worker="writer-1", token=9, txn="t8", error="LockLostError")
    (violation,) = found(replace(without_two, history=[*unknown, refused]), "I1")
    assert "2 of its 2 rows are not there once (row 0: 0 times)" in violation.sentence


@pytest.mark.parametrize(("transactions", "violations"), [({"writer-1": 7}, 0), ({"writer-1": 6}, 1), ({}, 1)])
def test_i1_finds_a_transaction_that_is_not_recorded(transactions: dict[str, int], violations: int) -> None:
    evidence = with_table(transactions=transactions)
    applied = acknowledged(transaction=["writer-1", 7])
    broken = found(replace(evidence, history=[*evidence.history, applied]), "I1")
    assert len(broken) == violations
    assert all("its transaction 7 of writer-1 is not recorded" in violation.sentence for violation in broken)


@pytest.mark.parametrize(
    ("step", "sentences"),
    [
        ({}, []),
        ({"left": 2}, ["told that a DELETE is done, and 2 of its rows are in the table"]),
        ({"left": 2, "deleted": "WriteFailedError"}, []),
        ({"there": 0}, ["told that an INSERT is done, and its row is there 0 times"]),
        ({"there": 0, "inserted": "LockLostError"}, []),
        ({"left": None, "there": None, "error": "LockLostError"}, []),
    ],
)
def test_i12_finds_a_thread_that_takes_the_commit_of_another_for_its_own(
    step: dict[str, Any], sentences: list[str]
) -> None:
    fine = {"deleted": "done", "inserted": "done", "left": 0, "there": 1, "met": True, "lost": False, "error": None}
    report = event("step", 3.0, worker="writer-2", token=7, kind="two-threads", **{**fine, **step})
    violations = found(with_history(report), "I12")
    assert len(violations) == len(sentences)
    assert all(sentence in violation.sentence for sentence, violation in zip(sentences, violations, strict=True))


def test_i2_finds_what_was_said_not_to_be_there_and_what_is_there_twice() -> None:
    refused = event("refused", 3.0, worker="writer-2", token=7, txn="t1", error="LockLostError")
    (violation,) = found(with_history(refused), "I2")
    assert "not committed (LockLostError), and it is version 1" in violation.sentence
    twice = with_table(commits=[commit(0, 5), commit(1, 7), commit(2, 9, "t1")])
    assert "is in s3a://lake/soak-0 2 times: versions [1, 2]" in found(twice, "I2")[0].sentence
    assert "row 99 is in" in found(with_table(rows=[99, 99]), "I2")[0].sentence
    strange = with_table(commits=[commit(0, 5, "nobody's")])
    assert "nobody attempted" in found(strange, "I2")[0].sentence


@pytest.mark.parametrize(
    ("said", "sentences"),
    [
        ({}, []),
        ({"again": "LockTimeoutError"}, ["asked again for what it holds, through another manager: LockTimeoutError"]),
        ({"again": "another", "order": "another"}, ["manager: another", "a table that comes before: another"]),
        ({"order": "LockTimeoutError"}, ["a table that comes before: LockTimeoutError"]),
        ({"again": "EnsembleUnavailableError"}, ["through another manager: EnsembleUnavailableError"]),
        ({"again": "EnsembleUnavailableError", "connected": False}, []),
        ({"again": "LockTimeoutError", "connected": False}, ["through another manager: LockTimeoutError"]),
        ({"again": "another", "order": "same", "lost": True}, []),
    ],
)
def test_i10_finds_a_second_manager_that_does_not_know_what_its_thread_holds(
    said: dict[str, Any], sentences: list[str]
) -> None:
    fine = {"again": "same", "order": "LockOrderError", "connected": True, "lost": False}
    step = event("step", 3.0, worker="writer-2", token=7, kind="two-managers", **{**fine, **said})
    violations = found(with_history(step), "I10")
    assert len(violations) == len(sentences)
    assert all(sentence in each.sentence for sentence, each in zip(sentences, violations, strict=True))
    assert all(each.piece == [step] for each in violations)


@pytest.mark.parametrize(
    ("said", "violations"),
    [
        ({}, 0),
        ({"stays": False}, 1),
        ({"stays": False, "met": False}, 1),
        ({"stays": None, "lost": True, "error": "LockLostError"}, 0),
        ({"kind": "two-managers", "lost": True, "stays": False}, 0),
    ],
)
def test_i11_finds_an_intent_that_was_cleared_away_while_its_hold_lives(said: dict[str, Any], violations: int) -> None:
    fine = {"kind": "stalled-listing", "met": True, "stays": True, "lost": False, "error": None}
    step = event("step", 3.0, worker="writer-2", token=7, **{**fine, **said})
    broken = found(with_history(step), "I11")
    assert len(broken) == violations
    assert all("writer-2 (hold 7) had the intent of a hold cleared away" in each.sentence for each in broken)
    assert all(each.piece == [step] for each in broken)


def test_i2_knows_the_commits_of_an_engine_whose_every_attempt_is_in_the_history() -> None:
    spark = replace(commit(0, 5, "nobody's"), engine="Apache-Spark/4.2.0 Delta-Lake/4.4.0")
    strange = with_table(commits=[spark])
    assert found(strange, "I2") == []
    assert "nobody attempted" in found(replace(strange, engine="Apache-Spark/"), "I2")[0].sentence
    assert found(replace(strange, engine=""), "I2") == []


def test_i3_finds_a_version_that_was_stored_twice_and_one_that_is_missing() -> None:
    evidence = sound()
    again = replace(evidence, puts=[*evidence.puts, put(1, "other", "t9")])
    (violation,) = found(again, "I3")
    assert "stored 2 times, its content changed" in violation.sentence
    same = replace(evidence, puts=[*evidence.puts, put(1, "d1", "t1")])
    assert "with the same content" in found(same, "I3")[0].sentence
    assert "gaps" in found(with_table(versions=[0, 2], history_versions=[0, 2]), "I3")[0].sentence
    assert "deltalake's history" in found(with_table(history_versions=[0, 1]), "I3")[0].sentence
    assert found(with_table(unreadable=["version 1 cannot be read"]), "I3")


def test_i3_does_not_mind_a_put_that_was_refused() -> None:
    evidence = sound()
    refused = replace(put(1, "", "t9"), status=412)
    assert found(replace(evidence, puts=[*evidence.puts, refused]), "I3") == []


def test_i4_finds_tokens_out_of_order_in_the_stamps_and_in_the_history() -> None:
    stamps = with_table(commits=[commit(0, 5), commit(1, 9), replace(commit(2, 9), stamp=commit(2, 7).stamp)])
    assert any("fencing token" in each.sentence for each in found(stamps, "I4"))
    unstamped = [replace(commit(0, 5), stamp=None), replace(commit(1, 0, "t2"), stamp=None),
                 replace(commit(2, 0, "t1"), stamp=None)]  # fmt: skip
    (violation,) = found(with_table(commits=unstamped), "I4")
    assert "token 7, after version 1 of the later hold 9" in violation.sentence


def test_i5_finds_a_commit_that_a_later_holder_had_not_seen() -> None:
    evidence = sound()
    history = [{**each, "version": 0} if each["event"] == "read" and each["token"] == 9 else each
               for each in evidence.history]  # fmt: skip
    (violation,) = found(replace(evidence, history=history), "I5")
    assert "version 1" in violation.sentence
    assert "later hold 9 had read the table at version 0" in violation.sentence


def test_i6_finds_a_writer_that_was_never_told() -> None:
    attempting = event("attempting", 3.0, worker="writer-3", incarnation=3, token=11, txn="t3", version=3)
    (violation,) = found(with_history(attempting), "I6")
    assert "never told" in violation.sentence
    killed = event("killed", 3.1, worker="writer-3", incarnation=3)
    assert found(with_history(attempting, killed), "I6") == []
    assert found(with_history(attempting, {**killed, "late": True}), "I6")
    for outcome in ("refused", "unknown", "stored", "filled"):
        told = event(outcome, 3.1, worker="writer-3", incarnation=3, token=11, txn="t3", version=3, error="E")
        assert found(with_history(attempting, told), "I6") == [], outcome
    gave_up = event("gave-up", 3.1, worker="writer-3", incarnation=3, token=11)
    assert found(with_history(attempting, gave_up), "I6")


def test_i6_does_not_take_the_success_of_another_for_an_answer() -> None:
    who: dict[str, Any] = {"worker": "writer-3", "incarnation": 3, "token": 11}
    outrun = [event("attempting", 3.0, **who, txn="t3", version=3), event("taken", 3.1, **who, txn="t3", version=3)]
    (violation,) = found(with_history(*outrun), "I6")
    assert "attempted version 3, and was never told" in violation.sentence
    assert [each["event"] for each in violation.piece] == ["attempting", "taken"]
    again = event("attempting", 3.2, **who, txn="t4", version=4)
    (violation,) = found(with_history(*outrun, again), "I6")
    assert "attempted version 4" in violation.sentence
    for outcome in ("refused", "unknown", "stored", "filled", "gave-up"):
        told = event(outcome, 3.2, **who, txn="t3", version=4, error="E")
        assert found(with_history(*outrun, told), "I6") == [], outcome
        other = {**told, "token": 13, "txn": "t5"}
        assert found(with_history(*outrun, other), "I6"), outcome


@pytest.mark.parametrize(("after", "late"), [(5.0, False), (5.9, True), (None, True)])
def test_i7_finds_a_waiter_that_waited_too_long(after: float | None, late: bool) -> None:  # noqa: FBT001
    history = [
        event("holding", 0.0, worker="writer-1", incarnation=1, token=5),
        event("waiting", 0.1, worker="writer-2", incarnation=2),
        event("holder-gone", 1.0, worker="writer-1", token=5),
    ]
    if after is not None:
        history.append(event("holding", 1.0 + after, worker="writer-2", incarnation=2, token=7))
    history.append(event("ended", 60.0, worker="writer-2", incarnation=2))
    evidence = replace(sound(), history=history)
    assert bool(found(evidence, "I7")) is late
    nobody = [each for each in history if each["event"] != "waiting"]
    assert found(replace(evidence, history=nobody), "I7") == []
    elsewhere = [{**each, "table": "another"} if each["event"] == "waiting" else each for each in history]
    assert found(replace(evidence, history=elsewhere), "I7") == []


def test_i8_finds_a_contender_that_was_left() -> None:
    (violation,) = found(with_history(event("queue", 60.0, left=["abc__lock__0000000001"])), "I8")
    assert "contenders are left in the queue" in violation.sentence
    (violation,) = found(with_history(event("queue", 60.0, worker="writer-2", left=["abc__lock__0000000001"])), "I8")
    assert "contenders of writer-2 are left in the queue" in violation.sentence


def test_i8_finds_a_queue_that_nobody_looked_at() -> None:
    evidence = sound()
    unseen = [each for each in evidence.history if each["event"] != "queue"]
    (violation,) = found(replace(evidence, history=unseen), "I8")
    assert "nobody looked" in violation.sentence
    after_a_cancelled_wait = event("queue", 60.0, worker="writer-2", left=[])
    assert found(replace(evidence, history=[*unseen, after_a_cancelled_wait]), "I8")


def test_i9_finds_a_run_that_stood_still_and_one_in_which_nothing_happened() -> None:
    waiting = event("waiting", 50.0, worker="writer-2", incarnation=2)
    (violation,) = found(with_history(waiting, event("stalled", 90.0, seconds=75.0)), "I9")
    assert "nothing was acknowledged for 75 s" in violation.sentence
    assert waiting in violation.piece
    evidence = sound()
    nothing = [each for each in evidence.history if each["event"] != "acknowledged"]
    assert [each.sentence for each in found(replace(evidence, history=nothing), "I9")] == ["nothing was acknowledged"]


def test_i9_finds_a_writer_that_did_not_end_and_one_that_ended_of_itself() -> None:
    who: dict[str, Any] = {"worker": "writer-2", "incarnation": 2}
    holding, ended = event("holding", 61.0, **who, token=11), event("ended", 63.0, **who)
    (violation,) = found(with_history(holding, event("killed", 62.0, **who, late=True), ended), "I9")
    assert "writer-2 was told to finish, and had to be killed" in violation.sentence
    assert violation.piece[0] == holding
    (violation,) = found(with_history(holding, ended), "I9")
    assert "writer-2 ended of itself" in violation.sentence
    for reason in ("killed", "jvm-gone", "finished"):
        assert found(with_history(holding, event(reason, 62.0, **who), ended), "I9") == [], reason


def test_every_invariant_has_its_function() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 13)]
    assert all(function.__doc__ and function.__doc__.startswith(name) for name, function in INVARIANTS.items())
