"""Tickets: which staged commits they accept, and when a commit proceeds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest

from lock_manager import LockCancelledError, LockNotHeldError
from lock_manager.errors import NotStagedError
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.guard.ticket import StagedCommit, Ticket, staging_obstacle
from lock_manager.guard.write_attempt import WriteAttempt

TABLE = "s3://lake/t"
READ = {"version": 7, "properties": {"sluice.ensemble": "e"}}
BLIND_APPEND: dict[str, Any] = {
    "blind": True, "removes": False, "dated": False, "actions": [], "read": READ, "hooks": [],
}  # fmt: skip
NEW_TABLE = {"read": {"version": -1, "properties": {}}, "actions": ["metaData", "protocol"]}


def new_ticket(on_change: Callable[[], None] = lambda: None) -> Ticket:
    return Ticket(TABLE, WriteAttempt.of({}), on_change)


@pytest.mark.parametrize(
    ("description", "appends", "reason"),
    [
        ({}, True, None),
        ({"actions": ["domainMetadata delta.rowTracking"]}, True, None),
        ({"read": None}, True, "version that it read is not known"),
        (NEW_TABLE, True, None),
        (NEW_TABLE, False, None),
        (NEW_TABLE | {"actions": ["domainMetadata delta.clustering", "metaData"]}, True, "domainMetadata"),
        (NEW_TABLE | {"dated": True}, True, "in-commit timestamp"),
        ({"blind": False}, True, "depend on the table"),
        ({"removes": True}, True, "depend on the table"),
        ({"blind": False, "removes": True}, False, None),
        ({"actions": ["metaData"]}, True, "changes the table's metaData"),
        ({"actions": ["metaData", "protocol"]}, False, "changes the table's metaData, protocol"),
        ({"actions": ["domainMetadata delta.clustering"]}, True, "changes the table's domainMetadata"),
        ({"actions": ["unreadable"]}, True, "changes the table's unreadable"),
        ({"dated": True}, True, "in-commit timestamp"),
        ({"dated": True}, False, "in-commit timestamp"),
        ({"hooks": ["Auto Compact"]}, True, "runs after the commit: Auto Compact"),
        ({"hooks": ["Auto Compact"], "blind": False}, False, "runs after the commit: Auto Compact"),
        ({"hooks": None}, True, "are not known"),
    ],
)
def test_commits_that_need_the_lock_earlier_cannot_be_staged(
    description: dict[str, Any], appends: Any, reason: str | None
) -> None:
    obstacle = staging_obstacle(StagedCommit.of(BLIND_APPEND | description), appends=appends)
    if reason is None:
        assert obstacle is None
    else:
        assert obstacle is not None
        assert reason in obstacle


def test_a_dependent_commit_is_refused_at_once() -> None:
    ticket = new_ticket()
    with pytest.raises(NotStagedError, match="depend on the table"):
        ticket.has_turn({"staged": BLIND_APPEND | {"blind": False}})
    assert ticket.staged is None


@pytest.mark.parametrize(
    ("description", "turns"),
    [({}, [0.5, 0.5, 0.5]), ({"reads_ahead": True}, [0.5, 1, 2, 4, 4]), ({"offer": {}}, [0.5, 1, 2, 4, 4])],
    ids=["one version after another", "reads ahead", "offered"],
)
def test_a_waiting_commit_is_checked_less_often_if_checks_are_short(
    description: dict[str, Any], turns: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lock:
        def __init__(self) -> None:
            self.timeouts: list[float] = []

        def acquire(self, *, timeout: float) -> bool:
            self.timeouts.append(timeout)
            return False

    ticket, lock = new_ticket(), Lock()
    monkeypatch.setattr(ticket, "_decision_lock", lock)
    for _ in turns:
        assert not ticket.has_turn({"version": 1, "staged": BLIND_APPEND | description})
    assert lock.timeouts == turns


def test_a_granted_ticket_allows_one_commit() -> None:
    events: list[str] = []
    ticket = new_ticket(lambda: events.append("wake"))
    write_id = ticket.attempt.write_id
    assert not ticket.has_turn({"staged": BLIND_APPEND, "version": 8})
    assert ticket.staged is not None
    assert (ticket.staged.read_version, ticket.staged.properties) == (7, {"sluice.ensemble": "e"})
    assert not ticket.has_turn({"staged": BLIND_APPEND, "version": 8})
    assert events == ["wake"]
    with pytest.raises(LockNotHeldError):
        ticket.granted_block(write_id)
    block = create_autospec(GuardedBlock, instance=True)
    block.hold = create_autospec(object)
    block.hold.intents_of = lambda _: intents
    block.hold.dismiss = events.extend
    intents = create_autospec(object)
    intents.settle = events.extend
    threading.Timer(0.05, lambda: ticket.grant(block)).start()
    while not ticket.has_turn({"staged": BLIND_APPEND, "version": 8}):
        pass
    assert ticket.granted_block(write_id) is block
    for foreign_id in (None, WriteAttempt.of({}).write_id):
        with pytest.raises(LockNotHeldError):
            ticket.granted_block(foreign_id)
    ticket.record_outcome({"outcome": "taken", "attempt": "first", "version": 8})
    assert ticket.granted_block(write_id) is block
    ticket.record_outcome({"outcome": "unknown", "attempt": "second", "version": 9})
    assert ticket.committed is None
    ticket.allow_members(["member"])
    ticket.record_outcome({"outcome": "committed", "attempt": "third", "version": 9, "metrics": {"numFiles": "1"}})
    assert ticket.committed == {"version": 9, "metrics": {"numFiles": "1"}}
    assert not ticket.is_member
    assert events == ["wake", "first", "third", "member", "wake"]
    with pytest.raises(LockNotHeldError, match="covers one commit only"):
        ticket.granted_block(write_id)


@pytest.mark.parametrize("reporter", ["writer", "log store"])
def test_a_commit_by_a_holder_ends_the_wait(reporter: str) -> None:
    events: list[str] = []
    ticket = new_ticket(lambda: events.append("wake"))
    request = {"staged": BLIND_APPEND | {"offer": {"lines": []}}, "version": 9}
    assert not ticket.has_turn(request)
    assert (ticket.offer, ticket.checked_version) == ({"lines": []}, 8)
    if reporter == "writer":
        ticket.record_commit(9, {"numFiles": "1"}, is_member=True)
    else:
        ticket.record_outcome({"outcome": "committed", "attempt": "", "version": 9, "metrics": {"numFiles": "1"}})
        assert events == ["wake", "wake"]
    assert ticket.has_turn(request)
    assert (ticket.is_member, ticket.committed) == (True, {"version": 9, "metrics": {"numFiles": "1"}})
    ticket.refuse(LockCancelledError(resource=TABLE))
    assert ticket.has_turn(request)


def test_a_refused_ticket_keeps_its_first_error() -> None:
    ticket = new_ticket()
    ticket.refuse(LockCancelledError(resource=TABLE))
    ticket.refuse(NotStagedError("another"))
    for _ in range(2):
        with pytest.raises(LockCancelledError):
            ticket.has_turn({"staged": BLIND_APPEND, "version": 8})
    granted_ticket = new_ticket()
    granted_ticket.grant(create_autospec(GuardedBlock, instance=True))
    granted_ticket.refuse(LockCancelledError(resource=TABLE))
    with pytest.raises(LockCancelledError):
        granted_ticket.granted_block(granted_ticket.attempt.write_id)


def test_a_write_expires_after_half_of_the_vacuum_retention() -> None:
    retention_seconds = 7 * 86_400
    oldest_start = time.time() - retention_seconds / 2
    WriteAttempt({}, "w", oldest_start + 100).refuse_if_old(TABLE, retention_seconds)
    with pytest.raises(NotStagedError, match="deletedFileRetentionDuration"):
        WriteAttempt({}, "w", oldest_start - 100).refuse_if_old(TABLE, retention_seconds)
