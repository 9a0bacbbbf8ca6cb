"""A writer that serves its metrics: ``python -m tests.support.metrics_writer HOSTS TABLE``.

It prints the port of its metrics when it has the lock, and checks the lock once a second until its input ends.
"""

from __future__ import annotations

import select
import sys

from lock_manager import LockLostError, ZookeeperLockManager
from lock_manager.metrics import MetricsExporter


def main() -> None:
    hosts, table = sys.argv[1:]
    with MetricsExporter("0") as exporter, ZookeeperLockManager(hosts) as manager:
        hold = manager.acquire(table)
        sys.stdout.write(f"{(exporter.address or '').split(':')[2].partition('/')[0]}\n")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            try:
                hold.check()
            except LockLostError as error:
                sys.stderr.write(f"{error}\n")
                sys.stdin.read()
                return


if __name__ == "__main__":
    main()
