"""A ticket: what it lets pass, and when."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import create_autospec

import pytest

from lock_manager import LockCancelledError, LockNotHeldError
from lock_manager.errors import NotStagedError
from lock_manager.guard.guarded_hold import GuardedHold
from lock_manager.guard.ticket import StagedCommit, Ticket, staging_obstacle
from lock_manager.guard.write_attempt import WriteAttempt

TABLE = "s3://lake/t"
READ = {"version": 7, "properties": {"sluice.ensemble": "e"}}
BLIND: dict[str, Any] = {
    "blind": True,
    "removes": False,
    "dated": False,
    "actions": [],
    "read": READ,
    "hooks": [],
}
NEW_TABLE = {"read": {"version": -1, "properties": {}}, "actions": ["metaData", "protocol"]}


@pytest.mark.parametrize(
    ("said", "appends", "why"),
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
def test_what_can_be_committed_on_its_own(said: dict[str, Any], appends: Any, why: str | None) -> None:
    found = staging_obstacle(StagedCommit.of(BLIND | said), appends=appends)
    assert found is None if why is None else found is not None and why in found


def test_what_cannot_never_waits() -> None:
    ticket = Ticket(TABLE, WriteAttempt.of({}), lambda: None)
    with pytest.raises(NotStagedError, match="depend on the table"):
        ticket.has_turn(BLIND | {"blind": False})
    assert ticket.staged is None


def test_its_commit_waits_until_it_is_granted_and_is_one() -> None:
    news: list[str] = []
    ticket = Ticket(TABLE, WriteAttempt.of({}), lambda: news.append("look"))
    write_id = ticket.attempt.write_id
    assert not ticket.has_turn(BLIND)
    assert ticket.staged is not None
    assert (ticket.staged.read_version, ticket.staged.properties) == (7, {"sluice.ensemble": "e"})
    assert not ticket.has_turn(BLIND)
    assert news == ["look"]
    with pytest.raises(LockNotHeldError):
        ticket.granted_block(write_id)
    bound = create_autospec(GuardedHold, instance=True)
    bound.hold = create_autospec(object)
    bound.hold.intents_of = lambda _: settled
    settled = create_autospec(object)
    settled.settle = news.extend
    threading.Timer(0.05, lambda: ticket.grant(bound)).start()
    while not ticket.has_turn(BLIND):
        pass
    assert ticket.granted_block(write_id) is bound
    for foreign_id in (None, WriteAttempt.of({}).write_id):
        with pytest.raises(LockNotHeldError):
            ticket.granted_block(foreign_id)
    ticket.record_outcome({"outcome": "taken", "attempt": "first", "version": 8})
    assert ticket.granted_block(write_id) is bound
    ticket.record_outcome({"outcome": "unknown", "attempt": "second", "version": 9})
    assert ticket.committed is None
    ticket.record_outcome({"outcome": "committed", "attempt": "third", "version": 9, "metrics": {"numFiles": "1"}})
    assert ticket.committed == {"version": 9, "metrics": {"numFiles": "1"}}
    assert news == ["look", "first", "third", "look"]
    with pytest.raises(LockNotHeldError, match="commits a second time"):
        ticket.granted_block(write_id)


def test_refused_it_says_why_for_good() -> None:
    ticket = Ticket(TABLE, WriteAttempt.of({}), lambda: None)
    ticket.refuse(LockCancelledError(resource=TABLE))
    ticket.refuse(NotStagedError("another"))
    for _ in range(2):
        with pytest.raises(LockCancelledError):
            ticket.has_turn(BLIND)
    granted = Ticket(TABLE, WriteAttempt.of({}), lambda: None)
    granted.grant(create_autospec(GuardedHold, instance=True))
    granted.refuse(LockCancelledError(resource=TABLE))
    with pytest.raises(LockCancelledError):
        granted.granted_block(granted.attempt.write_id)


@pytest.mark.parametrize(("age", "refused"), [(302_000, False), (302_500, True)])
def test_half_of_the_time_for_which_vacuum_spares_a_file(age: float, refused: Any) -> None:
    attempt = WriteAttempt({}, "w", time.time() - age)
    if refused:
        with pytest.raises(NotStagedError, match="deletedFileRetentionDuration"):
            attempt.refuse_if_old(TABLE, 604_800)
    else:
        attempt.refuse_if_old(TABLE, 604_800)
