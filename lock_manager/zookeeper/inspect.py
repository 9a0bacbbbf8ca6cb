"""Who holds a lock, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import NoNodeError

from lock_manager.zookeeper.queue import parse_queue
from lock_manager.zookeeper.queue_view import described
from lock_manager.zookeeper.session import Deadline, Session


@dataclass(frozen=True)
class QueueEntry:
    """One contender of a queue, as it describes itself.

    Attributes:
        name: of its znode.
        sequence: place in the order; smaller is earlier.
        shared: whether it asks for a shared lock.
        holds: whether it holds the lock now.
        data: host, pid, job, app_id, requested_at and (once it holds) acquired_at, as far as it says.

    """

    name: str
    sequence: int
    shared: bool
    holds: bool
    data: dict[str, Any] = field(default_factory=dict)


def read_queue(session: Session, node: str, deadline: Deadline) -> list[QueueEntry]:
    """Return the contenders below ``node``, first come first; empty if nobody ever asked for it.

    Raises:
        EnsembleUnavailableError: no answer before the deadline.
        KazooException: the connection broke meanwhile.

    """
    session.ready(deadline)
    client = session.client
    try:
        contenders = parse_queue(session.wait(client.get_children_async(node), deadline))
    except NoNodeError:
        return []
    answers = [client.get_async(f"{node}/{contender.name}") for contender in contenders]
    entries: list[QueueEntry] = []
    for contender, answer in zip(contenders, answers, strict=True):
        try:
            data, _ = session.wait(answer, deadline)
        except NoNodeError:
            continue
        ahead = [entry for entry in entries if not (contender.shared and entry.shared)]
        entries.append(QueueEntry(contender.name, contender.sequence, contender.shared, not ahead, described(data)))
    return entries
