"""A table is dropped and made again at its place, and a commit to the old one arrives late.

Version names become free again by DROP, which no lock can mend: these tests keep docs/operate.md honest about it.
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

from lock_manager import LockLostError, LockSettings, TableResource, ZookeeperLockManager
from lock_manager.intents import Intent
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.znodes import intents_node, table_node
from sluice.audit.verify import verify_table
from soak.s3_faults import FaultyS3, S3Fault
from writer_jobs import locked

pytestmark = pytest.mark.spark

BUCKET, WRITER = "dropped-tables", "writer-7"
ROOT = "/locks/delta_tables"


@pytest.fixture(scope="module")
def faulty_s3(spark: SparkSession) -> Iterator[FaultyS3]:
    """An S3 that can keep a PUT back, which the driver finds by the bucket's name."""
    with FaultyS3() as running:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        running.create_bucket(BUCKET)
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set(f"fs.s3a.bucket.{BUCKET}.endpoint", running.endpoint)
        conf.set(f"fs.s3a.bucket.{BUCKET}.user.agent.prefix", WRITER)
        yield running


@pytest.fixture
def make_manager_of(zookeeper: Any) -> Iterator[Callable[[str], ZookeeperLockManager]]:
    made: list[ZookeeperLockManager] = []

    def make(job: str) -> ZookeeperLockManager:
        made.append(ZookeeperLockManager(zookeeper.hosts, timeout_seconds=60, job=job))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def fault() -> Iterator[S3Fault]:
    """Keep a PUT back until it is released; at the end it is in any case."""
    made = S3Fault(held=True)
    yield made
    made.release.set()


def append(spark: SparkSession, table: str, first: int, end: int) -> None:
    spark.range(first, end).coalesce(1).write.format("delta").mode("append").save(table)


def remove_folder(spark: SparkSession, table: str) -> None:
    """Do what DROP of a managed table does to its files."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(table)
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)


def verify(s3: FaultyS3, table: str) -> list[str]:
    """Run the command in a process of its own: deltalake would keep this one, which serves the S3, from running."""
    command = [sys.executable, "-m", "sluice", "verify", table, "--json"]
    environment = {**os.environ, **s3.environment}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    found: list[str] = json.loads(done.stdout)["problems"]
    return found


@pytest.mark.full
@pytest.mark.parametrize("versions", [1, 3])
def test_a_late_commit_to_a_dropped_table_lands_in_the_new_one_and_verify_names_it(
    spark: SparkSession,
    faulty_s3: FaultyS3,
    zookeeper: Any,
    make_manager_of: Callable[[str], ZookeeperLockManager],
    fault: S3Fault,
    versions: int,
) -> None:
    table = f"s3a://{BUCKET}/with-{versions}"
    late, dropper = make_manager_of("late"), make_manager_of("dropper")
    with locked(spark, table, manager=late):
        for number in range(3):
            append(spark, table, number, number + 1)
    ends: list[BaseException | None] = []

    def write_late() -> None:
        try:
            with locked(spark, table, manager=late):
                append(spark, table, 3, 4)
        except LockLostError as error:
            ends.append(error)

    faulty_s3.gate.arm(WRITER, fault)
    writing = InheritableThread(target=write_late)
    writing.start()
    assert fault.arrived.wait(60)
    with LockInspector(LockSettings(zk_hosts=zookeeper.hosts)) as inspector:
        locks = inspector.table(TableResource.of(table))
        assert inspector.remove(locks, locks.holders[0])

    # The next holder takes version 3, so that the late commit fails. With the folder goes what it has taken.
    with locked(spark, table, manager=dropper):
        assert spark.read.format("delta").load(table).count() == 3
        remove_folder(spark, table)
        for number in range(versions):
            append(spark, table, 100 + number, 101 + number)
    assert verify(faulty_s3, table) == []

    fault.release.set()
    writing.join(60)
    assert not writing.is_alive()
    (error,) = ends
    assert isinstance(error, LockLostError)
    assert faulty_s3.gate.puts[-1].status == 200
    problems = verify(faulty_s3, table)
    late_token = [each for each in problems if "late commit to a table that was dropped here before" in each]
    assert any(each.startswith("version 3 carries fencing token") for each in late_token)
    gaps = [each for each in problems if "missing from the log, and version 3 is there" in each]
    assert len(gaps) == (versions == 1)
    # Nobody reads the table as it should be any more: not by its gap, or not by the data that went with the old one.
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.read.format("delta").load(table).collect()


def test_an_intent_of_a_dropped_table_takes_the_next_version_and_not_its_own(
    spark: SparkSession,
    zookeeper: Any,
    make_manager_of: Callable[[str], ZookeeperLockManager],
    tmp_path: Path,
) -> None:
    table = str(tmp_path / "t")
    manager = make_manager_of("next")
    with locked(spark, table, manager=manager):
        append(spark, table, 0, 1)
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        folder = intents_node(table_node(ROOT, TableResource.of(table)))
        left = Intent(hold_id="0" * 32, version=5, txn="lost", attempt="lost", token=1)
        client.ensure_path(folder)
        client.create(f"{folder}/{left.hold_id}", left.data())
        with locked(spark, table, manager=manager):
            pass
        # It is not version 5 that is filled, which would be a gap; and the intent is gone.
        assert sorted(path.name for path in Path(table).glob("_delta_log/*.json")) == [
            f"{version:020}.json" for version in (0, 1)
        ]
        assert client.get_children(folder) == []
    finally:
        client.stop()
        client.close()
    assert verify_table(table).problems == ()
