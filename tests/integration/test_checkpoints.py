"""Checkpoints are written after the release of the lock, by one writer at a time, and are not delayed forever."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from lock_manager import EnsembleRefusedError, HeldLock, Hold, ZookeeperLockManager
from tests.support.at_the_gate import TableAtTheGate
from tests.support.rivals import RivalManager
from writer_jobs.delta import checkpoints
from writer_jobs.delta.checkpoints import LAST_CHECKPOINT
from writer_jobs.merge.result import ChangesResult
from writer_jobs.streaming.query import AVAILABLE_NOW, BatchQuery

pytestmark = pytest.mark.spark

INTERVAL = 4


@dataclass
class Table(TableAtTheGate):
    """A table with a checkpoint at every fourth version."""

    def append(self, number: int, **options: Any) -> int:
        rows = self.spark.createDataFrame([(number,)], "id long").coalesce(1)
        return self.writer.append(rows, **options).version or 0

    def run(self, statement: str) -> None:
        """Run a statement in the current block; ``{t}`` stands for the table."""
        self.spark.sql(statement.format(t=f"delta.`{self.path}`"))

    def write(self, operation: str, number: int) -> None:
        """Commit one version: insert a row with this number, or compact at the version that needs a checkpoint."""
        if operation.startswith("compaction") and number != INTERVAL:
            operation = "gate"
        match operation:
            case "gate":
                self.append(number)
            case "whole write":
                self.append(number, lock_during="write")
            case "block":
                self.sql(f"INSERT INTO {{t}} VALUES ({number})")
            case "merge":
                source = self.spark.range(number, number + 1).alias("s")
                self.writer.merge(source, "t.id = s.id", alias="t").whenNotMatchedInsertAll().execute()
            case "compaction":
                self.writer.optimize()
            case "compaction in a block":
                self.sql("OPTIMIZE {t}")

    def checkpoints_at_release(self, patch: pytest.MonkeyPatch) -> list[list[int]]:
        """Return a list to which each later release of the table's lock adds the versions with a checkpoint."""
        versions: list[list[int]] = []
        release = HeldLock.release

        def record_and_release(hold: HeldLock) -> None:
            if hold.resource == self.writer.table:
                versions.append(self.checkpoints())
            release(hold)

        patch.setattr(HeldLock, "release", record_and_release)
        return versions


@pytest.fixture
def table_of(request: pytest.FixtureRequest) -> Callable[..., Table]:
    """Copy a table: its version 0 is empty, and each later version adds one row with the version's number."""

    def make(versions: int = 0, interval: int = INTERVAL) -> Table:
        return Table.create(
            request,
            f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '{interval}')",
            *(f"INSERT INTO {{t}} VALUES ({number})" for number in range(1, versions + 1)),
        )

    return make


@pytest.mark.full
@pytest.mark.parametrize("operation", ["gate", "whole write", "block", "merge", "compaction", "compaction in a block"])
def test_no_checkpoint_is_written_while_the_lock_is_held(
    table_of: Callable[..., Table], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(INTERVAL - 1)
    at_release = table.checkpoints_at_release(monkeypatch)
    for number in (INTERVAL, INTERVAL + 1):
        table.write(operation, number)
    assert table.checkpoints() == [INTERVAL]
    assert at_release == [[], [INTERVAL]]


def test_negative_control_a_checkpoint_of_delta_s_hook_is_detected(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log store does not observe this transaction, so Delta's hook writes the checkpoint."""
    table = table_of(INTERVAL - 1)
    at_release = table.checkpoints_at_release(monkeypatch)
    delta: Any = table.spark._jvm.org.apache.spark.sql.delta
    observers, no_observer = delta.TransactionExecutionObserver, getattr(delta, "NoOpTransactionExecutionObserver$")
    observer = observers.getObserver()
    with table.locked():
        observers.setObserver(getattr(no_observer, "MODULE$"))
        try:
            table.run("OPTIMIZE {t}")
        finally:
            observers.setObserver(observer)
    assert at_release == [[INTERVAL]]


def test_nested_blocks_write_the_checkpoint_after_the_outermost(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(INTERVAL - 1)
    at_release = table.checkpoints_at_release(monkeypatch)
    with table.locked():
        for number in (INTERVAL, INTERVAL + 1):
            table.append(number)
        assert table.checkpoints() == []
    # The newest version that needs a checkpoint gets one.
    assert (table.checkpoints(), at_release[-1]) == ([4], [])


@pytest.mark.full
def test_a_block_of_many_commits_writes_a_checkpoint(table_of: Callable[..., Table]) -> None:
    """More than 100 versions after the last checkpoint, the next one is written under the lock."""
    table = table_of(interval=2)
    with table.locked():
        table.forge_versions(104)
        table.run("INSERT INTO {t} VALUES (1), (2)")
        table.run("INSERT INTO {t} VALUES (3), (4)")
        assert table.checkpoints() == [106]
    assert table.checkpoints() == [106]


@pytest.mark.full
def test_a_checkpoint_that_another_writer_locked_is_skipped(
    table_of: Callable[..., Table], make_rival: Callable[..., RivalManager]
) -> None:
    table = table_of(INTERVAL - 1)
    with make_rival().acquire(f"{table.writer.table}/{LAST_CHECKPOINT}"):
        for number in (INTERVAL, INTERVAL + 1):
            table.append(number)
    assert table.checkpoints() == []
    for number in range(INTERVAL + 2, 2 * INTERVAL + 1):
        table.append(number)
    assert table.checkpoints() == [2 * INTERVAL]


@pytest.mark.full
@pytest.mark.parametrize("commits", [14, pytest.param(500, marks=pytest.mark.soak)])
def test_the_log_stays_bounded_and_readable_at_each_version(table_of: Callable[..., Table], commits: int) -> None:
    table = table_of()
    with ThreadPoolExecutor(3) as pool:
        for _ in pool.map(table.append, range(commits)):
            snapshot = DeltaTable(table.path)
            ids = snapshot.to_pyarrow_table().column("id").to_pylist()
            assert len(ids) == len(set(ids)) == snapshot.version()
    # The append that makes the first checkpoint due writes it before it returns. Later checkpoints may be skipped.
    assert table.checkpoints()
    for number in itertools.count(commits):
        table.append(number)
        if (version := DeltaTable(table.path).version()) % INTERVAL == 0:
            break
    assert table.checkpoints()[-1] == version


def test_a_recreated_table_gets_no_checkpoint_of_the_old_one(table_of: Callable[..., Table]) -> None:
    table = table_of(INTERVAL - 1)
    with pytest.raises(IndexError), table.locked():
        table.run("INSERT INTO {t} VALUES (4)")
        # The checkpoint is still needed after an error.
        raise IndexError
    shutil.rmtree(table.path)
    with table.locked():
        table.run("CREATE TABLE {t} (id LONG) USING delta")
        for number in range(10, 10 + INTERVAL):
            table.run(f"INSERT INTO {{t}} VALUES ({number})")
    table.append(20)
    assert table.checkpoints() == []
    assert table.ids() == [10, 11, 12, 13, 20]


def test_a_failed_checkpoint_is_written_after_the_next_commit(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(INTERVAL - 1)
    acquire_all = ZookeeperLockManager.acquire_all

    def fail(manager: ZookeeperLockManager, scopes: Any, **options: Any) -> HeldLock:
        if any(str(scope).endswith(LAST_CHECKPOINT) for scope in scopes):
            raise EnsembleRefusedError("localhost", "no access")
        return acquire_all(manager, scopes, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ZookeeperLockManager, "acquire_all", fail)
        assert table.append(INTERVAL) == INTERVAL
    assert table.checkpoints() == []
    table.append(INTERVAL + 1)
    assert table.checkpoints() == [INTERVAL]


def run_stream(
    table: Table, folder: Path, monkeypatch: pytest.MonkeyPatch, timeout_seconds: float
) -> list[tuple[int, list[int]]]:
    """Run a stream of four commits whose checkpoint is written after the last one, or fails after the timeout.

    Returns:
        Version and existing checkpoints after each batch.

    """
    commits, last_commit = [], threading.Event()
    write = checkpoints._write

    def write_after_last_commit(*arguments: Any) -> None:
        assert last_commit.wait(timeout_seconds)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "_write", write_after_last_commit)

    def apply(rows: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> ChangesResult:
        commit = table.writer.append(rows, txn=txn, before_write=before_write)
        commits.append((commit.version, table.checkpoints()))
        if commit.version == INTERVAL + 2:
            last_commit.set()
        return ChangesResult(table=table.writer.table, commit=commit)

    folder.mkdir()
    for number in range(INTERVAL, INTERVAL + 3):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}')
    rows = table.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder))
    query = BatchQuery(table.writer, Mock(), apply)
    query.run(rows, trigger=AVAILABLE_NOW, checkpoint=f"{folder}_checkpoint")
    return commits


def test_the_batches_of_a_stream_do_not_wait_for_a_checkpoint(
    table_of: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(INTERVAL - 1)
    commits = run_stream(table, tmp_path / "rows", monkeypatch, timeout_seconds=60)
    assert commits == [(INTERVAL, []), (INTERVAL + 1, []), (INTERVAL + 2, [])]
    # The stream ended after its checkpoint was written.
    assert table.checkpoints() == [INTERVAL]


def test_negative_control_a_batch_that_writes_its_checkpoint_itself_waits_for_it(
    table_of: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.CheckpointThread, "used", lambda _: nullcontext())
    with pytest.raises(AssertionError):
        run_stream(table_of(INTERVAL - 1), tmp_path / "rows", monkeypatch, timeout_seconds=0.1)
