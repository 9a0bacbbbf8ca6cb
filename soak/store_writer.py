"""A writer of a soak without Spark: ``python -m soak.store_writer OPTIONS``; see :mod:`soak.worker`."""

from __future__ import annotations

import json
import os
import sys

from soak.cycle import Cycle
from soak.worker import StoreWorker, WorkerOptions, quiet


class StoreWriter(StoreWorker):
    """A writer that commits."""

    def cycle(self, *, second: bool) -> None:
        """Take the lock once, and commit."""
        Cycle(self, self.table, second=second).run()


def main() -> None:
    """Run with the options in the first argument."""
    quiet()
    StoreWriter(WorkerOptions(**json.loads(sys.argv[1]))).run()
    os._exit(0)


if __name__ == "__main__":
    main()
