"""Random locks of several clients on a real server, compared with a model.

CI runs few examples. ``SLUICE_MACHINE_EXAMPLES=2000 pytest tests/integration/test_lock_machine.py`` runs more. Each
negative control replaces the method that acquires the locks of a request. The first one acquires the tables one after
the other, in the request's own order, and must deadlock. The second one polls instead of waiting in the queue, and must
overtake earlier requests.
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
from itertools import combinations
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
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.sessions import end_session

SCHEMA = PartitionSchema((PartitionColumn("y", "integer"), PartitionColumn("m", "integer")))
CLIENTS, TABLES = 4, 3
EXAMPLES = int(os.environ.get("SLUICE_MACHINE_EXAMPLES", "20"))
ENOUGH_EXAMPLES = 200
"""With at least this number of examples, every event must happen."""
WAIT_SECONDS = 20.0
NOWHERE = "127.0.0.1:1"
STUCK = "wait for each other"
EVENTS = (
    "granted", "waited behind another", "acquired again", "acquired again through another manager", "refused at once",
    "timed out while waiting", "holders expired", "holders killed", "waiters killed",
)  # fmt: skip
Partitions = frozenset[tuple[int, ...]] | None
Claim = tuple[int, Partitions, bool]
"""Number of a table, its partitions or None for the whole table, and whether the lock is shared."""

partitions_strategy = st.one_of(
    st.none(),
    st.frozensets(
        st.one_of(st.tuples(st.integers(0, 1)), st.tuples(st.integers(0, 1), st.integers(0, 1))), min_size=1, max_size=3
    ),
)
claims_strategy = st.lists(
    st.tuples(st.integers(0, TABLES - 1), partitions_strategy, st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda claim: claim[0],
)
client_strategy = st.integers(0, CLIENTS - 1)
# Rules use this index modulo the number of candidates. Timing decides which requests are candidates, and must not
# change the values that Hypothesis chooses.
index_strategy = st.integers(0, 11)


def overlap(partitions: Partitions, rival_partitions: Partitions) -> bool:
    if partitions is None or rival_partitions is None:
        return True
    # The values of a year are a prefix of those of its months.
    return any(
        values[: len(rival_values)] == rival_values or rival_values[: len(values)] == values
        for values in partitions
        for rival_values in rival_partitions
    )


@dataclass(eq=False)
class Request:
    """A client's request for locks and its outcome."""

    client: int
    manager: ZookeeperLockManager
    claims: list[Claim]
    thread: threading.Thread | None = None
    holds: list[HeldLock] = field(default_factory=list)
    error: Exception | None = None
    finished: bool = False
    #: Session of its contender for the first table. None before it queues, and when it may have lost its position.
    queued_in: int | None = None
    #: Further acquires of the same hold by the request's thread.
    nested_acquires: int = 0
    uri_of: Callable[[int], str] = str

    @property
    def granted(self) -> bool:
        return bool(self.holds) and not self.finished and not (self.thread and self.thread.is_alive())

    @property
    def waiting(self) -> bool:
        return not self.finished and self.error is None and not self.granted

    def excludes(self, rival: Request) -> bool:
        """Return whether the two requests must not hold their locks at the same time."""
        return any(
            table == rival_table and overlap(partitions, rival_partitions) and not (shared and rival_shared)
            for table, partitions, shared in self.claims
            for rival_table, rival_partitions, rival_shared in rival.claims
        )

    def conflicts_in_first_queue(self, rival: Request) -> bool:
        """Return whether the two requests exclude each other in the queue of the table that both enter first.

        Other queues serve requests in the order of their entries. A request that waits in its first queue enters them
        later.
        """
        table, partitions, shared = min(self.claims, key=self._sort_key)
        rival_table, rival_partitions, rival_shared = min(rival.claims, key=self._sort_key)
        one_locks_the_table = partitions is None or rival_partitions is None
        return table == rival_table and one_locks_the_table and not (shared and rival_shared)

    def _sort_key(self, claim: Claim) -> str:
        return TableResource.of(self.uri_of(claim[0])).uri


class LockMachine(RuleBasedStateMachine):
    """Clients that request locks, wait, hold, cancel, time out, crash and lose their sessions."""

    managers: ClassVar[list[ZookeeperLockManager]]
    killed_managers: ClassVar[list[ZookeeperLockManager]]
    closing_pool: ClassVar[ThreadPoolExecutor]
    counts: ClassVar[Counter[str]]
    observer: ClassVar[KazooClient]
    #: A second manager, which all clients use to acquire their held locks again.
    second_manager: ClassVar[ZookeeperLockManager]
    wait_seconds: ClassVar[float] = WAIT_SECONDS
    acquires_again: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = uuid.uuid4().hex
        self.requests: list[Request] = []
        self.faults: list[str] = []

    # -- actions of the clients --------------------------------------------------------------------------------------

    @rule(client=client_strategy, claims=claims_strategy, repetitions=st.integers(0, 2))
    def acquire(self, client: int, claims: list[Claim], repetitions: int) -> None:
        """Request locks with a long timeout; acquire all or some of them again in the same thread."""
        request = self.new_request(client, claims)
        earlier_acquisitions = list(request.manager._acquisitions)

        def run() -> None:
            try:
                self.acquire_claims(request, WAIT_SECONDS * 10)
                self.check_the_order(request)
                for number in range(repetitions if self.acquires_again else 0):
                    table, partitions, shared = request.claims[number % len(request.claims)]
                    self.acquire_claims_again(request, self.scopes((table, partitions, shared or number > 0)))
            except (LockCancelledError, LockTimeoutError, LockLostError, ClosedError) as error:
                request.error = error
            except AssertionError as error:
                self.faults.append(str(error))

        request.thread = threading.Thread(target=run, daemon=True)
        self.requests.append(request)
        request.thread.start()
        self.eventually(
            lambda: not request.waiting or self.is_queued(request, earlier_acquisitions), "the request is queued"
        )
        self.counts["waited behind another"] += any(
            earlier.waiting and earlier.conflicts_in_first_queue(request) for earlier in self.requests[:-1]
        )
        request.queued_in = request.manager._session.session_id

    @rule(crowd=st.lists(st.tuples(client_strategy, claims_strategy, st.integers(0, 2)), min_size=3, max_size=6))
    def acquire_in_a_crowd(self, crowd: list[tuple[int, list[Claim], int]]) -> None:
        for client, claims, repetitions in crowd:
            self.acquire(client, claims, repetitions)

    @rule(client=client_strategy, claims=claims_strategy, seconds=st.sampled_from((0.0, 0.03, 0.15)))
    def try_to_acquire(self, client: int, claims: list[Claim], seconds: float) -> None:
        """Request locks with a short timeout, or without waiting."""
        request = self.new_request(client, claims)
        rivals = [rival for rival in self.requests if rival.waiting or rival.granted]
        try:
            self.acquire_claims(request, seconds)
        except LockTimeoutError as error:
            self.counts["timed out while waiting" if seconds else "refused at once"] += 1
            # Without a number of contenders ahead, the request has timed out before it got an answer.
            has_answer = error.ahead is not None
            assert not has_answer or any(request.excludes(rival) for rival in rivals), (request.claims, error)  # noqa: PT017
        except EnsembleUnavailableError:
            assert seconds > 0, "a request that does not wait got no answer"
        else:
            self.check_the_order(request)
            assert not any(rival.granted and request.excludes(rival) for rival in self.requests)
        finally:
            # The negative control may have acquired some of the locks before it failed.
            self.release_all(request)

    @rule(index=index_strategy)
    def release(self, index: int) -> None:
        granted_requests = [request for request in self.requests if request.granted]
        if granted_requests:
            self.release_all(granted_requests[index % len(granted_requests)])

    @rule(index=index_strategy)
    def cancel(self, index: int) -> None:
        waiting_requests = [request for request in self.requests if request.waiting]
        if waiting_requests:
            cancelled_request = waiting_requests[index % len(waiting_requests)]
            table = cancelled_request.claims[0][0]
            for request in waiting_requests:
                if request.manager is cancelled_request.manager and any(
                    number == table for number, _, _ in request.claims
                ):
                    request.queued_in = None
            cancelled_request.manager.cancel(self.uri(table))

    @rule(index=index_strategy)
    def expire(self, index: int) -> None:
        """End a client's session: its holds are lost, and its waiting requests join the queues again."""
        manager = self.managers[self.choose_client(index)]
        holders = [request for request in self.requests if request.manager is manager and request.granted]
        for request in self.requests:
            if request.manager is manager:
                request.queued_in = None
        session = manager._session.client.client_id
        if session is None:
            return
        end_session(self.observer.hosts_text, session)
        for holder in holders:
            self.eventually(lambda holder=holder: any(hold.lost for hold in holder.holds), "the loss is known")
            holder.finished = True
            self.counts["holders expired"] += 1

    @rule(index=index_strategy)
    def kill(self, index: int) -> None:
        """Disconnect a client for good, as if its machine had crashed; end its session and start another client."""
        client = self.choose_client(index)
        manager = self.managers[client]
        session = manager._session.client.client_id
        if session is None:
            return
        for request in self.requests:
            if request.manager is manager:
                self.counts["holders killed"] += request.granted
                self.counts["waiters killed"] += request.waiting
                request.queued_in, request.finished = None, True
        manager._session.client.set_hosts(NOWHERE)
        connection = manager._session.client._connection._socket
        with suppress(OSError, AttributeError):
            connection.shutdown(socket.SHUT_RDWR)
        end_session(self.observer.hosts_text, session)
        self.killed_managers.append(manager)
        self.closing_pool.submit(manager.close)
        self.managers[client] = ZookeeperLockManager(self.observer.hosts_text, 60, session_timeout_seconds=20)
        self.managers[client].connect()

    # -- invariants --------------------------------------------------------------------------------------------------

    @invariant()
    def conflicting_requests_do_not_hold_together(self) -> None:
        granted_requests = [request for request in self.requests if request.granted]
        holders = [request for request in granted_requests if not any(hold.lost for hold in request.holds)]
        for request, rival in combinations(holders, 2):
            # A client whose session ends while it gets the lock learns of the loss a moment later, unless it checks.
            both_hold = request.excludes(rival) and self.is_valid(request) and self.is_valid(rival)
            assert not both_hold, (request.claims, rival.claims)

    @invariant()
    def no_request_records_a_fault(self) -> None:
        assert not self.faults, self.faults

    @invariant()
    def a_request_without_rivals_is_granted(self) -> None:
        for request in self.requests:
            rivals = [rival for rival in self.requests if rival is not request and (rival.waiting or rival.granted)]
            if request.waiting and not any(request.excludes(rival) for rival in rivals):
                self.eventually(lambda request=request: not request.waiting, f"{request.claims} is granted")

    def teardown(self) -> None:
        """Release all holds in any order. Every waiting request must be granted, and no contender may remain."""
        deadline = time.monotonic() + self.wait_seconds
        stuck_requests = []
        while waiting_requests := [request for request in self.requests if request.waiting]:
            for request in self.requests:
                if request.granted:
                    self.release_all(request)
            if time.monotonic() > deadline:
                stuck_requests = waiting_requests
                break
            time.sleep(0.002)
        for request in stuck_requests:
            for table, _, _ in request.claims:
                request.manager.cancel(self.uri(table))
        for request in self.requests:
            if request.thread is not None and request.manager not in self.killed_managers:
                request.thread.join(self.wait_seconds)
                self.release_all(request)
        self.no_request_records_a_fault()
        self.counts[STUCK] += len(stuck_requests)
        assert not stuck_requests, (
            f"these requests wait for each other: {[request.claims for request in stuck_requests]}"
        )
        znodes = [LockZnodes(self.observer, self.uri(table)) for table in range(TABLES)]
        self.eventually(lambda: not any(table.all_contenders() for table in znodes), "no contender remains")

    # -- helpers -----------------------------------------------------------------------------------------------------

    def uri(self, table: int) -> str:
        return f"s3://lake/{self.folder}/{table}"

    def new_request(self, client: int, claims: list[Claim]) -> Request:
        return Request(client, self.managers[client], claims, uri_of=self.uri)

    def acquire_claims(self, request: Request, seconds: float) -> None:
        scopes = self.scopes(*request.claims)
        request.holds.append(request.manager.acquire_all(scopes, timeout_seconds=seconds))

    def acquire_claims_again(self, request: Request, scopes: list[TableScope]) -> None:
        """Acquire held scopes again, through the client's manager and the second manager."""
        if self.second_manager_returns_the_hold(request, scopes):
            request.nested_acquires += 1
            self.counts["acquired again through another manager"] += 1
        hold = request.manager.acquire_all(scopes, timeout_seconds=WAIT_SECONDS * 10)
        if hold is request.holds[0]:
            request.nested_acquires += 1
            self.counts["acquired again"] += 1
        else:
            assert request.holds[0].lost, "a thread that holds the lock got another hold"
            request.holds.append(hold)

    def second_manager_returns_the_hold(self, request: Request, scopes: list[TableScope]) -> bool:
        """Acquire held scopes at once through the second manager; return whether it returned the same hold."""
        try:
            hold = self.second_manager.acquire_all(scopes, timeout_seconds=0)
        except LockTimeoutError:
            hold = None
        if hold is not request.holds[0]:
            assert request.holds[0].lost, "the second manager did not return the hold of a thread that holds the lock"
            if hold is not None:
                hold.release()
        return hold is request.holds[0]

    def is_queued(self, request: Request, earlier_acquisitions: list[Acquisition]) -> bool:
        acquisitions = list(request.manager._acquisitions)
        return any(acquisition._entries for acquisition in acquisitions if acquisition not in earlier_acquisitions)

    def check_the_order(self, request: Request) -> None:
        """Record a fault if an earlier request still waits, and excludes this one in the first queue of both."""
        self.counts["granted"] += 1
        for earlier in self.requests:
            if earlier is request:
                break
            in_queue = earlier.queued_in is not None and earlier.queued_in == earlier.manager._session.session_id
            if in_queue and earlier.waiting and not earlier.holds and earlier.conflicts_in_first_queue(request):
                self.faults.append(f"{earlier.claims} was overtaken by {request.claims}")

    @staticmethod
    def is_valid(request: Request) -> bool:
        try:
            for hold in request.holds:
                hold.check()
        except LockLostError:
            return False
        return True

    def choose_client(self, index: int) -> int:
        """Choose a client, if possible one that holds or waits."""
        busy_clients = [request.client for request in self.requests if request.granted or request.waiting]
        return busy_clients[index % len(busy_clients)] if busy_clients else index % CLIENTS

    def scopes(self, *claims: Claim) -> list[TableScope]:
        scopes = []
        for table, partitions, shared in claims:
            table_partitions = (
                None
                if partitions is None
                else [SCHEMA.partition(dict(zip("ym", values, strict=False))) for values in partitions]
            )
            scopes.append(TableScope.of(TableResource.of(self.uri(table)), table_partitions, shared=shared))
        return scopes

    def release_all(self, request: Request) -> None:
        request.finished = True
        holds, request.holds = request.holds, []
        for hold in holds:
            for _ in range(1 + (request.nested_acquires if hold is holds[0] else 0)):
                with suppress(LockLostError):
                    hold.release()

    def eventually(self, condition: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + self.wait_seconds
        while not condition():
            if time.monotonic() > deadline:
                self.counts[STUCK] += 1
                raise AssertionError(f"not within {self.wait_seconds:g} s: {description}")
            time.sleep(0.002)


class UnorderedMachine(LockMachine):
    """Negative control: a request acquires its tables one after the other, in the request's own order."""

    wait_seconds: ClassVar[float] = 3.0
    acquires_again: ClassVar[bool] = False

    def acquire_claims(self, request: Request, seconds: float) -> None:
        for scope in self.scopes(*request.claims):
            request.holds.append(request.manager.acquire_all([scope], timeout_seconds=seconds))
            if request.thread is not None:
                time.sleep(0.02)

    def check_the_order(self, request: Request) -> None:
        """Do nothing: such a request has no single position in a queue."""


class PollingMachine(LockMachine):
    """Negative control: a request that is not granted at once is repeated later, and waits in no queue."""

    def acquire_claims(self, request: Request, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return super().acquire_claims(request, 0)
            except LockTimeoutError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(random.random() * 0.05)

    def is_queued(self, *_: object) -> bool:
        return True


@pytest.fixture
def clients(zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connect the clients of LockMachine and of its subclasses."""
    guard_registry.declare_guard_installed(lambda _: SCHEMA)
    managers = [ZookeeperLockManager(zookeeper.hosts, 60, session_timeout_seconds=20) for _ in range(CLIENTS)]
    second_manager = ZookeeperLockManager(zookeeper.hosts, 60)
    for manager in (*managers, second_manager):
        manager.connect()
    with connected_client(zookeeper.hosts) as observer:
        observer.hosts_text = zookeeper.hosts
        state = {
            "managers": managers,
            "killed_managers": [],
            "counts": Counter(),
            "closing_pool": ThreadPoolExecutor(16),
            "observer": observer,
            "second_manager": second_manager,
        }
        for name, value in state.items():
            monkeypatch.setattr(LockMachine, name, value, raising=False)
        yield
        guard_registry.declare_guard_installed(None)
        LockMachine.closing_pool.shutdown()
        for manager in (*managers, second_manager):
            manager.close()


def run(machine: type[LockMachine], examples: int, **options: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


@pytest.mark.usefixtures("clients")
def test_conflicting_holds_never_overlap_and_no_request_is_stuck() -> None:
    run(LockMachine, EXAMPLES)
    counts = LockMachine.counts
    print(EXAMPLES, "examples:", dict(counts))  # noqa: T201 (a soak reports its counts)
    # Hypothesis leaves out some rules in each example, so a few examples may miss an event.
    assert EXAMPLES < ENOUGH_EXAMPLES or min(counts[event] for event in EVENTS) > 0, counts


@pytest.mark.usefixtures("clients")
def test_negative_control_without_an_order_requests_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise an acquire against the order of tables raises LockOrderError instead of waiting in a deadlock.
    monkeypatch.setattr(ZookeeperLockManager, "_enter_hold_again", lambda *_: None)
    # The deadlock depends on timing. Hypothesis raises Flaky if a repetition does not reproduce it.
    with pytest.raises((AssertionError, Flaky)):
        run(UnorderedMachine, 300, phases=[Phase.generate])
    assert UnorderedMachine.counts[STUCK] > 0


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize(("machine_class", "overtakes"), [(LockMachine, False), (PollingMachine, True)])
def test_negative_control_without_a_queue_requests_are_overtaken(
    machine_class: type[LockMachine], *, overtakes: bool
) -> None:
    rounds, faults = 0, 0
    while rounds < 10 or (overtakes and not faults and rounds < 100):
        rounds += 1
        machine = machine_class()
        for client in range(CLIENTS):
            machine.acquire(client, [(0, None, False)], 0)
        while any(request.waiting for request in machine.requests):
            machine.release(0)
            time.sleep(0.002)
        faults += len(machine.faults)
        machine.faults.clear()
        machine.teardown()
    assert (faults > 0) is overtakes, rounds
