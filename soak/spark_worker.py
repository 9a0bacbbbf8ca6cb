"""The state of a writer process that is a Spark driver; :mod:`soak.worker` describes its commands.

The soak's guard replaces the product's; :func:`writer_jobs.attach` attaches it to the session.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession

import writer_jobs.commit.driver_guard
from sluice.local.jars import jar_paths
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from soak.controls import Protection
from soak.errors import JvmGoneError
from soak.group_controls import GROUP_CONTROLS, add_look_point
from soak.hadoop import allow_short_timeouts
from soak.unprotected import is_put_request
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


class GuardObserver:
    """An observer of the requests to the guard under one hold. Its methods do nothing."""

    def on_put_request(self, request: Mapping[str, Any]) -> None:
        """Handle the request to put a version, before it is answered."""

    def on_put_answer(self, answer: Mapping[str, Any]) -> None:
        """Handle the answer to that request."""

    def on_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Handle the outcome of a put."""


class SparkWorker(Worker):
    """A writer whose JVM is Spark's driver.

    Attributes:
        spark: The session.
        cycles: Observers of the current holds, by the id of the hold.
        step_numbers: Numbers for the tables of steps.
        deletable: Acknowledged rows of this process that were not deleted, by table; the oldest first.

    """

    def start_jvm(self) -> int:
        """Start the driver with the soak's guard instead of the product's; return the JVM's process id."""
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        hadoop = {f"spark.hadoop.{key}": value for key, value in self.options.hadoop.items()}
        mode = "off" if self.without is Protection.GUARD else "required"
        groups = str(self.options.group_commits).lower()
        conf = {**_SETTINGS, **hadoop, "spark.sluice.guard": mode, "spark.sluice.groupCommits": groups}
        self.spark: SparkSession = build_session(self.options.name, jars=jar_paths(), launch_conf=conf)
        self.cycles: dict[str, GuardObserver] = {}
        self.step_numbers = itertools.count()
        self.deletable: dict[str, deque[list[int]]] = defaultdict(deque)
        self._ids_lock = threading.Lock()
        jvm: Any = self.spark._jvm  # noqa: SLF001 (Spark has no public attribute for it)
        allow_short_timeouts(jvm)
        writer_jobs.commit.driver_guard.GUARD = self.guard
        if mode == "required":
            writer_jobs.attach(self.spark)
        add_look_point(self)
        if (control := GROUP_CONTROLS.get(self.options.prepared_for or self.without or "")) is not None:
            control.prepare(self)
            if self.without is not None:
                control.leave_out(self)
        return int(jvm.java.lang.ProcessHandle.current().pid())

    def warm_up(self) -> None:
        """Load the classes of the first read of a table and of the first Spark job."""
        self.spark.range(1).collect()
        DeltaTableLog(self.spark, self.table).head()

    def end_jvm(self) -> None:
        """Do nothing: the JVM ends with this process."""

    def make_thread(self, work: Callable[[], None]) -> threading.Thread:
        """Return a thread that has a Java thread of its own, and so its own blocks in Java."""
        thread: threading.Thread = InheritableThread(target=work, daemon=True)
        return thread

    def on_guard_request(self, request: Mapping[str, Any]) -> None:
        """Pass the request on to the observer of the commit's hold."""
        cycle = self.cycles.get(self.guard.hold_of(request))
        if cycle is not None and request.get("kind") == "outcome":
            cycle.on_outcome(request)
        elif cycle is not None and is_put_request(request):
            cycle.on_put_request(request)

    def on_guard_answer(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Pass the answer on to the observer of the commit's hold."""
        cycle = self.cycles.get(self.guard.hold_of(request))
        if cycle is not None:
            cycle.on_put_answer(answer)

    def make_groups(self, *, enabled: bool) -> None:
        """Change the setting ``spark.sluice.groupCommits``."""
        jvm_context: Any = self.spark.sparkContext._jsc.sc()  # noqa: SLF001
        jvm_context.conf().set("spark.sluice.groupCommits", str(enabled).lower())

    def take_ids(self) -> list[int]:
        """Return consecutive ids that no row has yet."""
        with self._ids_lock:
            return [next(self.ids) for _ in range(self.options.rows)]

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each attempt under the current holds of this process, as the log store reports it."""
        jvm: Any = self.spark._jvm  # noqa: SLF001
        # All holds, because without the binding a commit may be made under another hold.
        reports = [
            report for hold in list(self.cycles) for report in json.loads(jvm.io.deltasluice.storage.Attempts.of(hold))
        ]
        return {str(report["attempt"]): str(report["outcome"]) for report in reports}

    def check_jvm(self, error: Exception) -> None:
        """Raise if the JVM does not answer.

        Args:
            error: Error of the last call, for the message.

        Raises:
            JvmGoneError: The JVM does not answer.

        """
        try:
            jvm: Any = self.spark._jvm  # noqa: SLF001
            jvm.java.lang.System.nanoTime()
        except Exception as jvm_error:
            raise JvmGoneError(f"the driver's JVM is gone: {error}") from jvm_error
