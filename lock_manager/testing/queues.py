"""Read the queues of tables and delete contenders, from outside the lock manager."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from lock_manager import LockSettings, TableResource
from lock_manager.zookeeper.znodes import child_node, parse_queue, table_node

_START_SECONDS = 30


class LockQueues:
    """The queues of an ensemble, read through a plain kazoo client."""

    def __init__(self, hosts: str) -> None:
        self._client = KazooClient(hosts)
        self._root = LockSettings(zk_hosts=hosts).lock_root

    def __enter__(self) -> Self:
        self._client.start(_START_SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        self._client.stop()
        self._client.close()

    def contenders(self, table: str, job: str | None = None) -> list[str]:
        """Return the names of the contenders in a table's queue, optionally of one job only."""
        names: list[str] = []
        with suppress(NoNodeError):
            names = self._client.retry(self._client.get_children, self._node(table))
        contenders = sorted(contender.name for contender in parse_queue(names))
        return [name for name in contenders if job is None or self._job(table, name) == job]

    def delete(self, table: str, token: int) -> None:
        """Delete the contender with this token, if it exists."""
        for name in self.contenders(table):
            path = child_node(self._node(table), name)
            with suppress(NoNodeError):
                _, stat = self._client.retry(self._client.get, path)
                if stat.czxid == token:
                    self._client.retry(self._client.delete, path)

    def delete_of(self, table: str, job: str) -> None:
        """Delete the contenders of a job."""
        for name in self.contenders(table, job):
            with suppress(NoNodeError):
                self._client.retry(self._client.delete, child_node(self._node(table), name))

    def _job(self, table: str, name: str) -> str | None:
        with suppress(NoNodeError):
            data, _ = self._client.retry(self._client.get, child_node(self._node(table), name))
            return str(json.loads(data or b"{}").get("job"))
        return None

    def _node(self, table: str) -> str:
        return table_node(self._root, TableResource.of(table))
