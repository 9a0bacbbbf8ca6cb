"""The recipe: one fair queue per znode, exclusive and shared.

A contender is an ephemeral sequential child named as kazoo names them, ``<uuid>__lock__<seq>`` (exclusive) or
``<uuid>__rlock__<seq>`` (shared), so that programs with kazoo's ``WriteLock`` and ``ReadLock`` on the same path take
part in the same queue. It holds the lock when no conflicting contender has a smaller sequence number.

Source: ZooKeeper's recipe page ("Shared Locks"), with what it leaves open:

* Creating the contender and listing the queue share one round trip: a session's requests are answered in order.
* Each waits for the nearest conflicting predecessor only, by a *child* watch on it: that fires when it is deleted and
  at nothing else, while the watch of ``exists`` also fires when its data is written. One release wakes one waiter.
* After a lost reply to ``create`` the contender is looked for, after a ``sync`` (another server may lag behind the
  one that took the request), by its UUID and by ``ephemeralOwner``.
* Whoever waited proves by a quorum request, before it may go on, that its session still stands.
* An attempt that fails in any way leaves no contender: see :mod:`lock_manager.janitor`.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
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
from lock_manager.intents import intents_node
from lock_manager.janitor import ABANDON_SECONDS, Janitor
from lock_manager.session import (
    EXPECTED,
    LOOK_SECONDS,
    NO_ANSWER,
    SESSION_GONE,
    Deadline,
    Session,
    SessionState,
)

log = logging.getLogger(__name__)

EXCLUSIVE_MARK = "__lock__"
SHARED_MARK = "__rlock__"
_WRAP = 2**32
_NAME = re.compile(rf"({EXCLUSIVE_MARK}|{SHARED_MARK})(-?\d+)$")

TRY_SECONDS = 15.0
"""How long a try-lock (time-out 0) may take to connect and to ask; it never waits in the queue."""

EXPLAIN_SECONDS = 1.0
"""How long a time-out may take beyond its deadline to find out who is ahead, for its message."""


REPORT_SECONDS = 10.0
"""How often a contender that waits logs whom it waits for."""


@dataclass(frozen=True)
class Contender:
    """One place in the queue, as its name tells.

    Attributes:
        sequence: place in the order, see :func:`parse_queue`.
        name: of its znode.
        shared: whether it conflicts with exclusive contenders only.

    """

    sequence: int
    name: str
    shared: bool

    def conflicts_with(self, other: Contender) -> bool:
        """Tell whether the two may not hold at the same time."""
        return not (self.shared and other.shared)


def parse_queue(children: list[str]) -> list[Contender]:
    """Return the contenders among a znode's children, first come first.

    Sequence numbers are a signed 32-bit counter that wraps around: of two, the one that a short way up leads from is
    the earlier, so that a newcomer behind 2147483647 is not taken for the oldest.
    """
    matches = ((name, _NAME.search(name)) for name in children)
    contenders = [Contender(int(match[2]), name, match[1] == SHARED_MARK) for name, match in matches if match]
    return sorted(contenders, key=functools.cmp_to_key(_steps_after))


def _steps_after(one: Contender, other: Contender) -> int:
    return (one.sequence - other.sequence + _WRAP // 2) % _WRAP - _WRAP // 2


def conflicting_ahead(queue: list[Contender], own: Contender) -> list[Contender]:
    """Return who has to leave before ``own``, which is in ``queue``, may hold; first come first."""
    return [other for other in queue[: queue.index(own)] if other.conflicts_with(own)]


@dataclass(frozen=True)
class Place:
    """A contender of ours that exists, or existed.

    Attributes:
        path: of its znode.
        contender: its place in the queue.
        token: its czxid, a number that only rises: the fencing token.
        session_id: of the session that it lives with.
        unclean: names of the intents that were found when it came to the head: of holds that ended uncleanly.

    """

    path: str
    contender: Contender
    token: int
    session_id: int
    unclean: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        uri: canonical URI of the table.
        node: znode of the queue.
        shared: shared or exclusive.
        identity: who asks, for people: host, pid, job and so on. JSON values.
        cancelled: set to stop waiting; see :meth:`Attempt.cancel`.

    """

    uri: str
    node: str
    shared: bool
    identity: dict[str, Any]
    cancelled: threading.Event

    def data(self, **since: float) -> bytes:
        """Return what the contender's znode holds: who it is and, once it holds, ``acquired_at``."""
        return json.dumps({**self.identity, **since}).encode()


class Attempt:
    """One try to get to the head of a queue: :meth:`run` it, and :meth:`abandon` it if anything fails since.

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
        self._prefix = ""
        self._place: Place | None = None
        self._asked_at = 0.0

    @property
    def uri(self) -> str:
        """Canonical URI of the table that is asked for."""
        return self._request.uri

    def cancel(self) -> None:
        """Have the waiting thread raise LockCancelledError."""
        self._request.cancelled.set()
        self.wake()

    def wake(self) -> None:
        """Have the waiting thread look again."""
        self._wake.set()

    def run(self) -> Place:
        """Queue up, wait, and return the place at the head of the queue.

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
        """Leave the queue, whatever is known of our place in it.

        The janitor has the order before this waits for it, so that a second Ctrl-C meanwhile changes nothing.
        """
        if self._prefix and not janitor.discard(self._request.node, self._prefix, ABANDON_SECONDS):
            log.warning(
                "a contender on %s could not be removed yet; it will be, or ends with the session",
                self._request.uri,
            )

    def _run(self) -> Place:
        while True:
            self._raise_if_cancelled()
            try:
                session_id = self._session.ready(self._answer_by, self._request.cancelled)
                self._asked_at = time.monotonic()
                if (place := self._look(session_id)) is not None:
                    self._raise_if_cancelled()
                    return place
            except EnsembleUnavailableError:
                self._raise_if_cancelled()
                raise
            except NO_ANSWER:
                if self._answer_by.remaining() == 0:
                    raise self._no_answer() from None
            except SESSION_GONE:
                self._place = None
            except NoNodeError:
                # There is no queue yet, or our contender was removed as it came to the head.
                self._place, self._prefix = None, ""
                self._make_queue()

    def _look(self, session_id: int) -> Place | None:
        """Queue up if need be and look who is ahead; return our place if nobody is, else wait for a reason to look."""
        if self._place is not None and self._place.session_id != session_id:
            log.warning("the session ended while queued for %s: back to the end of the queue", self._request.uri)
            self._place = None
        if self._place is None:
            self._place, listing = self._enqueue(session_id)
        else:
            listing = self._look_again(self._place)
        children, intents = self._answer_to(listing)
        queue = parse_queue(children)
        if self._place.contender not in queue:
            log.warning("our contender on %s was removed: back to the end of the queue", self._request.uri)
            self._place = None
            return None
        ahead = conflicting_ahead(queue, self._place.contender)
        if not ahead:
            return replace(self._place, unclean=tuple(intents))
        if self._try_only or not self._wait_behind(ahead[-1], self._place):
            raise self._timeout()
        return None

    def _answer(self, result: Any) -> Any:
        while True:
            slice_end = Deadline(min(LOOK_SECONDS, self._answer_by.remaining()))
            try:
                return self._session.wait(result, slice_end)
            except KazooTimeoutError:
                self._raise_if_cancelled()
                if self._answer_by.remaining() == 0:
                    raise

    def _list(self) -> tuple[Any, Any]:
        """Ask for the queue and the intents; to be given to :meth:`_answer_to`.

        In this order: if the queue says that nobody is ahead, the intents are those that were left behind.
        """
        client, node = self._session.client, self._request.node
        return client.get_children_async(node), client.get_children_async(intents_node(node))

    def _answer_to(self, listing: tuple[Any, Any]) -> tuple[list[str], list[str]]:
        children: list[str] = self._answer(listing[0])
        try:
            return children, self._answer(listing[1])
        except NoNodeError:
            # A queue that another program made has no place for them.
            return children, []

    def _enqueue(self, session_id: int) -> tuple[Place, tuple[Any, Any]]:
        client, node = self._session.client, self._request.node
        if self._prefix:
            # An earlier create of ours had no answer, or was answered but not the rest. Another server than the one
            # that took it may answer now.
            self._answer(client.sync_async(node))
            children = self._answer(client.get_children_async(node))
            if found := self._find(children, session_id):
                return found, self._look_again(found)
        self._prefix = uuid.uuid4().hex + (SHARED_MARK if self._request.shared else EXCLUSIVE_MARK)
        sent_at = time.monotonic()
        created = client.create_async(
            f"{node}/{self._prefix}", self._request.data(), ephemeral=True, sequence=True, include_data=True
        )
        listing = self._list()
        path, stat = self._answer(created)
        self._session.prove(sent_at, stat.ephemeralOwner)
        (contender,) = parse_queue([path.rpartition("/")[2]])
        return Place(path, contender, stat.czxid, stat.ephemeralOwner), listing

    def _look_again(self, place: Place) -> tuple[Any, Any]:
        """List the queue and prove, by a quorum request in the same round trip, that our session stands."""
        client = self._session.client
        sent_at = time.monotonic()
        proof = client.transaction()
        proof.check(place.path, -1)
        proven = proof.commit_async()
        listing = self._list()
        for result in self._answer(proven):
            if isinstance(result, Exception):
                raise result
        self._session.prove(sent_at, place.session_id)
        return listing

    def _find(self, children: list[str], session_id: int) -> Place | None:
        for contender in parse_queue(children):
            if contender.name.startswith(self._prefix):
                path = f"{self._request.node}/{contender.name}"
                stat = self._answer(self._session.client.exists_async(path))
                if stat is not None and stat.ephemeralOwner == session_id:
                    return Place(path, contender, stat.czxid, session_id)
        return None

    def _make_queue(self) -> None:
        about = json.dumps({"uri": self._request.uri}).encode()
        client, node = self._session.client, self._request.node
        try:
            made, _ = client.create_async(node, about), client.create_async(intents_node(node))
            self._answer(made)
        except NoNodeError:
            self._session.recheck_root()
        except (NodeExistsError, *NO_ANSWER, *SESSION_GONE):
            pass  # whether it is there now shows when the contender is created

    def _wait_behind(self, predecessor: Contender, place: Place) -> bool:
        """Wait until there is a reason to look again; False when the deadline came first."""
        path = f"{self._request.node}/{predecessor.name}"
        self._wake.clear()
        try:
            self._answer(self._session.watch(path, self.wake))
            # What happened between the listing and the watch may have woken nobody.
            self._raise_if_cancelled()
            if self._session.state is not SessionState.CONNECTED or self._session.session_id != place.session_id:
                return True
            return self._wait_for_turn()
        except NoNodeError:
            return True
        finally:
            self._session.unwatch(path, self.wake)

    def _wait_for_turn(self) -> bool:
        """Wait until woken, and say now and then for whom; False when the deadline came first."""
        while not self._wake.wait(min(REPORT_SECONDS, self._deadline.remaining())):
            if self._deadline.remaining() == 0:
                return False
            ahead, holder = self._who_is_ahead()
            if ahead is not None:
                log.info(
                    "waiting for the lock on %s for %.0f s: %s",
                    self._request.uri, self._deadline.elapsed(), describe_ahead(ahead, holder),
                )  # fmt: skip
        return True

    def _raise_if_cancelled(self) -> None:
        if self._request.cancelled.is_set():
            raise LockCancelledError(resource=self._request.uri)

    def _no_answer(self) -> LockTimeoutError | EnsembleUnavailableError:
        if self._session.state is SessionState.CONNECTED and time.monotonic() - self._asked_at < EXPLAIN_SECONDS:
            # It had no time to answer.
            return LockTimeoutError(
                resource=self._request.uri, timeout_seconds=self._deadline.seconds, ahead=None, holder=None
            )
        return EnsembleUnavailableError(self._session.settings.zk_hosts, self._answer_by.elapsed(), "queueing")

    def _timeout(self) -> LockTimeoutError:
        # Worth a moment beyond the deadline: it is what the person who reads the message wants to know.
        ahead, holder = self._who_is_ahead()
        return LockTimeoutError(
            resource=self._request.uri, timeout_seconds=self._deadline.seconds, ahead=ahead, holder=holder
        )

    def _who_is_ahead(self) -> tuple[int | None, dict[str, Any] | None]:
        """Return how many are ahead and what the first of them says of itself, each None if it cannot be read soon."""
        ahead: list[Contender] | None = None
        holder: dict[str, Any] | None = None
        with suppress(*EXPECTED, EnsembleRefusedError, ValueError, IndexError):
            deadline = Deadline(EXPLAIN_SECONDS)
            node, client = self._request.node, self._session.client
            queue = parse_queue(self._session.wait(client.get_children_async(node), deadline))
            (own,) = [entry for entry in queue if entry.name.startswith(self._prefix)]
            ahead = conflicting_ahead(queue, own)
            data, _ = self._session.wait(client.get_async(f"{node}/{ahead[0].name}"), deadline)
            described = json.loads(data)
            holder = described if isinstance(described, dict) else None
        return None if ahead is None else len(ahead), holder
