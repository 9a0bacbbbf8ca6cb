"""Whether a hold stands: checks by the ensemble and by the local clock, and the end of the hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from lock_manager.base_hold import HoldLife
from lock_manager.deadline import Deadline
from lock_manager.errors import ContenderGoneError, EnsembleRefusedError
from lock_manager.zookeeper.hold_contenders import SESSION_ENDED, CheckResult, HoldContenders
from lock_manager.zookeeper.request import Request
from lock_manager.zookeeper.responses import response_or_session_end
from lock_manager.zookeeper.session import KEEPALIVE_FRACTION, NO_ANSWER, Session, SessionState

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 1.0
"""Age at which a hold writes ``acquired_at`` into its contender's data, in seconds. Shorter holds save the request."""


class HoldState(HoldLife):
    """Whether one hold stands.

    ``session_id`` is that of the session that created the contenders. They end with it. ``end_error`` returns the error
    for a lost or released hold.
    """

    def __init__(
        self,
        session: Session,
        contenders: HoldContenders,
        session_id: int,
        request: Request,
        *,
        acquired_at: float,
        on_lost: Callable[[], None],
        end_error: Callable[[], Exception],
    ) -> None:
        super().__init__(on_lost, session.settings.max_hold_seconds)
        self._session = session
        self._contenders = contenders
        self._session_id = session_id
        self._request = request
        self._acquired_at = acquired_at
        self._end_error = end_error
        self._sent_at = time.monotonic()
        self._announce_at = self._sent_at + ANNOUNCE_SECONDS

    @property
    def is_proven(self) -> bool:
        """Whether no loss is known, and the ensemble cannot have ended the session yet; see ``VALID_FRACTION``."""
        return self.lost is None and time.monotonic() < self._session.valid_until(self._session_id)

    def is_valid(self) -> bool:
        """Return whether the ensemble cannot have granted the lock to others yet; see :meth:`HeldLock.is_valid`."""
        return (
            not self._session.belongs_to_parent
            and not self.over
            and self._session.state is SessionState.CONNECTED
            and time.monotonic() < self.ends_at
            and self.is_proven
        )

    def raise_if_known_over(self) -> None:
        """Raise an error if this process knows, without a request, that the hold is over or cannot be checked.

        The local clock decides before the ensemble does, as in :class:`KeepAlive`: after a pause of the process, this
        thread may run before KeepAlive's.

        The ensemble alone is not sufficient. An ensemble that was restored from a member with old data may contain a
        contender again whose session had ended and whose lock other clients have held since (docs/runbooks.md).
        """
        self._raise_if_over()
        self._session.check_usable()
        self.check_clock()
        self._raise_if_over()

    def check_clock(self) -> None:
        """Record a loss if the hold exceeded ``max_hold_seconds``, or its session ended or may have ended.

        The session may have ended if the ensemble confirmed nothing for the whole session timeout.
        """
        session = self._session
        self.check_max_hold()
        if session.session_id != self._session_id or session.state is SessionState.LOST:
            self.lose(SESSION_ENDED)
            return
        silent_seconds = time.monotonic() - session.proven_at
        if silent_seconds > session.granted_seconds:
            self.lose(f"the ensemble did not answer for {silent_seconds:.0f} s")

    def _raise_if_over(self) -> None:
        self.check_max_hold()
        if self.over:
            raise self._end_error()

    def confirm(
        self,
        deadline: Deadline,
        request_name: str,
        operation: Callable[[Any], None] | None = None,
        members: Sequence[str] = (),
    ) -> Exception | None:
        """Check the hold, together with one more operation that is executed if and only if the hold stands.

        ``operation`` adds it to the transaction. The message of EnsembleUnavailableError contains ``request_name``.
        ``members`` are the paths of waiting contenders, which must exist, too.

        Returns:
            The operation's error (NodeExistsError, NoNodeError or BadVersionError), or ContenderGoneError with
            the path of a member that has left the queue; None if the operation was executed.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: As :meth:`HeldLock.check`.

        """
        while True:
            self._raise_if_over()
            sent_at = self._sent_at = time.monotonic()
            try:
                outcome = response_or_session_end(
                    self._session, self._contenders.send_check(operation, members=members), deadline
                )
            except NO_ANSWER:
                self._session.wait_for_retry(deadline, request_name)
                continue
            result = self._contenders.interpret(outcome, with_operation=operation is not None, members=members)
            if result.missing_member is not None:
                return ContenderGoneError(resource=result.missing_member)
            if result.operation_error is not None:
                return result.operation_error
            self._apply(result, sent_at)
            self._raise_if_over()
            if result.refusal is not None:
                raise EnsembleRefusedError(self._session.settings.zk_hosts, result.refusal)
            return None

    def next_check_at(self) -> float:
        """Return the monotonic time of the next check by the ensemble."""
        due_at = self._sent_at + KEEPALIVE_FRACTION * self._session.granted_seconds
        return min(self._announce_at, due_at, self.ends_at)

    def send_check(self) -> Any:
        """Send a quorum request that checks whether the contenders exist; return kazoo's AsyncResult.

        The request also writes ``acquired_at`` into the contenders' data, unless an earlier one did.
        """
        self._sent_at = time.monotonic()
        if self._announce_at == float("inf"):
            return self._contenders.send_check()
        self._announce_at = self._sent_at + ANNOUNCE_SECONDS
        return self._contenders.send_check(
            data=lambda queue: self._request.contender_data(queue, acquired_at=self._acquired_at)
        )

    def record_check(self, outcome: object, sent_at: float) -> None:
        """Record the outcome of :meth:`send_check`: a list of results, or kazoo's exception."""
        if self._apply(self._contenders.interpret(outcome), sent_at):
            self._announce_at = float("inf")

    def _apply(self, result: CheckResult, sent_at: float) -> bool:
        """Record the loss or the proof in a result; return whether the hold stands."""
        if result.lost is not None:
            self.lose(result.lost)
        elif result.refusal is not None:
            log.error("ZooKeeper refused to check the lock on %s: %s", self._request.resource, result.refusal)
        else:
            self._session.record_proof(sent_at, self._session_id)
            return True
        return False
