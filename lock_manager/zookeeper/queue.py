"""The lock recipe: one fair queue for each znode, exclusive and shared.

A contender is an ephemeral sequential child, named as :mod:`lock_manager.zookeeper.znodes` explains. It holds the lock
when no conflicting contender has a smaller sequence number.

Source: ZooKeeper's recipe page ("Shared Locks"). The page leaves these points open:

* The requests that create the contender and list the queue share one round trip, because the server executes a
  session's requests in order.
* One transaction joins several queues (those of a partition and its ancestors), in the same order for all clients.
* Each contender waits only for the nearest conflicting predecessor, with a *child* watch on it. The watch fires only at
  the deletion, while a watch of ``exists`` also fires when the data changes. One release wakes one waiter.
* After a lost reply to ``create``, the client runs ``sync``, because another server may lag behind the one that
  executed the request. Then it looks for the contender by its UUID and by ``ephemeralOwner``.
* A contender that has waited proves by a quorum request that its session is alive before it holds the lock.
* A failed acquisition leaves no contender: see :mod:`lock_manager.zookeeper.cleanup`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from lock_manager import tracing
from lock_manager.deadline import Deadline
from lock_manager.errors import (
    ContenderGoneError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockTimeoutError,
)
from lock_manager.waits import WAITING_LOGGER, WaitReports
from lock_manager.zookeeper import znodes
from lock_manager.zookeeper.cleanup import ABANDON_SECONDS, Cleanup
from lock_manager.zookeeper.request import AcquireResult, JoinedQueue, Request, checking_transaction
from lock_manager.zookeeper.responses import failure_in
from lock_manager.zookeeper.session import (
    EXPECTED_ERRORS,
    NO_ANSWER,
    POLL_SECONDS,
    SESSION_GONE,
    UNANSWERED,
    Session,
    SessionState,
)

log = logging.getLogger(WAITING_LOGGER)

_TRY_SECONDS = 15.0
"""Time limit of a try-lock (timeout 0) to connect and to ask, in seconds. It never waits in the queue."""

_EXPLAIN_SECONDS = 1.0
"""Time beyond the deadline in which a timed-out acquire reads the contenders ahead for its message, in seconds."""

_FAIR_RESPONSE_SECONDS = 1.0
"""Time after which a missing response means an unavailable ensemble, and not a short deadline, in seconds."""

#: Kazoo's AsyncResults of the children of queues, by index in the request, and of the intents, by table.
_Listing = tuple[dict[int, Any], dict[str, Any]]


class Acquisition:
    """One attempt to reach the head of every queue of a request.

    Call :meth:`run`, and :meth:`abandon` if it or a later step fails. Connecting and waiting raise LockCancelledError
    if the acquire was cancelled, and EnsembleUnavailableError if the ensemble did not respond before the deadline.

    The attempt joins the queues in the request's order. A request never waits in one queue while it has an entry in a
    later one. So two requests never wait for each other. One transaction joins all remaining queues. If a conflicting
    contender is ahead in one of them, the attempt deletes its entries in the later queues before it waits. With a
    deadline of 0 seconds it acquires only a free lock.
    """

    def __init__(self, session: Session, request: Request, deadline: Deadline) -> None:
        self._session = session
        self.request = request
        self.deadline = deadline
        self._reports = WaitReports(request.resource, deadline, request.observer)
        self._try_only = deadline.seconds == 0
        # A try-lock does not wait in the queue, but it needs time for the responses.
        self._response_deadline = Deadline(_TRY_SECONDS) if self._try_only else deadline
        #: Makes the waiting thread read the queues again.
        self._wake = threading.Event()
        request.cancellation.on_request(self._wake.set)
        self._session_id = 0
        self._sent_at = 0.0
        self._hold_id = ""
        self._entries: list[JoinedQueue] = []
        #: Number of queues, from the first one on, in which no conflicting contender is ahead.
        self._head_count = 0
        #: Whether the ensemble may have other entries of this request than ``_entries``.
        self._entries_unsure = False

    def connect(self) -> int:
        """Connect if necessary and return the session's id. :meth:`run` calls this method, too."""
        try:
            return self._session.ensure_ready(self._response_deadline, self.request.cancellation.requested)
        except EnsembleUnavailableError:
            self._raise_if_cancelled()
            raise

    def run(self) -> AcquireResult:
        """Join the queues and wait until the request is at the head of each.

        Raises:
            LockTimeoutError: Other contenders were still ahead at the deadline.

        """
        self._session.add_waker(self._wake.set)
        try:
            return self._run()
        finally:
            self._session.remove_waker(self._wake.set)

    def abandon(self, cleanup: Cleanup) -> None:
        """Leave the queues, whether or not the state of the entries in them is certain.

        ``cleanup`` gets the entries before this method waits, so a second Ctrl-C does not prevent their deletion.
        """
        paths = [queue.path for queue in self.request.queues]
        if not self._hold_id:
            return
        if not cleanup.discard(paths, self._hold_id, ABANDON_SECONDS):
            log.warning(
                "a contender on %s is not deleted yet: the deletion continues in the background", self.request.resource
            )
        elif self._session.session_id == self._session_id:
            self._offer_is_certain()

    def _run(self) -> AcquireResult:
        while True:
            self._raise_if_cancelled()
            try:
                session_id = self.connect()
                self._sent_at = time.monotonic()
                if (result := self._advance(session_id)) is not None:
                    self._raise_if_cancelled()
                    return result
            except NO_ANSWER:
                self._entries_unsure = bool(self._hold_id)
                if self._response_deadline.remaining() == 0:
                    raise self._no_response_error() from None
            except SESSION_GONE:
                self._raise_if_offered()
                self._reset()
            except NoNodeError:
                # A queue does not exist yet, or a contender of this request was removed.
                if self._entries:
                    self._raise_if_offered()
                self._entries_unsure = bool(self._entries)
                if not self._entries:
                    self._hold_id = ""
                self._make_queues()

    def _advance(self, session_id: int) -> AcquireResult | None:
        """Join the remaining queues or read them again, and wait if a conflicting contender is ahead.

        The result is None if the queues must be read again.
        """
        if self._session_id != session_id:
            self._raise_if_offered()
            if self._entries:
                log.warning(
                    "the session ended while the request for %s waited: it joins the end of the queue again",
                    self.request.resource,
                )
            self._reset()
            self._session_id = session_id
        if self._entries_unsure:
            self._find_entries()
        joins = len(self._entries) == self._head_count
        queues, intents = self._wait_for_listing(self._join_queues() if joins else self._check_and_list())
        for index, entry in enumerate(self._entries[self._head_count :], self._head_count):
            if entry.contender not in queues[index]:
                self._raise_if_offered()
                log.warning(
                    "another client removed the contender of the request for %s: it joins the end of the queue again",
                    self.request.resource,
                )
                self._leave_queues(0)
                self._reset()
                return None
            predecessors = znodes.conflicting_predecessors(queues[index], entry.contender)
            if predecessors:
                if joins:
                    tracing.current().set({"sluice.lock.ahead": len(predecessors)})
                self._leave_queues(index + 1)
                if self._try_only or not self._wait_behind(predecessors[-1], entry):
                    # This takes some time beyond the deadline. In return the message names the holder.
                    raise self._timeout_error(*self._read_predecessors(entry))
                return None
            self._head_count = index + 1
        if self._head_count < len(self.request.queues):
            return None
        return self._result(queues, intents)

    def _offer_is_certain(self) -> None:
        """Record that no request with the offer can appear in the queue later."""
        if self.request.offer is not None:
            self.request.offer.is_uncertain = False

    def _raise_if_offered(self) -> None:
        """Raise ContenderGoneError if a holder may have committed the offer of this request."""
        if self.request.offer is not None and self._hold_id:
            raise ContenderGoneError(resource=self.request.resource)

    def _result(self, queues: Mapping[int, list[znodes.Contender]], intents: Mapping[str, list[str]]) -> AcquireResult:
        """Return the result; an intent is unfinished if its hold has no contender in its table's queue any more."""
        unfinished = {}
        for table, names in intents.items():
            hold_ids = {contender.hold_id for contender in queues[self._table_index(table)]}
            unfinished[table] = tuple(name for name in names if znodes.hold_of_intent(name) not in hold_ids)
        return AcquireResult(self._hold_id, tuple(self._entries), self._session_id, unfinished)

    # -- requests ------------------------------------------------------------------------------------------------

    def _wait(self, result: Any) -> Any:
        """Wait for kazoo's AsyncResult until the deadline or the cancellation."""
        while True:
            interval = Deadline(min(POLL_SECONDS, self._response_deadline.remaining()))
            try:
                return self._session.wait(result, interval)
            except KazooTimeoutError:
                self._raise_if_cancelled()
                if self._response_deadline.remaining() == 0:
                    raise

    def _wait_for_transaction(self, result: Any) -> list[Any]:
        """Return the results of a transaction, or raise the error that made it fail."""
        results: list[Any] = self._wait(result)
        if (failure := failure_in(results)) is not None:
            self._session.raise_response_error(failure.error)
        return results

    def _table_index(self, table: str) -> int:
        """Return the index of a table's queue in the request."""
        return next(index for index, queue in enumerate(self.request.queues) if queue.table == table)

    def _send_listing(self, indices: Iterable[int]) -> _Listing:
        """Send requests that list these queues, the tables' queues and the intents.

        Partitions come before their table, and intents are last. A hold leaves its table's queue no later than a
        partition's (see :class:`Cleanup`). So if the list of a partition's queue lacks a hold that has ended, the later
        list of intents contains its intent, and the list of its table's queue lacks the hold, too: the intent is
        unfinished.
        """
        client, tables = self._session.client, self.request.tables
        indices = {*indices, *map(self._table_index, tables)}
        paths = {index: self.request.queues[index].path for index in sorted(indices, reverse=True)}
        queues = {index: client.get_children_async(path) for index, path in paths.items()}
        return queues, {table: client.get_children_async(znodes.intents_node(path)) for table, path in tables.items()}

    def _wait_for_listing(self, listing: _Listing) -> tuple[dict[int, list[znodes.Contender]], dict[str, list[str]]]:
        queue_results, intent_results = listing
        queues = {index: znodes.parse_queue(self._wait(result)) for index, result in queue_results.items()}
        intents = {}
        for table, result in intent_results.items():
            try:
                intents[table] = self._wait(result)
            except NoNodeError:
                # A queue that another program created has no parent znode for intents.
                intents[table] = []
        return queues, intents

    def _join_queues(self) -> _Listing:
        """Join the remaining queues in one transaction, which also checks the existing contenders, and list them."""
        client = self._session.client
        if not self._hold_id:
            self._hold_id = uuid.uuid4().hex
            if self.request.offer is not None:
                self.request.offer.requests.append(self._hold_id)
        entry_count = len(self._entries)
        queues = self.request.queues[entry_count:]
        paths = [znodes.new_contender_path(queue.path, self._hold_id, queue.mode) for queue in queues]
        data = [self.request.contender_data(queue) for queue in queues]
        sent_at = time.monotonic()
        if entry_count == 0 and len(queues) == 1:
            # The response to a single create contains the contender's stat, so a second request is not needed.
            if self.request.offer is not None:
                self.request.offer.is_uncertain = True
            created = client.create_async(paths[0], data[0], ephemeral=True, sequence=True, include_data=True)
            listing = self._send_listing([0])
            try:
                path, stat = self._wait(created)
            except (NoNodeError, EnsembleRefusedError):
                self._offer_is_certain()
                raise
            self._entries.append(JoinedQueue(queues[0], path, znodes.contender_at(path), stat.czxid))
            self._session.record_proof(sent_at, stat.ephemeralOwner)
            self._offer_is_certain()
            return listing
        transaction = checking_transaction(client, self._entries)
        for path, content in zip(paths, data, strict=True):
            transaction.create(path, content, ephemeral=True, sequence=True)
        committed = transaction.commit_async()
        listing = self._send_listing(range(entry_count, len(self.request.queues)))
        created_paths = self._wait_for_transaction(committed)[entry_count:]
        # All znodes of one transaction have the same czxid.
        stat = self._wait(client.exists_async(created_paths[0]))
        if stat is None:
            raise NoNodeError
        for queue, path in zip(queues, created_paths, strict=True):
            self._entries.append(JoinedQueue(queue, path, znodes.contender_at(path), stat.czxid))
        self._session.record_proof(sent_at, self._session_id)
        return listing

    def _check_and_list(self) -> _Listing:
        """List the queues and prove, by a quorum request in the same round trip, that all contenders exist."""
        sent_at = time.monotonic()
        committed = checking_transaction(self._session.client, self._entries).commit_async()
        listing = self._send_listing(range(self._head_count, len(self._entries)))
        self._wait_for_transaction(committed)
        self._session.record_proof(sent_at, self._session_id)
        return listing

    def _leave_queues(self, start: int) -> None:
        """Delete the entries from index ``start`` on: no request waits while it has an entry in a later queue."""
        entries, self._entries = self._entries[start:], self._entries[:start]
        if entries:
            self._entries_unsure = True
            self._delete([entry.path for entry in entries])
            self._entries_unsure = False

    def _delete(self, paths: Iterable[str]) -> None:
        """Delete znodes that may be gone already."""
        for result in [self._session.client.delete_async(path) for path in paths]:
            with suppress(NoNodeError):
                self._wait(result)

    def _find_entries(self) -> None:
        """Find the existing contenders of this request, after a request got no response.

        The responding server may be another one than the server that executed the request. Entries are kept as long as
        they follow one another from the first queue on. The others are deleted.
        """
        client = self._session.client
        entries: list[JoinedQueue] = []
        stray_paths: list[str] = []
        self._wait(client.sync_async(self.request.queues[0].path))
        for index, queue in enumerate(self.request.queues):
            try:
                contenders = znodes.parse_queue(self._wait(client.get_children_async(queue.path)))
            except NoNodeError:
                # The queue was removed, so it was empty.
                continue
            for contender in contenders:
                if not znodes.is_contender_of(contender.name, self._hold_id):
                    continue
                path = znodes.child_node(queue.path, contender.name)
                stat = self._wait(client.exists_async(path))
                if stat is None or stat.ephemeralOwner != self._session_id:
                    continue
                if len(entries) == index:
                    entries.append(JoinedQueue(queue, path, contender, stat.czxid))
                else:
                    stray_paths.append(path)
        self._offer_is_certain()
        self._delete(stray_paths)
        self._entries, self._head_count = entries, min(self._head_count, max(0, len(entries) - 1))
        if not entries:
            self._raise_if_offered()
            # A contender that appears later must not be mistaken for a contender of the next attempt.
            self._hold_id = ""
        self._entries_unsure = False

    def _reset(self) -> None:
        self._entries, self._head_count, self._entries_unsure, self._hold_id = [], 0, False, ""

    def _make_queues(self) -> None:
        """Create the znodes of all queues, and the parent znode of each table's intents.

        An empty queue may be removed again before the request joins it, or meanwhile. Then this method runs again.
        """
        client, tables = self._session.client, self.request.tables
        nodes = []
        for table, path in tables.items():
            nodes += [(path, json.dumps({"uri": table}).encode()), (znodes.intents_node(path), b"")]
        for queue in self.request.queues:
            if queue.path not in tables.values():
                data = json.dumps(dict(queue.description)).encode()
                nodes += [(znodes.parent_of(queue.path), b""), (queue.path, data)]
        for path, result in [(path, client.create_async(path, data)) for path, data in nodes]:
            try:
                self._wait(result)
            except NoNodeError:
                if path in tables.values():
                    self._session.recheck_root()
            except (NodeExistsError, *UNANSWERED):
                pass  # the creation of the contender shows whether the znode exists

    # -- waiting -------------------------------------------------------------------------------------------------

    def _wait_behind(self, predecessor: znodes.Contender, entry: JoinedQueue) -> bool:
        """Wait for a reason to read the queues again; return False if the deadline passed first."""
        paths = [znodes.child_node(entry.queue.path, predecessor.name)]
        if self.request.offer is not None:
            # A holder removes this contender when it has committed the offer.
            paths.append(entry.path)
        self._wake.clear()
        try:
            for result in [self._session.watch(path, self._wake.set) for path in paths]:
                self._wait(result)
            # The clear() above may have discarded a cancellation or a change of state. So both are checked here.
            self._raise_if_cancelled()
            if self._session.state is not SessionState.CONNECTED or self._session.session_id != self._session_id:
                return True
            return self._wait_and_report(entry)
        except NoNodeError:
            return True
        finally:
            for path in paths:
                self._session.unwatch(path, self._wake.set)

    def _wait_and_report(self, entry: JoinedQueue) -> bool:
        """Wait until woken and report the contenders ahead from time to time; return False if the deadline passed."""
        while not self._wake.wait(min(self._reports.due_seconds(), self.deadline.remaining())):
            if self.deadline.remaining() == 0:
                return False
            self._reports.report(*self._read_predecessors(entry))
        return True

    def _raise_if_cancelled(self) -> None:
        if self.request.cancellation.requested.is_set():
            raise LockCancelledError(resource=self.request.resource)

    def _no_response_error(self) -> LockTimeoutError | EnsembleUnavailableError:
        if self._session.state is SessionState.CONNECTED and time.monotonic() - self._sent_at < _FAIR_RESPONSE_SECONDS:
            return self._timeout_error(None, None)
        hosts = self._session.settings.zk_hosts
        return EnsembleUnavailableError(hosts, self._response_deadline.elapsed(), "join the queue")

    def _timeout_error(self, ahead: int | None, holder: dict[str, Any] | None) -> LockTimeoutError:
        resource, seconds = self.request.resource, self.deadline.seconds
        return LockTimeoutError(resource=resource, timeout_seconds=seconds, ahead=ahead, holder=holder)

    def _read_predecessors(self, entry: JoinedQueue) -> tuple[int | None, dict[str, Any] | None]:
        """Return the number of contenders ahead and the data of the first one, each None if it cannot be read soon."""
        count: int | None = None
        holder: dict[str, Any] | None = None
        with suppress(*EXPECTED_ERRORS, EnsembleRefusedError, ValueError, IndexError):
            deadline = Deadline(_EXPLAIN_SECONDS)
            path, client = entry.queue.path, self._session.client
            contenders = znodes.parse_queue(self._session.wait(client.get_children_async(path), deadline))
            predecessors = znodes.conflicting_predecessors(contenders, entry.contender)
            count = len(predecessors)
            data, _ = self._session.wait(client.get_async(znodes.child_node(path, predecessors[0].name)), deadline)
            content = json.loads(data)
            holder = content if isinstance(content, dict) else None
        return count, holder
