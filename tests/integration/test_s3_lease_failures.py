"""The failures of locks in objects that Apache Hudi's RFC-91 lists or accepts, and the test of each on our lease.

RFC-91 is the design of Hudi's storage-based lock provider: one object for each table, with an owner and a time of
expiry that other machines compare with their clocks. ``FAILURES`` names a test for each failure.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from lock_manager import LockLostError, LockTimeoutError
from lock_manager.s3_lease.contender import LeaseContender
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.queue_object import QueueObject
from tests.support.lock_bucket import LEASE, NAME, RENEWED_LEASE, LockBucket
from tests.support.new_thread import in_new_thread
from tests.support.test_names import exists
from tests.support.waiting import eventually

#: Mark of tests that end a thread by an exception.
ends_a_thread = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

_LEASE = "integration/test_s3_lease.py::"
_HERE = "integration/test_s3_lease_failures.py::"
_CONTRACT = "contract/test_contract.py::"
FAILURES = {
    "clocks of machines differ by more than 500 ms": f"{_HERE}test_the_wall_clocks_of_machines_do_not_matter",
    "clocks run at different speeds": "model/test_lease.py::test_clocks_at_any_speed_keep_every_other_promise",
    "a lost reply to the acquire leaves a lock that nobody uses": (
        f"{_LEASE}test_a_fault_of_s3_leaves_one_entry_and_ends_with_none"
    ),
    "a conflict hides that the acquire, renewal or release was stored": (
        f"{_LEASE}test_a_fault_of_s3_leaves_one_entry_and_ends_with_none"
    ),
    "a late acquire takes the lock for a request that was given up": (
        f"{_LEASE}test_a_request_that_is_given_up_does_not_join_later"
    ),
    "a renewal that fails past the lease is only logged": (
        f"{_LEASE}test_a_holder_without_answers_loses_its_lock_by_its_own_clock"
    ),
    "one renewal that fails ends the lock": f"{_LEASE}test_a_holder_whose_renewal_fails_once_keeps_its_lock",
    "the thread that renews the lock dies": f"{_HERE}test_a_hold_whose_renewals_end_is_refused",
    "the thread that renews the lock does not start": f"{_HERE}test_a_lock_whose_renewals_do_not_start_is_not_held",
    "the thread that acquired the lock dies": f"{_HERE}test_a_thread_may_end_before_its_lock",
    "a process is paused for longer than its lease": f"{_LEASE}test_a_paused_holder_stores_no_intent_after_its_lease",
    "a process is paused, and nobody else wants the lock": f"{_HERE}test_a_paused_holder_without_rivals_is_refused",
    "two writers see the same lock expire": f"{_LEASE}test_two_requests_remove_the_same_dead_holder",
    "one instance acquires twice under one owner id": f"{_HERE}test_a_lost_hold_is_not_revived_by_a_later_one",
    "the object is deleted": f"{_LEASE}test_a_deleted_object_ends_the_hold_and_tokens_still_increase",
    "two contents of the object have one ETag": "unit/test_s3_lease_state.py::test_equal_queues_of_two_changes_differ",
    "ETags are not MD5 sums": "integration/test_s3_lease_etags.py::test_writers_exclude_one_another_with_any_etags",
    "a crash leaves the lock behind": f"{_LEASE}test_a_killed_holder_is_replaced_after_its_lease",
    "writers that try again overtake one another": f"{_CONTRACT}test_the_queue_is_fifo_and_tokens_increase",
    "a writer that has lost the lock commits": f"{_CONTRACT}test_a_lost_hold_fails_its_check_and_calls_on_loss",
    "a store ignores conditions": f"{_LEASE}test_a_store_that_ignores_conditions_is_refused",
}


def test_each_failure_has_a_test() -> None:
    assert [test for test in FAILURES.values() if not exists(test)] == []


def test_the_wall_clocks_of_machines_do_not_matter(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, wall_clock = bucket.manager(timeout_seconds=0), time.time
    with bucket.holder_process(RENEWED_LEASE) as process:
        assert process.answer() == "held"
        for version, shift_seconds in enumerate((3600, -3600)):
            monkeypatch.setattr(time, "time", lambda shift_seconds=shift_seconds: wall_clock() + shift_seconds)
            with pytest.raises(LockTimeoutError):
                manager.acquire(bucket.table)
            assert process.intend(version) == "intended"


def end_renewals(hold: HeldLease) -> None:
    """End the thread that renews a lease by an error in its next renewal."""
    (contender,) = hold.contenders
    thread = contender._thread
    assert thread is not None
    contender._beat_or_loss = Mock(side_effect=ArithmeticError)  # type: ignore[method-assign]
    with contender._changed:
        contender._next_beat_at = 0.0
        contender._changed.notify()
    thread.join(30)
    assert not thread.is_alive()


def intent_after_lease(bucket: LockBucket) -> str:
    """Let a hold without renewals store an intent when its lease has ended; return the error, "" for none."""
    hold = bucket.manager(session_timeout_seconds=LEASE).acquire(bucket.table)
    end_renewals(hold)
    ends_at = time.monotonic() + LEASE
    eventually(lambda: not hold.is_valid())
    eventually(lambda: time.monotonic() > ends_at)
    try:
        hold.intend(1, txn=None, attempt="late")
    except LockLostError as error:
        return str(error)
    return ""


@pytest.mark.full
@ends_a_thread
def test_a_hold_whose_renewals_end_is_refused(bucket: LockBucket) -> None:
    """Although no other client wants the lock: another one could have had it by now."""
    assert "it was not renewed for" in intent_after_lease(bucket)
    eventually(lambda: bucket.entries == [])


@pytest.mark.full
@ends_a_thread
def test_negative_control_without_the_clock_a_hold_without_renewals_goes_on(
    bucket: LockBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseContender, "loss_by_clock", lambda _: None)
    assert intent_after_lease(bucket) == ""


def test_a_lock_whose_renewals_do_not_start_is_not_held(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, start = bucket.manager(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "sluice-lease":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        manager.acquire(bucket.table)
    assert bucket.entries == []


def test_a_thread_may_end_before_its_lock(bucket: LockBucket) -> None:
    """RFC-91 ends the lock with its thread. Here a thread may pass it on; ``max_hold_seconds`` limits it."""
    manager = bucket.manager()
    hold = in_new_thread(manager.acquire, bucket.table).result(30)
    eventually(lambda: not hold.thread.is_alive())
    assert hold.is_valid()
    manager.release(bucket.table)
    assert bucket.entries == []


@pytest.mark.full
def test_a_paused_holder_without_rivals_is_refused(bucket: LockBucket) -> None:
    with bucket.holder_process(LEASE) as process:
        assert process.answer() == "held"
        process.send_signal(signal.SIGSTOP)
        ends_at = time.monotonic() + LEASE
        eventually(lambda: time.monotonic() > ends_at)
        process.send_signal(signal.SIGCONT)
        assert process.intend(1) == "LockLostError"
        eventually(lambda: bucket.entries == [])


def test_a_lost_hold_is_not_revived_by_a_later_one(bucket: LockBucket) -> None:
    manager = bucket.manager()
    lost_hold = in_new_thread(manager.acquire, bucket.table).result(30)
    bucket.revoke(lost_hold)
    with in_new_thread(manager.acquire, bucket.table).result(30) as hold:
        assert hold.hold_id != lost_hold.hold_id
        assert hold.token > lost_hold.token
        with pytest.raises(LockLostError):
            lost_hold.intend(1, txn=None, attempt="late")
        hold.check()


@pytest.mark.full
def test_negative_control_without_the_id_of_a_change_a_release_reports_a_loss(
    bucket: LockBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy repeats the PUT of a release, and the second one fails."""
    hold = bucket.manager(name=NAME).acquire(bucket.table)
    read = QueueObject._read

    def forget(queue_object: QueueObject) -> None:
        read(queue_object)
        queue, etag = queue_object._stored
        queue_object._stored = (replace(queue, change_id=""), etag)

    monkeypatch.setattr(QueueObject, "_read", forget)
    with bucket.striking(status=412, stored=True), pytest.raises(LockLostError):
        hold.release()
