"""Remove the empty znodes of unused partitions. The znodes of tables and intents stay.

This is safe. ZooKeeper deletes only a znode without children, and an acquire that finds its queue missing creates it
again before it joins it (``Acquisition._make_queues``). So two contenders of one queue are always children of the same
znode. Each new znode starts its sequence numbers again, but fencing tokens are czxids, which always rise.

Each manager removes the znodes that it has used, at once when it is closed. Before that, it removes a znode only if it
was empty and unchanged in two checks, :data:`IDLE_SECONDS` apart. This spares most acquires the additional round trips.
Every :data:`_SEARCH_SECONDS` it searches for empty znodes of killed managers in the tables whose partitions it locks.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from kazoo.exceptions import NoNodeError, NotEmptyError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError
from lock_manager.zookeeper import znodes
from lock_manager.zookeeper.responses import wait_for_each
from lock_manager.zookeeper.session import UNANSWERED, Session, SessionState

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Time from the last use of a partition to the first check, and from there to the second check, in seconds."""

_SEARCH_SECONDS = 600.0
"""Interval of the search through the partitions of a table in use, in seconds."""

_MAX_RECORDED = 10_000
"""Maximum number of recorded partitions. The partition with the earliest due time is dropped first."""

_MAX_AT_ONCE = 100
"""Maximum number of znodes that one round checks, so that more urgent work of the thread is not delayed."""

_MAX_SEARCHED = 200
"""Maximum number of znodes of one table that one search lists."""

_ROUND_SECONDS = 2.0
"""Time limit for all requests of one round, in seconds."""

CLOSE_SECONDS = 1.0
"""Time limit for the requests when a manager is closed, in seconds."""


class EmptyZnodes:
    """Records which znodes are due for a check. The owner's thread calls :meth:`remove_due`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        # Due time of each znode by path, and its pzxid if the first check found it empty. In the order of due times.
        self._idle: dict[str, tuple[float, int | None]] = {}
        # Due time of the next search, by the znode of the table.
        self._searches: dict[str, float] = {}

    def record_use(self, nodes: Iterable[str]) -> bool:
        """Schedule a check of queues of partitions that were used just now; ignore queues of tables.

        Return whether :meth:`seconds_until_due` has changed from None to a number.
        """
        now = time.monotonic()
        with self._lock:
            was_empty = not self._idle
            for node in znodes.partition_queues(nodes):
                self._schedule(node, None)
                self._searches.setdefault(znodes.table_of(node), now + IDLE_SECONDS)
            return was_empty and bool(self._idle)

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next check or search; None if there is none."""
        with self._lock:
            if not self._idle:
                # The search through a table without used partitions waits until one is used.
                return None
            due_at, _ = next(iter(self._idle.values()))
            return max(0.0, min([due_at, *self._searches.values()]) - time.monotonic())

    def remove_due(self) -> None:
        """Check the znodes that are due, up to the limit of one round, and remove the idle ones."""
        if self._session.state is not SessionState.CONNECTED:
            self._postpone()
            return
        due = self._take_due()
        try:
            deadline = Deadline(_ROUND_SECONDS)
            self._remove_idle(due, deadline)
            for table in self._take_due_searches():
                self._search(table, deadline)
        except (*UNANSWERED, ClosedError, EnsembleRefusedError) as error:
            # The znodes may stay longer: they cost nothing.
            log.debug("empty partitions are not removed yet: %r", error)
            for node in due:
                self._schedule_if_new(node, None)

    def remove_all(self) -> None:
        """Remove at once the empty znodes that this manager used last, up to the limit of ten rounds."""
        with self._lock:
            nodes, self._idle = list(self._idle)[-_MAX_AT_ONCE * 10 :], {}
        if not nodes or self._session.state is not SessionState.CONNECTED:
            return
        try:
            self._remove(nodes, Deadline(CLOSE_SECONDS))
        except (*UNANSWERED, ClosedError, EnsembleRefusedError) as error:
            log.debug("empty partitions are not removed: %r", error)

    def _schedule_if_new(self, node: str, pzxid: int | None) -> None:
        with self._lock:
            if node not in self._idle:
                self._schedule(node, pzxid)

    def _schedule(self, node: str, pzxid: int | None) -> None:
        self._idle.pop(node, None)
        self._idle[node] = (time.monotonic() + IDLE_SECONDS, pzxid)
        if len(self._idle) > _MAX_RECORDED:
            del self._idle[next(iter(self._idle))]

    def _postpone(self) -> None:
        with self._lock:
            due_at = time.monotonic() + IDLE_SECONDS
            self._idle = {node: (due_at, pzxid) for node, (_, pzxid) in self._idle.items()}
            self._searches = dict.fromkeys(self._searches, due_at)

    def _take_due(self) -> dict[str, int | None]:
        now = time.monotonic()
        with self._lock:
            items = itertools.takewhile(lambda item: item[1][0] <= now, self._idle.items())
            due = {node: pzxid for node, (_, pzxid) in itertools.islice(items, _MAX_AT_ONCE)}
            for node in due:
                del self._idle[node]
        return due

    def _take_due_searches(self) -> list[str]:
        now = time.monotonic()
        with self._lock:
            tables = [table for table, due_at in self._searches.items() if due_at <= now]
            self._searches |= dict.fromkeys(tables, now + _SEARCH_SECONDS)
        return tables

    def _remove_idle(self, due: dict[str, int | None], deadline: Deadline) -> None:
        results = {node: self._session.client.exists_async(node) for node in due}
        idle = []
        for node, result in results.items():
            stat = self._session.wait(result, deadline)
            if stat is None or stat.numChildren:
                # The client that uses the znode, or a partition below it, removes it.
                continue
            if stat.pzxid == due[node]:
                idle.append(node)
            else:
                self._schedule_if_new(node, stat.pzxid)
        self._remove(idle, deadline)

    def _remove(self, nodes: Iterable[str], deadline: Deadline) -> None:
        """Delete the empty znodes among these and their ancestors below the table, the deepest first."""
        paths = sorted(
            {path for node in nodes for path in znodes.nodes_below_table(node)}, key=lambda path: -path.count("/")
        )
        for result in [self._session.client.delete_async(path) for path in paths]:
            with suppress(NoNodeError, NotEmptyError):
                self._session.wait(result, deadline)

    def _search(self, table: str, deadline: Deadline) -> None:
        """Search some of a table's partitions for empty znodes and schedule their check."""
        level, remaining = [znodes.partitions_node(table)], _MAX_SEARCHED
        while level and remaining > 0:
            paths, level = level[:remaining], []
            remaining -= len(paths)
            list_children = self._session.client.get_children_async
            for path, children in wait_for_each(self._session, list_children, paths, deadline):
                if not children:
                    self._schedule_if_new(path, None)
                elif znodes.is_partitions_node(path):
                    level += [znodes.child_node(path, name) for name in children if znodes.is_partition_name(name)]
                elif znodes.PARTITIONS in children:
                    level.append(znodes.partitions_node(path))
            random.shuffle(level)
