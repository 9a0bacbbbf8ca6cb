"""The append job under spark-submit: killed, stopped by signals, and configured by spark-submit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from tests.support.running import is_running
from tests.support.submitted_job import SubmittedJob
from writer_jobs import append as append_module

pytestmark = pytest.mark.spark

APPEND = Path(append_module.__file__)
# With so many commits, a job that is killed after the second one is incomplete.
COMMITS = 8


@dataclass
class JobUnderSubmit:
    """The append job on one table, in its own processes."""

    table: Path
    report: Path
    manager: ZookeeperLockManager
    eventually: Callable[..., None]
    submit: Callable[..., SubmittedJob]

    def start(self, source: Path, *arguments: object) -> SubmittedJob:
        return self.submit(APPEND, "--table", self.table, "--source", source, "--report", self.report, *arguments)

    def start_behind_lock(self, source: Path) -> tuple[SubmittedJob, int]:
        """Start the job while this thread holds the lock; return the job and the id of its Python process."""
        job = self.start(source)
        self.eventually(lambda: self.queue_length() == 2, within=240, label="the job in the queue")
        return job, self.manager.queue(f"file:{self.table}")[1].data["pid"]

    def queue_length(self) -> int:
        return len(self.manager.queue(f"file:{self.table}"))

    def exit_code(self) -> int | None:
        """Return the exit code in the report."""
        code: int | None = json.loads(self.report.read_text())["exit_code"]
        return code


@pytest.fixture
def driver(
    submit: Callable[..., SubmittedJob], tmp_path: Path, manager: ZookeeperLockManager, eventually: Callable[..., None]
) -> JobUnderSubmit:
    return JobUnderSubmit(tmp_path / "table", tmp_path / "report.json", manager, eventually, submit)


@pytest.mark.full
def test_a_run_that_is_killed_twice_is_completed_once(
    driver: JobUnderSubmit,
    csv_file: Callable[..., Path],
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
) -> None:
    rows = [(number, f"name {number}") for number in range(200)]
    commit_numbers = set(range(1, COMMITS + 1))
    source = csv_file("s.csv", "id,name", rows)

    def start() -> SubmittedJob:
        return driver.start(source, "--commits", COMMITS, "--run-id", "killed", "--lock-timeout", 60)

    # Kill only the JVM, while the job holds the lock and has reported no commit. Python detects it.
    with driver.manager.acquire(f"file:{driver.table}"):
        killed_jvm = start()
        driver.eventually(lambda: driver.queue_length() == 2, within=240, label="the job in the queue")
        # Without its JVM the job cannot commit.
        killed_jvm.process.send_signal(signal.SIGSTOP)
    (holder,) = driver.manager.queue(f"file:{driver.table}")
    killed_jvm.process.kill()
    assert killed_jvm.wait() == -signal.SIGKILL
    assert killed_jvm.commits == []
    driver.eventually(lambda: not is_running(holder.data["pid"]), within=120, label="the end of the orphaned Python")
    assert driver.exit_code() is None

    # Kill both processes after the second commit was acknowledged, before the last.
    killed_job = start()
    driver.eventually(lambda: ("commit", 2) in killed_job, within=240, label="the second commit")
    killed_job.kill()
    acknowledged = {line["commit"] for line in killed_job.commits}
    assert {1, 2} <= acknowledged < commit_numbers

    completed = start()
    assert completed.wait() == 0, completed.error
    assert [line["commit"] for line in completed.commits] == sorted(commit_numbers)
    assert {line["commit"] for line in completed.commits if line["already_committed"]} >= acknowledged
    assert not completed.commits[-1]["already_committed"]
    assert completed.error_lines == []
    assert driver.exit_code() == 0

    assert rows_of(driver.table, "id", "name") == sorted(rows, key=repr)
    assert len(versions(driver.table)) == COMMITS


@pytest.mark.full
def test_sigterm_ends_a_job_that_waits_for_the_lock(driver: JobUnderSubmit, csv_file: Callable[..., Path]) -> None:
    with driver.manager.acquire(f"file:{driver.table}"):
        job, python_pid = driver.start_behind_lock(csv_file("s.csv", "id", [(1,)]))
        driver.eventually(lambda: ("begun", 1) in job, label="the line of the begun commit")
        os.kill(python_pid, signal.SIGTERM)
        assert job.wait() == 143, job.error
        assert driver.queue_length() == 1
    assert [event["event"] for event in job.events] == ["begun"]
    assert job.error_lines == ["append.py: stopped by SIGTERM"]
    assert "Traceback" not in job.error
    report = json.loads(driver.report.read_text())
    assert (report["exit_code"], report["error"]) == (143, "stopped by SIGTERM")
    assert not [path for path in driver.table.rglob("*") if path.is_file()]


@pytest.mark.full
@pytest.mark.usefixtures("heed_ctrl_c")
def test_ctrl_c_ends_java_and_python_and_leaves_the_queue(
    driver: JobUnderSubmit, csv_file: Callable[..., Path]
) -> None:
    with driver.manager.acquire(f"file:{driver.table}"):
        job, python_pid = driver.start_behind_lock(csv_file("s.csv", "id", [(1,)]))
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.wait() == 130, job.error
        driver.eventually(lambda: not is_running(python_pid), label="the end of Python")
        driver.eventually(lambda: driver.queue_length() == 1, label="the end of the contender")
    assert "Traceback" not in job.error
    # The JVM ended at once, so the data file of the commit at the gate may remain.
    assert not list(driver.table.glob("_delta_log/*.json"))


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


def test_settings_of_spark_submit_win(submit: Callable[..., SubmittedJob], tmp_path: Path) -> None:
    """Settings of spark-submit replace those of the program. The writer refuses this driver, which lacks Delta."""
    program = tmp_path / "show.py"
    submitted = {
        "spark.databricks.delta.snapshotPartitions": "7",
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.hadoop.fs.s3.impl": "org.example.OtherS3",
        # Spark ignores an extension whose class is missing.
        "spark.sql.extensions": "org.example.OtherExtension",
        "spark.app.name": "by the line",
        "spark.log.level": "OFF",
    }
    defaults = {
        "spark.databricks.delta.skipRecordingEmptyCommits": "false",
        "spark.hadoop.fs.s3n.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    program.write_text(SHOW_SETTINGS)
    job = submit(program, *submitted, *defaults, conf=submitted, delta=False)
    assert job.wait() == 0, job.error
    extensions = "org.example.OtherExtension,io.delta.sql.DeltaSparkSessionExtension"
    settings, refusal = job.events
    assert settings == submitted | defaults | {"spark.sql.extensions": extensions}
    assert "Delta is not on the driver's class path" in str(refusal)
