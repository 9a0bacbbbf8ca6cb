"""Intents on a real ZooKeeper: written with the question whether the hold stands, found by the next holder."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from lock_manager import HeldLock, LockLostError, LockNotHeldError, TableResource, ZookeeperLockManager
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_hold import AllowedPut, GuardedHold
from lock_manager.intents import Intent
from lock_manager.zookeeper.znodes import intents_node, table_node
from soak.stalls import stalled_listing
from soak.tcp_proxy import Link


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def node(table: str) -> str:
    return table_node("/locks/delta_tables", TableResource.of(table))


@pytest.fixture
def proxy(zookeeper) -> Iterator[Link]:
    with Link(zookeeper.hosts) as between:
        yield between


def intents(client: KazooClient, node: str) -> dict[str, Intent]:
    folder = intents_node(node)
    return {name: Intent.parse(client.get(f"{folder}/{name}")[0]) for name in client.get_children(folder)}


def test_the_newest_intent_of_a_hold_stays_until_it_is_settled_and_released(manager, table, node, ensemble_client):
    hold = manager.acquire(table)
    hold.intend(3, txn="t", attempt="a")
    hold.intend(4, txn=None, attempt="b")
    noted = intents(ensemble_client, node)
    assert {(name, intent.version, intent.attempt, intent.token) for name, intent in noted.items()} == {
        (hold.hold_id, 4, "b", hold.token)
    }
    hold.intents.settle(["a", "b"])
    assert intents(ensemble_client, node) == noted
    hold.release()
    assert intents(ensemble_client, node) == {}


def test_an_unsettled_intent_is_what_the_next_holder_finds_and_clears(manager, table, node, ensemble_client):
    with manager.acquire(table) as first:
        first.intend(3, txn="t", attempt="a")
    with manager.acquire(table) as second:
        assert second.intents.unfinished == (first.hold_id,)
        (found,) = second.intents.read()
        assert (found.version, found.txn, found.token) == (3, "t", first.token)
        second.intend(3, txn="u", attempt="b")
        second.intents.settle(["b"])
        second.intents.clear()
        assert list(intents(ensemble_client, node)) == [second.hold_id]
    assert intents(ensemble_client, node) == {}
    with manager.acquire(table) as third:
        assert third.intents.unfinished == ()


def test_a_waiter_finds_what_was_left_behind_after_it_had_queued(zookeeper, manager, table, eventually):
    first = manager.acquire(table)
    found: list[tuple[str, ...]] = []
    with ZookeeperLockManager(zookeeper.hosts, 60) as other:

        def wait() -> None:
            with other.acquire(table) as hold:
                found.append(hold.intents.unfinished)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: len(manager.queue(table)) == 2)
        first.intend(0, txn=None, attempt="a")
        first.release()
        waiting.join(30)
    assert found == [(first.hold_id,)]


def test_an_attempt_without_an_outcome_keeps_the_intent_whatever_is_settled_besides(
    manager, table, node, ensemble_client
):
    hold = manager.acquire(table)
    hold.intend(3, txn="t", attempt="unknown")
    hold.intents.settle([])
    hold.intend(4, txn="u", attempt="stored")
    hold.intents.settle(["stored"])
    assert set(hold.intents.open) == {"unknown"}
    hold.release()
    assert [intent.version for intent in intents(ensemble_client, node).values()] == [4]
    with manager.acquire(table) as next_one:
        assert next_one.intents.unfinished == (hold.hold_id,)


def test_an_attempt_that_the_ensemble_refuses_is_not_open(manager, table, node, ensemble_client):
    with pytest.raises(LockLostError), manager.acquire(table) as hold:
        for name in ensemble_client.get_children(node):
            if "lock__" in name:
                ensemble_client.delete(f"{node}/{name}")
        with pytest.raises(LockLostError):
            hold.intend(3, txn=None, attempt="a")
        assert not hold.intents.open


@pytest.fixture
def found_behind_a_stall(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    guard_said_to_be_there: None,
) -> Iterator[tuple[HeldLock, HeldLock]]:
    """Two holds of two partitions; the second one has the intent of the first for left behind.

    It listed the queue before the first one came, stalled, and listed the intents after the first one had noted one.
    """
    alive: list[HeldLock] = []

    def come_in_between() -> None:
        alive.append(make_manager().acquire(table, partitions=[{"year": 2012}]))
        alive[0].intend(7, txn="t", attempt="a")

    def come_late() -> HeldLock:
        with stalled_listing(come_in_between):
            return make_manager().acquire(table, partitions=[{"year": 2013}])

    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(come_late).result()
    yield alive[0], late
    late.release()


def test_an_intent_that_was_taken_for_left_behind_stays_if_its_hold_notes_another_version(
    found_behind_a_stall: tuple[HeldLock, HeldLock], node: str, ensemble_client: KazooClient
):
    alive, late = found_behind_a_stall
    assert late.intents.unfinished == (alive.hold_id,)
    assert [intent.version for intent in late.intents.read()] == [7]
    alive.intend(8, txn="t", attempt="b")
    late.intents.clear()
    assert intents(ensemble_client, node)[alive.hold_id].version == 8
    alive.release()
    assert list(intents(ensemble_client, node)) == [alive.hold_id]


def test_an_intent_that_was_cleared_is_noted_anew_under_a_name_that_nobody_has_read(
    found_behind_a_stall: tuple[HeldLock, HeldLock], node: str, ensemble_client: KazooClient
):
    alive, late = found_behind_a_stall
    late.intents.read()
    # Somebody else who took it for left behind was faster, and the hold has noted its next version since.
    ensemble_client.delete(f"{intents_node(node)}/{alive.hold_id}")
    alive.intend(8, txn="t", attempt="b")
    late.intents.clear()
    (noted,) = intents(ensemble_client, node).values()
    assert (noted.hold_id, noted.version) == (alive.hold_id, 8)
    alive.intents.settle(["a", "b"])
    alive.release()
    assert intents(ensemble_client, node) == {}


def test_a_lost_hold_neither_notes_nor_clears(manager, table, node, ensemble_client):
    with manager.acquire(table) as before:
        before.intend(3, txn="t", attempt="a")
    with pytest.raises(LockLostError), manager.acquire(table) as hold:
        hold.intents.read()
        for name in ensemble_client.get_children(node):
            if "lock__" in name:
                ensemble_client.delete(f"{node}/{name}")
        with pytest.raises(LockLostError):
            hold.intents.clear()
        with pytest.raises(LockLostError):
            hold.intend(4, txn=None, attempt="b")
    assert list(intents(ensemble_client, node)) == [before.hold_id]


def test_a_queue_that_another_program_made_gets_its_place_for_intents(manager, table, node, ensemble_client):
    ensemble_client.ensure_path(node)
    with manager.acquire(table) as hold:
        assert ensemble_client.exists(intents_node(node)) is None
        assert hold.intents.unfinished == ()
        hold.intend(1, txn=None, attempt="a")
        assert list(intents(ensemble_client, node)) == [hold.hold_id]


def test_an_intent_that_somebody_cleared_away_is_noted_again_and_does_not_stop_the_release(
    manager, table, node, ensemble_client
):
    hold = manager.acquire(table)
    for version in (1, 2, 3):
        hold.intend(version, txn=None, attempt="a")
        ((name, noted),) = intents(ensemble_client, node).items()
        assert (noted.hold_id, noted.version) == (hold.hold_id, version)
        ensemble_client.delete(f"{intents_node(node)}/{name}")
    hold.intents.settle(["a"])
    hold.release()
    assert [name for name in ensemble_client.get_children(node) if "lock__" in name] == []


def test_a_lost_reply_is_asked_again_and_makes_one_intent(zookeeper, proxy, table, node, ensemble_client, eventually):
    with ZookeeperLockManager(proxy.hosts, 30) as through, through.acquire(table) as hold:
        proxy.deaf = True
        asking = threading.Thread(target=lambda: hold.intend(5, txn=None, attempt="a"))
        asking.start()
        eventually(lambda: ensemble_client.exists(f"{intents_node(node)}/{hold.hold_id}"))
        proxy.deaf = False
        proxy.drop()
        asking.join(30)
        assert not asking.is_alive()
        assert intents(ensemble_client, node)[hold.hold_id].version == 5
        hold.intents.settle(["a"])
    assert intents(ensemble_client, node) == {}


@pytest.fixture
def ask() -> Callable[..., dict]:
    import json

    def ask(guard: CommitGuard, table: str, blocks: str | None, version: int = 0) -> dict:
        commit = {"kind": "commit", "table": table, "version": version, "attempt": uuid.uuid4().hex, "txn": None}
        answer: dict = json.loads(guard.check(json.dumps(commit | {"blocks": blocks})))
        return answer

    return ask


def test_the_guard_refuses_with_a_reason_and_remembers_the_error(manager, table, ask):
    guard = CommitGuard()
    assert ask(guard, table, None)["refused"] == "LockNotHeldError"
    assert "bound to no lock" in ask(guard, table, "")["message"]
    assert "given back" in ask(guard, table, "of somebody else")["message"]
    assert ask(guard, "no/scheme://x", "a")["refused"] == "LockNotHeldError"
    bound = GuardedHold(manager.acquire(table), {"job": "nightly"})
    guard.add(bound)
    yes = ask(guard, table, bound.name, 7)
    assert yes["holds"] == [bound.hold.hold_id]
    assert yes["stamp"]["job"] == "nightly"
    assert list(bound.allowed_puts.values()) == [AllowedPut(7, None)]
    bound.hold.release()
    assert ask(guard, table, bound.name)["refused"] == "LockNotHeldError"
    assert list(bound.allowed_puts.values()) == [AllowedPut(7, None)]
    (newest,) = [guard.refusal_in("…" + ask(guard, table, bound.name)["message"] + "…")]
    assert isinstance(newest, LockNotHeldError)
    assert guard.refusal_in("something else") is None


def test_the_guard_knows_a_hold_by_either_name_of_an_azure_account(manager, ask):
    guard, folder = CommitGuard(), uuid.uuid4().hex
    with manager.acquire(f"wasbs://data@Account.blob.core.windows.net/{folder}") as hold:
        block = GuardedHold(hold, {})
        guard.add(block)
        for version, name in enumerate(
            ("abfss://data@account.dfs", "wasb://data@account.blob", "abfs://data@account.blob")
        ):
            answer = ask(guard, f"{name}.core.windows.net/{folder}", block.name, version)
            assert answer.get("holds") == [hold.hold_id], answer
        hold.intents.settle(hold.intents.open)


def test_what_the_guard_does_not_understand_is_refused(ask):
    import json

    guard = CommitGuard()
    for request in ("", "[]", "{}", '{"attempt": "a"}', json.dumps({"attempt": "a", "table": 5, "blocks": "x"})):
        assert json.loads(guard.check(request))["refused"] == "LockLostError"


@pytest.mark.parametrize("kind", [{}, {"kind": "verdict"}, {"kind": None}, {"kind": ["commit"]}])
def test_a_request_of_an_unknown_kind_is_refused(manager, table, kind):
    import json

    with manager.acquire(table) as hold:
        guard, block = CommitGuard(), GuardedHold(hold, {})
        guard.add(block)
        commit = {"table": table, "version": 7, "attempt": "a", "blocks": block.name}
        assert json.loads(guard.check(json.dumps(commit | kind)))["refused"] == "LockLostError"
        assert block.allowed_puts == {}
        # Control: it is the kind that is missing.
        assert "holds" in json.loads(guard.check(json.dumps(commit | {"kind": "commit"})))
        hold.intents.settle(["a"])


def test_a_failure_of_the_guard_names_the_table():
    import json

    request = json.dumps({"kind": "commit", "attempt": "a", "table": "s3a://lake/flights", "version": "seven"})
    answer = json.loads(CommitGuard().check(request))
    assert answer["refused"] == "LockLostError"
    assert answer["message"].startswith("lock on s3://lake/flights was lost")
