"""A live ensemble grows and shrinks by one member at a time, each with a static list: the steps of docs/runbooks.md.

Writers take and give back one lock all the while. In the control two members are added at once.
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
SHORT_SECONDS = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Held:
    """A hold that the quorum confirmed at its end: nobody else can have had the lock from ``start`` to ``end``."""

    token: int
    start: float
    end: float


class Writer(threading.Thread):
    """Takes the lock and gives it back until told to end.

    Attributes:
        held: holds that were confirmed.
        outages: holds that ended in an outage.
        failed: whatever else went wrong.

    """

    def __init__(self, hosts: str) -> None:
        super().__init__(daemon=True)
        self.held: list[Held] = []
        self.outages: list[Exception] = []
        self.failed: Exception | None = None
        self.ensembles: set[str] = set()
        self._hosts = hosts
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            with ZookeeperLockManager(self._hosts, WAIT_SECONDS, session_timeout_seconds=SESSION_SECONDS) as manager:
                while not self._ends.is_set():
                    self._hold_once(manager)
        except Exception as error:
            self.failed = error

    def _hold_once(self, manager: ZookeeperLockManager) -> None:
        hold = manager.acquire(TABLE)
        try:
            start = time.monotonic()
            self._ends.wait(0.01)
            end = time.monotonic()
            hold.check()
            self.held.append(Held(hold.token, start, end))
            self.ensembles.add(hold.ensemble_id)
            hold.release()
        except (EnsembleUnavailableError, LockLostError) as error:
            self.outages.append(error)
            if not hold.over:
                with suppress(LockLostError):
                    hold.release()

    def end(self) -> None:
        self._ends.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with Members(tmp_path, QUINTET) as made:
        made.initialize(*TRIO)
        made.start(*TRIO, of=TRIO)
        made.wait_until_in_sync()
        yield made


@pytest.fixture
def writers(members: Members) -> Iterator[list[Writer]]:
    made = [Writer(members.hosts(*TRIO)) for _ in range(2)]
    for writer in made:
        writer.start()
    yield made
    for writer in made:
        writer.end()


def take_over(members: Members, new: tuple[int, ...], among: tuple[int, ...]) -> None:
    """Restart these members with the new list, one by one, the leader last, each when all are in sync."""
    leader = members.wait_until_in_sync()
    for member in sorted(among, key=lambda each: each == leader):
        members.stop(member)
        members.start(member, of=new)
        members.wait_until_in_sync()


def grow(members: Members, old: tuple[int, ...], newcomer: int) -> None:
    new = (*old, newcomer)
    members.start(newcomer, of=new)
    take_over(members, new, old)


def shrink(members: Members, old: tuple[int, ...], leaving: int) -> None:
    if members.wait_until_in_sync() == leaving:
        # Who has the new list would not follow it.
        members.stop(leaving)
        members.start(leaving, of=old)
        assert members.wait_until_in_sync() != leaving
    new = tuple(each for each in old if each != leaving)
    take_over(members, new, new)
    members.stop(leaving)
    members.wait_until_in_sync()


def quorum_sizes(members: Members) -> set[int]:
    return {members.figure(each, "quorum_size") for each in members.running}


def judge(writers: list[Writer]) -> None:
    """Two never held at once, tokens rose, and nobody met more than a short outage."""
    for writer in writers:
        writer.end()
    assert [writer.failed for writer in writers] == [None] * len(writers)
    assert len({ensemble for writer in writers for ensemble in writer.ensembles}) == 1
    held = sorted((each for writer in writers for each in writer.held), key=lambda each: each.start)
    for earlier, later in pairwise(held):
        assert earlier.end <= later.start
        assert earlier.token < later.token
    longest = max(later.start - earlier.end for earlier, later in pairwise(held))
    outages = sum(len(writer.outages) for writer in writers)
    log.info("%d holds, %d ended by an outage, at most %.1f s without a hold", len(held), outages, longest)
    assert longest < SHORT_SECONDS


def test_three_become_four_under_writers(members: Members, writers: list[Writer]) -> None:
    grow(members, TRIO, 4)
    assert quorum_sizes(members) == {4}
    judge(writers)


@pytest.mark.soak
def test_three_become_five_and_three_again_under_writers(members: Members, writers: list[Writer]) -> None:
    grow(members, TRIO, 4)
    grow(members, (*TRIO, 4), 5)
    assert quorum_sizes(members) == {5}
    # Five bear the loss of two.
    members.stop(1, 2)
    members.wait_until_in_sync()
    members.start(1, 2, of=QUINTET)
    members.wait_until_in_sync()
    shrink(members, QUINTET, 5)
    assert quorum_sizes(members) == {4}
    shrink(members, (*TRIO, 4), 4)
    assert quorum_sizes(members) == {3}
    judge(writers)


def take_the_lock_once(hosts: str) -> None:
    with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager, manager.acquire(TABLE):
        pass


def test_negative_control_two_newcomers_at_once_make_two_quorums_where_one_makes_none(members: Members) -> None:
    take_the_lock_once(members.hosts(*TRIO))
    # Both have the data, so they vote.
    members.start(4, 5, of=QUINTET)
    members.wait_until_in_sync()
    members.stop(4, 5)
    # 3 does not know of this, and takes the new list before 1 and 2 do. Then all restart, and it is cut off from them.
    members.stop(3)
    members.wait_until_in_sync()
    take_the_lock_once(members.hosts(1, 2))
    members.stop(1, 2)
    members.start(3, 4, of=(*TRIO, 4))
    with ZookeeperLockManager(members.hosts(3, 4), 2) as manager:
        with pytest.raises((EnsembleUnavailableError, LockTimeoutError)):
            manager.acquire(TABLE)
    members.stop(3, 4)
    members.start(3, 4, 5, of=QUINTET)
    members.wait_until_in_sync()
    members.start(1, 2, of=TRIO)
    with ExitStack() as both:
        holds = [
            both.enter_context(both.enter_context(RivalManager(hosts, WAIT_SECONDS)).acquire(TABLE))
            for hosts in (members.hosts(1, 2), members.hosts(3, 4, 5))
        ]
        for hold in holds:
            hold.check()
        assert holds[0].ensemble_id == holds[1].ensemble_id
