"""A table whose writes wait at the gate, and who queues for its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from lock_manager import TableResource, ZookeeperLockManager
from lock_manager.zookeeper.znodes import table_node
from writer_jobs import CommitResult, LockedDeltaWriter


@dataclass
class TableAtTheGate:
    """A table on disk, and those who write it."""

    spark: SparkSession
    path: Path
    writer: LockedDeltaWriter
    manager: ZookeeperLockManager
    eventually: Callable[..., None]

    def files(self) -> set[str]:
        """Return the names of its data files, those included that are of no commit."""
        return {path.name for path in self.path.rglob("*.parquet") if path.parent.name != "_delta_log"}

    def queued(self) -> int:
        """Return how many have its lock, or wait for it."""
        return len(self.manager.queue(self.writer.table))

    @contextmanager
    def behind(self, write: Callable[[], CommitResult]) -> Iterator[Future[CommitResult]]:
        """Have a write wait at the gate, behind a hold of this thread that is given back at the end of the block."""
        with ThreadPoolExecutor(1) as pool:
            with self.manager.acquire(self.writer.table):
                running = pool.submit(write)
                self.eventually(lambda: self.queued() == 2 or running.done(), within=60, what="a commit at the gate")
                yield running
            running.exception(120)


def contenders(client: KazooClient, table: str) -> list[str]:
    """Return the nodes of those who have the lock on a whole table, or wait for it."""
    node = table_node("/locks/delta_tables", TableResource.of(table))
    found = client.get_children(node) if client.exists(node) else []
    return [f"{node}/{name}" for name in found if "lock__" in name]
