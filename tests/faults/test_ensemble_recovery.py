"""Two of three members are lost with their data: the steps of docs/runbooks.md, on real servers.

The one that is left missed an election and transactions before that. So what it knows is behind what tables have in
their logs. The steps are followed to the letter, and left out one by one in the controls.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lock_manager import (
    EnsembleUnavailableError,
    HeldLock,
    LockLostError,
    LockTimeoutError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.zookeeper.znodes import table_node
from soak.tcp_proxy import Link
from tests.support.ensemble_members import SETTLED_SECONDS, Members, recover
from tests.support.rivals import RivalManager
from tests.support.sessions import end_session
from tests.support.waiting import eventually

LATER_HOLDS = 20
TABLE, WEATHER, PLANES = "s3://lake/flights", "s3://lake/weather", "s3://lake/planes"
ANOTHER = "s3://lake/another"
TRIO = (1, 2, 3)
STRANGER_SECONDS = 6
"""Longer than the members take to start: in the control the session is to be found again before it ends."""


class Before:
    """A writer that held a lock, with a put on its way, when it was cut off: one of ours."""

    def __init__(self, hosts: str, table: str) -> None:
        self._link = Link(hosts)
        self._manager = RivalManager(self._link.hosts, 60, session_timeout_seconds=6)
        self.hold = self._manager.acquire(table)
        self.hold.intend(3, txn="t", attempt="a")
        cut_off(self._link)

    def let_in(self) -> None:
        self._link.refused = False

    def close(self) -> None:
        self._manager.close()
        self._link.close()


class Stranger:
    """Another program that held a lock by kazoo alone when it was cut off: it believes whatever the ensemble says."""

    def __init__(self, hosts: str, table: str) -> None:
        self._link = Link(hosts)
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.2}
        self._client = KazooClient(self._link.hosts, timeout=STRANGER_SECONDS, connection_retry=retry)
        self._client.start()
        self._lock = self._client.WriteLock(table_node("/locks/delta_tables", TableResource.of(table)))
        self._lock.acquire()
        self.session = self._client.client_id
        cut_off(self._link)

    def let_in(self) -> None:
        self._link.refused = False

    def still_holds(self) -> bool:
        """Tell whether the session of before stands, and its contender; only to be asked when it is let in."""
        there = self._client.retry(self._client.exists, f"{self._lock.path}/{self._lock.node}")
        return there is not None and self._client.client_id == self.session

    def close(self) -> None:
        self._client.stop()
        self._client.close()
        self._link.close()


def cut_off(link: Link) -> None:
    link.refused = True
    link.drop()


@dataclass
class Lost:
    """What is left of an ensemble, and what was before.

    Attributes:
        members: none of them runs, and two have nothing.
        survivor: the one that has data.
        backup: a copy of its folder.
        ensemble: UUID of before.
        last_token: of the last hold that the lost members gave.
        writer: who held the lock on ``TABLE`` when the survivor failed.
        strangers: likewise, by table.

    """

    members: Members
    survivor: int
    backup: Path
    ensemble: str
    last_token: int
    writer: Before
    strangers: dict[str, Stranger]

    @property
    def lost(self) -> list[int]:
        return [each for each in TRIO if each != self.survivor]

    @property
    def hosts(self) -> str:
        return self.members.hosts(*TRIO)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    """One member fails. The others elect a leader, end the sessions of who was cut off, give locks, and are lost."""
    base = tmp_path_factory.mktemp("ensemble")
    with Members(base, TRIO) as members, ExitStack() as ending:
        members.initialize(*TRIO)
        members.start(*TRIO, of=TRIO)
        survivor = members.wait_until_in_sync()
        hosts = members.hosts(*TRIO)
        writer = Before(hosts, TABLE)
        ending.callback(writer.close)
        strangers = {table: Stranger(hosts, table) for table in (WEATHER, PLANES)}
        for stranger in strangers.values():
            ending.callback(stranger.close)
        members.stop(survivor)
        members.wait_until_in_sync()
        for stranger in strangers.values():
            end_session(hosts, stranger.session)
        last = give_locks(hosts)
        assert last.token > writer.hold.token
        members.lose(*(each for each in TRIO if each != survivor))
        backup = base / "backup"
        shutil.copytree(members.folder(survivor), backup)
        yield Lost(members, survivor, backup, last.ensemble_id, last.token, writer, strangers)


def give_locks(hosts: str) -> HeldLock:
    """Give each lock to others, many times; return the last hold."""
    with ZookeeperLockManager(hosts, 60) as manager:
        for _ in range(LATER_HOLDS):
            for table in (WEATHER, PLANES, TABLE):
                with manager.acquire(table) as hold:
                    hold.intents.clear()
    return hold


@pytest.fixture
def lost(history: Lost) -> Iterator[Lost]:
    """Nobody runs; the survivor has its data, the others have nothing."""
    for each in TRIO:
        shutil.rmtree(history.members.folder(each), ignore_errors=True)
    shutil.copytree(history.backup, history.members.folder(history.survivor))
    yield history
    history.members.stop(*history.members.running)
    history.members.autocreate = False


def test_the_survivor_alone_gives_no_locks(lost: Lost) -> None:
    lost.members.start(lost.survivor, of=TRIO)
    with ZookeeperLockManager(lost.hosts, 2) as manager:
        with pytest.raises((EnsembleUnavailableError, LockTimeoutError)):
            manager.acquire(TABLE)
    assert lost.members.leaders() == []


def test_the_ensemble_is_made_whole_again_from_the_survivor(lost: Lost) -> None:
    epoch = recover(lost.members, lost.survivor, lost.lost)
    # Clients are let in.
    lost.writer.let_in()
    lost.strangers[WEATHER].let_in()
    assert not lost.strangers[WEATHER].still_holds()
    with ZookeeperLockManager(lost.hosts, 30) as manager:
        with manager.acquire(WEATHER) as hold:
            assert hold.ensemble_id == lost.ensemble
            assert hold.token > lost.last_token
            assert hold.token >> 32 == epoch
        with manager.acquire(TABLE) as hold:
            # The lost members had settled this intent. It is there again, and the next holder settles it again.
            assert hold.intents.unfinished == (lost.writer.hold.hold_id,)
            assert [intent.version for intent in hold.intents.read()] == [3]
            hold.intents.clear()
            with pytest.raises(LockLostError):
                lost.writer.hold.check()
            hold.check()


def test_negative_control_by_the_survivor_alone_tokens_fall_and_a_session_that_was_over_stands_again(
    lost: Lost,
) -> None:
    stranger = lost.strangers[PLANES]
    stranger.let_in()
    lost.members.let_vote(lost.lost[0])
    lost.members.start(lost.survivor, lost.lost[0], of=TRIO)
    lost.members.wait_until_in_sync()
    # The lost members had given this lock to others, who have committed since.
    assert stranger.still_holds()
    with ZookeeperLockManager(lost.hosts, 0) as manager:
        with pytest.raises(LockTimeoutError):
            manager.acquire(PLANES)
        with manager.acquire(ANOTHER, timeout_seconds=30) as hold:
            assert hold.ensemble_id == lost.ensemble
            # Of the same epoch: further on a token of before is given to somebody else.
            assert hold.token >> 32 == lost.last_token >> 32
            assert hold.token < lost.last_token


def test_members_without_data_wait_for_one_that_has_it(lost: Lost) -> None:
    lost.members.start(*lost.lost, of=TRIO)
    wait_in_vain(lost, lost.lost)
    lost.members.start(lost.survivor, of=TRIO)
    # It has data and votes, alone. One of the two has to vote as well, and to be told so.
    wait_in_vain(lost, [lost.survivor])
    lost.members.stop(lost.lost[0])
    lost.members.let_vote(lost.lost[0])
    lost.members.start(lost.lost[0], of=TRIO)
    assert lost.members.wait_until_in_sync() == lost.survivor
    assert {ensemble_according_to(lost, each) for each in TRIO} == {lost.ensemble}


def test_made_from_nothing_members_wait_until_a_majority_may_vote(tmp_path: Path) -> None:
    with Members(tmp_path, TRIO) as members:
        members.start(*TRIO, of=TRIO)
        for each in (1, 2):
            assert members.leaders() == []
            members.stop(each)
            members.let_vote(each)
            members.start(each, of=TRIO)
        members.wait_until_in_sync()


def wait_in_vain(lost: Lost, members: Sequence[int]) -> None:
    """Let each of these look for a leader several times; an election takes less than one."""
    before = {each: lost.members.looks_for_a_leader(each) for each in members}
    eventually(
        lambda: all(lost.members.looks_for_a_leader(each) > before[each] + 3 for each in members),
        SETTLED_SECONDS,
        "a vote that decides nothing",
    )
    assert lost.members.leaders() == []


def test_negative_control_two_empty_members_are_a_quorum_that_spoils_what_the_survivor_has(lost: Lost) -> None:
    lost.members.autocreate = True
    lost.members.start(*lost.lost, of=TRIO)
    lost.members.wait_until_in_sync()
    with ZookeeperLockManager(lost.hosts, 30) as manager, manager.acquire(TABLE) as hold:
        assert hold.ensemble_id != lost.ensemble
        assert hold.token < lost.last_token
        assert hold.intents.unfinished == ()
    lost.members.start(lost.survivor, of=TRIO)
    assert lost.members.wait_until_in_sync() != lost.survivor
    # Its epoch is theirs by chance, so it follows them. One ensemble, two trees.
    assert ensemble_according_to(lost, lost.survivor) == lost.ensemble
    assert ensemble_according_to(lost, lost.lost[0]) == hold.ensemble_id


def ensemble_according_to(lost: Lost, member: int) -> str:
    client = KazooClient(lost.members.hosts(member))
    client.start()
    found = json.loads(client.get("/locks/delta_tables")[0])["ensemble"]
    client.stop()
    client.close()
    return str(found)
