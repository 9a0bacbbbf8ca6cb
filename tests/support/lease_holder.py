"""A process that holds a lock on S3: ``python -m tests.support.lease_holder URL TABLE LEASE_SECONDS``.

It prints ``held`` when it has the lock. For each line of its input it stores an intent and prints the error's class, or
``intended``.
"""

from __future__ import annotations

import sys

from lock_manager import LockError, LockSettings
from lock_manager.s3_lease.manager import S3LeaseManager


def _answer(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    url, table, lease_seconds = sys.argv[1:]
    settings = LockSettings(lock_url=url, session_timeout_seconds=float(lease_seconds))
    with S3LeaseManager(settings) as manager:
        hold = manager.acquire(table)
        _answer("held")
        for line in sys.stdin:
            try:
                hold.intend(int(line), txn=None, attempt=f"attempt {line.strip()}")
            except LockError as error:
                _answer(type(error).__name__)
            else:
                _answer("intended")


if __name__ == "__main__":
    main()
