"""The recipe: one fair queue per znode, exclusive and shared.

A contender is an ephemeral sequential child named as kazoo names them, ``<uuid>__lock__<seq>`` (exclusive) or
``<uuid>__rlock__<seq>`` (shared), so that programs with kazoo's ``WriteLock`` and ``ReadLock`` on the same path take
part in the same queue. It holds the lock when no conflicting contender has a smaller sequence number.

Source: ZooKeeper's recipe page ("Shared Locks"), with what it leaves open:

* Creating the contender and listing the queue share one round trip: a session's requests are answered in order.
* Several queues (a partition's, and those of what it is a part of) are entered in one transaction, and in one order.
* Each waits for the nearest conflicting predecessor only, by a *child* watch on it: that fires when it is deleted and
  at nothing else, while the watch of ``exists`` also fires when its data is written. One release wakes one waiter.
* After a lost reply to ``create`` the contender is looked for, after a ``sync`` (another server may lag behind the
  one that took the request), by its UUID and by ``ephemeralOwner``.
* Whoever waited proves by a quorum request, before it may go on, that its session still stands.
* An attempt that fails in any way leaves no contender: see :mod:`lock_manager.zookeeper.cleanup`.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from lock_manager.errors import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockTimeoutError,
    describe_ahead,
)
from lock_manager.zookeeper.cleanup import ABANDON_SECONDS, Janitor
from lock_manager.zookeeper.hold_intents import intents_node
from lock_manager.zookeeper.session import (
    EXPECTED,
    LOOK_SECONDS,
    NO_ANSWER,
    ROLLED_BACK,
    SESSION_GONE,
    Deadline,
    Session,
    SessionState,
)

log = logging.getLogger(__name__)

EXCLUSIVE_MARK = "__lock__"
SHARED_MARK = "__rlock__"
PART_MARK = "-part"
PART_SHARED_MARK = "-look"
_WRAP = 2**32
_NAME = re.compile(rf"({EXCLUSIVE_MARK}|(?:{PART_MARK}|{PART_SHARED_MARK})?{SHARED_MARK})(-?\d+)$")
_ID_DIGITS = 32

TRY_SECONDS = 15.0
"""How long a try-lock (time-out 0) may take to connect and to ask; it never waits in the queue."""

EXPLAIN_SECONDS = 1.0
"""How long a time-out may take beyond its deadline to find out who is ahead, for its message."""


REPORT_SECONDS = 10.0
"""How often a contender that waits logs whom it waits for."""


class Mode(Enum):
    """How a contender asks for a node."""

    #: With nobody else.
    EXCLUSIVE = EXCLUSIVE_MARK
    #: With others that only read.
    SHARED = SHARED_MARK
    #: With others that lock something below it, too, but with none that read all of it. To kazoo a shared one.
    PART = PART_MARK + SHARED_MARK
    #: With all but one that has it alone: something below it is locked, and shared. Likewise.
    PART_SHARED = PART_SHARED_MARK + SHARED_MARK


@dataclass(frozen=True)
class Contender:
    """One place in the queue, as its name tells.

    Attributes:
        sequence: place in the order, see :func:`parse_queue`.
        name: of its znode.
        mode: how it asks.

    """

    sequence: int
    name: str
    mode: Mode

    @property
    def shared(self) -> bool:
        """Whether others may hold at the same time."""
        return self.mode is not Mode.EXCLUSIVE

    @property
    def hold_id(self) -> str:
        """Name of the hold that it is, or may become, a part of."""
        return self.name[:_ID_DIGITS]

    def conflicts_with(self, other: Contender) -> bool:
        """Tell whether the two may not hold at the same time."""
        return not (self.shared and other.shared) or {self.mode, other.mode} == {Mode.SHARED, Mode.PART}


def parse_queue(children: list[str]) -> list[Contender]:
    """Return the contenders among a znode's children, first come first.

    Sequence numbers are a signed 32-bit counter that wraps around: of two, the one that a short way up leads from is
    the earlier, so that a newcomer behind 2147483647 is not taken for the oldest.
    """
    matches = ((name, _NAME.search(name)) for name in children)
    contenders = [Contender(int(match[2]), name, Mode(match[1])) for name, match in matches if match]
    return sorted(contenders, key=functools.cmp_to_key(_steps_after))


def _steps_after(one: Contender, other: Contender) -> int:
    return (one.sequence - other.sequence + _WRAP // 2) % _WRAP - _WRAP // 2


def conflicting_ahead(queue: list[Contender], own: Contender) -> list[Contender]:
    """Return who has to leave before ``own``, which is in ``queue``, may hold; first come first."""
    return [other for other in queue[: queue.index(own)] if other.conflicts_with(own)]


@dataclass(frozen=True)
class Node:
    """A queue that a request stands in.

    Attributes:
        key: of what is locked there; for its fencing token.
        path: of the znode.
        mode: how it is asked for.
        table: canonical URI of the table to which it belongs.
        about: what the znode says of itself, for people; JSON values.

    """

    key: str
    path: str
    mode: Mode
    table: str
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Spot:
    """A contender of ours that exists, or existed.

    Attributes:
        node: whose queue it stands in.
        path: of its znode.
        contender: its place in the queue.
        token: its czxid, a number that only rises: the fencing token.

    """

    node: Node
    path: str
    contender: Contender
    token: int


@dataclass(frozen=True)
class Place:
    """What an acquire ends with: a contender at the head of each queue.

    Attributes:
        hold_id: with which the names of all contenders begin.
        spots: one for each node, in the order of the request.
        session_id: of the session that they live with.
        unclean: by table, names of the intents that were found at the end: of holds that ended uncleanly.

    """

    hold_id: str
    spots: tuple[Spot, ...]
    session_id: int
    unclean: Mapping[str, tuple[str, ...]]


class Cancellation:
    """Has one acquire, which waits in another thread or is yet to begin, give up."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def request(self) -> None:
        """Have it raise LockCancelledError, now or when it begins."""
        self.requested.set()
        self._wake()

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called for it."""
        self._wake = wake


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        resource: what it is, for messages.
        tables: znode of each table's queue, by canonical URI.
        nodes: queues to stand in, in the one order in which everybody asks.
        identity: who asks, for people: host, pid, job and so on. JSON values.
        wanted: what is asked for of each table, for people, likewise; by canonical URI. Who waits behind a table stands
            in no queue that would tell.
        cancellation: to stop waiting; see :meth:`Attempt.cancel`.

    """

    resource: str
    tables: Mapping[str, str]
    nodes: tuple[Node, ...]
    identity: Mapping[str, Any]
    cancellation: Cancellation
    wanted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def data(self, node: Node, **since: float) -> bytes:
        """Return what a contender's znode holds: who it is, what for and, once it holds, ``acquired_at``."""
        # Once is enough: with it in each of 64 contenders their transaction would become large.
        wanted = self.wanted.get(node.table, {}) if node.path == self.tables[node.table] else {}
        return json.dumps({**self.identity, **wanted, **since}).encode()


class Attempt:
    """One try to get to the head of every queue of a request: :meth:`run` it, and :meth:`abandon` it if it fails since.

    Queues are entered in the request's order, and nobody waits in one while he stands in a later one: so there is no
    circle of waiting. All that are left are entered at once, in one transaction; where somebody turns out to be ahead,
    the places behind that one are given up again before the wait.

    Args:
        session: to ask through.
        request: what is asked for.
        deadline: total time for everything; of 0 seconds means: only if it is free now.

    """

    def __init__(self, session: Session, request: Request, deadline: Deadline) -> None:
        self._session = session
        self._request = request
        self._deadline = deadline
        self._try_only = deadline.seconds == 0
        # A try-lock does not wait in the queue, but its question has to be answered.
        self._answer_by = Deadline(TRY_SECONDS) if self._try_only else deadline
        self._wake = threading.Event()
        request.cancellation.wakes(self.wake)
        self._hold_id = ""
        self._session_id = 0
        self._unsure = False
        self._spots: list[Spot] = []
        self._clear = 0
        self._asked_at = 0.0

    @property
    def tables(self) -> Collection[str]:
        """Canonical URIs of the tables that are asked for."""
        return self._request.tables.keys()

    def cancel(self) -> None:
        """Have the waiting thread raise LockCancelledError."""
        self._request.cancellation.request()

    def wake(self) -> None:
        """Have the waiting thread look again."""
        self._wake.set()

    def connect(self) -> int:
        """Connect, if need be, and return the session's id; :meth:`run` does it by itself.

        Raises:
            LockCancelledError: cancelled.
            EnsembleUnavailableError: no answer before the deadline.

        """
        try:
            return self._session.ready(self._answer_by, self._request.cancellation.requested)
        except EnsembleUnavailableError:
            self._raise_if_cancelled()
            raise

    def run(self) -> Place:
        """Queue up, wait, and return the place at the head of every queue.

        Raises:
            LockTimeoutError: others were still ahead at the deadline.
            LockCancelledError: cancelled.
            EnsembleUnavailableError: no answer before the deadline.

        """
        self._session.add_waker(self.wake)
        try:
            return self._run()
        finally:
            self._session.remove_waker(self.wake)

    def abandon(self, janitor: Janitor) -> None:
        """Leave the queues, whatever is known of our places in them.

        The janitor has the order before this waits for it, so that a second Ctrl-C meanwhile changes nothing.
        """
        nodes = [node.path for node in self._request.nodes]
        if self._hold_id and not janitor.discard(nodes, self._hold_id, ABANDON_SECONDS):
            log.warning(
                "a contender on %s could not be removed yet; it will be, or ends with the session",
                self._request.resource,
            )

    def _run(self) -> Place:
        while True:
            self._raise_if_cancelled()
            try:
                session_id = self.connect()
                self._asked_at = time.monotonic()
                if (place := self._look(session_id)) is not None:
                    self._raise_if_cancelled()
                    return place
            except NO_ANSWER:
                self._unsure = bool(self._hold_id)
                if self._answer_by.remaining() == 0:
                    raise self._no_answer() from None
            except SESSION_GONE:
                self._start_again()
            except NoNodeError:
                # There is no queue yet, or a contender of ours was removed as it came to the head.
                self._unsure = bool(self._spots)
                if not self._spots:
                    self._hold_id = ""
                self._make_queues()

    def _look(self, session_id: int) -> Place | None:
        """Queue up if need be and look who is ahead; return our place if nobody is, else wait for a reason to look."""
        if self._session_id != session_id:
            if self._spots:
                log.warning(
                    "the session ended while queued for %s: back to the end of the queue", self._request.resource
                )
            self._start_again()
            self._session_id = session_id
        if self._unsure:
            self._find_spots()
        entering = len(self._spots) == self._clear
        listing = self._enter() if entering else self._look_again()
        queues, intents = self._answer_to(listing)
        for index in range(self._clear, len(self._spots)):
            own, queue = self._spots[index].contender, queues[index]
            if own not in queue:
                log.warning("our contender on %s was removed: back to the end of the queue", self._request.resource)
                self._leave(0)
                self._start_again()
                return None
            ahead = conflicting_ahead(queue, own)
            if ahead:
                self._leave(index + 1)
                if self._try_only or not self._wait_behind(ahead[-1], self._spots[index]):
                    raise self._timeout(self._spots[index])
                return None
            self._clear = index + 1
        if self._clear < len(self._request.nodes):
            return None
        return self._place(queues, intents)

    def _place(self, queues: Mapping[int, list[Contender]], intents: Mapping[str, list[str]]) -> Place:
        """Return our place; an intent is unclean if its hold is in the queue of its table no more."""
        unclean = {}
        for table, names in intents.items():
            index = next(number for number, node in enumerate(self._request.nodes) if node.table == table)
            others = {contender.hold_id for contender in queues[index]} if index in queues else set()
            unclean[table] = tuple(name for name in names if name[:_ID_DIGITS] not in others)
        return Place(self._hold_id, tuple(self._spots), self._session_id, unclean)

    def _answer(self, result: Any) -> Any:
        while True:
            slice_end = Deadline(min(LOOK_SECONDS, self._answer_by.remaining()))
            try:
                return self._session.wait(result, slice_end)
            except KazooTimeoutError:
                self._raise_if_cancelled()
                if self._answer_by.remaining() == 0:
                    raise

    # -- asking --------------------------------------------------------------------------------------------------

    def _list(self, indices: Iterable[int]) -> tuple[dict[int, Any], dict[str, Any]]:
        """Ask for these queues, and those of the tables, and for the intents; to be given to :meth:`_answer_to`.

        Partitions before their table, and the intents last: who has left the queue of a partition has left that of its
        table, too (see :class:`Janitor`), so that an intent of his is found, and found to be left behind.
        """
        client, nodes = self._session.client, self._request.nodes
        wanted = set(indices) | {
            next(number for number, node in enumerate(nodes) if node.table == table) for table in self._request.tables
        }
        queues = {index: client.get_children_async(nodes[index].path) for index in sorted(wanted, reverse=True)}
        intents = {table: client.get_children_async(intents_node(path)) for table, path in self._request.tables.items()}
        return queues, intents

    def _answer_to(
        self, listing: tuple[dict[int, Any], dict[str, Any]]
    ) -> tuple[dict[int, list[Contender]], dict[str, list[str]]]:
        queues = {index: parse_queue(self._answer(asked)) for index, asked in listing[0].items()}
        intents = {}
        for table, asked in listing[1].items():
            try:
                intents[table] = self._answer(asked)
            except NoNodeError:
                # A queue that another program made has no place for them.
                intents[table] = []
        return queues, intents

    def _enter(self) -> tuple[dict[int, Any], dict[str, Any]]:
        """Enter all queues that are left; the contenders that are there stand surety, and are proven, too."""
        client = self._session.client
        self._hold_id = self._hold_id or uuid.uuid4().hex
        first = len(self._spots)
        nodes = self._request.nodes[first:]
        paths = [f"{node.path}/{self._hold_id}{node.mode.value}" for node in nodes]
        sent_at = time.monotonic()
        if first == 0 and len(nodes) == 1:
            # With what the single request tells of the contender a question is spared.
            data = self._request.data(nodes[0])
            created = client.create_async(paths[0], data, ephemeral=True, sequence=True, include_data=True)
            listing = self._list([0])
            path, stat = self._answer(created)
            self._add(nodes[0], path, stat.czxid)
            self._session.prove(sent_at, stat.ephemeralOwner)
            return listing
        entering = client.transaction()
        for spot in self._spots:
            entering.check(spot.path, -1)
        for node, path in zip(nodes, paths, strict=True):
            entering.create(path, self._request.data(node), ephemeral=True, sequence=True)
        entered = entering.commit_async()
        listing = self._list(range(first, len(self._request.nodes)))
        made = self._results(entered)[first:]
        # All of one transaction have its number.
        stat = self._answer(client.exists_async(made[0]))
        if stat is None:
            raise NoNodeError
        for node, path in zip(nodes, made, strict=True):
            self._add(node, path, stat.czxid)
        self._session.prove(sent_at, self._session_id)
        return listing

    def _results(self, asked: Any) -> list[Any]:
        """Wait for a transaction and return its results, or raise what failed in it."""
        answers: list[Any] = self._answer(asked)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ROLLED_BACK):
                self._session.raise_known(answer)
        return answers

    def _add(self, node: Node, path: str, token: int) -> None:
        (contender,) = parse_queue([path.rpartition("/")[2]])
        self._spots.append(Spot(node, path, contender, token))

    def _look_again(self) -> tuple[dict[int, Any], dict[str, Any]]:
        """List the queues and prove, by a quorum request in the same round trip, that all our contenders stand."""
        sent_at = time.monotonic()
        proof = self._session.client.transaction()
        for spot in self._spots:
            proof.check(spot.path, -1)
        proven = proof.commit_async()
        listing = self._list(range(self._clear, len(self._spots)))
        self._results(proven)
        self._session.prove(sent_at, self._session_id)
        return listing

    def _leave(self, first: int) -> None:
        """Give up the contenders from this one on: nobody waits in one queue while he stands in a later one."""
        leaving, self._spots = self._spots[first:], self._spots[:first]
        if not leaving:
            return
        self._unsure = True
        asked = [self._session.client.delete_async(spot.path) for spot in leaving]
        for each in asked:
            with suppress(NoNodeError):
                self._answer(each)
        self._unsure = False

    def _find_spots(self) -> None:
        """Find out which contenders we have, after a request of ours had no answer.

        Another server than the one that took it may answer now. Those that do not follow one another from the first
        queue on are left behind.
        """
        client = self._session.client
        spots: list[Spot] = []
        stray: list[str] = []
        self._answer(client.sync_async(self._request.nodes[0].path))
        for index, node in enumerate(self._request.nodes):
            try:
                queue = parse_queue(self._answer(client.get_children_async(node.path)))
            except NoNodeError:
                # Swept: nobody was in it.
                continue
            for contender in queue:
                if not contender.name.startswith(self._hold_id):
                    continue
                path = f"{node.path}/{contender.name}"
                stat = self._answer(client.exists_async(path))
                if stat is None or stat.ephemeralOwner != self._session_id:
                    continue
                if len(spots) == index:
                    spots.append(Spot(node, path, contender, stat.czxid))
                else:
                    stray.append(path)
        for path in stray:
            with suppress(NoNodeError):
                self._answer(client.delete_async(path))
        self._spots, self._clear = spots, min(self._clear, max(0, len(spots) - 1))
        if not spots:
            # Its contender, if it comes into being after all, must not be taken for that of the next try.
            self._hold_id = ""
        self._unsure = False

    def _start_again(self) -> None:
        self._spots, self._clear, self._unsure, self._hold_id = [], 0, False, ""

    def _make_queues(self) -> None:
        """Make the znodes of all queues, and the place for the intents of each table.

        A sweep may take one away again before it is entered, or while these are made: then this is done again.
        """
        client = self._session.client
        asked = []
        for table, path in self._request.tables.items():
            asked += [(path, json.dumps({"uri": table}).encode()), (intents_node(path), b"")]
        for node in self._request.nodes:
            if node.path not in self._request.tables.values():
                asked += [(node.path.rpartition("/")[0], b""), (node.path, json.dumps(dict(node.about)).encode())]
        made = [(path, client.create_async(path, data)) for path, data in asked]
        for path, result in made:
            try:
                self._answer(result)
            except NoNodeError:
                if path in self._request.tables.values():
                    self._session.recheck_root()
            except (NodeExistsError, *NO_ANSWER, *SESSION_GONE):
                pass  # whether it is there now shows when the contender is created

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait_behind(self, predecessor: Contender, spot: Spot) -> bool:
        """Wait until there is a reason to look again; False when the deadline came first."""
        path = f"{spot.node.path}/{predecessor.name}"
        self._wake.clear()
        try:
            self._answer(self._session.watch(path, self.wake))
            # What happened between the listing and the watch may have woken nobody.
            self._raise_if_cancelled()
            if self._session.state is not SessionState.CONNECTED or self._session.session_id != self._session_id:
                return True
            return self._wait_for_turn(spot)
        except NoNodeError:
            return True
        finally:
            self._session.unwatch(path, self.wake)

    def _wait_for_turn(self, spot: Spot) -> bool:
        """Wait until woken, and say now and then for whom; False when the deadline came first."""
        while not self._wake.wait(min(REPORT_SECONDS, self._deadline.remaining())):
            if self._deadline.remaining() == 0:
                return False
            ahead, holder = self._who_is_ahead(spot)
            if ahead is not None:
                log.info(
                    "waiting for the lock on %s for %.0f s: %s",
                    self._request.resource, self._deadline.elapsed(), describe_ahead(ahead, holder),
                )  # fmt: skip
        return True

    def _raise_if_cancelled(self) -> None:
        if self._request.cancellation.requested.is_set():
            raise LockCancelledError(resource=self._request.resource)

    def _no_answer(self) -> LockTimeoutError | EnsembleUnavailableError:
        if self._session.state is SessionState.CONNECTED and time.monotonic() - self._asked_at < EXPLAIN_SECONDS:
            # It had no time to answer.
            return LockTimeoutError(
                resource=self._request.resource, timeout_seconds=self._deadline.seconds, ahead=None, holder=None
            )
        return EnsembleUnavailableError(self._session.settings.zk_hosts, self._answer_by.elapsed(), "queueing")

    def _timeout(self, spot: Spot) -> LockTimeoutError:
        # Worth a moment beyond the deadline: it is what the person who reads the message wants to know.
        ahead, holder = self._who_is_ahead(spot)
        return LockTimeoutError(
            resource=self._request.resource, timeout_seconds=self._deadline.seconds, ahead=ahead, holder=holder
        )

    def _who_is_ahead(self, spot: Spot) -> tuple[int | None, dict[str, Any] | None]:
        """Return how many are ahead and what the first of them says of itself, each None if it cannot be read soon."""
        ahead: list[Contender] | None = None
        holder: dict[str, Any] | None = None
        with suppress(*EXPECTED, EnsembleRefusedError, ValueError, IndexError):
            deadline = Deadline(EXPLAIN_SECONDS)
            node, client = spot.node.path, self._session.client
            queue = parse_queue(self._session.wait(client.get_children_async(node), deadline))
            ahead = conflicting_ahead(queue, spot.contender)
            data, _ = self._session.wait(client.get_async(f"{node}/{ahead[0].name}"), deadline)
            described = json.loads(data)
            holder = described if isinstance(described, dict) else None
        return None if ahead is None else len(ahead), holder
