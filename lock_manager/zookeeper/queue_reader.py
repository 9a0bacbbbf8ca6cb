"""Reads the queues of a table and of its partitions; creates no znode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.queue_entry import WHOLE_TABLE, TableLocks
from lock_manager.zookeeper.queue_view import Found, entries_of
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import (
    PARTITIONS,
    contender_node,
    parse_queue,
    partition_in,
    partitions_node,
    table_node_of,
)


class QueueReader:
    """Reads through a session, which has to be connected.

    Args:
        session: to ask through.

    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def table(self, key: str, deadline: Deadline, *, uri: str | None) -> TableLocks:
        """Read the queues of a table and of its partitions; without entries if nobody ever asked for it.

        Args:
            key: name of its znode.
            deadline: for all answers.
            uri: of the table, if it is known.

        """
        node = table_node_of(self._session.settings.lock_root, key)
        seen = self._newest_change(node, deadline)
        node_of, queues = self._queues(node, deadline)
        paths = [contender_node(node_of[partition], name) for partition, names in queues.items() for name in names]
        # The queues are listed one after the other. Who came meanwhile may be missing from the first ones, and who left
        # from the last ones: neither is told.
        found = {
            path: Found(data, stat.czxid, stat.ctime / 1000)
            for path, (data, stat) in self.got(paths, deadline).items()
            if stat.czxid <= seen
        }
        return TableLocks(uri=uri, key=key, entries=tuple(entries_of(queues, found, node_of)))

    def _newest_change(self, node: str, deadline: Deadline) -> int:
        """Return the zxid of a change after which everything is listed that was made before it."""
        client = self._session.client
        # Another server than ours may have answered those who hold.
        self._session.wait(client.sync_async(node), deadline)
        self._session.wait(client.exists_async(node), deadline)
        return int(client.last_zxid)

    def _queues(self, node: str, deadline: Deadline) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return the znodes and the contenders of the queues of a table and of its partitions, both by partition."""
        node_of: dict[str, str] = {}
        queues: dict[str, list[str]] = {}
        level = {WHOLE_TABLE: node}
        while level:
            children = self.children(level.values(), deadline)
            for partition, path in level.items():
                if path in children:
                    node_of[partition] = path
                    queues[partition] = [contender.name for contender in parse_queue(children[path])]
            deeper = {
                partitions_node(path): partition
                for partition, path in level.items()
                if PARTITIONS in children.get(path, ())
            }
            level = {
                f"{deeper[folder]}/{name}".lstrip("/"): partition_in(folder, name)
                for folder, names in self.children(deeper, deadline).items()
                for name in names
            }
        return node_of, queues

    def children(self, paths: Iterable[str], deadline: Deadline) -> dict[str, list[str]]:
        """List the children of several nodes at once; those that are not there are left out."""
        return self._answers({path: self._session.client.get_children_async(path) for path in paths}, deadline)

    def got(self, paths: Iterable[str], deadline: Deadline) -> dict[str, tuple[bytes, Any]]:
        """Read several nodes at once: data and stat; those that are not there are left out."""
        return self._answers({path: self._session.client.get_async(path) for path in paths}, deadline)

    def _answers(self, asked: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        answers = {}
        for path, answer in asked.items():
            try:
                answers[path] = self._session.wait(answer, deadline)
            except NoNodeError:
                continue
        return answers
