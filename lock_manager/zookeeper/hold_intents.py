"""The znodes of intents (:mod:`lock_manager.intents`), below the znode of their table.

A hold's intent is a child of ``<table's znode>/intents`` whose name begins with the hold's id. The request that checks
the hold writes it. The request that deletes the contender deletes it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from operator import methodcaller
from typing import Any, Protocol

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import ContenderGoneError
from lock_manager.intents import UNREADABLE, Intent
from lock_manager.signals import SignalIsolation
from lock_manager.zookeeper.responses import retry_unanswered
from lock_manager.zookeeper.session import UNANSWERED, Session
from lock_manager.zookeeper.znodes import child_node, hold_of_intent, intent_node

log = logging.getLogger(__name__)

_MAX_SECONDS = 45.0
"""Maximum time limit for requests about an intent, in seconds: the log store waits a minute for the commit guard."""


class Confirm(Protocol):
    """Type of :meth:`HoldState.confirm`."""

    def __call__(
        self,
        deadline: Deadline,
        request_name: str,
        operation: Callable[[Any], None] | None = None,
        members: Sequence[str] = (),
    ) -> Exception | None:
        """See :meth:`HoldState.confirm`."""


class _IntentState(Enum):
    """State of the intent that the hold wrote last."""

    #: No intent exists, as far as the hold knows.
    NONE = "none"
    #: An intent exists, and the outcome of some attempt is unknown.
    OPEN = "open"
    #: An intent exists, and the outcome of every attempt is known.
    SETTLED = "settled"


class HoldIntents:
    """The intents of one hold on one table; implements :class:`lock_manager.coordinator.Intents`.

    ``node`` is the parent znode of the table's intents. ``unfinished`` contains the names of the unfinished intents
    that were found when the hold began.
    """

    def __init__(
        self,
        hold_id: str,
        confirm: Confirm,
        session: Session,
        isolation: SignalIsolation,
        node: str,
        unfinished: tuple[str, ...],
    ) -> None:
        self.unfinished = unfinished
        self._hold_id = hold_id
        self._confirm = confirm
        self._session = session
        self._isolation = isolation
        self._node = node
        self._intent = intent_node(node, hold_id)
        self._cleared_count = 0
        self._state = _IntentState.NONE
        self._write_lock = threading.Lock()
        self._highest_version = -1
        # Guards the next attribute. It is never held across a request.
        self._lock = threading.Lock()
        self._open: dict[str, Intent] = {}
        #: Version of each intent's znode when it was read, by name.
        self._read_versions: dict[str, int] = {}

    @property
    def open(self) -> Mapping[str, int]:
        """Version that each attempt may put, by attempt id, for the attempts of this hold whose outcome is unknown."""
        with self._lock:
            return {attempt: intent.version for attempt, intent in self._open.items()}

    def record(self, intent: Intent, members: Mapping[str, str]) -> dict[str, str]:
        """Write the hold's intent over its previous one; see :meth:`HeldLock.intend`.

        The attempt is open afterwards. If this method raises, the attempt is not made and not open.

        Args:
            members: Write ids of waiting contenders by path.

        Returns:
            The members that were still waiting. The intent names their write ids.

        """
        waiting = dict(members)
        try:
            with self._write_lock:
                self._highest_version = max(self._highest_version, intent.version)
                self._write(intent, waiting)
        except BaseException:
            self.settle([intent.attempt])
            raise
        return waiting

    def _data(self, intent: Intent, waiting: Mapping[str, str]) -> bytes:
        with self._lock:
            # Open before the request: if its response is too late for the log store, the attempt still counts as open.
            self._open[intent.attempt] = replace(intent, members=tuple(waiting.values()))
            # A slower thread of this hold, whose version is taken by now, must not hide the intent of a later put.
            members = [member for open_intent in self._open.values() for member in open_intent.members]
        return replace(intent, version=self._highest_version, members=tuple(members)).data()

    def _write(self, intent: Intent, waiting: dict[str, str]) -> None:
        deadline = self._session.response_deadline(_MAX_SECONDS)
        while True:
            is_new = self._state is _IntentState.NONE
            if not is_new:
                self._state = _IntentState.OPEN
            write = methodcaller("create" if is_new else "set_data", self._intent, self._data(intent, waiting))
            problem = self._confirm(deadline, "write an intent", write, tuple(waiting))
            if isinstance(problem, ContenderGoneError):
                del waiting[problem.resource]
                continue
            if problem is None or isinstance(problem, NodeExistsError):
                # The intent exists if an earlier request of this hold got no response.
                self._state = _IntentState.OPEN
            else:
                # The parent znode does not exist yet, or another client has cleared the intent.
                self._state = _IntentState.NONE
                if not is_new:
                    # A client that has read the old name could clear the new intent unread. No client knows a new name.
                    self._cleared_count += 1
                    self._intent = intent_node(self._node, self._hold_id, self._cleared_count)
                with suppress(NodeExistsError, NoNodeError, *UNANSWERED):
                    self._session.wait(self._session.client.create_async(self._node), deadline)
            if problem is None:
                return
            self._session.wait_for_retry(deadline, "write an intent")

    def settle(self, attempts: Iterable[str]) -> None:
        """Record that the outcome of these attempts is known; if none is open, the release deletes the intent."""
        with self._lock:
            for attempt in attempts:
                self._open.pop(attempt, None)
            if self._state is _IntentState.OPEN and not self._open:
                self._state = _IntentState.SETTLED

    def read(self) -> list[Intent]:
        """Return the unfinished intents of earlier holds; raise the errors of :meth:`HeldLock.check`."""
        deadline = self._session.response_deadline(_MAX_SECONDS)
        return self._isolation.run(
            lambda: [intent for name in self.unfinished if (intent := self._read(name, deadline)) is not None]
        )

    def clear(self) -> None:
        """Delete the unfinished intents whose znodes have not changed since they were read; see :meth:`Intents.clear`.

        If this raises an error of :meth:`HeldLock.check`, the next holder finds the intents that were not deleted.
        """
        self._isolation.run(self._clear)

    @property
    def settled(self) -> bool:
        """Whether the hold has an intent that can be deleted."""
        return self._state is _IntentState.SETTLED

    def add_deletion(self, transaction: Any) -> None:
        """Add the deletion of the hold's intent to ``transaction``."""
        transaction.delete(self._intent)

    def record_deletion(self) -> None:
        """Record that another client has cleared the hold's intent."""
        self._state = _IntentState.NONE

    def _clear(self) -> None:
        deadline = self._session.response_deadline(_MAX_SECONDS)
        for name, znode_version in self._read_versions.items():
            delete = methodcaller("delete", child_node(self._node, name), znode_version)
            problem = self._confirm(deadline, "clear an intent", delete)
            if isinstance(problem, BadVersionError):
                log.info("the intent %s has changed since it was read: its hold is alive, so the intent stays", name)
        self._read_versions.clear()
        self.unfinished = ()

    def _read(self, name: str, deadline: Deadline) -> Intent | None:
        def confirm_and_get() -> Any:
            self._confirm(deadline, "read an intent", None)
            return self._session.wait(self._session.client.get_async(child_node(self._node, name)), deadline)

        try:
            data, stat = retry_unanswered(self._session, deadline, confirm_and_get, "read an intent")
            self._read_versions[name] = stat.version
            return Intent.parse(data)
        except NoNodeError:
            return None
        except ValueError:
            return Intent(hold_id=hold_of_intent(name), version=UNREADABLE, txn=None, attempt="", token=-1)
