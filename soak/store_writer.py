"""A writer without Spark: ``python -m soak.store_writer OPTIONS``; see :mod:`soak.worker`."""

from __future__ import annotations

import json
import os
import sys

from soak.store_cycle import StoreCycle
from soak.worker import StoreWorker, WorkerOptions, silence_libraries


class StoreWriter(StoreWorker):
    """A writer that commits through the log store alone."""

    def cycle(self, *, second: bool) -> None:
        """Acquire the lock once and commit."""
        StoreCycle(self, self.table, second=second).run()


def main() -> None:
    """Run a writer with the options in the first argument."""
    silence_libraries()
    StoreWriter(WorkerOptions(**json.loads(sys.argv[1]))).run()
    os._exit(0)


if __name__ == "__main__":
    main()
