"""Group commits of Spark drivers on one S3 table, while the holder or a member is paused, killed or without an answer.

In each test the first driver becomes the holder, and the second driver's append waits behind it.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.driver_process import LAKE, WAIT, Driver
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.s3_table import copy, count_stored_puts, rows

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@dataclass
class Group:
    """Two drivers, and a table with the ids 0 to 2."""

    holder: Driver
    member: Driver
    table: str
    s3: FaultyS3
    eventually: Callable[..., None]

    def contenders(self) -> int:
        with connected_client(self.holder.hosts) as client:
            return len(LockZnodes(client, self.table).contenders())

    def begin(self, **options: Any) -> None:
        """Let an append of each driver wait, the holder's first, and then let the holder commit."""
        with (
            ZookeeperLockManager(self.holder.hosts, WAIT) as manager,
            manager.acquire(self.table),
            connected_client(self.holder.hosts) as client,
        ):
            znodes = LockZnodes(client, self.table)
            for number, driver in enumerate((self.holder, self.member), 1):
                append = {"first": 10 * number, "end": 10 * number + 2}
                driver.begin("append_as", table=self.table, **append, **(options if driver is self.member else {}))
                self.eventually(lambda number=number: len(znodes.contenders()) == number + 1, within=WAIT)

    @contextmanager
    def held_put(self, **options: Any) -> Iterator[S3Fault]:
        """Hold the holder's PUT, which contains the appends of both drivers, until the end of the block."""
        fault = self.s3.gate.arm(self.holder.name, S3Fault(held=True))
        self.begin(**options)
        assert fault.arrived.wait(WAIT)
        try:
            yield fault
        finally:
            fault.release.set()
            assert fault.ended.wait(WAIT)

    def versions(self) -> dict[int, int]:
        return count_stored_puts(self.s3, self.table)

    def check_both_are_committed(self, member_answer: dict[str, Any] | None) -> None:
        """Check that both appends are in version 1; the member has reported it, or nothing."""
        assert member_answer in (None, {"done": {"version": 1, "already_committed": False}})
        assert self.holder.answer() == {"done": {"version": 1, "already_committed": False}}
        assert rows(self.table) == [0, 1, 2, 10, 11, 20, 21]
        assert self.versions() == {0: 1, 1: 1}

    def intents(self) -> int:
        with connected_client(self.holder.hosts) as client:
            return len(LockZnodes(client, self.table).intents())


@pytest.fixture
def group(
    driver_pair: tuple[Driver, Driver], s3: FaultyS3, original: str, eventually: Callable[..., None]
) -> Iterator[Group]:
    table = f"s3a://{LAKE[0]}/{uuid.uuid4().hex}"
    copy(s3, original, table)
    for driver in driver_pair:
        driver.do("group_commits")
    yield Group(*driver_pair, table, s3, eventually)
    for driver in driver_pair:
        driver.do("protect_again")


def test_both_appends_are_in_one_version(group: Group) -> None:
    group.begin()
    group.check_both_are_committed(group.member.answer())


def test_a_lost_reply_changes_nothing(group: Group) -> None:
    group.s3.gate.arm(group.holder.name, S3Fault(lost=True, stored=True))
    group.begin()
    group.check_both_are_committed(group.member.answer())


def test_a_put_that_fails_commits_neither_append_twice(group: Group) -> None:
    group.s3.gate.arm(group.holder.name, S3Fault(status=403, times=9))
    group.begin()
    answer = group.holder.answer()
    group.s3.gate.disarm(group.holder.name)
    assert answer["error"] == "CommitUnknownError", answer
    # The member fills the version of the unfinished intent.
    assert group.member.answer()["done"]["version"] == 2
    assert rows(group.table) == [0, 1, 2, 20, 21]


def test_a_member_that_times_out_during_the_put_is_committed(group: Group) -> None:
    with group.held_put(lock_timeout_seconds=2):
        # It has left the queue, and its append may still be stored.
        group.eventually(lambda: group.contenders() == 1, within=WAIT)
    group.check_both_are_committed(group.member.answer())


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT], ids=["cancelled", "interrupted"])
@pytest.mark.parametrize("moment", ["during the put", "after the put"])
def test_a_member_that_is_cancelled_or_interrupted_is_committed(
    group: Group, number: signal.Signals, moment: str
) -> None:
    with group.held_put():
        if moment == "during the put":
            group.member.signal(number, "python")
            group.eventually(lambda: group.contenders() == 1, within=WAIT)
        else:
            # The holder does not remove the member from the queue.
            group.holder.signal(signal.SIGSTOP, "both")
    try:
        if moment == "after the put":
            group.member.signal(number, "python")
        answer = group.member.answer()
    finally:
        group.holder.signal(signal.SIGCONT, "both")
    if number is signal.SIGINT:
        assert answer["error"] == "KeyboardInterrupt", answer
        assert "had been committed, as version 1" in answer["message"]
        answer = None
    group.check_both_are_committed(answer)


def test_negative_control_a_member_that_does_not_ask_deletes_committed_files(group: Group) -> None:
    group.member.do("forget_offers")
    with group.held_put(lock_timeout_seconds=2):
        assert group.member.answer()["error"] == "LockTimeoutError"
    assert group.holder.answer()["done"]["version"] == 1
    with pytest.raises(AssertionError, match="404 Not Found"):
        rows(group.table)


def test_a_paused_member_stalls_no_round(group: Group) -> None:
    with group.held_put():
        group.member.signal(signal.SIGSTOP, "jvm")
    try:
        assert group.holder.answer()["done"]["version"] == 1
        assert group.holder.do("append_as", table=group.table, first=30, end=31)["version"] == 2
    finally:
        group.member.signal(signal.SIGCONT, "jvm")
    assert group.member.answer()["done"]["version"] == 1
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21, 30]


def test_a_late_put_of_a_paused_holder_fails(group: Group) -> None:
    with group.held_put():
        group.holder.signal(signal.SIGSTOP, "both")
        try:
            # The holder's session ends. The member fills the version, and commits alone.
            assert group.member.answer()["done"]["version"] == 2
        finally:
            group.holder.signal(signal.SIGCONT, "both")
    assert group.holder.answer()["error"] == "LockLostError"
    assert rows(group.table) == [0, 1, 2, 20, 21]


def pause_holder_after_its_put(group: Group, **options: Any) -> int:
    """Pause the holder after its PUT is stored, so that nobody dismisses the member; return the member's version."""
    with group.held_put(**options):
        group.holder.signal(signal.SIGSTOP, "both")
    try:
        version: int = group.member.answer()["done"]["version"]
    finally:
        group.holder.signal(signal.SIGCONT, "both")
    assert group.holder.answer()["done"]["version"] == 1
    return version


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        # Delta's check finds a conflict of the append with itself.
        {"txn": ["loads", 1]},
    ],
    ids=str,
)
def test_a_member_finds_its_append_in_the_log_in_its_turn(group: Group, options: dict[str, Any]) -> None:
    assert pause_holder_after_its_put(group, **options) == 1
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21]
    assert group.versions() == {0: 1, 1: 1}


def test_negative_control_an_append_under_another_id_is_committed_twice(group: Group) -> None:
    group.member.do("offer_under_another_id")
    assert pause_holder_after_its_put(group) == 2
    assert group.versions() == {0: 1, 1: 1, 2: 1}


@pytest.fixture
def mortal(s3: FaultyS3, ensemble_of_drivers: EmbeddedZooKeeper) -> Iterator[Driver]:
    """A driver that the test kills."""
    driver = Driver("writer-3", ensemble_of_drivers.hosts, s3)
    driver.wait_until_ready()
    driver.do("group_commits")
    yield driver
    driver.close()


@pytest.mark.full
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_holder_is_killed_or_paused_before_its_intent(group: Group, mortal: Driver, fault: signal.Signals) -> None:
    """It has chosen its members. No intent names them, so the member commits alone, without an empty commit."""
    group.holder = mortal
    mortal.do("stop_before_intents")
    group.begin()
    assert mortal.answer() == {"done": 1}
    assert (group.contenders(), group.intents()) == (2, 0)
    mortal.signal(fault, "both")
    assert group.member.answer() == {"done": {"version": 1, "already_committed": False}}
    if fault is signal.SIGSTOP:
        mortal.signal(signal.SIGCONT, "both")
        mortal.send_line("continue")
        assert mortal.answer()["error"] == "LockLostError"
    assert rows(group.table) == [0, 1, 2, 20, 21]
    assert group.versions() == {0: 1, 1: 1}


@pytest.mark.full
@pytest.mark.parametrize("arrival", ["never", "before the member's turn", "after the member's commit"])
def test_a_holder_is_killed_during_its_put(group: Group, mortal: Driver, arrival: str) -> None:
    group.holder = mortal
    fault = group.s3.gate.arm(mortal.name, S3Fault(held=True, lost=arrival == "never"))
    group.begin()
    assert fault.arrived.wait(WAIT)
    mortal.signal(signal.SIGKILL, "both")
    if arrival == "after the member's commit":
        assert group.member.answer()["done"]["version"] == 2
    fault.release.set()
    assert fault.ended.wait(WAIT)
    if arrival == "before the member's turn":
        assert group.member.answer()["done"]["version"] == 1
        assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21]
        return
    if arrival == "never":
        assert group.member.answer()["done"]["version"] == 2
    assert rows(group.table) == [0, 1, 2, 20, 21]
    assert group.versions() == {0: 1, 1: 1, 2: 1}


@pytest.mark.full
def test_the_jvm_of_a_holder_is_killed_after_its_put(group: Group, mortal: Driver) -> None:
    """Its Python process releases the lock at once, so that the member gets it before it has seen the version."""
    group.holder = mortal
    fault = group.s3.gate.arm(mortal.name, S3Fault(stored=True, held=True))
    group.begin(txn=["loads", 1])
    assert fault.arrived.wait(WAIT)
    mortal.signal(signal.SIGSTOP, "jvm")
    fault.release.set()
    assert fault.ended.wait(WAIT)
    mortal.signal(signal.SIGKILL, "jvm")
    assert group.member.answer() == {"done": {"version": 1, "already_committed": False}}
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21]
    assert group.versions() == {0: 1, 1: 1}


@pytest.mark.full
def test_a_member_is_killed_during_the_put(group: Group, mortal: Driver) -> None:
    group.member = mortal
    with group.held_put():
        mortal.signal(signal.SIGKILL, "both")
    assert group.holder.answer()["done"]["version"] == 1
    # Its append was committed, and nobody waits for it.
    assert group.holder.do("append_as", table=group.table, first=30, end=31)["version"] == 2
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21, 30]


@pytest.mark.full
def test_a_member_whose_session_ends_during_the_put_is_committed(group: Group) -> None:
    with group.held_put():
        group.member.link.cut()
        # The member's contender ends with its session.
        group.eventually(lambda: group.contenders() == 1, within=WAIT)
    try:
        assert group.holder.answer()["done"]["version"] == 1
    finally:
        group.member.link.mend()
    assert group.member.answer()["done"]["version"] == 1
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21]


@pytest.mark.full
def test_a_member_that_cannot_ask_does_not_know(group: Group) -> None:
    with group.held_put(lock_timeout_seconds=2):
        group.member.link.cut()
        try:
            answer = group.member.answer()
        finally:
            group.member.link.mend()
    assert answer["error"] == "CommitUnknownError", answer
    assert group.holder.answer()["done"]["version"] == 1
    # Its files stay.
    assert rows(group.table) == [0, 1, 2, 10, 11, 20, 21]
