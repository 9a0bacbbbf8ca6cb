"""Read the queues of a table and of its partitions; create no znode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any

from lock_manager.deadline import Deadline
from lock_manager.queue_entry import WHOLE_TABLE, TableLocks
from lock_manager.zookeeper.queue_view import ContenderZnode, entries_of
from lock_manager.zookeeper.responses import wait_for_each
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import PARTITIONS, Contender, child_node, parse_queue, partitions_node


class QueueReader:
    """Reads queues through a session, which must be connected."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def table(self, key: str, deadline: Deadline, *, uri: str | None) -> TableLocks:
        """Read the queues of a table and of its partitions; without entries if the table was never locked.

        The key is the name of the table's znode.
        """
        (table,) = self.tables({key: uri}, deadline)
        return table

    def tables(
        self,
        uris: Mapping[str, str | None],
        deadline: Deadline,
        *,
        cache: MutableMapping[str, ContenderZnode] | None = None,
        watch: Callable[[Any], None] | None = None,
    ) -> list[TableLocks]:
        """Read the queues of several tables and of their partitions; see :meth:`table`.

        The URIs are given by key. The number of round trips depends on the levels of partitions, and not on the number
        of tables.

        Args:
            cache: Contenders that are not read again, by path. Those that are read are added.
            watch: Called in kazoo's thread at the next change of each znode that the result depends on.

        """
        if watch is not None:
            # Before the reads below: what changes after this fires a watch, and what changed before this is read.
            self._queues(uris, deadline, watch)
        newest_change = self._newest_change(deadline)
        queues = self._queues(uris, deadline)
        paths = [path for table in queues.values() for contenders in table.values() for path in contenders]
        cache = {} if cache is None else cache
        for path, (data, stat) in self.read_nodes(set(paths).difference(cache), deadline, watch).items():
            cache[path] = ContenderZnode(data, stat.czxid, stat.ctime / 1000)
        # The queues are listed one after the other. The first lists may lack contenders that joined meanwhile, and the
        # last lists may lack contenders that left. Both kinds are left out of the result.
        znodes = {path: cache[path] for path in paths if path in cache and cache[path].token <= newest_change}
        return [
            TableLocks(uri=uri, key=key, entries=tuple(entries_of(queues[key], znodes))) for key, uri in uris.items()
        ]

    def _newest_change(self, deadline: Deadline) -> int:
        """Return the newest zxid now; lists that are read later contain every znode that was created before it."""
        client, root = self._session.client, self._session.settings.lock_root
        # This session's server may lag behind the servers of the holders.
        self._session.wait(client.sync_async(root), deadline)
        self._session.wait(client.exists_async(root), deadline)
        return int(client.last_zxid)

    def _queues(
        self, keys: Iterable[str], deadline: Deadline, watch: Callable[[Any], None] | None = None
    ) -> dict[str, dict[str, dict[str, Contender]]]:
        """Return the contenders, by path and in queue order, of each queue of each table, by key and partition."""
        root = self._session.settings.lock_root
        level = {(key, WHOLE_TABLE): child_node(root, key) for key in keys}
        queues: dict[str, dict[str, dict[str, Contender]]] = {key: {} for key, _ in level}
        while level:
            children = self.children(level.values(), deadline, watch)
            queue_of_folder = {}
            for (key, partition), path in level.items():
                if path in children:
                    contenders = parse_queue(children[path])
                    queues[key][partition] = {child_node(path, contender.name): contender for contender in contenders}
                    if PARTITIONS in children[path]:
                        queue_of_folder[partitions_node(path)] = (key, partition)
            level = {}
            for folder, names in self.children(queue_of_folder, deadline, watch).items():
                key, partition = queue_of_folder[folder]
                level |= {(key, f"{partition}/{name}".lstrip("/")): child_node(folder, name) for name in names}
        return queues

    def children(
        self, paths: Iterable[str], deadline: Deadline, watch: Callable[[Any], None] | None = None
    ) -> dict[str, list[str]]:
        """List the children of several znodes at once, by path; leave out znodes that do not exist.

        ``watch`` is called in kazoo's thread when the children of one of them change for the first time.
        """
        request = partial(self._session.client.get_children_async, watch=watch)
        return dict(wait_for_each(self._session, request, paths, deadline))

    def read_nodes(
        self, paths: Iterable[str], deadline: Deadline, watch: Callable[[Any], None] | None = None
    ) -> dict[str, tuple[bytes, Any]]:
        """Read the data and stat of several znodes at once, by path; leave out znodes that do not exist.

        ``watch`` is called in kazoo's thread when the data of one of them change for the first time.
        """
        request = partial(self._session.client.get_async, watch=watch)
        return dict(wait_for_each(self._session, request, paths, deadline))
