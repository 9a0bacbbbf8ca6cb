"""Delta's own test of concurrent writers, unmodified, from three drivers at once.

``SLUICE_TEST_DELTA_SCRIPT`` names the script in a copy of Delta's source:
``storage-s3-dynamodb/integration_tests/dynamodb_logstore.py``. It overwrites an empty table by no rows, which commits
nothing, appends a row in each of ``ROWS`` transactions of four threads, and checks that all of these rows are there. A
variable chooses its log store. It also reads a DynamoDB table, which no log store of these tests writes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from moto.server import ThreadedMotoServer

from lock_manager import ZookeeperLockManager
from sluice.submit.distribution import jar_arguments
from tests.support.java_program import environment, write_spark_defaults
from tests.support.waiting import eventually
from writer_jobs.delta.session import LOG_STORE

SCRIPT = os.environ.get("SLUICE_TEST_DELTA_SCRIPT", "")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.skipif(not SCRIPT, reason="SLUICE_TEST_DELTA_SCRIPT names no script"),
]

DRIVERS, ROWS, WAIT = 3, 24, 900
FEW_PARTITIONS = {"spark.databricks.delta.snapshotPartitions": "2"}
STOCK = "io.delta.storage.S3SingleDriverLogStore"
DYNAMODB = {
    "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("tablePath", "fileName")],
    "KeySchema": [
        {"AttributeName": "tablePath", "KeyType": "HASH"}, {"AttributeName": "fileName", "KeyType": "RANGE"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}  # fmt: skip


@dataclass
class Drivers:
    """Drivers that run the script on one table.

    Attributes:
        variables: Environment of the drivers.
        folder: Folder of their outputs.
        run_id: Name of the table.

    """

    variables: Mapping[str, str]
    folder: Path
    run_id: str

    @property
    def table(self) -> str:
        return f"s3a://{self.variables['S3_BUCKET']}/tables/table_{self.run_id}"

    def create_table(self) -> None:
        """Create the table of the script, so that all drivers begin with it."""
        rows = Table.from_pydict({name: Array([], type=DataType.int32()) for name in ("id", "a")})
        uri, options = self.table.replace("s3a:", "s3:"), dict(self.variables)
        write_deltalake(uri, rows, partition_by=["id"], storage_options=options)

    def start(self, store: str, *command: str) -> list[subprocess.Popen[bytes]]:
        variables = {**self.variables, "DELTA_STORAGE": store, "RUN_ID": self.run_id}
        processes = []
        for number in range(DRIVERS):
            with self.output(number).open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *command, SCRIPT], env=variables, stdout=output, stderr=subprocess.STDOUT
                    )
                )
        return processes

    def output(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def read(self) -> DeltaTable:
        return DeltaTable(self.table.replace("s3a:", "s3:"), storage_options=dict(self.variables))


@pytest.fixture
def drivers(s3: Any, tmp_path: Path) -> Iterator[Drivers]:
    dynamodb = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    dynamodb.start()
    try:
        host, port = dynamodb.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        run_id = tmp_path.name
        client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-west-2")
        client.create_table(TableName=f"ddb_table_{run_id}", **DYNAMODB)
        write_spark_defaults(tmp_path, {**FEW_PARTITIONS, **s3.spark_conf})
        variables = {
            **environment(), **s3.environment, "AWS_ENDPOINT_URL_DYNAMODB": endpoint, "SPARK_CONF_DIR": str(tmp_path),
            "S3_BUCKET": s3.root, "DELTA_CONCURRENT_WRITERS": "4", "DELTA_CONCURRENT_READERS": "1",
            "DELTA_NUM_ROWS": str(ROWS),
        }  # fmt: skip
        yield Drivers(variables, tmp_path, run_id)
    finally:
        dynamodb.stop()


def test_the_commits_of_three_drivers_queue(drivers: Drivers, zookeeper: Any, manager: ZookeeperLockManager) -> None:
    drivers.create_table()
    with manager.acquire(drivers.table):
        processes = drivers.start(LOG_STORE, "-m", "sluice", "run", "--zookeeper", zookeeper.hosts)
        # All drivers append at the same time.
        eventually(lambda: len(manager.queue(drivers.table)) > DRIVERS, within=WAIT, label="commits that wait")
    codes = [process.wait(WAIT) for process in processes]
    outputs = [drivers.output(number).read_text() for number in range(DRIVERS)]
    assert codes == DRIVERS * [0], outputs
    assert not any("Concurrent" in output for output in outputs)
    table = drivers.read()
    assert table.count() == DRIVERS * ROWS
    stamps = [commit.get("sluice") for commit in reversed(table.history())][1:]
    tokens = [stamp["nodes"][0]["token"] for stamp in stamps]
    assert tokens == sorted(tokens)
    assert len(tokens) == DRIVERS * ROWS
    command = [sys.executable, "-m", "sluice", "verify", drivers.table]
    assert subprocess.run(command, env=dict(drivers.variables), check=False).returncode == 0


def test_negative_control_with_delta_s_store_rows_are_lost_or_conflict(drivers: Drivers) -> None:
    drivers.create_table()
    words = shlex.join([*jar_arguments(), "pyspark-shell"])
    drivers.variables = {**drivers.variables, "PYSPARK_SUBMIT_ARGS": words}
    processes = drivers.start(STOCK)
    codes = [process.wait(WAIT) for process in processes]
    assert any(codes) or drivers.read().count() < DRIVERS * ROWS
