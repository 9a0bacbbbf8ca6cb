"""Intents on a real ZooKeeper, and the answers of the guard.

An intent is stored with the check of a hold, and read by the next holder.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from lock_manager import HeldLock, LockLostError, LockNotHeldError, ZookeeperLockManager
from lock_manager.coordinator import Offer
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_block import AllowedPut, GuardedBlock
from lock_manager.intents import UNREADABLE
from lock_manager.zookeeper.request import OFFER
from lock_manager.zookeeper.znodes import Mode, new_contender_path
from soak.stalls import stalled_listing
from soak.tcp_proxy import Link
from tests.support.lock_znodes import LockZnodes
from tests.support.new_thread import in_new_thread


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def znodes(ensemble_client: KazooClient, table: str) -> LockZnodes:
    return LockZnodes(ensemble_client, table)


def test_a_settled_intent_stays_until_the_release(manager, table, znodes):
    hold = manager.acquire(table)
    hold.intend(3, txn="t", attempt="a")
    hold.intend(4, txn=None, attempt="b")
    intents = znodes.intents()
    assert {(name, intent.version, intent.attempt, intent.token) for name, intent in intents.items()} == {
        (hold.hold_id, 4, "b", hold.token)
    }
    hold.intents.settle(["a", "b"])
    assert znodes.intents() == intents
    hold.release()
    assert znodes.intents() == {}


def test_the_next_holder_reads_and_clears_an_unfinished_intent(manager, table, znodes):
    with manager.acquire(table) as hold:
        hold.intend(3, txn="t", attempt="a")
    with manager.acquire(table) as next_hold:
        assert next_hold.intents.unfinished == (hold.hold_id,)
        (intent,) = next_hold.intents.read()
        assert (intent.version, intent.txn, intent.token) == (3, "t", hold.token)
        next_hold.intend(3, txn="u", attempt="b")
        next_hold.intents.settle(["b"])
        next_hold.intents.clear()
        assert list(znodes.intents()) == [next_hold.hold_id]
    assert znodes.intents() == {}
    with manager.acquire(table) as last_hold:
        assert last_hold.intents.unfinished == ()


def test_an_unreadable_intent_has_the_id_of_its_hold(manager, table, znodes):
    hold_id = uuid.uuid4().hex
    znodes.client.create(f"{znodes.intents_path}/{hold_id}-1", b"not an intent", makepath=True)
    with manager.acquire(table) as hold:
        (intent,) = hold.intents.read()
    assert (intent.hold_id, intent.version) == (hold_id, UNREADABLE)


def test_a_holder_reads_the_first_64_offers(manager, table, znodes):
    with manager.acquire(table) as hold:
        for number in range(65):
            path = new_contender_path(znodes.path, uuid.uuid4().hex, Mode.EXCLUSIVE)
            data = json.dumps({OFFER: {"number": number}}).encode()
            znodes.client.create(path, data, sequence=True, ephemeral=True)
        assert [offer["number"] for offer in hold.offers().values()] == list(range(64))


def test_an_unreadable_intent_may_name_any_member(manager, table, znodes):
    offer = Offer("write", {})
    # Without an entry in the queue nobody can have taken it.
    assert not manager.is_offered(table, offer, 30)
    offer.requests.append(uuid.uuid4().hex)
    assert not manager.is_offered(table, offer, 30)
    znodes.client.create(f"{znodes.intents_path}/{uuid.uuid4().hex}", b"not an intent", makepath=True)
    assert manager.is_offered(table, offer, 30)


def test_a_request_without_an_answer_may_be_in_the_queue_later(manager, table):
    offer = Offer("write", {})
    with manager.acquire_all([table], offer=offer):
        assert offer.requests
        assert not offer.is_uncertain
    assert not manager.is_offered(table, offer, 30)
    offer.is_uncertain = True
    assert manager.is_offered(table, offer, 30)


def test_a_waiter_finds_an_intent_stored_while_it_waits(make_manager, manager, table, eventually):
    hold = manager.acquire(table)

    def unfinished_intents() -> tuple[str, ...]:
        with make_manager().acquire(table) as next_hold:
            return next_hold.intents.unfinished

    waiting_request = in_new_thread(unfinished_intents)
    eventually(lambda: len(manager.queue(table)) == 2)
    hold.intend(0, txn=None, attempt="a")
    hold.release()
    assert waiting_request.result(30) == (hold.hold_id,)


def test_an_attempt_of_unknown_outcome_keeps_the_intent(manager, table, znodes):
    """The hold makes two attempts, and only one of them is settled."""
    hold = manager.acquire(table)
    hold.intend(3, txn="t", attempt="unknown")
    hold.intents.settle([])
    hold.intend(4, txn="u", attempt="stored")
    hold.intents.settle(["stored"])
    assert set(hold.intents.open) == {"unknown"}
    hold.release()
    assert [intent.version for intent in znodes.intents().values()] == [4]
    with manager.acquire(table) as next_hold:
        assert next_hold.intents.unfinished == (hold.hold_id,)


def test_an_attempt_that_the_ensemble_refuses_is_not_open(manager, table, znodes):
    with pytest.raises(LockLostError), manager.acquire(table) as hold:
        znodes.delete_contenders()
        with pytest.raises(LockLostError):
            hold.intend(3, txn=None, attempt="a")
        assert not hold.intents.open


@pytest.fixture
def stalled_holds(
    make_manager: Callable[..., ZookeeperLockManager],
    table: str,
    guard_declared: None,
) -> Iterator[tuple[HeldLock, HeldLock]]:
    """Two valid holds of two partitions. The second one treats the first one's intent as unfinished.

    The second request listed the queue before the first hold began. Then it stalled, and listed the intents after the
    first hold had stored one.
    """
    first_holds: list[HeldLock] = []

    def acquire_first() -> None:
        first_holds.append(make_manager().acquire(table, partitions=[{"year": 2012}]))
        first_holds[0].intend(7, txn="t", attempt="a")

    def acquire_second() -> HeldLock:
        with stalled_listing(acquire_first):
            return make_manager().acquire(table, partitions=[{"year": 2013}])

    second_hold = in_new_thread(acquire_second).result()
    yield first_holds[0], second_hold
    second_hold.release()


def test_clear_spares_an_intent_of_a_newer_version(stalled_holds: tuple[HeldLock, HeldLock], znodes: LockZnodes):
    first_hold, second_hold = stalled_holds
    assert second_hold.intents.unfinished == (first_hold.hold_id,)
    assert [intent.version for intent in second_hold.intents.read()] == [7]
    first_hold.intend(8, txn="t", attempt="b")
    second_hold.intents.clear()
    assert znodes.intents()[first_hold.hold_id].version == 8
    first_hold.release()
    assert list(znodes.intents()) == [first_hold.hold_id]


def test_clear_spares_an_intent_stored_under_a_new_name(stalled_holds: tuple[HeldLock, HeldLock], znodes: LockZnodes):
    first_hold, second_hold = stalled_holds
    second_hold.intents.read()
    # A third holder that treats the intent as unfinished would delete it. Then the first hold stores its next intent.
    znodes.client.delete(f"{znodes.intents_path}/{first_hold.hold_id}")
    first_hold.intend(8, txn="t", attempt="b")
    second_hold.intents.clear()
    (intent,) = znodes.intents().values()
    assert (intent.hold_id, intent.version) == (first_hold.hold_id, 8)
    first_hold.intents.settle(["a", "b"])
    first_hold.release()
    assert znodes.intents() == {}


def test_a_lost_hold_neither_stores_nor_clears_intents(manager, table, znodes):
    with manager.acquire(table) as previous_hold:
        previous_hold.intend(3, txn="t", attempt="a")
    with pytest.raises(LockLostError), manager.acquire(table) as hold:
        hold.intents.read()
        znodes.delete_contenders()
        with pytest.raises(LockLostError):
            hold.intents.clear()
        with pytest.raises(LockLostError):
            hold.intend(4, txn=None, attempt="b")
    assert list(znodes.intents()) == [previous_hold.hold_id]


def test_a_queue_of_another_program_gets_a_znode_for_intents(manager, table, znodes):
    znodes.client.ensure_path(znodes.path)
    with manager.acquire(table) as hold:
        assert znodes.client.exists(znodes.intents_path) is None
        assert hold.intents.unfinished == ()
        hold.intend(1, txn=None, attempt="a")
        assert list(znodes.intents()) == [hold.hold_id]


def test_a_deleted_intent_is_stored_again(manager, table, znodes):
    hold = manager.acquire(table)
    for version in (1, 2, 3):
        hold.intend(version, txn=None, attempt="a")
        ((name, intent),) = znodes.intents().items()
        assert (intent.hold_id, intent.version) == (hold.hold_id, version)
        znodes.client.delete(f"{znodes.intents_path}/{name}")
    hold.intents.settle(["a"])
    # The release does not need the intent.
    hold.release()
    assert znodes.contenders() == []


def test_an_intent_whose_reply_is_lost_is_stored_once(zookeeper, table, znodes, eventually):
    with (
        Link(zookeeper.hosts) as proxy,
        ZookeeperLockManager(proxy.hosts, 30) as manager,
        manager.acquire(table) as hold,
    ):
        proxy.discards_replies = True
        pending_intent = in_new_thread(hold.intend, 5, txn=None, attempt="a")
        eventually(lambda: hold.hold_id in znodes.intents())
        proxy.discards_replies = False
        proxy.drop()
        pending_intent.result(30)
        assert znodes.intents()[hold.hold_id].version == 5
        hold.intents.settle(["a"])
    assert znodes.intents() == {}


def ask(guard: CommitGuard, table: str, blocks: str | None, version: int = 0) -> dict[str, Any]:
    """Return the guard's answer to the request to put a version, as the JVM sends it."""
    commit = {"kind": "commit", "table": table, "version": version, "attempt": uuid.uuid4().hex, "txn": None}
    return check(guard, commit | {"blocks": blocks})


def check(guard: CommitGuard, request: object) -> dict[str, Any]:
    """Return the guard's answer to any request."""
    answer: dict[str, Any] = json.loads(guard.check(json.dumps(request)))
    return answer


def test_the_guard_refuses_with_a_reason_and_keeps_the_error(manager, table):
    guard = CommitGuard()
    assert ask(guard, table, None)["refused"] == "LockNotHeldError"
    assert "bound to no lock" in ask(guard, table, "")["message"]
    assert "the lock of its thread was released" in ask(guard, table, "of somebody else")["message"]
    assert ask(guard, "no/scheme://x", "a")["refused"] == "LockNotHeldError"
    block = GuardedBlock(manager.acquire(table), {"job": "nightly"})
    guard.add(block)
    allowed = ask(guard, table, block.name, 7)
    assert allowed["holds"] == [block.hold.hold_id]
    assert allowed["stamp"]["job"] == "nightly"
    assert list(block.allowed_puts.values()) == [AllowedPut(7, None)]
    block.hold.release()
    assert ask(guard, table, block.name)["refused"] == "LockNotHeldError"
    assert list(block.allowed_puts.values()) == [AllowedPut(7, None)]
    refusal = guard.refusal_in("…" + ask(guard, table, block.name)["message"] + "…")
    assert isinstance(refusal, LockNotHeldError)
    assert guard.refusal_in("something else") is None


def test_the_guard_knows_both_names_of_an_azure_account(manager):
    guard, folder = CommitGuard(), uuid.uuid4().hex
    with manager.acquire(f"wasbs://data@Account.blob.core.windows.net/{folder}") as hold:
        block = GuardedBlock(hold, {})
        guard.add(block)
        for version, name in enumerate(
            ("abfss://data@account.dfs", "wasb://data@account.blob", "abfs://data@account.blob")
        ):
            answer = ask(guard, f"{name}.core.windows.net/{folder}", block.name, version)
            assert answer.get("holds") == [hold.hold_id], answer
        hold.intents.settle(hold.intents.open)


@pytest.mark.parametrize(
    "request_text", ["", "[]", "{}", '{"attempt": "a"}', '{"attempt": "a", "table": 5, "blocks": "x"}']
)
def test_a_malformed_request_is_refused(request_text):
    assert json.loads(CommitGuard().check(request_text))["refused"] == "LockLostError"


@pytest.mark.parametrize("kind", [{}, {"kind": "verdict"}, {"kind": None}, {"kind": ["commit"]}])
def test_a_request_of_an_unknown_kind_is_refused(manager, table, kind):
    with manager.acquire(table) as hold:
        guard, block = CommitGuard(), GuardedBlock(hold, {})
        guard.add(block)
        commit = {"table": table, "version": 7, "attempt": "a", "blocks": block.name}
        assert check(guard, commit | kind)["refused"] == "LockLostError"
        assert block.allowed_puts == {}
        # Control: with the kind the request is allowed.
        assert "holds" in check(guard, commit | {"kind": "commit"})
        hold.intents.settle(["a"])


def test_a_failure_of_the_guard_names_the_table():
    request = {"kind": "commit", "attempt": "a", "table": "s3a://lake/flights", "version": "seven"}
    answer = check(CommitGuard(), request)
    assert answer["refused"] == "LockLostError"
    assert answer["message"].startswith("lock on s3://lake/flights was lost")
