"""Two of three members are lost with their data: the steps of docs/runbooks.md, on real servers.

The survivor has missed an election and later transactions, so tables contain newer tokens than it knows. The tests
follow the steps exactly. One control omits a step (the new epoch); the other omits the setting
``db.autocreate=false``.
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
from tests.support.ensemble_members import SYNC_SECONDS, Members, recover
from tests.support.lock_znodes import LOCK_ROOT, connected_client
from tests.support.rivals import RivalManager
from tests.support.sessions import end_session
from tests.support.waiting import eventually

LATER_HOLDS = 20
TABLE, WEATHER, PLANES = "s3://lake/flights", "s3://lake/weather", "s3://lake/planes"
ANOTHER_TABLE = "s3://lake/another"
TRIO = (1, 2, 3)
KAZOO_SESSION_SECONDS = 6
"""Session timeout of :class:`CutOffKazooClient`. The members start faster, so in the control the client reconnects
before its session expires."""


class CutOffWriter:
    """A writer of Sluice that is cut off while it holds a lock and has an unfinished intent."""

    def __init__(self, hosts: str, table: str) -> None:
        self._link = Link(hosts)
        self._manager = RivalManager(self._link.hosts, 60, session_timeout_seconds=6)
        self.hold = self._manager.acquire(table)
        self.hold.intend(3, txn="t", attempt="a")
        cut_off(self._link)

    def reconnect(self) -> None:
        self._link.refuses_connections = False

    def close(self) -> None:
        self._manager.close()
        self._link.close()


class CutOffKazooClient:
    """A program that locks with kazoo's recipe instead of Sluice, and is cut off. No guard checks its commits."""

    def __init__(self, hosts: str, table: str) -> None:
        self._link = Link(hosts)
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.2}
        self._client = KazooClient(self._link.hosts, timeout=KAZOO_SESSION_SECONDS, connection_retry=retry)
        self._client.start()
        self._lock = self._client.WriteLock(table_node(LOCK_ROOT, TableResource.of(table)))
        self._lock.acquire()
        self.session = self._client.client_id
        cut_off(self._link)

    def reconnect(self) -> None:
        self._link.refuses_connections = False

    def still_holds(self) -> bool:
        """Return whether the old session and its contender exist; call it after :meth:`reconnect`."""
        contender = self._client.retry(self._client.exists, f"{self._lock.path}/{self._lock.node}")
        return contender is not None and self._client.client_id == self.session

    def close(self) -> None:
        self._client.stop()
        self._client.close()
        self._link.close()


def cut_off(link: Link) -> None:
    link.refuses_connections = True
    link.drop()


@dataclass
class LostEnsemble:
    """An ensemble that has lost two members with their data.

    Attributes:
        members: The members; none runs.
        survivor: Id of the member that has data.
        backup: A copy of the survivor's folder.
        uuid: The ensemble's UUID.
        last_token: Token of the last hold that the lost members granted.
        writer: Writer that held the lock on ``TABLE`` when the survivor failed.
        clients: Other programs that held locks when the survivor failed, by table.

    """

    members: Members
    survivor: int
    backup: Path
    uuid: str
    last_token: int
    writer: CutOffWriter
    clients: dict[str, CutOffKazooClient]

    @property
    def lost_members(self) -> list[int]:
        return [member for member in TRIO if member != self.survivor]

    @property
    def hosts(self) -> str:
        return self.members.hosts(*TRIO)


@pytest.fixture(scope="module")
def lost_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LostEnsemble]:
    """One member fails. The others elect a leader, end sessions of cut-off clients, grant locks, and are lost."""
    base = tmp_path_factory.mktemp("ensemble")
    with Members(base, TRIO) as members, ExitStack() as stack:
        members.initialize(*TRIO)
        members.start(*TRIO, server_list=TRIO)
        survivor = members.wait_until_in_sync()
        hosts = members.hosts(*TRIO)
        writer = CutOffWriter(hosts, TABLE)
        stack.callback(writer.close)
        clients = {table: CutOffKazooClient(hosts, table) for table in (WEATHER, PLANES)}
        for client in clients.values():
            stack.callback(client.close)
        members.stop(survivor)
        members.wait_until_in_sync()
        for client in clients.values():
            end_session(hosts, client.session)
        last_hold = grant_locks(hosts)
        assert last_hold.token > writer.hold.token
        members.lose(*(member for member in TRIO if member != survivor))
        backup = base / "backup"
        shutil.copytree(members.folder(survivor), backup)
        yield LostEnsemble(members, survivor, backup, last_hold.ensemble_id, last_hold.token, writer, clients)


def grant_locks(hosts: str) -> HeldLock:
    """Acquire and release each lock many times; return the last hold."""
    with ZookeeperLockManager(hosts, 60) as manager:
        for _ in range(LATER_HOLDS):
            for table in (WEATHER, PLANES, TABLE):
                with manager.acquire(table) as hold:
                    hold.intents.clear()
    return hold


@pytest.fixture
def ensemble(lost_ensemble: LostEnsemble) -> Iterator[LostEnsemble]:
    """The lost ensemble with only the survivor's data; no member runs."""
    members = lost_ensemble.members
    for member in TRIO:
        shutil.rmtree(members.folder(member), ignore_errors=True)
    shutil.copytree(lost_ensemble.backup, members.folder(lost_ensemble.survivor))
    yield lost_ensemble
    members.stop(*members.running)
    members.autocreate = False


@pytest.mark.full
def test_the_survivor_alone_grants_no_locks(ensemble: LostEnsemble) -> None:
    ensemble.members.start(ensemble.survivor, server_list=TRIO)
    assert_no_leader(ensemble.members, [ensemble.survivor])
    with ZookeeperLockManager(ensemble.hosts, 2) as manager:
        with pytest.raises((EnsembleUnavailableError, LockTimeoutError)):
            manager.acquire(TABLE)


@pytest.mark.full
def test_the_ensemble_recovers_from_the_survivor(ensemble: LostEnsemble) -> None:
    epoch = recover(ensemble.members, ensemble.survivor, ensemble.lost_members)
    # Clients may connect again.
    ensemble.writer.reconnect()
    ensemble.clients[WEATHER].reconnect()
    assert not ensemble.clients[WEATHER].still_holds()
    with ZookeeperLockManager(ensemble.hosts, 30) as manager:
        with manager.acquire(WEATHER) as hold:
            assert hold.ensemble_id == ensemble.uuid
            assert hold.token > ensemble.last_token
            assert hold.token >> 32 == epoch
        with manager.acquire(TABLE) as hold:
            # A holder cleared this intent on the lost members. The survivor still has it, so the next holder clears it
            # again.
            assert hold.intents.unfinished == (ensemble.writer.hold.hold_id,)
            assert [intent.version for intent in hold.intents.read()] == [3]
            hold.intents.clear()
            with pytest.raises(LockLostError):
                ensemble.writer.hold.check()
            hold.check()


@pytest.mark.full
def test_negative_control_without_a_new_epoch_tokens_fall(ensemble: LostEnsemble) -> None:
    client = ensemble.clients[PLANES]
    client.reconnect()
    ensemble.members.let_vote(ensemble.lost_members[0])
    ensemble.members.start(ensemble.survivor, ensemble.lost_members[0], server_list=TRIO)
    ensemble.members.wait_until_in_sync()
    # The lost members granted this lock to later holders, which may have committed.
    assert client.still_holds()
    with ZookeeperLockManager(ensemble.hosts, 0) as manager:
        with pytest.raises(LockTimeoutError):
            manager.acquire(PLANES)
        with manager.acquire(ANOTHER_TABLE, timeout_seconds=30) as hold:
            assert hold.ensemble_id == ensemble.uuid
            # The epoch is the same, so later holds would get tokens that earlier holds had.
            assert hold.token >> 32 == ensemble.last_token >> 32
            assert hold.token < ensemble.last_token


@pytest.mark.full
def test_lost_members_follow_the_survivor_once_one_may_vote(ensemble: LostEnsemble) -> None:
    ensemble.members.start(*ensemble.lost_members, server_list=TRIO)
    assert_no_leader(ensemble.members, ensemble.lost_members)
    ensemble.members.start(ensemble.survivor, server_list=TRIO)
    # Only the survivor may vote. A second member must be allowed to vote.
    assert_no_leader(ensemble.members, [ensemble.survivor])
    restart_as_voter(ensemble.members, ensemble.lost_members[0])
    assert ensemble.members.wait_until_in_sync() == ensemble.survivor
    assert {stored_uuid(ensemble, member) for member in TRIO} == {ensemble.uuid}


@pytest.mark.full
def test_empty_members_wait_until_a_majority_may_vote(tmp_path: Path) -> None:
    with Members(tmp_path, TRIO) as members:
        members.start(*TRIO, server_list=TRIO)
        assert_no_leader(members, TRIO)
        restart_as_voter(members, 1)
        # The rounds of an election get longer. Only the member that has just started still has short rounds, so the
        # test waits for its rounds only.
        assert_no_leader(members, [1])
        restart_as_voter(members, 2)
        members.wait_until_in_sync()


def restart_as_voter(members: Members, member: int) -> None:
    """Stop a member without data, let it vote, and start it."""
    members.stop(member)
    members.let_vote(member)
    members.start(member, server_list=TRIO)


def assert_no_leader(members: Members, ids: Sequence[int]) -> None:
    """Assert that these running members elect no leader in several rounds; an election takes less than one round."""
    rounds = {member: members.election_timeouts(member) for member in ids}
    eventually(
        lambda: all(members.election_timeouts(member) > rounds[member] + 3 for member in ids),
        SYNC_SECONDS,
        "several rounds without a leader",
    )
    assert members.leaders() == []


@pytest.mark.full
def test_negative_control_two_empty_members_are_a_quorum(ensemble: LostEnsemble) -> None:
    ensemble.members.autocreate = True
    ensemble.members.start(*ensemble.lost_members, server_list=TRIO)
    ensemble.members.wait_until_in_sync()
    with ZookeeperLockManager(ensemble.hosts, 30) as manager, manager.acquire(TABLE) as hold:
        assert hold.ensemble_id != ensemble.uuid
        assert hold.token < ensemble.last_token
        assert hold.intents.unfinished == ()
    ensemble.members.start(ensemble.survivor, server_list=TRIO)
    assert ensemble.members.wait_until_in_sync() != ensemble.survivor
    # The survivor has the same epoch by chance, so it follows them: one ensemble with two different trees.
    assert stored_uuid(ensemble, ensemble.survivor) == ensemble.uuid
    assert stored_uuid(ensemble, ensemble.lost_members[0]) == hold.ensemble_id


def stored_uuid(ensemble: LostEnsemble, member: int) -> str:
    with connected_client(ensemble.members.hosts(member)) as client:
        return str(json.loads(client.get(LOCK_ROOT)[0])["ensemble"])
