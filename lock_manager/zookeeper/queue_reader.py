"""Read the queues of a table and of its partitions; create no znode."""

from __future__ import annotations

from collections.abc import Iterable
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
        node = child_node(self._session.settings.lock_root, key)
        newest_change = self._newest_change(node, deadline)
        queues = self._queues(node, deadline)
        paths = [path for contenders in queues.values() for path in contenders]
        # The queues are listed one after the other. The first lists may lack contenders that joined meanwhile, and the
        # last lists may lack contenders that left. Both kinds are left out of the result.
        znodes = {
            path: ContenderZnode(data, stat.czxid, stat.ctime / 1000)
            for path, (data, stat) in self.read_nodes(paths, deadline).items()
            if stat.czxid <= newest_change
        }
        return TableLocks(uri=uri, key=key, entries=tuple(entries_of(queues, znodes)))

    def _newest_change(self, node: str, deadline: Deadline) -> int:
        """Return the newest zxid now; lists that are read later contain every znode that was created before it."""
        client = self._session.client
        # This session's server may lag behind the servers of the holders.
        self._session.wait(client.sync_async(node), deadline)
        self._session.wait(client.exists_async(node), deadline)
        return int(client.last_zxid)

    def _queues(self, node: str, deadline: Deadline) -> dict[str, dict[str, Contender]]:
        """Return the contenders, by path and in queue order, of a table's queue and of each partition's queue."""
        queues: dict[str, dict[str, Contender]] = {}
        level = {WHOLE_TABLE: node}
        while level:
            children = self.children(level.values(), deadline)
            partition_of_folder = {}
            for partition, path in level.items():
                if path in children:
                    contenders = parse_queue(children[path])
                    queues[partition] = {child_node(path, contender.name): contender for contender in contenders}
                    if PARTITIONS in children[path]:
                        partition_of_folder[partitions_node(path)] = partition
            level = {
                f"{partition_of_folder[folder]}/{name}".lstrip("/"): child_node(folder, name)
                for folder, names in self.children(partition_of_folder, deadline).items()
                for name in names
            }
        return queues

    def children(self, paths: Iterable[str], deadline: Deadline) -> dict[str, list[str]]:
        """List the children of several znodes at once, by path; leave out znodes that do not exist."""
        return dict(wait_for_each(self._session, self._session.client.get_children_async, paths, deadline))

    def read_nodes(self, paths: Iterable[str], deadline: Deadline) -> dict[str, tuple[bytes, Any]]:
        """Read the data and stat of several znodes at once, by path; leave out znodes that do not exist."""
        return dict(wait_for_each(self._session, self._session.client.get_async, paths, deadline))
