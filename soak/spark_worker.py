"""A writer of a soak that is a whole Spark driver: ``python -m soak.spark_writer OPTIONS``.

It is told, and says, what :mod:`soak.worker` is and does; the guard is the product's own, attached to the
session as :func:`writer_jobs.attach` does it.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark import InheritableThread
from pyspark.sql import SparkSession

import writer_jobs.commit.driver_guard
from sluice.local.jars import jar_paths
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from soak.controls import Protection
from soak.errors import JvmGoneError
from soak.unprotected import is_on_a_put
from soak.worker import Worker
from writer_jobs import DeltaTableLog, build_session

_SETTINGS = {
    **LOCAL_DRIVER,
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    **FEW_ROWS,
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # The verdict reads every version file.
    "spark.databricks.delta.properties.defaults.enableExpiredLogCleanup": "false",
}


class BoundCycle(Protocol):
    """One turn of a writer, which is told what the guard is asked about its hold."""

    def asked(self, request: Mapping[str, Any]) -> None:
        """Take note of a put that is about to be made."""

    def told(self, request: Mapping[str, Any]) -> None:
        """Take note of what became of a put."""


class SparkWorker(Worker):
    """A writer whose JVM is Spark's.

    Attributes:
        spark: the session.
        cycles: those that hold a lock now, by the id of the hold.
        step_numbers: number the tables of steps.
        deletable: acknowledged rows of this process that were not deleted, by table; the oldest first.

    """

    def start_jvm(self) -> int:
        """Start the driver, with the soak's guard in place of the product's; return its JVM's process id."""
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        hadoop = {f"spark.hadoop.{key}": value for key, value in self.options.hadoop.items()}
        mode = "off" if self.without is Protection.GUARD else "required"
        conf = {**_SETTINGS, **hadoop, "spark.sluice.guard": mode}
        self.spark: SparkSession = build_session(self.options.name, jars=jar_paths(), launch_conf=conf)
        self.cycles: dict[str, BoundCycle] = {}
        self.step_numbers = itertools.count()
        self.deletable: dict[str, deque[list[int]]] = defaultdict(deque)
        self._rows_taken = threading.Lock()
        jvm: Any = self.spark._jvm  # noqa: SLF001 (Spark's way to it)
        # S3A raises shorter time-outs to 15 s, and faults would cost that each time.
        jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(
            jvm.java.time.Duration.ofMillis(1)
        )
        writer_jobs.commit.driver_guard.GUARD = self.guard
        if mode == "required":
            writer_jobs.attach(self.spark)
        return int(jvm.java.lang.ProcessHandle.current().pid())

    def warm_up(self) -> None:
        """Load what the first look at a table and the first job load."""
        self.spark.range(1).collect()
        DeltaTableLog(self.spark, self.table).head()

    def end_jvm(self) -> None:
        """Leave it to the end of this process, with which it ends."""

    def thread(self, work: Callable[[], None]) -> threading.Thread:
        """Return a thread that is bound to holds of its own, in Java too."""
        thread: threading.Thread = InheritableThread(target=work, daemon=True)
        return thread

    def asked(self, request: Mapping[str, Any]) -> None:
        """Have the cycle to whose hold the committing thread is bound say so."""
        cycle = self.cycles.get(self.guard.hold_of(request))
        if cycle is not None and request.get("kind") == "outcome":
            cycle.told(request)
        elif cycle is not None and is_on_a_put(request):
            cycle.asked(request)

    def take_ids(self) -> list[int]:
        """Return ids that no row has, one after the other."""
        with self._rows_taken:
            return [next(self.ids) for _ in range(self.options.rows)]

    def outcomes(self) -> dict[str, str]:
        """Return what became of each attempt under the holds of this process, as the log store saw it."""
        # All holds: without the binding one may vouch for another.
        jvm: Any = self.spark._jvm  # noqa: SLF001
        attempts = jvm.io.deltasluice.storage.Attempts
        found = [each for hold in list(self.cycles) for each in json.loads(attempts.of(hold))]
        return {str(each["attempt"]): str(each["outcome"]) for each in found}

    def refuse_without_jvm(self, error: Exception) -> None:
        """Make sure that the JVM answers.

        Raises:
            JvmGoneError: it does not, whatever ``error`` was.

        """
        try:
            jvm: Any = self.spark._jvm  # noqa: SLF001
            jvm.java.lang.System.nanoTime()
        except Exception as gone:
            raise JvmGoneError(f"the driver's JVM is gone: {error}") from gone
