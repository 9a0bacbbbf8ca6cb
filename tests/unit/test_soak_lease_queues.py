"""The queues of locks on S3 as a soak reads them: contenders of a job, removed holders, entries of dead processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lock_manager import LockLostError, LockSettings
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.manager import S3LeaseManager
from soak.lease_queues import LeaseQueues
from soak.s3_faults import FaultyS3

TABLE = "s3://lake/table"
LEASE = 2.0


class Locks:
    """A coordinator that no other test uses, and its queues."""

    def __init__(self, s3: FaultyS3) -> None:
        self.url = f"s3-lease://lake/{uuid.uuid4().hex}"
        self.queues = LeaseQueues(self.url, LEASE, s3.environment)

    def acquire(self, job: str) -> HeldLease:
        """Acquire the lock in another thread, so that no later request of this thread is nested in it."""
        settings = LockSettings(lock_url=self.url, job=job, session_timeout_seconds=LEASE)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(S3LeaseManager(settings).acquire, TABLE).result()


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3]:
    with FaultyS3() as server, pytest.MonkeyPatch.context() as environment:
        server.create_bucket("lake")
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def locks(s3: FaultyS3) -> Locks:
    return Locks(s3)


def test_contenders_are_listed_by_job_and_removed_by_token(locks: Locks) -> None:
    hold = locks.acquire("writer-1")
    assert locks.queues.contenders(TABLE) == locks.queues.contenders(TABLE, "writer-1") == [hold.hold_id]
    assert locks.queues.contenders(TABLE, "writer-2") == locks.queues.contenders("s3://lake/other") == []
    locks.queues.delete(TABLE, hold.token - 1)
    assert locks.queues.contenders(TABLE)
    locks.queues.delete(TABLE, hold.token)
    assert locks.queues.contenders(TABLE) == []
    with pytest.raises(LockLostError):
        hold.check()


def test_only_the_entries_of_dead_processes_are_removed(locks: Locks) -> None:
    hold = locks.acquire("writer-1")
    # As if its process had ended.
    for contender in hold.contenders:
        contender.stop_beats()
    locks.queues.remove_dead(TABLE, {os.getpid()}, 5 * LEASE)
    assert locks.queues.contenders(TABLE) == [hold.hold_id]
    locks.queues.remove_dead(TABLE, set(), 5 * LEASE)
    assert locks.queues.contenders(TABLE) == []


def test_a_path_belongs_to_one_table(locks: Locks) -> None:
    paths = LeaseQueues.paths(TABLE)
    hold = locks.acquire("writer-1")
    key = next(iter(hold.tokens))
    assert paths.fullmatch(f"/lake/{uuid.uuid4().hex}/tables/{key}.json")
    assert not paths.fullmatch(f"/lake/{uuid.uuid4().hex}/tables/{key[::-1]}.json")
    hold.release()
