"""What a soak's writers can be, and what differs for the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a writer commits with.

    Attributes:
        name: for ``--engine``.
        program: module that is one writer.
        signs: how ``engineInfo`` begins in its commits.
        ready_seconds: within which all writers are to be there.
        finish_seconds: within which they are to be through with what they do.
        stall_seconds: without anything acknowledged, and some session time-outs more, after which a run is stuck.
        slack_seconds: how much longer than a bare JVM such a writer may take for a step.

    """

    name: str
    program: str
    signs: str
    ready_seconds: float
    finish_seconds: float
    stall_seconds: float
    slack_seconds: float


#: Transactions written against the log store alone, in a JVM without Spark.
STORE = Engine(
    name="store",
    program="soak.store_writer",
    signs="sluice-soak",
    ready_seconds=120,
    finish_seconds=60,
    stall_seconds=60,
    slack_seconds=0,
)
#: Whole Spark drivers, with the gate.
SPARK = Engine(
    name="spark",
    program="soak.spark_writer",
    signs="Apache-Spark/",
    ready_seconds=360,
    finish_seconds=180,
    stall_seconds=180,
    slack_seconds=20,
)
ENGINES: Mapping[str, Engine] = {each.name: each for each in (STORE, SPARK)}
"""Every engine, by name."""
