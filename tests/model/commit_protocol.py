"""The commit protocol as a state machine, searched breadth first.

Processes write to one table. Each has one hold, and threads that execute operations under it. A session may expire, a
process may die, a reply of the store may be lost, and a put may arrive late, each at any step. The search visits every
state, and checks the promises of docs/develop.md in each one. ``RULES`` names the code that implements each step. A
protection that is switched off has to break its promise, and no other one.

    python -m tests.model.commit_protocol    # for each protection, the shortest way to break its promise without it

In a group commit, a holder puts the operations of waiting contenders (members) together with its own, and then removes
the members from the queue. A light commit begins with a version that may be older than the newest one.

The model has no shared and partition locks, no second table, no automatic tickets and no repeated operations.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

ONE_WINNER, IN_ORDER, NO_ZOMBIE = "1. one winner", "2. in order", "3. no zombie"
NO_LOSS, NO_LEAK, ISOLATION = "4. no silent loss", "5. no deadlock, no leak", "isolation"


class Protection(NamedTuple):
    """A part of the protocol that can be switched off.

    Attributes:
        promise: The promise that breaks without it.
        code: The code that implements it, as in ``RULES``.

    """

    promise: str
    code: str


#: The protections of every commit.
PROTECTIONS = {
    # A put creates a version only if it does not exist.
    "conditional put": Protection(ONE_WINNER, "PutIfAbsent.java:void put(Path path"),
    # Only the first contender of the queue holds the lock.
    "queue": Protection(IN_ORDER, "lock_manager.zookeeper.znodes:conflicting_predecessors"),
    # The guard confirms the hold after the version is chosen.
    "confirmed hold": Protection(NO_ZOMBIE, "lock_manager.zookeeper.hold_state:HoldState.confirm"),
    # The request that confirms the hold stores the intent.
    "intent": Protection(NO_ZOMBIE, "lock_manager.zookeeper.hold_intents:HoldIntents.record"),
    # A new holder fills the versions of unfinished intents before it reads.
    "filled intents": Protection(NO_ZOMBIE, "lock_manager.intents:version_to_fill"),
    # The release keeps the intent of a put whose outcome is unknown.
    "kept intent": Protection(NO_ZOMBIE, "lock_manager.zookeeper.hold_intents:HoldIntents.settle"),
    # After an answer other than success, the log store looks whether its own put has the version.
    "recognized commit": Protection(NO_LOSS, "GuardedLogStore.java:Owner owner("),
    # An operation that failed is reported as not committed only if no put of it may still arrive.
    "unknown outcome": Protection(NO_LOSS, "writer_jobs.commit.outcome:Outcome._may_still_be_put"),
    # Only a commit with the write id of the operation proves that the operation is in the table.
    "write id": Protection(NO_LOSS, "writer_jobs.delta.table_log:DeltaTableLog.find_commit"),
    # An empty commit that fills a version has no write id.
    "empty commit without write id": Protection(
        NO_LOSS, "lock_manager.guard.guarded_block:GuardedBlock.for_empty_commit"
    ),
    # A later operation of a hold fills the versions of the hold's puts that got no answer, before it reads.
    "unanswered puts": Protection(NO_ZOMBIE, "lock_manager.guard.guarded_block:GuardedBlock.unanswered_intents"),
    # The session's end removes the contender.
    "ephemeral contender": Protection(NO_LEAK, "lock_manager.zookeeper.queue:Acquisition._join_queues"),
    # Delta checks for conflicts with the commits since the operation read the table, when its version is taken.
    "conflict check": Protection(ISOLATION, "GuardedLogStore.java:void throwIfTaken("),
    # That check of a light commit begins with the version that the commit has read, not with the newest one.
    "light conflict check": Protection(
        ISOLATION, "LightTransaction.java:private LightTransaction(DeltaLog log, Snapshot snapshot"
    ),
}
#: The protections of group commits.
GROUP_PROTECTIONS = {
    # The request that stores the intent requires that each member is still in the queue.
    "member in the queue": Protection(NO_LOSS, "lock_manager.zookeeper.hold_contenders:HoldContenders.send_check"),
    # The intent names the members of the put.
    "named members": Protection(NO_LOSS, "lock_manager.zookeeper.hold_intents:HoldIntents._data"),
    # A member looks for its operation in the log before it commits it, and before it reports that it is not committed.
    "member looks": Protection(NO_LOSS, "LightTransaction.java:void throwIfCommitted("),
    # A member that has left the queue reads the intents before the log.
    "intents before log": Protection(NO_LOSS, "writer_jobs.commit.offered_write:OfferedWrite._look"),
    # A member that has a mark of its application, and is committed already, conflicts with itself: it looks then, too.
    "look after a conflict": Protection(
        NO_LOSS, "LightTransaction.java:CurrentTransactionInfo> doCommitRetryIteratively("
    ),
}
#: The protections of group commits that three writers need.
TRIO_PROTECTIONS = {
    # A holder takes no operation that an earlier holder has committed.
    "new members": Protection(NO_LOSS, "lock_manager.guard.group_commit:GroupTerms._fits"),
    # A group ends at the first contender that offers nothing.
    "group ends at another contender": Protection(IN_ORDER, "lock_manager.zookeeper.offers:read_offers"),
    # The members of a version are in the order of the queue.
    "order of members": Protection(IN_ORDER, "lock_manager.zookeeper.offers:read_offers"),
    # A holder takes no member whose mark it commits itself, or has found in a version after the one that it read.
    "marks of members": Protection(ISOLATION, "LightTransaction.java:ObjectNode terms("),
    # A holder takes no marked member that has read an older version: it knows no marks before its own version.
    "older members": Protection(ISOLATION, "lock_manager.guard.group_commit:GroupTerms._fits"),
    # A holder takes only members that were prepared for its metadata.
    "metadata of members": Protection(ISOLATION, "LightTransaction.java:String state("),
}

#: Folder of the Java files that ``RULES`` and the protections name.
JAVA_FOLDER = "log_store/src/io/deltasluice/storage"
#: For each step of a process, the function that implements it: module and name, or Java file and declaration.
RULES = {
    "stage": "writer_jobs.commit.gate:StagedWrite.run",
    "light": "LightTransaction.java:OptimisticTransaction begin(",
    "join": "lock_manager.zookeeper.queue:Acquisition._join_queues",
    "grant": "lock_manager.zookeeper.queue:Acquisition._advance",
    "settle": "lock_manager.guard.guarded_block:GuardedBlock.settle_unfinished",
    "permit": "lock_manager.zookeeper.held_lock:HeldLock.intend",
    "put": "GuardedLogStore.java:void put(",
    "look": "GuardedLogStore.java:Owner owner(",
    "release": "lock_manager.zookeeper.held_lock:HeldLock.release",
    "dismiss": "lock_manager.zookeeper.held_lock:HeldLock.dismiss",
    "notice": "LightTransaction.java:void throwIfCommitted(",
    "ask": "writer_jobs.commit.offered_write:OfferedWrite.resolve",
}


class Commit(NamedTuple):
    """A version in the log.

    Attributes:
        operation: Operation of the holder; empty for an empty commit.
        attempt: Identifies its put.
        members: Operations of the members.

    """

    hold: int
    operation: str
    write_id: str
    attempt: str
    members: tuple[str, ...] = ()


class Intent(NamedTuple):
    """The stored intent of a hold: it may put a version, with the operations of these members."""

    hold: int
    version: int
    members: tuple[str, ...] = ()


class Put(NamedTuple):
    """A request to store a version that may still arrive.

    Attributes:
        thread, remaining: Its sender, and how many operations that thread had left.
        number: Number of the request among those of the same put.

    """

    version: int
    commit: Commit
    thread: int
    number: int
    remaining: int


class Process(NamedTuple):
    """A writer with one hold.

    Attributes:
        hold: Number of the hold, which is also its fencing token; 0 before it has joined the queue.
        is_granted: Whether the process has learned that it holds the lock.
        is_alive: Whether the process runs.
        open: Attempts under the hold whose outcome it does not know, with their versions.
        has_ended: Whether it has released the lock, or found it lost.

    """

    hold: int = 0
    is_granted: bool = False
    is_alive: bool = True
    open: frozenset[tuple[str, int]] = frozenset()
    has_ended: bool = False


class Thread(NamedTuple):
    """A thread that executes operations one after the other.

    Attributes:
        step: Its next step.
        operations: Its operations, the current one first.
        read: Version that the current operation has read.
        checked: Version after which Delta checks it for conflicts.
        version: Version of the current put.
        sent: Number of requests of the current put.
        intents: Unfinished intents that it has read, to be cleared.
        is_filling: Whether the put is that of an empty commit.
        is_unknown: Whether a put of the current operation got no answer.
        queue: Queue of the holds when it read the table.
        members: Operations of the members of the current put.

    """

    process: int
    step: str
    operations: tuple[str, ...]
    read: int = -1
    checked: int = -1
    version: int = -1
    sent: int = 0
    intents: frozenset[Intent] = frozenset()
    is_filling: bool = False
    is_unknown: bool = False
    queue: frozenset[int] = frozenset()
    members: tuple[str, ...] = ()


class State(NamedTuple):
    """A state of the table, the coordinator, the network and the processes.

    Attributes:
        queue: Holds with a contender, in the order of the queue.
        intents: Stored intents.
        newest_reader: The newest hold that has begun to read the table.
        puts: Requests that may still arrive.
        results: Results of operations: ``committed``, ``not committed``, ``unknown``, or ``skipped`` if the table has
            the mark of the operation from another one.

    """

    log: tuple[Commit, ...]
    queue: tuple[int, ...]
    intents: frozenset[Intent]
    newest_reader: int
    puts: frozenset[Put]
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    results: frozenset[tuple[str, str]]


#: What happened, the next state, and the promise that it breaks.
Transition = tuple[str, State, str | None]


@dataclass(frozen=True)
class Scenario:
    """Processes and faults.

    Attributes:
        threads: For each process, the operations of each of its threads.
        staged: Processes that stage their operations before they request the lock.
        readers: Operations that depend on the rows that they have read.
        deaths: Number of processes that may die.
        expiries: Number of sessions that may expire while their process lives.
        most_requests: Number of requests of each put.
        loses_replies: Whether replies of the store may be lost or late.
        marks: Marks (``txn``) of staged operations. A table may have only one operation with a mark.
        alterations: Operations that change the table's metadata, a conflict for every other operation.
        grouped: Staged operations that may be members of a group commit. Each is the only one of its process.
        cancellations: Number of members whose wait may be cancelled.
        protections: Names of the protections that are on.

    """

    threads: tuple[tuple[tuple[str, ...], ...], ...]
    staged: Collection[int] = ()
    readers: Collection[str] = ()
    deaths: int = 1
    expiries: int = 1
    most_requests: int = 2
    loses_replies: bool = True
    marks: Mapping[str, str] = field(default_factory=dict)
    alterations: Collection[str] = ()
    grouped: Collection[str] = ()
    cancellations: int = 0
    protections: frozenset[str] = frozenset({**PROTECTIONS, **GROUP_PROTECTIONS, **TRIO_PROTECTIONS})

    def has(self, protection: str) -> bool:
        """Return whether a protection is on."""
        return protection in self.protections

    def first_state(self) -> State:
        """Return the state with a table of one version."""
        threads = tuple(
            Thread(process, "stage" if process in self.staged else "join", operations)
            for process, lists in enumerate(self.threads)
            for operations in lists
        )
        created = Commit(0, "create", "create", "create")
        processes = tuple(Process() for _ in self.threads)
        return State((created,), (), frozenset(), 0, frozenset(), processes, threads, frozenset())


@dataclass
class Search:
    """The reachable states of a scenario.

    Attributes:
        states: Number of states.
        broken: For each broken promise, the shortest sequence of steps that breaks it.
        steps: Names of the steps that were taken.

    """

    states: int = 0
    broken: dict[str, list[str]] = field(default_factory=dict)
    steps: set[str] = field(default_factory=set)


def search(scenario: Scenario) -> Search:
    """Visit every reachable state, breadth first."""
    result, model = Search(), Model(scenario)
    first = scenario.first_state()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])

    def path_to(state: State, *last: str) -> list[str]:
        path = list(last)
        while (origin := came_from[state]) is not None:
            state, step = origin
            path.insert(0, step)
        return path

    while waiting:
        state = waiting.popleft()
        transitions = list(model.transitions(state))
        if not transitions and (problem := model.leak(state)):
            result.broken.setdefault(NO_LEAK, path_to(state, problem))
        for step, following, broken in transitions:
            result.steps.add(step.split(":")[0])
            if broken is not None and broken not in result.broken:
                result.broken[broken] = path_to(state, step)
            if broken is None and following not in came_from:
                came_from[following] = state, step
                waiting.append(following)
    result.states = len(came_from)
    return result


class Model:
    """The steps that are possible in a state."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._has = scenario.has
        self._process_of = {
            operation: process
            for process, lists in enumerate(scenario.threads) for operations in lists for operation in operations
        }  # fmt: skip

    def transitions(self, state: State) -> Iterator[Transition]:
        """Yield each step that is possible, with the promise that it breaks."""
        for step, following, broken in self._steps(state):
            yield step, following, broken or self._wrong_result(following)

    def leak(self, state: State) -> str | None:
        """Return which contender or thread remains in a state without further steps; None if none does."""
        if state.queue:
            return f"the contenders {state.queue} stay"
        for number, thread in enumerate(state.threads):
            if thread.operations and state.processes[thread.process].is_alive:
                return f"thread {number} waits for ever at {thread.step}"
        return None

    def _wrong_result(self, state: State) -> str | None:
        stored = _operations(state.log)
        if len(stored) > len(set(stored)):
            return NO_LOSS
        for operation, result in state.results:
            is_wrong = result != "unknown" and (operation in stored) != (result == "committed")
            if is_wrong or (result == "skipped" and not self._have_mark(stored, operation)):
                return NO_LOSS
        return None

    def _have_mark(self, operations: Iterable[str], operation: str) -> bool:
        """Return whether one of ``operations`` has the mark of ``operation``."""
        marks = self._scenario.marks
        return operation in marks and any(marks.get(stored) == marks[operation] for stored in operations)

    def _conflict(self, later: Collection[str], operation: str) -> bool:
        """Return whether later operations are conflicts for an operation."""
        change_rows = bool(later) and operation in self._scenario.readers
        return change_rows or self._change_metadata(later) or self._have_mark(later, operation)

    def _change_metadata(self, operations: Iterable[str]) -> bool:
        return any(operation in self._scenario.alterations for operation in operations)

    def _steps(self, state: State) -> Iterator[Transition]:
        for number, process in enumerate(state.processes):
            yield from self._process_steps(state, number, process)
        for number, thread in enumerate(state.threads):
            if thread.operations and state.processes[thread.process].is_alive:
                yield from self._thread_steps(state, number, thread)
        for put in state.puts:
            yield from self._arrivals(state, put)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _process_steps(self, state: State, number: int, process: Process) -> Iterator[Transition]:
        threads = [thread for thread in state.threads if thread.process == number]
        in_queue = process.hold in state.queue
        if process.is_alive and not process.hold and all(thread.step == "join" for thread in threads):
            hold = 1 + max(writer.hold for writer in state.processes)
            joined = _with_process(state, number, process._replace(hold=hold))
            yield f"join:{number}", joined._replace(queue=(*state.queue, hold)), None
        if process.is_alive and in_queue and not process.is_granted:
            is_first = state.queue[0] == process.hold
            if is_first or not self._has("queue"):
                granted = _with_process(state, number, process._replace(is_granted=True))
                granted = _with_threads_of(granted, number, step="settle")
                yield f"grant:{number}", granted, None if is_first else IN_ORDER
        if process.is_alive and process.hold and not in_queue and not process.is_granted and not process.has_ended:
            yield f"loss:{number}", self._lost_wait(state, number, process), None
        yield from self._member_steps(state, number, process, threads)
        yield from self._dismissals(state, number, process)
        is_done = not any(thread.operations for thread in threads)
        if process.is_alive and process.is_granted and not process.has_ended and is_done:
            yield f"release:{number}", self._released(state, number, process), None
        if process.is_alive and process.hold and not process.has_ended:
            deaths = sum(not writer.is_alive for writer in state.processes)
            if deaths < self._scenario.deaths:
                yield f"death:{number}", _with_process(state, number, process._replace(is_alive=False)), None
        if in_queue and self._may_expire(state, process) and self._has("ephemeral contender"):
            yield f"expiry:{number}", state._replace(queue=_without(state.queue, process.hold)), None

    def _member_steps(self, state: State, number: int, process: Process, threads: list[Thread]) -> Iterator[Transition]:
        """A member learns that it is committed, or its wait is cancelled."""
        operations = [operation for thread in threads for operation in thread.operations]
        is_waiting = process.is_alive and process.hold in state.queue and not process.is_granted
        if not is_waiting or not set(operations) & set(self._scenario.grouped):
            return
        after_leaving = self._left(state, number, process)
        if _is_stored(state, operations[0]):
            ended = _with_threads_of(after_leaving, number, operations=())
            yield f"notice:{number}", ended._replace(results=state.results | {(operations[0], "committed")}), None
        cancelled = sum(thread.step in ("left", "asked", "cancelled") for thread in state.threads)
        if cancelled < self._scenario.cancellations:
            yield f"cancel:{number}", after_leaving, None

    def _dismissals(self, state: State, number: int, process: Process) -> Iterator[Transition]:
        """A holder that knows of its commit removes the members from the queue."""
        if not process.is_alive or not process.is_granted or process.has_ended:
            return
        members = {
            operation for commit in state.log
            if commit.hold == process.hold and (commit.operation, "committed") in state.results
            for operation in commit.members
        }  # fmt: skip
        holds = {
            state.processes[thread.process].hold for thread in state.threads
            if members & set(thread.operations) and not state.processes[thread.process].is_granted
        }  # fmt: skip
        waiting = tuple(hold for hold in state.queue if hold not in holds)
        if waiting != state.queue:
            yield f"dismiss:{number}", state._replace(queue=waiting), None

    def _left(self, state: State, number: int, process: Process) -> State:
        """Remove a member from the queue. It does not know whether it is committed."""
        ended = _with_process(state, number, process._replace(has_ended=True))
        return _with_threads_of(ended, number, step="left")._replace(queue=_without(state.queue, process.hold))

    def _may_expire(self, state: State, process: Process) -> bool:
        if not process.is_alive:
            return True
        expired = [
            writer for writer in state.processes
            if writer.is_alive and writer.hold and not writer.has_ended and writer.hold not in state.queue
        ]  # fmt: skip
        return len(expired) < self._scenario.expiries

    def _lost_wait(self, state: State, number: int, process: Process) -> State:
        """End a process that has lost its contender before it got the lock."""
        lost = [thread for thread in state.threads if thread.process == number]
        if any(thread.operations[:1] and thread.operations[0] in self._scenario.grouped for thread in lost):
            return self._left(state, number, process)
        results = {(operation, "not committed") for thread in lost for operation in thread.operations}
        ended = _with_process(state, number, process._replace(has_ended=True))
        return _with_threads_of(ended, number, operations=())._replace(results=state.results | results)

    def _released(self, state: State, number: int, process: Process) -> State:
        intents = state.intents
        if process.hold in state.queue and not (process.open and self._has("kept intent")):
            intents = _without_intent(intents, process.hold)
        released = _with_process(state, number, process._replace(has_ended=True, open=frozenset()))
        return released._replace(queue=_without(state.queue, process.hold), intents=intents)

    # -- threads -------------------------------------------------------------------------------------------------------

    def _thread_steps(self, state: State, number: int, thread: Thread) -> Iterator[Transition]:
        process = state.processes[thread.process]
        name = f"{number} {thread.operations[0]}"
        if thread.step == "stage":
            yield from self._stages(state, number, thread, name)
        elif thread.step == "settle":
            yield f"settle:{name}", self._settled(state, number, thread, process), None
        elif thread.step == "permit":
            for members in self._groups(state, thread, process):
                permitted = self._permitted(state, number, thread._replace(members=members), process)
                yield f"permit:{' '.join((name, *members))}", permitted, None
        elif thread.step == "put":
            commit = self._commit_of(thread, process)
            put = Put(thread.version, commit, number, thread.sent, len(thread.operations))
            sent = _with_thread(state, number, thread._replace(step="sent", sent=thread.sent + 1))
            yield f"put:{name}", sent._replace(puts=state.puts | {put}), None
        elif thread.step == "sent" and self._scenario.loses_replies:
            yield f"timeout:{name}", _with_thread(state, number, thread._replace(step="look")), None
        elif thread.step == "look":
            yield from self._looks(state, number, thread, process, name)
        elif thread.step in ("left", "asked"):
            yield from self._leaves(state, number, thread, name)

    def _stages(self, state: State, number: int, thread: Thread, name: str) -> Iterator[Transition]:
        """Read the table without the lock, and write the data files."""
        newest = len(state.log) - 1
        yield f"stage:{name}", self._staged(state, number, thread, newest), None
        if thread.operations[0] not in self._scenario.readers:
            # The driver does not know the versions of other writers since its last commit.
            for read in range(newest):
                yield f"light:{name} {read}", self._staged(state, number, thread, read), None

    def _staged(self, state: State, number: int, thread: Thread, read: int) -> State:
        """Begin a staged operation with a version."""
        if self._have_mark(_operations(state.log[: read + 1]), thread.operations[0]):
            return self._finished(state, number, thread, "skipped")
        checked = read if self._has("light conflict check") else len(state.log) - 1
        return _with_thread(state, number, thread._replace(step="join", read=read, checked=checked))

    def _leaves(self, state: State, number: int, thread: Thread, name: str) -> Iterator[Transition]:
        """Find out whether a member that has left the queue is committed, or may still be."""
        operation = thread.operations[0]
        reads_intents = (thread.step == "left") == self._has("intents before log")
        if reads_intents and any(operation in intent.members for intent in state.intents):
            yield f"ask:{name} unknown", self._ended_member(state, number, thread, "unknown"), None
        elif not reads_intents and _is_stored(state, operation) and self._has("member looks"):
            yield f"ask:{name} committed", self._ended_member(state, number, thread, "committed"), None
        elif thread.step == "left":
            yield f"ask:{name}", _with_thread(state, number, thread._replace(step="asked")), None
        else:
            yield f"ask:{name} not committed", self._ended_member(state, number, thread, "not committed"), None

    def _ended_member(self, state: State, number: int, thread: Thread, result: str) -> State:
        results = state.results | {(thread.operations[0], result)}
        return _with_thread(state, number, Thread(thread.process, "cancelled", ()))._replace(results=results)

    def _settled(self, state: State, number: int, thread: Thread, process: Process) -> State:
        """Read unfinished intents and unanswered puts: fill a version, or read the table."""
        if process.hold not in state.queue:
            # The request for the intents confirms the hold.
            return self._failed(state, number, thread)
        unfinished = _without_intent(state.intents, process.hold)
        busy = {self._commit_of(sender, process).attempt for sender in state.threads if sender.step in _PUTTING}
        unanswered = [version for attempt, version in process.open if attempt not in busy]
        versions = [intent.version for intent in unfinished] if self._has("filled intents") else []
        if self._has("unanswered puts"):
            versions += unanswered
        thread = thread._replace(intents=unfinished)
        if any(version >= len(state.log) for version in versions):
            filling = thread._replace(step="permit", version=len(state.log), is_filling=True, sent=0)
            return _with_thread(state, number, filling)
        return self._reading(state, number, thread)

    def _reading(self, state: State, number: int, thread: Thread) -> State:
        """Clear the settled intents, and read the table, unless the operation is staged."""
        process = state.processes[thread.process]
        newest = len(state.log) - 1
        still_open = frozenset(attempt for attempt in process.open if attempt[1] > newest)
        if not self._has("unanswered puts"):
            still_open = process.open
        if thread.process not in self._scenario.staged:
            thread = thread._replace(read=newest, checked=newest)
        state = _with_process(state, thread.process, process._replace(open=still_open))
        state = state._replace(
            intents=state.intents - thread.intents, newest_reader=max(state.newest_reader, process.hold)
        )
        is_grouped = thread.operations[0] in self._scenario.grouped
        # Delta checks for conflicts before the log store looks.
        looks = self._has("member looks") and thread.operations[0] not in self._scenario.marks
        if is_grouped and looks and _is_stored(state, thread.operations[0]):
            # An earlier holder has committed the operation.
            return self._finished(state, number, thread, "committed")
        queue = frozenset(state.queue) if is_grouped else frozenset()
        ready = thread._replace(step="permit", is_filling=False, intents=frozenset(), sent=0, queue=queue)
        return _with_thread(state, number, ready)

    def _groups(self, state: State, thread: Thread, process: Process) -> list[tuple[str, ...]]:
        """Return the sets of members that a holder may take along: an offer may be unfit for other reasons, too."""
        groups: list[tuple[str, ...]] = [()]
        if thread.is_filling or thread.operations[0] not in self._scenario.grouped:
            return groups
        for hold in sorted(thread.queue - {process.hold}, reverse=not self._has("order of members")):
            contender = next(number for number, writer in enumerate(state.processes) if writer.hold == hold)
            operation = self._scenario.threads[contender][0][0]
            if operation not in self._scenario.grouped:
                if hold in state.queue and self._has("group ends at another contender"):
                    break
            elif hold in state.queue or not self._has("member in the queue"):
                member = next(sender for sender in state.threads if sender.process == contender)
                groups += [
                    (*group, operation) for group in groups if self._fits(state, thread, group, operation, member.read)
                ]
        return groups

    def _fits(self, state: State, holder: Thread, group: tuple[str, ...], operation: str, read: int) -> bool:
        """Return whether a holder may add an operation, which has read a version, to a group."""
        later = _operations(state.log[holder.read + 1 :])
        is_marked = operation in self._scenario.marks
        misfits = {
            "new members": operation in later,
            "marks of members": self._have_mark((*later, holder.operations[0], *group), operation),
            "older members": is_marked and read < holder.read,
            "metadata of members": self._change_metadata(_operations(state.log[read + 1 :])),
        }
        return not any(self._has(protection) for protection, is_misfit in misfits.items() if is_misfit)

    def _permitted(self, state: State, number: int, thread: Thread, process: Process) -> State:
        """Check for conflicts, confirm the hold and store the intent."""
        version = len(state.log)
        later = _operations(state.log[thread.checked + 1 :])
        if not thread.is_filling and self._has("conflict check") and self._conflict(later, thread.operations[0]):
            return self._conflicted(state, number, thread)
        if process.hold not in state.queue and self._has("confirmed hold"):
            return self._failed(state, number, thread)
        thread = thread._replace(step="put", version=version, sent=0)
        attempt = self._commit_of(thread, process).attempt
        process = process._replace(open=process.open | {(attempt, version)})
        if self._has("intent"):
            highest = max((old.version for old in state.intents if old.hold == process.hold), default=version)
            members = thread.members if self._has("named members") else ()
            intent = Intent(process.hold, max(highest, version), members)
            state = state._replace(intents=_without_intent(state.intents, process.hold) | {intent})
        return _with_thread(_with_process(state, thread.process, process), number, thread)

    def _conflicted(self, state: State, number: int, thread: Thread) -> State:
        """End an operation after a conflict. It may be the cause itself: an earlier holder may have committed it."""
        operation = thread.operations[0]
        if operation in self._scenario.marks and _is_stored(state, operation):
            result = "committed" if self._has("look after a conflict") else "not committed"
            return self._finished(state, number, thread, result)
        if self._have_mark(_operations(state.log), operation):
            # The writer repeats the operation, and finds the mark.
            return self._finished(state, number, thread, "skipped")
        return self._failed(state, number, thread)

    def _looks(self, state: State, number: int, thread: Thread, process: Process, name: str) -> Iterator[Transition]:
        """Look which put has the version; put again if none has, or give up."""
        commit = self._commit_of(thread, process)
        if thread.version < len(state.log):
            if state.log[thread.version].attempt == commit.attempt and self._has("recognized commit"):
                yield f"look:{name} own", self._stored(state, number, thread), None
            else:
                state = self._answered(state, thread)
                yield f"look:{name} taken", self._taken(state, number, thread), None
        else:
            if thread.sent < self._scenario.most_requests:
                yield f"look:{name} again", _with_thread(state, number, thread._replace(step="put")), None
            unknown = thread._replace(is_unknown=True)
            yield f"look:{name} unknown", self._failed(state, number, unknown), None

    def _stored(self, state: State, number: int, thread: Thread) -> State:
        """Continue after a put that stored its version."""
        state = self._answered(state, thread)
        if thread.is_filling:
            return self._reading(state, number, thread)
        return self._finished(state, number, thread, "committed")

    def _taken(self, state: State, number: int, thread: Thread) -> State:
        """Continue after a put whose version another one has."""
        if thread.is_filling:
            return self._reading(state, number, thread)
        return _with_thread(state, number, thread._replace(step="permit"))

    def _answered(self, state: State, thread: Thread) -> State:
        process = state.processes[thread.process]
        attempt = self._commit_of(thread, process).attempt
        still_open = frozenset(entry for entry in process.open if entry[0] != attempt)
        return _with_process(state, thread.process, process._replace(open=still_open))

    def _failed(self, state: State, number: int, thread: Thread) -> State:
        """Look for the commit of an operation that failed, and report its result."""
        operation, process = thread.operations[0], state.processes[thread.process]
        if operation in self._scenario.grouped and (thread.step == "settle" or thread.is_filling):
            # A put of an earlier holder that has the operation may still arrive.
            return self._left(state, thread.process, process)
        later = state.log[max(thread.read, 0) + 1 :]
        if self._has("write id"):
            is_found = any(commit.write_id == operation for commit in later)
        else:
            is_found = any(commit.hold == process.hold for commit in later)
        if is_found:
            result = "committed"
        elif thread.is_unknown and not thread.is_filling and self._has("unknown outcome"):
            result = "unknown"
        else:
            result = "not committed"
        return self._finished(state, number, thread, result)

    def _finished(self, state: State, number: int, thread: Thread, result: str) -> State:
        results = state.results | {(thread.operations[0], result)}
        following = Thread(thread.process, "settle", thread.operations[1:])
        return _with_thread(state, number, following)._replace(results=results)

    def _commit_of(self, thread: Thread, process: Process) -> Commit:
        operation = thread.operations[0]
        if thread.is_filling:
            write_id = "" if self._has("empty commit without write id") else operation
            return Commit(process.hold, "", write_id, f"empty {thread.version} {operation}")
        return Commit(process.hold, operation, operation, f"{operation} {thread.version}", thread.members)

    # -- the store -----------------------------------------------------------------------------------------------------

    def _arrivals(self, state: State, put: Put) -> Iterator[Transition]:
        """The request arrives, and its reply may be lost."""
        thread = state.threads[put.thread]
        process = state.processes[thread.process]
        waits = (
            thread.step == "sent" and bool(thread.operations) and process.is_alive
            and thread.version == put.version and self._commit_of(thread, process).attempt == put.commit.attempt
        )  # fmt: skip
        is_free = put.version == len(state.log)
        broken = None
        after = state._replace(puts=state.puts - {put})
        if is_free:
            after = after._replace(log=(*state.log, put.commit))
            is_late = put.commit.hold not in state.queue and state.newest_reader > put.commit.hold
            if is_late or self._has_read_later(thread, put):
                broken = NO_ZOMBIE
            elif self._depends_on_old_version(state, put.commit):
                broken = ISOLATION
            elif self._is_out_of_order(state, put.commit):
                broken = IN_ORDER
        elif not self._has("conditional put") and state.log[put.version].attempt != put.commit.attempt:
            log = (*state.log[: put.version], put.commit, *state.log[put.version + 1 :])
            after, broken = after._replace(log=log), ONE_WINNER
        name = f"{put.thread} {put.commit.operation or 'empty'} version {put.version}"
        if self._scenario.loses_replies or broken is not None:
            yield f"arrival:{name}", after, broken
        if waits and broken is None:
            if is_free:
                yield f"reply:{name}", self._stored(after, put.thread, thread), None
            else:
                looking = _with_thread(after, put.thread, thread._replace(step="look"))
                yield f"refusal:{name}", looking, None

    def _has_read_later(self, thread: Thread, put: Put) -> bool:
        """Return whether the sender has read the table for a later operation."""
        is_reading = thread.step in ("permit", *_PUTTING) and not thread.is_filling
        return len(thread.operations) < put.remaining and bool(thread.operations) and is_reading

    def _depends_on_old_version(self, state: State, commit: Commit) -> bool:
        """Return whether a version conflicts with an operation of a commit that has read an older one."""
        operations = {commit.operation, *commit.members}
        for thread in state.threads:
            if thread.operations and thread.operations[0] in operations:
                later = operations.union(_operations(state.log[thread.read + 1 :])) - {thread.operations[0]}
                if self._conflict(later, thread.operations[0]):
                    return True
        return False

    def _is_out_of_order(self, state: State, commit: Commit) -> bool:
        """Return whether an operation of a later contender precedes one of a commit.

        Only an operation that may be a member may be overtaken, and only by members of an earlier version.
        """
        if not commit.operation:
            return False
        holds = [self._hold_of(state, operation) for operation in (commit.operation, *commit.members)]
        overtaking = {earlier.hold for earlier in state.log if earlier.operation}
        if commit.operation not in self._scenario.grouped:
            overtaking.update(self._hold_of(state, member) for earlier in state.log for member in earlier.members)
        return holds != sorted(holds) or max(overtaking) > commit.hold

    def _hold_of(self, state: State, operation: str) -> int:
        return state.processes[self._process_of[operation]].hold


_PUTTING = ("put", "sent", "look")

#: Small scenarios. Together they take every step, and need every protection.
SCENARIOS = {
    "two writers at the gate": Scenario(
        threads=((("a",),), (("b",),)), staged=(0, 1), readers=("b",), deaths=0, most_requests=1
    ),
    "two operations of one hold": Scenario(threads=((("a", "b"),),), deaths=0),
    "two threads of one hold": Scenario(threads=((("a",), ("b",)),), deaths=0, most_requests=1),
    "a writer that dies": Scenario(threads=((("a",),), (("b",),)), deaths=1, expiries=0, most_requests=1),
    "two writers with one mark": Scenario(
        threads=((("a",),), (("b",),)), staged=(0, 1), marks={"a": "m", "b": "m"}, deaths=0, most_requests=1
    ),
    "an append after a change of metadata": Scenario(
        threads=((("a",),), (("b",),)), staged=(1,), alterations=("a",), deaths=0, expiries=0, most_requests=1
    ),
}
#: Larger scenarios.
LARGE_SCENARIOS = {
    "two writers, a death and repeated requests": Scenario(
        threads=((("a",),), (("b",),)), staged=(0, 1), readers=("b",)
    ),
    "two operations of one hold and a rival": Scenario(
        threads=((("a", "b"),), (("c",),)), staged=(1,), deaths=0, most_requests=1
    ),
    "three writers": Scenario(
        threads=((("a",),), (("b",),), (("c",),)), staged=(1,), readers=("b",), deaths=0, most_requests=1
    ),
}
#: Scenarios of group commits.
GROUP_SCENARIOS = {
    "a group of two": Scenario(
        threads=((("a",),), (("b",),)), staged=(0, 1), deaths=0, most_requests=1, grouped=("a", "b"), cancellations=1
    ),
}
GROUP_SCENARIOS["a group of two with marks"] = replace(GROUP_SCENARIOS["a group of two"], marks={"a": "a", "b": "b"})
LARGE_GROUP_SCENARIOS = {
    "a group of two, a death and repeated requests": Scenario(
        threads=((("a",),), (("b",),)), staged=(0, 1), grouped=("a", "b"), cancellations=1
    ),
    "a group of three": Scenario(
        threads=((("a",),), (("b",),), (("c",),)), staged=(0, 1, 2), deaths=0, most_requests=1,
        grouped=("a", "b", "c"), cancellations=1,
    ),
}  # fmt: skip
#: Scenarios of three writers without faults.
TRIO_SCENARIOS = {
    "three appends": Scenario(
        threads=((("a",),), (("b",),), (("c",),)), staged=(0, 1, 2), deaths=0, expiries=0, most_requests=1,
        loses_replies=False, grouped=("a", "b", "c"),
    ),
    "a change of metadata between two appends": Scenario(
        threads=((("a",),), (("x",),), (("b",),)), staged=(0, 2), deaths=0, expiries=0, most_requests=1,
        loses_replies=False, grouped=("a", "b"), alterations=("x",),
    ),
}  # fmt: skip
TRIO_SCENARIOS["three appends, two with one mark"] = replace(
    TRIO_SCENARIOS["three appends"], marks={"a": "m", "c": "m"}
)
LARGE_GROUP_SCENARIOS |= {
    f"{name}, with lost replies": replace(scenario, loses_replies=True) for name, scenario in TRIO_SCENARIOS.items()
}
#: Protections, and the scenarios that need them.
SUITES = (
    (PROTECTIONS, SCENARIOS),
    (GROUP_PROTECTIONS, GROUP_SCENARIOS),
    (TRIO_PROTECTIONS, TRIO_SCENARIOS),
)


@functools.cache
def broken_without(protection: str) -> Mapping[str, list[str]]:
    """Return the promises that break without a protection, each with the shortest way to break it."""
    scenarios = next(scenarios for protections, scenarios in SUITES if protection in protections)
    broken: dict[str, list[str]] = {}
    for scenario in scenarios.values():
        result = search(replace(scenario, protections=scenario.protections - {protection}))
        for promise, path in result.broken.items():
            broken[promise] = min(path, broken.get(promise, path), key=len)
    return broken


def _without(queue: tuple[int, ...], hold: int) -> tuple[int, ...]:
    return tuple(contender for contender in queue if contender != hold)


def _without_intent(intents: frozenset[Intent], hold: int) -> frozenset[Intent]:
    return frozenset(intent for intent in intents if intent.hold != hold)


def _operations(versions: Iterable[Commit]) -> list[str]:
    """Return the operations in versions, also those of members."""
    return [operation for commit in versions for operation in (commit.operation, *commit.members) if operation]


def _is_stored(state: State, operation: str) -> bool:
    return operation in _operations(state.log)


def _with_process(state: State, number: int, process: Process) -> State:
    processes = state.processes
    return state._replace(processes=(*processes[:number], process, *processes[number + 1 :]))


def _with_threads_of(state: State, number: int, **changes: Any) -> State:
    """Return the state with changes in all threads of a process."""
    threads = (thread._replace(**changes) if thread.process == number else thread for thread in state.threads)
    return state._replace(threads=tuple(threads))


def _with_thread(state: State, number: int, thread: Thread) -> State:
    threads = state.threads
    return state._replace(threads=(*threads[:number], thread, *threads[number + 1 :]))


def main() -> None:
    """Print, for each protection, the shortest way to break its promise without it."""
    for protections, _ in SUITES:
        for name, protection in protections.items():
            path = broken_without(name)[protection.promise]
            sys.stdout.write(f"without {name}: {protection.promise} breaks by {', '.join(path)}\n")


if __name__ == "__main__":
    main()
