"""Create the class archive NAME (lock_manager/testing/class_archives.py) from one run of the program that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import JavaGateway

from lock_manager import ZookeeperLockManager
from lock_manager.testing.class_archives import SPARK, STORE, ZOOKEEPER, archive_path, write_archive_options
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.demo.services import set_environment
from sluice.local.jars import jar_paths
from sluice.local.s3 import LocalS3
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, PLAIN_JVM
from soak.hadoop import hadoop_settings
from soak.jvm import StoreJvm
from writer_jobs import build_session

STATEMENTS = (
    "CREATE TABLE {table} (id LONG, day INT) USING delta PARTITIONED BY (day)",
    "INSERT INTO {table} SELECT id, 1 FROM range(9)",
    "INSERT OVERWRITE {table} SELECT id, id % 2 FROM range(9)",
    "DELETE FROM {table} WHERE id = 3",
    "UPDATE {table} SET id = 10 WHERE id = 4",
    (
        "MERGE INTO {table} t USING (SELECT id, 1 day FROM range(12)) s ON t.id = s.id AND t.day = s.day "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    "OPTIMIZE {table}",
)


class AllowAllGuard:
    """A guard that allows every request."""

    def check(self, request: str) -> str:  # noqa: ARG002 (every request has the same response)
        """Return the response that allows the request."""
        return '{"holds": ["archive"], "stamp": {}}'


@contextmanager
def new_archive(name: str) -> Iterator[Path]:
    """Delete an archive. Yield a path for a new one, and rename it when complete: no JVM reads a partial file."""
    archive = archive_path(name)
    part = archive.with_name(f".{archive.name}.{os.getpid()}.part")
    archive.unlink(missing_ok=True)
    try:
        yield part
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def end_jvm(gateway: JavaGateway, process: subprocess.Popen[bytes]) -> None:
    """Let a Py4J JVM exit normally and wait for it. A killed JVM writes no archive."""
    gateway.close()
    assert process.stdin is not None  # noqa: S101 (the process was started with a pipe)
    process.stdin.close()
    process.wait()


def run_spark(archive: Path, folder: Path, s3: LocalS3) -> None:
    """Run typical statements of short-lived drivers in a Spark driver."""
    conf = {
        "spark.master": "local[1]", "spark.driver.memory": "1g", "spark.sluice.guard": "off",
        "spark.driver.extraJavaOptions": " ".join([PLAIN_JVM, *write_archive_options(archive)]),
        "spark.sql.shuffle.partitions": "1", "spark.sql.warehouse.dir": str(folder),
        "spark.databricks.delta.snapshotPartitions": "1",
        **LOCAL_DRIVER, **FEW_ROWS, **s3.spark_conf,
    }  # fmt: skip
    spark = build_session("archive classes", jars=jar_paths(), launch_conf=conf, log_level="OFF")
    for root, statements in ((folder, STATEMENTS), ("s3a://lake", STATEMENTS[:2])):
        for statement in statements:
            spark.sql(statement.format(table=f"delta.`{root}/table`"))
    csv = folder / "rows.csv"
    csv.write_text("id,day\n1,1\n2,2\n", encoding="utf-8")
    rows = spark.read.csv(str(csv), header=True, schema="id LONG, day INT").cache()
    rows.write.format("delta").mode("append").partitionBy("day").save(f"{folder}/table")
    rows.groupBy("day").count().collect()
    gateway = spark.sparkContext._gateway  # noqa: SLF001 (`end_jvm` waits for its JVM)
    spark.stop()
    end_jvm(gateway, gateway.proc)


def run_store(archive: Path, folder: Path, s3: LocalS3) -> None:
    """Run the operations of a soak's writer in a JVM without Spark."""
    with set_environment({"JDK_JAVA_OPTIONS": " ".join(write_archive_options(archive))}):
        jvm = StoreJvm(
            hadoop=hadoop_settings("archive", s3), guard=AllowAllGuard(), mode="required", conditional=True,
            stderr_path=folder / "jvm.log",
        )  # fmt: skip
    table = "s3a://lake/store"
    jvm.warm_up(table)
    jvm.write_data_file(table, "1.parquet", [2**40])
    jvm.write(table, 0, ['{"commitInfo":{"txnId":"archive"}}'], block="archive")
    jvm.read(table, 0)
    end_jvm(jvm._gateway, jvm._process)  # noqa: SLF001 (`end_jvm` waits for the JVM)


def run_zookeeper(archive: Path, _folder: Path, _s3: LocalS3) -> None:
    """Restart one of the three servers of an ensemble to write the archive, and acquire a lock through it."""
    with EmbeddedZooKeeper(servers=3) as ensemble:
        server = ensemble.servers[0]
        server.stop()
        with set_environment({"JDK_JAVA_OPTIONS": " ".join(write_archive_options(archive))}):
            server.start()
        server.wait_until_serving(time.monotonic() + 60)
        with ZookeeperLockManager(server.address) as manager, manager.acquire("s3://lake/archive") as hold:
            hold.check()
        # A normal exit: a killed server writes no archive.
        server.stop()


def main(name: str) -> None:
    """Create the archive."""
    archive_path(name).parent.mkdir(parents=True, exist_ok=True)
    with LocalS3() as s3, tempfile.TemporaryDirectory(prefix="sluice-archive-") as folder, new_archive(name) as archive:
        os.environ.update(s3.environment)
        s3.create_bucket("lake")
        {SPARK: run_spark, STORE: run_store, ZOOKEEPER: run_zookeeper}[name](archive, Path(folder), s3)


if __name__ == "__main__":
    main(sys.argv[1])
