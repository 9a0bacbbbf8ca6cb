"""Start a Spark driver in a process of its own, and send commands to it. The process runs ``spark_driver.py``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lock_manager.testing.embedded import send_signal
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from soak.hadoop import hadoop_settings
from soak.s3_faults import FaultyS3
from soak.tcp_proxy import Link

ROOT = Path(__file__).parents[2]
WAIT = 120
"""Seconds that a test waits for a driver."""
LAKE = ("lake", "lake-client")
"""Buckets of tables. To the second, drivers put versions with S3A's client of the AWS SDK, as with an older Hadoop."""
IMPATIENT = ("impatient", "impatient-client")
"""The same, with short timeouts and without repeated requests."""

_PROGRAM = ROOT / "tests" / "support" / "spark_driver.py"
_SESSION_SECONDS = 4
_SHORT_TIMEOUTS = {"fs.s3a.attempts.maximum": "1", "fs.s3a.connection.timeout": "1500ms"}


class Driver:
    """A Spark driver in a process of its own, with a proxy between it and ZooKeeper.

    Args:
        name: ``writer-1`` and so on; part of the user agent in requests to S3.
        hosts: Connection string of ZooKeeper.
        s3: The S3 of its tables; None if they are elsewhere.
        conf: Additional Spark settings.

    """

    def __init__(self, name: str, hosts: str, s3: FaultyS3 | None, conf: Mapping[str, str] | None = None) -> None:
        self.hosts = hosts
        self.link = Link(hosts)
        settings = {
            "spark.master": "local[1]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **LOCAL_DRIVER,
            **FEW_ROWS,
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            **(_s3_settings(name, s3) if s3 else {}),
            **(conf or {}),
        }
        command = [sys.executable, str(_PROGRAM), self.link.hosts, str(_SESSION_SECONDS), json.dumps(settings)]
        credentials = s3.environment if s3 else {}
        environment = {**os.environ, **credentials, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        self.name = name
        self.pids: tuple[int, ...] = ()

    def wait_until_ready(self) -> None:
        """Wait until the driver accepts commands."""
        if not self.pids:
            assert self.answer() == {"done": "ready"}
            self.pids = tuple(self.do("pids"))

    def begin(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        self.send_line(json.dumps({"do": command, **arguments}))

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def do(self, command: str, **arguments: Any) -> Any:
        """Run a command; return its result."""
        self.begin(command, **arguments)
        answer = self.answer()
        assert "done" in answer, answer
        return answer["done"]

    def signal(self, number: signal.Signals, target: str) -> None:
        python, jvm = self.pids
        for pid in {"python": [python], "jvm": [jvm], "both": [python, jvm]}[target]:
            send_signal(pid, number)

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.link.close()


def _s3_settings(name: str, s3: FaultyS3) -> dict[str, str]:
    impatient_settings = {
        key.replace("fs.s3a", f"spark.hadoop.fs.s3a.bucket.{bucket}", 1): value
        for bucket in IMPATIENT
        for key, value in {**hadoop_settings(name, s3), **_SHORT_TIMEOUTS}.items()
    }
    clients = {f"spark.hadoop.fs.s3a.bucket.{bucket}.sluice.put": "client" for _, bucket in (LAKE, IMPATIENT)}
    return {"spark.hadoop.fs.s3a.user.agent.prefix": name, **s3.spark_conf, **impatient_settings, **clients}
