"""A writer that is a Spark driver: ``python -m soak.spark_writer OPTIONS``; see :mod:`soak.worker`."""

from __future__ import annotations

import json
import logging
import os
import sys

from soak.controls import Protection
from soak.gate_cycle import GateCycle
from soak.spark_cycle import SparkCycle
from soak.spark_worker import SparkWorker
from soak.worker import WorkerOptions, silence_libraries


class SparkWriter(SparkWorker):
    """A writer that commits with Spark."""

    def cycle(self, *, second: bool) -> None:
        """Acquire the lock once and commit, through the gate or with the lock over the whole write."""
        at_the_gate = self.options.lock_during == "commit" and self.without is not Protection.GUARD and not second
        (GateCycle(self, self.table) if at_the_gate else SparkCycle(self, self.table, second=second)).run()


def main() -> None:
    """Run a writer with the options in the first argument."""
    # Spark's output must not get into the history. A JVM that outlives Python must not keep the pipe open.
    output = os.dup(1)
    os.dup2(2, 1)
    silence_libraries()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    SparkWriter(WorkerOptions(**json.loads(sys.argv[1])), output).run()
    os._exit(0)


if __name__ == "__main__":
    main()
