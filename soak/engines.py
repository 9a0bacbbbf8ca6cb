"""The programs that can run a soak's writers, and their time limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The program of a writer, and its time limits.

    Attributes:
        name: Value of ``--engine``.
        program: Module that runs one writer.
        engine_info: Prefix of ``engineInfo`` in its commits.
        ready_seconds: Seconds until all writers must be ready.
        finish_seconds: Seconds that all writers have to end their current transaction.
        stall_seconds: Seconds without an acknowledged commit, in addition to some session timeouts, after which the
            run is stuck.
        slack_seconds: Additional seconds for a step of the writer, compared with a JVM without Spark.

    """

    name: str
    program: str
    engine_info: str
    ready_seconds: float
    finish_seconds: float
    stall_seconds: float
    slack_seconds: float


#: Transactions written against the log store alone, in a JVM without Spark.
STORE = Engine(
    name="store",
    program="soak.store_writer",
    engine_info="sluice-soak",
    ready_seconds=120,
    finish_seconds=60,
    stall_seconds=60,
    slack_seconds=0,
)
#: Spark drivers, with the gate or with the lock over the write.
SPARK = Engine(
    name="spark",
    program="soak.spark_writer",
    engine_info="Apache-Spark/",
    ready_seconds=360,
    finish_seconds=180,
    stall_seconds=180,
    slack_seconds=20,
)
#: Engines by name.
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (STORE, SPARK)}
