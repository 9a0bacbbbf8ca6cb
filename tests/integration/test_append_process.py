"""The append job in processes of its own, under spark-submit: killed, stopped, and configured from outside."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from tests.support.running import is_running
from tests.support.submitted_job import SubmittedJob
from writer_jobs import append as append_module

pytestmark = pytest.mark.spark

APPEND = Path(append_module.__file__)
# So many that a job that is killed after the second one has not made all of them meanwhile.
COMMITS = 8


@pytest.mark.full
def test_a_run_that_is_killed_again_and_again_ends_as_one_run(
    submit: Callable[..., SubmittedJob],
    csv_file: Callable[..., Path],
    tmp_path: Path,
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    rows, every = [(number, f"name {number}") for number in range(200)], set(range(1, COMMITS + 1))
    table, source, report = tmp_path / "table", csv_file("s.csv", "id,name", rows), tmp_path / "report.json"
    arguments = (
        "--table", table, "--source", source, "--commits", COMMITS, "--run-id", "killed", "--report", report,
        "--lock-timeout", 60,
    )  # fmt: skip

    # Only the JVM, when the lock is held and nothing is committed: Python is left alone, and has to find out.
    first = submit(APPEND, *arguments)
    eventually(lambda: ("holding", 1) in first, within=240, what="the first hold")
    (holder,) = manager.queue(f"file:{table}")
    python = holder.data["pid"]
    first.process.kill()
    assert first.wait() == -signal.SIGKILL
    assert first.commits == []
    eventually(lambda: not is_running(python), within=120, what="the end of the orphaned Python")
    assert json.loads(report.read_text())["exit_code"] is None

    # Everything, right after a commit was acknowledged, on the way to the next.
    second = submit(APPEND, *arguments)
    eventually(lambda: ("commit", 2) in second, within=240, what="the second commit")
    second.kill()
    acknowledged = {line["commit"] for line in second.commits if not line["already_committed"]}
    assert {1, 2} <= acknowledged < every

    third = submit(APPEND, *arguments)
    assert third.wait() == 0, third.error
    assert [line["commit"] for line in third.commits] == sorted(every)
    assert {line["commit"] for line in third.commits if line["already_committed"]} >= acknowledged
    assert not third.commits[-1]["already_committed"]
    assert third.sentences == []
    assert json.loads(report.read_text())["exit_code"] == 0

    assert rows_of(table, "id", "name") == sorted(rows, key=repr)
    assert len(versions(table)) == COMMITS


@pytest.mark.full
def test_a_signal_while_waiting_leaves_the_queue_and_says_so(
    submit: Callable[..., SubmittedJob],
    csv_file: Callable[..., Path],
    tmp_path: Path,
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    table, report = tmp_path / "table", tmp_path / "report.json"
    with manager.acquire(f"file:{table}"):
        job = submit(APPEND, "--table", table, "--source", csv_file("s.csv", "id", [(1,)]), "--report", report)
        eventually(lambda: len(manager.queue(f"file:{table}")) == 2, within=240, what="the job in the queue")
        eventually(lambda: ("begun", 1) in job, what="the line that says so")
        os.kill(manager.queue(f"file:{table}")[1].data["pid"], signal.SIGTERM)
        assert job.wait() == 143, job.error
        assert len(manager.queue(f"file:{table}")) == 1
    assert [event["event"] for event in job.events] == ["begun"]
    assert job.sentences == ["append.py: stopped by SIGTERM"]
    assert "Traceback" not in job.error
    found = json.loads(report.read_text())
    assert (found["exit_code"], found["error"]) == (143, "stopped by SIGTERM")
    assert not [path for path in table.rglob("*") if path.is_file()]


@pytest.mark.full
def test_ctrl_c_at_the_terminal_goes_to_java_and_python_and_leaves_the_queue(
    heed_ctrl_c: None,
    submit: Callable[..., SubmittedJob],
    csv_file: Callable[..., Path],
    tmp_path: Path,
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    table = tmp_path / "table"
    with manager.acquire(f"file:{table}"):
        job = submit(APPEND, "--table", table, "--source", csv_file("s.csv", "id", [(1,)]))
        eventually(lambda: len(manager.queue(f"file:{table}")) == 2, within=240, what="the job in the queue")
        python = manager.queue(f"file:{table}")[1].data["pid"]
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.wait() == 130, job.error
        eventually(lambda: not is_running(python), what="the end of Python")
        eventually(lambda: len(manager.queue(f"file:{table}")) == 1, what="the place in the queue given back")
    assert "Traceback" not in job.error
    # The JVM ended at once, so the data file of the commit at the gate may still be there.
    assert not list(table.glob("_delta_log/*.json"))


SHOW_SETTINGS = """
import json
import sys

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, UnsupportedSessionError, build_session

spark = build_session("by the program")
print(json.dumps({key: spark.conf.get(key) for key in sys.argv[1:]}))
try:
    LockedDeltaWriter(spark, ZookeeperLockManager("127.0.0.1:1"), "/nowhere/table")
except UnsupportedSessionError as error:
    print(json.dumps(str(error)))
spark.stop()
"""


def test_what_is_given_to_spark_submit_wins_and_a_driver_without_delta_is_refused(
    submit: Callable[..., SubmittedJob], tmp_path: Path
) -> None:
    program = tmp_path / "show.py"
    given = {
        "spark.databricks.delta.snapshotPartitions": "7",
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.hadoop.fs.s3.impl": "org.example.OtherS3",
        # Spark passes over one that it cannot find.
        "spark.sql.extensions": "org.example.OtherExtension",
        "spark.app.name": "by the line",
        "spark.log.level": "OFF",
    }
    own = {
        "spark.databricks.delta.skipRecordingEmptyCommits": "false",
        "spark.hadoop.fs.s3n.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    program.write_text(SHOW_SETTINGS)
    job = submit(program, *given, *own, conf=given, delta=False)
    assert job.wait() == 0, job.error
    extensions = "org.example.OtherExtension,io.delta.sql.DeltaSparkSessionExtension"
    settings, refusal = job.events
    assert settings == given | own | {"spark.sql.extensions": extensions}
    assert "Delta is not on the driver's class path" in str(refusal)
