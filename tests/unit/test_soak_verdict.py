"""The verdict on a soak: a sound history passes, and each invariant detects the history that violates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.audit.log_files import LogCommit
from soak.evidence import Evidence
from soak.verdict import INVARIANTS, judge
from soak.violation import Violation
from tests.support.soak_history import TABLE, commit, event, put, sound_evidence


def evidence_with_table(**changes: Any) -> Evidence:
    evidence = sound_evidence()
    return replace(evidence, tables={TABLE: replace(evidence.tables[TABLE], **changes)})


def evidence_with_events(*events: dict[str, Any]) -> Evidence:
    evidence = sound_evidence()
    return replace(evidence, history=[*evidence.history, *events])


def violations_of(evidence: Evidence, invariant: str) -> list[Violation]:
    return list(INVARIANTS[invariant](evidence))


def sentence_of(evidence: Evidence, invariant: str) -> str:
    """Return the sentence of the only violation of an invariant."""
    (violation,) = violations_of(evidence, invariant)
    return violation.sentence


def test_a_sound_history_violates_nothing() -> None:
    assert judge(sound_evidence()) == []


def test_i1_detects_a_lost_or_duplicated_row() -> None:
    for rows in ([0, 1, 10, 11, 20], [0, 0, 1, 10, 11, 20, 21]):
        (violation,) = violations_of(evidence_with_table(row_ids=rows), "I1")
        assert "rows are not there exactly once" in violation.sentence
        assert {event["event"] for event in violation.piece} >= {"attempting", "stored", "acknowledged"}
    assert "cannot be read: broken" in sentence_of(evidence_with_table(read_error="broken"), "I1")


def acknowledged_event(**changes: Any) -> dict[str, Any]:
    """Return the event of an acknowledged operation that committed version 2."""
    fields = {"worker": "writer-1", "incarnation": 1, "token": 9, "txn": "t2", "version": 2, "ids": []}
    return event("acknowledged", 3.0, **{**fields, **changes})


def attempting_event(txn: str, *deletes: int) -> dict[str, Any]:
    return event("attempting", 2.9, worker="writer-1", incarnation=1, token=9, txn=txn, version=2, deletes=deletes)


def test_i1_detects_the_version_of_another_transaction() -> None:
    sentence = sentence_of(evidence_with_events(acknowledged_event(txn="t7")), "I1")
    assert "acknowledged version 2, but that version belongs to another transaction (t2)" in sentence
    sentence = sentence_of(evidence_with_events(acknowledged_event(version=9)), "I1")
    assert "its version 9 is not in the log" in sentence


def test_i1_detects_rows_that_an_acknowledged_delete_left() -> None:
    events = [attempting_event("t2", 0, 1), acknowledged_event(deletes=[0, 1])]
    sentence = sentence_of(evidence_with_events(*events), "I1")
    assert "2 of the 2 rows that it deleted are in the table (row 0)" in sentence
    without_two_rows = evidence_with_table(row_ids=[10, 11, 20, 21])
    assert violations_of(replace(without_two_rows, history=[*without_two_rows.history, *events]), "I1") == []


def test_i1_allows_an_unknown_delete_and_detects_a_refused_one() -> None:
    without_two_rows = evidence_with_table(row_ids=[10, 11, 20, 21])
    unknown_delete = [*without_two_rows.history, attempting_event("t8", 0, 1)]
    assert violations_of(replace(without_two_rows, history=unknown_delete), "I1") == []
    refusal = event("refused", 3.0, worker="writer-1", token=9, txn="t8", error="LockLostError")
    sentence = sentence_of(replace(without_two_rows, history=[*unknown_delete, refusal]), "I1")
    assert "2 of its 2 rows are not there exactly once (row 0: 0 times)" in sentence


@pytest.mark.parametrize(("transactions", "count"), [({"writer-1": 7}, 0), ({"writer-1": 6}, 1), ({}, 1)])
def test_i1_detects_a_transaction_that_the_table_does_not_record(transactions: dict[str, int], count: int) -> None:
    evidence = evidence_with_table(transactions=transactions)
    acknowledgement = acknowledged_event(transaction=["writer-1", 7])
    violations = violations_of(replace(evidence, history=[*evidence.history, acknowledgement]), "I1")
    assert len(violations) == count
    assert all(
        "the table does not record its transaction 7 of writer-1" in violation.sentence for violation in violations
    )


@pytest.mark.parametrize(
    ("step", "sentences"),
    [
        ({}, []),
        ({"left": 2}, ["is reported as done, but 2 of its rows remain"]),
        ({"left": 2, "deleted": "WriteFailedError"}, []),
        ({"there": 0}, ["is reported as done, but the table has its row 0 times"]),
        ({"there": 0, "inserted": "LockLostError"}, []),
        ({"left": None, "there": None, "error": "LockLostError"}, []),
    ],
)
def test_i12_detects_a_thread_that_reports_the_commit_of_another(step: dict[str, Any], sentences: list[str]) -> None:
    fields = {"deleted": "done", "inserted": "done", "left": 0, "there": 1, "met": True, "lost": False, "error": None}
    report = event("step", 3.0, worker="writer-2", token=7, kind="two-threads", **{**fields, **step})
    violations = violations_of(evidence_with_events(report), "I12")
    assert len(violations) == len(sentences)
    assert all(sentence in violation.sentence for sentence, violation in zip(sentences, violations, strict=True))


def evidence_with_group(*members: LogCommit, **changes: Any) -> Evidence:
    """Return evidence with a group commit as its newest version."""
    commits = [commit(0, 5), commit(1, 7), replace(commit(2, 9), group=(commit(2, 9), *members))]
    return evidence_with_table(commits=commits, **changes)


def member(txn: str, commit_id: str) -> LogCommit:
    holder = commit(2, 9, txn)
    assert holder.stamp is not None
    return replace(holder, stamp=replace(holder.stamp, commit_id=commit_id))


def test_each_writer_of_a_group_may_acknowledge_its_version() -> None:
    rows = [0, 1, 10, 11, 20, 21, 30, 31]
    evidence = evidence_with_group(member("t3", "c3"), row_ids=rows)
    by_commit_id = acknowledged_event(txn=None, commit_id="c3", ids=[30, 31])
    assert judge(replace(evidence, history=[*evidence.history, by_commit_id])) == []
    by_transaction = acknowledged_event(txn="t3", ids=[30, 31])
    assert judge(replace(evidence, history=[*evidence.history, by_transaction])) == []
    for changes in ({"txn": None, "commit_id": "c4"}, {"txn": None}, {"txn": "t4"}):
        events = [*evidence.history, acknowledged_event(**changes)]
        sentence = sentence_of(replace(evidence, history=events), "I1")
        assert "that version belongs to another transaction (t2, t3)" in sentence


def test_i2_detects_writes_of_members_that_are_repeated() -> None:
    repeated = evidence_with_group(member("t1", "c3"), member("t4", "c4"), member("t5", "c4"))
    assert [violation.sentence for violation in violations_of(repeated, "I2")] == [
        "transaction t1 is in s3a://lake/soak-0 2 times: versions [1, 2]",
        "write c4 is in s3a://lake/soak-0 2 times: versions [2, 2]",
    ]


def test_i2_detects_members_that_are_reported_as_not_committed() -> None:
    evidence = evidence_with_group(member("t3", "c3"), row_ids=[0, 1, 10, 11, 20, 21, 30, 31])
    writer = {"worker": "writer-2", "token": 7, "error": "LockTimeoutError"}
    refused = event("refused", 3.0, **writer, txn="t3")
    sentence = sentence_of(replace(evidence, history=[*evidence.history, refused]), "I2")
    assert "not committed (LockTimeoutError), but it is version 2" in sentence
    gave_up = event("gave-up", 3.0, **writer, ids=[30, 31])
    sentence = sentence_of(replace(evidence, history=[*evidence.history, gave_up]), "I2")
    assert "not committed (LockTimeoutError), but its row 30 is in s3a://lake/soak-0" in sentence
    gave_up["ids"] = [40, 41]
    assert violations_of(replace(evidence, history=[*evidence.history, gave_up]), "I2") == []


def test_i2_detects_refused_duplicate_and_unattempted_commits() -> None:
    refused = event("refused", 3.0, worker="writer-2", token=7, txn="t1", error="LockLostError")
    assert "not committed (LockLostError), but it is version 1" in sentence_of(evidence_with_events(refused), "I2")
    duplicate_commit = evidence_with_table(commits=[commit(0, 5), commit(1, 7), commit(2, 9, "t1")])
    assert "is in s3a://lake/soak-0 2 times: versions [1, 2]" in violations_of(duplicate_commit, "I2")[0].sentence
    assert "row 99 is in" in violations_of(evidence_with_table(row_ids=[99, 99]), "I2")[0].sentence
    unattempted_commit = evidence_with_table(commits=[commit(0, 5, "foreign")])
    assert "no writer attempted" in violations_of(unattempted_commit, "I2")[0].sentence


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, []),
        ({"again": "LockTimeoutError"}, ["requested its own table through another manager: LockTimeoutError"]),
        (
            {"again": "another", "order": "another"},
            ["its own table through another manager: another", "an earlier table through another manager: another"],
        ),
        ({"order": "LockTimeoutError"}, ["an earlier table through another manager: LockTimeoutError"]),
        ({"again": "EnsembleUnavailableError"}, ["through another manager: EnsembleUnavailableError"]),
        ({"again": "EnsembleUnavailableError", "connected": False}, []),
        ({"again": "LockTimeoutError", "connected": False}, ["through another manager: LockTimeoutError"]),
        ({"again": "another", "order": "same", "lost": True}, []),
    ],
)
def test_i10_detects_a_manager_without_the_holds_of_its_thread(changes: dict[str, Any], sentences: list[str]) -> None:
    fields = {"again": "same", "order": "LockOrderError", "connected": True, "lost": False}
    step = event("step", 3.0, worker="writer-2", token=7, kind="two-managers", **{**fields, **changes})
    violations = violations_of(evidence_with_events(step), "I10")
    assert len(violations) == len(sentences)
    assert all(sentence in violation.sentence for sentence, violation in zip(sentences, violations, strict=True))
    assert all(violation.piece == [step] for violation in violations)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"stays": False}, 1),
        ({"stays": False, "met": False}, 1),
        ({"stays": None, "lost": True, "error": "LockLostError"}, 0),
        ({"kind": "two-managers", "lost": True, "stays": False}, 0),
    ],
)
def test_i11_detects_the_removed_intent_of_a_valid_hold(changes: dict[str, Any], count: int) -> None:
    fields = {"kind": "stalled-listing", "met": True, "stays": True, "lost": False, "error": None}
    step = event("step", 3.0, worker="writer-2", token=7, **{**fields, **changes})
    violations = violations_of(evidence_with_events(step), "I11")
    assert len(violations) == count
    assert all("writer-2 (hold 7) removed the intent of a valid hold" in violation.sentence for violation in violations)
    assert all(violation.piece == [step] for violation in violations)


def test_i2_checks_the_commits_of_engines_that_record_attempts() -> None:
    spark = replace(commit(0, 5, "foreign"), engine="Apache-Spark/4.2.0 Delta-Lake/4.4.0")
    unattempted_commit = evidence_with_table(commits=[spark])
    assert violations_of(unattempted_commit, "I2") == []
    spark_evidence = replace(unattempted_commit, engine_info="Apache-Spark/")
    assert "no writer attempted" in violations_of(spark_evidence, "I2")[0].sentence
    assert violations_of(replace(unattempted_commit, engine_info=""), "I2") == []


def test_i3_detects_a_version_that_is_stored_twice_or_missing() -> None:
    evidence = sound_evidence()
    changed_content = replace(evidence, puts=[*evidence.puts, put(1, "changed", "t9")])
    assert "of s3a://lake/soak-0 was stored 2 times with different contents" in sentence_of(changed_content, "I3")
    same_content = replace(evidence, puts=[*evidence.puts, put(1, "d1", "t1")])
    assert "with the same content" in violations_of(same_content, "I3")[0].sentence
    assert "gaps" in violations_of(evidence_with_table(versions=[0, 2], history_versions=[0, 2]), "I3")[0].sentence
    assert "deltalake's history" in violations_of(evidence_with_table(history_versions=[0, 1]), "I3")[0].sentence
    assert violations_of(evidence_with_table(unreadable=["version 1 cannot be read"]), "I3")


def test_i3_allows_a_refused_put() -> None:
    evidence = sound_evidence()
    refused_put = replace(put(1, "", "t9"), status=412)
    assert violations_of(replace(evidence, puts=[*evidence.puts, refused_put]), "I3") == []


def test_i4_detects_tokens_out_of_order_in_stamps_and_history() -> None:
    stamps_out_of_order = evidence_with_table(
        commits=[commit(0, 5), commit(1, 9), replace(commit(2, 9), stamp=commit(2, 7).stamp)]
    )
    assert any("fencing token" in violation.sentence for violation in violations_of(stamps_out_of_order, "I4"))
    commits_without_stamps = [replace(commit(0, 5), stamp=None), replace(commit(1, 0, "t2"), stamp=None),
                 replace(commit(2, 0, "t1"), stamp=None)]  # fmt: skip
    assert "token 7, after version 1 of the later hold 9" in sentence_of(
        evidence_with_table(commits=commits_without_stamps), "I4"
    )


def test_i5_detects_a_commit_that_a_later_holder_did_not_read() -> None:
    evidence = sound_evidence()
    history = [{**event, "version": 0} if event["event"] == "read" and event["token"] == 9 else event
               for event in evidence.history]  # fmt: skip
    sentence = sentence_of(replace(evidence, history=history), "I5")
    assert "version 1" in sentence
    assert "later hold 9 had read the table at version 0" in sentence


@pytest.mark.parametrize(("stored", "count"), [(1.4, 0), (2.3, 1), (None, 1)])
def test_i5_allows_an_inferred_read_that_missed_a_version_before_its_hold(stored: float | None, count: int) -> None:
    """Hold 9 begins at 2.1 s and reads at 2.2 s."""
    history = []
    for report in sound_evidence().history:
        if report["event"] == "read" and report["token"] == 9:
            history.append({**report, "version": 0, "inferred": True})
        elif report["event"] != "stored" or report["version"] != 1:
            history.append(dict(report))
        elif stored is not None:
            history.append({**report, "monotonic": stored})
    assert len(violations_of(replace(sound_evidence(), history=history), "I5")) == count


def test_i6_detects_an_attempt_without_an_outcome() -> None:
    attempting = event("attempting", 3.0, worker="writer-3", incarnation=3, token=11, txn="t3", version=3)
    assert "attempted version 3 and got no outcome" in sentence_of(evidence_with_events(attempting), "I6")
    killed = event("killed", 3.1, worker="writer-3", incarnation=3)
    assert violations_of(evidence_with_events(attempting, killed), "I6") == []
    assert violations_of(evidence_with_events(attempting, {**killed, "late": True}), "I6")
    for outcome in ("refused", "unknown", "stored", "filled"):
        end = event(outcome, 3.1, worker="writer-3", incarnation=3, token=11, txn="t3", version=3, error="E")
        assert violations_of(evidence_with_events(attempting, end), "I6") == [], outcome
    gave_up = event("gave-up", 3.1, worker="writer-3", incarnation=3, token=11)
    assert violations_of(evidence_with_events(attempting, gave_up), "I6")


def test_i6_a_version_of_another_writer_is_no_outcome() -> None:
    hold: dict[str, Any] = {"worker": "writer-3", "incarnation": 3, "token": 11}
    lost_race = [
        event("attempting", 3.0, **hold, txn="t3", version=3),
        event("taken", 3.1, **hold, txn="t3", version=3),
    ]
    (violation,) = violations_of(evidence_with_events(*lost_race), "I6")
    assert "attempted version 3 and got no outcome" in violation.sentence
    assert [event["event"] for event in violation.piece] == ["attempting", "taken"]
    next_attempt = event("attempting", 3.2, **hold, txn="t4", version=4)
    assert "attempted version 4" in sentence_of(evidence_with_events(*lost_race, next_attempt), "I6")
    for outcome in ("refused", "unknown", "stored", "filled", "gave-up"):
        end = event(outcome, 3.2, **hold, txn="t3", version=4, error="E")
        assert violations_of(evidence_with_events(*lost_race, end), "I6") == [], outcome
        foreign_end = {**end, "token": 13, "txn": "t5"}
        assert violations_of(evidence_with_events(*lost_race, foreign_end), "I6"), outcome


@pytest.mark.parametrize(("seconds", "late"), [(5.0, False), (5.9, True), (None, True)])
def test_i7_detects_a_late_takeover(seconds: float | None, late: bool) -> None:  # noqa: FBT001
    history = [
        event("holding", 0.0, worker="writer-1", incarnation=1, token=5),
        event("waiting", 0.1, worker="writer-2", incarnation=2),
        event("holder-gone", 1.0, worker="writer-1", token=5),
    ]
    if seconds is not None:
        history.append(event("holding", 1.0 + seconds, worker="writer-2", incarnation=2, token=7))
    history.append(event("ended", 60.0, worker="writer-2", incarnation=2))
    evidence = replace(sound_evidence(), history=history)
    assert bool(violations_of(evidence, "I7")) is late
    without_waiter = [event for event in history if event["event"] != "waiting"]
    assert violations_of(replace(evidence, history=without_waiter), "I7") == []
    # A member of a group commit gets no lock.
    acknowledged = event("acknowledged", 0.2, worker="writer-2", incarnation=2, txn=None, version=2, ids=[])
    assert violations_of(replace(evidence, history=[*history[:2], acknowledged, *history[2:]]), "I7") == []
    # The dead holder had committed its append.
    acknowledged = {**acknowledged, "monotonic": 1.5}
    assert violations_of(replace(evidence, history=[*history[:3], acknowledged, *history[3:]]), "I7") == []
    another_table = [{**event, "table": "another"} if event["event"] == "waiting" else event for event in history]
    assert violations_of(replace(evidence, history=another_table), "I7") == []


def test_i7_ignores_the_waiters_that_faults_struck() -> None:
    history = [
        event("holding", 0.0, worker="writer-1", incarnation=1, token=5),
        event("waiting", 0.1, worker="writer-2", incarnation=2),
        event("holder-gone", 1.0, worker="writer-1", token=5),
        event("holding", 30.0, worker="writer-2", incarnation=2, token=7),
    ]
    evidence = sound_evidence()
    assert violations_of(replace(evidence, history=history), "I7")
    strike = event("fault", 0.2, kind="pause-queued", worker="writer-2")
    assert violations_of(replace(evidence, history=[*history[:2], strike, *history[2:]]), "I7") == []


def test_i8_detects_a_contender_that_remains() -> None:
    sentence = sentence_of(evidence_with_events(event("queue", 60.0, left=["abc__lock__0000000001"])), "I8")
    assert "contenders are left in the queue" in sentence
    sentence = sentence_of(
        evidence_with_events(event("queue", 60.0, worker="writer-2", left=["abc__lock__0000000001"])), "I8"
    )
    assert "contenders of writer-2 are left in the queue" in sentence


def test_i8_detects_a_queue_that_was_not_checked() -> None:
    evidence = sound_evidence()
    without_queue_check = [event for event in evidence.history if event["event"] != "queue"]
    assert "was not checked" in sentence_of(replace(evidence, history=without_queue_check), "I8")
    cancelled_wait = event("queue", 60.0, worker="writer-2", left=[])
    assert violations_of(replace(evidence, history=[*without_queue_check, cancelled_wait]), "I8")


def test_i9_detects_a_run_without_acknowledged_commits() -> None:
    waiting = event("waiting", 50.0, worker="writer-2", incarnation=2)
    (violation,) = violations_of(evidence_with_events(waiting, event("stalled", 90.0, seconds=75.0)), "I9")
    assert "nothing was acknowledged for 75 s" in violation.sentence
    assert waiting in violation.piece
    evidence = sound_evidence()
    history = [event for event in evidence.history if event["event"] != "acknowledged"]
    assert sentence_of(replace(evidence, history=history), "I9") == "nothing was acknowledged"


def test_i9_detects_a_writer_that_ends_late_or_without_request() -> None:
    writer: dict[str, Any] = {"worker": "writer-2", "incarnation": 2}
    holding, ended = event("holding", 61.0, **writer, token=11), event("ended", 63.0, **writer)
    (violation,) = violations_of(evidence_with_events(holding, event("killed", 62.0, **writer, late=True), ended), "I9")
    assert "writer-2 did not end in time on request, and was killed" in violation.sentence
    assert violation.piece[0] == holding
    assert "writer-2 ended without a request" in sentence_of(evidence_with_events(holding, ended), "I9")
    for reason in ("killed", "jvm-gone", "finished"):
        assert violations_of(evidence_with_events(holding, event(reason, 62.0, **writer), ended), "I9") == [], reason


UNKNOWN_WRITER: dict[str, Any] = {"worker": "writer-2", "incarnation": 2}


def unknown_turn(txn: str) -> list[dict[str, Any]]:
    """Return the events of a turn with an unknown outcome."""
    outcome = event("unknown", 3.2, **UNKNOWN_WRITER, txn=txn, error="CommitUnknownError")
    return [event("waiting", 3.1, **UNKNOWN_WRITER), outcome]


def fault_event(kind: str) -> dict[str, Any]:
    return event("fault", 3.15, kind=kind, worker="writer-1")


def test_i13_detects_an_unknown_outcome_that_no_fault_explains() -> None:
    assert "no fault explains 1 unknown outcomes" in sentence_of(evidence_with_events(*unknown_turn("t3")), "I13")
    waiting, outcome = unknown_turn("t3")
    strike, end = fault_event("break-lock"), event("pair", 3.18)
    for events in ([waiting, strike, outcome], [waiting, strike, end, outcome], [strike, waiting, outcome, end]):
        assert violations_of(evidence_with_events(*events), "I13") == []
    for events in ([waiting, outcome, strike], [strike, end, waiting, outcome]):
        assert len(violations_of(evidence_with_events(*events), "I13")) == 1


@pytest.mark.parametrize(("kind", "turns", "count"), [("s3-late", 1, 0), ("s3-late", 2, 1), ("zookeeper-quorum", 2, 0),
                                                      ("zookeeper-quorum", 3, 1)])  # fmt: skip
def test_i13_a_fault_explains_one_turn_or_one_of_each_writer(kind: str, turns: int, count: int) -> None:
    history = [event for number in range(turns) for event in unknown_turn(f"t{number}")]
    assert len(violations_of(evidence_with_events(fault_event(kind), *history), "I13")) == count


def test_i13_counts_a_turn_once_and_allows_one_in_a_hundred() -> None:
    waiting, outcome = unknown_turn("t3")
    assert violations_of(evidence_with_events(waiting, fault_event("s3-403"), outcome, outcome), "I13") == []
    many = [acknowledged_event() for _ in range(100)]
    assert violations_of(evidence_with_events(*many, *unknown_turn("t3")), "I13") == []
    assert violations_of(evidence_with_events(*many, *unknown_turn("t3"), *unknown_turn("t4")), "I13")


def test_every_invariant_has_a_function_with_its_number() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 14)]
    assert all(function.__doc__ and function.__doc__.startswith(name) for name, function in INVARIANTS.items())
