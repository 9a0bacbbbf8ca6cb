"""Whether a hold stands: what the ensemble says of it, what our own clock says, and how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError
from lock_manager.zookeeper.asking import answer_or_end
from lock_manager.zookeeper.keepalive import ANNOUNCE_SECONDS
from lock_manager.zookeeper.own_contenders import SESSION_ENDED, Answer, OwnContenders
from lock_manager.zookeeper.request import Request
from lock_manager.zookeeper.session import (
    KEEPALIVE_FRACTION,
    NO_ANSWER,
    VALID_FRACTION,
    Session,
    SessionState,
)

log = logging.getLogger(__name__)


class Standing:
    """Whether one hold stands: it does until it is lost, or ended.

    Args:
        session: to ask through.
        contenders: of the hold.
        session_id: of the session that made the contenders: they end with it.
        request: what the hold was asked for with.
        acquired_at: acquisition time, seconds since the epoch.
        on_lost: does what a loss calls for; called once, in the thread that found it out.
        end_error: returns the error that says that the hold was lost or released.

    Attributes:
        lost: how the hold was lost; None as long as that is not known.
        ended_at: when the hold was given back, or its manager closed, seconds since the epoch; None before.

    """

    def __init__(
        self,
        session: Session,
        contenders: OwnContenders,
        session_id: int,
        request: Request,
        *,
        acquired_at: float,
        on_lost: Callable[[], None],
        end_error: Callable[[], Exception],
    ) -> None:
        self.lost: str | None = None
        self.ended_at: float | None = None
        self._session = session
        self._contenders = contenders
        self._session_id = session_id
        self._request = request
        self._acquired_at = acquired_at
        self._on_lost = on_lost
        self._end_error = end_error
        self._ending = threading.Lock()
        self._asked_at = time.monotonic()
        self._announce_at = self._asked_at + ANNOUNCE_SECONDS
        most = session.settings.max_hold_seconds
        self._ends_at = float("inf") if most is None else self._asked_at + most

    # -- without asking --------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it was lost or ended."""
        return self.lost is not None or self.ended_at is not None

    @property
    def granted(self) -> bool:
        """Whether it is not known to be lost, and the session is too young to have ended; see ``VALID_FRACTION``."""
        return self.lost is None and time.monotonic() < self._session.valid_until(self._session_id)

    def is_valid(self) -> bool:
        """Tell whether the ensemble cannot have given the lock to somebody else yet; see :meth:`HeldLock.is_valid`."""
        return (
            not self._session.belongs_to_parent
            and not self.over
            and self._session.state is SessionState.CONNECTED
            and time.monotonic() < self._ends_at
            and self.granted
        )

    def look_before_asking(self) -> None:
        """Raise what is known without the ensemble.

        Our own clock decides first, as in :class:`KeepAlive`: after a pause this thread may ask before that one looks.

        The ensemble alone would not do: restored from a member that fell behind, it may know a contender again whose
        session had ended, and whose lock others have had since (docs/runbooks.md).
        """
        self._raise_if_over()
        self._session.check_usable()
        self.look_at_clock()
        self._raise_if_over()

    def look_at_clock(self) -> None:
        """Count the hold as lost when its session is another by now, or was not vouched for over its whole time-out."""
        session = self._session
        self._look_at_bound()
        if session.session_id != self._session_id or session.state is SessionState.LOST:
            self.lose(SESSION_ENDED)
            return
        silent = time.monotonic() - session.proven_at
        if silent > session.granted_seconds:
            self.lose(f"the ensemble did not answer for {silent:.0f} s")

    def _look_at_bound(self) -> None:
        if time.monotonic() >= self._ends_at:
            most = self._session.settings.max_hold_seconds
            self.lose(f"it was held for more than max_hold_seconds={most:g}")

    def _raise_if_over(self) -> None:
        self._look_at_bound()
        if self.over:
            raise self._end_error()

    # -- asking ----------------------------------------------------------------------------------------------------

    def deadline(self, timeout_seconds: float | None = None) -> Deadline:
        """Return how long an answer may take: later it would be worth nothing."""
        bound = VALID_FRACTION * self._session.granted_seconds
        return Deadline(bound if timeout_seconds is None else min(timeout_seconds, bound))

    def confirmed(
        self, deadline: Deadline, doing: str, operation: Callable[[Any], None] | None = None
    ) -> Exception | None:
        """Ask, together with one more operation that is done if and only if the hold stands.

        Args:
            deadline: for the answer.
            doing: for the message of EnsembleUnavailableError.
            operation: given the transaction, to add itself.

        Returns:
            Why the operation was not done, if that is because a node is there, is not there, or is another version.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: as :meth:`HeldLock.check`.

        """
        while True:
            self._raise_if_over()
            sent_at = self._asked_now()
            try:
                outcome = answer_or_end(self._session, self._contenders.ask(operation), deadline)
            except NO_ANSWER:
                self._session.wait_again(deadline, doing)
                continue
            answer = self._contenders.read(outcome, with_operation=operation is not None)
            if answer.not_done is not None:
                return answer.not_done
            self._take_in(answer, sent_at)
            self._raise_if_over()
            if answer.refusal is not None:
                raise EnsembleRefusedError(self._session.settings.zk_hosts, answer.refusal)
            return None

    def due_at(self) -> float:
        """Monotonic time at which the ensemble is to be asked next."""
        due = self._asked_at + KEEPALIVE_FRACTION * self._session.granted_seconds
        return min(self._announce_at, due, self._ends_at)

    def ask(self) -> Any:
        """Send the question whether the contenders are there, as a quorum request; return kazoo's AsyncResult.

        It also has them say since when they hold, if they do not say so yet.
        """
        self._asked_now()
        if self._announce_at == float("inf"):
            return self._contenders.ask()
        self._announce_at = self._asked_at + ANNOUNCE_SECONDS
        return self._contenders.ask(data=lambda node: self._request.data(node, acquired_at=self._acquired_at))

    def learn(self, outcome: object, sent_at: float, *, announced: bool = False) -> None:
        """Take in an answer to :meth:`ask`: a list of results, or what kazoo raised."""
        if self._take_in(self._contenders.read(outcome), sent_at) and announced:
            self._announce_at = float("inf")

    def _asked_now(self) -> float:
        self._asked_at = time.monotonic()
        return self._asked_at

    def _take_in(self, answer: Answer, sent_at: float) -> bool:
        """Do what an answer calls for; tell whether the hold stands."""
        if answer.lost is not None:
            self.lose(answer.lost)
        elif answer.refusal is not None:
            log.error("ZooKeeper refused to check the lock on %s: %s", self._request.resource, answer.refusal)
        else:
            self._session.prove(sent_at, self._session_id)
            return True
        return False

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> bool:
        """Note that the hold is ended now; False if it had been before."""
        with self._ending:
            first, self.ended_at = self.ended_at is None, self.ended_at or time.time()
        return first

    def lose(self, reason: str, *, ending: bool = False) -> None:
        """Note that the hold was lost; what comes second, or after the end, counts for nothing.

        Args:
            reason: how.
            ending: it is found out while the hold is ended.

        """
        with self._ending:
            # The keepalive may have asked just before a release, and finds what that has deleted.
            if self.lost is not None or (self.ended_at is not None and not ending):
                return
            self.lost = reason
        self._on_lost()
