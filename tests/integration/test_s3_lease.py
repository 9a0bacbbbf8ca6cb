"""The lease on S3: lost and late replies, dead and paused holders, stores that cannot be used."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
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
from lock_manager.coordinator import Offer
from lock_manager.errors import ContenderGoneError
from lock_manager.partitions import Partition
from lock_manager.s3_lease.acquisition import Acquisition
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
QUEUES = re.compile(r"/(?P<key>locks/.*tables/[0-9a-f]{64}\.json)")
LEASE = 2.0
"""Shortest lease of these tests, in seconds."""


class LockBucket:
    """A bucket for locks behind a gate that injects faults into PUTs of queues.

    Attributes:
        url: URL of a coordinator that no other test uses.

    """

    def __init__(self, s3: FaultyS3, stack: ExitStack) -> None:
        self.url = f"s3-lease://locks/{uuid.uuid4().hex}"
        self.table = "s3://lake/table"
        self.gate = s3.gate
        self._stack = stack

    def manager(self, **settings: Any) -> S3LeaseManager:
        return self._stack.enter_context(S3LeaseManager(self.settings(**settings)))

    def settings(self, **settings: Any) -> LockSettings:
        return LockSettings(lock_url=self.url, **{"timeout_seconds": 20, "session_timeout_seconds": 30, **settings})

    def strike(self, **fault: Any) -> S3Fault:
        """Let a fault strike the next PUT of a queue."""
        return self.gate.arm("", S3Fault(**fault))

    @property
    def entries(self) -> list[str]:
        """Hold ids in the queue."""
        locks = LeaseInspector(self.settings()).table(TableResource.of(self.table))
        return [entry.hold_id for entry in locks.entries]

    @contextmanager
    def holder_process(self, lease_seconds: float) -> Iterator[HolderProcess]:
        """Start a process that requests the lock and holds it."""
        command = [sys.executable, "-m", "tests.support.lease_holder", self.url, self.table, str(lease_seconds)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield HolderProcess(process)
            finally:
                process.send_signal(signal.SIGCONT)
                process.kill()


class HolderProcess:
    """A process of ``tests.support.lease_holder``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def intend(self, version: int) -> str:
        """Let the holder store an intent; return its answer."""
        print(version, file=self._process.stdin, flush=True)
        return self.answer()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()


@pytest.fixture(scope="module")
def faulty_s3() -> Iterator[FaultyS3]:
    with FaultyS3() as s3, pytest.MonkeyPatch.context() as environment:
        s3.create_bucket("locks")
        s3.gate.struck_keys = QUEUES
        for name, value in s3.environment.items():
            environment.setenv(name, value)
        yield s3


@pytest.fixture
def bucket(faulty_s3: FaultyS3) -> Iterator[LockBucket]:
    with ExitStack() as stack:
        stack.callback(faulty_s3.gate.disarm, "")
        yield LockBucket(faulty_s3, stack)


FAULTS = {
    "a reply is lost": {"lost": True, "stored": True},
    "a request is lost": {"lost": True},
    "500, not stored": {"status": 500},
    "500, stored": {"status": 500, "stored": True},
    "503": {"status": 503},
    "409": {"status": 409},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_s3_leaves_one_entry_and_ends_with_none(bucket: LockBucket, fault: dict[str, Any]) -> None:
    manager = bucket.manager()
    struck = bucket.strike(**fault)
    hold = manager.acquire(bucket.table)
    assert struck.ended.is_set()
    assert bucket.entries == [hold.hold_id]
    struck = bucket.strike(**fault)
    hold.intend(1, txn=None, attempt="first")
    assert struck.ended.is_set()
    hold.intents.settle(["first"])
    struck = bucket.strike(**fault)
    hold.release()
    assert struck.ended.is_set()
    assert bucket.entries == []
    with manager.acquire(bucket.table) as next_hold:
        assert next_hold.intents.unfinished == ()
        assert next_hold.token > hold.token


@pytest.mark.full
def test_a_request_that_is_given_up_does_not_join_later(bucket: LockBucket) -> None:
    manager = bucket.manager()
    with manager.acquire(bucket.table):
        pass
    late = bucket.strike(held=True)
    with pytest.raises(EnsembleUnavailableError):
        manager.acquire(bucket.table, timeout_seconds=1)
    assert bucket.entries == []
    late.release.set()
    eventually(late.ended.is_set)
    assert bucket.entries == []


@pytest.mark.full
def test_a_killed_holder_is_replaced_after_its_lease(bucket: LockBucket) -> None:
    manager = bucket.manager(session_timeout_seconds=LEASE)
    with bucket.holder_process(LEASE) as process:
        assert process.answer() == "held"
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with manager.acquire(bucket.table) as hold:
            assert time.monotonic() - began >= LEASE
            assert bucket.entries == [hold.hold_id]


@pytest.mark.full
def test_a_holder_that_renews_its_lock_keeps_it(bucket: LockBucket) -> None:
    manager, waiting = bucket.manager(session_timeout_seconds=LEASE), bucket.manager(session_timeout_seconds=LEASE)
    with manager.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        request = pool.submit(waiting.acquire, bucket.table, timeout_seconds=3 * LEASE)
        assert isinstance(request.exception(30), LockTimeoutError)
        assert hold.is_valid()
        hold.check()


def test_a_paused_holder_stores_no_intent_after_its_lease(bucket: LockBucket) -> None:
    manager = bucket.manager(session_timeout_seconds=LEASE)
    with bucket.holder_process(LEASE) as process:
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
    hold = bucket.manager(session_timeout_seconds=LEASE).acquire(bucket.table)
    bucket.strike(status=503, times=1000)
    eventually(lambda: not hold.is_valid())
    eventually(lambda: hold.lost is not None)
    with pytest.raises(LockLostError, match="did not answer"):
        hold.check()


@pytest.mark.full
def test_a_dead_request_ahead_is_removed_after_a_part_of_its_lease(bucket: LockBucket) -> None:
    lease_seconds = 4 * LEASE
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
    client, prefix = boto3.client("s3"), bucket.url.rpartition("/")[2]
    client.put_object(Bucket="locks", Key=f"{prefix}/coordinator.json", Body=b'{"format": 2}')
    with pytest.raises(EnsembleFormatError, match=r"coordinator\.json"):
        bucket.manager().acquire(bucket.table)
    client.delete_object(Bucket="locks", Key=f"{prefix}/coordinator.json")
    key = f"{prefix}/tables/{TableResource.of(bucket.table).key}.json"
    client.put_object(Bucket="locks", Key=key, Body=b"[]")
    with pytest.raises(EnsembleFormatError, match=key.rpartition("/")[2]):
        bucket.manager().acquire(bucket.table)


def test_a_refusal_of_s3_names_the_permissions(bucket: LockBucket) -> None:
    manager = bucket.manager()
    manager.connect()
    bucket.strike(status=403)
    with pytest.raises(EnsembleRefusedError, match="s3:PutObject"):
        manager.acquire(bucket.table)
    with pytest.raises(EnsembleRefusedError, match="NoSuchBucket"):
        S3LeaseManager(LockSettings(lock_url="s3-lease://other-bucket/locks")).connect()


@pytest.mark.parametrize("url", ["s3-lease://", "s3-lease:///locks", "s3-lease://lake/../locks", "s3://lake/locks"])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="s3-lease://BUCKET/PREFIX"):
        S3LeaseManager(LockSettings(lock_url=url))


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
            try:
                hold.release()
            except ClosedError:
                os._exit(7)
            os._exit(1)
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


def test_a_late_join_with_an_offer_stays_uncertain(bucket: LockBucket) -> None:
    holder, member = bucket.manager(), bucket.manager()
    offer = Offer("write", {"lines": []})
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        member.connect()
        late = bucket.strike(held=True)
        bucket.strike(status=503, times=1000)
        request = pool.submit(member.acquire_all, [bucket.table], timeout_seconds=1, offer=offer)
        assert isinstance(request.exception(60), EnsembleUnavailableError)
        assert member.is_offered(bucket.table, offer, 10)
        bucket.gate.disarm("")
        late.release.set()
        eventually(late.ended.is_set)
        eventually(lambda: bucket.entries == [hold.hold_id])


def test_a_committed_member_is_not_offered_again(bucket: LockBucket) -> None:
    holder, member = bucket.manager(), bucket.manager()
    with holder.acquire(bucket.table) as hold, ThreadPoolExecutor(1) as pool:
        request = pool.submit(member.acquire_all, [bucket.table], offer=Offer("write", {"lines": []}))
        eventually(hold.offers)
        (name,) = hold.offers()
        assert hold.intend(1, txn=None, attempt="first", members={name: "write"}) == {name: "write"}
        # The removal does not reach the store yet.
        bucket.strike(status=503, times=2)
        hold.dismiss([name])
        assert hold.offers() == {}
        assert hold.intend(2, txn=None, attempt="second", members={name: "write"}) == {}
        assert isinstance(request.exception(60), ContenderGoneError)
        hold.intents.settle(["first", "second"])


def test_a_lost_lock_on_the_first_table_is_acquired_again(bucket: LockBucket) -> None:
    first, second = "s3://lake/a", bucket.table
    holder, waiting = bucket.manager(), bucket.manager(session_timeout_seconds=LEASE)
    inspector = LeaseInspector(bucket.settings())
    hold = holder.acquire(second)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(waiting.acquire_all, [first, second])
        eventually(lambda: len(bucket.entries) == 2)
        locks = inspector.table(TableResource.of(first))
        assert inspector.remove(locks, locks.holders[0])
        eventually(lambda: [entry.hold_id for entry in inspector.table(TableResource.of(first)).holders] != [])
        hold.release()
        with request.result(30) as both:
            assert both.hold_id != locks.holders[0].hold_id
            both.check()
    assert bucket.entries == []
