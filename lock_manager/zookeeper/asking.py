"""Requests through a session: what no answer means, and what the answer to a transaction says.

A request without an answer may have been done or not. A caller that asks again must be correct in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.exceptions import RolledBackError, RuntimeInconsistency

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.session import NO_ANSWER, SESSION_GONE, Session

_T = TypeVar("_T")

UNANSWERED = NO_ANSWER + SESSION_GONE
"""What kazoo raises when a request was not answered, for whatever reason; a later one may be."""

_ROLLED_BACK = (RolledBackError, RuntimeInconsistency)
# What ZooKeeper says of the operations of a transaction that failed for another one's sake.


@dataclass(frozen=True)
class Failure:
    """Why a transaction was not done.

    Attributes:
        index: of the operation that failed, from 0.
        error: of that operation; the others were rolled back for it.

    """

    index: int
    error: Exception


def failure_in(results: Iterable[object]) -> Failure | None:
    """Return why a transaction was not done, None if it was.

    Args:
        results: of its operations, in order; what kazoo returns for a transaction.

    """
    failures = [Failure(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    reasons = (failure for failure in failures if not isinstance(failure.error, _ROLLED_BACK))
    # No server leaves the reason out; if one did, nothing was done all the same.
    return next(reasons, failures[0] if failures else None)


def insist(session: Session, deadline: Deadline, ask: Callable[[], _T], doing: str) -> _T:
    """Return what ``ask`` does; begin it again, on the next connection, where it got no answer.

    A server that demands credentials may give a session first, and close it at the first request: only the next
    attempt tells why.

    Args:
        session: through which it asks.
        deadline: for the answer.
        ask: may be called more than once.
        doing: for the message of EnsembleUnavailableError.

    Raises:
        EnsembleRefusedError: no trust, no credentials, or no permission.
        EnsembleUnavailableError: no answer before the deadline.
        ClosedError: see :meth:`Session.check_usable`.

    """
    while True:
        try:
            return ask()
        except UNANSWERED:
            session.wait_again(deadline, doing)


def answer_or_end(session: Session, asked: Any, deadline: Deadline) -> object:
    """Wait for kazoo's AsyncResult; return the answer, or the exception that says that the session has ended.

    Raises:
        KazooException: as :meth:`Session.wait`; of :data:`NO_ANSWER`, or what the ensemble said.

    """
    try:
        return session.wait(asked, deadline)
    except SESSION_GONE as error:
        return error
