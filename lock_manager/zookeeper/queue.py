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
* An acquisition that fails in any way leaves no contender: see :mod:`lock_manager.zookeeper.cleanup`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from lock_manager.coordinator import WAITING_LOGGER
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockTimeoutError,
    describe_ahead,
)
from lock_manager.zookeeper.asking import UNANSWERED, failure_in
from lock_manager.zookeeper.cleanup import ABANDON_SECONDS, Cleanup
from lock_manager.zookeeper.request import Acquired, Node, OwnEntry, Request
from lock_manager.zookeeper.session import (
    EXPECTED,
    LOOK_SECONDS,
    NO_ANSWER,
    SESSION_GONE,
    Session,
    SessionState,
)
from lock_manager.zookeeper.znodes import (
    Contender,
    conflicting_ahead,
    contender_at,
    contender_node,
    hold_of_intent,
    intents_node,
    is_of_hold,
    new_contender,
    parent_of,
    parse_queue,
)

log = logging.getLogger(WAITING_LOGGER)

_TRY_SECONDS = 15.0
"""How long a try-lock (time-out 0) may take to connect and to ask; it never waits in the queue."""

_EXPLAIN_SECONDS = 1.0
"""How long a time-out may take beyond its deadline to find out who is ahead, for its message."""


REPORT_SECONDS = 10.0
"""How often a contender that waits logs whom it waits for."""


class Acquisition:
    """One try to get to the head of every queue of a request: :meth:`run` it, and :meth:`abandon` it if it fails since.

    It joins the queues in the request's order. Nobody waits in one queue while it has an entry in a later one, so no
    two can wait for each other. One transaction joins all remaining queues. If somebody is ahead in one of them, it
    deletes its entries in the later ones before it waits.

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
        self._answer_by = Deadline(_TRY_SECONDS) if self._try_only else deadline
        self._wake = threading.Event()
        request.cancellation.on_request(self.wake)
        self._hold_id = ""
        self._session_id = 0
        self._unsure = False
        self._entries: list[OwnEntry] = []
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

    def run(self) -> Acquired:
        """Join the queues, wait, and return when it is at the head of each.

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

    def abandon(self, cleanup: Cleanup) -> None:
        """Leave the queues, whatever is known of our entries in them.

        ``cleanup`` knows of it before this method waits, so a second Ctrl-C does not stop it.
        """
        nodes = [node.path for node in self._request.nodes]
        if self._hold_id and not cleanup.discard(nodes, self._hold_id, ABANDON_SECONDS):
            log.warning(
                "a contender on %s could not be removed yet; it will be, or ends with the session",
                self._request.resource,
            )

    def _run(self) -> Acquired:
        while True:
            self._raise_if_cancelled()
            try:
                session_id = self.connect()
                self._asked_at = time.monotonic()
                if (acquired := self._look(session_id)) is not None:
                    self._raise_if_cancelled()
                    return acquired
            except NO_ANSWER:
                self._unsure = bool(self._hold_id)
                if self._answer_by.remaining() == 0:
                    raise self._no_answer() from None
            except SESSION_GONE:
                self._start_again()
            except NoNodeError:
                # There is no queue yet, or a contender of ours was removed as it came to the head.
                self._unsure = bool(self._entries)
                if not self._entries:
                    self._hold_id = ""
                self._make_queues()

    def _look(self, session_id: int) -> Acquired | None:
        """Join queues if need be, look who is ahead; return what was acquired, or wait for a reason to look again."""
        if self._session_id != session_id:
            if self._entries:
                log.warning(
                    "the session ended while queued for %s: back to the end of the queue", self._request.resource
                )
            self._start_again()
            self._session_id = session_id
        if self._unsure:
            self._find_entries()
        entering = len(self._entries) == self._clear
        listing = self._enter() if entering else self._look_again()
        queues, intents = self._answer_to(listing)
        for index in range(self._clear, len(self._entries)):
            own, queue = self._entries[index].contender, queues[index]
            if own not in queue:
                log.warning("our contender on %s was removed: back to the end of the queue", self._request.resource)
                self._leave(0)
                self._start_again()
                return None
            ahead = conflicting_ahead(queue, own)
            if ahead:
                self._leave(index + 1)
                if self._try_only or not self._wait_behind(ahead[-1], self._entries[index]):
                    raise self._timeout(self._entries[index])
                return None
            self._clear = index + 1
        if self._clear < len(self._request.nodes):
            return None
        return self._acquired(queues, intents)

    def _acquired(self, queues: Mapping[int, list[Contender]], intents: Mapping[str, list[str]]) -> Acquired:
        """Return what was acquired; an intent is unfinished if its hold has no entry in its table's queue any more."""
        unfinished = {}
        for table, names in intents.items():
            index = next(number for number, node in enumerate(self._request.nodes) if node.table == table)
            others = {contender.hold_id for contender in queues[index]} if index in queues else set()
            unfinished[table] = tuple(name for name in names if hold_of_intent(name) not in others)
        return Acquired(self._hold_id, tuple(self._entries), self._session_id, unfinished)

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
        """List these queues, those of the tables, and the intents; :meth:`_answer_to` waits for the answers.

        Partitions come before their table, and intents last. A hold leaves its table's queue no later than a
        partition's (see :class:`Cleanup`). So if a partition's queue does not show a hold any more, its intent is in
        the later listing, and its table's queue does not show the hold either: the intent is unfinished.
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
        """Join the remaining queues, in one transaction that also checks our existing contenders."""
        client = self._session.client
        self._hold_id = self._hold_id or uuid.uuid4().hex
        first = len(self._entries)
        nodes = self._request.nodes[first:]
        paths = [new_contender(node.path, self._hold_id, node.mode) for node in nodes]
        sent_at = time.monotonic()
        if first == 0 and len(nodes) == 1:
            # The answer to a single create has the contender's stat: no second request is needed.
            data = self._request.data(nodes[0])
            created = client.create_async(paths[0], data, ephemeral=True, sequence=True, include_data=True)
            listing = self._list([0])
            path, stat = self._answer(created)
            self._add(nodes[0], path, stat.czxid)
            self._session.prove(sent_at, stat.ephemeralOwner)
            return listing
        entering = client.transaction()
        for entry in self._entries:
            entering.check(entry.path, -1)
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
        if (failure := failure_in(answers)) is not None:
            self._session.raise_known(failure.error)
        return answers

    def _add(self, node: Node, path: str, token: int) -> None:
        self._entries.append(OwnEntry(node, path, contender_at(path), token))

    def _look_again(self) -> tuple[dict[int, Any], dict[str, Any]]:
        """List the queues and prove, by a quorum request in the same round trip, that all our contenders stand."""
        sent_at = time.monotonic()
        proof = self._session.client.transaction()
        for entry in self._entries:
            proof.check(entry.path, -1)
        proven = proof.commit_async()
        listing = self._list(range(self._clear, len(self._entries)))
        self._results(proven)
        self._session.prove(sent_at, self._session_id)
        return listing

    def _leave(self, first: int) -> None:
        """Delete our entries from this one on: nobody waits in one queue while it has an entry in a later one."""
        leaving, self._entries = self._entries[first:], self._entries[:first]
        if not leaving:
            return
        self._unsure = True
        asked = [self._session.client.delete_async(entry.path) for entry in leaving]
        for each in asked:
            with suppress(NoNodeError):
                self._answer(each)
        self._unsure = False

    def _find_entries(self) -> None:
        """Find out which contenders we have, after a request of ours had no answer.

        Another server than the one that took it may answer now. Those that do not follow one another from the first
        queue on are left behind.
        """
        client = self._session.client
        entries: list[OwnEntry] = []
        stray: list[str] = []
        self._answer(client.sync_async(self._request.nodes[0].path))
        for index, node in enumerate(self._request.nodes):
            try:
                queue = parse_queue(self._answer(client.get_children_async(node.path)))
            except NoNodeError:
                # It was removed: nobody was in it.
                continue
            for contender in queue:
                if not is_of_hold(contender.name, self._hold_id):
                    continue
                path = contender_node(node.path, contender.name)
                stat = self._answer(client.exists_async(path))
                if stat is None or stat.ephemeralOwner != self._session_id:
                    continue
                if len(entries) == index:
                    entries.append(OwnEntry(node, path, contender, stat.czxid))
                else:
                    stray.append(path)
        for path in stray:
            with suppress(NoNodeError):
                self._answer(client.delete_async(path))
        self._entries, self._clear = entries, min(self._clear, max(0, len(entries) - 1))
        if not entries:
            # Its contender, if it comes into being after all, must not be taken for that of the next try.
            self._hold_id = ""
        self._unsure = False

    def _start_again(self) -> None:
        self._entries, self._clear, self._unsure, self._hold_id = [], 0, False, ""

    def _make_queues(self) -> None:
        """Make the znodes of all queues, and the place for the intents of each table.

        An empty one may be removed again before it is joined, or while these are made: then this is done again.
        """
        client = self._session.client
        asked = []
        for table, path in self._request.tables.items():
            asked += [(path, json.dumps({"uri": table}).encode()), (intents_node(path), b"")]
        for node in self._request.nodes:
            if node.path not in self._request.tables.values():
                asked += [(parent_of(node.path), b""), (node.path, json.dumps(dict(node.about)).encode())]
        made = [(path, client.create_async(path, data)) for path, data in asked]
        for path, result in made:
            try:
                self._answer(result)
            except NoNodeError:
                if path in self._request.tables.values():
                    self._session.recheck_root()
            except (NodeExistsError, *UNANSWERED):
                pass  # whether it is there now shows when the contender is created

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait_behind(self, predecessor: Contender, entry: OwnEntry) -> bool:
        """Wait until there is a reason to look again; False when the deadline came first."""
        path = contender_node(entry.node.path, predecessor.name)
        self._wake.clear()
        try:
            self._answer(self._session.watch(path, self.wake))
            # What happened between the listing and the watch may have woken nobody.
            self._raise_if_cancelled()
            if self._session.state is not SessionState.CONNECTED or self._session.session_id != self._session_id:
                return True
            return self._wait_for_turn(entry)
        except NoNodeError:
            return True
        finally:
            self._session.unwatch(path, self.wake)

    def _wait_for_turn(self, entry: OwnEntry) -> bool:
        """Wait until woken, and say now and then for whom; False when the deadline came first."""
        while not self._wake.wait(min(REPORT_SECONDS, self._deadline.remaining())):
            if self._deadline.remaining() == 0:
                return False
            ahead, holder = self._who_is_ahead(entry)
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
        if self._session.state is SessionState.CONNECTED and time.monotonic() - self._asked_at < _EXPLAIN_SECONDS:
            # It had no time to answer.
            return LockTimeoutError(
                resource=self._request.resource, timeout_seconds=self._deadline.seconds, ahead=None, holder=None
            )
        return EnsembleUnavailableError(self._session.settings.zk_hosts, self._answer_by.elapsed(), "queueing")

    def _timeout(self, entry: OwnEntry) -> LockTimeoutError:
        # Worth a moment beyond the deadline: it is what the person who reads the message wants to know.
        ahead, holder = self._who_is_ahead(entry)
        return LockTimeoutError(
            resource=self._request.resource, timeout_seconds=self._deadline.seconds, ahead=ahead, holder=holder
        )

    def _who_is_ahead(self, entry: OwnEntry) -> tuple[int | None, dict[str, Any] | None]:
        """Return how many are ahead and what the first of them says of itself, each None if it cannot be read soon."""
        ahead: list[Contender] | None = None
        holder: dict[str, Any] | None = None
        with suppress(*EXPECTED, EnsembleRefusedError, ValueError, IndexError):
            deadline = Deadline(_EXPLAIN_SECONDS)
            node, client = entry.node.path, self._session.client
            queue = parse_queue(self._session.wait(client.get_children_async(node), deadline))
            ahead = conflicting_ahead(queue, entry.contender)
            data, _ = self._session.wait(client.get_async(contender_node(node, ahead[0].name)), deadline)
            described = json.loads(data)
            holder = described if isinstance(described, dict) else None
        return None if ahead is None else len(ahead), holder
