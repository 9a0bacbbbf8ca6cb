"""Test a session with real requests: create and delete a scratch znode, which ends with the session at the latest."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from kazoo.exceptions import NoNodeError, SessionExpiredError

from lock_manager.deadline import Deadline
from lock_manager.errors import NoChrootError
from lock_manager.signals import SignalIsolation
from lock_manager.zookeeper.responses import retry_unanswered
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import parent_of, scratch_node_in

_T = TypeVar("_T")


@dataclass(frozen=True)
class ScratchNode:
    """An existing scratch znode, and its creation time by the leader's clock, seconds since the epoch."""

    path: str
    created_at: float


def nearest_node(session: Session, deadline: Deadline) -> str:
    """Return the lock root, or its nearest ancestor that exists.

    Raises:
        NoChrootError: No ancestor exists.

    """
    path = session.settings.lock_root
    while path:
        with suppress(NoNodeError):
            if session.wait(session.client.exists_async(path), deadline) is not None:
                return path
        path = parent_of(path)
    with suppress(NoNodeError):
        session.wait(session.client.get_async("/"), deadline)
        return "/"
    raise NoChrootError


def try_session(session: Session, deadline: Deadline, attempt: Callable[[], _T]) -> _T:
    """Connect and return the result of ``attempt``; see :func:`retry_unanswered`, also for the errors.

    In the main thread, the attempt is made in another thread; see :mod:`lock_manager.signals`.
    """

    def connect_and_try() -> _T:
        session.wait_for_connection(deadline)
        return retry_unanswered(session, deadline, attempt, "try a session")

    with closing(SignalIsolation()) as isolation:
        return isolation.run(connect_and_try)


@contextmanager
def scratch_node(session: Session, base: str, deadline: Deadline) -> Iterator[ScratchNode]:
    """Create an empty ephemeral znode below ``base`` and delete it; after an error it ends with the session.

    Raises:
        EnsembleRefusedError: This client has no permission.
        KazooException, KazooTimeoutError: The ensemble did not respond, see ``session.UNANSWERED``.

    """
    path = scratch_node_in(base, uuid.uuid4().hex)
    creation = session.client.create_async(path, b"", ephemeral=True, include_data=True)
    _, stat = session.wait(creation, deadline)
    try:
        yield ScratchNode(path, stat.ctime / 1000)
        session.wait(session.client.delete_async(path), deadline)
    except NoNodeError as error:
        # No other client knows the name, so the znode ended with the session.
        raise SessionExpiredError from error


def read_after_sync(session: Session, path: str, deadline: Deadline) -> bytes | None:
    """Return the data of a znode with every earlier write applied; None if it does not exist.

    It raises the errors of :func:`try_session`.
    """

    def sync_and_get() -> bytes | None:
        with suppress(NoNodeError):
            # Without the sync, a follower may return data from before the write.
            session.wait(session.client.sync_async(path), deadline)
            return bytes(session.wait(session.client.get_async(path), deadline)[0])
        return None

    return try_session(session, deadline, sync_and_get)
