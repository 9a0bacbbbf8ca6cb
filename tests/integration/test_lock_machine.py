"""Many clients, random tables and partitions, against a real server, compared with a model.

``SLUICE_MACHINE_EXAMPLES=2000 pytest tests/integration/test_lock_machine.py`` runs as many examples; CI runs fewer. The
negative control takes the same tables one by one, in the order in which they were named: it has to block for good.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kazoo.client import KazooClient

from lock_manager import (
    HeldLock,
    LockCancelledError,
    LockLostError,
    LockTimeoutError,
    PartitionColumn,
    PartitionSchema,
    TableResource,
    TableScope,
    ZookeeperLockManager,
    installed,
)

ROOT = "/locks/delta_tables"
SCHEMA = PartitionSchema((PartitionColumn("y", "integer"), PartitionColumn("m", "integer")))
CLIENTS, TABLES = 4, 3
EXAMPLES = int(os.environ.get("SLUICE_MACHINE_EXAMPLES", "25"))
PATIENCE = 20.0
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
    wanted: list[tuple[int, Parts, bool]]
    thread: threading.Thread | None = None
    holds: list[HeldLock] = field(default_factory=list)
    error: Exception | None = None
    over: bool = False

    @property
    def granted(self) -> bool:
        return bool(self.holds) and not self.over and not (self.thread and self.thread.is_alive())

    @property
    def waiting(self) -> bool:
        return not self.over and self.error is None and not self.granted

    def excludes(self, other: Wish) -> bool:
        """Tell whether the two may not hold at once."""
        return any(a == b and overlap(p, q) and not (s and t) for a, p, s in self.wanted for b, q, t in other.wanted)


class LockMachine(RuleBasedStateMachine):
    """Clients that ask, wait, hold, cancel, give up, crash and lose their sessions."""

    managers: ClassVar[list[ZookeeperLockManager]]
    look: ClassVar[KazooClient]
    patience: ClassVar[float] = PATIENCE

    def __init__(self) -> None:
        super().__init__()
        self.mark = uuid.uuid4().hex
        self.wishes: list[Wish] = []

    # -- what the clients do ---------------------------------------------------------------------------------------

    @rule(client=st.integers(0, CLIENTS - 1), wanted=wishes)
    def ask(self, client: int, wanted: list[tuple[int, Parts, bool]]) -> None:
        wish = Wish(client, wanted)

        def acquire() -> None:
            try:
                self.take(wish, PATIENCE * 10)
            except (LockCancelledError, LockTimeoutError, LockLostError) as error:
                wish.error = error

        wish.thread = threading.Thread(target=acquire, daemon=True)
        self.wishes.append(wish)
        wish.thread.start()

    @rule(client=st.integers(0, CLIENTS - 1), wanted=wishes)
    def try_now(self, client: int, wanted: list[tuple[int, Parts, bool]]) -> None:
        wish = Wish(client, wanted)
        others = [each for each in self.wishes if each.waiting or each.granted]
        try:
            self.take(wish, 0)
        except LockTimeoutError:
            assert any(wish.excludes(each) for each in others)
        else:
            granted = [each for each in self.wishes if each.granted]
            assert not any(wish.excludes(each) for each in granted)
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
            self.managers[wish.client].cancel(self.uri(wish.wanted[0][0]))

    @rule(client=st.integers(0, CLIENTS - 1))
    def expire(self, client: int) -> None:
        """End a client's session; what it held is lost, what it waited for is asked for again."""
        manager = self.managers[client]
        holding = [wish for wish in self.wishes if wish.client == client and wish.granted]
        session = manager._session.client.client_id
        if session is None:
            return
        thief = KazooClient(self.look.hosts_text, client_id=session)
        thief.start()
        thief.stop()
        thief.close()
        for wish in holding:
            self.eventually(lambda wish=wish: any(hold.lost for hold in wish.holds), "the holder knows that it lost")
            wish.over = True

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        granted = [wish for wish in self.wishes if wish.granted and not any(hold.lost for hold in wish.holds)]
        for number, one in enumerate(granted):
            for other in granted[number + 1 :]:
                assert not one.excludes(other), (one.wanted, other.wanted)

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
                self.managers[wish.client].cancel(self.uri(table))
        for wish in self.wishes:
            if wish.thread is not None:
                wish.thread.join(self.patience)
            self.give_back(wish)
        assert not stuck, f"wait for each other: {[wish.wanted for wish in stuck]}"
        self.eventually(lambda: not list(self.contenders()), "nothing is left")

    # -- means -----------------------------------------------------------------------------------------------------

    def uri(self, table: int) -> str:
        return f"s3://lake/{self.mark}/{table}"

    def scopes(self, wish: Wish) -> list[TableScope]:
        found = []
        for table, wanted, shared in wish.wanted:
            named = (
                None if wanted is None else [SCHEMA.partition(dict(zip("ym", each, strict=False))) for each in wanted]
            )
            found.append(TableScope.of(TableResource.of(self.uri(table)), named, shared=shared))
        return found

    def take(self, wish: Wish, seconds: float) -> None:
        wish.holds.append(self.managers[wish.client].acquire_all(self.scopes(wish), timeout_seconds=seconds))

    def give_back(self, wish: Wish) -> None:
        wish.over = True
        holds, wish.holds = wish.holds, []
        for hold in holds:
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
            path = TableResource.of(self.uri(table)).znode(ROOT)
            if self.look.exists(path):
                yield from below(path)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, f"not within {self.patience:g} s: {what}"
            time.sleep(0.002)


class UnorderedMachine(LockMachine):
    """The negative control: one table after the other, in the order in which they were named."""

    patience: ClassVar[float] = 3.0

    def take(self, wish: Wish, seconds: float) -> None:
        manager = self.managers[wish.client]
        for scope in self.scopes(wish):
            wish.holds.append(manager.acquire_all([scope], timeout_seconds=seconds))
            if wish.thread is not None:
                time.sleep(0.02)


@pytest.fixture
def machine(zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LockMachine]]:
    installed.declare_installed(lambda _: SCHEMA)
    look = KazooClient(zookeeper.hosts)
    look.start()
    look.hosts_text = zookeeper.hosts
    managers = [ZookeeperLockManager(zookeeper.hosts, 60, session_timeout_seconds=4) for _ in range(CLIENTS)]
    for manager in managers:
        manager.connect()
    monkeypatch.setattr(LockMachine, "managers", managers, raising=False)
    monkeypatch.setattr(LockMachine, "look", look, raising=False)
    yield LockMachine
    installed.declare_installed(None)
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


@pytest.mark.usefixtures("machine")
def test_negative_control_without_an_order_some_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZookeeperLockManager, "_held_already", lambda *_: None)
    with pytest.raises(AssertionError, match=r"wait for each other|not within"):
        run(UnorderedMachine, 300, phases=[Phase.generate])
