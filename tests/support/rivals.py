"""A rival in this process: a lock manager whose holds are of other threads, as another program's would be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lock_manager import HeldLock, ZookeeperLockManager


class RivalManager(ZookeeperLockManager):
    """Acquires each lock in a thread of its own, so that nothing of it is the calling thread's."""

    def acquire_all(self, *scopes: Any, **more: Any) -> HeldLock:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().acquire_all, *scopes, **more).result()
