"""Create the lock manager or the inspector of the coordinator that the settings name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lock_manager.coordinator import Inspector, LockManager
from lock_manager.courtesy_queue import CourtesyQueue
from lock_manager.errors import SettingsError
from lock_manager.optimistic import OptimisticManager
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from lock_manager.settings import OPTIMISTIC_URL, LockSettings
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.manager import ZookeeperLockManager


def connect(url: str, **settings: Any) -> LockManager:
    """Return a lock manager for the URL of a coordinator. It connects at the first use.

    ::

        with lock_manager.connect("s3-lease://lake/locks") as manager, manager.acquire("s3://lake/flights"):
            write_deltalake("s3://lake/flights", rows, mode="append")

    Args:
        url: ``zookeeper://host:port,host:port/chroot``, ``s3-lease://BUCKET/PREFIX`` or ``optimistic://``; see
            :meth:`LockSettings.from_url`.
        settings: Fields of :class:`LockSettings`. They win over those in the URL.

    Raises:
        SettingsError: The URL or a setting is malformed.

    """
    return manager_of(LockSettings.from_url(url, **settings))


def manager_of(settings: LockSettings) -> LockManager:
    """Return a lock manager with these settings."""
    if settings.fallback:
        return OptimisticManager(settings, CourtesyQueue(ZookeeperLockManager(replace(settings, fallback=""))))
    if settings.is_optimistic:
        return OptimisticManager(settings)
    return S3LeaseManager(settings) if settings.lock_url else ZookeeperLockManager(settings)


def inspector_of(settings: LockSettings) -> Inspector:
    """Return an inspector with these settings.

    Raises:
        SettingsError: The coordinator has no locks.

    """
    if settings.lock_url == OPTIMISTIC_URL:
        raise SettingsError(f"{settings.lock_url} has no locks to show or to break")
    return LeaseInspector(settings) if settings.lock_url else LockInspector(settings)
