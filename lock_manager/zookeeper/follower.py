"""Follow the locks of all tables by watches. Tables whose locks do not change cost no requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kazoo.protocol.states import EventType

from lock_manager.deadline import Deadline
from lock_manager.queue_entry import TableLocks
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.queue_view import ContenderZnode
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import child_node, is_table_name, table_uri

_PAUSE_SECONDS = 0.5
"""Minimum time between two reads, in seconds."""


class LockFollower:
    """Implements :class:`lock_manager.coordinator.Follower`, which documents :meth:`changes`.

    The lock root, each queue and each contender has a watch. A table is read after one of its watches has fired.
    Contenders that were read before are not read again.

    Args:
        session: Session of the inspector.
        reader: Reader of the same session.
        run: Runs a query on a connected session, and repeats it if a request got no response.

    """

    def __init__(self, session: Session, reader: QueueReader, run: Callable[[Callable[[Deadline], Any]], Any]) -> None:
        self._session = session
        self._reader = reader
        self._run = run
        self._root = session.settings.lock_root
        self._changed = threading.Condition()
        self._watch_fired = True
        self._changed_nodes: set[str] = set()
        self._lists_root = self._reads_all = True
        self._uris: dict[str, str | None] = {}
        self._contenders: dict[str, ContenderZnode] = {}
        self._read_at = float("-inf")
        # A new session has none of the watches of the last one.
        session.add_waker(self._on_session_change)

    def changes(self, seconds: float) -> list[TableLocks]:
        """Return the tables that may have changed; see :meth:`lock_manager.coordinator.Follower.changes`."""
        self._wait(seconds)
        with self._changed:
            nodes, lists_root, reads_all = self._changed_nodes, self._lists_root, self._reads_all
            self._changed_nodes, self._lists_root, self._reads_all, self._watch_fired = set(), False, False, False
        if not (nodes or lists_root or reads_all):
            return []
        try:
            read = partial(self._read, nodes, lists_root=lists_root or reads_all, reads_all=reads_all)
            tables, keys = self._run(read)
        except BaseException:
            with self._changed:
                self._changed_nodes |= nodes
                self._lists_root |= lists_root
                self._reads_all |= reads_all
            raise
        uris = {**self._uris, **{table.key: table.uri for table in tables}}
        # A table whose znode was removed by hand has lost its watch. It is new if it is created again.
        self._uris = uris if keys is None else {key: uri for key, uri in uris.items() if key in keys}
        return list(tables)

    @property
    def keys(self) -> Collection[str]:
        """Keys of all tables; see :attr:`lock_manager.coordinator.Follower.keys`."""
        return self._uris.keys()

    def _wait(self, seconds: float) -> None:
        deadline = Deadline(seconds)
        with self._changed:
            self._changed.wait_for(lambda: self._watch_fired, deadline.remaining())
            if not self._watch_fired and not self._lists_root:
                return
        # A table may change a hundred times within the pause.
        time.sleep(max(0.0, self._read_at + _PAUSE_SECONDS - time.monotonic()))
        self._read_at = time.monotonic()

    def _read(
        self, changed_nodes: Collection[str], deadline: Deadline, *, lists_root: bool, reads_all: bool
    ) -> tuple[list[TableLocks], Collection[str] | None]:
        """Return the tables to which the changed znodes belong, and the keys of all tables if the root was listed."""
        reader = self._reader
        if reads_all:
            self._contenders.clear()
        for node in changed_nodes:
            self._contenders.pop(node, None)
        changed_keys = {node.removeprefix(f"{self._root}/").partition("/")[0] for node in changed_nodes}
        uris = {key: uri for key, uri in self._uris.items() if reads_all or key in changed_keys}
        keys: set[str] | None = None
        if lists_root:
            names = reader.children([self._root], deadline, self._on_watch).get(self._root)
            if names is None:
                # A znode that does not exist has no watch.
                self._lists_root = True
                return [], set()
            keys = set(filter(is_table_name, names))
        # Another program may have created a znode without the URI, and its successor may have one.
        unnamed_keys = {key for key, uri in uris.items() if uri is None} | (keys or set()) - self._uris.keys()
        nodes = {child_node(self._root, key): key for key in unnamed_keys}
        uris |= {nodes[node]: table_uri(data) for node, (data, _) in reader.read_nodes(nodes, deadline).items()}
        return reader.tables(uris, deadline, cache=self._contenders, watch=self._on_watch), keys

    def _on_watch(self, event: Any) -> None:
        """Note a change; called in kazoo's thread."""
        with self._changed:
            self._watch_fired = True
            if event.path is None:
                # The connection was lost, which ends every watch.
                self._reads_all = True
            elif event.path == self._root:
                self._lists_root = True
            else:
                self._changed_nodes.add(event.path)
                self._lists_root |= event.type == EventType.DELETED and is_table_name(event.path.rpartition("/")[2])
            self._changed.notify_all()

    def _on_session_change(self) -> None:
        with self._changed:
            self._watch_fired = self._reads_all = True
            self._changed.notify_all()
