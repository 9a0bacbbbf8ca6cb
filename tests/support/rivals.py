"""A lock manager whose holds belong to other threads, like the holds of another program."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lock_manager import HeldLock, ZookeeperLockManager


class RivalManager(ZookeeperLockManager):
    """Acquires each lock in a new thread, so that it is not nested in a hold of the calling thread."""

    def acquire_all(self, *scopes: Any, **options: Any) -> HeldLock:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().acquire_all, *scopes, **options).result()
