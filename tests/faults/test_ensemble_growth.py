"""A live ensemble grows and shrinks by one member at a time, with static member lists: the steps of docs/runbooks.md.

Meanwhile writers acquire and release one lock. In the control two members are added at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from lock_manager import EnsembleUnavailableError, LockLostError, LockTimeoutError, ZookeeperLockManager
from tests.support.ensemble_members import Members
from tests.support.rivals import RivalManager

TABLE = "s3://lake/flights"
TRIO = (1, 2, 3)
QUINTET = (1, 2, 3, 4, 5)
SESSION_SECONDS = 10
WAIT_SECONDS = 60
MAX_OUTAGE_SECONDS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConfirmedHold:
    """A hold that the quorum confirmed at its end: no other hold existed from ``start`` to ``end``."""

    token: int
    start: float
    end: float


class Writer(threading.Thread):
    """A thread that acquires and releases the lock until :meth:`end`.

    Attributes:
        holds: Confirmed holds.
        outages: Errors of the holds that ended in an outage.
        error: Any other error.
        ensembles: Ids of the ensembles of the holds.

    """

    def __init__(self, hosts: str) -> None:
        super().__init__(daemon=True)
        self.holds: list[ConfirmedHold] = []
        self.outages: list[Exception] = []
        self.error: Exception | None = None
        self.ensembles: set[str] = set()
        self._hosts = hosts
        self._end_requested = threading.Event()

    def run(self) -> None:
        try:
            with ZookeeperLockManager(self._hosts, WAIT_SECONDS, session_timeout_seconds=SESSION_SECONDS) as manager:
                while not self._end_requested.is_set():
                    self._hold_once(manager)
        except Exception as error:
            self.error = error

    def _hold_once(self, manager: ZookeeperLockManager) -> None:
        hold = manager.acquire(TABLE)
        try:
            start = time.monotonic()
            self._end_requested.wait(0.01)
            end = time.monotonic()
            hold.check()
            self.holds.append(ConfirmedHold(hold.token, start, end))
            self.ensembles.add(hold.ensemble_id)
            hold.release()
        except (EnsembleUnavailableError, LockLostError) as error:
            self.outages.append(error)
            if not hold.over:
                with suppress(LockLostError):
                    hold.release()

    def end(self) -> None:
        self._end_requested.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive(), f"the writer is still running after {WAIT_SECONDS} s"


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with Members(tmp_path, QUINTET) as running:
        running.initialize(*TRIO)
        running.start(*TRIO, server_list=TRIO)
        running.wait_until_in_sync()
        yield running


@pytest.fixture
def writers(members: Members) -> Iterator[list[Writer]]:
    threads = [Writer(members.hosts(*TRIO)) for _ in range(2)]
    for writer in threads:
        writer.start()
    yield threads
    for writer in threads:
        writer.end()


def restart(members: Members, ids: tuple[int, ...], new_list: tuple[int, ...]) -> None:
    """Restart members with a new list, one by one, each when all are in sync; the leader is the last."""
    leader = members.wait_until_in_sync()
    for member in sorted(ids, key=lambda member: member == leader):
        members.stop(member)
        members.start(member, server_list=new_list)
        members.wait_until_in_sync()


def grow(members: Members, old_list: tuple[int, ...], new_member: int) -> None:
    new_list = (*old_list, new_member)
    members.start(new_member, server_list=new_list)
    restart(members, old_list, new_list)


def shrink(members: Members, old_list: tuple[int, ...], removed: int) -> None:
    if members.wait_until_in_sync() == removed:
        # Members do not follow a leader that is missing from their list.
        members.stop(removed)
        members.start(removed, server_list=old_list)
        assert members.wait_until_in_sync() != removed
    new_list = tuple(member for member in old_list if member != removed)
    restart(members, new_list, new_list)
    members.stop(removed)
    members.wait_until_in_sync()


def quorum_sizes(members: Members) -> set[int]:
    return {members.metric(member, "quorum_size") for member in members.running}


def assert_exclusive_holds(writers: list[Writer]) -> None:
    """End the writers; assert that holds did not overlap, tokens rose, and outages were short."""
    for writer in writers:
        writer.end()
    assert [writer.error for writer in writers] == [None] * len(writers)
    assert len({ensemble for writer in writers for ensemble in writer.ensembles}) == 1
    holds = sorted((hold for writer in writers for hold in writer.holds), key=lambda hold: hold.start)
    for earlier, later in pairwise(holds):
        assert earlier.end <= later.start
        assert earlier.token < later.token
    longest_gap = max(later.start - earlier.end for earlier, later in pairwise(holds))
    outages = sum(len(writer.outages) for writer in writers)
    log.info("%d holds, %d ended by an outage, at most %.1f s without a hold", len(holds), outages, longest_gap)
    assert longest_gap < MAX_OUTAGE_SECONDS


@pytest.mark.full
def test_three_members_grow_to_four_under_writers(members: Members, writers: list[Writer]) -> None:
    grow(members, TRIO, 4)
    assert quorum_sizes(members) == {4}
    assert_exclusive_holds(writers)


@pytest.mark.soak
def test_three_members_grow_to_five_and_shrink_under_writers(members: Members, writers: list[Writer]) -> None:
    grow(members, TRIO, 4)
    grow(members, (*TRIO, 4), 5)
    assert quorum_sizes(members) == {5}
    # Five members tolerate the loss of two.
    members.stop(1, 2)
    members.wait_until_in_sync()
    members.start(1, 2, server_list=QUINTET)
    members.wait_until_in_sync()
    shrink(members, QUINTET, 5)
    assert quorum_sizes(members) == {4}
    shrink(members, (*TRIO, 4), 4)
    assert quorum_sizes(members) == {3}
    assert_exclusive_holds(writers)


def acquire_once(hosts: str) -> None:
    with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager, manager.acquire(TABLE):
        pass


@pytest.mark.full
def test_negative_control_two_new_members_make_two_quorums(members: Members) -> None:
    acquire_once(members.hosts(*TRIO))
    # The new members get the data, so they may vote.
    members.start(4, 5, server_list=QUINTET)
    members.wait_until_in_sync()
    members.stop(4, 5)
    # Member 3 misses the next hold, and is the first to get a new list: with member 4 it is no quorum of four.
    members.stop(3)
    members.wait_until_in_sync()
    acquire_once(members.hosts(1, 2))
    members.stop(1, 2)
    members.start(3, 4, server_list=(*TRIO, 4))
    with ZookeeperLockManager(members.hosts(3, 4), 2) as manager:
        with pytest.raises((EnsembleUnavailableError, LockTimeoutError)):
            manager.acquire(TABLE)
    # Members 3 to 5 restart with a list of five: they are a quorum of it. Members 1 and 2 have the old list of three.
    members.stop(3, 4)
    members.start(3, 4, 5, server_list=QUINTET)
    members.wait_until_in_sync()
    members.start(1, 2, server_list=TRIO)
    with ExitStack() as stack:
        holds = [
            stack.enter_context(stack.enter_context(RivalManager(hosts, WAIT_SECONDS)).acquire(TABLE))
            for hosts in (members.hosts(1, 2), members.hosts(3, 4, 5))
        ]
        for hold in holds:
            hold.check()
        assert holds[0].ensemble_id == holds[1].ensemble_id
