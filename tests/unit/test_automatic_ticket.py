"""The commit guard opens automatic tickets: which commits they allow, and when their lock is free again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lock_manager.events import Event, observe
from lock_manager.guard.automatic_ticket import AutomaticTickets
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.table_records.adoption import Adoption
from tests.support.memory_coordinator import MemoryCoordinator

TABLE = "s3://lake/t"
STAGED: dict[str, Any] = {
    "blind": True, "removes": False, "dated": False, "changes_rows": True, "operation": "WRITE", "configuration": None,
    "timestamp": 0, "actions": [], "read": {"version": 7, "properties": {}}, "hooks": [], "reads": [], "table_id": "id",
    "begun_ms": 1000 * time.time(), "retention_ms": 604_800_000,
}  # fmt: skip
OWN_READ = {"roots": [TABLE], "table_id": "id"}


class Driver:
    """Sends the requests of a log store to a guard with locks in memory."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.manager = self.coordinator.manager()
        self.guard = CommitGuard()
        self.guard.automatic = AutomaticTickets(self.manager, "program")

    def send(self, kind: str, *, version: int = 8, ticket: str = "automatic-1", **fields: Any) -> dict[str, Any]:
        request = {"kind": kind, "table": TABLE, "version": version, "attempt": "a", "ticket": ticket, **fields}
        answer: dict[str, Any] = json.loads(self.guard.check(json.dumps(request)))
        return answer

    def turn(self, staged: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        """Ask until the commit has its turn, or is refused."""
        while True:
            answer = self.send("turn", automatic=True, staged=STAGED | (staged or {}), **fields)
            if answer.get("turn") is not False:
                return answer

    def is_free(self) -> bool:
        return self.coordinator.queue_length(TABLE) == 0


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.guard.client_ended()


def test_a_commit_gets_the_lock_until_its_outcome(driver: Driver, eventually: Callable[..., None]) -> None:
    assert driver.turn() == {"turn": True}
    assert not driver.is_free()
    answer = driver.send("commit", ticket="automatic-1")
    assert (len(answer["holds"]), answer["stamp"]["job"]) == (1, "program")
    driver.send("outcome", outcome="committed", metrics={})
    eventually(driver.is_free, within=10)
    assert driver.send("commit")["refused"] == "LockNotHeldError"


@pytest.mark.parametrize("outcome", ["taken", "rejected", "unknown"])
def test_the_lock_is_kept_for_another_attempt_until_the_transaction_ends(
    driver: Driver, outcome: str, eventually: Callable[..., None]
) -> None:
    driver.turn()
    driver.send("commit")
    driver.send("outcome", outcome=outcome, metrics={})
    assert driver.turn(version=9) == {"turn": True}
    assert not driver.is_free()
    driver.send("end")
    eventually(driver.is_free, within=10)


def test_the_lock_is_kept_for_hooks(driver: Driver, eventually: Callable[..., None]) -> None:
    driver.turn({"hooks": ["Symlink"]})
    driver.send("commit")
    driver.send("outcome", outcome="committed", metrics={}, keeps_lock=True)
    assert not driver.is_free()
    driver.send("end")
    eventually(driver.is_free, within=10)


def test_the_end_may_arrive_before_the_last_turn(driver: Driver) -> None:
    driver.send("end")
    assert driver.send("turn", automatic=True, staged=STAGED)["refused"] == "LockNotHeldError"
    assert driver.is_free()


def test_the_end_ends_the_wait(driver: Driver, eventually: Callable[..., None]) -> None:
    with driver.coordinator.manager().acquire(TABLE):
        waiting = threading.Thread(target=driver.turn)
        waiting.start()
        eventually(lambda: driver.coordinator.queue_length(TABLE) == 2, within=10)
        driver.send("end")
        eventually(lambda: driver.coordinator.queue_length(TABLE) == 1, within=10)
        waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("staged", "reason"),
    [
        ({}, None),
        ({"reads": [{"roots": ["s3://lake/other"], "table_id": "x"}]}, None),
        ({"reads": [OWN_READ | {"newest": True}], "blind": False}, None),
        ({"reads": [OWN_READ | {"newest": True}]}, "reads the table itself"),
        ({"reads": [OWN_READ | {"newest": False}], "blind": False}, "reads the table itself"),
        ({"reads": [{"unknown": "Iceberg"}]}, "may read the table: Iceberg"),
        ({"reads": [{"unknown": "Iceberg"}], "changes_rows": False}, None),
        ({"actions": ["metaData"]}, "changes the table's metaData"),
        ({"hooks": ["Symlink"]}, None),
        ({"hooks": ["Auto Compact"]}, None),
        ({"hooks": None}, "hooks are not known"),
        ({"dated": True, "timestamp": 4e12}, None),
    ],
)
def test_after_another_commit_only_safe_commits_are_made(
    driver: Driver, staged: dict[str, Any], reason: str | None
) -> None:
    assert driver.turn(staged) == {"turn": True}, "no other commit was made"
    answer = driver.turn(staged, version=9)
    if reason is None:
        assert answer == {"turn": True}
    else:
        assert (answer["refused"], reason in answer["message"]) == ("NotStagedError", True)


@pytest.mark.parametrize(
    ("staged", "reason"),
    [
        ({"read": None}, "transaction is not known"),
        ({"begun_ms": 1000 * (time.time() - 302_500)}, "began 30"),
        ({"hooks": ["Symlink", "Auto Compact"]}, "turn auto-compaction off"),
    ],
)
def test_a_program_does_not_repeat_a_statement_that_is_always_refused(
    driver: Driver, staged: dict[str, Any], reason: str
) -> None:
    answer = driver.turn(staged)
    # The log store turns a NotStagedError into Delta's exception for conflicts, and programs repeat such statements.
    assert (answer["refused"], reason in answer["message"]) == ("LockNotHeldError", True)


def test_a_statement_with_an_old_in_commit_timestamp_runs_again(driver: Driver) -> None:
    assert driver.turn({"dated": True, "timestamp": 1000})["refused"] == "NotStagedError"


def test_a_commit_whose_files_became_too_old_while_it_waited_is_refused(driver: Driver) -> None:
    young = {"begun_ms": 1000 * time.time(), "retention_ms": 2000}
    with driver.coordinator.manager().acquire(TABLE):
        answers = [driver.send("turn", automatic=True, staged=STAGED | young) for _ in range(3)]
    assert answers == 3 * [{"turn": False}]
    assert "began" in driver.turn(young)["message"]


def test_a_changed_adoption_is_restored_unless_it_was_unset(driver: Driver) -> None:
    adoption = Adoption(driver.coordinator.id, TABLE).properties
    replaced = {"read": {"version": 7, "properties": adoption}, "configuration": {}, "actions": ["metaData"]}
    driver.turn(replaced | {"operation": "CREATE OR REPLACE TABLE"})
    restoration = driver.send("commit", blocks=None, metadata=True)["restoration"]
    assert restoration["properties"] == adoption
    # The commit that restores it belongs to the block, and needs no ticket.
    assert "holds" in driver.send("commit", version=9, ticket=None, attempt="b", blocks=restoration["block"])
    driver.send("end")
    driver.turn(replaced | {"operation": "UNSET TBLPROPERTIES"}, ticket="automatic-2")
    assert "restoration" not in driver.send("commit", ticket="automatic-2", metadata=True)


def test_another_ensemble_s_table_is_refused(driver: Driver) -> None:
    properties = Adoption("another", TABLE).properties
    assert driver.turn({"read": {"version": 7, "properties": properties}})["refused"] == "EnsembleMismatchError"


def test_a_transaction_gets_its_lock_before_it_begins(driver: Driver, eventually: Callable[..., None]) -> None:
    while not driver.send("lock", automatic=True)["turn"]:
        pass
    assert not driver.is_free()
    assert driver.turn() == {"turn": True}
    driver.send("end")
    eventually(driver.is_free, within=10)


def test_a_commit_settles_unfinished_intents(driver: Driver, eventually: Callable[..., None]) -> None:
    events: list[Event] = []
    stop = observe(lambda event, *_, **__: events.append(event))
    try:
        with driver.manager.acquire(TABLE) as hold:
            hold.intend(8, txn=None, attempt="late")
        for version in (8, 9):
            ticket = f"automatic-{version}"
            driver.turn({"read": {"version": version - 1, "properties": {}}}, version=version, ticket=ticket)
            driver.send("commit", version=version, ticket=ticket)
            driver.send("outcome", version=version, ticket=ticket, outcome="committed", metrics={})
            eventually(driver.is_free, within=10)
    finally:
        stop()
    # The second commit finds no intent.
    assert events.count(Event.INTENT_SETTLED) == 1
    assert Event.INTENT_LEFT not in events


def test_the_end_settles_the_commits_of_the_hold(driver: Driver, eventually: Callable[..., None]) -> None:
    driver.turn()
    assert "holds" in driver.send("commit")
    puts = [{"attempt": "a", "version": 8, "txn": None, "outcome": "committed"}]
    driver.send("end", puts=puts)
    eventually(driver.is_free, within=10)
    with driver.manager.acquire(TABLE) as hold:
        assert hold.intents.unfinished == ()


def test_without_automatic_tickets_the_commit_is_refused(driver: Driver) -> None:
    driver.guard.automatic = None
    assert driver.turn()["refused"] == "LockNotHeldError"
