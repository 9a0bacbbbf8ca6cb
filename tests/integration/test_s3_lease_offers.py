"""Offers in a queue on S3: requests whose appends a holder of the lock may commit, and faults of their joins."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from lock_manager import EnsembleUnavailableError, LockCancelledError
from lock_manager.coordinator import Offer
from lock_manager.errors import ContenderGoneError
from lock_manager.s3_lease import state
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.manager import S3LeaseManager
from lock_manager.s3_lease.store import ObjectStore
from tests.support.lock_bucket import NAME, RENEWED_LEASE, LockBucket
from tests.support.waiting import eventually

FAULTS_OF_JOINS: dict[str, dict[str, Any]] = {
    "a reply is lost": {"lost": True, "stored": True},
    "a request is lost": {"lost": True},
    "503": {"status": 503},
    "503, stored": {"status": 503, "stored": True},
}


@contextmanager
def offering(table: str, member: S3LeaseManager, offer: Offer) -> Iterator[Future[HeldLease]]:
    """Request a lock with an offer in a thread. The end of the block cancels the request."""
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(member.acquire_all, [table], offer=offer)
        try:
            yield request
        finally:
            member.cancel(table)
            request.exception(60)


@pytest.mark.parametrize("fault", FAULTS_OF_JOINS.values(), ids=FAULTS_OF_JOINS)
def test_a_join_with_an_offer_is_repeated_after_a_fault(bucket: LockBucket, fault: dict[str, Any]) -> None:
    holder, member, offer = bucket.manager(), bucket.manager(name=NAME), Offer("write", {"lines": []})
    with holder.acquire(bucket.table) as hold, bucket.striking(**fault) as struck:
        with offering(bucket.table, member, offer) as request:
            eventually(struck.ended.is_set)
            eventually(lambda: request.done() or not offer.is_uncertain)
            assert not request.done()
            assert bucket.entries == [hold.hold_id, *offer.requests]
            assert list(hold.offers()) == offer.requests


def join_late(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> tuple[BaseException | None, bool]:
    """Commit the offer of a request whose join got no reply, before the request reads the queue again.

    Returns:
        The error of the request, None if it is in the queue again; and whether its offer may still be committed.

    """
    holder, member, offer = bucket.manager(), bucket.manager(name=NAME), Offer("write", {"lines": []})
    pause, is_committed = ObjectStore.pause, threading.Event()
    with holder.acquire(bucket.table) as hold:
        # Otherwise the holder's first change may precede the join.
        eventually(lambda: hold.contenders[0]._is_announced)

        def commit(store: ObjectStore, seconds: float, *arguments: Any) -> None:
            if "join the queue" in arguments:
                members = dict.fromkeys(hold.offers(), offer.write_id)
                assert hold.intend(1, txn=None, attempt="first", members=members) == {offer.requests[0]: "write"}
                hold.intents.settle(["first"])
                hold.dismiss(members)
                eventually(lambda: bucket.entries == [hold.hold_id])
                is_committed.set()
            pause(store, seconds, *arguments)

        monkeypatch.setattr(ObjectStore, "pause", commit)
        with bucket.striking(lost=True, stored=True), offering(bucket.table, member, offer) as request:
            eventually(is_committed.is_set)
            eventually(lambda: request.done() or len(bucket.entries) == 2)
            error = request.exception() if request.done() else None
        # An intent without the member replaces the one with it.
        hold.intend(2, txn=None, attempt="second")
        hold.intents.settle(["second"])
        return error, member.is_offered(bucket.table, offer, 10)


@pytest.mark.full
def test_a_request_whose_offer_may_be_committed_does_not_join_again(
    bucket: LockBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, is_offered = join_late(bucket, monkeypatch)
    assert isinstance(error, ContenderGoneError)
    assert not is_offered


@pytest.mark.full
def test_negative_control_a_repeated_join_offers_a_committed_append_again(
    bucket: LockBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "may_be_offered", lambda *_: False)
    assert join_late(bucket, monkeypatch)[0] is None


@pytest.mark.full
def test_a_late_join_with_an_offer_stays_uncertain(bucket: LockBucket) -> None:
    holder, member = bucket.manager(), bucket.manager(name=NAME)
    offer = Offer("write", {"lines": []})
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        with bucket.striking(held=True) as late, bucket.striking(status=503, times=1000):
            request = pool.submit(member.acquire_all, [bucket.table], timeout_seconds=1, offer=offer)
            assert isinstance(request.exception(60), EnsembleUnavailableError)
            assert late.arrived.is_set()
            assert member.is_offered(bucket.table, offer, 10)
        late.release.set()
        eventually(late.ended.is_set)
        eventually(lambda: bucket.entries == [hold.hold_id])


def test_a_committed_member_is_not_offered_again(bucket: LockBucket) -> None:
    holder, member = bucket.manager(name=NAME), bucket.manager()
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        request = pool.submit(member.acquire_all, [bucket.table], offer=Offer("write", {"lines": []}))
        eventually(hold.offers)
        (name,) = hold.offers()
        assert hold.intend(1, txn=None, attempt="first", members={name: "write"}) == {name: "write"}
        # Not yet removed, and not by the next intent, which comes while the removal waits.
        with bucket.striking(status=503, times=2) as struck:
            hold.dismiss([name])
            eventually(struck.arrived.is_set)
            assert hold.offers() == {}
            assert hold.intend(2, txn=None, attempt="second", members={name: "write"}) == {}
        assert isinstance(request.exception(60), ContenderGoneError)
        hold.intents.settle(["first", "second"])


@pytest.mark.full
def test_a_member_that_waits_for_long_renews_its_offer(bucket: LockBucket) -> None:
    holder, member = bucket.manager(), bucket.manager(session_timeout_seconds=RENEWED_LEASE)
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        request = pool.submit(member.acquire_all, [bucket.table], offer=Offer("write", {"lines": []}))
        eventually(hold.offers)
        began = time.monotonic()
        while time.monotonic() < began + 1.5 * RENEWED_LEASE:
            assert hold.offers()
        member.cancel(bucket.table)
        assert isinstance(request.exception(30), LockCancelledError)
