"""Removes the empty znodes of partitions that nobody uses; the znodes of tables and intents stay.

This is safe: ZooKeeper deletes only a znode without children, and an acquire that finds its queue missing makes it
again before it joins it (``Acquisition._make_queues``). So two contenders of one queue are always children of the same
znode. Its sequence numbers begin again with each new znode; fencing tokens are czxids, which never do. A znode is
removed only if it was found empty and unchanged twice, :data:`IDLE_SECONDS` apart. This spares most acquires the extra
round trips.

Each manager removes the znodes that it used itself, also when it is closed. Every :data:`_WALK_SECONDS` it looks
through the tables whose partitions it locks, for what dead managers left behind.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable
from typing import Any

from kazoo.exceptions import NoNodeError, NotEmptyError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError
from lock_manager.zookeeper.asking import UNANSWERED
from lock_manager.zookeeper.session import Session, SessionState
from lock_manager.zookeeper.znodes import (
    PARTITIONS,
    below_table,
    is_partition_name,
    is_partitions_node,
    partition_in,
    partition_queues,
    partitions_node,
    table_of,
)

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""How long after its last use a partition is looked at, and how long after that again."""

_WALK_SECONDS = 600.0
"""How often the partitions of a table in use are looked through for what the dead left behind."""

_MOST_KNOWN = 10_000
"""Partitions that are kept in mind; the longest unused is forgotten first."""

_MOST_AT_ONCE = 100
"""Requests in a row, after which whatever is more urgent has its turn."""

_MOST_WALKED = 200
"""Znodes of one table that are listed in one walk."""

_ANSWER_SECONDS = 2.0
"""How long the requests of one round may take together."""

CLOSE_SECONDS = 1.0
"""How long they may take when a manager is closed."""


class EmptyZnodes:
    """Knows which znodes are due for removal; the owner's thread calls :meth:`remove_due`.

    Args:
        session: to ask through.

    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        # By path: when it is due, and its pzxid if it was found empty. In the order in which they are due.
        self._idle: dict[str, tuple[float, int | None]] = {}
        self._walks: dict[str, float] = {}

    def used(self, nodes: Iterable[str]) -> bool:
        """Take note that queues were used just now; those of tables are left out.

        Returns:
            Whether there is something to do from now on, and was nothing before: :meth:`pause` is to be asked again.

        """
        now = time.monotonic()
        with self._lock:
            was_idle = not self._idle
            for node in partition_queues(nodes):
                self._note(node, None)
                self._walks.setdefault(table_of(node), now + IDLE_SECONDS)
            return was_idle and bool(self._idle)

    def pause(self) -> float | None:
        """Seconds until there is something to do, None if there is nothing."""
        with self._lock:
            if not self._idle:
                # A walk through tables that are not used can wait until one is.
                return None
            due_at, _ = next(iter(self._idle.values()))
            return max(0.0, min([due_at, *self._walks.values()]) - time.monotonic())

    def remove_due(self) -> None:
        """Remove some of what is due."""
        if self._session.state is not SessionState.CONNECTED:
            self._put_off()
            return
        due = self._due()
        try:
            deadline = Deadline(_ANSWER_SECONDS)
            self._remove_idle(due, deadline)
            for table in self._walks_due():
                self._walk(table, deadline)
        except (*UNANSWERED, ClosedError, EnsembleRefusedError) as error:
            # It costs nobody anything if they stay for longer.
            log.debug("empty partitions are not removed yet: %r", error)
            for node in due:
                self._note_if_new(node, None)

    def remove_all(self) -> None:
        """Remove at once what this manager used and nobody uses now; bounded."""
        with self._lock:
            nodes, self._idle = list(self._idle)[-_MOST_AT_ONCE * 10 :], {}
        if not nodes or self._session.state is not SessionState.CONNECTED:
            return
        try:
            self._remove(nodes, Deadline(CLOSE_SECONDS))
        except (*UNANSWERED, ClosedError, EnsembleRefusedError) as error:
            log.debug("empty partitions are not removed: %r", error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _note_if_new(self, node: str, pzxid: int | None) -> None:
        with self._lock:
            if node not in self._idle:
                self._note(node, pzxid)

    def _note(self, node: str, pzxid: int | None) -> None:
        self._idle.pop(node, None)
        self._idle[node] = (time.monotonic() + IDLE_SECONDS, pzxid)
        if len(self._idle) > _MOST_KNOWN:
            del self._idle[next(iter(self._idle))]

    def _put_off(self) -> None:
        with self._lock:
            due_at = time.monotonic() + IDLE_SECONDS
            self._idle = {node: (due_at, pzxid) for node, (_, pzxid) in self._idle.items()}
            self._walks = dict.fromkeys(self._walks, due_at)

    def _due(self) -> dict[str, int | None]:
        due: dict[str, int | None] = {}
        now = time.monotonic()
        with self._lock:
            while self._idle and len(due) < _MOST_AT_ONCE:
                node, (due_at, pzxid) = next(iter(self._idle.items()))
                if due_at > now:
                    break
                del self._idle[node]
                due[node] = pzxid
        return due

    def _walks_due(self) -> list[str]:
        now = time.monotonic()
        with self._lock:
            due = [table for table, at in self._walks.items() if at <= now]
            self._walks |= dict.fromkeys(due, now + _WALK_SECONDS)
        return due

    def _remove_idle(self, due: dict[str, int | None], deadline: Deadline) -> None:
        looks = {node: self._session.client.exists_async(node) for node in due}
        idle = []
        for node, look in looks.items():
            stat = self._session.wait(look, deadline)
            if stat is None or stat.numChildren:
                # Who is there now removes it, or whoever removes what is below it.
                continue
            if stat.pzxid == due[node]:
                idle.append(node)
            else:
                self._note_if_new(node, stat.pzxid)
        self._remove(idle, deadline)

    def _remove(self, nodes: Iterable[str], deadline: Deadline) -> None:
        """Delete them and, deepest first, what is above them up to their table; as far as it is empty."""
        paths = sorted({each for node in nodes for each in below_table(node)}, key=lambda path: -path.count("/"))
        asked: list[Any] = [self._session.client.delete_async(path) for path in paths]
        for each in asked:
            try:
                self._session.wait(each, deadline)
            except (NoNodeError, NotEmptyError):
                continue

    def _walk(self, table: str, deadline: Deadline) -> None:
        """Look through some of a table's partitions, and take note of those that are empty."""
        level, left = [partitions_node(table)], _MOST_WALKED
        while level and left > 0:
            asked = {path: self._session.client.get_children_async(path) for path in level[:left]}
            left -= len(asked)
            level = []
            for path, each in asked.items():
                try:
                    children = self._session.wait(each, deadline)
                except NoNodeError:
                    continue
                if not children:
                    self._note_if_new(path, None)
                elif is_partitions_node(path):
                    level += [partition_in(path, name) for name in children if is_partition_name(name)]
                elif PARTITIONS in children:
                    level.append(partitions_node(path))
            random.shuffle(level)
