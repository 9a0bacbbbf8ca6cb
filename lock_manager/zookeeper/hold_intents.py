"""Where the intents of holds (:mod:`lock_manager.intents`) are kept: below the znode of their table.

A hold's intent is a child of ``<table's znode>/intents`` whose name begins with the hold's id. It is written by the
request that confirms the hold, and removed together with the contender.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.intents import UNREADABLE, Intent
from lock_manager.zookeeper.asking import UNANSWERED, insist
from lock_manager.zookeeper.session import VALID_FRACTION, Session
from lock_manager.zookeeper.signals import SignalIsolation
from lock_manager.zookeeper.znodes import intent_at, intent_node

log = logging.getLogger(__name__)

_MOST_SECONDS = 45.0
"""How long the ensemble is asked about an intent at most: the log store waits a minute for the commit guard."""


class _Noted(Enum):
    """What the ensemble has of a hold's own intents."""

    NOTHING = "nothing"
    #: The newest one, and what became of it is not known.
    OPEN = "open"
    #: The newest one, and what became of all of them is known.
    SETTLED = "settled"


class Confirm(Protocol):
    """Asks whether the hold stands; see :meth:`Standing.confirmed`."""

    def __call__(
        self, deadline: Deadline, doing: str, operation: Callable[[Any], None] | None = None
    ) -> Exception | None:
        """Ask, together with one more operation that is done if and only if the hold stands."""


class HoldIntents:
    """The intents of one hold, and those that holds before it left behind.

    Args:
        hold_id: of the hold.
        confirm: asks whether it stands.
        session: to ask through.
        isolation: keeps signal handlers out of its requests.
        node: znode below which the table's intents are.
        unfinished: names of those that were found when the hold began.

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
        self._own = intent_node(node, hold_id)
        self._renewed = 0
        self._noted = _Noted.NOTHING
        self._noting = threading.Lock()
        self._highest = -1
        # Of the two next; never held across a request.
        self._changing = threading.Lock()
        self._open: dict[str, int] = {}
        self._read_at: dict[str, int] = {}

    @property
    def open(self) -> Mapping[str, int]:
        """Attempts of this hold whose outcome is not known yet: the version that each may put, by name."""
        with self._changing:
            return dict(self._open)

    def note(self, intent: Intent) -> None:
        """Write our intent, over the one before; see :meth:`HeldLock.intend`.

        The attempt is open from now on, unless this raises: then it is not made.
        """
        with self._changing:
            # Before the question: an answer that comes too late for the log store must leave its trace here.
            self._open[intent.attempt] = intent.version
        try:
            with self._noting:
                self._highest = max(self._highest, intent.version)
                # A slower thread of the same hold, whose version is taken by now, must not hide a put on its way.
                self._note(replace(intent, version=self._highest).data())
        except BaseException:
            self.settle([intent.attempt])
            raise

    def _note(self, data: bytes) -> None:
        deadline = self._deadline()
        while True:
            fresh = self._noted is _Noted.NOTHING
            if not fresh:
                self._noted = _Noted.OPEN

            def write(transaction: Any, *, fresh: bool = fresh) -> None:
                if fresh:
                    transaction.create(self._own, data)
                else:
                    transaction.set_data(self._own, data)

            problem = self._confirm(deadline, "noting an intent", write)
            if problem is None or isinstance(problem, NodeExistsError):
                # It exists: an earlier request of ours had no answer.
                self._noted = _Noted.OPEN
            else:
                # There is no place for intents yet, or somebody cleared ours away.
                self._noted = _Noted.NOTHING
                if not fresh:
                    # Another name, which nobody has read: by the old one it could be cleared away again, unread.
                    self._renewed += 1
                    self._own = intent_node(self._node, self._hold_id, self._renewed)
                with suppress(NodeExistsError, NoNodeError, *UNANSWERED):
                    self._session.wait(self._session.client.create_async(self._node), deadline)
            if problem is None:
                return
            self._session.wait_again(deadline, "noting an intent")

    def settle(self, attempts: Iterable[str]) -> None:
        """Say that the outcome of these attempts is known: each was stored, or never will be.

        The release removes our intent if no attempt of the hold is open by then.
        """
        with self._changing:
            for attempt in attempts:
                self._open.pop(attempt, None)
            if self._noted is _Noted.OPEN and not self._open:
                self._noted = _Noted.SETTLED

    def read(self) -> list[Intent]:
        """Return what the holds before this one were about to put when they ended.

        Raises:
            EnsembleUnavailableError: no answer in time.
            LockLostError, LockNotHeldError: this hold is over.

        """
        return self._isolation.run(self._read_all)

    def clear(self) -> None:
        """Forget the unfinished intents, as they were read: their versions are filled now.

        An intent that has changed since it was read is of a hold that lives. It stays.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: as
                :meth:`HeldLock.check`; what was not forgotten by then is found by the next holder.

        """
        self._isolation.run(self._clear)

    # -- for the release -----------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether there is an intent of ours that can go."""
        return self._noted is _Noted.SETTLED

    def forget_in(self, transaction: Any) -> None:
        """Have ``transaction`` delete our intent."""
        transaction.delete(self._own)

    def are_gone(self) -> None:
        """Take note that somebody has cleared ours away."""
        self._noted = _Noted.NOTHING

    # -- inside --------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        deadline = self._deadline()
        for name, version in self._read_at.items():

            def delete(transaction: Any, *, path: str = intent_at(self._node, name), version: int = version) -> None:
                transaction.delete(path, version)

            problem = self._confirm(deadline, "clearing an intent", delete)
            if isinstance(problem, BadVersionError):
                log.info("the intent %s has changed since it was read: its hold lives, and it stays", name)
        self._read_at.clear()
        self.unfinished = ()

    def _read_all(self) -> list[Intent]:
        deadline = self._deadline()
        return [intent for name in self.unfinished if (intent := self._read(name, deadline)) is not None]

    def _read(self, name: str, deadline: Deadline) -> Intent | None:
        def ask() -> tuple[bytes, Any]:
            self._confirm(deadline, "reading an intent")
            asked = self._session.client.get_async(intent_at(self._node, name))
            found: tuple[bytes, Any] = self._session.wait(asked, deadline)
            return found

        try:
            data, stat = insist(self._session, deadline, ask, "reading an intent")
            self._read_at[name] = stat.version
            return Intent.parse(data)
        except NoNodeError:
            return None
        except ValueError:
            return Intent(hold_id=name, version=UNREADABLE, txn=None, attempt="", token=-1)

    def _deadline(self) -> Deadline:
        return Deadline(min(_MOST_SECONDS, VALID_FRACTION * self._session.granted_seconds))
