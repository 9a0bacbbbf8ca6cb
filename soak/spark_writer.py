"""A writer of a soak that is a whole Spark driver: ``python -m soak.spark_writer OPTIONS``."""

from __future__ import annotations

import json
import logging
import os
import sys

from soak.controls import Protection
from soak.gate_cycle import GateCycle
from soak.spark_cycle import SparkCycle
from soak.spark_worker import SparkWorker
from soak.worker import WorkerOptions, quiet


class SparkWriter(SparkWorker):
    """A writer that commits."""

    def cycle(self, *, second: bool) -> None:
        """Take the lock once, and commit."""
        staged = self.options.hold == "commit" and self.without is not Protection.GUARD and not second
        (GateCycle(self, self.table) if staged else SparkCycle(self, self.table, second=second)).run()


def main() -> None:
    """Run with the options in the first argument."""
    # What Spark prints is no history, and a JVM that outlives Python for a moment must not keep its pipe open.
    output = os.dup(1)
    os.dup2(2, 1)
    quiet()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    SparkWriter(WorkerOptions(**json.loads(sys.argv[1])), output).run()
    os._exit(0)


if __name__ == "__main__":
    main()
