"""``maintain.py`` under spark-submit: killed in the middle, stopped in the middle, and brought to its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import TableResource, ZookeeperLockManager
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.verify import verify_table
from tests.support.another_thread import in_another_thread
from tests.support.submitted_job import SubmittedJob
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs import maintain as maintain_module

pytestmark = pytest.mark.spark

MAINTAIN = Path(maintain_module.__file__)
PLACES, FILES = 5, 4


def test_a_maintainer_that_ends_in_the_middle_leaves_a_correct_table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    submit: Callable[..., SubmittedJob],
    table: Path,
    tmp_path: Path,
    eventually: Callable[..., None],
) -> None:
    writer = LockedDeltaWriter(spark, manager, str(table))
    rows = spark.range(0, PLACES * FILES * 10, 1, FILES).selectExpr("id AS key", f"id % {PLACES} AS place")
    writer.append(rows, partition_by=["place"])

    def files() -> int:
        return len(DeltaTable(str(table)).file_uris())

    def is_correct() -> bool:
        keys = DeltaTable(str(table)).to_pyarrow_table(columns=["key"])["key"].to_pylist()
        return sorted(keys) == list(range(PLACES * FILES * 10)) and verify_table(str(table), key=["key"]).ok

    def start(*how: object) -> SubmittedJob:
        return submit(MAINTAIN, "--table", table, "--compact", "--lock-timeout", 60, *how)

    with LockInspector(manager.settings) as inspector, ExitStack() as stack:

        def waiters() -> list[int]:
            return [each.data["pid"] for each in inspector.table(TableResource.of(writer.table)).waiters]

        # It comes no further than this.
        third_place = [{"place": 3}]
        stack.enter_context(
            in_another_thread(lambda: locked(spark, str(table), partitions=third_place, manager=manager))
        )
        page, report = tmp_path / "page.html", tmp_path / "report.json"
        page.write_text("of yesterday")
        first = start("--parallel", 2, "--report", report, "--page", page)

        def noted() -> list[str]:
            written = json.loads(report.read_text()) if report.exists() else {}
            return [each["action"] for table in written.get("tables", []) for each in table["done"]]

        eventually(lambda: waiters() and noted(), within=240, what="a compaction")
        killed = first.python
        assert waiters() == [killed]
        first.kill()
        done = files()
        assert PLACES < done < PLACES * FILES
        assert is_correct()
        # Nobody could write more of it, and the page has nothing to show yet.
        written = json.loads(report.read_text())
        assert (written["exit_code"], page.read_text()) == (None, "of yesterday")
        assert noted()[0] == "compact"

        second = start()
        # The one that was killed is in the queue until its session is over.
        eventually(lambda: set(waiters()) - {killed}, within=240, what="the wait for a partition")
        os.kill(second.python, signal.SIGINT)
        assert second.wait() == 130, second.error
        (sentence,) = second.sentences
        assert sentence.startswith("maintain.py: stopped by SIGINT")
        assert "Traceback" not in second.error
        assert is_correct()
        assert waiters() == []

    orphan = table / "place=1" / "part-orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))
    third = start("--vacuum")
    assert third.wait() == 0, third.error
    assert not orphan.exists()
    # Each line is one of the job's own: Delta prints what VACUUM removes.
    assert {"measured", "done", "table"} <= {line["event"] for line in third.events}
    done = [line for line in third.events if line["event"] == "done"]
    assert {"place": "3"} in [values for line in done for values in line["partitions"]]
    assert files() == PLACES
    assert is_correct()
