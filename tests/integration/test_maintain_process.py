"""``maintain.py`` under spark-submit: a first run is killed, a second is stopped, and a third ends normally."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake

from lock_manager import PartitionColumn, PartitionSchema, TableResource, ZookeeperLockManager, guard_registry
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.submitted_job import SubmittedJob
from writer_jobs import maintain as maintain_module

pytestmark = pytest.mark.spark

MAINTAIN = Path(maintain_module.__file__)
PLACES, FILES_PER_PLACE = 4, 3
BUSY_PLACE = 3
SCHEMA = PartitionSchema((PartitionColumn("place", "long"),))


@dataclass
class PartlyLockedTable:
    """A table of several partitions with small files. One partition is locked until ``unlock`` is called."""

    path: Path
    inspector: LockInspector
    unlock: Callable[[], None]

    def file_count(self) -> int:
        return len(DeltaTable(str(self.path)).file_uris())

    def waiting_pids(self) -> list[int]:
        """Return the process ids of the requests that wait for the table or a partition of it."""
        entries = self.inspector.table(TableResource.of(str(self.path))).waiters
        return [entry.data["pid"] for entry in entries]

    def is_correct(self) -> bool:
        keys = DeltaTable(str(self.path)).to_pyarrow_table(columns=["key"])["key"].to_pylist()
        return sorted(keys) == list(range(PLACES * FILES_PER_PLACE)) and verify_table(str(self.path), key=["key"]).ok


@pytest.fixture
def table_to_maintain(
    table: Path, manager: ZookeeperLockManager, inspector: LockInspector
) -> Iterator[PartlyLockedTable]:
    hooks = PostCommitHookProperties(create_checkpoint=False)
    for start in range(0, PLACES * FILES_PER_PLACE, PLACES):
        rows = pa.table({"key": range(start, start + PLACES), "place": range(PLACES)})
        write_deltalake(table, rows, partition_by=["place"], mode="append", post_commithook_properties=hooks)
    guard_registry.declare_guard_installed(lambda _: SCHEMA)
    partitions = [SCHEMA.partition({"place": BUSY_PLACE})]
    with ExitStack() as stack:
        stack.callback(guard_registry.declare_guard_installed, None)
        stack.enter_context(in_another_thread(lambda: manager.acquire(str(table), partitions=partitions)))
        yield PartlyLockedTable(table, inspector, stack.close)


def test_a_killed_or_stopped_maintainer_leaves_a_correct_table(
    table_to_maintain: PartlyLockedTable,
    submit: Callable[..., SubmittedJob],
    tmp_path: Path,
    eventually: Callable[..., None],
) -> None:
    page, report = tmp_path / "page.html", tmp_path / "report.json"
    page.write_text("of yesterday")

    def start(*arguments: object) -> SubmittedJob:
        return submit(MAINTAIN, "--table", table_to_maintain.path, "--compact", "--lock-timeout", 60, *arguments)

    def reported_actions() -> list[str]:
        tables = json.loads(report.read_text())["tables"] if report.exists() else []
        return [result["action"] for table in tables for result in table["done"]]

    # The run compacts the other partitions and waits for the busy one.
    killed_run = start("--parallel", 2, "--report", report, "--page", page)
    eventually(lambda: table_to_maintain.waiting_pids() and reported_actions(), within=240, label="a compaction")
    killed_pid = killed_run.python_pid
    assert table_to_maintain.waiting_pids() == [killed_pid]
    killed_run.kill()
    assert PLACES < table_to_maintain.file_count() < PLACES * FILES_PER_PLACE
    assert table_to_maintain.is_correct()
    # The report is incomplete, and the page of an earlier run is unchanged.
    assert (json.loads(report.read_text())["exit_code"], page.read_text()) == (None, "of yesterday")
    assert reported_actions()[0] == "compact"

    stopped_run = start()
    # The killed process is in the queue until its session ends.
    eventually(lambda: set(table_to_maintain.waiting_pids()) - {killed_pid}, within=240, label="a waiter")
    os.kill(stopped_run.python_pid, signal.SIGINT)
    assert stopped_run.wait() == 130, stopped_run.error
    (sentence,) = stopped_run.error_lines
    assert sentence.startswith("maintain.py: stopped by SIGINT")
    assert "Traceback" not in stopped_run.error
    assert table_to_maintain.is_correct()
    assert table_to_maintain.waiting_pids() == []

    table_to_maintain.unlock()
    orphan = table_to_maintain.path / "place=1" / "part-orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))
    complete_run = start("--vacuum")
    assert complete_run.wait() == 0, complete_run.error
    assert not orphan.exists()
    # All output lines are events, although Delta prints the results of its own VACUUM.
    assert {"measured", "done", "table"} <= {line["event"] for line in complete_run.events}
    results = [line for line in complete_run.events if line["event"] == "done"]
    assert {"place": str(BUSY_PLACE)} in [partition for line in results for partition in line["partitions"]]
    assert table_to_maintain.file_count() == PLACES
    assert table_to_maintain.is_correct()
