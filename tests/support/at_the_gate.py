"""A driver for tests of one table: its writer, its files, and writes that wait behind another holder of its lock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from lock_manager import Hold, ZookeeperLockManager
from writer_jobs import CommitResult, LockedDeltaWriter, locked


@dataclass
class TableAtTheGate:
    """A table on disk, a writer of it, and the queue of its lock."""

    spark: SparkSession
    path: Path
    writer: LockedDeltaWriter
    manager: ZookeeperLockManager
    eventually: Callable[..., None]
    files_at_lock: list[set[str]] = field(default_factory=list, init=False)

    @classmethod
    def create(cls, request: pytest.FixtureRequest, *statements: str, **fields: Any) -> Self:
        """Copy a table that SQL statements create; without statements, use a path without a table."""
        fixture = request.getfixturevalue
        path = fixture("copy_of")(*statements) if statements else fixture("tmp_path") / "new"
        spark, manager = fixture("spark"), fixture("manager")
        writer = LockedDeltaWriter(spark, manager, str(path))
        return cls(spark, path, writer, manager, fixture("eventually"), **fields)

    def files(self) -> set[str]:
        """Return the names of all data files, including files that belong to no commit."""
        return {path.name for path in self.path.rglob("*.parquet") if path.parent.name != "_delta_log"}

    def record_files(self, _: Hold) -> None:
        """Record the data files. Tests pass this method as ``before_write``."""
        self.files_at_lock.append(self.files())

    def checkpoint_files(self) -> list[Path]:
        """Return the files of checkpoints, the oldest first."""
        return sorted(self.path.glob("_delta_log/*.checkpoint*.parquet"))

    def checkpoints(self) -> list[int]:
        """Return the versions that have a checkpoint."""
        return [int(path.name.split(".")[0]) for path in self.checkpoint_files()]

    def forge_versions(self, until: int) -> None:
        """Add versions without rows, up to a version."""
        for version in range(DeltaTable(str(self.path)).version() + 1, until + 1):
            line = json.dumps({"txn": {"appId": "a", "version": version}})
            version_path(self.path, version).write_text(line + "\n")

    def remove_files(self) -> None:
        """Remove the content of the table's folder, its log included."""
        for path in sorted(self.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def values(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows as delta-rs reads them, sorted; null is the largest value."""
        rows = QueryBuilder().register("t", DeltaTable(str(self.path))).execute("select * from t").read_all()
        tuples = zip(*(rows[column].to_pylist() for column in columns), strict=True)
        return sorted(tuples, key=lambda row: [(value is None, value) for value in row])

    def ids(self) -> list[int]:
        return [row[0] for row in self.values("id")]

    def locked(self) -> AbstractContextManager[Hold]:
        """Hold the table's lock; a thread that already holds it gets the same hold."""
        return locked(self.spark, str(self.path), manager=self.manager)

    def sql(self, statement: str) -> None:
        """Run a statement under the table's lock; ``{t}`` stands for the table."""
        with self.locked():
            self.spark.sql(statement.format(t=f"delta.`{self.path}`"))

    def queue_length(self) -> int:
        """Return the number of contenders in the table's queue."""
        return len(self.manager.queue(self.writer.table))

    def waiting_write(self, write: Callable[[], CommitResult]) -> AbstractContextManager[Future[CommitResult]]:
        """Start a write that waits at the gate; see :func:`waiting_write`."""
        return waiting_write(self.manager, self.writer.table, write, self.eventually)


@contextmanager
def waiting_write(
    manager: ZookeeperLockManager, table: str, write: Callable[[], CommitResult], eventually: Callable[..., None]
) -> Iterator[Future[CommitResult]]:
    """Start a write that waits at the gate: this thread holds the lock until the end of the block.

    Yields the future result of the write.
    """
    with ThreadPoolExecutor(1) as pool:
        with manager.acquire(table):
            running = pool.submit(write)
            eventually(
                lambda: len(manager.queue(table)) == 2 or running.done(), within=60, label="a commit at the gate"
            )
            yield running
        running.exception(120)


def version_path(table: Path | str, version: int | None) -> Path:
    """Return the path of a version's file."""
    return Path(table, "_delta_log", f"{version:020d}.json")


def actions(table: Path | str, version: int | None, name: str) -> list[dict[str, Any]]:
    """Return the actions of a version that have this name."""
    lines = version_path(table, version).read_text(encoding="utf-8").splitlines()
    return [action[name] for action in map(json.loads, lines) if name in action]


def commit_info(table: Path | str, version: int | None) -> dict[str, Any]:
    """Return the ``commitInfo`` of a version."""
    return actions(table, version, "commitInfo")[0]


class AttemptClock:
    """The clock that measures the age of a write attempt, with an offset that a test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offset = timedelta(0)
        patch.setattr("lock_manager.guard.write_attempt.time", self)

    def time(self) -> float:
        return time.time() + self.offset.total_seconds()
