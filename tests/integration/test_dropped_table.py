"""A table is dropped and created again at the same location, and a commit to the old table arrives late.

DROP makes version names free again. No lock can prevent that. These tests check the statements of docs/operate.md.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import LockInspector, LockLostError, TableResource, ZookeeperLockManager
from sluice.audit.verify import verify_table
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.lock_znodes import LockZnodes
from writer_jobs import locked

pytestmark = pytest.mark.spark

BUCKET, WRITER = "dropped-tables", "writer-7"


@pytest.fixture(scope="module")
def faulty_s3(spark: SparkSession) -> Iterator[FaultyS3]:
    """An S3 that can hold back a PUT, as the endpoint of one bucket."""
    with FaultyS3() as s3:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        s3.create_bucket(BUCKET)
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set(f"fs.s3a.bucket.{BUCKET}.endpoint", s3.endpoint)
        conf.set(f"fs.s3a.bucket.{BUCKET}.user.agent.prefix", WRITER)
        yield s3


@pytest.fixture
def fault() -> Iterator[S3Fault]:
    """A fault that holds back a PUT until it is released, at the latest at the end of the test."""
    fault = S3Fault(held=True)
    yield fault
    fault.release.set()


def append(spark: SparkSession, table: str, start: int, end: int) -> None:
    spark.range(start, end).coalesce(1).write.format("delta").mode("append").save(table)


def remove_folder(spark: SparkSession, table: str) -> None:
    """Delete the table's files, as DROP of a managed table does."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(table)
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)


def verify(s3: FaultyS3, table: str) -> list[str]:
    """Run ``sluice verify`` in another process: deltalake would block this process, which serves the S3."""
    command = [sys.executable, "-m", "sluice", "verify", table, "--json"]
    environment = {**os.environ, **s3.environment}
    process = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
    assert process.returncode in (0, 1), process.stderr
    problems: list[str] = json.loads(process.stdout)["problems"]
    return problems


@pytest.mark.full
@pytest.mark.parametrize("new_versions", [1, 3])
def test_verify_names_a_late_commit_to_a_dropped_table(
    spark: SparkSession,
    faulty_s3: FaultyS3,
    make_manager: Callable[..., ZookeeperLockManager],
    inspector: LockInspector,
    fault: S3Fault,
    new_versions: int,
) -> None:
    table = f"s3a://{BUCKET}/with-{new_versions}"
    late_writer, dropper = make_manager(job="late"), make_manager(job="dropper")
    with locked(spark, table, manager=late_writer):
        for number in range(3):
            append(spark, table, number, number + 1)
    errors: list[LockLostError] = []

    def write_late() -> None:
        try:
            with locked(spark, table, manager=late_writer):
                append(spark, table, 3, 4)
        except LockLostError as error:
            errors.append(error)

    faulty_s3.gate.arm(WRITER, fault)
    writing = InheritableThread(target=write_late)
    writing.start()
    assert fault.arrived.wait(60)
    locks = inspector.table(TableResource.of(table))
    assert inspector.remove(locks, locks.holders[0])

    # The next holder fills version 3, so that the late commit would fail. DROP deletes that version, too.
    with locked(spark, table, manager=dropper):
        assert spark.read.format("delta").load(table).count() == 3
        remove_folder(spark, table)
        for number in range(new_versions):
            append(spark, table, 100 + number, 101 + number)
    assert verify(faulty_s3, table) == []

    fault.release.set()
    writing.join(60)
    assert not writing.is_alive()
    assert len(errors) == 1
    assert faulty_s3.gate.puts[-1].status == 200
    problems = verify(faulty_s3, table)
    late_commits = [problem for problem in problems if "late commit to an earlier table" in problem]
    assert any(problem.startswith("version 3 carries fencing token") for problem in late_commits)
    gaps = [problem for problem in problems if "missing from the log, but version 3 exists" in problem]
    assert len(gaps) == (new_versions == 1)
    # The table is unreadable: a version or data files of the old table are missing.
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.read.format("delta").load(table).collect()


def test_an_intent_of_a_dropped_table_fills_the_next_version(
    spark: SparkSession, manager: ZookeeperLockManager, ensemble_client: KazooClient, tmp_path: Path
) -> None:
    table = str(tmp_path / "t")
    with locked(spark, table, manager=manager):
        append(spark, table, 0, 1)
    znodes = LockZnodes(ensemble_client, table)
    znodes.leave_intent(5)
    with locked(spark, table, manager=manager):
        pass
    # Version 5 is not filled, because that would leave a gap. The intent is deleted.
    files = sorted(path.name for path in Path(table).glob("_delta_log/*.json"))
    assert files == [f"{version:020}.json" for version in (0, 1)]
    assert znodes.intents() == {}
    assert verify_table(table).problems == ()
