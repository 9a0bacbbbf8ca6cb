"""The znodes of one table's lock, read and changed by a plain kazoo client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from lock_manager import Hold, TableResource
from lock_manager.intents import Intent
from lock_manager.zookeeper.znodes import intents_node, table_node

LOCK_ROOT = "/locks/delta_tables"
DEAD_HOLD = "0" * 32
"""Hold id of the intents that :meth:`LockZnodes.leave_intent` stores."""


@contextmanager
def connected_client(hosts: str, **options: Any) -> Iterator[KazooClient]:
    """Connect a plain client to an ensemble."""
    client = KazooClient(hosts, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


class LockZnodes:
    """The znodes of a table's lock.

    Args:
        client: A connected client.
        table: Name of the table.

    Attributes:
        path: Znode of the table.
        intents_path: Parent of its intents.

    """

    def __init__(self, client: KazooClient, table: str) -> None:
        self.client = client
        self.path = table_node(LOCK_ROOT, TableResource.of(table))
        self.intents_path = intents_node(self.path)

    def contenders(self) -> list[str]:
        """Return the paths of the contenders for the whole table."""
        return [f"{self.path}/{name}" for name in self._children(self.path) if "lock__" in name]

    def all_contenders(self) -> list[str]:
        """Return the paths of the contenders for the table and for its partitions."""

        def contenders_below(path: str) -> Iterator[str]:
            for name in self._children(path):
                if "lock__" in name:
                    yield f"{path}/{name}"
                elif name != "intents":
                    yield from contenders_below(f"{path}/{name}")

        return list(contenders_below(self.path))

    def delete_contenders(self, hold: Hold | None = None) -> None:
        """Delete the contenders for the whole table, or only the contender of a hold: their holds are lost."""
        for path in self.contenders():
            if hold is None or hold.hold_id in path:
                self.client.delete(path)

    def intents(self) -> dict[str, Intent]:
        """Return the table's intents by the name of their znode."""
        names = self._children(self.intents_path)
        return {name: Intent.parse(self.client.get(f"{self.intents_path}/{name}")[0]) for name in names}

    def leave_intent(self, version: int) -> None:
        """Store the intent of a writer that was killed between the guard's check and the end of its PUT."""
        intent = Intent(hold_id=DEAD_HOLD, version=version, txn="lost", attempt="lost", token=1)
        self.client.ensure_path(self.intents_path)
        self.client.create(f"{self.intents_path}/{DEAD_HOLD}", intent.data())

    def _children(self, path: str) -> list[str]:
        return list(self.client.get_children(path)) if self.client.exists(path) else []
