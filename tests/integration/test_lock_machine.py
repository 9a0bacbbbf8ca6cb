"""Many clients, random tables and partitions, against a real server, compared with a model.

``SLUICE_MACHINE_EXAMPLES=2000 pytest tests/integration/test_lock_machine.py`` runs as many examples; CI runs fewer. Two
negative controls: one takes the same tables one by one, in the order in which they were named, and has to block for
good; one asks again and again instead of waiting in the queue, and has to overtake.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kazoo.client import KazooClient

from lock_manager import (
    ClosedError,
    EnsembleUnavailableError,
    HeldLock,
    LockCancelledError,
    LockLostError,
    LockTimeoutError,
    PartitionColumn,
    PartitionSchema,
    TableResource,
    TableScope,
    ZookeeperLockManager,
    guard_registry,
)
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.znodes import table_node
from tests.support.sessions import end_session

ROOT = "/locks/delta_tables"
SCHEMA = PartitionSchema((PartitionColumn("y", "integer"), PartitionColumn("m", "integer")))
CLIENTS, TABLES = 4, 3
EXAMPLES = int(os.environ.get("SLUICE_MACHINE_EXAMPLES", "20"))
ENOUGH = 200
PATIENCE = 20.0
NOWHERE = "127.0.0.1:1"
STUCK = "wait for each other"
KINDS = (
    "granted", "stood behind another", "taken again", "taken again through another manager", "refused at once",
    "timed out while waiting", "holders expired", "holders killed", "waiters killed",
)  # fmt: skip
Parts = frozenset[tuple[int, ...]] | None

parts = st.one_of(
    st.none(),
    st.frozensets(
        st.one_of(st.tuples(st.integers(0, 1)), st.tuples(st.integers(0, 1), st.integers(0, 1))), min_size=1, max_size=3
    ),
)
wishes = st.lists(
    st.tuples(st.integers(0, TABLES - 1), parts, st.booleans()), min_size=1, max_size=3, unique_by=lambda wish: wish[0]
)


def overlap(one: Parts, other: Parts) -> bool:
    if one is None or other is None:
        return True
    return any(a[: len(b)] == b or b[: len(a)] == a for a in one for b in other)


@dataclass(eq=False)
class Wish:
    """What somebody asked for, and what became of it."""

    client: int
    manager: ZookeeperLockManager
    wanted: list[tuple[int, Parts, bool]]
    thread: threading.Thread | None = None
    holds: list[HeldLock] = field(default_factory=list)
    error: Exception | None = None
    over: bool = False
    #: Session in which it stands in the queue of its first table; None before, and when it may have lost its place.
    queued_in: int | None = None
    #: Acquires beyond the first, by the thread that has it.
    again: int = 0
    uri_of: Callable[[int], str] = str

    @property
    def granted(self) -> bool:
        return bool(self.holds) and not self.over and not (self.thread and self.thread.is_alive())

    @property
    def waiting(self) -> bool:
        return not self.over and self.error is None and not self.granted

    def excludes(self, other: Wish) -> bool:
        """Tell whether the two may not hold at once."""
        return any(a == b and overlap(p, q) and not (s and t) for a, p, s in self.wanted for b, q, t in other.wanted)

    def is_served_before(self, other: Wish) -> bool:
        """Tell whether the two exclude each other where both queue first, in the queue of their first table.

        Elsewhere the order is that of entering that queue, which who waits before does later.
        """
        (a, p, s), (b, q, t) = min(self.wanted, key=self._order), min(other.wanted, key=self._order)
        either_is_whole = p is None or q is None
        return a == b and either_is_whole and not (s and t)

    def _order(self, each: tuple[int, Parts, bool]) -> str:
        return TableResource.of(self.uri_of(each[0])).uri


class LockMachine(RuleBasedStateMachine):
    """Clients that ask, wait, hold, cancel, give up, crash and lose their sessions."""

    managers: ClassVar[list[ZookeeperLockManager]]
    dead: ClassVar[list[ZookeeperLockManager]]
    undertaker: ClassVar[ThreadPoolExecutor]
    seen: ClassVar[Counter[str]]
    look: ClassVar[KazooClient]
    #: A second manager for every client, with which it takes again what it has.
    beside: ClassVar[ZookeeperLockManager]
    patience: ClassVar[float] = PATIENCE
    nests: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.mark = uuid.uuid4().hex
        self.wishes: list[Wish] = []
        self.faults: list[str] = []

    # -- what the clients do ---------------------------------------------------------------------------------------

    @rule(client=st.integers(0, CLIENTS - 1), wanted=wishes, again=st.integers(0, 2))
    def ask(self, client: int, wanted: list[tuple[int, Parts, bool]], again: int) -> None:
        """Wait as long as it takes; who has it may take it again, or a part of it, and gives it back as often."""
        wish = self.wish(client, wanted)
        known = list(wish.manager._acquisitions)

        def acquire() -> None:
            try:
                self.take(wish, PATIENCE * 10)
                self.look_who_was_before(wish)
                for number in range(again if self.nests else 0):
                    table, parts, shared = wish.wanted[number % len(wish.wanted)]
                    held = self.scopes(wish, (table, parts, shared or number > 0))
                    if self.is_had_beside(wish, held):
                        wish.again += 1
                        self.seen["taken again through another manager"] += 1
                    hold = wish.manager.acquire_all(held, timeout_seconds=PATIENCE * 10)
                    if hold is wish.holds[0]:
                        wish.again += 1
                        self.seen["taken again"] += 1
                    else:
                        assert wish.holds[0].lost, "had it, and got another one"
                        wish.holds.append(hold)
            except (LockCancelledError, LockTimeoutError, LockLostError, ClosedError) as error:
                wish.error = error
            except AssertionError as error:
                self.faults.append(str(error))

        wish.thread = threading.Thread(target=acquire, daemon=True)
        self.wishes.append(wish)
        wish.thread.start()
        self.eventually(lambda: not wish.waiting or self.is_queued(wish, known), "it is queued")
        self.seen["stood behind another"] += any(
            each.waiting and each.is_served_before(wish) for each in self.wishes[:-1]
        )
        wish.queued_in = wish.manager._session.session_id

    @rule(crowd=st.lists(st.tuples(st.integers(0, CLIENTS - 1), wishes, st.integers(0, 2)), min_size=3, max_size=6))
    def ask_in_a_crowd(self, crowd: list[tuple[int, list[tuple[int, Parts, bool]], int]]) -> None:
        for client, wanted, again in crowd:
            self.ask(client, wanted, again)

    @rule(client=st.integers(0, CLIENTS - 1), wanted=wishes, seconds=st.sampled_from((0.0, 0.03, 0.15)))
    def ask_shortly(self, client: int, wanted: list[tuple[int, Parts, bool]], seconds: float) -> None:
        """Wait for a moment only, or not at all."""
        wish = self.wish(client, wanted)
        others = [each for each in self.wishes if each.waiting or each.granted]
        try:
            self.take(wish, seconds)
        except LockTimeoutError as error:
            self.seen["timed out while waiting" if seconds else "refused at once"] += 1
            # Without a word on who is ahead there was no time to get an answer.
            told = error.ahead is not None
            assert not told or any(wish.excludes(each) for each in others), (wish.wanted, error)  # noqa: PT017
        except EnsembleUnavailableError:
            assert seconds > 0, "a try-lock waits for its answer"
        else:
            self.look_who_was_before(wish)
            granted = [each for each in self.wishes if each.granted]
            assert not any(wish.excludes(each) for each in granted)
        finally:
            # The negative control may have some of it.
            self.give_back(wish)

    # Which are granted is a matter of timing, and the choice must not be: so it is by number.
    @rule(number=st.integers(0, 11))
    def release(self, number: int) -> None:
        granted = [wish for wish in self.wishes if wish.granted]
        if granted:
            self.give_back(granted[number % len(granted)])

    @rule(number=st.integers(0, 11))
    def cancel(self, number: int) -> None:
        waiting = [wish for wish in self.wishes if wish.waiting]
        if waiting:
            wish = waiting[number % len(waiting)]
            uri = self.uri(wish.wanted[0][0])
            for each in waiting:
                if each.manager is wish.manager and any(self.uri(table) == uri for table, _, _ in each.wanted):
                    each.queued_in = None
            wish.manager.cancel(uri)

    @rule(number=st.integers(0, 11))
    def expire(self, number: int) -> None:
        """End a client's session; what it held is lost, what it waited for is asked for again."""
        manager = self.managers[self.somebody(number)]
        holding = [wish for wish in self.wishes if wish.manager is manager and wish.granted]
        for wish in self.wishes:
            if wish.manager is manager:
                wish.queued_in = None
        session = manager._session.client.client_id
        if session is None:
            return
        end_session(self.look.hosts_text, session)
        for wish in holding:
            self.eventually(lambda wish=wish: any(hold.lost for hold in wish.holds), "the holder knows that it lost")
            wish.over = True
            self.seen["holders expired"] += 1

    @rule(number=st.integers(0, 11))
    def kill(self, number: int) -> None:
        """Cut a client off for good, as if its machine had died; its session is ended, and another client comes."""
        client = self.somebody(number)
        manager = self.managers[client]
        session = manager._session.client.client_id
        if session is None:
            return
        for wish in self.wishes:
            if wish.manager is manager:
                self.seen["holders killed"] += wish.granted
                self.seen["waiters killed"] += wish.waiting
                wish.queued_in, wish.over = None, True
        manager._session.client.set_hosts(NOWHERE)
        connection = manager._session.client._connection._socket
        with suppress(OSError, AttributeError):
            connection.shutdown(socket.SHUT_RDWR)
        end_session(self.look.hosts_text, session)
        self.dead.append(manager)
        self.undertaker.submit(manager.close)
        self.managers[client] = ZookeeperLockManager(self.look.hosts_text, 60, session_timeout_seconds=20)
        self.managers[client].connect()

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        granted = [wish for wish in self.wishes if wish.granted and not any(hold.lost for hold in wish.holds)]
        for number, one in enumerate(granted):
            for other in granted[number + 1 :]:
                # Whose session ended as it was let in learns of it a moment later, unless it asks.
                both = one.excludes(other) and self.stands(one) and self.stands(other)
                assert not both, (one.wanted, other.wanted)

    @invariant()
    def nobody_is_overtaken(self) -> None:
        assert not self.faults, self.faults

    @invariant()
    def whoever_is_in_nobody_s_way_gets_in(self) -> None:
        for wish in self.wishes:
            others = [each for each in self.wishes if each is not wish and (each.waiting or each.granted)]
            if wish.waiting and not any(wish.excludes(each) for each in others):
                self.eventually(lambda wish=wish: not wish.waiting, f"{wish.wanted} is granted")

    def teardown(self) -> None:
        """Give everything back, in any order: everybody who waits gets in, and nothing is left."""
        deadline = time.monotonic() + self.patience
        stuck = []
        while waiting := [wish for wish in self.wishes if wish.waiting]:
            for wish in self.wishes:
                if wish.granted:
                    self.give_back(wish)
            if time.monotonic() > deadline:
                stuck = waiting
                break
            time.sleep(0.002)
        for wish in stuck:
            for table, _, _ in wish.wanted:
                wish.manager.cancel(self.uri(table))
        for wish in self.wishes:
            if wish.thread is not None and wish.manager not in self.dead:
                wish.thread.join(self.patience)
                self.give_back(wish)
        self.nobody_is_overtaken()
        self.seen[STUCK] += len(stuck)
        assert not stuck, f"wait for each other: {[wish.wanted for wish in stuck]}"
        self.eventually(lambda: not list(self.contenders()), "nothing is left")

    # -- means -----------------------------------------------------------------------------------------------------

    def uri(self, table: int) -> str:
        return f"s3://lake/{self.mark}/{table}"

    def wish(self, client: int, wanted: list[tuple[int, Parts, bool]]) -> Wish:
        return Wish(client, self.managers[client], wanted, uri_of=self.uri)

    def is_had_beside(self, wish: Wish, held: list[TableScope]) -> bool:
        """Take again, at once, through a manager that is not the one which gave it; tell whether it was the same."""
        try:
            hold = self.beside.acquire_all(held, timeout_seconds=0)
        except LockTimeoutError:
            hold = None
        if hold is not wish.holds[0]:
            assert wish.holds[0].lost, "had it, and another manager did not know"
            if hold is not None:
                hold.release()
        return hold is wish.holds[0]

    def is_queued(self, wish: Wish, known: list[Acquisition]) -> bool:
        return any(each._entries for each in list(wish.manager._acquisitions) if each not in known)

    def look_who_was_before(self, wish: Wish) -> None:
        """Note a fault if somebody who stood before has not got what excludes this."""
        self.seen["granted"] += 1
        for each in self.wishes:
            if each is wish:
                break
            stands = each.queued_in is not None and each.queued_in == each.manager._session.session_id
            if stands and each.waiting and not each.holds and each.is_served_before(wish):
                self.faults.append(f"{each.wanted} was overtaken by {wish.wanted}")

    @staticmethod
    def stands(wish: Wish) -> bool:
        try:
            for hold in wish.holds:
                hold.check()
        except LockLostError:
            return False
        return True

    def somebody(self, number: int) -> int:
        """Choose a client, one that holds or waits if there is one."""
        busy = [wish.client for wish in self.wishes if wish.granted or wish.waiting]
        return busy[number % len(busy)] if busy else number % CLIENTS

    def scopes(self, wish: Wish, only: tuple[int, Parts, bool] | None = None) -> list[TableScope]:
        found = []
        for table, wanted, shared in wish.wanted if only is None else [only]:
            named = (
                None if wanted is None else [SCHEMA.partition(dict(zip("ym", each, strict=False))) for each in wanted]
            )
            found.append(TableScope.of(TableResource.of(self.uri(table)), named, shared=shared))
        return found

    def take(self, wish: Wish, seconds: float) -> None:
        wish.holds.append(wish.manager.acquire_all(self.scopes(wish), timeout_seconds=seconds))

    def give_back(self, wish: Wish) -> None:
        wish.over = True
        holds, wish.holds = wish.holds, []
        for hold in holds:
            for _ in range(1 + (wish.again if hold is holds[0] else 0)):
                with suppress(LockLostError):
                    hold.release()

    def contenders(self) -> Iterator[str]:
        def below(path: str) -> Iterator[str]:
            for name in self.look.get_children(path):
                if "lock__" in name:
                    yield f"{path}/{name}"
                elif name != "intents":
                    yield from below(f"{path}/{name}")

        for table in range(TABLES):
            path = table_node(ROOT, TableResource.of(self.uri(table)))
            if self.look.exists(path):
                yield from below(path)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                self.seen[STUCK] += 1
                raise AssertionError(f"not within {self.patience:g} s: {what}")
            time.sleep(0.002)


class UnorderedMachine(LockMachine):
    """The negative control: one table after the other, in the order in which they were named."""

    patience: ClassVar[float] = 3.0
    nests: ClassVar[bool] = False

    def take(self, wish: Wish, seconds: float) -> None:
        for scope in self.scopes(wish):
            wish.holds.append(wish.manager.acquire_all([scope], timeout_seconds=seconds))
            if wish.thread is not None:
                time.sleep(0.02)

    def look_who_was_before(self, wish: Wish) -> None:
        """Who asks for one table after the other has no one place before others."""


class PollingMachine(LockMachine):
    """The other negative control: who does not get it at once asks again later, and stands in no queue."""

    def take(self, wish: Wish, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                return super().take(wish, 0)
            except LockTimeoutError:
                if time.monotonic() > until:
                    raise
                time.sleep(random.random() * 0.05)

    def is_queued(self, *_: object) -> bool:
        return True


@pytest.fixture
def machine(zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LockMachine]]:
    guard_registry.declare_installed(lambda _: SCHEMA)
    look = KazooClient(zookeeper.hosts)
    look.start()
    look.hosts_text = zookeeper.hosts
    managers = [ZookeeperLockManager(zookeeper.hosts, 60, session_timeout_seconds=20) for _ in range(CLIENTS)]
    for manager in managers:
        manager.connect()
    monkeypatch.setattr(LockMachine, "managers", managers, raising=False)
    monkeypatch.setattr(LockMachine, "dead", [], raising=False)
    monkeypatch.setattr(LockMachine, "seen", Counter(), raising=False)
    monkeypatch.setattr(LockMachine, "undertaker", ThreadPoolExecutor(16), raising=False)
    monkeypatch.setattr(LockMachine, "look", look, raising=False)
    beside = ZookeeperLockManager(zookeeper.hosts, 60)
    beside.connect()
    monkeypatch.setattr(LockMachine, "beside", beside, raising=False)
    yield LockMachine
    beside.close()
    guard_registry.declare_installed(None)
    LockMachine.undertaker.shutdown()
    for manager in managers:
        manager.close()
    look.stop()
    look.close()


def run(kind: type[LockMachine], examples: int, **more: Any) -> None:
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


@pytest.mark.usefixtures("machine")
def test_conflicting_holds_never_overlap_nobody_blocks_for_good_and_nothing_is_left() -> None:
    run(LockMachine, EXAMPLES)
    seen = LockMachine.seen
    print(EXAMPLES, "examples:", dict(seen))  # noqa: T201 (a soak tells its counts)
    # Hypothesis leaves out some rules in each example: a few examples may miss one.
    assert EXAMPLES < ENOUGH or min(seen[kind] for kind in KINDS) > 0, seen


@pytest.mark.usefixtures("machine")
def test_negative_control_without_an_order_some_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZookeeperLockManager, "_enter_held", lambda *_: None)
    # It is a matter of timing, so that Hypothesis may not see it a second time, which it calls flaky.
    with pytest.raises((AssertionError, Flaky)):
        run(UnorderedMachine, 300, phases=[Phase.generate])
    assert UnorderedMachine.seen[STUCK] > 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("kind", "overtakes"), [(LockMachine, False), (PollingMachine, True)])
def test_negative_control_without_a_queue_some_are_overtaken(kind: type[LockMachine], *, overtakes: bool) -> None:
    turns, faults = 0, 0
    while turns < 10 or (overtakes and not faults and turns < 100):
        turns += 1
        machine = kind()
        for client in range(CLIENTS):
            machine.ask(client, [(0, None, False)], 0)
        while any(wish.waiting for wish in machine.wishes):
            machine.release(0)
            time.sleep(0.002)
        faults += len(machine.faults)
        machine.faults.clear()
        machine.teardown()
    assert (faults > 0) is overtakes, turns
