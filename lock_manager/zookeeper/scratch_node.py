"""Tries a session for real: creates a scratch znode below the lock root, which ends with the session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.exceptions import KazooException, NoNodeError, SessionExpiredError

from lock_manager.deadline import Deadline
from lock_manager.errors import NoChrootError
from lock_manager.zookeeper.asking import insist
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import parent_of, scratch_node_in

_T = TypeVar("_T")


@dataclass(frozen=True)
class ScratchNode:
    """A node that is there for the moment.

    Attributes:
        path: of the node.
        created: when, by the leader's clock; seconds since the epoch.

    """

    path: str
    created: float


def nearest_node(session: Session, deadline: Deadline) -> str:
    """Return the lock root, or the nearest node above it that is there.

    Raises:
        NoChrootError: there is none.

    """
    path = session.settings.lock_root
    while path:
        with suppress(NoNodeError):
            if session.wait(session.client.exists_async(path), deadline) is not None:
                return path
        path = parent_of(path)
    with suppress(KazooException):
        session.wait(session.client.get_async("/"), deadline)
        return "/"
    raise NoChrootError


def try_session(session: Session, deadline: Deadline, ask: Callable[[], _T]) -> _T:
    """Connect, and return what ``ask`` does, which may be called more than once; see :func:`insist`.

    Raises:
        EnsembleRefusedError: no trust, no credentials, or no permission.
        EnsembleUnavailableError: no answer before the deadline.

    """
    session.wait_for_connection(deadline)
    return insist(session, deadline, ask, "try a session")


@contextmanager
def scratch_node(session: Session, base: str, deadline: Deadline) -> Iterator[ScratchNode]:
    """Create an empty ephemeral node below ``base``, and delete it; after an error it goes with the session.

    Raises:
        EnsembleRefusedError: this client may not.
        KazooException: the ensemble does not answer.

    """
    path = scratch_node_in(base, uuid.uuid4().hex)
    created: tuple[Any, Any] = session.wait(
        session.client.create_async(path, b"", ephemeral=True, include_data=True), deadline
    )
    try:
        yield ScratchNode(path, created[1].ctime / 1000)
        session.wait(session.client.delete_async(path), deadline)
    except NoNodeError as error:
        # Nobody else knows its name: it went with the session.
        raise SessionExpiredError from error


def read_in_step(session: Session, path: str, deadline: Deadline) -> bytes | None:
    """Return what a node holds, as of all that was written before; None if it is not there.

    Raises:
        EnsembleRefusedError: no trust, no credentials, or no permission.
        EnsembleUnavailableError: no answer before the deadline.

    """

    def ask() -> bytes:
        # Without it a follower may answer from before the write.
        session.wait(session.client.sync_async(path), deadline)
        data, _ = session.wait(session.client.get_async(path), deadline)
        return bytes(data)

    try:
        return try_session(session, deadline, ask)
    except NoNodeError:
        return None
