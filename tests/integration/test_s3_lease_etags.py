"""The lease on stores whose ETags are not the MD5 of the content: only their equality counts."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from lock_manager import LockTimeoutError
from lock_manager.s3_lease.manager import S3LeaseManager
from soak.s3_faults import FaultyS3
from tests.support.lock_bucket import NAME, LockBucket, serving
from tests.support.other_etags import OtherEtagsS3
from tests.support.waiting import eventually

ROUNDS = 5
STORES: dict[str, Callable[[], FaultyS3]] = {
    "MD5": FaultyS3,
    "random": lambda: OtherEtagsS3(lambda: f'"{uuid.uuid4().hex}"'),
    "as of a multipart upload": lambda: OtherEtagsS3(lambda: f'"{uuid.uuid4().hex}-1"'),
    "without quotes": lambda: OtherEtagsS3(lambda: uuid.uuid4().hex),
}
COORDINATORS = re.compile(r"/locks/.*coordinator\.json")


@pytest.fixture(params=[name if name == "random" else pytest.param(name, marks=pytest.mark.full) for name in STORES])
def etags(request: pytest.FixtureRequest) -> Iterator[LockBucket]:
    with serving(STORES[request.param]()) as s3, ExitStack() as stack:
        yield LockBucket(s3, stack)


def test_writers_exclude_one_another_with_any_etags(etags: LockBucket) -> None:
    holders: list[S3LeaseManager] = []

    def write(manager: S3LeaseManager) -> list[int]:
        tokens = []
        for version in range(ROUNDS):
            with manager.acquire(etags.table) as hold:
                holders.append(manager)
                hold.intend(version, txn=None, attempt=f"{version}")
                assert holders == [manager]
                hold.intents.settle([f"{version}"])
                holders.remove(manager)
                tokens.append(hold.token)
        return tokens

    managers = [etags.manager() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        tokens = [token for served in pool.map(write, managers) for token in served]
    assert len(set(tokens)) == 3 * ROUNDS
    assert etags.entries == []


def test_a_lost_reply_is_recognised_with_any_etags(etags: LockBucket) -> None:
    manager, other = etags.manager(name=NAME), etags.manager(timeout_seconds=0)
    with etags.striking(lost=True, stored=True):
        hold = manager.acquire(etags.table)
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(other.acquire, etags.table).exception(30), LockTimeoutError)
    assert etags.entries == [hold.hold_id]
    with etags.striking(status=412, stored=True):
        hold.release()
    assert etags.entries == []


def test_managers_prove_a_store_at_the_same_time(etags: LockBucket) -> None:
    """A store may give equal contents other ETags. So the proof of a manager may follow that of another one."""
    etags.manager()
    with etags.striking(keys=COORDINATORS, held=True) as first, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(etags.manager, name=NAME)
        eventually(first.arrived.is_set)
        etags.manager()
        first.release.set()
        assert connecting.result(30).session_timeout_seconds == 30


def test_a_proof_is_repeated_after_a_conflict_of_puts(bucket: LockBucket) -> None:
    """S3 answers 409 if another PUT is on its way. That says nothing about the condition."""
    bucket.manager()
    with bucket.striking(keys=COORDINATORS, status=409, times=3) as struck:
        bucket.manager(name=NAME)
        assert struck.ended.is_set()


def test_negative_control_with_an_etag_that_stays_a_request_is_lost() -> None:
    with serving(OtherEtagsS3(lambda: '"constant"')) as s3, ExitStack() as stack:
        bucket = LockBucket(s3, stack)
        holder, waiting = bucket.manager(), bucket.manager()
        hold = holder.acquire(bucket.table)
        hold.contenders[0].stop_beats()
        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(waiting.acquire, bucket.table)
            eventually(lambda: len(bucket.entries) == 2)
            hold.intend(1, txn=None, attempt="first")
            assert bucket.entries == [hold.hold_id]
            waiting.cancel(bucket.table)
            request.exception(30)
