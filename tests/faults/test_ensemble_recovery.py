"""Two of three members are lost with their data: the steps of docs/runbooks.md, on real servers.

The one that is left missed an election and transactions before that. So what it knows is behind what tables have in
their logs. The steps are followed to the letter, and left out one by one in the controls.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lock_manager import (
    EnsembleUnavailableError,
    HeldLock,
    LockLostError,
    LockTimeoutError,
    ZookeeperLockManager,
)
from sluice.soak.tcp_proxy import Link
from tests.support.members import Members
from tests.support.rivals import RivalManager

LATER_HOLDS = 20
HIGHER_EPOCHS = 1_000_000
TABLE, OTHER_TABLE = "s3://lake/flights", "s3://lake/weather"
TRIO = (1, 2, 3)


@dataclass
class Holder:
    """A writer that was cut off while it held a lock, with a put on its way."""

    link: Link
    hold: HeldLock

    def return_to_ensemble(self) -> None:
        self.link.refused = False


@dataclass
class Lost:
    """What is left of an ensemble, and what was before.

    Attributes:
        members: none of them runs, and two have nothing.
        survivor: the one that has data.
        backup: a copy of its folder.
        ensemble: UUID of before.
        last_token: of the last hold that the lost members gave.
        before: who held the lock on each table when the survivor failed.

    """

    members: Members
    survivor: int
    backup: Path
    ensemble: str
    last_token: int
    before: dict[str, Holder]

    @property
    def lost(self) -> list[int]:
        return [each for each in TRIO if each != self.survivor]

    @property
    def hosts(self) -> str:
        return self.members.hosts(*TRIO)

    @property
    def epochs(self) -> Path:
        return self.members.folder(self.survivor) / "data" / "version-2" / "acceptedEpoch"


def cut_off_holder(hosts: str, table: str, managers: list[ZookeeperLockManager]) -> Holder:
    link = Link(hosts)
    manager = RivalManager(link.hosts, 60, session_timeout_seconds=2)
    managers.append(manager)
    hold = manager.acquire(table)
    hold.intend(3, txn="t", attempt="a")
    link.refused = True
    link.drop()
    return Holder(link, hold)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    """One member fails. The two others elect a leader, end the holders' sessions, give locks, and are lost."""
    managers: list[ZookeeperLockManager] = []
    base = tmp_path_factory.mktemp("ensemble")
    with Members(base, TRIO) as members:
        members.start(*TRIO, of=TRIO)
        survivor = members.wait_until_in_sync()
        hosts = members.hosts(*TRIO)
        before = {table: cut_off_holder(hosts, table, managers) for table in (TABLE, OTHER_TABLE)}
        members.stop(survivor)
        members.wait_until_in_sync()
        with ZookeeperLockManager(hosts, 60) as later:
            for table in before:
                for _ in range(LATER_HOLDS):
                    with later.acquire(table) as hold:
                        assert hold.token > before[table].hold.token
                        hold.intents.clear()
        lost = [each for each in TRIO if each != survivor]
        members.lose(*lost)
        backup = base / "backup"
        shutil.copytree(members.folder(survivor), backup)
        yield Lost(members, survivor, backup, hold.ensemble_id, hold.token, before)
        for manager in managers:
            manager.close()
        for holder in before.values():
            holder.link.close()


@pytest.fixture
def lost(history: Lost) -> Iterator[Lost]:
    """Nobody runs; the survivor has its data, the others have nothing."""
    for each in TRIO:
        shutil.rmtree(history.members.folder(each), ignore_errors=True)
    shutil.copytree(history.backup, history.members.folder(history.survivor))
    yield history
    history.members.stop(*history.members.running)


def test_the_survivor_alone_gives_no_locks(lost: Lost) -> None:
    lost.members.start(lost.survivor, of=TRIO)
    with ZookeeperLockManager(lost.hosts, 2) as manager:
        with pytest.raises((EnsembleUnavailableError, LockTimeoutError)):
            manager.acquire(TABLE)
    assert lost.members.leaders() == []


def test_the_ensemble_is_made_whole_again_from_the_survivor(lost: Lost, eventually: Callable[..., None]) -> None:
    # A higher epoch, while nobody runs.
    accepted = int(lost.epochs.read_text())
    lost.epochs.write_text(f"{accepted + HIGHER_EPOCHS}\n")
    # One replacement, and another one when the first has the data. Clients are still kept out.
    lost.members.start(lost.survivor, of=TRIO)
    first, second = lost.lost
    lost.members.start(first, of=TRIO)
    assert lost.members.wait_until_in_sync() == lost.survivor
    lost.members.start(second, of=TRIO)
    leader = lost.members.wait_until_in_sync()
    # The sessions of before end.
    eventually(lambda: lost.members.figure(leader, "ephemerals_count") == 0, what="the end of the sessions of before")
    # Clients are let in.
    cut_off = lost.before[TABLE]
    cut_off.return_to_ensemble()
    with ZookeeperLockManager(lost.hosts, 30) as manager, manager.acquire(TABLE) as hold:
        assert hold.ensemble_id == lost.ensemble
        assert hold.token > lost.last_token
        assert hold.token >> 32 == accepted + HIGHER_EPOCHS + 1
        # The intent that was settled by the lost members is there again, and is settled again.
        assert hold.intents.unclean == (cut_off.hold.hold_id,)
        assert [intent.version for intent in hold.intents.read()] == [3]
        hold.intents.clear()
        with pytest.raises(LockLostError):
            check_when_connected(cut_off.hold, eventually)
        hold.check()


def check_when_connected(hold: HeldLock, eventually: Callable[..., None]) -> None:
    def answered() -> bool:
        try:
            hold.check()
        except EnsembleUnavailableError:
            return False
        return True

    eventually(answered, what="an answer to the question whether the hold stands")


def test_negative_control_with_the_epoch_of_before_tokens_fall_and_holds_of_before_stand_again(
    lost: Lost, eventually: Callable[..., None]
) -> None:
    lost.members.start(lost.survivor, lost.lost[0], of=TRIO)
    lost.members.wait_until_in_sync()
    cut_off = lost.before[OTHER_TABLE]
    cut_off.return_to_ensemble()
    check_when_connected(cut_off.hold, eventually)
    with ZookeeperLockManager(lost.hosts, 30) as manager, manager.acquire("s3://lake/another") as hold:
        assert hold.ensemble_id == lost.ensemble
        assert hold.token < lost.last_token


def test_negative_control_two_empty_members_are_a_quorum_that_knows_nothing(lost: Lost) -> None:
    lost.members.start(*lost.lost, of=TRIO)
    lost.members.wait_until_in_sync()
    with ZookeeperLockManager(lost.hosts, 30) as manager, manager.acquire(TABLE) as hold:
        assert hold.ensemble_id != lost.ensemble
        assert hold.token < lost.last_token
