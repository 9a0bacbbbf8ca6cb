"""Wait for responses to requests of a session, retry unanswered requests, and read the results of transactions.

A request without a response may or may not have been executed. A caller that repeats it must be correct in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.session import SESSION_GONE, UNANSWERED, Session

_T = TypeVar("_T")

_ROLLED_BACK = (RolledBackError, RuntimeInconsistency)
"""ZooKeeper's errors for the operations that a transaction did not execute because another operation failed."""


@dataclass(frozen=True)
class Failure:
    """Index (from 0) and error of the operation that made ZooKeeper roll a transaction back."""

    index: int
    error: Exception


def failure_in(results: Iterable[object]) -> Failure | None:
    """Return why a transaction was not executed, by kazoo's result of each operation; None if it was."""
    failures = [Failure(index, result) for index, result in enumerate(results) if isinstance(result, Exception)]
    reasons = (failure for failure in failures if not isinstance(failure.error, _ROLLED_BACK))
    # Servers always include the reason. Without one the transaction was still not executed.
    return next(reasons, failures[0] if failures else None)


def retry_unanswered(session: Session, deadline: Deadline, attempt: Callable[[], _T], request_name: str) -> _T:
    """Return the result of ``attempt``; call it again on the next connection if a request in it got no response.

    A server that requires credentials may grant a session first and close it at the first request. Only the next
    connection attempt shows the reason. ``request_name`` describes the request in the message of
    EnsembleUnavailableError.

    Raises:
        EnsembleRefusedError: TLS verification, credentials or permissions were refused.
        EnsembleUnavailableError: The ensemble did not respond before the deadline.
        ClosedError: The session cannot be used, see :meth:`Session.check_usable`.

    """
    while True:
        try:
            return attempt()
        except UNANSWERED:
            session.wait_for_retry(deadline, request_name)


def response_or_session_end(session: Session, result: Any, deadline: Deadline) -> object:
    """Wait for kazoo's AsyncResult; return the response, or the exception if the session has ended.

    Raises:
        KazooException, KazooTimeoutError: An error of :data:`NO_ANSWER` or an expected error of the ensemble, see
            :meth:`Session.wait`.

    """
    try:
        return session.wait(result, deadline)
    except SESSION_GONE as error:
        return error


def wait_for_each(
    session: Session,
    request: Callable[[str], Any],
    paths: Iterable[str],
    deadline: Deadline,
    skip: tuple[type[Exception], ...] = (NoNodeError,),
) -> Iterator[tuple[str, Any]]:
    """Send an asynchronous request of kazoo for each path at once; yield the path and the response.

    A path whose request fails with an error of ``skip`` is left out: by default, the path of a missing znode.
    """
    for path, result in {path: request(path) for path in paths}.items():
        try:
            response = session.wait(result, deadline)
        except skip:
            continue
        yield path, response
