"""Sluice: many Spark writers, one Delta Lake table, one commit at a time.

This package exports all public names of ``lock_manager``, which needs only kazoo:
``from sluice import ZookeeperLockManager``. It also exports ``LockedDeltaWriter`` of ``writer_jobs``. The first access
to that name imports PySpark.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from lock_manager import *  # noqa: F403 (its __all__ is pinned by a test)
from lock_manager import __all__ as _lock_manager_all

if TYPE_CHECKING:
    from writer_jobs import LockedDeltaWriter

try:
    __version__ = version("delta-sluice")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "unknown"

__all__ = [*_lock_manager_all, "LockedDeltaWriter", "__version__"]  # noqa: PLE0604 (all elements are names)


def __getattr__(name: str) -> Any:
    if name == "LockedDeltaWriter":
        from writer_jobs import LockedDeltaWriter  # noqa: PLC0415 (needs PySpark)

        return LockedDeltaWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
