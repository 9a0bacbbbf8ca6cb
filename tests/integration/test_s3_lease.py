"""The lease on S3: lost and late replies, dead and paused holders, stores that cannot be used."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import boto3
import pytest

from lock_manager import (
    ClosedError,
    EnsembleFormatError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockLostError,
    LockSettings,
    LockTimeoutError,
    SettingsError,
    TableResource,
    TableScope,
)
from lock_manager.partitions import Partition
from lock_manager.s3_lease.acquisition import Acquisition
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from lock_manager.s3_lease.state import Queue
from tests.support.lock_bucket import BUCKET, LEASE, NAME, RENEWED_LEASE, LockBucket
from tests.support.waiting import eventually

FAULTS = {
    "a reply is lost": {"lost": True, "stored": True},
    "a request is lost": {"lost": True},
    "500, not stored": {"status": 500},
    "500, stored": {"status": 500, "stored": True},
    "503": {"status": 503},
    "409": {"status": 409},
    # A proxy may repeat a PUT whose reply is lost; the second one fails.
    "412, stored": {"status": 412, "stored": True},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_s3_leaves_one_entry_and_ends_with_none(bucket: LockBucket, fault: dict[str, Any]) -> None:
    manager = bucket.manager(name=NAME)
    with bucket.striking(**fault) as struck:
        hold = manager.acquire(bucket.table)
    assert struck.ended.is_set()
    assert bucket.entries == [hold.hold_id]
    with bucket.striking(**fault) as struck:
        hold.intend(1, txn=None, attempt="first")
        assert struck.ended.is_set()
    hold.intents.settle(["first"])
    with bucket.striking(**fault) as struck:
        hold.release()
        assert struck.ended.is_set()
    assert bucket.entries == []
    with manager.acquire(bucket.table) as next_hold:
        assert next_hold.intents.unfinished == ()
        assert next_hold.token > hold.token


#: S3 answers a GET with neither 409 nor 412.
FAULTS_OF_GETS = {name: fault for name, fault in FAULTS.items() if fault.get("status") not in (409, 412)}


@pytest.mark.parametrize("fault", FAULTS_OF_GETS.values(), ids=FAULTS_OF_GETS)
def test_a_waiting_request_survives_faults_of_its_looks(bucket: LockBucket, fault: dict[str, Any]) -> None:
    holder, waiting = bucket.manager(), bucket.manager(name=NAME)
    with ThreadPoolExecutor(1) as pool:
        with holder.acquire(bucket.table):
            request = pool.submit(waiting.acquire, bucket.table)
            eventually(lambda: len(bucket.entries) == 2)
            with bucket.striking(methods=["GET"], **fault) as struck:
                eventually(struck.ended.is_set)
        with request.result(30) as hold:
            assert bucket.entries == [hold.hold_id]


def given_up(bucket: LockBucket) -> list[str]:
    """Give up a request whose PUT arrives later; return the entries of the queue after that."""
    manager = bucket.manager(name=NAME)
    with manager.acquire(bucket.table):
        pass
    with bucket.striking(held=True) as late:
        with pytest.raises(EnsembleUnavailableError):
            manager.acquire(bucket.table, timeout_seconds=1)
        assert late.arrived.is_set()
        assert bucket.entries == []
        late.release.set()
        eventually(late.ended.is_set)
    return bucket.entries


@pytest.mark.full
def test_a_request_that_is_given_up_does_not_join_later(bucket: LockBucket) -> None:
    assert given_up(bucket) == []


@pytest.mark.full
def test_negative_control_an_object_with_an_earlier_etag_lets_a_late_request_join(
    bucket: LockBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store computes the ETag from the content. Without the id of the change, equal queues have equal ETags."""
    data = Queue.data
    monkeypatch.setattr(Queue, "data", lambda queue: data(replace(queue, change_id="")))
    assert len(given_up(bucket)) == 1


@pytest.mark.full
def test_a_request_whose_joins_others_precede_times_out(bucket: LockBucket) -> None:
    holder, waiting = bucket.manager(), bucket.manager(name=NAME)
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        with bucket.striking(status=409, times=1000):
            error = pool.submit(waiting.acquire, bucket.table, timeout_seconds=1).exception(60)
        assert isinstance(error, LockTimeoutError)
        assert error.ahead == 1
        eventually(lambda: bucket.entries == [hold.hold_id])


@pytest.mark.full
def test_a_killed_holder_is_replaced_after_its_lease(bucket: LockBucket) -> None:
    manager = bucket.manager(session_timeout_seconds=RENEWED_LEASE)
    with bucket.holder_process(LEASE) as process:
        assert process.answer() == "held"
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with manager.acquire(bucket.table) as hold:
            assert time.monotonic() - began >= LEASE
            assert bucket.entries == [hold.hold_id]


@pytest.mark.full
def test_a_holder_that_renews_its_lock_keeps_it(bucket: LockBucket) -> None:
    manager, waiting = (bucket.manager(session_timeout_seconds=RENEWED_LEASE) for _ in range(2))
    with manager.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        request = pool.submit(waiting.acquire, bucket.table, timeout_seconds=1.5 * RENEWED_LEASE)
        assert isinstance(request.exception(30), LockTimeoutError)
        assert hold.is_valid()
        hold.check()


def test_a_paused_holder_stores_no_intent_after_its_lease(bucket: LockBucket) -> None:
    manager = bucket.manager(session_timeout_seconds=RENEWED_LEASE)
    with bucket.holder_process(RENEWED_LEASE) as process:
        assert process.answer() == "held"
        assert process.intend(1) == "intended"
        process.send_signal(signal.SIGSTOP)
        with manager.acquire(bucket.table) as hold:
            assert [intent.version for intent in hold.intents.read()] == [1]
            process.send_signal(signal.SIGCONT)
            assert process.intend(2) == "LockLostError"
            hold.intents.clear()
        with manager.acquire(bucket.table) as hold:
            assert hold.intents.unfinished == ()


@pytest.mark.full
def test_a_holder_without_answers_loses_its_lock_by_its_own_clock(bucket: LockBucket) -> None:
    hold = bucket.manager(name=NAME, session_timeout_seconds=LEASE).acquire(bucket.table)
    lost: list[HeldLease] = []
    hold.on_loss(lost.append)
    with bucket.striking(status=503, times=1000):
        eventually(lambda: not hold.is_valid())
        eventually(lambda: lost == [hold])
    with pytest.raises(LockLostError, match="SlowDown"):
        hold.check()


@pytest.mark.full
def test_a_holder_whose_renewal_fails_once_keeps_its_lock(bucket: LockBucket) -> None:
    with bucket.manager(name=NAME, session_timeout_seconds=RENEWED_LEASE).acquire(bucket.table) as hold:
        with bucket.striking(lost=True, stored=True) as struck:
            eventually(struck.ended.is_set)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > RENEWED_LEASE)
        hold.check()
        assert hold.is_valid()


@pytest.mark.full
def test_a_hold_ends_after_its_longest_time(bucket: LockBucket) -> None:
    hold = bucket.manager(max_hold_seconds=1).acquire(bucket.table)
    eventually(lambda: hold.lost is not None)
    eventually(lambda: bucket.entries == [])
    with pytest.raises(LockLostError, match="max_hold_seconds=1"):
        hold.release()


@pytest.mark.full
def test_requests_without_patience_remove_a_dead_holder_together(bucket: LockBucket) -> None:
    manager = bucket.manager(timeout_seconds=0)
    with bucket.holder_process(LEASE) as process:
        assert process.answer() == "held"
        process.send_signal(signal.SIGKILL)

        def acquires() -> bool:
            try:
                manager.acquire(bucket.table).release()
            except LockTimeoutError:
                return False
            return True

        assert not acquires()
        eventually(acquires)
    assert bucket.entries == []


@pytest.mark.full
def test_two_requests_remove_the_same_dead_holder(bucket: LockBucket, caplog: pytest.LogCaptureFixture) -> None:
    managers = [bucket.manager(session_timeout_seconds=lease) for lease in (RENEWED_LEASE, 2 * RENEWED_LEASE)]
    with bucket.holder_process(LEASE) as process, ThreadPoolExecutor(2) as pool:
        assert process.answer() == "held"
        process.send_signal(signal.SIGKILL)
        served = list(pool.map(lambda manager: _serve(manager, bucket.table), managers))
    assert len(set(served)) == 2
    assert bucket.entries == []
    assert len([record for record in caplog.records if "was taken from" in record.message]) == 1


def _serve(manager: S3LeaseManager, table: str) -> int:
    with manager.acquire(table) as hold:
        hold.check()
        return hold.token


@pytest.mark.full
def test_a_request_is_cancelled_during_an_outage(bucket: LockBucket) -> None:
    holder, waiting = bucket.manager(), bucket.manager(name=NAME)
    with holder.acquire(bucket.table), ThreadPoolExecutor(1) as pool:
        request = pool.submit(waiting.acquire, bucket.table)
        eventually(lambda: len(bucket.entries) == 2)
        with bucket.striking(methods=["GET", "PUT"], status=503, times=1000) as struck:
            eventually(struck.ended.is_set)
            assert waiting.cancel(bucket.table) == 1
            assert isinstance(request.exception(30), LockCancelledError)
        eventually(lambda: len(bucket.entries) == 1)


@pytest.mark.full
def test_an_interrupt_ends_a_wait(bucket: LockBucket) -> None:
    holder, waiting = bucket.manager(), bucket.manager()

    def interrupt() -> None:
        eventually(lambda: len(bucket.entries) == 2)
        _thread.interrupt_main()

    with ThreadPoolExecutor(1) as pool:
        hold = pool.submit(holder.acquire, bucket.table).result(30)
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            waiting.acquire(bucket.table)
        interrupted.result(30)
        eventually(lambda: bucket.entries == [hold.hold_id])
        hold.release()


def test_a_deleted_object_ends_the_hold_and_tokens_still_increase(bucket: LockBucket) -> None:
    manager = bucket.manager()
    hold = manager.acquire(bucket.table)
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=bucket.queue_key)
    with pytest.raises(LockLostError):
        hold.intend(1, txn=None, attempt="first")
    with manager.acquire(bucket.table) as next_hold:
        assert next_hold.token > hold.token


@pytest.mark.full
def test_a_dead_request_ahead_is_removed_after_a_part_of_its_lease(bucket: LockBucket) -> None:
    lease_seconds = 8 * LEASE
    hold = bucket.manager(session_timeout_seconds=lease_seconds).acquire(bucket.table)
    waiting = bucket.manager(session_timeout_seconds=lease_seconds)
    with bucket.holder_process(lease_seconds) as process, ThreadPoolExecutor(1) as pool:
        eventually(lambda: len(bucket.entries) == 2)
        process.send_signal(signal.SIGKILL)
        request = pool.submit(waiting.acquire, bucket.table)
        eventually(lambda: len(bucket.entries) == 3)
        hold.release()
        began = time.monotonic()
        request.result(30).release()
        assert time.monotonic() - began < lease_seconds


def test_tables_in_opposite_order_cause_no_deadlock(bucket: LockBucket) -> None:
    tables = [f"s3://lake/{name}" for name in "ab"]
    with ThreadPoolExecutor(2) as pool:

        def lock_often(names: list[str]) -> None:
            manager = bucket.manager()
            for _ in range(5):
                with manager.acquire_all(names) as hold:
                    hold.intend(1, txn=None, attempt="put", table=names[0])
                    hold.intents_of(names[0]).settle(["put"])

        for request in [pool.submit(lock_often, tables), pool.submit(lock_often, tables[::-1])]:
            request.result(60)


def test_partitions_overlap_with_their_ancestors_only(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lock_manager.base_manager.guard_is_installed", lambda: True)
    january = Partition((("year", "2013"), ("month", "1")))
    february = Partition((("year", "2013"), ("month", "2")))
    year = Partition((("year", "2013"),))
    manager = bucket.manager()

    def acquire(*partitions: Partition) -> HeldLease:
        """Acquire in a thread, so that the holds are not nested."""
        scope = TableScope.of(bucket.table, partitions or None)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(manager.acquire_all, [scope], timeout_seconds=0).result(30)

    with acquire(january) as hold, acquire(february) as other:
        assert other.token > hold.token
        for scope in ((january,), (year,), ()):
            with pytest.raises(LockTimeoutError):
                acquire(*scope)
    assert bucket.entries == []


def test_a_store_that_ignores_conditions_is_refused(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    from lock_manager.s3_lease import store

    client = store._new_client()
    for kept in ("IfNoneMatch", "IfMatch", None):

        def put_object(kept: str | None = kept, **arguments: Any) -> Any:
            conditions = {"IfNoneMatch", "IfMatch"} - {kept}
            return client.put_object(**{name: value for name, value in arguments.items() if name not in conditions})

        careless = type("Careless", (), {"put_object": staticmethod(put_object), "get_object": client.get_object})
        monkeypatch.setattr(store, "_new_client", careless)
        with pytest.raises(EnsembleRefusedError, match="conditional writes are ignored"):
            bucket.manager().connect()


def test_objects_of_another_program_are_refused(bucket: LockBucket) -> None:
    client = boto3.client("s3")
    client.put_object(Bucket=BUCKET, Key=f"{bucket.prefix}/coordinator.json", Body=b'{"format": 2}')
    with pytest.raises(EnsembleFormatError, match=r"coordinator\.json"):
        bucket.manager().acquire(bucket.table)
    client.delete_object(Bucket=BUCKET, Key=f"{bucket.prefix}/coordinator.json")
    client.put_object(Bucket=BUCKET, Key=bucket.queue_key, Body=b"[]")
    with pytest.raises(EnsembleFormatError, match=TableResource.of(bucket.table).key):
        bucket.manager().acquire(bucket.table)


def test_a_refusal_of_s3_names_the_permissions(bucket: LockBucket) -> None:
    manager = bucket.manager(name=NAME)
    with bucket.striking(status=403), pytest.raises(EnsembleRefusedError, match=r"AccessDenied.*s3:PutObject"):
        manager.acquire(bucket.table)
    with pytest.raises(EnsembleRefusedError, match="NoSuchBucket"):
        S3LeaseManager(LockSettings(lock_url="s3-lease://other-bucket/locks")).connect()


def test_a_missing_boto3_is_named(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(SettingsError, match="boto3"):
        S3LeaseManager(bucket.settings()).connect()


def test_close_ends_the_locks_of_a_manager(bucket: LockBucket) -> None:
    manager = bucket.manager()
    hold = manager.acquire(bucket.table)
    manager.close()
    assert bucket.entries == []
    assert hold.over
    with pytest.raises(ClosedError):
        manager.acquire(bucket.table)


def test_a_forked_child_cannot_use_the_manager(bucket: LockBucket) -> None:
    manager = bucket.manager()
    with manager.acquire(bucket.table) as hold:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                hold.release()
            except ClosedError:
                code = 8 if hold.is_valid() else 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert bucket.entries == [hold.hold_id]


def test_a_closed_manager_ends_the_lock_of_a_block(bucket: LockBucket) -> None:
    manager = bucket.manager()
    with pytest.raises(LockLostError, match="closed"), manager.acquire(bucket.table):
        manager.close()
        assert bucket.entries == []


def test_an_acquire_that_ends_during_close_leaves_no_entry(bucket: LockBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = bucket.manager()
    run = Acquisition.run

    def run_and_close(acquisition: Acquisition) -> Any:
        contenders = run(acquisition)
        manager.close()
        return contenders

    monkeypatch.setattr(Acquisition, "run", run_and_close)
    with pytest.raises(LockCancelledError):
        manager.acquire(bucket.table)
    assert bucket.entries == []


def test_a_lost_lock_on_the_first_table_is_acquired_again(bucket: LockBucket) -> None:
    first, second = "s3://lake/a", bucket.table
    holder, waiting = bucket.manager(), bucket.manager(session_timeout_seconds=RENEWED_LEASE)
    inspector = LeaseInspector(bucket.settings())
    hold = holder.acquire(second)
    removed: list[str] = []

    def remove_holder_of_first() -> bool:
        """Try again if the holder lost its lease meanwhile, and requested the lock again."""
        locks = inspector.table(TableResource.of(first))
        removed[:] = [entry.hold_id for entry in locks.holders if inspector.remove(locks, entry)]
        return removed != []

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(waiting.acquire_all, [first, second])
        eventually(lambda: len(bucket.entries) == 2)
        eventually(remove_holder_of_first)
        eventually(lambda: inspector.table(TableResource.of(first)).holders != ())
        hold.release()
        with request.result(30) as both:
            assert both.hold_id not in removed
            both.check()
    assert bucket.entries == []
    assert inspector.table(TableResource.of(first)).entries == ()
